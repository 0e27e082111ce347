"""Simulated measurements: runs in the measured archive's form (:mod:`showerstack.showers.archives.measured`), from a
known sky.

A user sees what the experiment would hand out: grids, reconstructed quantities, event times, and the live time of the
whole. What really happened is kept apart, in ``truth/``.
"""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import polars as pl

from showerstack.runtime.arrays import full_disk_as_input_error
from showerstack.runtime.context import Bars, silent
from showerstack.runtime.files import atomic_path, write_json
from showerstack.runtime.logs import remark
from showerstack.runtime.options import Count, Place, Seed, checked
from showerstack.runtime.processes import in_threads
from showerstack.runtime.resources import cores
from showerstack.runtime.versions import SIMULATION_VERSION
from showerstack.showers.archives.measured import COLUMNS, MEASURED_KINDS
from showerstack.showers.archives.raw import TIME_COLUMN, TIMES_KIND, archive_path
from showerstack.showers.array import KASCADE, DetectorArray
from showerstack.showers.schema import COMPOSITION, SIMULATION, SOURCE_FILE
from showerstack.showers.simulation.blocks import PRIMARIES_PER_BLOCK, BlockJob, SimulatedEvents, observe
from showerstack.showers.simulation.cascade import develop
from showerstack.showers.simulation.fronts import arrival_times
from showerstack.showers.simulation.raw import all_made, open_archive
from showerstack.showers.simulation.settings import Settings, load_settings
from showerstack.showers.simulation.sky import Sky, Thrower, load_sky

LOG = logging.getLogger(__name__)

EXPOSURE_FILE = "exposure.json"
TRUTH_FOLDER = "truth"
FIRST_RUN = 4000
ANNOUNCED_BYTES = 1e9
"""What takes more is told before it is written."""
STREAM = 2
"""Keeps the random numbers of measurements apart from those of the tasks' sets (0, 1)."""


@dataclass(frozen=True)
class RunConditions:
    """What one run of the experiment was like."""

    name: str
    number: int
    live_time_s: float
    start: datetime
    thrown: int
    array: DetectorArray
    dead: tuple[int, ...]
    """Cells of dead stations."""
    dead_muon: tuple[int, ...]
    """Cells whose muon detector alone is dead."""
    deposit_scale: float
    detector: Settings
    """The world with the run's deposit scale."""


@checked
def simulate_measured(
    spectrum: Place,
    out: Place,
    *,
    seed: Seed = 1,
    workers: Count | None = None,
    overwrite: bool = False,
    bars: Bars = silent,
) -> list[Path]:
    """Write the runs of a known sky.

    Runs that are complete, made from the same sky by the same code, are kept: an interrupted simulation is finished by
    starting it again.

    Parameters
    ----------
    spectrum
        TOML file of a :class:`showerstack.showers.simulation.sky.Sky`.
    out
        Gets ``{run}_matrices.npz``, ``{run}_features.npz``, ``{run}_extra_features.npz``, ``exposure.json`` (live
        time, area and solid angle that were thrown) and ``truth/`` (showers and settings of each run).
    seed
        The same seed gives the same events for any number of workers.
    workers
        Threads; all processors if None.
    overwrite
        Replace existing runs, if they were simulated here.

    Returns
    -------
    list of Path
        The ``{run}_matrices.npz`` of all runs.
    """
    sky = load_sky(Path(spectrum))
    settings, out = load_settings(sky.world), Path(out)
    source = {
        "generator": SIMULATION,
        "simulation_version": SIMULATION_VERSION,
        "task": "measured",
        "seed": seed,
        "sky": sky.digest(),
        "world": sky.world,
        "settings_hash": settings.digest(),
        "model": sky.model,
    }
    names = [run_name(k) for k in range(sky.runs)]
    made = [_is_made(out, name, {**source, "run": name}, overwrite) for name in names]
    out.mkdir(parents=True, exist_ok=True)
    with bars("simulate runs", "runs") as progress:
        for k, name in enumerate(names):
            if not made[k]:
                _write_run(out, conditions_of_run(sky, settings, seed, k), sky, seed, {**source, "run": name}, workers)
                if made.index(False) == k:
                    _announce(out, name, made.count(False))
            progress(k + 1, sky.runs)
    write_json(
        out / EXPOSURE_FILE,
        {
            "live_time_s": 3600.0 * sky.live_time_h * sky.runs,
            "live_time_s_by_run": dict.fromkeys(names, 3600.0 * sky.live_time_h),
            "area_m2": float(np.pi * sky.core_radius_m**2),
            "zenith_max_deg": sky.zenith_max_deg,
        },
    )
    write_json(out / TRUTH_FOLDER / "sky.json", json.loads(sky.model_dump_json()))
    return [archive_path(out, name, "matrices") for name in names]


def _announce(out: Path, name: str, runs: int) -> None:
    """Say, after the first of many runs, how much room they will take."""
    size = sum(archive_path(out, name, kind).stat().st_size for kind in ("matrices", "features", "extra_features"))
    if runs * size > ANNOUNCED_BYTES:
        takes, free = runs * size / 1e9, shutil.disk_usage(out).free / 1e9
        remark(LOG, [f"{runs} runs will take about {takes:,.1f} GB in {out}, where {free:,.1f} GB are free"])


def run_name(number: int) -> str:
    """Return the name of a run: like the archive's own, those that are used end in 0 or 1."""
    return f"{FIRST_RUN + 10 * (number // 2) + number % 2:06d}"


def conditions_of_run(sky: Sky, settings: Settings, seed: int, number: int) -> RunConditions:
    """Decide what one run is like: how many primaries, which stations are dead, at which scale deposits are read."""
    rng = np.random.default_rng(np.random.SeedSequence((seed, STREAM, number)))
    live_time_s = 3600.0 * sky.live_time_h
    thrown = int(rng.poisson(Thrower(sky).rate_hz * live_time_s))
    dead = _choose_cells(rng, sky.dead_stations, KASCADE.cells)
    with_muons = np.setdiff1d(np.flatnonzero(KASCADE.has_muon.ravel()), dead)
    dead_muon = _choose_cells(rng, sky.dead_muon_detectors, with_muons)
    scale = 1.0 + sky.deposit_drift * number / max(sky.runs - 1, 1)
    d = settings.detector
    names = ("electron_mev", "muon_mev", "punch_mev")
    start = sky.start if sky.start.tzinfo else sky.start.replace(tzinfo=UTC)
    return RunConditions(
        name=run_name(number),
        number=number,
        live_time_s=live_time_s,
        start=start + number * timedelta(hours=sky.live_time_h + sky.pause_h),
        thrown=thrown,
        array=KASCADE.without(dead, dead_muon),
        dead=tuple(int(cell) for cell in dead),
        dead_muon=tuple(int(cell) for cell in dead_muon),
        deposit_scale=scale,
        detector=settings.changed(**{f"detector__{name}": scale * getattr(d, name) for name in names}),
    )


def _choose_cells(rng: np.random.Generator, mean: float, cells: np.ndarray) -> np.ndarray:
    """Return a Poisson number of different cells, at most half of them."""
    return np.sort(rng.choice(cells, min(int(rng.poisson(mean)), len(cells) // 2), replace=False))


def _is_made(out: Path, name: str, source: dict[str, Any], overwrite: bool) -> bool:
    """Return whether a run is complete; refuse files that are not to be replaced."""
    files = [archive_path(out, name, kind) for kind in (*MEASURED_KINDS, TIMES_KIND)]
    return all_made(files, source, overwrite) and (out / TRUTH_FOLDER / f"{name}.parquet").exists()


def _write_run(out: Path, run: RunConditions, sky: Sky, seed: int, source: dict[str, Any], workers: int | None) -> None:
    """Write the archives of a run; their number of events is known only when all are simulated."""
    job = BlockJob(COMPOSITION, "test", seed, sky.model, sky.cuts, load_settings(sky.world), array=run.array)
    with full_disk_as_input_error(out / run.name), ExitStack() as opened:
        spooled: dict[str, BinaryIO] = {
            kind: opened.enter_context(tempfile.TemporaryFile(dir=out)) for kind in MEASURED_KINDS
        }
        truth, n = [], 0
        for block, events in enumerate(_events(run, sky, job, seed, workers)):
            times = arrival_times(
                events, np.random.default_rng(np.random.SeedSequence((seed, STREAM, run.number, block, 1)))
            )
            grids = np.concatenate([times[..., None], events.grids], axis=-1)
            spooled["matrices"].write(np.ascontiguousarray(grids, dtype="<f4").tobytes())
            spooled["features"].write(np.ascontiguousarray(measured_columns(events), dtype="<f4").tobytes())
            truth.append(events.truth)
            n += len(events)
        rng = np.random.default_rng(np.random.SeedSequence((seed, STREAM, run.number, 0, 2)))
        seconds = np.sort(rng.uniform(0.0, run.live_time_s, n))
        # The truth comes first: a run counts as made when its archives are there.
        with atomic_path(out / TRUTH_FOLDER / f"{run.name}.parquet") as temporary:
            pl.concat(truth).with_columns(pl.Series("second", seconds)).write_parquet(temporary)
        _write_conditions(out, run)
        for kind, shape in MEASURED_KINDS.items():
            with (
                atomic_path(archive_path(out, run.name, kind)) as temporary,
                open_archive(temporary, kind, (n, *shape), source) as array,
            ):
                spooled[kind].seek(0)
                shutil.copyfileobj(spooled[kind], array, 1 << 20)
        _write_times(archive_path(out, run.name, TIMES_KIND), run, seconds, source)


def _write_conditions(out: Path, run: RunConditions) -> None:
    content = {
        "thrown": run.thrown,
        "live_time_s": run.live_time_s,
        "dead_cells": list(run.dead),
        "dead_muon_cells": list(run.dead_muon),
        "deposit_scale": run.deposit_scale,
    }
    write_json(out / TRUTH_FOLDER / f"{run.name}.json", content)


def _events(run: RunConditions, sky: Sky, job: BlockJob, seed: int, workers: int | None) -> Iterator[SimulatedEvents]:
    """Return a run's accepted events block by block."""
    thrower = Thrower(sky)

    def simulate_one(block: int) -> SimulatedEvents:
        rng = np.random.default_rng(np.random.SeedSequence((seed, STREAM, run.number, block, 0)))
        n = min(PRIMARIES_PER_BLOCK, run.thrown - block * PRIMARIES_PER_BLOCK)
        showers = develop(thrower.throw(n, rng), job.settings, rng)
        return observe(showers, block * PRIMARIES_PER_BLOCK + np.arange(n), job, rng, run.detector)

    n_blocks = max(-(-run.thrown // PRIMARIES_PER_BLOCK), 1)
    return in_threads(simulate_one, ((block,) for block in range(n_blocks)), workers=workers or cores())


def measured_columns(events: SimulatedEvents) -> np.ndarray:
    """Return (n, 8): E, Xc, Yc, Ze, Az, Ne, Nmu, Age as reconstructed."""
    e = events.event
    values = {
        "E": e.lg_energy,
        "Xc": e.core_x_m,
        "Yc": e.core_y_m,
        "Ze": e.zenith_deg,
        "Az": e.azimuth_deg,
        "Ne": e.lg_ne,
        "Nmu": e.lg_nmu,
        "Age": e.age,
    }
    return np.column_stack([values[name] for name in COLUMNS])


def _write_times(path: Path, run: RunConditions, seconds: np.ndarray, source: dict[str, Any]) -> None:
    """Write the third archive as the public one is: an object array, which NumPy stores as a pickle.

    It is written for its form only; the reader (:mod:`showerstack.showers.archives.raw`) does not execute it.
    """
    table = np.zeros((len(seconds), TIME_COLUMN + 1), dtype=object)
    table[:, 0] = int(run.name)
    table[:, 1] = list(range(len(seconds)))
    table[:, TIME_COLUMN] = [(run.start + timedelta(seconds=float(s))).replace(tzinfo=None) for s in seconds]
    with atomic_path(path) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo(SOURCE_FILE), json.dumps(source, allow_nan=False))
        with archive.open(zipfile.ZipInfo(f"{TIMES_KIND}.npy"), "w", force_zip64=True) as array:
            np.lib.format.write_array(array, table, allow_pickle=True)
