"""How fast features are made, everything on the same events in one run.

    python -m benchmarks.speed.feature_speed --events 40000 --store

Compared: our table with and without the fits (read, computed, written to disk), the fit kernel alone, a per-event fit
with scipy.optimize, published-style grid statistics in plain NumPy, and the floor: reading, decoding and summing the
memory map. Rates are the best of several rounds beside the slowest. Numerical threads are held
at one per process.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import joblib
import numpy as np
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from benchmarks.shared.results import HELP, store
from showerstack.features.build import build_table
from showerstack.features.catalogue import FIT_GROUPS, GROUPS, SETS
from showerstack.features.compute import warm_up
from showerstack.features.device import decode_float16, namespace
from showerstack.features.lateral.events import (
    EventBatch,
    electron_density,
    energy_correction,
    make_events,
    muon_density,
)
from showerstack.features.lateral.fit import fit_fused
from showerstack.features.lateral.station import ELECTRON_G_REF
from showerstack.runtime.context import Context
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import COMPOSITION, Task
from showerstack.showers.simulation import simulate
from tests.features.reference import Frozen, Signals, distances, freeze_electron, half_deviance, signals

XP = namespace("cpu")
CHUNK = 512
SCIPY_EVENTS = 40


def _table(groups: frozenset[str], workers: int, folder: Path) -> Callable[[], None]:
    def run() -> None:
        with tempfile.TemporaryDirectory() as scratch:
            build_table(folder, Path(scratch) / "table", groups=groups, ctx=Context(workers=workers))

    return run


def _floor(folder: Path) -> Callable[[], None]:
    def run() -> None:
        for chunk in Dataset.open(folder, labels=False).chunks(CHUNK):
            decode_float16(np.ascontiguousarray(chunk.matrices)).sum()

    return run


def _grid_statistics(folder: Path) -> Callable[[], None]:
    """Published-style statistics the way most people write them: float32, one NumPy call after another."""

    def run() -> None:
        for chunk in Dataset.open(folder, labels=False).chunks(CHUNK):
            cells = chunk.matrices.astype(np.float32)
            flat = np.log1p(cells).reshape(len(cells), 256, 2)
            columns = [flat.sum(1), flat.mean(1), flat.std(1), flat.max(1), (flat > 0).sum(1)]
            columns += [np.quantile(flat, q, axis=1) for q in (0.5, 0.75, 0.9, 0.95)]
            for k in range(8):
                columns.append(cells[:, k : 16 - k, k : 16 - k].sum((1, 2)))
            np.concatenate(columns, axis=1)

    return run


def _events(folder: Path, n: int) -> list[EventBatch]:
    chunks = Dataset.open(folder, labels=False).chunks(CHUNK, 0, n)
    return [make_events(XP, decode_float16(np.ascontiguousarray(c.matrices)), c.scalars) for c in chunks]


def _fit_alone(events: list[EventBatch], fit: Callable[[EventBatch], object]) -> Callable[[], None]:
    def run() -> None:
        for chunk in events:
            fit(chunk)

    return run


def _half_deviance(event: EventBatch, measured: Signals, frozen: Frozen, p: np.ndarray) -> tuple[float, np.ndarray]:
    """Return what the electron fit minimises, with its gradient, of a single event."""
    response, here, (u, v) = event.response, event.stations, event.direction
    r_m = distances(event, p[:1], p[1:2])
    a = energy_correction(r_m, response, XP)
    signal = frozen.area_m2 * electron_density(r_m, p[2], p[3], XP) * a
    mu = signal + frozen.background + 1e-12
    value, weight = half_deviance(measured.electron, mu, measured.electron_saturated, frozen.weight, XP)
    pull = weight * (measured.electron - mu) * signal / mu
    dx, dy = here.x_m - p[0], here.y_m - p[1]
    along = dx * u + dy * v
    excess = (a - response.gamma_fraction) / a / response.core_excess_scale_m
    slope = ((p[3] - 1.5) / r_m + (p[3] - 3.6) / (40.0 + r_m) - excess) / r_m
    g = np.log(r_m / 40.0) + np.log1p(r_m / 40.0) - ELECTRON_G_REF
    by = [slope * (along * u - dx), slope * (along * v - dy), 1.0, g]
    width = np.array([response.core_spread_m, response.core_spread_m, np.inf, response.age_spread])
    off = (p - [0.0, 0.0, 0.0, response.age_mean]) / width
    gradient = np.array([-np.sum(pull * d) for d in by]) + off / width - [0.0, 0.0, 0.5, 0.0]
    return float(value.sum() + 0.5 * np.sum(off * off) - 0.5 * p[2]), gradient


def _scipy_fit(folder: Path) -> Callable[[], None]:
    """The electron fit of single events by scipy.optimize, same likelihood and same gradient."""
    chunk = _events(folder, SCIPY_EVENTS)[0]
    fitted = fit_fused(chunk)
    starts = np.stack(fitted.electron, axis=1).astype(np.float64) + np.array([2.0, -2.0, 0.2, 0.1])

    def run() -> None:
        data = Dataset.open(folder, labels=False)
        for k in range(SCIPY_EVENTS):
            scalars = np.asarray(data.scalars[k : k + 1], dtype=np.float32)
            event = make_events(XP, decode_float16(np.array(data.matrices[k : k + 1])), scalars)
            measured = signals(event)
            r_m = distances(event, fitted.electron[0][k : k + 1], fitted.electron[1][k : k + 1])
            electrons = electron_density(r_m, fitted.electron[2][k], fitted.electron[3][k], XP)
            muons = muon_density(r_m, fitted.muon[0][k], fitted.muon[1][k], XP)
            frozen = freeze_electron(measured, r_m, electrons, muons, XP)
            value = partial(_half_deviance, event, measured, frozen)
            minimize(value, starts[k], jac=True, method="BFGS", options={"gtol": 1e-2})

    return run


@dataclass(frozen=True)
class Rate:
    """Events per second of one thing that was timed."""

    what: str
    processes: int
    best: float
    worst: float
    per_core_second: float | None
    """By this process's CPU time, which a busy machine disturbs little; None where other processes work."""


def _time(what: str, processes: int, n: int, run: Callable[[], None], rounds: int) -> Rate:
    wall, cpu = [], []
    for _ in range(rounds):
        started, used = time.perf_counter(), time.process_time()
        run()
        wall.append(n / (time.perf_counter() - started))
        cpu.append(n / (time.process_time() - used))
    return Rate(what, processes, max(wall), min(wall), max(cpu) if processes == 1 else None)


def measure(folder: Path, n: int, workers: int, rounds: int) -> list[Rate]:
    """Time everything that is compared; the per-event fit comes last."""
    everything = frozenset(GROUPS)
    warm_up()
    joblib.Parallel(n_jobs=workers)(joblib.delayed(warm_up)() for _ in range(workers))
    alone = _events(folder, 16 * CHUNK)
    rows = [
        ("floor: read, decode and sum", 1, n, _floor(folder), rounds),
        ("grid statistics in plain NumPy (63 columns)", 1, n, _grid_statistics(folder), 2),
        ("our table without fits", 1, n, _table(everything - FIT_GROUPS, 1, folder), rounds),
        ("our table without fits", workers, n, _table(everything - FIT_GROUPS, workers, folder), rounds),
        (
            "our table of the set fits",
            workers,
            n,
            _table(everything & frozenset(SETS["fits"]), workers, folder),
            rounds,
        ),
        ("our table of the set fits", 1, n, _table(everything & frozenset(SETS["fits"]), 1, folder), rounds),
        ("our table, everything", 1, n, _table(everything, 1, folder), rounds),
        ("our table, everything", workers, n, _table(everything, workers, folder), rounds),
        ("both fits alone, compiled", 1, len(alone) * CHUNK, _fit_alone(alone, fit_fused), rounds),
        ("electron fit alone, scipy.optimize (BFGS, exact gradient)", 1, SCIPY_EVENTS, _scipy_fit(folder), 2),
    ]
    results = []
    for what, processes, count, run, repeats in rows:
        rate = _time(what, processes, count, run, repeats)
        results.append(rate)
        core = f"{rate.per_core_second:,.0f}" if rate.per_core_second else "-"
        print(f"{what:60s} {processes} processes {rate.best:12,.0f} events/s, per core-second {core}", flush=True)
    return results


def converged(folder: Path) -> str:
    """Return what share of the fits of the first events converged."""
    chunks = _events(folder, 32 * CHUNK)
    both = [fit.electron_converged * fit.muon_converged for fit in map(fit_fused, chunks)]
    share = np.concatenate(both)
    share = share[np.isfinite(share)]
    return f"Of {share.size:,} showers {100 * share.mean():.3f} % had both fits converged."


def as_markdown(title: str, results: list[Rate], note: str) -> str:
    """Return the results as a table, with the gain over the per-event fit."""
    slow = results[-1].per_core_second or float("nan")
    rows = []
    for rate in results:
        core = f"{rate.per_core_second:,.0f} | {rate.per_core_second / slow:,.0f}" if rate.per_core_second else "- | -"
        rows.append(f"| {rate.what} | {rate.processes} | {rate.best:,.0f} | {rate.worst:,.0f} | {core} |")
    head = [
        "| what | processes | events/s, best | slowest | events per core-second | over scipy |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([f"## {title}", "", *head, *rows, "", note, ""])


def main() -> None:
    """Simulate, time, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=65_536, help="events per set (default 65536)")
    parser.add_argument("--workers", type=int, default=joblib.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--store", action="store_true", help=HELP)
    options = parser.parse_args()
    threadpool_limits(1)
    task: Task = COMPOSITION
    pieces = [__doc__.split("\n\n", 2)[2].strip(), ""]
    with tempfile.TemporaryDirectory() as scratch:
        for title, cuts in (("Showers under the test's cuts", "test"), ("Showers without cuts", "none")):
            print(title, flush=True)
            folder, _ = simulate(task, Path(scratch) / cuts, n_train=options.events, n_test=1, train_cuts=cuts)
            results = measure(folder, options.events, options.workers, options.rounds)
            pieces.append(as_markdown(title, results, converged(folder)))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    pieces.append(f"Largest resident memory of a process: {max(peak, children):,.0f} MB (simulation included).\n")
    print(pieces[-1])
    if options.store:
        store("features_speed", "Speed of the features", "\n".join(pieces))


if __name__ == "__main__":
    main()
