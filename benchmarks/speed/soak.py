"""What one process keeps while it trains and predicts again and again: memory, open files, threads, temporary files.

    python -m benchmarks.speed.soak --stacks 20 --predictions 300

Small stacks of a table are trained with :class:`showerstack.StackClassifier`, then the last one predicts. What the
process holds is printed after the tenth of each and at the end; only memory may differ, by what the system's allocator
keeps.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import tempfile
import threading
import warnings
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np

from showerstack import StackClassifier

SETTLED = 10
"""Repetitions after which libraries are loaded and caches full."""


@dataclass(frozen=True)
class Held:
    """What this process holds."""

    memory_mb: float
    files: int
    threads: int
    temporary: int
    """Entries of the folder for temporary files."""
    children: int

    @classmethod
    def now(cls) -> Held:
        """Return it after garbage has been collected."""
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        tasks = Path("/proc/self/task").glob("*/children")
        return cls(
            pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
            len(list(Path("/proc/self/fd").iterdir())),
            threading.active_count(),
            len(list(Path(tempfile.gettempdir()).iterdir())),
            sum(len(task.read_text().split()) for task in tasks),
        )


def repeated(work: Callable[[int], object], times: int) -> tuple[Held, Held]:
    """Return what is held after the first :data:`SETTLED` times and after all."""
    settled = None
    for k in range(times):
        work(k)
        if k + 1 == min(SETTLED, times):
            settled = Held.now()
    assert settled is not None
    return settled, Held.now()


def soak(n_stacks: int, n_predictions: int, learners: tuple[str, ...]) -> dict[str, tuple[Held, Held]]:
    """Train and predict so often; return what was held by kind of work."""
    rng = np.random.default_rng(1)
    points = rng.normal(size=(300, 5))
    labels = np.where(points[:, 0] + 0.5 * rng.normal(size=300) > 0, "a", "b")
    options = {"preset": "quick", "learners": list(learners), "folds": 2, "repeats": 1, "workers": 1}
    run = Path(tempfile.mkdtemp())
    model = StackClassifier(run, **options)

    def train(k: int) -> None:
        nonlocal model
        shutil.rmtree(run, ignore_errors=True)  # without a folder each keeps one until the program ends
        model = StackClassifier(run, **options, seed=k + 1).fit(points, labels)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few rows
        held = {"stacks": repeated(train, n_stacks)}
        held["predictions"] = repeated(lambda k: model.predict_proba(points[: 1 + k % 300]), n_predictions)
    return held


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--stacks", type=int, default=20)
    parser.add_argument("--predictions", type=int, default=300)
    parser.add_argument("--learners", nargs="+", default=["table.logistic", "table.mlp"])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        print("| work | when | memory, MB | open files | threads | temporary files | children |\n" + 7 * "|---" + "|")
        for kind, both in soak(given.stacks, given.predictions, tuple(given.learners)).items():
            for when, held in zip((f"after {SETTLED}", "at the end"), both, strict=True):
                memory, *counts = astuple(held)
                print(f"| {kind} | {when} | {memory:.0f} | {' | '.join(map(str, counts))} |", flush=True)


if __name__ == "__main__":
    main()
