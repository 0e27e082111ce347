"""Events that learners are given: small descriptions that carry paths and open them where the work is done.

:class:`ShowerEvents` is a dataset folder with its feature table. A dataset folder alone is in
:mod:`showerstack.stacking.prediction.computed`, rows of a table are in :mod:`showerstack.stacking.tables.data`.

A target becomes classes: bins of what a reconstructed scalar leaves of it, with equal numbers of training events. The
energy spectrum is steep and estimates are good to a tenth of a decade: bins of lg E itself would be too wide where
events are rare and too many where they are not. What the reconstructed energy leaves of lg E has one scale everywhere.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np

from showerstack.features.build import build_table
from showerstack.features.catalogue import feature_set
from showerstack.features.device import resolve_device
from showerstack.features.table import FeatureTable
from showerstack.models.base.inputs import TARGET_CLIP, targets_of
from showerstack.models.base.learner import Batch
from showerstack.models.base.spec import LearnerSpec
from showerstack.models.registry import device_remarks, devices_for
from showerstack.runtime.checksums import CHECKSUMS_FILE
from showerstack.runtime.context import Context
from showerstack.runtime.cost import Cost, timed
from showerstack.runtime.errors import Changed, InputError
from showerstack.runtime.files import FolderState, folder_state
from showerstack.runtime.logs import remark
from showerstack.runtime.versions import FEATURES_VERSION
from showerstack.showers.dataset import Dataset, ordering_of
from showerstack.showers.event_files import EventFiles, zero_if_not_finite
from showerstack.showers.identity import shared_showers
from showerstack.showers.schema import ANSWER_FILES, SCALAR_NAMES, TargetQuantity, Task, task_named
from showerstack.stacking.config import RunConfig, StackConfig
from showerstack.stacking.folds import refuse_small_classes
from showerstack.stacking.remarks import heap_remarks, of_columns, unlike_remarks, weight_remarks
from showerstack.stacking.sample import Labelled, Sample

LOG = logging.getLogger(__name__)

CONTEXT_SCALARS = ("E", "Ze", "Ne", "Nmu")
"""Scalars that stand beside the learners' log-probabilities: a target is counted from the first."""
CORE_COLUMNS = ("fit_core_x_m", "fit_core_y_m")
"""Where the fitted core is in the feature table."""
EVERY = slice(None)
ENERGY = SCALAR_NAMES.index("E")
PIECE_EVENTS = 100_000
"""Events predicted at once: bounds the memory of a prediction."""


def pieces(n_events: int) -> Iterator[slice]:
    """Yield pieces of bounded size, the same ones in training and prediction, for the same bits."""
    for start in range(0, n_events, PIECE_EVENTS):
        yield slice(start, min(start + PIECE_EVENTS, n_events))


@dataclass(frozen=True)
class SetOrigin:
    """Where the showers of a dataset folder come from."""

    source: dict[str, Any] | None = None
    """Content of ``source.json``."""
    scalars_type: str | None = None
    """Type of the stored scalars, which protocols round differently."""
    features_version: int | None = None
    """Version of our features, whose table has just been made or found valid."""


class Events(ABC):
    """Events that learners can be given. They hold paths, not arrays, so they travel to any process."""

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

    def pinned(self) -> Self:
        """Return the same events, which no others under the same name may replace from now on."""
        return self

    def refuse_changed(self) -> None:
        """Refuse events that are no longer those that were pinned.

        Raises
        ------
        Changed
            If their files have been replaced or written again with other content.
        """
        return

    @abstractmethod
    def columns_for(self, spec: LearnerSpec) -> tuple[str, ...]:
        """Return the table columns of a learner's feature set."""

    @abstractmethod
    def batch(self, rows: np.ndarray, columns: tuple[str, ...], *, grids: bool) -> Batch:
        """Return unlabelled events; ``rows`` are (n,) positions."""

    @abstractmethod
    def known(self) -> Labelled:
        """Return what is known of *training* events."""

    def targets(self, rows: np.ndarray, limit: float = TARGET_CLIP) -> np.ndarray | None:
        """Return (n, T) float32 standardised true quantities of *training* events; None where none are known.

        Beyond the limit they are cut.
        """
        return None

    def targets_fingerprint(self) -> str | None:
        """Return a hash of what :meth:`targets` is made of; None where nothing is."""
        return None

    def fitted_core(self, rows: np.ndarray | slice = EVERY) -> np.ndarray | None:
        """Return (n, 2) float64 fitted cores, m; None where nothing was fitted."""
        return None

    def context(self, rows: slice = EVERY) -> np.ndarray | None:
        """Return (n, K) float64 quantities of :data:`CONTEXT_SCALARS`; None where there are none."""
        return None

    def passes_evaluation_cuts(self) -> np.ndarray:
        """Return (N,) bool: events of the kind that predictions are scored on."""
        return np.ones(len(self), dtype=bool)

    def usable(self, rows: slice = EVERY) -> np.ndarray | None:
        """Return (n,) bool: events that learners can use, None where they can use all."""
        return None

    def origin(self) -> SetOrigin:
        """Return where showers come from; of a table nothing is known."""
        return SetOrigin()

    def events_fingerprint(self) -> str | None:
        """Return a hash of the events alone, without what is computed from them."""
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
    state: tuple[FolderState, ...] = ()
    """Of dataset and table when their content was known; empty where anything may be there."""
    content: str = ""
    """Their fingerprint then; empty where files that were written again count as others."""

    def __len__(self) -> int:
        return len(self._data)

    def pinned(self) -> Self:
        """Return the same events with their fingerprint: copies of the files, and other machines, may be used."""
        return replace(self, content=self.fingerprint())

    def refuse_changed(self) -> None:
        if not self.state:
            return
        now = (dataset_state(self.dataset, labelled=self.labelled), folder_state(self.table))
        if now != self.state and not _is_same(replace(self, state=()), now):
            raise Changed(
                f"{self.dataset} changed during the work: nothing that was made of it since is kept; begin again, with "
                "another run folder if the data are to stay as they are now"
            )

    @property
    def location(self) -> Path:
        return self.dataset

    def absolute(self) -> Self:
        return replace(self, dataset=self.dataset.absolute(), table=self.table.absolute())

    @property
    def _data(self) -> Dataset:
        self.refuse_changed()
        return _open_dataset(self.dataset, folder_state(self.dataset))

    @property
    def _features(self) -> FeatureTable:
        self.refuse_changed()
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
        data = self._data
        known = [k for k, name in enumerate(SCALAR_NAMES) if name in data.quantities]
        scalars = zero_if_not_finite(np.asarray(data.scalars[rows], dtype=np.float32)[:, known])
        if data.age is not None:
            scalars = np.column_stack([scalars, zero_if_not_finite(data.age[rows])])
        return Batch(
            index=np.asarray(rows, dtype=np.int64),
            table=self._features.matrix(columns, rows) if columns else None,
            columns=columns,
            grids=data.matrices if grids else None,
            scalars=scalars,
            scalar_columns=data.quantities,
            array=data.array,
        )

    def known(self) -> Labelled:
        """Return labels, energies, groups and weights of training events; those to be predicted have none."""
        data = self._labelled_data()
        bins = binned(data) if self.task.target else None
        labels, usable = class_numbers(data, self.task) if bins is None else bins.labels, self.usable()
        return Labelled(
            labels=labels if usable is None else np.where(usable, labels, 0),
            passing=self.passes_evaluation_cuts(),
            usable=usable,
            energy=np.asarray(data.scalars[:, ENERGY], dtype=np.float32) if "E" in data.quantities else None,
            groups=None if data.groups is None else np.asarray(data.groups),
            weights=data.weights,
            offsets=None if bins is None else bins.offsets,
        )

    def targets(self, rows: np.ndarray, limit: float = TARGET_CLIP) -> np.ndarray | None:
        """Return the standardised true quantities, if the folder has them; never of events to be predicted."""
        data = self._labelled_data()
        core = self.fitted_core(rows) if data.has_truth else None
        return None if core is None else targets_of(data.truth()[rows], *core.T, limit=limit)

    def targets_fingerprint(self) -> str | None:
        return self._labelled_data().truth_fingerprint()

    def fitted_core(self, rows: np.ndarray | slice = EVERY) -> np.ndarray | None:
        """Return the core of the lateral fit, (n, 2) m; None if the table does not have it."""
        if not set(CORE_COLUMNS) <= set(self._features.columns):
            return None
        return self._features.matrix(CORE_COLUMNS, np.arange(len(self))[rows]).astype(np.float64)

    def _labelled_data(self) -> Dataset:
        if not self.labelled:
            raise InputError(f"{self.dataset} holds events to be predicted: its labels are not read here")
        self.refuse_changed()
        return Dataset.open(self.dataset, self.task, labels=True)

    def context(self, rows: slice = EVERY) -> np.ndarray:
        """Return energy, zenith and the two sizes, (n, 4) float64."""
        columns = [SCALAR_NAMES.index(name) for name in CONTEXT_SCALARS]
        return zero_if_not_finite(np.asarray(self._data.scalars[rows][:, columns], dtype=np.float64))

    def passes_evaluation_cuts(self) -> np.ndarray:
        """Return which events can be used and pass the cuts under which predictions are scored."""
        data = self._data
        return data.evaluation_cuts.mask(data.scalar_frame()) & data.usable

    def usable(self, rows: slice = EVERY) -> np.ndarray | None:
        usable = self._data.usable
        return None if usable.all() else usable[rows]

    def fingerprint(self) -> str:
        """Return the hash of the dataset, of its feature table and, of training events, of the labels."""
        inputs = f"{self._data.fingerprint()}:{self._features.fingerprint}"
        return f"{inputs}:{self._labelled_data().labels_fingerprint()}" if self.labelled else inputs

    def events_fingerprint(self) -> str:
        return self._data.fingerprint()

    def origin(self) -> SetOrigin:
        return SetOrigin(dict(self._data.source), str(self._data.scalars.dtype), FEATURES_VERSION)


def quantities_of(data: Dataset) -> dict[str, np.ndarray]:
    """Return the reconstructed quantities of events that can be used and pass the evaluation cuts, (n,) each."""
    frame = data.scalar_frame()
    passing = frame.filter(data.evaluation_cuts.mask(frame) & data.usable)
    return {name: passing[name].to_numpy() for name in passing.columns}


def unusable_remarks(data: Dataset, *, strict: bool, training: bool = False) -> tuple[str, ...]:
    """Return one line on the events of a dataset that cannot be used, none where all can."""
    counts = data.describe_unusable()
    if counts is None:
        return ()
    if strict:
        first, n_rows = data.unusable[0], int(np.count_nonzero(~data.usable))
        raise InputError(f"{data.path}: {first} ({n_rows} bad rows): leave out --strict to go on without them")
    return (f"{counts}: " + ("nothing is trained on them" if training else "they get the training prior"),)


def dataset_state(dataset: Path, *, labelled: bool) -> FolderState:
    """Return the states of a dataset's files, those of the answers left out where these are not looked at."""
    unseen = ANSWER_FILES | {CHECKSUMS_FILE}
    return tuple((name, state) for name, state in folder_state(dataset) if labelled or name not in unseen)


@lru_cache(maxsize=8)
def _is_same(events: ShowerEvents, state: tuple[FolderState, ...]) -> bool:
    """Return whether events in this state of their files are those that were pinned."""
    if not events.content:
        return False
    try:
        return events.fingerprint() == events.content
    except InputError:  # gone, or half written
        return False


@lru_cache(maxsize=8)
def _open_dataset(path: Path, state: FolderState) -> Dataset:
    # Opening scans the scalars, and a worker does several tasks on the same folder; a changed one has another state.
    return Dataset.open(path, labels=False)


@lru_cache(maxsize=8)
def _open_table(path: Path, state: FolderState) -> FeatureTable:
    return FeatureTable.open(path)


def reference_values(target: TargetQuantity, scalars: np.ndarray) -> np.ndarray:
    """Return the reconstructed scalar (N,) float64 from which a target is counted; zeros where it has none."""
    if target.reference is None:
        return np.zeros(len(scalars))
    return zero_if_not_finite(np.asarray(scalars[:, SCALAR_NAMES.index(target.reference)], dtype=np.float64))


@dataclass(frozen=True)
class Binned:
    """A target of training events, and the bins that are its classes."""

    offsets: np.ndarray
    """(N,) float64: true value minus reference."""
    labels: np.ndarray
    """(N,) int64: bin of the offset."""


def binned(data: Dataset) -> Binned:
    """Return bins whose borders are quantiles over the events that pass the evaluation cuts (over all if none does)."""
    assert data.labels is not None
    assert data.task is not None
    assert data.task.target is not None
    offsets = np.asarray(data.labels, dtype=np.float64) - reference_values(data.task.target, data.scalars)
    passing = data.evaluation_cuts.mask(data.scalar_frame()) & data.usable
    counted = offsets[passing] if passing.any() else offsets
    n_bins = data.task.n_classes
    edges = np.quantile(counted, np.arange(1, n_bins) / n_bins) if len(counted) else np.zeros(n_bins - 1)
    return Binned(offsets, np.searchsorted(edges, offsets, side="right"))


def class_numbers(data: Dataset, task: Task) -> np.ndarray:
    """Return the class numbers (N,) int64 of a dataset opened with labels."""
    assert data.labels is not None
    return task.encoded(data.labels) if task.target is None else binned(data).labels


@dataclass(frozen=True)
class Data:
    """The events of a run, and what is known of them before any fit."""

    config: RunConfig
    """The options as they fit these events."""
    task: Task
    train: Events
    test: Events | None
    remarks: tuple[str, ...] = ()
    quantities: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """What the reconstructed quantities of training showers were (:class:`showerstack.stacking.remarks.Seen`)."""
    costs: tuple[Cost, ...] = ()
    """Of the feature tables."""

    def pinned(self) -> Self:
        """Return the same with events that no others under the same name may replace from now on."""
        return replace(self, train=self.train.pinned(), test=None if self.test is None else self.test.pinned())

    def write(self) -> None:
        """Write what fits read into the run's folder, where it is not in files already."""

    def write_results(
        self, on: str, shipped: str, scored: Mapping[str, tuple[Sample, np.ndarray]], log_proba: np.ndarray
    ) -> None:
        """Write scores and predictions that showers do not have: theirs are made from ``predictions.npz``.

        Parameters
        ----------
        scored
            By system, the n judged events that it predicted and its (n, C) log-posteriors.
        log_proba
            (N, C) log-posteriors of the shipped system for the rows that are predicted.
        """

    @property
    def label_type(self) -> str | None:
        """Type of the labels in the training table; None for showers."""
        return None


def open_showers(config: StackConfig, ctx: Context, *, strict: bool) -> Data:
    """Open both dataset folders and make their feature tables."""
    task = task_named(config.task)
    device = resolve_device(config.device)
    states: dict[str, Any] = {
        split: dataset_state(folder, labelled=split == "train")
        for split, folder in (("train", config.train_folder), ("test", config.test_folder))
    }
    # Before any work: both folders must be readable, and every fold must be able to hold every class.
    whole = EventFiles.open(config.train_folder).with_groups(task)
    train_set = Dataset.open(config.train_folder, whole)
    assert train_set.labels is not None
    task = whole.among(train_set.labels)
    fewer = [] if task == whole else [
        f"{config.train_folder} has showers of {', '.join(task.classes)} alone: these {task.n_classes} groups are told "
        f"apart, and showers of others are taken for one of them"
    ]  # fmt: skip
    test_set = Dataset.open(config.test_folder, labels=False)
    if not len(test_set):
        raise InputError(f"{config.test_folder} holds no events")
    if not train_set.array.is_like(test_set.array):
        raise InputError(
            f"{config.test_folder} holds events of another array ({test_set.array.name}) than {config.train_folder} "
            f"({train_set.array.name}): {test_set.array.difference(train_set.array)}; simulate or convert both alike"
        )
    by_preset = config.learners is None
    config, left_out = config.for_array(train_set.array, task)
    unusable = unusable_remarks(train_set, strict=strict, training=True) + unusable_remarks(test_set, strict=strict)
    usable = train_set.usable
    groups = None if train_set.groups is None else np.asarray(train_set.groups)[usable]
    if by_preset:
        config, few = config.for_number(int(usable.sum()) if groups is None else len(np.unique(groups)), task)
        left_out = (*left_out, *few)
    labels = class_numbers(train_set, task)[usable]
    refuse_small_classes(labels, config.n_folds, task.classes, groups, where=f"{config.train_folder}: ")
    ordered = (ordering_of(data).remark(data.path.name) for data in (train_set, test_set))
    shared = shared_showers(train_set, test_set)
    quantities = of_columns(quantities_of(train_set))
    heaps: list[str] = []
    if groups is None:
        scalars = np.asarray(train_set.scalars, np.float64)[usable]
        heaps = heap_remarks(str(config.train_folder), scalars, labels, "say so in groups.npy")
    shown_again = [
        f"{config.test_folder} holds showers of {config.train_folder} ({shared}): scores on them say nothing about new "
        "showers"
    ] if shared else []  # fmt: skip
    remarks = (
        *fewer,
        *train_set.remarks,
        *test_set.remarks,
        *unusable,
        *left_out,
        *weight_remarks(
            str(config.train_folder),
            None if train_set.weights is None else train_set.weights[usable],
            labels,
            task.classes,
        ),
        *heaps,
        *shown_again,
        *unlike_remarks(str(config.test_folder), quantities, quantities_of(test_set)),
        *(line for line in ordered if line),
        *device_remarks(devices_for(config.learner_specs(task), config.device)),
    )
    remark(LOG, remarks)
    costs: list[Cost] = []
    tables = {}
    for split, folder in (("train", config.train_folder), ("test", config.test_folder)):
        with timed(f"features {split}") as cost:
            name = f"{folder.name}.features"
            tables[split] = build_table(
                folder,
                config.features / name if config.features else None,
                elsewhere=config.run.with_name(f"{config.run.name}.features") / name,
                ctx=replace(ctx, device=device, workers=config.workers),
                apart=True,
            ).folder
        costs.append(cost)
    # The tables' own remarks were logged when they were made.
    remarks += tuple(line for folder in tables.values() for line in FeatureTable.open(folder).remarks)
    states = {split: (state, folder_state(tables[split])) for split, state in states.items()}
    train = ShowerEvents(config.train_folder, tables["train"], task, labelled=True, state=states["train"])
    test = ShowerEvents(config.test_folder, tables["test"], task, state=states["test"])
    return Data(config, task, train, test, remarks, quantities, tuple(costs))
