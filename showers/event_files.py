"""The files of a dataset folder, opened with their bytes, type, shape, length and content checked.

What really happened in simulated showers, from ``truth.parquet`` beside their labels: for training and scoring.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl

from runtime.arrays import open_npy
from runtime.checksums import CHECKSUMS_FILE, Checksums
from runtime.errors import InputError, did_you_mean
from runtime.files import read_json
from showers.schema import AGE, MATRICES_FILE, SCALAR_NAMES, SCALARS_FILE, SOURCE_FILE, TASKS, TargetQuantity, Task


@dataclass(frozen=True)
class EventFiles:
    """A dataset folder with the checksums of its files, where it has them; use :meth:`open`."""

    folder: Path
    checksums: Checksums | None
    """None for folders that were written without ``checksums.json``: their damage cannot be noticed."""

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open a dataset folder.

        Raises
        ------
        InputError
            If it is no folder, or its list of checksums is damaged.
        """
        if not folder.is_dir():
            raise InputError(
                f"{folder} is not a folder{did_you_mean(folder)}: expected a dataset folder with {MATRICES_FILE}"
            )
        checksums = _is_there(folder / CHECKSUMS_FILE)
        if not checksums and not _is_there(folder / MATRICES_FILE):
            inside = sorted(str(file.parent) for file in folder.glob(f"*/{MATRICES_FILE}"))
            if inside:
                raise InputError(f"{folder} is no dataset folder, but holds some: did you mean {' or '.join(inside)}?")
        return cls(folder, Checksums.open(folder, required=(MATRICES_FILE, SCALARS_FILE)) if checksums else None)

    def has(self, name: str) -> bool:
        """Return whether the folder holds a file, or should."""
        return _is_there(self.folder / name) or (self.checksums is not None and name in self.checksums.files)

    def path(self, name: str) -> Path:
        """Return the path of a file after comparing its bytes with the checksums, where there are any.

        Raises
        ------
        InputError
            If the file is not the one that was written.
        """
        problem = self.checksums.problem(name) if self.checksums else None
        if problem:
            raise InputError(f"{problem}: restore it, or remove {CHECKSUMS_FILE} if the change was meant")
        return self.folder / name

    def source(self) -> dict[str, Any]:
        """Return the content of ``source.json``, empty where there is none.

        Raises
        ------
        InputError
            If it is damaged.
        """
        if not self.has(SOURCE_FILE):
            return {}
        content = read_json(self.path(SOURCE_FILE))
        if not isinstance(content, dict):
            raise InputError(f"{self.folder / SOURCE_FILE} is not a table of names and values")
        return content

    def task(self) -> Task:
        """Return the task whose label file is there.

        Raises
        ------
        InputError
            If there is none, or several.
        """
        found = [task for task in TASKS.values() if task.label_file and self.has(task.label_file)]
        if len(found) != 1:
            names = ", ".join(str(task.label_file) for task in TASKS.values())
            what = "no label file" if not found else "label files of several tasks"
            raise InputError(f"{self.folder} holds {what} ({names}): say which task is meant")
        return found[0]

    def matrices(self, shape: tuple[int, ...]) -> np.ndarray:
        """Map the grids; their bytes are compared when all of them are read, see :meth:`path`."""
        return open_array(self.folder / MATRICES_FILE, shape, (np.float16, np.float32))

    def scalars(self, n_events: int, *, with_age: bool) -> tuple[np.ndarray, np.ndarray | None]:
        """Return E, Ze, Az, Ne, Nmu (N, 5), and the ages (N,) float32 where they are a sixth column and wanted.

        Raises
        ------
        InputError
            If the file cannot be read, holds something else, or values that are not finite.
        """
        path = self.path(SCALARS_FILE)
        stored = open_npy(path)
        columns = (*SCALAR_NAMES, AGE.name) if stored.ndim == 2 and stored.shape[1] == 6 else SCALAR_NAMES
        stored = self.array(SCALARS_FILE, (len(columns),), (np.float16, np.float32), n_events)
        check_finite(path, stored, columns)
        if len(columns) == len(SCALAR_NAMES):
            return stored, None
        values = np.asarray(stored)
        age = values[:, -1].astype(np.float32) if with_age else None
        return np.ascontiguousarray(values[:, : len(SCALAR_NAMES)]), age

    def array(self, name: str, shape: tuple[int, ...], dtypes: tuple[Any, ...], n_events: int) -> np.ndarray:
        """Map one value (or row of values) an event."""
        path = self.path(name)
        array = open_array(path, shape, dtypes)
        if len(array) != n_events:
            raise InputError(f"{path} has {len(array)} rows, but {MATRICES_FILE} beside it has {n_events}")
        return array

    def optional(self, name: str, dtype: Any, n_events: int) -> np.ndarray | None:
        """Map one value an event, if the folder has the file."""
        return self.array(name, (), (dtype,), n_events) if self.has(name) else None

    def labels(self, task: Task, n_events: int) -> np.ndarray:
        """Map the labels of a task, class numbers or true values, and check their range."""
        if task.label_file is None:
            raise InputError(f"task {task.name!r} has no label file")
        if task.target and not self.has(task.label_file):
            raise InputError(
                f"{self.folder} has no {task.label_file}: the public sets hold no true values; simulate a set, or "
                "convert one from raw archives"
            )
        labels = self.array(task.label_file, (), (task.label_type,), n_events)
        if task.target:
            check_true(labels, task.target, self.folder / task.label_file)
            return labels
        bad = np.flatnonzero((labels < 0) | (labels >= task.n_classes))
        if bad.size:
            raise InputError(
                f"{self.folder / task.label_file}: row {bad[0]} holds label {labels[bad[0]]}, "
                f"expected 0..{task.n_classes - 1} ({bad.size} bad rows)"
            )
        return labels


def open_array(path: Path, shape: tuple[int, ...], dtypes: tuple[Any, ...]) -> np.ndarray:
    """Map an array of (N, *shape) and one of the types.

    Raises
    ------
    InputError
        If the file cannot be read or holds something else.
    """
    array = open_npy(path)
    expected = " or ".join(np.dtype(dtype).name for dtype in dtypes)
    if array.dtype not in [np.dtype(dtype) for dtype in dtypes]:
        raise InputError(f"{path} has type {array.dtype}, expected {expected}")
    if array.shape[1:] != shape or array.ndim != len(shape) + 1:
        wanted = ", ".join(["N", *map(str, shape)]) + ("," if not shape else "")
        raise InputError(f"{path} has shape {array.shape}, expected ({wanted})")
    return array


def check_true(values: np.ndarray, target: TargetQuantity, path: Path) -> None:
    """Refuse true values (N,) that are not finite or outside the target's limits; names the first row."""
    low, high = target.limits
    bad = np.flatnonzero(~((values >= low) & (values <= high)))
    if bad.size:
        raise InputError(
            f"{path}: row {bad[0]} holds {values[bad[0]]:g}, expected {target.unit} from {low:g} to {high:g} "
            f"({bad.size} bad rows)"
        )


def check_finite(path: Path, array: np.ndarray, columns: tuple[str, ...]) -> None:
    """Refuse (N, C) values that are not finite; names the first row and column."""
    bad = np.argwhere(~np.isfinite(array))
    if bad.size:
        row, column = (int(k) for k in bad[0])
        raise InputError(f"{path}: row {row}, column {columns[column]} holds {array[row, column]}, expected a number")


def check_cells(matrices: np.ndarray, file: Path | str, first_event: int = 0) -> None:
    """Refuse grids with NaN, infinite or negative cells.

    For non-negative finite float16 (or float32) the bit pattern, read as an unsigned integer, is below that of
    infinity: one integer comparison finds NaN, infinities and negative values (and a harmless negative zero, let
    through).
    """
    infinity, kind = (0x7C00, np.uint16) if matrices.dtype == np.float16 else (0x7F800000, np.uint32)
    bits = np.ascontiguousarray(matrices).view(kind)
    if not bits.size or bits.max() < infinity:
        return
    with np.errstate(invalid="ignore"):
        bad = ~np.isfinite(matrices) | (matrices < 0)
    if not bad.any():
        return
    event, row, column, channel = (int(k) for k in np.argwhere(bad)[0])
    value = float(matrices[event, row, column, channel])
    raise InputError(
        f"{file}: event {first_event + event}, cell ({row}, {column}), channel {channel} holds {value:g}; "
        f"energy deposits must be finite and not negative ({int(bad.any(axis=(1, 2, 3)).sum())} bad events nearby)"
    )


def _is_there(path: Path) -> bool:
    return path.exists() or path.is_symlink()


TRUTH_COLUMNS = ("lg_energy", "core_x_m", "core_y_m", "lg_ne", "lg_nmu", "xmax", "age", "mass")
"""Columns that are read: lg(E/eV), m, m, lg, lg, g/cm2, 1, mass number (0: photon)."""


def read_truth(file: Path, n_events: int) -> pl.DataFrame:
    """Return the true quantities.

    Parameters
    ----------
    file
        A Parquet file of one row an event.
    n_events
        Rows that it must have.

    Returns
    -------
    polars.DataFrame
        :data:`TRUTH_COLUMNS` as float64, NaN where a quantity is not known or the file has no such column.

    Raises
    ------
    InputError
        If the file is damaged, has another number of rows, none of the columns, or values that are no numbers or
        infinite.
    """
    try:
        frame = pl.read_parquet(file, glob=False)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"{file} cannot be read as Parquet: {' '.join(str(error).split())[:120]}") from None
    if len(frame) != n_events:
        raise InputError(f"{file} has {len(frame)} rows, but the folder has {n_events} events")
    if not set(TRUTH_COLUMNS) & set(frame.columns):
        raise InputError(f"{file} has none of the columns {', '.join(TRUTH_COLUMNS)}")
    columns = {}
    for name in TRUTH_COLUMNS:
        if name not in frame.columns:
            columns[name] = np.full(n_events, np.nan)
            continue
        if not frame[name].dtype.is_numeric():
            raise InputError(f"{file}: column {name} holds {frame[name].dtype}, expected numbers")
        columns[name] = frame[name].cast(pl.Float64).fill_null(np.nan).to_numpy()
        bad = np.flatnonzero(np.isinf(columns[name]))
        if bad.size:
            raise InputError(f"{file}: row {bad[0]}, column {name} is infinite ({bad.size} bad rows)")
    return pl.DataFrame(columns)
