"""Simulated events in the raw format of the public data: three NPZ archives a mode, all columns, no cuts.

``{mode}_matrices.npz`` (N, 16, 16, 3: arrival time, e/gamma, muon), ``{mode}_features.npz`` and
``{mode}_true_features.npz`` (N, 10 each), as :mod:`showers.convert` reads them. Photon and hadron numbers at the ground
are not simulated: their columns hold NaN.
"""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path

import numpy as np

from showers.convert import MODES
from showers.files import atomic_path
from showers.progress import Bars, silent
from showers.schema import COMPOSITION, InputError, Task
from showers.simulation.arrival import arrival_times
from showers.simulation.blocks import BlockJob, Events, generator
from showers.simulation.run import accepted, check
from showers.simulation.settings import load_settings
from showers.simulation.spectrum import MODELS, PARTICLE_IDS, PHOTON

KINDS: dict[str, tuple[int, ...]] = {"matrices": (16, 16, 3), "features": (10,), "true_features": (10,)}
"""Archives of a mode: key of the array and its shape per event."""


def simulate_raw(
    task: Task,
    out: Path,
    n: int,
    *,
    seed: int = 1,
    world: str | Path = "default",
    workers: int | None = None,
    reuse: int = 1,
    overwrite: bool = False,
    bars: Bars = silent,
) -> list[Path]:
    """Write raw archives with ``n`` events for every mode (hadronic model) of a task's v2 protocol.

    Parameters
    ----------
    task
        Composition or gamma.
    out
        Folder for the archives.
    n
        Events a mode, without cuts.
    seed, world, workers, reuse
        As in :func:`showers.simulation.simulate`; a shower thrown several times keeps its true quantities.
    overwrite
        Replace existing archives.
    bars
        Progress.

    Returns
    -------
    list of Path
        The archives written.

    Raises
    ------
    InputError
        For unknown names, numbers below 1, or archives that exist.
    """
    settings = load_settings(world)
    modes = dict(zip(MODES["v2", task.name], MODELS, strict=False))
    jobs = {mode: BlockJob(task, "train", seed, model, "none", settings, reuse) for mode, model in modes.items()}
    files = {mode: [Path(out) / f"{mode}_{kind}.npz" for kind in KINDS] for mode in modes}
    for mode, job in jobs.items():
        check(job, n, workers)
        for file in files[mode]:
            if file.exists() and not overwrite:
                raise InputError(f"{file} exists already: choose another folder or ask to overwrite it")
    for mode, job in jobs.items():
        _write_mode(files[mode], job, n, workers, bars)
    return [file for mode in modes for file in files[mode]]


def _write_mode(files: list[Path], job: BlockJob, n: int, workers: int | None, bars: Bars) -> None:
    files[0].parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=files[0].parent, prefix=".partial-") as folder,
        bars(f"simulate {files[0].name}", "events") as progress,
    ):
        arrays = {
            key: np.lib.format.open_memmap(Path(folder) / f"{key}.npy", mode="w+", dtype=np.float32, shape=(n, *shape))
            for key, shape in KINDS.items()
        }
        start = 0
        for events in accepted(job, n, workers):
            part = slice(start, start + len(events))
            arrays["matrices"][part, ..., 0] = arrival_times(events, generator(job, len(events), start))
            arrays["matrices"][part, ..., 1:] = events.grids
            arrays["features"][part] = reconstructed_columns(events, job.task)
            arrays["true_features"][part] = true_columns(events, job.task)
            start += len(events)
            progress(start, n)
        for file, (key, array) in zip(files, arrays.items(), strict=True):
            array.flush()
            with atomic_path(file) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
                archive.write(Path(folder) / f"{key}.npy", f"{key}.npy")


def reconstructed_columns(events: Events, task: Task) -> np.ndarray:
    """Return (n, 10): type (1..5 = p..Fe, 0 photon), E, Xc, Yc, core distance, Ze, Az, Ne, Nmu, Age."""
    e = events.event
    mass = events.showers.primaries.mass[events.rows]
    kind = events.labels + 1.0 if task == COMPOSITION else np.where(mass == PHOTON, 0.0, 1.0)
    distance = np.hypot(e.core_x_m, e.core_y_m)
    return np.column_stack(
        [kind, e.lg_energy, e.core_x_m, e.core_y_m, distance, e.zenith_deg, e.azimuth_deg, e.lg_ne, e.lg_nmu, e.age]
    )


def true_columns(events: Events, task: Task) -> np.ndarray:
    """Return (n, 10): lg E, particle id, Xc, Yc, Ze, Az, lg Ne, Nphoton (NaN), lg Nmu, Nhadron (NaN).

    A proton that stands for the gamma sets' contamination carries the photon's id, as it carries its label.
    """
    s, p, rows = events.showers, events.showers.primaries, events.rows
    mass = p.mass[rows] if task == COMPOSITION else np.where(events.labels == 0, PHOTON, p.mass[rows])
    ids = np.array([PARTICLE_IDS[int(a)] for a in mass])
    unknown = np.full(len(rows), np.nan)
    known = (values[rows] for values in (p.core_x_m, p.core_y_m, p.zenith_deg, p.azimuth_deg, s.lg_ne))
    return np.column_stack([p.lg_energy[rows], ids, *known, unknown, s.lg_nmu[rows], unknown])
