"""What a data check compares: data in dataset folders, read in pieces, and the simulation a run was trained on.

Features stand beside scalars; labels are never looked at. The simulated events are the run's training events under its
cuts, with their posteriors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from showerstack.features.build import build_table
from showerstack.features.catalogue import NOT_LEARNED
from showerstack.features.device import decoded
from showerstack.features.table import FeatureTable
from showerstack.models.base.learner import Batch
from showerstack.models.base.spec import LearnerSpec
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError
from showerstack.runtime.processes import in_threads
from showerstack.runtime.resources import cores
from showerstack.showers.archives.measured import measured_folders
from showerstack.showers.array import DetectorArray
from showerstack.showers.dataset import Dataset
from showerstack.showers.event_files import zero_if_not_finite
from showerstack.showers.protocols import CutSet
from showerstack.showers.schema import TRUTH_FILE, Task
from showerstack.stacking.events import EVERY, Events, ShowerEvents
from showerstack.stacking.prediction.computed import BLOCK_EVENTS, compute_columns
from showerstack.stacking.prediction.predict import predict, refuse_other_kind
from showerstack.stacking.prediction.run import Run
from showerstack.stacking.sample import Labelled

MAX_EVENTS = 60_000
"""Training events that data are compared with; more would cost memory and tell little more."""
LEAST_EVENTS = 500


@dataclass(frozen=True)
class Reference:
    """Training events that pass the cuts, in random order."""

    task: Task
    columns: tuple[str, ...]
    values: np.ndarray
    """(R, F) float32 features."""
    labels: np.ndarray
    """(R,) int64 class numbers."""
    log_proba: np.ndarray
    """(R, C) log-posteriors of what ships, out of fold."""
    lg_energy: np.ndarray
    """(R,) lg(E/eV) in which spectra are fitted: true where the simulation says it, else reconstructed."""
    true_energy: bool
    reconstructed: np.ndarray
    """(R,) reconstructed lg(E/eV)."""
    groups: np.ndarray
    """(R,) int64: equal where a simulated shower was used again."""
    rows: np.ndarray
    """(R,) rows in the dataset."""
    data: Dataset
    cuts: CutSet

    def __len__(self) -> int:
        return len(self.labels)


def read_reference(
    run: Run, train: Path | None, *, seed: int, max_events: int = MAX_EVENTS, ctx: Context = Context()
) -> Reference:
    """Read a run's training events."""
    folder = Path(train or str(run.manifest.data.train))
    if not folder.is_dir():
        raise InputError(f"{folder}, on which {run.folder} was trained, is not there: say where with --train FOLDER")
    table = build_table(folder, ctx=ctx)
    events = ShowerEvents(folder, table.folder, run.task, labelled=True)
    if events.fingerprint() != run.manifest.data.train_fingerprint:
        raise InputError(
            f"{folder} is not the set on which {run.folder} was trained (or its features are of other code)"
        )
    data = Dataset.open(folder, labels=False)
    data.refuse_weighted("datacheck")
    log_proba = _out_of_fold(run, len(data))
    good = data.evaluation_cuts.mask(data.scalar_frame()) & data.usable & np.isfinite(log_proba).all(axis=1)
    rows = np.random.default_rng(seed).permutation(np.flatnonzero(good))[:max_events]
    if len(rows) < LEAST_EVENTS:
        raise InputError(f"{folder}: {len(rows)} training events pass the cuts, at least {LEAST_EVENTS} are needed")
    reconstructed = zero_if_not_finite(np.asarray(data.scalars[:, 0], dtype=np.float64)[rows])
    # Without a reconstructed energy spectra cannot be compared: all showers then have the same.
    true_energy = _true_energy(data) if "E" in data.quantities else None
    groups = np.arange(len(data)) if data.groups is None else np.asarray(data.groups)
    columns = usable_columns(table)
    return Reference(
        task=run.task,
        columns=columns,
        values=table.matrix(columns, rows),
        labels=events.known().labels[rows],
        log_proba=log_proba[rows],
        lg_energy=reconstructed if true_energy is None else true_energy[rows],
        true_energy=true_energy is not None,
        reconstructed=reconstructed,
        groups=groups[rows],
        rows=rows,
        data=data,
        cuts=data.evaluation_cuts,
    )


def usable_columns(table: FeatureTable) -> tuple[str, ...]:
    """Return the features that are compared: all but the azimuth."""
    return tuple(name for name in table.columns if name not in NOT_LEARNED)


def _out_of_fold(run: Run, n_events: int) -> np.ndarray:
    """Return the out-of-fold log-posteriors of what ships, (N, C); NaN where a row was never predicted."""
    log_proba, _ = run.oof(run.chain.shipped)
    if len(log_proba) != n_events:
        raise InputError(
            f"{run.folder}/oof/{run.chain.shipped}.parquet has {len(log_proba):,} rows, the training set {n_events:,}"
        )
    return log_proba


def _true_energy(data: Dataset) -> np.ndarray | None:
    """Return (N,) true lg(E/eV), None where the set does not say."""
    if not data.files.has(TRUTH_FILE):
        return None
    truth = pl.read_parquet(data.files.path(TRUTH_FILE), columns=["lg_energy"], glob=False)
    return truth["lg_energy"].to_numpy().astype(np.float64)


PIECE_EVENTS = 16_384
"""Events read at once: with 200 features 13 MB."""


@dataclass(frozen=True)
class Piece:
    """Consecutive events of one folder that pass the cuts."""

    run: int
    """Number of the folder."""
    rows: np.ndarray
    """(n,) rows in the folder, ascending."""
    values: np.ndarray
    """(n, F) float32 features."""
    energy: np.ndarray
    """(n,) reconstructed lg(E/eV)."""


@dataclass(frozen=True)
class Folder:
    """One dataset folder with its feature table and the rows that pass the cuts."""

    data: Dataset
    table: FeatureTable
    rows: np.ndarray

    @property
    def name(self) -> str:
        """Its name."""
        return self.data.path.name


@dataclass(frozen=True)
class DataSample:
    """All folders."""

    folders: tuple[Folder, ...]
    columns: tuple[str, ...]

    def __len__(self) -> int:
        return sum(len(folder.rows) for folder in self.folders)

    def pieces(self) -> Iterator[Piece]:
        """Yield all events, a piece at a time: memory does not grow with their number."""
        for number, folder in enumerate(self.folders):
            step = folder.table.shard_events if folder.table.shard_events <= 4 * PIECE_EVENTS else PIECE_EVENTS
            for start in range(0, len(folder.data), step):
                first, last = np.searchsorted(folder.rows, [start, start + step])
                rows = folder.rows[first:last]
                if len(rows):
                    values = folder.table.matrix(self.columns, rows)
                    energy = zero_if_not_finite(np.asarray(folder.data.scalars[rows, 0], dtype=np.float64))
                    yield Piece(number, rows, values, energy)

    def choose_rows(self, n: int, seed: int) -> list[np.ndarray]:
        """Return, for each folder, the ascending rows of a random choice of at most ``n`` events among all."""
        sizes = np.array([len(folder.rows) for folder in self.folders])
        picked = np.sort(np.random.default_rng(seed).permutation(sizes.sum())[:n])
        ends = np.cumsum(sizes)
        return [
            folder.rows[picked[(picked >= end - size) & (picked < end)] - (end - size)]
            for folder, size, end in zip(self.folders, sizes, ends, strict=True)
        ]


def open_sample(run: Run, path: Path, reference: Reference, ctx: Context = Context()) -> DataSample:
    """Open the data; feature tables are built where they are missing."""
    folders = []
    for folder in measured_folders(path):
        data = Dataset.open(folder, labels=False)
        refuse_other_kind(run, data)
        table = build_table(folder, ctx=ctx)
        missing = [name for name in reference.columns if name not in table.columns]
        if missing:
            raise InputError(f"{table.folder} lacks {missing[0]}, which the training set has ({len(missing)} in all)")
        rows = np.flatnonzero(reference.cuts.mask(data.scalar_frame()) & data.usable)
        folders.append(Folder(data, table, rows))
    sample = DataSample(tuple(folders), reference.columns)
    if not len(sample):
        raise InputError(f"{path}: no event passes the cuts {reference.cuts.name}")
    return sample


def with_dead_detectors(
    simulation: Reference, sample: DataSample, ctx: Context = Context()
) -> tuple[np.ndarray, np.ndarray]:
    """Return the features of the simulation with detectors as dead as in the data, and which folder each event is of.

    Each folder of data has its share of the simulated events, in proportion to its own. In these its dead detectors
    have no deposits, and are missing in the fits. Quantities that the simulation has reconstructed stay as they are.

    Returns
    -------
    values
        (R, F) float32.
    folder
        (R,) int64 number of the folder.
    """
    sizes = np.array([len(folder.rows) for folder in sample.folders])
    borders = np.rint(np.cumsum(sizes) / sizes.sum() * len(simulation)).astype(np.int64)
    number = np.searchsorted(borders, np.arange(len(simulation)), side="right")
    values, rows_of_parts, tasks = simulation.values.copy(), [], []
    for k, folder in enumerate(sample.folders):
        if folder.data.working != simulation.data.working:
            events_of_folder = np.flatnonzero(number == k)
            parts = [
                events_of_folder[start : start + BLOCK_EVENTS]
                for start in range(0, len(events_of_folder), BLOCK_EVENTS)
            ]
            rows_of_parts += parts
            tasks += [
                (simulation.data, simulation.rows[part], folder.data.working, simulation.columns) for part in parts
            ]
    for part, block in zip(rows_of_parts, in_threads(_masked, tasks, workers=ctx.workers or cores()), strict=True):
        values[part] = block
    return values, number


def _masked(data: Dataset, rows: np.ndarray, array: DetectorArray, columns: tuple[str, ...]) -> np.ndarray:
    """Return features of simulated events (n, F) as an array with dead detectors has them."""
    grids = decoded(data.matrices[rows]) * np.moveaxis(array.has_detector, 0, -1)
    scalars = zero_if_not_finite(np.asarray(data.scalars[rows], dtype=np.float32))
    age = None if data.age is None else zero_if_not_finite(np.asarray(data.age[rows], dtype=np.float32))
    times_ns = None if data.times_ns is None else np.asarray(data.times_ns[rows], dtype=np.float32)
    return compute_columns(grids, scalars, age, columns, array, times_ns)


@dataclass(frozen=True)
class ChosenEvents(Events):
    """Some rows of a dataset folder, for a prediction of them alone."""

    whole: ShowerEvents
    rows: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def location(self) -> Path:
        """The dataset folder."""
        return self.whole.location

    def columns_for(self, spec: LearnerSpec) -> tuple[str, ...]:
        """Return the columns of the whole folder's table that a learner sees."""
        return self.whole.columns_for(spec)

    def batch(self, rows: np.ndarray, columns: tuple[str, ...], *, grids: bool) -> Batch:
        """Return unlabelled events."""
        return self.whole.batch(np.asarray(self.rows)[rows], columns, grids=grids)

    def known(self) -> Labelled:
        """Refuse: data have no labels."""
        raise InputError(f"{self.location} holds data: its labels are not read")

    def context(self, rows: slice = EVERY) -> np.ndarray:
        """Return what a meta-learner may look at."""
        return self.whole.context()[np.asarray(self.rows)[rows]]

    def events_fingerprint(self) -> str | None:
        """Return nothing: the prediction is not kept."""
        return None

    def fingerprint(self) -> str:
        """Return the whole folder's, marked as a part of it."""
        return f"part of {self.whole.fingerprint()}"


def predict_rows(run: Run, sample: DataSample, chosen: Sequence[np.ndarray], ctx: Context = Context()) -> np.ndarray:
    """Return (n, C) log-posteriors of the chosen events, folder by folder."""
    parts = [np.empty((0, run.task.n_classes))]
    for folder, rows in zip(sample.folders, chosen, strict=True):
        if len(rows):
            events = ShowerEvents(folder.data.path, folder.table.folder, run.task)
            part = ChosenEvents(events, tuple(int(row) for row in rows))
            parts.append(predict(run, part, ctx).concatenated().log_proba)
    return np.concatenate(parts)
