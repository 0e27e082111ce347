"""How fast a finished run predicts: all that it uses, each of its learners alone, and without a table.

    python -m benchmarks.speed.predict_speed --run runs/composition --data data/composition_test

Features are given, but for ``--no-table``, which computes them as it goes, from a copy of the grids that is as
long; the events are taken several times over to fill the asked number. Each row is measured in rounds that take turns;
rates are means with the standard error of the rounds, starting the processes included. Processor time is that of all
processes, with the part of it spent in the system; memory is the largest of this process and those that it has started,
together.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Unpack

import numpy as np
from joblib.externals.loky import get_reusable_executor
from rich.console import Console
from rich.table import Table

from benchmarks.shared.memory import FamilyMemory
from showerstack.features.build import build_table
from showerstack.models.base.learner import Batch
from showerstack.models.base.spec import LearnerSpec
from showerstack.runtime.context import Context
from showerstack.showers.schema import AGE_FILE, MATRICES_FILE, SCALARS_FILE, SOURCE_FILE
from showerstack.stacking.events import EVERY, Events, ShowerEvents
from showerstack.stacking.prediction.predict import Options, predict, predict_fits
from showerstack.stacking.prediction.run import Run, load
from showerstack.stacking.sample import Labelled


@dataclass(frozen=True)
class RepeatedEvents(Events):
    """A dataset's events over and over."""

    once: ShowerEvents
    n_events: int

    def __len__(self) -> int:
        return self.n_events

    @property
    def location(self) -> Path:
        """The dataset folder."""
        return self.once.location

    def columns_for(self, spec: LearnerSpec) -> tuple[str, ...]:
        """Return the dataset's."""
        return self.once.columns_for(spec)

    def batch(self, rows: np.ndarray, columns: tuple[str, ...], *, grids: bool) -> Batch:
        """Return events, those after the last being the first again."""
        return self.once.batch(rows % len(self.once), columns, grids=grids)

    def known(self) -> Labelled:
        """Refuse: they are predicted only."""
        raise NotImplementedError

    def context(self, rows: slice = EVERY) -> np.ndarray:
        """Return what a meta-learner may look at."""
        return self.once.context()[np.arange(self.n_events)[rows] % len(self.once)]

    def events_fingerprint(self) -> str | None:
        """Return nothing: the predictions are not kept."""
        return None

    def fingerprint(self) -> str:
        """Return the dataset's."""
        return self.once.fingerprint()


@dataclass
class Measured:
    """Rounds of one way to predict."""

    predict: Callable[[], int]
    """Predicts and returns how many events."""
    rates: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    system: list[float] = field(default_factory=list)
    peak_gb: list[float] = field(default_factory=list)

    def round(self) -> None:
        """Measure once more."""
        memory, before, started = FamilyMemory(os.getpid()), _cpu(), time.perf_counter()
        n = self.predict()
        # Processes that compute features wait for more: ended, their time is counted, and each round starts its own.
        get_reusable_executor().shutdown(wait=True)
        wall, used = time.perf_counter() - started, _cpu() - before
        self.rates.append(n / wall)
        self.cpu_us.append(1e6 * used.sum() / n)
        self.system.append(used[1] / used.sum())
        self.peak_gb.append(memory.stop() / 1e9)


def _cpu() -> np.ndarray:
    """Return user and system seconds of this process and of all that it has started and ended, (2,)."""
    parts = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return np.array([sum(part.ru_utime for part in parts), sum(part.ru_stime for part in parts)])


def _alone(run: Run, name: str, events: Events, workers: int) -> Callable[[], int]:
    chain, threads = replace(run.chain, shipped=name), run.threads

    def once() -> int:
        ctx = Context(workers=workers, threads=threads)
        fits = predict_fits(events, [run.fits(name)], ctx, lambda *done: None)
        return sum(len(piece.log_proba) for piece in chain.stream(fits, events))

    return once


def _predicting(run: Run, data: Path | Events, ctx: Context, **options: Unpack[Options]) -> Callable[[], int]:
    def once() -> int:
        return sum(len(piece.log_proba) for piece in predict(run, data, ctx, **options).pieces)

    return once


def _repeated(data: Path, folder: Path, n_events: int) -> Path:
    """Write a dataset folder of so many events, those after the last being the first again."""
    folder.mkdir()
    for name in (MATRICES_FILE, SCALARS_FILE, AGE_FILE):
        if not (data / name).exists():
            continue
        once = np.load(data / name, mmap_mode="r")
        written = np.lib.format.open_memmap(
            folder / name, mode="w+", dtype=once.dtype, shape=(n_events, *once.shape[1:])
        )
        for start in range(0, n_events, len(once)):
            written[start : start + len(once)] = once[: n_events - start]
        written.flush()
    if (data / SOURCE_FILE).exists():
        shutil.copyfile(data / SOURCE_FILE, folder / SOURCE_FILE)
    return folder


@contextmanager
def _printed(what: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    Console(stderr=True).print(f"{what}: {time.perf_counter() - started:.0f} s")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="finished run")
    parser.add_argument("--data", type=Path, required=True, help="dataset folder")
    parser.add_argument("--events", type=int, default=60_000, help="for all that it uses, and for each learner")
    parser.add_argument("--long-events", type=int, default=200_000, help="without a table")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--learners", action="store_true", help="also each learner alone, once")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="predict-speed-") as scratch:
        _measure(options, _repeated(options.data, Path(scratch) / "events", options.long_events))


def _measure(options: argparse.Namespace, long: Path) -> None:
    run = load(options.run)
    once = ShowerEvents(options.data, build_table(options.data).folder, run.task)
    ctx = Context(workers=options.workers)
    few = RepeatedEvents(once, options.events)
    ways = {
        f"all that it uses ({len(run.chain.needed)} learners)": Measured(_predicting(run, few, ctx)),
        "--no-table": Measured(_predicting(run, long, replace(ctx, device="cpu"), no_table=True)),
    }
    for number in range(options.rounds):
        for name, way in ways.items():
            with _printed(f"round {number + 1}, {name}"):
                way.round()
    if options.learners:
        for name in run.chain.needed:
            ways[name] = Measured(_alone(run, name, few, options.workers))
            ways[name].round()
    Console(width=110).print(_table(ways, run, options.workers))


def _table(ways: dict[str, Measured], run: Run, workers: int) -> Table:
    table = Table(title=f"{run.name}: prediction, {workers} workers")
    for name in ("", "events/s", "CPU us an event", "of it in the system", "peak GB", "rounds"):
        table.add_column(name, justify="right" if name else "left")
    for name, way in ways.items():
        rates = np.array(way.rates)
        error = f" ± {rates.std(ddof=1) / np.sqrt(len(rates)):,.0f}" if len(rates) > 1 else ""
        shares = f"{100 * float(np.mean(way.system)):.0f} %"
        cpu, peak = f"{np.mean(way.cpu_us):,.0f}", f"{max(way.peak_gb):.2f}"
        table.add_row(name, f"{rates.mean():,.0f}{error}", cpu, shares, peak, str(len(rates)))
    return table


if __name__ == "__main__":
    main()
