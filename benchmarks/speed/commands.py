"""Whole commands of this checkout beside another one: processor time, wall-clock time, memory.

    python -m benchmarks.speed.commands --against ../other_checkout --rounds 5 --store
    python -m benchmarks.speed.commands --against ../other_checkout --rounds 2 --commands stack report

Each command is run by both checkouts in turn, on the same simulated showers without cuts; the first round compiles and
fills caches and does not count. Each checkout predicts with a run of its own that uses one network, reports a run of
its own with the preset ``quick`` and looks for photons with a run of two boosters. Printed are
medians with ranges, and the ratios of each pair: they count where other programs use the machine too. ``features``
makes the table of all columns, ``predict`` keeps no table. Memory is the largest of a command and its processes
together, sampled twice a second, the pages of mapped files included. At last the table's bytes are compared for 1, 2
and 4 threads, and after a kill.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.shared.memory import FamilyMemory
from benchmarks.shared.results import HELP, store
from showerstack.showers.schema import COMPOSITION, GAMMA, MATRICES_FILE, SCALARS_FILE, SOURCE_FILE
from showerstack.showers.simulation import simulate

ROOT = Path(__file__).resolve().parents[2]
MANY, MILLION = 60_000, 1_000_000
FEW = 100
TRAINED = 8_000
LIVE_TIME_H = 2.0
"""Of the measured showers in which photons are looked for."""
ONE_NETWORK = """learners = ["pretrained"]
folds = 5
holdout = 0.3
[settings.pretrained]
epochs = 1
"""
"""Options of a run that uses one network: how long it learns makes predictions no slower."""
COMMANDS = ("features", "predict", "million", "stack", "report", "verify", "gamma-limit")


class CommandCost(NamedTuple):
    """What a command took, with its processes."""

    cpu_s: float
    wall_s: float
    peak_gb: float


def timed(root: Path, *arguments: object, program: str = "cli.py") -> CommandCost:
    """Run a command of a checkout to its end; it must succeed."""
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
    command = [sys.executable, str(root / program), *map(str, arguments)]
    began = time.perf_counter()
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, env=environment, cwd=root, stdout=subprocess.DEVNULL, stderr=errors)
        memory = FamilyMemory(process.pid)
        _, status, used = os.wait4(process.pid, 0)
        peak_gb = memory.stop() / 1e9
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            what = errors.read().decode(errors="replace")[-2000:]
            raise SystemExit(f"{' '.join(command)} ended with {process.returncode}: {what}")
    return CommandCost(used.ru_utime + used.ru_stime, time.perf_counter() - began, peak_gb)


def one_network(root: Path, folder: Path) -> Path:
    """Train a run of a checkout that uses one network; return its folder."""
    simulate(COMPOSITION, folder / "data", n_train=2_500, n_test=200, seed=5, train_cuts="test")
    (folder / "stack.toml").write_text(ONE_NETWORK, encoding="utf-8")
    stack(root, folder / "data", folder / "run", "--config", folder / "stack.toml")
    return folder / "run"


def stack(root: Path, data: Path, run: Path, *options: object, task: str = "composition") -> CommandCost:
    """Train a new run of a checkout."""
    shutil.rmtree(run, ignore_errors=True)
    return timed(
        root, "stack", "--task", task, "--data", data, "--run", run, "--workers", 1, "--device", "cpu", *options
    )


class Photons(NamedTuple):
    """Measured showers, and runs of both checkouts that look for photons in them."""

    measured: Path
    data: Path
    runs: list[Path]

    @classmethod
    def prepared(cls, roots: tuple[Path, Path], folder: Path) -> Photons:
        """Return them, made in a new folder."""
        simulate(GAMMA, folder, n_train=TRAINED, n_test=TRAINED, seed=16, train_cuts="test")
        (folder / "fluxes.toml").write_text(f"live_time_h = {LIVE_TIME_H}\n", encoding="utf-8")
        timed(ROOT, "simulate", "--task", "measured", "--spectrum", folder / "fluxes.toml", "--out", folder)
        timed(ROOT, "convert", "--measured", folder / "measured_raw", "--out", folder, "--times")
        runs = [folder / f"run-{k}" for k in range(2)]
        for root, run in zip(roots, runs, strict=True):
            stack(root, folder, run, "--preset", "quick", "--learners", "lightgbm,xgboost", task="gamma")
        return cls(folder / "measured", folder, runs)

    def limit(self, root: Path, k: int, out: Path) -> CommandCost:
        """Look for photons."""
        cost = timed(root, "gamma-limit", "--run", self.runs[k], "--data", self.measured, "--simulation",
                     self.data / "gamma_test", "--out", out)  # fmt: skip
        shutil.rmtree(out)
        return cost


def repeated(data: Path, folder: Path, n_events: int) -> Path:
    """Write a dataset folder of so many events: those of ``data`` from the first on, again and again."""
    folder.mkdir()
    for name in (MATRICES_FILE, SCALARS_FILE):
        once = np.load(data / name, mmap_mode="r")
        written = np.lib.format.open_memmap(folder / name, "w+", once.dtype, (n_events, *once.shape[1:]))
        for start in range(0, n_events, len(once)):
            written[start : start + len(once)] = once[: n_events - start]
        written.flush()
    shutil.copyfile(data / SOURCE_FILE, folder / SOURCE_FILE)
    return folder


def features(root: Path, data: Path, out: Path, *options: object) -> CommandCost:
    """Make a feature table and remove it again."""
    cost = timed(root, "features", data, "--out", out, "--device", "cpu", "--quiet", *options)
    shutil.rmtree(out)
    return cost


def predict(root: Path, run: Path, data: Path, out: Path) -> CommandCost:
    """Predict with a run of a checkout; the file is removed again."""
    cost = timed(
        root, "predict", "--run", run, "--data", data, "--out", out, "--no-table", "--device", "cpu", "--quiet"
    )
    out.unlink()
    return cost


def digest_of(table: Path) -> str:
    """Return a hash of all shards of a feature table."""
    digest = hashlib.sha256()
    for file in sorted(table.glob("part-*.parquet")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def same_bytes(data: Path, scratch: Path) -> str:
    """Return the hashes of a table made by 1, 2 and 4 threads, and by two that were killed after the first shard."""
    digests = {}
    for workers in (1, 2, 4):
        timed(ROOT, "features", data, "--out", scratch / f"{workers}", "--workers", workers, "--quiet")
        digests[f"{workers} threads"] = digest_of(scratch / f"{workers}")
    killed = scratch / "killed"
    command = [sys.executable, str(ROOT / "cli.py"), "features", str(data), "--out", str(killed), "--workers", "2"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not list(killed.glob("part-*.parquet")):
            time.sleep(0.01)
        process.kill()
    found = len(list(killed.glob("part-*.parquet")))
    timed(ROOT, "features", data, "--out", killed, "--workers", 2, "--quiet")
    digests[f"killed with {found} shards"] = digest_of(killed)
    return ", ".join(f"{name} {digest}" for name, digest in digests.items())


def ranged(values: list[float], digits: int) -> str:
    """Return a median and its range."""
    return f"{np.median(values):.{digits}f} ({min(values):.{digits}f}..{max(values):.{digits}f})"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, required=True, help="another checkout")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=COMMANDS)
    parser.add_argument("--store", action="store_true", help=HELP)
    options = parser.parse_args()
    roots = (options.against.resolve(), ROOT)
    lines = ["| command | | before (range) | now (range) | ratio (range) |", "|---|---|---|---|---|"]
    print("\n".join(lines), flush=True)
    with tempfile.TemporaryDirectory(prefix="commands-") as name:
        scratch = Path(name)
        made, _ = simulate(COMPOSITION, scratch / "data", n_train=MANY, n_test=FEW, seed=15)
        for what, measure in work(options.commands, roots, made, scratch):
            rounds = [[measure(k) for k in range(2)] for _ in range(options.rounds + 1)][1:]
            for number, (label, digits) in enumerate((("CPU s", 1), ("wall s", 1), ("peak GB", 2))):
                before, now = ([pair[k][number] for pair in rounds] for k in range(2))
                ratios = [b / a for a, b in zip(before, now, strict=True)]
                cells = (ranged(before, digits), ranged(now, digits), ranged(ratios, 2))
                lines.append(f"| {what if not number else ''} | {label} | {' | '.join(cells)} |")
                print(lines[-1], flush=True)
        if "features" in options.commands:
            lines += ["", f"Bytes of the table of {MANY:,} showers: {same_bytes(scratch / 'many', scratch)}"]
            print(lines[-1])
    if options.store:
        store("commands", "Whole commands", "\n".join([f"Before: commit {revision(roots[0])}.", "", *lines]))


def revision(root: Path) -> str:
    """Return the commit of a checkout."""
    return subprocess.run(
        ["git", "rev-parse", "--short=9", "HEAD"], cwd=root, capture_output=True, text=True, check=True
    ).stdout.strip()


def work(
    commands: Sequence[str], roots: tuple[Path, Path], made: Path, scratch: Path
) -> Iterator[tuple[str, Callable[[int], CommandCost]]]:
    """Yield each command with what runs it in one of the checkouts, by its number; what it needs is made before."""
    table, file = scratch / "table", scratch / "new.npz"
    sizes = {"many": MANY, "few": FEW} | ({"million": MILLION} if "million" in commands else {})
    sets = {name: repeated(made, scratch / name, n) for name, n in sizes.items()}
    if "features" in commands:
        yield f"features, {FEW} showers", lambda k: features(roots[k], sets["few"], table)
        yield f"features, {MANY:,} showers", lambda k: features(roots[k], sets["many"], table, "--workers", 1)
    if {"predict", "million"} & set(commands):
        runs = [one_network(root, scratch / f"trained-{k}") for k, root in enumerate(roots)]
        if "predict" in commands:
            yield f"predict, {FEW} showers", lambda k: predict(roots[k], runs[k], sets["few"], file)
            yield f"predict, {MANY:,} showers", lambda k: predict(roots[k], runs[k], sets["many"], file)
        if "million" in commands:
            yield f"features, {MILLION:,} showers", lambda k: features(roots[k], sets["million"], table)
            yield f"predict, {MILLION:,} showers", lambda k: predict(roots[k], runs[k], sets["million"], file)
    if {"stack", "report", "verify"} & set(commands):
        quick = scratch / "quick"
        simulate(COMPOSITION, quick, n_train=TRAINED, n_test=TRAINED, seed=17, train_cuts="test")
        trained = [quick / f"run-{k}" for k in range(2)]

        def train(k: int) -> CommandCost:
            return stack(roots[k], quick, trained[k], "--preset", "quick")

        if "stack" in commands:
            yield f"stack --preset quick, {TRAINED:,} showers", train
        else:
            for k in range(2):
                train(k)
        if "report" in commands:
            yield "report", lambda k: timed(roots[k], "report", trained[k], "--data", quick)
        if "verify" in commands:
            yield (
                f"verify.py, {TRAINED:,} showers",
                lambda k: timed(roots[k], trained[k] / "predictions.npz", "--data", quick, program="verify.py"),
            )
    if "gamma-limit" in commands:
        photons = Photons.prepared(roots, scratch / "photons")
        yield f"gamma-limit, {TRAINED:,} simulated", lambda k: photons.limit(roots[k], k, scratch / "limit")


if __name__ == "__main__":
    main()
