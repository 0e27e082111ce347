"""The files of a dataset folder, opened with their bytes, type, shape and length checked; true quantities included.

Numbers may be stored in any width, byte order and memory order. Events that cannot be used (a cell that is no deposit,
a quantity that is not finite) do not stop a folder: readers get finite numbers in their place, and
:attr:`showerstack.showers.dataset.Dataset.usable` says which events they are. ``truth.parquet`` holds true quantities
of simulated showers; it is read for training and scoring alone.
"""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from showerstack.runtime.arrays import check_kind, check_shape, open_array, open_npy
from showerstack.runtime.checksums import CHECKSUMS_FILE, Checksums
from showerstack.runtime.errors import InputError, did_you_mean
from showerstack.runtime.files import read_json
from showerstack.showers.array import KASCADE
from showerstack.showers.nuclei import GROUPS, composition_of
from showerstack.showers.schema import (
    AGE,
    ARRIVAL_FILE,
    COMPOSITION,
    LABEL_FILES,
    LEFT_OUT_FILE,
    MATRICES_FILE,
    OWN_LABELS_FILE,
    RANGES,
    SCALAR_NAMES,
    SCALARS_FILE,
    SOURCE_FILE,
    TASKS,
    TIMES_FILE,
    WEIGHT_FILE,
    TargetQuantity,
    Task,
)
from showerstack.showers.source import checked_weights
from showerstack.showers.units import time_unit

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class BadValue:
    """Why an event cannot be used: the first value found that no shower has."""

    row: int
    """In the folder."""
    file: str
    column: str
    """A quantity, or ``cell (row, column), e/gamma deposit``: raw archives count channels otherwise than folders."""
    value: float
    file_row: int | None = None
    """In the file, where that is not the folder's."""

    def __str__(self) -> str:
        row = self.row if self.file_row is None else self.file_row
        return f"{self.file}: row {row}, {self.column} holds {self.value:g}"


LATEST_S = 1e10
"""Times beyond this, in the year 2286, are no seconds since 1970."""
CHANNEL_NAMES = ("e/gamma", "muon")
"""Of a grid's deposits."""
LEFT_OUT_SCHEMA: dict[str, Any] = {"row": int, "file": str, "file_row": int, "column": str, "value": float}
"""Columns of ``left_out.csv``: one row an event."""


@dataclass(frozen=True)
class EventFiles:
    """A dataset folder with the checksums of its files, where it has them; use :meth:`open`."""

    folder: Path
    checksums: Checksums | None
    """None for folders that were written without ``checksums.json``: their damage cannot be noticed."""

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open a dataset folder."""
        if not folder.is_dir():
            raise InputError(
                f"{folder} is not a folder{did_you_mean(folder)}: expected a dataset folder with {MATRICES_FILE}"
            )
        checksums = _is_there(folder / CHECKSUMS_FILE)
        if not checksums and not _is_there(folder / MATRICES_FILE):
            inside = sorted(str(file.parent) for file in folder.glob(f"*/{MATRICES_FILE}"))
            if inside:
                more = f" (or {len(inside) - 3:,} more)" if len(inside) > 3 else ""
                some = " or ".join(inside[:3])
                raise InputError(f"{folder} is no dataset folder, but holds some: did you mean {some}{more}?")
            if any(folder.glob("*_matrices.npz")):
                raise InputError(
                    f"{folder} holds raw archives: convert them first (python cli.py convert {folder}, of "
                    f"measured runs --measured {folder}) and give the folder that is written"
                )
        return cls(folder, Checksums.open(folder, required=(MATRICES_FILE, SCALARS_FILE)) if checksums else None)

    def has(self, name: str) -> bool:
        """Return whether the folder holds a file, or should."""
        return _is_there(self.folder / name) or (self.checksums is not None and name in self.checksums.files)

    def path(self, name: str) -> Path:
        """Return the path of a file after comparing its bytes with the checksums, where there are any."""
        problem = self.checksums.problem(name) if self.checksums else None
        if problem:
            raise InputError(f"{problem}: restore it, or remove {CHECKSUMS_FILE} if the change was meant")
        return self.folder / name

    def source(self) -> dict[str, Any]:
        """Return the content of ``source.json``, empty where there is none."""
        if not self.has(SOURCE_FILE):
            return {}
        content = read_json(self.path(SOURCE_FILE))
        if not isinstance(content, dict):
            raise InputError(f"{self.folder / SOURCE_FILE} is not a table of names and values")
        return content

    def tasks(self) -> list[Task]:
        """Return the tasks whose label files are there, of composition with the mass groups of the set."""
        own = [self.own_groups()] if self.has(OWN_LABELS_FILE) else []
        return own + [task for task in TASKS.values() if task.label_file and self.has(task.label_file)]

    def own_groups(self) -> Task:
        """Return the composition task of a set whose mass groups are not the benchmark's."""
        where = f"{self.folder / SOURCE_FILE}, {GROUPS}"
        entry: Any = self.source().get(GROUPS)
        task = composition_of(entry, where)
        if not task.has_own_groups:
            raise InputError(f"{where}: {OWN_LABELS_FILE} beside it is for other groups than the benchmark's")
        if tuple(entry) != task.classes:
            raise InputError(
                f"{where}: labels count from the lightest on: expected the order {', '.join(task.classes)}"
            )
        return task

    def with_groups(self, task: Task) -> Task:
        """Return a task as the set has it: composition with its own mass groups, where it has labels of such."""
        if not self.has(OWN_LABELS_FILE) or task.name != COMPOSITION.name:
            return task
        own = self.own_groups()
        if task not in (COMPOSITION, own):
            raise InputError(
                f"{self.folder} has the mass groups {', '.join(own.classes)}, not {', '.join(task.classes)}: both must "
                "be converted with the same --groups"
            )
        return own

    def task(self) -> Task:
        """Return the task whose label file is there."""
        tasks = self.tasks()
        if len(tasks) != 1:
            names = ", ".join(LABEL_FILES)
            what = "no label file" if not tasks else "label files of several tasks"
            raise InputError(f"{self.folder} holds {what} ({names}): say which task is meant")
        return tasks[0]

    def matrices(self, shape: tuple[int, ...]) -> np.ndarray:
        """Map the grids; their bytes are compared when all of them are read, see :meth:`path`."""
        grids = open_grids(self.folder / MATRICES_FILE)
        check_shape(self.folder / MATRICES_FILE, grids, shape)
        return grids

    def scalars(self, n_events: int, *, with_age: bool) -> tuple[np.ndarray, np.ndarray | None]:
        """Return E, Ze, Az, Ne, Nmu (N, 5), and the ages (N,) float32 where they are a sixth column and wanted."""
        stored = open_npy(self.path(SCALARS_FILE))
        columns = (*SCALAR_NAMES, AGE.name) if stored.ndim == 2 and stored.shape[1] == 6 else SCALAR_NAMES
        kind = np.float16 if stored.dtype == np.float16 else np.float32
        stored = self.array(SCALARS_FILE, (len(columns),), kind, n_events)
        if len(columns) == len(SCALAR_NAMES):
            return stored, None
        values = np.asarray(stored)
        age = values[:, -1].astype(np.float32) if with_age else None
        return np.ascontiguousarray(values[:, : len(SCALAR_NAMES)]), age

    def array(self, name: str, shape: tuple[int, ...], dtype: Any, n_events: int) -> np.ndarray:
        """Map one value (or row of values) an event."""
        path = self.path(name)
        array = open_array(path, shape, dtype)
        if len(array) != n_events:
            raise InputError(f"{path} has {len(array)} rows, but {MATRICES_FILE} beside it has {n_events}")
        return array

    def optional(self, name: str, dtype: Any, n_events: int) -> np.ndarray | None:
        """Map one value an event, if the folder has the file."""
        return self.array(name, (), dtype, n_events) if self.has(name) else None

    def arrival_times(self, shape: tuple[int, ...], n_events: int) -> np.ndarray | None:
        """Map the arrival times at the stations (N, rows, columns), ns, in their own type; None without."""
        if not self.has(ARRIVAL_FILE):
            return None
        path = self.folder / ARRIVAL_FILE
        times = open_npy(path)
        check_kind(path, times, np.float32)
        check_shape(path, times, shape)
        if len(times) != n_events:
            raise InputError(f"{path} has {len(times)} rows, but {MATRICES_FILE} beside it has {n_events}")
        return times

    def times(self) -> np.ndarray:
        """Return the (N,) float64 event times, s since 1970, which the folder has in seconds or as datetime64."""
        path = self.path(TIMES_FILE)
        stored = open_npy(path)
        if stored.dtype.kind == "M":
            micros = stored.astype("datetime64[us]")
            stored = np.where(np.isnat(micros), np.nan, micros.astype(np.int64) / 1e6)
        if stored.dtype.kind != "f" or stored.dtype.itemsize < 8:
            raise InputError(f"{path} has type {stored.dtype}, expected float64 seconds since 1970, or datetime64")
        n_events = len(open_npy(self.path(SCALARS_FILE))) if self.has(SCALARS_FILE) else stored.size
        if stored.shape != (n_events,):
            raise InputError(f"{path} has shape {stored.shape}, but {SCALARS_FILE} beside it has {n_events} rows")
        seconds = np.asarray(stored, dtype=np.float64)
        known = seconds[np.isfinite(seconds)]
        if known.size and np.median(known) > LATEST_S:
            looks = time_unit(known, KASCADE)
            raise InputError(
                f"{path}: half of the times are above {LATEST_S:.0e}, which looks like {looks}: expected seconds since "
                "1970"
            )
        return seconds

    def left_out(self) -> list[BadValue]:
        """Return what ``left_out.csv`` says of events that cannot be used; nothing where there is no such file."""
        if not self.has(LEFT_OUT_FILE):
            return []
        import polars as pl

        path = self.path(LEFT_OUT_FILE)
        try:
            table = pl.read_csv(path, schema=pl.Schema(LEFT_OUT_SCHEMA), glob=False)
        except (pl.exceptions.PolarsError, OSError) as error:
            wanted = ", ".join(LEFT_OUT_SCHEMA)
            raise InputError(f"{path} is no table of {wanted}: {str(error).splitlines()[0]}") from None
        return [BadValue(**row) for row in table.iter_rows(named=True)]

    def labels(self, task: Task, n_events: int) -> np.ndarray:
        """Map the labels of a task, class numbers or true values, and check their range."""
        if task.label_file is None:
            raise InputError(f"task {task.name!r} has no label file")
        if not self.has(task.label_file):
            remedy = (
                "the public sets hold no true values; simulate a set, or convert one from raw archives"
                if task.target
                else f"it is not labelled for the task {task.name}, give a labelled simulated set"
            )
            raise InputError(f"{self.folder} has no {task.label_file}: {remedy}")
        if task.target:
            labels = self.array(task.label_file, (), np.float32, n_events)
            check_true_values(labels, task.target, self.folder / task.label_file)
            return labels
        labels = self.array(task.label_file, (), np.int64, n_events)
        unknown = ~np.isin(labels, task.labels)
        if unknown.any():
            unknown[[bad.row for bad in self.left_out() if bad.row < n_events]] = False
        bad = np.flatnonzero(unknown)
        if bad.size:
            raise InputError(
                f"{self.folder / task.label_file}: row {bad[0]} holds label {labels[bad[0]]}, "
                f"expected {task.label_words} ({bad.size} bad rows)"
            )
        return labels.astype(task.label_type)

    def weights(self, task: Task, n_events: int) -> np.ndarray | None:
        """Return the importance weights (N,) float64 of the events, of mean 1, None where the folder has none."""
        if not self.has(WEIGHT_FILE):
            return None
        weights = self.array(WEIGHT_FILE, (), np.float32, n_events).astype(np.float64)
        return checked_weights(weights, task, self.folder / WEIGHT_FILE)


class StoredGrids:
    """The grids of a folder, mapped: what is read has the machine's own float16 or float32 and no impossible cell.

    Cells that are no deposits (NaN, infinite, negative) are read as 0, so that no event can harm another one; which
    events have such cells, :func:`bad_cells` of :meth:`as_stored` tells.
    """

    def __init__(self, mapped: np.ndarray, path: Path) -> None:
        self._mapped, self.filename = mapped, str(path.resolve())
        self.shape, self.ndim = mapped.shape, mapped.ndim
        self.dtype = np.dtype(np.float16 if mapped.dtype == np.float16 else np.float32)

    def __len__(self) -> int:
        return len(self._mapped)

    def as_stored(self, index: Any) -> np.ndarray:
        """Return a part in the machine's own type, impossible cells included."""
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(self._mapped[index]).astype(self.dtype, copy=False)

    def __getitem__(self, index: Any) -> np.ndarray:
        part = self.as_stored(index)
        bits, infinity = _bits(part)
        if not bits.size or bits.max() < infinity:
            return part
        with np.errstate(invalid="ignore"):
            return np.where(np.isfinite(part) & (part >= 0), part, part.dtype.type(0))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self[:].astype(dtype or self.dtype, copy=bool(copy))


def release_memory(grids: np.ndarray) -> None:
    """Take the part of mapped grids that was read out of this process's memory; the system may keep it in its cache."""
    file = getattr(getattr(grids, "_mapped", grids), "_mmap", None)
    if file is not None and hasattr(mmap, "MADV_DONTNEED"):
        file.madvise(mmap.MADV_DONTNEED)


def open_grids(path: Path) -> np.ndarray:
    """Map the grids of any number type and memory order; see :class:`StoredGrids`."""
    mapped = open_npy(path)
    check_kind(path, mapped, np.float32)
    return cast("np.ndarray", StoredGrids(mapped, path))


def check_true_values(values: np.ndarray, target: TargetQuantity, path: Path) -> None:
    """Refuse true values (N,) that are not finite or outside the target's limits; names the first row."""
    low, high = target.limits
    bad = np.flatnonzero(~((values >= low) & (values <= high)))
    if bad.size:
        raise InputError(
            f"{path}: row {bad[0]} holds {values[bad[0]]:g}, expected {target.unit} from {low:g} to {high:g} "
            f"({bad.size} bad rows)"
        )


def zero_if_not_finite(values: np.ndarray) -> np.ndarray:
    """Return values with 0 in place of those that are not finite: what learners are given of events of no use."""
    good = np.isfinite(values)
    return values if good.all() else np.where(good, values, values.dtype.type(0))


def bad_quantities(file: str, values: np.ndarray, columns: tuple[str, ...], first_row: int = 0) -> list[BadValue]:
    """Return the events whose reconstructed quantities (n, C) no shower can have, the first column of each."""
    if not columns:
        return []
    low, high = np.array([RANGES[name] for name in columns]).T
    good = (values >= low) & (values <= high)
    rows = np.flatnonzero(~good.all(axis=1))
    first_bad = ((int(row), int(np.argmin(good[row]))) for row in rows)
    return [BadValue(first_row + row, file, f"column {columns[k]}", float(values[row, k])) for row, k in first_bad]


MAX_RADIANS = math.pi / 2
"""Zeniths below this in nearly all of :data:`MIN_EVENTS_FOR_UNITS` events or more are no degrees."""
MIN_EVENTS_FOR_UNITS = 50


def units_remarks(where: str, values: np.ndarray, columns: tuple[str, ...]) -> list[str]:
    """Return remarks on reconstructed quantities (N, C) that look like other units than ours."""
    remarks = []
    for name, column in zip(columns, values.astype(np.float64).T, strict=True):
        column = column[np.isfinite(column)]
        if len(column) < MIN_EVENTS_FOR_UNITS:
            continue
        middle, (low, high) = float(np.median(column)), RANGES.get(name, (-np.inf, np.inf))
        if name == "Ze" and middle > 0 and np.quantile(column, 0.99) < MAX_RADIANS:
            looks = "radians: expected degrees"
        elif name == "Az" and np.quantile(np.abs(column), 0.99) <= 2 * math.pi and np.ptp(column) > 1:
            looks = "radians: expected degrees, from +x towards +y"
        elif name in ("E", "Ne", "Nmu") and middle > high:
            looks = "a linear quantity: expected its decimal logarithm"
        elif name == "E" and 0 < middle < low:
            looks = "lg(E/GeV) or lg(E/TeV): expected lg(E/eV)"
        else:
            continue
        remarks.append(f"{where}: half of {name} are below {middle:.3g}, which looks like {looks}")
    return remarks


def bad_cells(grids: np.ndarray, file: str, first_row: int = 0) -> list[BadValue]:
    """Return the events of (n, rows, columns, 2) grids with NaN, infinite or negative cells, the first cell of each."""
    bits, infinity = _bits(grids)
    if not bits.size or bits.max() < infinity:
        return []
    with np.errstate(invalid="ignore"):
        bad = ~np.isfinite(grids) | (grids < 0)
    bad_values = []
    for row in np.flatnonzero(bad.any(axis=(1, 2, 3))).tolist():
        y, x, channel = (int(k) for k in np.argwhere(bad[row])[0])
        value = float(grids[row, y, x, channel])
        bad_values.append(BadValue(first_row + row, file, f"cell ({y}, {x}), {CHANNEL_NAMES[channel]} deposit", value))
    return bad_values


def _bits(grids: np.ndarray) -> tuple[np.ndarray, int]:
    """Return grids as unsigned integers, and the pattern of infinity, below which all finite positive values are.

    One integer comparison finds NaN, infinities and negative values (and a harmless negative zero).
    """
    infinity, kind = (0x7C00, np.uint16) if grids.dtype == np.float16 else (0x7F800000, np.uint32)
    return np.ascontiguousarray(grids).view(kind), infinity


def _is_there(path: Path) -> bool:
    return path.exists() or path.is_symlink()


TRUTH_COLUMNS = ("lg_energy", "core_x_m", "core_y_m", "lg_ne", "lg_nmu", "xmax", "age", "mass")
"""Columns that are read: lg(E/eV), m, m, lg, lg, g/cm2, 1, mass number (0: photon)."""


def read_truth(file: Path, n_events: int) -> pl.DataFrame:
    """Return the true quantities.

    Returns
    -------
    polars.DataFrame
        :data:`TRUTH_COLUMNS` as float64, NaN where a quantity is not known or the file has no such column.
    """
    import polars as pl  # a tenth of a second, which scores do not need

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
