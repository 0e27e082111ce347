"""What a run costs at several sizes, step by step, and the law that it follows.

    python -m benchmarks.speed.scale --work bench/scale --sizes 60000 5600000 --test 120000

Each size goes through simulate, features, stack (with a time limit, if there is one), predict and verify, each step a
command in a process of its own. A step that is finished is not done again: stopped and started once more, the benchmark
goes on. Printed are wall-clock and processor time of each command with its children, and the largest memory of all of
them together, sampled every two seconds (memory that they share is counted once); then what fits take, from the run's
manifest, whatever was stopped between them. With --kills 3 --kill-after 300 the
stack is killed three times, each time 300 seconds after its start, and started again; its costs are then those of
all starts, but for the processor time of fits that a kill cut off, and each start says how many finished fits it
found. The law is a straight line in the logarithms, from all sizes that are there.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.shared.memory import FamilyMemory
from showerstack.runtime.files import read_json, write_json
from showerstack.stacking.prediction.run import Run

ROOT = Path(__file__).resolve().parents[2]
STEPS = ("simulate", "features", "stack", "predict", "verify")


def _commands(folder: Path, options: argparse.Namespace, n: int) -> dict[str, list[str]]:
    data, run = folder / "data", folder / "run"
    train, test = data / f"{options.task}_train", data / f"{options.task}_test"
    stack = ["stack", "--task", options.task, "--data", data, "--run", run, "--preset", options.preset, "--quiet"]
    if options.time_limit:
        stack += ["--time-limit", options.time_limit]
    if options.learners:
        stack += ["--learners", options.learners]
    made = {
        "simulate": [
            "simulate", "--task", options.task, "--out", data, "--train", n, "--test", options.test, "--seed", 15,
        ],
        "features": ["features", train],
        "stack": stack,
        "predict": ["predict", "--run", run, "--data", test, "--quiet", "--out", folder / "whole.npz"],
        "verify": ["verify", "--data", data, run / "predictions.npz"],
    }  # fmt: skip
    return {step: [str(part) for part in command] for step, command in made.items()}


def _events(step: str, n: int, n_test: int) -> int:
    """Return how many events a step works on."""
    return {"simulate": n + n_test, "predict": n_test, "verify": n_test}.get(step, n)


def measured_command(
    step: str, command: list[str], log: Path, kill_after_s: float | None = None, allowed: tuple[int, ...] = (0,)
) -> dict[str, float]:
    """Run a command to its end, or until it is killed; other exit codes than those allowed end the benchmark."""
    program = [sys.executable, str(ROOT / ("verify.py" if step == "verify" else "cli.py"))]
    arguments = command[1:] if step == "verify" else command
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with log.open("ab") as said:
        process = subprocess.Popen([*program, *arguments], stdout=said, stderr=said, cwd=ROOT, env=os.environ)
        memory = FamilyMemory(process.pid, every_s=2.0)
        try:
            code = process.wait(kill_after_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if code not in allowed:
        raise SystemExit(f"{step} ended with exit code {code}: see {log}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_s": time.perf_counter() - started, "cpu_s": cpu, "peak_gb": memory.stop() / 1e9}


def _done(folder: Path, options: argparse.Namespace, n: int) -> dict[str, Any]:
    """Do what is left of one size; return what each step cost."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "cost.json"
    result: dict[str, Any] = read_json(file) if file.exists() else {}
    for step, command in _commands(folder, options, n).items():
        if step not in result:
            Console(stderr=True).print(f"{n:,} events: {step}")
            kills = options.kills if step == "stack" else 0
            starts = []
            for k in range(kills + 1):
                done = len(list((folder / "run" / "learners").glob("*/fold-*")))
                after = options.kill_after if k < kills else None
                starts.append(measured_command(step, command, folder / "log.txt", after) | {"found_fits": done})
            result[step] = _of_all(starts)
            write_json(file, result)
    return result


def _of_all(starts: list[dict[str, float]]) -> dict[str, Any]:
    """Return the costs of a step that was killed and started again."""
    sums = {name: sum(start[name] for start in starts) for name in ("wall_s", "cpu_s")}
    kept = {"starts": starts} if len(starts) > 1 else {}
    return {**sums, "peak_gb": max(start["peak_gb"] for start in starts), **kept}


def _law(sizes: list[int], seconds: list[float]) -> str:
    """Return ``a N^b`` through the points, b with its standard error where there are more than two."""
    if len(sizes) < 2:
        return ""
    x, y = np.log(np.array(sizes) / 1e6), np.log(seconds)
    slope, intercept = np.polyfit(x, y, 1)
    error = ""
    if len(sizes) > 2:
        rest = y - slope * x - intercept
        error = f" ± {np.sqrt(rest @ rest / (len(x) - 2) / ((x - x.mean()) @ (x - x.mean()))):.2f}"
    return f"{np.exp(intercept):,.0f} s (N / 10^6)^{slope:.2f}{error}"


def _row(n: int, n_test: int, step: str, cost: dict[str, float]) -> list[str]:
    rate = _events(step, n, n_test) / cost["wall_s"]
    return [f"{n:,}", step, f"{cost['wall_s']:,.0f}", f"{rate:,.0f}", f"{cost['cpu_s']:,.0f}", f"{cost['peak_gb']:.1f}"]


def main() -> None:
    """Measure what is missing and print all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--work", type=Path, default=Path("bench/scale"), help="folder for data, runs and what was measured"
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[60_000, 300_000, 1_200_000, 5_600_000])
    parser.add_argument("--test", type=int, default=20_000, help="test events")
    parser.add_argument("--task", default="composition")
    parser.add_argument("--preset", default="good")
    parser.add_argument("--learners", help="instead of the preset's")
    parser.add_argument("--time-limit", help="of each stack, e.g. 10m")
    parser.add_argument("--kills", type=int, default=0, help="how often each stack is killed and started again")
    parser.add_argument("--kill-after", type=float, default=300, help="seconds from a start to its kill")
    options = parser.parse_args()
    options.work = options.work.absolute()
    entries = {n: _done(options.work / f"{options.task}-{n}", options, n) for n in options.sizes}
    table = Table(title=f"{options.task}, {options.preset}, {os.cpu_count()} cores, {platform.machine()}")
    for name in ("training events", "step", "wall s", "events/s", "CPU s", "peak GB"):
        table.add_column(name, justify="left" if name == "step" else "right")
    for n, costs in entries.items():
        for step in STEPS:
            table.add_row(*_row(n, options.test, step, costs[step]))
        table.add_section()
    Console(width=110).print(table)
    for step in STEPS:
        law = _law(list(entries), [costs[step]["cpu_s"] for costs in entries.values()])
        if law:
            print(f"CPU of {step}: {law}")
    for n in entries:
        manifest = Run.open(options.work / f"{options.task}-{n}" / "run").manifest
        gate = manifest.gate
        best = next(row for row in manifest.learners if row.name == gate.best_learner)
        print(
            f"{n:,}: best learner {best.name} {best.log_loss:.4f}, stack gains {gate.gain:.4f} ± "
            f"{gate.standard_error:.4f}; left out {', '.join(one.name for one in manifest.pool.left_out) or 'none'}"
        )
        for k, start in enumerate(entries[n]["stack"].get("starts", [])):
            print(f"  start {k + 1}: found {start['found_fits']} finished fits, ran {start['wall_s']:,.0f} s")
        Console(width=110).print(_fits(n, options.work / f"{options.task}-{n}" / "run"))


def _fits(n: int, run: Path) -> Table:
    """Return what the fits of each learner took and learned from, by the manifest of the run."""
    table = Table(title=f"{n:,} events: fits")
    for name in ("learner", "fits", "events of a fit", "CPU s of a fit", "CPU s", "peak GB", "log-loss"):
        table.add_column(name, justify="left" if name == "learner" else "right")
    opened = Run.open(run)
    for row in opened.manifest.learners:
        steps = [step for step in opened.manifest.steps if step.learner == row.name]
        if steps and row.log_loss is not None:
            cpu, peak = [step.cpu_s for step in steps], max(step.peak_mb for step in steps) / 1e3
            events = next(opened.records(row.name)).n_train
            cells = (f"{len(cpu)}", f"{events:,}", f"{np.mean(cpu):,.0f}", f"{sum(cpu):,.0f}", f"{peak:.1f}")
            table.add_row(row.name, *cells, f"{row.log_loss:.4f}")
    table.caption = f"all steps of the run: {sum(step.cpu_s for step in opened.manifest.steps):,.0f} CPU s"
    return table


if __name__ == "__main__":
    main()
