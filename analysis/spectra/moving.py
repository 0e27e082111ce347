"""How posteriors of simulated showers move with their sizes: the showers moved, and predicted again.

A set of the embedded simulation is simulated again from its seed, with the offset of lg Nmu or lg Ne in the world
changed by :data:`showerstack.analysis.spectra.folding.MOVE` either way: with the same random numbers almost all showers
are there again, and are paired by their numbers. Of any other set with grids, the deposits of one kind of detector are
multiplied instead, its size and the energy with them; slopes by cells are then right within 10 to 30 %. What is neither
is left to a regression (:func:`showerstack.analysis.spectra.folding.regressed_moves`).
"""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from showerstack.analysis.spectra.folding import MOVE, mass_summary
from showerstack.analysis.spectra.response import MassGroups
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import temporary_folder, write_npz
from showerstack.runtime.processes import in_threads
from showerstack.runtime.resources import cores
from showerstack.runtime.versions import FEATURES_VERSION, SIMULATION_VERSION, STACKING_VERSION
from showerstack.showers.array import KASCADE, DetectorArray
from showerstack.showers.dataset import Dataset
from showerstack.showers.kascade import reconstructed_energy
from showerstack.showers.protocols import Layout, layout_of
from showerstack.showers.schema import AGE_FILE, SCALAR_NAMES, SIMULATION, TRUTH_FILE
from showerstack.showers.simulation.blocks import (
    PRIMARIES_PER_BLOCK,
    BlockJob,
    Draws,
    draw_block,
    names_of_showers,
    observe_drawn,
)
from showerstack.showers.simulation.datasets import task_of_source
from showerstack.showers.simulation.settings import load_settings
from showerstack.showers.writer import write_dataset
from showerstack.stacking.prediction.computed import EventsInMemory
from showerstack.stacking.prediction.predict import columns_needed, predict
from showerstack.stacking.prediction.run import Run

SIZES = (("lg_nmu_offset", 1, 4), ("lg_ne_offset", 0, 3))
"""Of muon and electron number: offset in the simulated world, channel of the grids, column of the scalars."""
AGAIN, DEPOSITS = "simulated again", "deposits multiplied"
ROWS = 20_000
"""Events whose grids are multiplied, or that are simulated again, at once."""


def moved_summaries(
    run: Run, dataset: Dataset, ctx: Context = Context(), keep: Path | None = None, used: np.ndarray | None = None
) -> tuple[np.ndarray, str]:
    """Return y (N, 4) of a set's events with lg Nmu moved down and up, then lg Ne; NaN where not known; and how.

    Parameters
    ----------
    used
        (N,) bool: events that are wanted; None: all.
    keep
        Folder where the result is kept for the next attempt, and where moved sets are until they are predicted; None:
        nowhere.
    """
    how = AGAIN if world_of(dataset) is not None else DEPOSITS
    name = f"{run.chain.config_hash[:16]}-{dataset.fingerprint()[:16]}"
    versions = f"{FEATURES_VERSION}.{STACKING_VERSION}.{SIMULATION_VERSION}"
    if used is not None:
        name += f"-{zlib.crc32(np.packbits(used).tobytes()):08x}"
    file = None if keep is None else keep / f"{name}-moved-{how.split()[0]}-{versions}.npz"
    if file is not None and file.exists():
        with np.load(file, allow_pickle=False) as stored:
            return stored["y"].astype(np.float64), how
    groups = MassGroups.of(run.task)
    if how == AGAIN:
        y = simulated_again(run, dataset, ctx, used)
    else:
        y = np.full((len(dataset), 4), np.nan)
        for k in range(4):
            with multiplied_set(dataset, k // 2, MOVE * (-1, 1)[k % 2], keep) as folder:
                y[:, k] = mass_summary(predict(run, folder, ctx, no_table=True).concatenated().log_proba, groups)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_npz(file, y=y.astype(np.float32))
    return y, how


NEEDED = frozenset({"world", "split", "seed", "model", "cuts", "reuse"})
"""Entries of ``source.json`` by which a set can be simulated again; converted archives have no cuts, nor a split."""


def world_of(dataset: Dataset) -> Any:
    """Return the simulated world's constants where a set can be simulated again, else None."""
    source = dataset.source
    if source.get("generator") != SIMULATION or source.get("simulation_version") != SIMULATION_VERSION:
        return None
    if "rare" in source or dataset.array != KASCADE or not dataset.has_truth or not source.keys() >= NEEDED:
        return None
    try:
        settings = load_settings(str(source["world"]))
    except InputError:
        return None
    return settings if settings.digest() == source.get("settings_hash") else None


def simulated_again(run: Run, dataset: Dataset, ctx: Context, used: np.ndarray | None = None) -> np.ndarray:
    """Return y (N, 4) of a set's own showers, simulated again with sizes moved; NaN of those that do not pass the cuts.

    Nothing is written: the showers of some blocks at a time are in memory, with the features that the run reads.
    """
    settings, source = world_of(dataset), dict(dataset.source)
    task, jobs = task_of_source(source), []
    for k in range(4):
        name, shift = SIZES[k // 2][0], MOVE * (-1, 1)[k % 2]
        offset = getattr(settings.cascade, name) + shift
        moved = settings.model_copy(update={"cascade": settings.cascade.model_copy(update={name: offset})})
        jobs.append(BlockJob(
            task, str(source["split"]), int(source["seed"]), str(source["model"]), str(source["cuts"]), moved,
            int(source["reuse"]),
        ))  # fmt: skip
    layout, columns = layout_of(str(source["protocol"]), task), columns_needed(run)
    truth = pl.read_parquet(dataset.files.path(TRUTH_FILE), columns=["shower", "core_x_m"], glob=False)
    shower = truth["shower"].to_numpy()
    names = names_of_showers(shower, truth["core_x_m"].to_numpy())
    order = np.argsort(names, kind="stable")
    in_block = np.where(np.ones(len(shower), bool) if used is None else used, shower // PRIMARIES_PER_BLOCK, -1)
    blocks, threads = np.unique(in_block[in_block >= 0]), ctx.workers or cores()
    n_portions = max(1, -(-int(np.count_nonzero(in_block >= 0)) // ROWS))
    # Each thread has some blocks, whose showers are moved all at once.
    portions = [np.array_split(one, max(threads, 1)) for one in np.array_split(blocks, n_portions)]
    y = np.full((len(dataset), 4), np.nan)
    with ctx.bars(f"simulate {dataset.path.name} again", "events") as progress:
        for number, portion in enumerate(portions):
            tasks = ((jobs, one, {b: names[in_block == b] for b in one.tolist()}, layout, columns, dataset.array)
                     for one in portion if one.size)  # fmt: skip
            parts = list(in_threads(_moved_portion, tasks, workers=threads))
            events = EventsInMemory.joined([part for part, _, _ in parts])
            there, moves = (np.concatenate([each[k] for each in parts]) for k in (1, 2))
            summary = mass_summary(predict(run, events, ctx).concatenated().log_proba, MassGroups.of(run.task))
            y[order[np.searchsorted(names, there, sorter=order)], moves] = summary
            progress(number + 1, len(portions))
    return y


def _moved_portion(
    jobs: list[BlockJob], blocks: np.ndarray, wanted: dict[int, np.ndarray], layout: Layout,
    columns: tuple[str, ...], array: DetectorArray,
) -> tuple[EventsInMemory, np.ndarray, np.ndarray]:  # fmt: skip
    """Return the showers of some blocks, moved in all ways; their names, and the number of the move."""
    draws = Draws.joined([draw_block(jobs[0], block, only) for block, only in wanted.items()])
    moved, found, moves = [], [], []
    for k, job in enumerate(jobs):
        events = observe_drawn(draws, job)
        stored = layout.columns(events.scalars, events.event.age)
        ages = events.event.age.astype(np.float32)
        age = {"none": None, "file": ages, "column": stored[:, -1]}[layout.age]
        grids = events.grids.astype(layout.grid_type)
        moved.append(EventsInMemory.of(grids, stored[:, : len(SCALAR_NAMES)], age, columns, array))
        found.append(names_of_showers(events.group, events.showers.primaries.core_x_m[events.rows]))
        moves.append(np.full(len(events), k))
    return EventsInMemory.joined(moved), np.concatenate(found), np.concatenate(moves)


@contextmanager
def multiplied_set(dataset: Dataset, size: int, shift: float, keep: Path | None = None) -> Iterator[Path]:
    """Write a set with the deposits of one size (0 muons, 1 electrons) moved by ``shift`` in lg, while it is needed."""
    place = keep if keep is not None and keep.exists() else Path(tempfile.gettempdir())
    with temporary_folder(place / "moved") as work:
        folder = work / dataset.path.name
        _multiply(dataset, folder, size, shift)
        yield folder


def _multiply(dataset: Dataset, folder: Path, size: int, shift: float) -> None:
    _, channel, column = SIZES[size]
    scalars = np.array(dataset.scalars, dtype=np.float64)
    scalars[:, column] += shift
    scalars[:, 0] += reconstructed_energy(scalars[:, 3], scalars[:, 4], scalars[:, 1])
    scalars[:, 0] -= reconstructed_energy(*np.array(dataset.scalars, dtype=np.float64).T[[3, 4, 1]])
    grid_type, scalar_type = dataset.matrices.dtype, dataset.scalars.dtype
    largest = float(np.finfo(grid_type).max)
    age = None if dataset.age is None else np.asarray(dataset.age)
    own_file = age is not None and dataset.files.has(AGE_FILE)
    layout = Layout(grid_type, scalar_type, "none" if age is None else "file" if own_file else "column")
    extras: dict[str, Any] = {"age": np.float32} if own_file else {}
    with write_dataset(folder, len(dataset), None, source=dataset.source, extras=extras, layout=layout) as writer:
        for chunk in dataset.chunks(ROWS):
            rows = slice(chunk.start, chunk.start + len(chunk))
            grids = np.array(chunk.matrices, dtype=np.float32)
            grids[..., channel] = np.minimum(grids[..., channel] * 10.0**shift, largest)
            ages = np.zeros(len(chunk)) if age is None else age[rows]
            columns = layout.columns(scalars[rows], ages)
            values: dict[str, Any] = {"age": ages} if own_file else {}
            writer.put(chunk.start, grids.astype(grid_type), columns, **values)
