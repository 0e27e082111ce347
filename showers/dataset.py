"""Dataset folders: the benchmark's ``.npy`` files, memory-mapped, checked when opened and written atomically.

Nothing but ``matrices.npy`` and ``features.npy`` (and the label file, where labels are asked for) is required.
Beside them a folder may hold ``source.json``, ``groups.npy``, ``age.npy``, ``part.npy`` and ``truth.parquet``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl

from showers import cuts
from showers.files import atomic_folder, hash_file, open_npy, read_json, write_json
from showers.progress import Progress
from showers.schema import (
    AGE_FILE,
    GRID_SHAPE,
    GROUPS_FILE,
    MATRICES_FILE,
    PART_FILE,
    SCALAR_NAMES,
    SCALARS_FILE,
    SOURCE_FILE,
    TASKS,
    TRUTH_FILE,
    InputError,
    Task,
)

SCAN_EVENTS = 16_384
"""Events read at once where a whole file is scanned (16 MB of grids)."""


@dataclass(frozen=True)
class Chunk:
    """Consecutive events of a dataset."""

    start: int
    matrices: np.ndarray
    """(n, 16, 16, 2) float16, MeV per station."""
    scalars: np.ndarray
    """(n, 5) float32: E, Ze, Az, Ne, Nmu."""

    def __len__(self) -> int:
        return len(self.matrices)


@dataclass(frozen=True)
class Dataset:
    """An opened dataset folder. Arrays are read-only memory maps; use :meth:`open`."""

    path: Path
    matrices: np.ndarray
    """(N, 16, 16, 2) float16, MeV per station; channel 0 e/gamma, 1 muon."""
    scalars: np.ndarray
    """(N, 5) float16 or float32: E, Ze, Az, Ne, Nmu as in :data:`showers.schema.SCALARS`."""
    task: Task | None = None
    labels: np.ndarray | None = None
    """(N,) int8 class numbers, or None where they were not asked for."""
    age: np.ndarray | None = None
    """(N,) float32, present only where ``source.json`` says that the protocol has it."""
    groups: np.ndarray | None = None
    """(N,) int64, equal value = same simulated shower."""
    part: np.ndarray | None = None
    """(N,) int8: 0 train, 1 validation (matched protocol)."""
    source: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.matrices)

    @classmethod
    def open(cls, path: str | Path, task: Task | None = None, *, labels: bool = True) -> Self:
        """Open a dataset folder and check everything that is cheap to check.

        Shapes, types, lengths, finite scalars and the range of labels are checked here; the cells of the
        grids where they are read (feature extraction) or by :meth:`validate`.

        Parameters
        ----------
        path
            The folder.
        task
            The task whose labels to read. If None and ``labels`` is true, found from the label files present.
        labels
            With False, labels are neither needed nor looked at.

        Raises
        ------
        InputError
            For a missing folder or file, a wrong shape or type, lengths that disagree, labels out of range,
            or scalars that are not finite; names the file and the first offending row.
        """
        path = Path(path)
        if not path.is_dir():
            raise InputError(f"{path} is not a folder: expected a dataset folder with {MATRICES_FILE}")
        matrices = _open_array(path / MATRICES_FILE, GRID_SHAPE, (np.float16,))
        scalars = _open_array(path / SCALARS_FILE, (len(SCALAR_NAMES),), (np.float16, np.float32))
        source = read_json(path / SOURCE_FILE) if (path / SOURCE_FILE).exists() else {}
        _check_length(path / SCALARS_FILE, scalars, len(matrices))
        _check_finite(path / SCALARS_FILE, scalars, SCALAR_NAMES)
        read_labels = None
        if labels:
            task = task or _task_of(path)
            read_labels = _open_labels(path, task, len(matrices))
        age = None
        if source.get("age", False):
            age = _open_array(path / AGE_FILE, (), (np.float32,))
            _check_length(path / AGE_FILE, age, len(matrices))
            _check_finite(path / AGE_FILE, age[:, None], ("Age",))
        return cls(
            path=path,
            matrices=matrices,
            scalars=scalars,
            task=task,
            labels=read_labels,
            age=age,
            groups=_open_optional(path / GROUPS_FILE, np.int64, len(matrices)),
            part=_open_optional(path / PART_FILE, np.int8, len(matrices)),
            source=source,
        )

    @property
    def protocol(self) -> str:
        """``v2`` or ``matched``, from ``source.json``; v2 where it does not say."""
        return str(self.source.get("protocol", "v2"))

    @property
    def evaluation_cuts(self) -> cuts.CutSet:
        """The cuts under which predictions are judged, from ``source.json``; Ze < 30 and Ne > 4.8 otherwise."""
        return cuts.cut_set_named(str(self.source.get("evaluation_cuts", cuts.TEST.name)))

    def scalar_frame(self) -> pl.DataFrame:
        """Return all reconstructed scalars as a float32 table (20 bytes an event)."""
        return cuts.scalar_frame(self.scalars, self.age)

    def chunks(self, size: int, start: int = 0, stop: int | None = None) -> Iterator[Chunk]:
        """Iterate over consecutive events, ``size`` at a time; borders are multiples of ``size`` in absolute rows.

        Memory stays bounded by ``size``: grids are views of the memory map, scalars small copies.
        """
        stop = len(self) if stop is None else min(stop, len(self))
        while start < stop:
            end = min((start // size + 1) * size, stop)
            yield Chunk(start, self.matrices[start:end], np.asarray(self.scalars[start:end], dtype=np.float32))
            start = end

    def validate(self, progress: Progress | None = None) -> None:
        """Scan every cell.

        Raises
        ------
        InputError
            For NaN, infinite or negative cells; names the first event and cell.
        """
        for chunk in self.chunks(SCAN_EVENTS):
            check_cells(chunk.matrices, self.path / MATRICES_FILE, chunk.start)
            if progress:
                progress(chunk.start + len(chunk), len(self))

    def fingerprint(self) -> str:
        """Return a SHA-256 of everything features and learners may read, labels excluded.

        Reads the whole folder once (about a second per gigabyte).
        """
        digest = hashlib.sha256()
        names = [MATRICES_FILE, SCALARS_FILE]
        names += [AGE_FILE] if self.age is not None else []
        names += [GROUPS_FILE] if self.groups is not None else []
        names += [PART_FILE] if self.part is not None else []
        for name in names:
            digest.update(name.encode())
            hash_file(self.path / name, digest)
        digest.update(f"{self.protocol} {self.evaluation_cuts.name}".encode())
        return digest.hexdigest()


def check_cells(matrices: np.ndarray, file: Path | str, first_event: int = 0) -> None:
    """Refuse grids with NaN, infinite or negative cells.

    For non-negative finite float16 the bit pattern, read as an unsigned integer, is below that of infinity:
    one integer comparison finds NaN, infinities and negative values (and a harmless negative zero, let through).
    """
    bits = np.ascontiguousarray(matrices).view(np.uint16)
    if not bits.size or bits.max() < 0x7C00:
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


@dataclass
class DatasetWriter:
    """Fills the memory-mapped files of a new dataset; see :func:`write_dataset`."""

    folder: Path
    matrices: np.memmap
    scalars: np.memmap
    labels: np.memmap | None
    extras: dict[str, np.memmap]
    truth: list[pl.DataFrame] = field(default_factory=list)

    def put(
        self,
        start: int,
        matrices: np.ndarray,
        scalars: np.ndarray,
        labels: np.ndarray | None = None,
        *,
        truth: pl.DataFrame | None = None,
        **extras: Any,
    ) -> None:
        """Store consecutive events from row ``start`` on; ``truth`` tables must come in row order."""
        stop = start + len(matrices)
        self.matrices[start:stop] = matrices
        self.scalars[start:stop] = scalars
        if self.labels is not None:
            self.labels[start:stop] = labels
        for name, values in extras.items():
            self.extras[name][start:stop] = values
        if truth is not None:
            self.truth.append(truth)


@contextmanager
def write_dataset(
    path: str | Path,
    n_events: int,
    task: Task | None,
    *,
    source: Mapping[str, Any],
    extras: Mapping[str, Any] | None = None,
    scalar_type: Any = np.float16,
    overwrite: bool = False,
) -> Iterator[DatasetWriter]:
    """Write a dataset folder; it appears under its name only when complete.

    Parameters
    ----------
    path
        The folder to make.
    n_events
        Number of events; every row must be filled.
    task
        Whose label file to write; None for a folder without labels.
    source
        Content of ``source.json``.
    extras
        Other per-event files to make: file stem (``groups``, ``age``, ``part``) to NumPy type.
    scalar_type
        Type of ``features.npy``: float16 as published, float32 for the matched protocol.
    overwrite
        Replace an existing folder.
    """

    def create(name: str, shape: tuple[int, ...], dtype: Any) -> np.memmap:
        return np.lib.format.open_memmap(folder / name, mode="w+", dtype=dtype, shape=(n_events, *shape))

    with atomic_folder(Path(path), overwrite=overwrite) as folder:
        writer = DatasetWriter(
            folder=folder,
            matrices=create(MATRICES_FILE, GRID_SHAPE, np.float16),
            scalars=create(SCALARS_FILE, (len(SCALAR_NAMES),), scalar_type),
            labels=create(task.label_file, (), np.int8) if task and task.label_file else None,
            extras={name: create(f"{name}.npy", (), dtype) for name, dtype in (extras or {}).items()},
        )
        yield writer
        for array in (writer.matrices, writer.scalars, writer.labels, *writer.extras.values()):
            if array is not None:
                array.flush()
        if writer.truth:
            pl.concat(writer.truth).write_parquet(folder / TRUTH_FILE)
        write_json(folder / SOURCE_FILE, dict(source))


def _task_of(path: Path) -> Task:
    found = [task for task in TASKS.values() if task.label_file and (path / task.label_file).exists()]
    if len(found) != 1:
        names = ", ".join(str(task.label_file) for task in TASKS.values())
        what = "no label file" if not found else "label files of several tasks"
        raise InputError(f"{path} holds {what} ({names}): say which task is meant")
    return found[0]


def _open_array(path: Path, shape: tuple[int, ...], dtypes: tuple[Any, ...]) -> np.ndarray:
    array = open_npy(path)
    expected = " or ".join(np.dtype(dtype).name for dtype in dtypes)
    if array.dtype not in [np.dtype(dtype) for dtype in dtypes]:
        raise InputError(f"{path} has type {array.dtype}, expected {expected}")
    if array.shape[1:] != shape or array.ndim != len(shape) + 1:
        wanted = ", ".join(["N", *map(str, shape)]) + ("," if not shape else "")
        raise InputError(f"{path} has shape {array.shape}, expected ({wanted})")
    return array


def _open_optional(path: Path, dtype: Any, n_events: int) -> np.ndarray | None:
    if not path.exists():
        return None
    array = _open_array(path, (), (dtype,))
    _check_length(path, array, n_events)
    return array


def _open_labels(path: Path, task: Task, n_events: int) -> np.ndarray:
    if task.label_file is None:
        raise InputError(f"task {task.name!r} has no label file")
    file = path / task.label_file
    labels = _open_array(file, (), (np.int8,))
    _check_length(file, labels, n_events)
    bad = np.flatnonzero((labels < 0) | (labels >= task.n_classes))
    if bad.size:
        raise InputError(
            f"{file}: row {bad[0]} holds label {labels[bad[0]]}, expected 0..{task.n_classes - 1} ({bad.size} bad rows)"
        )
    return labels


def _check_length(path: Path, array: np.ndarray, n_events: int) -> None:
    if len(array) != n_events:
        raise InputError(f"{path} has {len(array)} rows, but {MATRICES_FILE} beside it has {n_events}")


def _check_finite(path: Path, array: np.ndarray, columns: tuple[str, ...]) -> None:
    bad = np.argwhere(~np.isfinite(array))
    if bad.size:
        row, column = (int(k) for k in bad[0])
        raise InputError(f"{path}: row {row}, column {columns[column]} holds {array[row, column]}, expected a number")
