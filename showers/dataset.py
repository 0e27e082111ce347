"""Dataset folders: the benchmark's ``.npy`` files, memory-mapped and checked when opened.

Nothing but ``matrices.npy`` and ``features.npy`` (and the label file, where labels are asked for) is required. Beside
them a folder may hold ``source.json``, ``groups.npy``, ``age.npy``, ``part.npy``, ``order.npy``, ``truth.parquet``,
``weight.npy``, ``left_out.csv`` (rows that cannot be used) and ``checksums.json``, by which every file is compared
before it is used: all but the grids when the folder is opened, the grids when they are all read for the fingerprint.

:func:`ordering_of` tells whether rows follow the classes, as those of the public v2 test sets do, which keep the order
of the raw files. A row's number then gives the class away. Nothing in this project uses a row's number; whoever shows
the files to other programs should know.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from showerstack.runtime.checksums import CHECKSUMS_FILE
from showerstack.runtime.context import Progress
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import FileState, file_state, hash_file
from showerstack.showers import protocols
from showerstack.showers.array import KASCADE, DetectorArray, array_of, working_array
from showerstack.showers.event_files import (
    BadValue,
    EventFiles,
    bad_cells,
    bad_quantities,
    read_truth,
    release_memory,
    units_remarks,
    zero_if_not_finite,
)
from showerstack.showers.nuclei import groups_entry
from showerstack.showers.remarks import event_remarks
from showerstack.showers.schema import (
    ABSENT,
    AGE,
    AGE_FILE,
    ARRIVAL_FILE,
    GENERATORS,
    GROUPS_FILE,
    LEFT_OUT_FILE,
    MATRICES_FILE,
    PART_FILE,
    SCALAR_NAMES,
    SCALARS_FILE,
    SOURCE_FILE,
    TIMES_FILE,
    TRUTH_FILE,
    WEIGHT_FILE,
    Task,
)
from showerstack.showers.source import is_simulated
from showerstack.showers.units import LOOKED_AT, time_remarks

if TYPE_CHECKING:
    import polars as pl

SCAN_EVENTS = 16_384
"""Events read at once where a whole file is scanned (16 MB of grids)."""


@dataclass(frozen=True)
class Chunk:
    """Consecutive events of a dataset."""

    start: int
    matrices: np.ndarray
    """(n, rows, columns, 2) float16 or float32, MeV per station."""
    scalars: np.ndarray
    """(n, 5) float32: E, Ze, Az, Ne, Nmu; 0 where a value is not finite."""
    times_ns: np.ndarray | None = None
    """(n, rows, columns) float16 or float32, ns: arrival times, not finite where a station has none; None without."""

    def __len__(self) -> int:
        return len(self.matrices)


@dataclass(frozen=True)
class Dataset:
    """An opened dataset folder. Arrays are read-only memory maps; use :meth:`open`."""

    path: Path
    matrices: np.ndarray
    """(N, rows, columns, 2) float16 or float32, MeV per station; channel 0 e/gamma, 1 muon. KASCADE: (N, 16, 16, 2)."""
    scalars: np.ndarray
    """(N, 5) float16 or float32: E, Ze, Az, Ne, Nmu as in :data:`showerstack.showers.schema.SCALARS`."""
    task: Task | None = None
    labels: np.ndarray | None = None
    """(N,) int8 class numbers (float32 true values of a target), or None where they were not asked for."""
    weights: np.ndarray | None = None
    """(N,) float64 importance weights of mean 1, or None: read with the labels, as they tell classes apart."""
    age: np.ndarray | None = None
    """(N,) float32: a sixth column of the scalars, or ``age.npy`` where ``source.json`` says that it counts."""
    groups: np.ndarray | None = None
    """(N,) int64, equal value = same simulated shower."""
    part: np.ndarray | None = None
    """(N,) int8: 0 train, 1 validation (matched protocol)."""
    times_ns: np.ndarray | None = None
    """(N, rows, columns) float16 or float32, ns: arrival times at the stations, if the folder has them."""
    source: Mapping[str, Any] = field(default_factory=dict)
    files: EventFiles = field(kw_only=True)
    array: DetectorArray = KASCADE
    """From ``source.json``; KASCADE where it does not say."""

    def __len__(self) -> int:
        return len(self.matrices)

    @classmethod
    def open(cls, path: str | Path, task: Task | None = None, *, labels: bool = True) -> Self:
        """Open a dataset folder and check everything that is cheap to check.

        Shapes, types, lengths and the range of labels are checked here; which events cannot be used says
        :attr:`usable`.

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
            For a missing folder or file, a wrong shape or type, lengths that disagree, or labels out of range; names
            the file and the first offending row.
        """
        files = EventFiles.open(Path(path))
        source = files.source()
        array = array_of(source)
        matrices = files.matrices(array.grid_shape)
        n_events = len(matrices)
        scalars, age = files.scalars(n_events, with_age=bool(source.get("age", True)))
        read_labels = weights = None
        if labels:
            task = task or files.task()
            read_labels, weights = files.labels(task, n_events), files.weights(task, n_events)
        if age is None and source.get("age", False):
            age = files.array(AGE_FILE, (), np.float32, n_events)
        return cls(
            path=files.folder,
            matrices=matrices,
            scalars=scalars,
            task=task,
            labels=read_labels,
            weights=weights,
            age=age,
            groups=files.optional(GROUPS_FILE, np.int64, n_events),
            part=files.optional(PART_FILE, np.int8, n_events),
            times_ns=files.arrival_times(array.grid_shape[:2], n_events),
            source=source,
            files=files,
            array=array,
        )

    @cached_property
    def working(self) -> DetectorArray:
        """The array without stations that were dead: to the lateral fits these are missing, not empty.

        Raises
        ------
        InputError
            If ``source.json`` names cells that do not exist.
        """
        try:
            return working_array(self.array, self.source)
        except InputError as error:
            raise InputError(f"{self.path}: {error}") from None

    @cached_property
    def quantities(self) -> tuple[str, ...]:
        """Names of the reconstructed quantities that the set has; what ``source.json`` calls absent is NaN."""
        absent = self.source.get(ABSENT, ())
        known = tuple(name for name in SCALAR_NAMES if name not in absent)
        return known if self.age is None else (*known, AGE.name)

    @property
    def protocol(self) -> str:
        """``v2``, ``matched`` or ``2026``, from ``source.json``; v2 where it does not say."""
        return str(self.source.get("protocol", "v2"))

    @property
    def evaluation_cuts(self) -> protocols.CutSet:
        """The cuts under which predictions are scored, from ``source.json``.

        Otherwise KASCADE's are Ze < 30 and Ne > 4.8, and another array has none.
        """
        otherwise = protocols.TEST if self.array.is_of_kascade else protocols.NONE
        return protocols.cut_set_named(str(self.source.get("evaluation_cuts", otherwise.name)))

    def refuse_weighted(self, what: str) -> None:
        """Refuse showers with importance weights where ``what`` counts all alike.

        Raises
        ------
        InputError
            If the folder has weights.
        """
        if self.files.has(WEIGHT_FILE):
            raise InputError(
                f"{self.path / WEIGHT_FILE}: {what} counts all showers alike: simulate them without --rare, or convert "
                "them without --slope"
            )

    def scalar_frame(self) -> pl.DataFrame:
        """Return all reconstructed scalars as a float32 table (20 bytes an event); what is absent is NaN."""
        return protocols.scalar_frame(self.scalars, self.age)

    def chunks(self, size: int, start: int = 0, stop: int | None = None) -> Iterator[Chunk]:
        """Iterate over consecutive events, ``size`` at a time; borders are multiples of ``size`` in absolute rows.

        Memory stays bounded by what is asked for: grids are views of the memory map, released at the end, scalars small
        copies.
        """
        stop = len(self) if stop is None else min(stop, len(self))
        try:
            while start < stop:
                end = min((start // size + 1) * size, stop)
                scalars = zero_if_not_finite(np.asarray(self.scalars[start:end], dtype=np.float32))
                times = None if self.times_ns is None else self.times_ns[start:end]
                yield Chunk(start, self.matrices[start:end], scalars, times)
                start = end
        finally:
            release_memory(self.matrices)
            if self.times_ns is not None:
                release_memory(self.times_ns)

    def validate(self, progress: Progress | None = None) -> list[BadValue]:
        """Scan every quantity and every cell.

        Returns
        -------
        list of BadValue
            Why events cannot be used, one entry an event and file, whatever ``left_out.csv`` says.
        """
        columns = [np.asarray(self.scalars), *([] if self.age is None else [np.asarray(self.age)[:, None]])]
        bad_values = []
        for values, names in zip(columns, (SCALAR_NAMES, (AGE.name,)), strict=False):
            known = [k for k, name in enumerate(names) if name in self.quantities]
            bad_values += bad_quantities(SCALARS_FILE, values[:, known], tuple(names[k] for k in known))
        if self.files.has(TIMES_FILE):
            seconds = self.files.times()
            is_repeated = np.isfinite(seconds)
            is_repeated[np.unique(np.column_stack([seconds, columns[0]]), axis=0, return_index=True)[1]] = False
            rows = np.flatnonzero(is_repeated).tolist()
            bad_values += [BadValue(row, TIMES_FILE, "event there before", float(seconds[row])) for row in rows]
        stored: Any = self.matrices
        for start in range(0, len(self), SCAN_EVENTS):
            bad_values += bad_cells(stored.as_stored(slice(start, start + SCAN_EVENTS)), MATRICES_FILE, start)
            release_memory(stored)
            if progress:
                progress(min(start + SCAN_EVENTS, len(self)), len(self))
        return bad_values

    @cached_property
    def unusable(self) -> tuple[BadValue, ...]:
        """Why events cannot be used, at least one entry for each such event.

        Of sets that were made here ``left_out.csv`` says it; the cells of others are scanned (a second a gigabyte).
        """
        listed = [bad for bad in self.files.left_out() if bad.row < len(self)]
        made_here = self.files.checksums is not None and str(self.source.get("generator", "")).startswith(GENERATORS)
        return (*listed, *([] if made_here else self.validate()))

    @cached_property
    def usable(self) -> np.ndarray:
        """(N,) bool: events whose quantities and cells are those of a shower.

        The others are not trained on, and get the training prior where they are predicted.
        """
        usable = np.ones(len(self), dtype=bool)
        usable[[bad.row for bad in self.unusable]] = False
        return usable

    def describe_unusable(self) -> str | None:
        """Return how many events cannot be used and why, None where all can."""
        if not self.unusable:
            return None
        kinds = Counter("cells" if bad.column.startswith("cell") else bad.column for bad in self.unusable)
        why = ", ".join(f"{count} {name}" for name, count in kinds.most_common())
        where = f", listed in {self.path / LEFT_OUT_FILE}" if self.files.has(LEFT_OUT_FILE) else ""
        rows = np.count_nonzero(~self.usable)
        return f"{rows:,} of {len(self):,} rows of {self.path.name} cannot be used ({why}{where})"

    def fingerprint(self, progress: Progress | None = None) -> str:
        """Return a SHA-256 of everything features and learners may read, labels excluded; ``progress`` counts files.

        Reads the whole folder (about a second per gigabyte), within a process only once where it has checksums.

        Raises
        ------
        InputError
            If a file is not the one that was written.
        """
        names = [MATRICES_FILE, SCALARS_FILE]
        names += [AGE_FILE] if self.age is not None and self.files.has(AGE_FILE) else []
        names += [GROUPS_FILE] if self.groups is not None else []
        names += [PART_FILE] if self.part is not None else []
        names += [ARRIVAL_FILE] if self.times_ns is not None else []
        names += [LEFT_OUT_FILE] if self.files.has(LEFT_OUT_FILE) else []
        content = []
        for k, name in enumerate(names):
            if progress:
                progress(k, len(names), f"{name}, {(self.path / name).stat().st_size / 1e6:,.2f} MB")
            content.append(f"{name} {self._hash(name)}")
        content += [self.protocol, self.evaluation_cuts.name, *self.source.get(ABSENT, ())]
        content += [self.working.digest] if self.working != KASCADE else []
        return hashlib.sha256("\n".join(content).encode()).hexdigest()

    def labels_fingerprint(self) -> str:
        """Return a SHA-256 of the labels that were opened, and of the weights beside them.

        Raises
        ------
        InputError
            If the folder was opened without labels.
        """
        self._refuse_without_labels()
        assert self.task is not None
        weights = f" {self._hash(WEIGHT_FILE)}" if self.weights is not None else ""
        groups = f" {json.dumps(groups_entry(self.task))}" if self.task.has_own_groups else ""
        return f"{self.task.name} {self._hash(str(self.task.label_file))}{groups}{weights}"

    @property
    def has_truth(self) -> bool:
        """Whether the folder holds true quantities; what they are is not looked at."""
        return self.files.has(TRUTH_FILE)

    def truth(self) -> pl.DataFrame:
        """Return the true quantities of labelled events; see :func:`showerstack.showers.event_files.read_truth`.

        Raises
        ------
        InputError
            If the folder was opened without labels, or its ``truth.parquet`` is missing or unusable.
        """
        self._refuse_without_labels()
        if not self.has_truth:
            raise InputError(f"{self.path} has no {TRUTH_FILE}: nothing is known of what really happened")
        return read_truth(self.files.path(TRUTH_FILE), len(self))

    def truth_fingerprint(self) -> str | None:
        """Return a SHA-256 of the true quantities; None where there are none.

        Raises
        ------
        InputError
            If the folder was opened without labels.
        """
        self._refuse_without_labels()
        return self._hash(TRUTH_FILE) if self.has_truth else None

    def _refuse_without_labels(self) -> None:
        if self.labels is None or self.task is None:
            raise InputError(f"{self.path} was opened without labels")

    @property
    def remarks(self) -> tuple[str, ...]:
        """What whoever uses the folder should know about it."""
        known = [k for k, name in enumerate(SCALAR_NAMES) if name in self.quantities]
        remarks = units_remarks(self.path.name, np.asarray(self.scalars)[:, known], self.quantities[: len(known)])
        if self.array != KASCADE:
            columns = {SCALAR_NAMES[k]: self.scalars[:LOOKED_AT, k] for k in known}
            first, times = self.matrices[:LOOKED_AT], self.times_ns
            thrown = is_simulated(self.source) or "corsika" in self.source
            remarks += event_remarks(self.path.name, self.array, first, columns, times, narrow_sky=thrown)
        if self.files.has(TIMES_FILE):
            remarks += time_remarks(self.path.name, self.files.times(), self.array)
        if self.files.checksums is None:
            remarks.append(
                f"{self.path.name} has no {CHECKSUMS_FILE}: damage to its files is noticed only where it makes no sense"
            )
        return tuple(remarks)

    def _hash(self, name: str) -> str:
        path = self.files.path(name)
        return self.files.checksums.files[name][1] if self.files.checksums else hash_file(path)


ORDERED_SIGMAS = 6.0
"""Standard deviations from chance above which rows count as ordered: once in a thousand million shuffled sets."""
MIN_EVENTS = 50


@dataclass(frozen=True)
class Ordering:
    """How far the order of rows is from chance."""

    deviation: float
    """Standard deviations; positive where neighbours are more alike than chance has it."""
    words: str

    @property
    def is_ordered(self) -> bool:
        """Whether rows follow the classes, or what tells of them."""
        return self.deviation > ORDERED_SIGMAS

    def remark(self, name: str) -> str | None:
        """Return one line about the dataset called ``name``, None where there is nothing to say."""
        if not self.is_ordered:
            return None
        return (
            f"the rows of {name} are ordered by class or energy ({self.words}): a row's number must not reach any model"
        )


def ordering_of(dataset: Dataset) -> Ordering:
    """Return how rows are ordered: by the classes or true values opened with the folder, else by lg Ne - lg Nmu.

    Of showers thrown several times only the first event counts, since their events lie side by side.
    """
    rows = np.arange(len(dataset))
    if dataset.groups is not None:
        rows = np.sort(np.unique(np.asarray(dataset.groups), return_index=True)[1])
    if dataset.labels is not None and dataset.task is not None:
        labels, target = np.asarray(dataset.labels)[rows], dataset.task.target
        return ordering_by_values(labels, target.meaning) if target else ordering_by_labels(labels)
    n_e, n_mu = (
        np.asarray(dataset.scalars[:, SCALAR_NAMES.index(name)], dtype=np.float64)[rows] for name in ("Ne", "Nmu")
    )
    return ordering_by_values(n_e - n_mu)


def ordering_by_labels(labels: np.ndarray) -> Ordering:
    """Return the runs test for several classes.

    Parameters
    ----------
    labels
        (N,) class numbers.

    Notes
    -----
    With n_i of n rows in class i and S_k = sum of n_i^k, a random order has n + 1 - S_2 / n runs on average, with the
    variance (S_2 (S_2 + n (n + 1)) - 2 n S_3 - n^3) / (n^2 (n - 1)) [Barton and David, Biometrika 44 (1957) 168].
    """
    counts = np.unique(labels, return_counts=True)[1].astype(np.float64)
    n = float(len(labels))
    if n < MIN_EVENTS or len(counts) < 2:
        return Ordering(0.0, "too few rows to tell")
    squares, cubes = float((counts**2).sum()), float((counts**3).sum())
    expected = n + 1 - squares / n
    variance = (squares * (squares + n * (n + 1)) - 2 * n * cubes - n**3) / (n**2 * (n - 1))
    n_runs = 1 + int(np.count_nonzero(labels[1:] != labels[:-1]))
    description = f"{n_runs:,} runs of equal labels, {expected:,.0f} in random order"
    return Ordering((expected - n_runs) / float(np.sqrt(variance)) if variance > 0 else 0.0, description)


def ordering_by_values(values: np.ndarray, quantity: str = "lg Ne - lg Nmu") -> Ordering:
    """Return the serial correlation of the ranks of a quantity (N,) that is, or follows, what is asked of a shower."""
    values = values[np.isfinite(values)]
    n = len(values)
    if n < MIN_EVENTS:
        return Ordering(0.0, "too few rows to tell")
    ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable").astype(np.float64)
    ranks -= ranks.mean()
    correlation = float((ranks[1:] * ranks[:-1]).sum() / (ranks**2).sum())
    description = f"{quantity} of neighbouring rows correlates by {correlation:.2f}"
    return Ordering((correlation + 1 / n) * float(np.sqrt(n)), description)


def state_of(folder: Path) -> tuple[FileState, ...]:
    """Return what changes when a file that features are made of is written again or replaced."""
    files = (folder / name for name in (MATRICES_FILE, SCALARS_FILE, AGE_FILE, ARRIVAL_FILE, SOURCE_FILE))
    return tuple(state for state in map(file_state, files) if state)
