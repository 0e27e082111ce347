"""Where a run's events come from: small descriptions that carry paths and open them where the work is done.

:class:`ShowerEvents` is a dataset folder with its feature table; :class:`TableEvents` is a Parquet file of any origin.
A target becomes classes: bins of what a reconstructed scalar leaves of it, with equal numbers of training events. The
energy spectrum is steep and estimates are good to a tenth of a decade: bins of lg E itself would be too wide where
events are rare and too many where they are not. What the reconstructed energy leaves of lg E has one scale everywhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl

from showerstack.features.catalogue import feature_set
from showerstack.features.table import FeatureTable
from showerstack.models.base.inputs import targets_of
from showerstack.models.base.learner import Batch
from showerstack.models.base.spec import LearnerSpec
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import FolderState, folder_state
from showerstack.runtime.versions import FEATURES_VERSION
from showerstack.showers.dataset import Dataset
from showerstack.showers.event_files import zero_if_not_finite
from showerstack.showers.schema import AGE, SCALAR_NAMES, TargetQuantity, Task


def reference(target: TargetQuantity, scalars: np.ndarray) -> np.ndarray:
    """Return the reconstructed scalar (N,) float64 from which a target is counted; zeros where it has none."""
    if target.reference is None:
        return np.zeros(len(scalars))
    return zero_if_not_finite(np.asarray(scalars[:, SCALAR_NAMES.index(target.reference)], dtype=np.float64))


@dataclass(frozen=True)
class Binned:
    """The training events of a target."""

    offsets: np.ndarray
    """(N,) float64: true value minus reference."""
    labels: np.ndarray
    """(N,) int64: bin of the offset."""


def binned(data: Dataset) -> Binned:
    """Return bins whose borders are quantiles over the events that pass the evaluation cuts (over all if none does)."""
    assert data.labels is not None
    assert data.task is not None
    assert data.task.target is not None
    offsets = np.asarray(data.labels, dtype=np.float64) - reference(data.task.target, data.scalars)
    passing = data.evaluation_cuts.mask(data.scalar_frame()) & data.usable
    counted = offsets[passing] if passing.any() else offsets
    n_bins = data.task.n_classes
    edges = np.quantile(counted, np.arange(1, n_bins) / n_bins) if len(counted) else np.zeros(n_bins - 1)
    return Binned(offsets, np.searchsorted(edges, offsets, side="right"))


def class_numbers(data: Dataset) -> np.ndarray:
    """Return the class numbers (N,) int64 of a dataset opened with labels."""
    assert data.task is not None
    return np.asarray(data.labels, dtype=np.int64) if data.task.target is None else binned(data).labels


TRUTH_COLUMNS = ("label", "group", "weight", "fold")
"""Columns of the file beside a training table: apart from it, so that a table may have columns of any name."""
CONTEXT_SCALARS = ("E", "Ze", "Ne", "Nmu")
"""Scalars that a meta-learner may look at beside the learners' log-probabilities."""

CORE_COLUMNS = ("fit_core_x_m", "fit_core_y_m")
"""Where the fitted core is in the feature table."""

EVERY = slice(None)
ROW_GROUP = 1 << 16
"""Rows of a row group in the Parquet files of a run on a table."""
PIECE_EVENTS = 100_000
"""Events predicted at once: bounds the memory of a prediction."""


def pieces(n_events: int) -> Iterator[slice]:
    """Yield the events in pieces of bounded size; training and prediction take the same ones, for the same bits."""
    for start in range(0, n_events, PIECE_EVENTS):
        yield slice(start, min(start + PIECE_EVENTS, n_events))


class Events(ABC):
    """Events that learners can be given. Holds paths only, so it travels to any process."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of events."""

    @property
    @abstractmethod
    def location(self) -> Path | None:
        """Where the events are."""

    def absolute(self) -> Self:
        """Return the same events with absolute paths, for a process of another working directory."""
        return self

    @abstractmethod
    def columns_for(self, spec: LearnerSpec) -> tuple[str, ...]:
        """Return the table columns that a learner is to see."""

    @abstractmethod
    def batch(self, rows: np.ndarray, columns: tuple[str, ...], *, grids: bool) -> Batch:
        """Return unlabelled events; ``rows`` are (n,) positions."""

    @abstractmethod
    def labels(self) -> np.ndarray:
        """Return (N,) int64 class numbers of *training* events."""

    def offsets(self) -> np.ndarray | None:
        """Return (N,) float64 true values minus their reference, of *training* events of a target."""
        return None

    def targets(self, rows: np.ndarray) -> np.ndarray | None:
        """Return (n, T) float32 standardised true quantities of *training* events; None where none are known."""
        return None

    def targets_fingerprint(self) -> str | None:
        """Return a hash of what :meth:`targets` is made of, of *training* events."""
        return None

    def fitted_core(self, rows: np.ndarray | slice = EVERY) -> np.ndarray | None:
        """Return (n, 2) float64 fitted cores, m, where there is such a thing."""
        return None

    def energy(self) -> np.ndarray | None:
        """Return (N,) lg(E/eV) for stratified folds, where there is such a thing."""
        return None

    def groups(self) -> np.ndarray | None:
        """Return (N,) int64 group numbers, where there are groups."""
        return None

    def weights(self) -> np.ndarray | None:
        """Return (N,) float64 importance weights of *training* events, where they have any."""
        return None

    def folds(self) -> np.ndarray | None:
        """Return the (N,) int64 fold of each *training* event, where the user gives them."""
        return None

    def context(self, rows: slice = EVERY) -> np.ndarray | None:
        """Return (n, K) float64 quantities that a meta-learner may look at, or None."""
        return None

    def passes_evaluation_cuts(self) -> np.ndarray:
        """Return (N,) bool: events of the kind that predictions are scored on."""
        return np.ones(len(self), dtype=bool)

    def usable(self, rows: slice = EVERY) -> np.ndarray | None:
        """Return (n,) bool: events that are showers at all, None where all are; the others get the training prior."""
        return None

    def source(self) -> dict[str, Any] | None:
        """Return what the events say of their origin (``source.json``); None where there is no such thing."""
        return None

    def scalars_type(self) -> str | None:
        """Return the type of the stored scalars, of showers: protocols round them otherwise."""
        return None

    def features_version(self) -> int | None:
        """Return the version of the features that the table's columns are, where they are ours."""
        return None

    def events_fingerprint(self) -> str | None:
        """Return a hash of the events alone, whatever is computed from them."""
        return self.fingerprint()

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a hash of all inputs; for training events the labels are among them."""


@dataclass(frozen=True)
class ShowerEvents(Events):
    """A dataset folder and the feature table made from it."""

    dataset: Path
    table: Path
    task: Task
    labelled: bool = False
    """False for events to be predicted: their label file is neither needed nor looked at."""

    def __len__(self) -> int:
        return len(self._opened)

    @property
    def location(self) -> Path:
        """The dataset folder."""
        return self.dataset

    def absolute(self) -> Self:
        """Return the same events with absolute paths."""
        return replace(self, dataset=self.dataset.absolute(), table=self.table.absolute())

    @property
    def _opened(self) -> Dataset:
        return _open_dataset(self.dataset, folder_state(self.dataset))

    @property
    def _features(self) -> FeatureTable:
        return _open_table(self.table, folder_state(self.table))

    def columns_for(self, spec: LearnerSpec) -> tuple[str, ...]:
        """Return the columns of the learner's feature set that the table has."""
        available = self._features.columns
        if spec.features is None:
            return ()
        if isinstance(spec.features, str):
            return feature_set(spec.features, available)
        missing = [name for name in spec.features if name not in available]
        if missing:
            raise InputError(
                f"{self.table}: learner {spec.name!r} needs columns {', '.join(missing)}, not in the table"
            )
        return tuple(spec.features)

    def batch(self, rows: np.ndarray, columns: tuple[str, ...], *, grids: bool) -> Batch:
        """Return unlabelled events."""
        data = self._opened
        scalars = zero_if_not_finite(np.asarray(data.scalars[rows], dtype=np.float32))
        names = SCALAR_NAMES
        if data.age is not None:
            scalars = np.column_stack([scalars, zero_if_not_finite(data.age[rows])])
            names = (*names, AGE.name)
        return Batch(
            index=np.asarray(rows, dtype=np.int64),
            table=self._features.matrix(columns, rows) if columns else None,
            columns=columns,
            grids=data.matrices if grids else None,
            scalars=scalars,
            scalar_columns=names,
            array=data.array,
        )

    def labels(self) -> np.ndarray:
        """Return the training labels, 0 for events that cannot be used; events to be predicted have none."""
        labels = class_numbers(self._with_labels())
        usable = self.usable()
        return labels if usable is None else np.where(usable, labels, 0)

    def offsets(self) -> np.ndarray | None:
        """Return the true values of a target minus its reference."""
        return binned(self._with_labels()).offsets if self.task.target else None

    def targets(self, rows: np.ndarray) -> np.ndarray | None:
        """Return the standardised true quantities, if the folder has them; never of events to be predicted."""
        data = self._with_labels()
        core = self.fitted_core(rows) if data.has_truth else None
        return None if core is None else targets_of(data.truth()[rows], core[:, 0], core[:, 1])

    def targets_fingerprint(self) -> str | None:
        """Return the hash of the file of true quantities, if the folder has it."""
        return self._with_labels().truth_fingerprint()

    def fitted_core(self, rows: np.ndarray | slice = EVERY) -> np.ndarray | None:
        """Return the core of the lateral fit, (n, 2) m; None if the table does not have it."""
        if not set(CORE_COLUMNS) <= set(self._features.columns):
            return None
        wanted = np.arange(len(self))[rows] if isinstance(rows, slice) else rows
        return self._features.matrix(CORE_COLUMNS, wanted).astype(np.float64)

    def _with_labels(self) -> Dataset:
        if not self.labelled:
            raise InputError(f"{self.dataset} holds events to be predicted: its labels are not read here")
        return Dataset.open(self.dataset, self.task, labels=True)

    def energy(self) -> np.ndarray:
        """Return the reconstructed lg(E/eV), (N,) float32."""
        return np.asarray(self._opened.scalars[:, SCALAR_NAMES.index("E")], dtype=np.float32)

    def groups(self) -> np.ndarray | None:
        """Return ``groups.npy``, if the folder has it."""
        groups = self._opened.groups
        return None if groups is None else np.asarray(groups)

    def weights(self) -> np.ndarray | None:
        """Return ``weight.npy`` of training events, if the folder has it."""
        return self._with_labels().weights

    def context(self, rows: slice = EVERY) -> np.ndarray:
        """Return energy, zenith and the two sizes, (n, 4) float64."""
        columns = [SCALAR_NAMES.index(name) for name in CONTEXT_SCALARS]
        return zero_if_not_finite(np.asarray(self._opened.scalars[rows][:, columns], dtype=np.float64))

    def passes_evaluation_cuts(self) -> np.ndarray:
        """Return which events can be used and pass the cuts under which predictions are scored."""
        data = self._opened
        return data.evaluation_cuts.mask(data.scalar_frame()) & data.usable

    def usable(self, rows: slice = EVERY) -> np.ndarray | None:
        """Return which events can be used; None where all can."""
        usable = self._opened.usable
        return None if usable.all() else usable[rows]

    def fingerprint(self) -> str:
        """Return the hash of the dataset, of its feature table and, of training events, of the labels."""
        inputs = f"{self._opened.fingerprint()}:{self._features.fingerprint}"
        return f"{inputs}:{self._with_labels().labels_fingerprint()}" if self.labelled else inputs

    def events_fingerprint(self) -> str:
        """Return the hash of the dataset."""
        return self._opened.fingerprint()

    def scalars_type(self) -> str:
        """Return the type of the stored scalars."""
        return str(self._opened.scalars.dtype)

    def source(self) -> dict[str, Any]:
        """Return the content of ``source.json``; nothing where the folder has none."""
        return dict(self._opened.source)

    def features_version(self) -> int:
        """Return the version of the features, by which the table has just been made or found valid."""
        return FEATURES_VERSION


def unusable_remarks(data: Dataset, *, strict: bool, training: bool = False) -> tuple[str, ...]:
    """Return one line on the events of a dataset that cannot be used, none where all can."""
    words = data.describe_unusable()
    if words is None:
        return ()
    if strict:
        first, n_rows = data.unusable[0], int(np.count_nonzero(~data.usable))
        raise InputError(f"{data.path}: {first} ({n_rows} bad rows): leave out --strict to go on without them")
    return (f"{words}: " + ("nothing is trained on them" if training else "they get the training prior"),)


@dataclass(frozen=True)
class TableEvents(Events):
    """A Parquet file of float32 columns, written by :mod:`showerstack.stacking.tables`; training labels lie
    beside it."""

    file: Path
    columns: tuple[str, ...]
    content_hash: str
    categories: tuple[str, ...] = ()
    """Columns that hold codes of categories."""

    def __len__(self) -> int:
        return int(pl.scan_parquet(self.file, glob=False).select(pl.len()).collect().item())

    @property
    def location(self) -> Path:
        """The Parquet file."""
        return self.file

    def absolute(self) -> Self:
        """Return the same events with an absolute path."""
        return replace(self, file=self.file.absolute())

    def columns_for(self, spec: LearnerSpec) -> tuple[str, ...]:
        """Return all columns: named feature sets mean nothing in a foreign table."""
        return self.columns

    def batch(self, rows: np.ndarray, columns: tuple[str, ...], *, grids: bool) -> Batch:
        """Return unlabelled rows."""
        if grids:
            raise InputError(f"{self.file} is a table: learners that need grids cannot use it")
        rows = np.asarray(rows, dtype=np.int64)
        table = np.empty((len(rows), len(columns)), dtype=np.float32, order="F")
        group = rows // ROW_GROUP
        # Each row group is read once and only where something of it is wanted: memory is that of the batch.
        for number in np.unique(group):
            here = np.flatnonzero(group == number)
            part = read_row_group(self.file, int(number), columns)
            for k, name in enumerate(columns):
                table[here, k] = part[name].to_numpy()[rows[here] - number * ROW_GROUP]
        inside = tuple(name for name in columns if name in self.categories)
        return Batch(index=rows, table=table, columns=columns, categories=inside)

    def labels(self) -> np.ndarray:
        """Return the class numbers of a training table."""
        labels = self._truth("label")
        assert labels is not None
        return labels

    def groups(self) -> np.ndarray | None:
        """Return the group numbers, if the run names a group column."""
        return self._truth("group")

    def weights(self) -> np.ndarray | None:
        """Return the weights, if the run names a column of them."""
        return self._truth("weight")

    def folds(self) -> np.ndarray | None:
        """Return the folds, if the run names a column of them."""
        return self._truth("fold")

    def _truth(self, column: str) -> np.ndarray | None:
        known = pl.read_parquet(truth_file(self.file), glob=False)
        return known[column].to_numpy() if column in known.columns else None

    def fingerprint(self) -> str:
        """Return the hash of the file that the user gave."""
        return self.content_hash


def read_row_group(file: Path, number: int, columns: tuple[str, ...]) -> pl.DataFrame:
    """Read columns of one row group of a table that :func:`showerstack.stacking.tables.write_table` wrote."""
    return pl.scan_parquet(file, glob=False).select(columns).slice(number * ROW_GROUP, ROW_GROUP).collect()


def truth_file(table: Path) -> Path:
    """Return where the labels and groups of a training table are kept."""
    return table.with_name(f"{table.stem}-labels.parquet")


@lru_cache(maxsize=8)
def _open_dataset(path: Path, stamp: FolderState) -> Dataset:
    # Opening scans the scalars, and a worker does several tasks on the same folder; the stamp notices a new one.
    return Dataset.open(path, labels=False)


@lru_cache(maxsize=8)
def _open_table(path: Path, stamp: FolderState) -> FeatureTable:
    return FeatureTable.open(path)


@dataclass(frozen=True)
class FrameEvents(Events):
    """New rows in memory, to be predicted by a finished run."""

    matrix: np.ndarray
    """(N, F) float32, Fortran-ordered."""
    columns: tuple[str, ...]
    content_hash: str
    """Of the file they were read from."""
    categories: tuple[str, ...] = ()
    """Columns that hold codes of categories."""

    def __len__(self) -> int:
        return len(self.matrix)

    @property
    def location(self) -> None:
        """Nowhere but in memory."""
        return

    def columns_for(self, spec: LearnerSpec) -> tuple[str, ...]:
        """Return all columns."""
        return self.columns

    def batch(self, rows: np.ndarray, columns: tuple[str, ...], *, grids: bool) -> Batch:
        """Return unlabelled rows."""
        position = [self.columns.index(name) for name in columns]
        inside = tuple(name for name in columns if name in self.categories)
        table = np.asfortranarray(self.matrix[rows][:, position])
        return Batch(index=np.asarray(rows, dtype=np.int64), table=table, columns=columns, categories=inside)

    def labels(self) -> np.ndarray:
        """New rows have none."""
        raise InputError("rows to be predicted have no labels")

    def fingerprint(self) -> str:
        """Return the hash of the file that the rows were read from."""
        return self.content_hash
