"""What only a GPU can tell, in five minutes: do the kernels run, with the CPU's numbers, the same each time, in order?

    python -m benchmarks.speed.on_gpu kernels   values against the CPU's; the same bits when repeated or cut
    python -m benchmarks.speed.on_gpu table     folder to table with small chunks: each row is as its first copy; rates
    python -m benchmarks.speed.on_gpu speed     milliseconds of each kernel and of a chunk of events
    python -m benchmarks.speed.on_gpu steps     training steps: waits for the GPU by line, time, the same weights twice
    for tool in racecheck memcheck synccheck initcheck
    do compute-sanitizer --tool $tool python -m benchmarks.speed.on_gpu small; done

With ``--dry`` NumPy and the CPU's kernels stand for the GPU: the script itself can then be tried anywhere.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from showerstack.features import build, device
from showerstack.features.build import build_table
from showerstack.features.catalogue import CATALOGUE, GROUPS, feature_set
from showerstack.features.compute import compute_chunk
from showerstack.features.device import decoded, namespace, to_host
from showerstack.features.lateral.events import EventBatch, make_events
from showerstack.features.lateral.fit import RawFit, fit_cuda, fit_fused
from showerstack.features.stations.cuda import grid_cuda, order_cuda, sum_cuda
from showerstack.features.stations.grid import grid_fused, order_fused
from showerstack.features.stations.on_cpu import sum_fused
from showerstack.features.table import EVENT_COLUMN
from showerstack.models.base.learner import Batch
from showerstack.models.networks.modes import torch_as_asked
from showerstack.models.registry import create, spec
from showerstack.runtime.context import Context
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import COMPOSITION
from showerstack.showers.simulation import simulate
from showerstack.showers.writer import write_dataset

N = 4_096
TOLERANCE, BEYOND = 2e-4, 0.005
"""Of the range of a column; share of values that may lie further apart."""
CUTS = (0, 1, 4, 7, 1_030, 4_095, N)
CPU = (fit_fused, sum_fused, grid_fused, order_fused)
GPU = (fit_cuda, sum_cuda, grid_cuda, order_cuda)
NAMES = ("fit_events", "sum_events", "sum_grids", "order_cells")
NETWORKS = ("mlp", "lenet", "hybrid", "set_transformer", "physics")


class Trial:
    """Simulated showers, an empty and a saturated one among them, and the device that is tried."""

    def __init__(self, folder: Path, *, dry: bool) -> None:
        self.dry, self.xp = dry, namespace("cpu" if dry else "cuda")
        self.functions = CPU if dry else GPU
        simulate(COMPOSITION, folder / "showers", n_train=N, n_test=1, train_cuts="test")
        data = Dataset.open(folder / "showers" / "composition_train", labels=False)
        self.cells, self.scalars = np.array(data.matrices), np.array(data.scalars, dtype=np.float32)
        self.cells[7] = 0
        self.cells[8, 0, :5] = 40_000.0
        self.folder = folder

    def events(self, rows: np.ndarray, *, here: bool = False) -> EventBatch:
        """Return events on the device, or on the CPU."""
        xp = namespace("cpu") if here else self.xp
        return make_events(xp, xp.asarray(decoded(self.cells[rows])), self.scalars[rows])

    def poison(self) -> None:
        """Leave garbage in the pool of memory, so that what is read unwritten shows."""
        if not self.dry:
            self.xp.full(16 << 20, 7e37, dtype=self.xp.float32)

    def wait(self) -> None:
        """Wait until the device has done everything."""
        if not self.dry:
            import cupy

            cupy.cuda.Device().synchronize()


def flat(numbers: RawFit | dict[str, Any]) -> np.ndarray:
    """Return all numbers of a result, (n, numbers) float64."""
    columns = numbers.columns() if isinstance(numbers, RawFit) else numbers.values()
    parts = [to_host(part) for part in columns]
    return np.concatenate([part.reshape(len(part), -1).astype(np.float64) for part in parts], axis=1)


def all_four(trial: Trial, rows: np.ndarray, fits: np.ndarray) -> list[np.ndarray]:
    """Return what the four kernels say; sums at the given fits (n, 25), so that they are compared at the same core."""
    fit, sums, grid, order = trial.functions
    events = trial.events(rows)
    trial.poison()
    minima = fit(events)
    trial.poison()
    given = RawFit.from_numbers(trial.xp.asarray(fits[rows]))
    return [flat(minima), flat(sums(events, given)), flat(grid(events)), flat(order(events))]


def kernels(trial: Trial) -> None:
    """Compare the kernels with the CPU's, and with themselves."""
    every = np.arange(N)
    events = trial.events(every, here=True)
    minima = fit_fused(events)
    fits = np.stack(minima.columns(), axis=1)
    expected = [flat(minima), flat(sum_fused(events, minima)), flat(grid_fused(events)), flat(order_fused(events))]
    once = all_four(trial, every, fits)
    for name, ours, theirs in zip(NAMES, once, expected, strict=True):
        gap = np.abs(ours - theirs) / (np.nanmax(np.abs(theirs), axis=0) + 1e-3)
        beyond, torn = np.nanmean(gap > TOLERANCE), not np.array_equal(np.isnan(ours), np.isnan(theirs))
        words = f"{name}: largest gap {np.nanmax(gap):.1e} of a column's range, {beyond:.3%} beyond {TOLERANCE:g}"
        print(words, "NOT OK" if torn or beyond > BEYOND else "ok", flush=True)
    again = [all_four(trial, every, fits) for _ in range(4)]
    print("five times the same bits:", all(_same(once, other) for other in again))
    pieces = [all_four(trial, every[a:b], fits) for a, b in pairwise(CUTS)]
    print("cut in six, the same bits:", _same(once, [np.concatenate(parts) for parts in zip(*pieces, strict=True)]))


def _same(ours: list[np.ndarray], theirs: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b, equal_nan=True) for a, b in zip(ours, theirs, strict=True))


def small(trial: Trial) -> None:
    """Run each kernel on few events, each array in memory of its own: for ``compute-sanitizer``."""
    if not trial.dry:
        import cupy

        cupy.cuda.set_allocator(None)
    fits = np.stack(fit_fused(trial.events(np.arange(256), here=True)).columns(), axis=1)
    for n in (256, 255):
        all_four(trial, np.arange(n), fits)
    trial.wait()
    print("done")


def speed(trial: Trial) -> None:
    """Time the kernels and a chunk of events: until the host has given out the work, and until it is done."""
    fit, sums, grid, order = trial.functions
    for n in (N,) if trial.dry else (65_536, 262_144):
        rows = np.arange(n) % N
        events, scalars = trial.events(rows), trial.scalars[rows]
        minima, cells = fit(events), trial.xp.asarray(decoded(trial.cells[rows]))
        runs: dict[str, Callable[[], object]] = {
            "fit_events": partial(fit, events),
            "sum_events": partial(sums, events, minima),
            "sum_grids": partial(grid, events),
            "order_cells": partial(order, events),
            "all columns": partial(compute_chunk, trial.xp, cells, scalars, frozenset(GROUPS)),
        }
        for name, run in runs.items():
            given, done = np.median([_timed(trial, run) for _ in range(2 if trial.dry else 12)][1:], axis=0)
            print(f"{n:8,} {name:12s} host {given:7.2f} ms, done {done:7.2f} ms, {n / done / 1e3:6.2f} M events/s")


def _timed(trial: Trial, run: Callable[[], object]) -> tuple[float, float]:
    trial.wait()
    started = time.perf_counter()
    run()
    given = time.perf_counter()
    trial.wait()
    return 1e3 * (given - started), 1e3 * (time.perf_counter() - started)


def table(trial: Trial) -> None:
    """Make tables of the same events over and over: in small chunks, then as a command does it."""
    for total, chunk, shard in ((2 * N, 1_000, 3_000),) if trial.dry else ((64 * N, 1_000, 20_000), (256 * N, 0, 0)):
        folder = trial.folder / f"set-{total}"
        with write_dataset(folder, total, None, source={"generator": "on_gpu", "age": False}) as writer:
            for start in range(0, total, N):
                writer.put(start, trial.cells, trial.scalars)
        before = device.GPU_CHUNK, device.LARGE_GPU_CHUNK, build.GPU_SHARD_EVENTS
        if chunk:
            device.GPU_CHUNK = device.LARGE_GPU_CHUNK = chunk
            build.GPU_SHARD_EVENTS = shard
            build.in_own_process = lambda function, *given: function(*given)  # type: ignore[assignment]
        started = time.perf_counter()
        made = build_table(folder, trial.folder / f"table-{total}", ctx=Context(device="cpu" if trial.dry else "cuda"))
        took = time.perf_counter() - started
        device.GPU_CHUNK, device.LARGE_GPU_CHUNK, build.GPU_SHARD_EVENTS = before
        values = made.matrix([name for name in made.columns if name != EVENT_COLUMN]).view(np.uint32)
        wrong = sum(int((values[k : k + N] != values[:N]).any(axis=1).sum()) for k in range(N, total, N))
        print(f"{total:,} events, chunks of {chunk or 'the usual size'}: {total / took / 1e6:.3f} M events/s,", end=" ")
        print(f"rows that differ from their first copy: {wrong} (0 is right)", flush=True)


def steps(trial: Trial) -> None:
    """Train networks for an epoch twice: waits in a step, and whether both end with the same weights."""
    import torch

    place = "cpu" if trial.dry else "cuda"
    for name in NETWORKS[: 1 if trial.dry else None]:
        entry, rng = spec(name), np.random.default_rng(0)
        columns = feature_set(entry.features, tuple(CATALOGUE)) if isinstance(entry.features, str) else entry.features
        values = rng.standard_normal((N, len(columns or ()))).astype(np.float32)
        batch = Batch(
            np.arange(N),
            table=np.asfortranarray(values) if columns else None,
            columns=tuple(columns or ()),
            grids=trial.cells if entry.needs_grid else None,
            scalars=trial.scalars,
            scalar_columns=("E", "Ze", "Az", "Ne", "Nmu"),
            labels=rng.integers(0, COMPOSITION.n_classes, N),
        )
        ends, waits, took = [], Counter[str](), 0.0
        for _ in range(2):
            learner = create(entry, COMPOSITION.classes, threads=4, overrides={"epochs": 1})
            if not trial.dry:
                torch.cuda.set_sync_debug_mode("warn")
            started = time.perf_counter()
            with warnings.catch_warnings(record=True) as told, torch_as_asked(place, 4, deterministic=True):
                warnings.simplefilter("always")
                learner.fit(batch, batch.take(np.arange(256)), seed=1, device=place)
            took = time.perf_counter() - started
            if not trial.dry:
                torch.cuda.set_sync_debug_mode("default")
            waits = Counter(f"{Path(w.filename).name}:{w.lineno}" for w in told if "synchron" in str(w.message).lower())
            ends.append(learner.network_.state_dict())  # type: ignore[attr-defined]
        same = all(torch.equal(value, ends[1][key]) for key, value in ends[0].items())
        print(f"{name}: the same weights twice {same}; second fit {took:.2f} s, of {N:,} events; waits in it:")
        for place_in_code, n in waits.most_common(8):
            print(f"    {n:5d} at {place_in_code}")


SECTIONS = {section.__name__: section for section in (kernels, table, speed, steps, small)}


def main() -> None:
    """Run one section."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("section", choices=SECTIONS)
    parser.add_argument("--dry", action="store_true", help="on the CPU")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        SECTIONS[options.section](Trial(Path(scratch), dry=options.dry))


if __name__ == "__main__":
    main()
