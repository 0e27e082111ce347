"""The GPU against the CPU of the same machine: same results, and how much faster; everything in one run.

    python -m benchmarks.speed.gpu --events 100000 --store

Compared: the lateral fits by both kernels in every output, all features, the way from a dataset folder to its table on
disk, and the training of boosters and networks (settings of preset ``quick``) on the same showers, with the difference
in log-loss on held-out ones. The CPU works with all cores but where it says otherwise. Rates are the fastest of
several rounds after one that does not count; of two trainings on the GPU the second counts. Results of learners are not
equal to the last digit (sums run in another order, trees are grown by other code), so their log-losses on showers that
they did not learn from are compared, in pairs.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.shared.results import HELP, store
from showerstack.features.build import GPU_SHARD_EVENTS, build_table
from showerstack.features.catalogue import GROUPS
from showerstack.features.compute import compute_chunk, warm_up
from showerstack.features.device import chunk_size, columns_to_host, decoded, namespace, resolve_device, to_host
from showerstack.features.groups import fit_showers
from showerstack.features.lateral.events import make_events
from showerstack.features.lateral.fit import RawFit
from showerstack.features.table import FeatureTable
from showerstack.models.registry import create, device_for, learner_class, spec
from showerstack.runtime.context import Context
from showerstack.scoring.metrics.losses import event_losses
from showerstack.scoring.metrics.paired import paired_log_loss
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import COMPOSITION
from showerstack.showers.simulation import simulate
from showerstack.showers.writer import write_dataset
from showerstack.stacking.events import ShowerEvents

LEARNERS = ("lightgbm", "xgboost", "catboost", "mlp", "set_transformer")
FIT_TOLERANCE = 0.1
"""Largest distance of two fits of one shower, in standard errors, at which they count as the same minimum."""
FIT_SHARE = 0.995
CHANNELS = {"electron": 4, "muon": 2}
"""Parameters of each fit."""
COLUMN_TOLERANCE = 5e-3
"""Largest distance of a feature's 99 % quantile, in standard deviations of the feature."""
LOSS_TOLERANCE = 0.01
"""Largest difference in log-loss of a learner trained here and there, beside its error."""
HELD_OUT = 0.25


@dataclass(frozen=True)
class DeviceComparison:
    """One thing done on the CPU and on the GPU."""

    what: str
    agreement: str
    """What was compared, with its interval."""
    ok: bool
    cpu_per_s: float = float("nan")
    """Events per second on all cores; of a learner: training events per second of training."""
    gpu_per_s: float = float("nan")


def compare(n_events: int, learners: tuple[str, ...] = LEARNERS, rounds: int = 1) -> Iterator[DeviceComparison]:
    """Yield the comparisons, kernels first; showers are simulated in a temporary folder.

    Parameters
    ----------
    n_events
        Showers; 6,000 take a minute, most of it on the CPU.
    learners
        Names of the registry to train.
    rounds
        Repetitions of what is timed, after one that is not; the fastest counts.

    Raises
    ------
    InputError
        If CuPy finds no GPU.
    """
    resolve_device("cuda")
    with tempfile.TemporaryDirectory() as scratch, threadpool_limits(joblib.cpu_count()):
        folder, _ = simulate(COMPOSITION, Path(scratch) / "data", n_train=n_events, n_test=1, train_cuts="test")
        data = Dataset.open(folder, COMPOSITION)
        steps: list[Callable[[], DeviceComparison]] = [
            partial(_fits, data, rounds),
            partial(_chunks, data, rounds),
            partial(_tables, data, Path(scratch), rounds),
        ]
        for step in steps:
            yield _tried(step)
        table = build_table(folder, Path(scratch) / "columns", ctx=Context(device="cpu"))
        for name in learners:
            yield _tried(partial(_learner, name, data, table))


def _tried(step: Callable[[], DeviceComparison]) -> DeviceComparison:
    """Return what a step found; a library's error is what it found."""
    try:
        return step()
    except Exception as error:
        arguments = getattr(step, "args", ())
        name = arguments[0] if arguments and isinstance(arguments[0], str) else "features"
        return DeviceComparison(name, " ".join(f"{type(error).__name__}: {error}".split())[:300], ok=False)


def _seconds(run: Callable[[], Any], rounds: int) -> float:
    """Return the shortest time of several rounds, after one that compiles and fills caches."""
    import cupy

    times = []
    for _ in range(rounds + 1):
        cupy.cuda.get_current_stream().synchronize()
        started = time.perf_counter()
        run()
        cupy.cuda.get_current_stream().synchronize()
        times.append(time.perf_counter() - started)
    return min(times[1:])


def _cells(data: Dataset) -> tuple[np.ndarray, np.ndarray]:
    return decoded(np.asarray(data.matrices)), np.asarray(data.scalars[:], dtype=np.float32)


def over_and_over(n_events: int, total: int) -> np.ndarray:
    """Return (total,) rows of events, those after the last being the first again; no fewer than there are."""
    return np.arange(max(n_events, total)) % n_events


def filled(data: Dataset, folder: Path, total: int) -> Path:
    """Write a dataset folder with the same events over and over; see :func:`over_and_over`."""
    rows = over_and_over(len(data), total)
    size = chunk_size("cuda")
    source = {"generator": "repeated", "age": False}
    with write_dataset(folder, len(rows), None, source=source) as writer:
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            writer.put(start, np.asarray(data.matrices)[part], np.asarray(data.scalars[:])[part])
    return folder


def _fits(data: Dataset, rounds: int) -> DeviceComparison:
    grids, scalars = _cells(data)
    gpu = namespace("cuda")
    there = make_events(gpu, gpu.asarray(grids), scalars)
    # A GPU needs more events than that to be filled: as many as a table gives it at once.
    rows = over_and_over(len(grids), chunk_size("cuda"))
    full = make_events(gpu, gpu.asarray(grids[rows]), scalars[rows])
    size = chunk_size("cpu")
    parts = [slice(start, start + size) for start in range(0, len(grids), size)]
    here = [make_events(namespace("cpu"), grids[part], scalars[part]) for part in parts]
    warm_up()
    theirs = RawFit.from_numbers(to_host(gpu.stack(list(fit_showers(there).columns()), axis=1)))
    columns = [np.stack(list(fit_showers(part).columns()), axis=1) for part in here]
    ours = RawFit.from_numbers(np.concatenate(columns))
    agreement, ok = fit_agreement(theirs, ours)
    one_core = _seconds(lambda: [fit_showers(part) for part in here], rounds)
    on_gpu = _seconds(lambda: fit_showers(full), max(rounds, 3))
    what = "lateral fits, kernel alone (CPU: one core)"
    return DeviceComparison(what, agreement, ok, len(grids) / one_core, len(rows) / on_gpu)


def fit_agreement(theirs: RawFit, ours: RawFit) -> tuple[str, bool]:
    """Compare every output of two sets of fits: minima, values, Fisher matrices; the second sets the units.

    Returns
    -------
    tuple
        Words, and whether both are the same fit: defined for the same showers, minima within
        :data:`FIT_TOLERANCE` standard errors and matrices within 10 % for all but one in 200.
    """
    fitted = ~np.isnan(ours.electron[0])
    same = all(np.array_equal(np.isnan(a), np.isnan(b)) for a, b in zip(theirs.columns(), ours.columns(), strict=True))
    words, ok = [f"{int(fitted.sum()):,} showers"], same
    for channel in CHANNELS:
        gap, matrix_gap = fit_gaps(theirs, ours, channel, fitted)
        share = float(np.mean((gap < FIT_TOLERANCE) & (matrix_gap < FIT_TOLERANCE)))
        ok = ok and share > FIT_SHARE and float(np.median(gap)) < 1e-3
        words.append(f"{channel} minima apart by {np.median(gap):.1e} standard errors (median), {share:.2%} below 0.1")
    return ", ".join(words) + ("" if same else ", NOT the same showers fitted"), ok


def fit_gaps(theirs: RawFit, ours: RawFit, channel: str, fitted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return how far two fits of each shower are apart.

    Parameters
    ----------
    theirs, ours
        The fits; the second set the units.
    channel
        A name in :data:`CHANNELS`.
    fitted
        (n,) bool: showers that have fits.

    Returns
    -------
    tuple
        (m,) largest distance of a parameter, in standard errors (other parameters held); (m,) largest difference of an
        entry of the Fisher matrix, in units of the diagonal's geometric mean.
    """
    triangle = np.stack(getattr(ours, f"{channel}_fisher"))[:, fitted].astype(np.float64)
    rows, columns = np.tril_indices(CHANNELS[channel])
    unit = np.sqrt(triangle[rows == columns])
    moved = np.stack(getattr(theirs, channel))[:, fitted] - np.stack(getattr(ours, channel))[:, fitted]
    changed = np.stack(getattr(theirs, f"{channel}_fisher"))[:, fitted] - triangle
    return np.abs(moved * unit).max(axis=0), np.abs(changed / (unit[rows] * unit[columns])).max(axis=0)


def _chunks(data: Dataset, rounds: int) -> DeviceComparison:
    """Everything computed from cells in the GPU's memory, without reading and writing."""
    grids, scalars = _cells(data)
    groups, gpu, cpu = frozenset(GROUPS), namespace("cuda"), namespace("cpu")
    there = gpu.asarray(grids)
    size = chunk_size("cpu")
    parts = [slice(start, start + size) for start in range(0, len(grids), size)]

    def on_cpu() -> list[dict[str, Any]]:
        return [compute_chunk(cpu, grids[part], scalars[part], groups) for part in parts]

    theirs = compute_chunk(gpu, there, scalars, groups)
    pieces = on_cpu()
    ours = {name: np.concatenate([piece[name] for piece in pieces]) for name in theirs}
    agreement, ok = column_agreement(columns_to_host(theirs, gpu), ours)
    rows = over_and_over(len(grids), chunk_size("cuda"))
    full, repeated = gpu.asarray(grids[rows]), scalars[rows]
    one_core, on_gpu = _seconds(on_cpu, rounds), _seconds(lambda: compute_chunk(gpu, full, repeated, groups), rounds)
    what = "all features, cells in memory (CPU: one core)"
    return DeviceComparison(what, agreement, ok, len(grids) / one_core, len(rows) / on_gpu)


def column_agreement(theirs: dict[str, np.ndarray], ours: dict[str, np.ndarray]) -> tuple[str, bool]:
    """Compare columns: undefined for the same showers, and 99 % of the values close in units of the column's spread."""
    gaps, torn = {}, []
    for name, expected in ours.items():
        result = theirs[name]
        if np.mean(np.isnan(result) != np.isnan(expected)) > 1e-3:
            torn.append(name)
        known = ~(np.isnan(result) | np.isnan(expected))
        spread = float(np.std(expected[known])) if known.any() else 1.0
        gaps[name] = (
            float(np.quantile(np.abs(result - expected)[known], 0.99)) / (spread or 1.0) if known.any() else 0.0
        )
    worst = max(gaps, key=lambda name: gaps[name])
    beyond = [name for name, gap in gaps.items() if gap > COLUMN_TOLERANCE]
    words = f"{len(gaps)} columns, 99 % of values within {gaps[worst]:.1e} of a standard deviation (worst: {worst})"
    if torn:
        words += f"; undefined elsewhere: {', '.join(torn[:3])}"
    return words, not (beyond or torn)


def _tables(data: Dataset, scratch: Path, rounds: int) -> DeviceComparison:
    """From the dataset folder to the table on disk, as the command does it: all cores against the GPU.

    The GPU gets the events over and over, two shards of them: its rate would else be that of opening files.
    """
    seconds, tables = {}, {}
    folders = {"cpu": data.path, "cuda": filled(data, scratch / "filled", 2 * GPU_SHARD_EVENTS)}
    for device, folder in folders.items():
        numbers = iter(range(rounds + 1))

        def run(device: str = device, folder: Path = folder, numbers: Iterator[int] = numbers) -> None:
            out = scratch / f"{device}{next(numbers)}"
            tables[device] = build_table(folder, out, ctx=Context(device=device))

        seconds[device] = _seconds(run, rounds)
    n, first = len(data), slice(len(data))
    both = [dict(zip(table.columns, table.matrix(table.columns)[first].T, strict=True)) for table in tables.values()]
    agreement, ok = column_agreement(both[1], both[0])
    what = "feature table, folder to disk (CPU: all cores)"
    return DeviceComparison(what, agreement, ok, n / seconds["cpu"], len(tables["cuda"]) / seconds["cuda"])


def _learner(name: str, data: Dataset, table: FeatureTable) -> DeviceComparison:
    entry = spec(name)
    what = f"{name}, training (CPU: all cores)"
    if device_for(learner_class(entry.learner), "auto") == "cpu":
        return DeviceComparison(what, f"stays on the CPU: {learner_class(entry.learner).gpu_obstacle()}", ok=True)
    events = ShowerEvents(data.path, table.folder, COMPOSITION, labelled=True)
    batch = events.batch(np.arange(len(data)), events.columns_for(entry), grids=entry.needs_grid)
    batch = replace(batch, labels=events.known().labels)
    n_held = round(HELD_OUT * len(batch))
    order = np.random.default_rng(1).permutation(len(batch))
    values, valid, train = (
        batch.take(np.sort(order[part])) for part in (slice(n_held), slice(n_held, 2 * n_held), slice(2 * n_held, None))
    )
    assert values.labels is not None
    result, rates = {}, {}
    for device in ("cpu", "cuda"):
        for _ in range(2 if device == "cuda" else 1):  # the first one starts CUDA and loads its kernels
            learner = create(entry, COMPOSITION.classes, threads=joblib.cpu_count(), preset="quick")
            started = time.perf_counter()
            learner.fit(train, valid, seed=1, device=device)
            rates[device] = len(train) / (time.perf_counter() - started)
        result[device] = learner.predict_log_proba(replace(values, labels=None))
    paired = paired_log_loss(values.labels, result["cuda"], result["cpu"])
    loss = event_losses(result["cuda"], values.labels).mean()
    words = f"log-loss {loss:.4f}, minus the CPU's {paired.difference:+z.4f} ± {paired.standard_error:.4f}"
    ok = abs(paired.difference) < LOSS_TOLERANCE + 3 * paired.standard_error
    return DeviceComparison(what, words, ok, rates["cpu"], rates["cuda"])


def row_of(comparison: DeviceComparison) -> str:
    """Return a line of the table."""
    rates = (comparison.gpu_per_s, comparison.cpu_per_s, comparison.gpu_per_s / comparison.cpu_per_s)
    timed = not math.isnan(rates[0])
    cells = [f"{rates[0]:,.0f}", f"{rates[1]:,.0f}", f"{rates[2]:.1f}"] if timed else ["-"] * 3
    return f"| {' | '.join([comparison.what, *cells, comparison.agreement, 'yes' if comparison.ok else '**no**'])} |"


def machine() -> str:
    """Return what it ran on, in a line."""
    import cupy
    import torch

    name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    cores = len(os.sched_getaffinity(0))
    libraries = f"torch {torch.__version__}, CuPy {cupy.__version__}"
    return f"{name}, {cores} CPU cores, Python {platform.python_version()}, {libraries}"


def main() -> None:
    """Compare, print, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--learners", default=",".join(LEARNERS))
    parser.add_argument("--store", action="store_true", help=HELP)
    options = parser.parse_args()
    lines = [f"{options.events:,} showers under the test's cuts; {machine()}.", ""]
    lines += ["| what | GPU, events/s | CPU, events/s | ratio | agreement | ok |", "|---|---|---|---|---|---|"]
    print("\n".join(lines), flush=True)
    for comparison in compare(options.events, tuple(options.learners.split(",")), options.rounds):
        lines.append(row_of(comparison))
        print(lines[-1], flush=True)
    if options.store:
        store("gpu", "The GPU against the CPU of the same machine", "\n".join(lines))


if __name__ == "__main__":
    main()
