"""Simulated events in the public data's raw format (:mod:`showerstack.showers.archives.raw`), with arrival times and a
mark.

All columns are written and no cuts are made. Photon and hadron numbers at the ground are not simulated: their columns
hold NaN. Arrival times are those of a plane front (:mod:`showerstack.showers.simulation.fronts`).
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from showerstack.runtime.arrays import full_disk_as_input_error, reserve
from showerstack.runtime.context import Bars, silent
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import atomic_path
from showerstack.runtime.options import Count, Place, Seed, checked
from showerstack.showers.archives.raw import KINDS, SimulatedReader, archive_path, read_source
from showerstack.showers.kascade import PARTICLE_IDS
from showerstack.showers.protocols import MODES
from showerstack.showers.schema import COMPOSITION, SIMULATION, SOURCE_FILE, Task
from showerstack.showers.simulation.blocks import BlockJob, SimulatedEvents, random_generator
from showerstack.showers.simulation.datasets import Uses, accepted_events, check_job, source_of
from showerstack.showers.simulation.fronts import arrival_times
from showerstack.showers.simulation.primaries import MODELS, PHOTON
from showerstack.showers.simulation.settings import load_settings


@checked
def simulate_raw(
    task: Task,
    out: Place,
    n: Count,
    *,
    seed: Seed = 1,
    world: Place = "default",
    workers: Count | None = None,
    reuse: Uses = 1,
    modes: Sequence[str] | None = None,
    overwrite: bool = False,
    bars: Bars = silent,
) -> list[Path]:
    """Write raw archives with ``n`` events for every mode (hadronic model) of a task's v2 protocol.

    Modes that are complete already, made from the same numbers by the same code, are kept: an interrupted simulation
    is finished by starting it again.

    Parameters
    ----------
    task
        Composition or gamma.
    out
        Folder for the archives.
    n
        Events a mode, without cuts.
    seed, world, workers, reuse
        As in :func:`showerstack.showers.simulation.simulate`; a shower thrown several times keeps its true quantities.
    modes
        Only these; all of the v2 protocol if None.
    overwrite
        Replace existing archives, if they were simulated here.
    bars
        Progress.

    Returns
    -------
    list of Path
        The archives written.

    Raises
    ------
    InputError
        For unknown names, numbers that are not as declared, archives that may not be replaced, or a disk without room.
    """
    settings = load_settings(world)
    out = Path(out)
    jobs = []
    for mode, model in zip(MODES["v2", str(task.primaries)], MODELS, strict=False):
        if modes is not None and mode not in modes:
            continue
        job = BlockJob(task, "train", seed, model, "none", settings, reuse)
        check_job(job)
        full_source = source_of(job, str(world), "raw")
        left_out = ("protocol", "evaluation_cuts", "age", "cuts", "split")
        source = {name: value for name, value in full_source.items() if name not in left_out} | {
            "mode": mode,
            "n_events": n,
        }
        jobs.append((mode, job, source, _is_made(out, mode, source, overwrite)))
    for mode, job, source, is_made in jobs:
        if not is_made:
            _write_mode(out, mode, job, n, source, workers, bars)
    return [archive_path(out, mode, kind) for mode, *_ in jobs for kind in KINDS]


def all_made(files: list[Path], source: dict[str, Any], overwrite: bool) -> bool:
    """Return whether simulated archives are all there and to be kept."""
    present = [file for file in files if file.exists() or file.is_symlink()]
    for file in present:
        try:
            stored = read_source(file)
        except InputError as error:
            raise InputError(f"{file} exists already: {error}: remove it yourself or choose another folder") from None
        if not str((stored or {}).get("generator", "")).startswith(SIMULATION) or file.is_symlink():
            raise InputError(f"{file} exists already and was not simulated here: remove it or choose another folder")
        if stored != source and not overwrite:
            raise InputError(f"{file} exists already, made otherwise: choose another folder or ask to overwrite it")
    return not overwrite and len(present) == len(files)


def _is_made(out: Path, mode: str, source: dict[str, Any], overwrite: bool) -> bool:
    """Return whether a mode is complete; refuse archives that are not to be replaced."""
    if not all_made([archive_path(out, mode, kind) for kind in KINDS], source, overwrite):
        return False
    reader = SimulatedReader.open(out, mode)
    for kind in KINDS:
        for _ in reader.stream(kind):  # compares the archive's checksum
            pass
    return True


def _write_mode(
    out: Path, mode: str, job: BlockJob, n: int, source: dict[str, Any], workers: int | None, bars: Bars
) -> None:
    """Write the three archives of a mode; old ones go before the first new one comes, so that they never mix."""
    files = {kind: archive_path(out, mode, kind) for kind in KINDS}
    with full_disk_as_input_error(out / mode), ExitStack() as renamed:
        temporary = {kind: renamed.enter_context(atomic_path(file)) for kind, file in files.items()}
        with ExitStack() as opened, bars(f"simulate {mode}", "events") as progress:
            arrays = {
                kind: opened.enter_context(open_archive(temporary[kind], kind, (n, *shape), source))
                for kind, shape in KINDS.items()
            }
            start = 0
            for events in accepted_events(job, n, workers):
                times = arrival_times(events, random_generator(job, len(events), start))
                arrays["matrices"].write(_bytes(np.concatenate([times[..., None], events.grids], axis=-1)))
                arrays["features"].write(_bytes(reconstructed_columns(events, job.task)))
                arrays["true_features"].write(_bytes(true_columns(events, job.task)))
                start += len(events)
                progress(start, n)
        for file in files.values():
            file.unlink(missing_ok=True)


@contextmanager
def open_archive(path: Path, key: str, shape: tuple[int, ...], source: dict[str, Any]) -> Iterator[Any]:
    """Open an NPZ archive of one float32 array for writing its content, row after row."""
    with path.open("wb") as file:
        reserve(file, 4 * prod(shape))
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr(zipfile.ZipInfo(SOURCE_FILE), json.dumps(source, allow_nan=False))
            with archive.open(zipfile.ZipInfo(f"{key}.npy"), "w", force_zip64=True) as array:
                head = {"descr": "<f4", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(array, head)
                yield array
        file.truncate(file.seek(0, os.SEEK_CUR))


def _bytes(values: np.ndarray) -> bytes:
    return np.ascontiguousarray(values, dtype="<f4").tobytes()


def reconstructed_columns(events: SimulatedEvents, task: Task) -> np.ndarray:
    """Return (n, 10): type (1..5 = p..Fe; gamma sets: the label), E, Xc, Yc, core distance, Ze, Az, Ne, Nmu, Age."""
    e = events.event
    kind = events.labels + (1.0 if task.primaries == COMPOSITION.name else 0.0)
    distance = np.hypot(e.core_x_m, e.core_y_m)
    return np.column_stack(
        [kind, e.lg_energy, e.core_x_m, e.core_y_m, distance, e.zenith_deg, e.azimuth_deg, e.lg_ne, e.lg_nmu, e.age]
    )


def true_columns(events: SimulatedEvents, task: Task) -> np.ndarray:
    """Return (n, 10): lg E, particle id, Xc, Yc, Ze, Az, lg Ne, Nphoton (NaN), lg Nmu, Nhadron (NaN).

    A proton that stands for the gamma sets' contamination carries the photon's id, as it carries its label.
    """
    s, p, rows = events.showers, events.showers.primaries, events.rows
    mass = p.mass[rows] if task.primaries == COMPOSITION.name else np.where(events.labels == 0, PHOTON, p.mass[rows])
    ids = np.array([PARTICLE_IDS[int(a)] for a in mass])
    unknown = np.full(len(rows), np.nan)
    known = (values[rows] for values in (p.core_x_m, p.core_y_m, p.zenith_deg, p.azimuth_deg, s.lg_ne))
    return np.column_stack([p.lg_energy[rows], ids, *known, unknown, s.lg_nmu[rows], unknown])
