"""How posteriors of simulated showers move with their sizes: the showers moved, and predicted again.

A set of the embedded simulation is simulated again from its seed, with the offset of lg Nmu or lg Ne in the world
changed by :data:`showerstack.analysis.spectra.folding.MOVE` either way: with the same random numbers almost all showers
are there again, and are paired by their numbers. Of any other set with grids, the deposits of one kind of detector are
multiplied instead, its size and the energy with them; slopes by cells are then right within 10 to 30 %. What is neither
is left to a regression (:func:`showerstack.analysis.spectra.folding.regressed_moves`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from showerstack.analysis.spectra.folding import MOVE, mass_summary
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import temporary_folder, write_npz
from showerstack.runtime.versions import FEATURES_VERSION, SIMULATION_VERSION, STACKING_VERSION
from showerstack.showers.array import KASCADE
from showerstack.showers.dataset import Dataset
from showerstack.showers.kascade import reconstructed_energy
from showerstack.showers.protocols import Layout
from showerstack.showers.schema import AGE_FILE, SIMULATION, TRUTH_FILE
from showerstack.showers.simulation.blocks import BlockJob
from showerstack.showers.simulation.datasets import write_set
from showerstack.showers.simulation.settings import load_settings
from showerstack.showers.writer import write_dataset
from showerstack.stacking.predict import predict
from showerstack.stacking.store import Run

SIZES = (("lg_nmu_offset", 1, 4), ("lg_ne_offset", 0, 3))
"""Of muon and electron number: offset in the simulated world, channel of the grids, column of the scalars."""
AGAIN, DEPOSITS = "simulated again", "deposits multiplied"
MORE = 1.0625
"""How many more showers are simulated again than the set has: with fewer electrons or more, the last ones differ."""
ROWS = 20_000
"""Events whose grids are multiplied at once."""


def moved_summaries(
    run: Run, dataset: Dataset, ctx: Context = Context(), keep: Path | None = None
) -> tuple[np.ndarray, str]:
    """Return y (N, 4) of a set's events with lg Nmu moved down and up, then lg Ne; NaN where not known; and how.

    Parameters
    ----------
    keep
        Folder where the result is kept for the next attempt, and where moved sets are until they are predicted; None:
        nowhere.
    """
    how = AGAIN if world_of(dataset) is not None else DEPOSITS
    name = f"{run.chain.config_hash[:16]}-{dataset.fingerprint()[:16]}"
    versions = f"{FEATURES_VERSION}.{STACKING_VERSION}.{SIMULATION_VERSION}"
    file = None if keep is None else keep / f"{name}-moved-{how.split()[0]}-{versions}.npz"
    if file is not None and file.exists():
        with np.load(file, allow_pickle=False) as stored:
            return stored["y"].astype(np.float64), how
    y = np.full((len(dataset), 4), np.nan)
    for k in range(4):
        with moved_set(dataset, k // 2, MOVE * (-1, 1)[k % 2], ctx, keep) as folder:
            summary = mass_summary(predict(run, folder, ctx).concatenated().log_proba)
            if how == DEPOSITS:
                y[:, k] = summary
            else:
                here, there = paired_rows(dataset, Dataset.open(folder, labels=False))
                y[here, k] = summary[there]
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


@contextmanager
def moved_set(dataset: Dataset, size: int, shift: float, ctx: Context, keep: Path | None) -> Iterator[Path]:
    """Write a set with one size (0 muons, 1 electrons) moved by ``shift`` in lg, for as long as it is needed."""
    settings = world_of(dataset)
    place = keep if keep is not None and keep.exists() else Path(tempfile.gettempdir())
    with temporary_folder(place / "moved") as work:
        folder = work / dataset.path.name
        if settings is None:
            _multiply(dataset, folder, size, shift)
        else:
            _simulate(dataset, folder, settings, size, shift, ctx)
        yield folder


def _simulate(dataset: Dataset, folder: Path, settings: Any, size: int, shift: float, ctx: Context) -> None:
    source, name = dict(dataset.source), SIZES[size][0]
    offset = getattr(settings.cascade, name) + shift
    moved = settings.model_copy(update={"cascade": settings.cascade.model_copy(update={name: offset})})
    assert dataset.task is not None
    job = BlockJob(
        dataset.task, str(source["split"]), int(source["seed"]), str(source["model"]), str(source["cuts"]), moved,
        int(source["reuse"]),
    )  # fmt: skip
    write_set(folder, job, int(MORE * len(dataset)) + 1, source, bars=ctx.bars)


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


def paired_rows(one: Dataset, other: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of two sets that are the same shower at the same core."""
    keys = [
        pl.read_parquet(each.files.path(TRUTH_FILE), columns=["shower", "core_x_m"], glob=False).with_row_index("row")
        for each in (one, other)
    ]
    both = keys[0].join(keys[1], on=["shower", "core_x_m"], how="inner")
    return both["row"].to_numpy(), both["row_right"].to_numpy()
