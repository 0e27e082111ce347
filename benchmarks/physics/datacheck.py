"""How often does the data check raise a false alarm, and what does it say of damaged samples? How fast is it?

``python -m benchmarks.physics.datacheck --work bench/datacheck`` prints both tables from one run on simulated showers.
``--cost 100000 500000`` measures instead what features, data check and spectra of so many events cost, each a command
of its own that uses what the one before made, and what follows for 5 million by a straight line in the events.
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path

import numpy as np

from benchmarks.physics.damaged import damaged
from benchmarks.shared.drawn import FOREIGN, foreign_detector
from benchmarks.shared.samples import sample
from benchmarks.speed.scale import measured_command
from showerstack.analysis.datacheck.check import check_data, verdict
from showerstack.runtime.context import Context, bar
from showerstack.scoring.metrics.intervals import clopper_pearson
from showerstack.showers.schema import COMPOSITION
from showerstack.stacking.config import StackConfig
from showerstack.stacking.training.train import stack

EXPOSURE = 5e5
"""m2 sr s for each event, so that fluxes are about those of nature."""
KINDS = ("muons", "deposits", "cluster", "swapped", "ordered")


def main() -> None:
    """Print false alarms, verdicts and speed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("bench/datacheck"))
    parser.add_argument("--train", type=int, default=24_000, help="training showers")
    parser.add_argument(
        "--fresh", type=int, default=40, help="fresh samples: 40 without an alarm exclude 10 %% of alarms"
    )
    parser.add_argument("--events", type=int, default=2_000, help="showers of a sample")
    parser.add_argument("--other", type=int, default=80_000, help="showers of other worlds, all looked at")
    parser.add_argument("--cost", type=int, nargs="+", help="numbers of events, of which to measure the cost alone")
    parser.add_argument("--response", type=int, default=100_000, help="showers of the response, for the cost")
    parser.add_argument("--workers", type=int, default=None)
    given = parser.parse_args()
    many = given.fresh * given.events
    data = sample(COMPOSITION, given.work, n_train=given.train, n_test=200, seed=41, workers=given.workers, bars=bar)
    if given.cost:
        _print_costs(given, data)
        return
    new = sample(COMPOSITION, given.work, n_train=200, n_test=many, seed=42, workers=given.workers, bars=bar)
    run = _run(given, data)
    alarms, seconds, by_test = 0, 0.0, dict[str, int]()
    for number in range(given.fresh):
        rows = np.arange(number * given.events, (number + 1) * given.events)
        place = _made(new / "composition_test", given.work / "fresh", "fresh", rows)
        started = time.perf_counter()
        result = check_data(run, place, ctx=Context(workers=given.workers))
        seconds += time.perf_counter() - started
        alarms += bool(result.raised)
        for name in result.p_values:
            by_test[name] = by_test.get(name, 0) + (name in result.raised)
        print(f"fresh {number}: {result.raised or 'silent'}, {_shown(result.p_values)}", flush=True)
    interval = clopper_pearson(alarms, given.fresh)
    print(
        f"false alarms: {alarms} of {given.fresh} (95 %: {interval.low:.3f} to {interval.high:.3f}), stated .05; "
        f"by test {by_test}; {seconds / given.fresh:.1f} s a sample of {given.events:,}"
    )
    other = {"n_train": 200, "n_test": given.other, "seed": 43, "bars": bar}
    worlds = {
        "same world": sample(COMPOSITION, given.work, world="default", workers=given.workers, **other),
        "harder": sample(COMPOSITION, given.work, world="harder", workers=given.workers, **other),
    }
    with foreign_detector():
        worlds[FOREIGN] = sample(COMPOSITION, given.work / FOREIGN, workers=1, **other)
    rows = np.arange(min(8_000, many))
    for kind in (*KINDS, *worlds):
        source, chosen = (worlds[kind], np.arange(given.other)) if kind in worlds else (new, rows)
        place = _made(source / "composition_test", given.work / "damaged", "fresh" if kind in worlds else kind, chosen)
        result = check_data(run, place, chosen=given.other, ctx=Context(workers=given.workers))
        print(f"{kind} ({len(chosen):,}): {_shown(result.p_values)}\n  {verdict(result)}", flush=True)


def _run(given: argparse.Namespace, data: Path) -> Path:
    run = given.work / f"run-{data.name}"
    config = {"task": "composition", "data": data, "run": run, "preset": "quick", "folds": 2}
    stack(StackConfig(**config, learners=("quadratic_logit",), device="cpu", workers=given.workers), Context(bars=bar))
    return run


def _print_costs(given: argparse.Namespace, data: Path) -> None:
    """Print processor time and largest memory of each step by the number of events."""
    run, simulated = _run(given, data), {"n_train": 200, "workers": given.workers, "bars": bar}
    response = sample(COMPOSITION, given.work, n_test=given.response, seed=45, **simulated) / "composition_test"
    for n in given.cost:
        source = sample(COMPOSITION, given.work, n_test=n, seed=44, **simulated) / "composition_test"
        place, out = given.work / f"cost-{n}", given.work / f"cost-{n}-results"
        _made(source, place, "fresh", np.arange(n))
        commands = {
            "features": ["features", place],
            "datacheck": ["datacheck", "--run", run, "--data", place, "--out", out / "datacheck.html"],
            "spectra": [
                "spectra", "--run", run, "--data", place, "--simulation", response, "--exposure", n * EXPOSURE,
                "--out", out,
            ],
            "spectra again": [],
        }  # fmt: skip
        commands["spectra again"] = commands["spectra"]
        out.mkdir(exist_ok=True)
        for step, command in commands.items():
            cost = measured_command(step, [str(word) for word in command], given.work / "log.txt", allowed=(0, 1))
            print(
                f"{n:,} events, {step}: {cost['cpu_s']:.0f} s of processor time, {cost['peak_gb']:.2f} GB", flush=True
            )


def _made(source: Path, out: Path, kind: str, rows: np.ndarray) -> Path:
    for old in (out, out.with_name(f"{out.name}.features")):
        shutil.rmtree(old, ignore_errors=True)
    return damaged(source, out, kind, rows=rows)


def _shown(p_values: dict[str, float]) -> str:
    return ", ".join(f"{name} {p:.2g}" for name, p in p_values.items())


if __name__ == "__main__":
    main()
