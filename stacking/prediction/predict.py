"""Predictions of new, unlabelled events with a finished run: a dataset folder, or the rows of a table.

>>> from showerstack.stacking.prediction.run import load                      # doctest: +SKIP
>>> stream = predict(load("runs/composition"), "data/new_events")  # doctest: +SKIP
>>> stream.write("new.npz")                                       # doctest: +SKIP
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TypedDict, Unpack

import numpy as np
import polars as pl

from showerstack.features.build import build_table
from showerstack.features.catalogue import GROUPS
from showerstack.features.compute import column_names
from showerstack.features.device import gpu_answers
from showerstack.models.base.learner import Batch, Predictor
from showerstack.models.base.saving import HEADER_FILE
from showerstack.models.registry import predicts_on_gpu
from showerstack.runtime.arrays import write_pieces
from showerstack.runtime.cluster import spread_over
from showerstack.runtime.context import Context, Progress
from showerstack.runtime.errors import InputError, need
from showerstack.runtime.files import FolderState, check_target, folder_state, hash_file, read_json
from showerstack.runtime.logs import remark
from showerstack.runtime.processes import in_threads, limited_threads
from showerstack.runtime.resources import cores
from showerstack.runtime.shared import each_within
from showerstack.runtime.stated import stated_as, understood
from showerstack.runtime.tables import write_frames
from showerstack.showers.array import KASCADE, array_of
from showerstack.showers.dataset import Dataset
from showerstack.showers.kascade import mass_moments
from showerstack.showers.schema import COMPOSITION, SCALAR_NAMES, TASKS, Task
from showerstack.stacking.answers import stacking_of
from showerstack.stacking.chain import Piece, Predictions, concatenated
from showerstack.stacking.estimates import UNITS, Posterior
from showerstack.stacking.events import (
    CORE_COLUMNS,
    Events,
    ShowerEvents,
    pieces,
    quantities_of,
    unusable_remarks,
)
from showerstack.stacking.layout import COLUMNS_FILE
from showerstack.stacking.prediction.computed import ComputedEvents
from showerstack.stacking.prediction.predictable import Predictable, SavedFit, SavedFits
from showerstack.stacking.remarks import unlike_remarks
from showerstack.stacking.stated import Columns
from showerstack.stacking.tables.columns import Schema
from showerstack.stacking.tables.data import FrameEvents, probabilities, read_new_rows
from showerstack.stacking.training.fits import check_log_proba

LOG = logging.getLogger(__name__)

GPU_FITS = 2
"""Fits that use a GPU at the same time: one works while the next gets its events."""
TABLE_SUFFIXES = (".csv", ".parquet", ".pq")
_EVERY_GROUP = frozenset(GROUPS)
AGED = set(column_names(_EVERY_GROUP)) - set(column_names(_EVERY_GROUP, quantities=SCALAR_NAMES))
"""Features that only sets with the shower age have."""


class Options(TypedDict, total=False):
    """How new events are to be predicted."""

    everything: bool
    """Whether learners are returned too that the shipped system does not need."""
    features: str | Path | None
    """Folder of the feature table; by default beside the dataset."""
    elsewhere: str | Path | None
    """Folder of the feature table where nothing can be written beside the dataset."""
    no_table: bool
    """Whether the needed features are computed in memory while predicting: no table is read, built or kept."""
    strict: bool
    """Whether events that cannot be used are refused; otherwise they get the training prior."""
    separator: str | None
    """Separator of a table's columns; by default that of the training table."""


@dataclass(frozen=True)
class PredictionStream:
    """Predictions that are made while they are taken, once, piece by piece in the order of the events."""

    task: Task
    n_events: int
    pieces: Iterator[Predictions]
    remarks: tuple[str, ...] = ()
    """What their user should know."""
    identifiers: pl.DataFrame | None = None
    """Of a table: the columns that name its rows, in order."""

    def concatenated(self) -> Predictions:
        """Return all of them, with the remarks."""
        return replace(concatenated(list(self.pieces)), remarks=self.remarks)

    def write(self, file: str | Path) -> None:
        """Write all of them; memory does not grow with the events.

        Parameters
        ----------
        file
            In the form of ``predictions.npz``, or by its name a table (CSV or Parquet), see :func:`prediction_table`;
            rows of a table become a table.

        Raises
        ------
        InputError
            If no such file can be written, before any work; or if the events cannot be predicted.
        """
        file = Path(file)
        check_target(file, (*((".npz",) if self.task.name in TASKS else ()), *TABLE_SUFFIXES))
        if file.suffix.lower() in TABLE_SUFFIXES:
            first = next(self.pieces)
            origin = {"config_hash": first.config_hash, "test_fingerprint": first.test_fingerprint}
            metadata = {name: value for name, value in origin.items() if value is not None}
            write_frames(file, self._frames(itertools.chain((first,), self.pieces)), metadata)
        else:
            write_pieces(file, self.n_events, (piece.stored_arrays() for piece in self.pieces))

    def _frames(self, pieces: Iterable[Predictions]) -> Iterator[pl.DataFrame]:
        first = 0
        for piece in pieces:
            n = len(piece.log_proba)
            identifiers = None if self.identifiers is None else self.identifiers.slice(first, n)
            yield prediction_table(piece, self.task, first, identifiers)
            first += n


def prediction_table(
    predictions: Predictions, task: Task, first: int = 0, identifiers: pl.DataFrame | None = None
) -> pl.DataFrame:
    """Return predictions as a table, whose rows count from ``first``.

    Columns of showers: event, ``p_<class>``; of composition ``predicted``, the most probable class, and mean and width
    of the posterior of ln A; of gamma the score;
    energy and core with errors where a learner learned them (:data:`showerstack.stacking.estimates.UNITS`). Of rows of
    a table: row, identifiers, ``p_<class>``, most probable class.
    """
    frame = probabilities(predictions.log_proba, task.classes, identifiers, first)
    if task.name in TASKS:
        columns = stacking_of(task).columns(predictions.arrays)
        frame = frame.rename({"row": "event"})
        frame = frame.drop("predicted").with_columns(columns) if columns else frame
        if task.name == COMPOSITION.name:
            moments = zip(("ln_a", "ln_a_error"), mass_moments(predictions.log_proba, task), strict=True)
            frame = frame.with_columns(pl.Series(name, values) for name, values in moments)
        estimates = {name: values for name, values in predictions.arrays.items() if name in UNITS}
        frame = frame.with_columns(pl.Series(name, values) for name, values in estimates.items())
    return frame


def predict(
    run: Predictable, data: str | Path | Events, ctx: Context = Context(), **options: Unpack[Options]
) -> PredictionStream:
    """Predict new events with a finished run, in pieces of bounded memory; labels are neither needed nor looked at.

    The long work, the feature table first, is done when the first piece is taken.

    Parameters
    ----------
    run
        What :func:`showerstack.stacking.prediction.run.load` returns, or
        :func:`showerstack.stacking.export.exported.open_run`.
    data
        Dataset folder, for a run on showers; its feature table is built if missing, unless ``no_table`` is true.
        Table (CSV, Parquet), for a run on a table. Or events that are open already.
    ctx
        Device of the features, and threads at work at once. Numerical threads of each are those of the training.
    options
        See :class:`Options`.

    Raises
    ------
    InputError
        If the data cannot be used by such a run, a file of the run is damaged, or the run was made by another version
        of stacking or features.
    """
    unknown = options.keys() - Options.__annotations__.keys()
    if unknown:
        raise TypeError(f"predict() has no option {min(unknown)!r}: device and workers are in Context")
    fits = _needed_fits(run, everything=options.get("everything", False))
    needed = {extra for learner in fits for fit in learner.fits for extra in fit.needs}
    need(*sorted(needed), what=f"predicting with {run.folder}")
    library_remarks = run.library_remarks
    source = _source(run, data, options, ctx)
    predictions = _predict_pieces(run, source, fits, ctx)
    remarks = (*library_remarks, *source.remarks)
    remark(LOG, remarks)
    return PredictionStream(run.task, len(source.events), predictions, remarks, source.identifiers)


@dataclass(frozen=True)
class _Source:
    """Events to be predicted, here such that are open already."""

    events: Events | Dataset
    remarks: tuple[str, ...] = ()
    identifiers: pl.DataFrame | None = None

    def open(self, columns: tuple[str, ...]) -> Events:
        """Return the events with these features."""
        assert isinstance(self.events, Events)
        return self.events


@dataclass(frozen=True, kw_only=True)
class _Showers(_Source):
    """A dataset folder, whose features are made when they are wanted."""

    events: Dataset
    run: Predictable
    options: Options
    ctx: Context

    def open(self, columns: tuple[str, ...]) -> ShowerEvents:
        dataset, task, options = self.events.path, self.run.task, self.options
        if self.events.age is None and AGED & set(columns):
            raise InputError(
                f"{dataset} has no shower age, from which {self.run.folder} learned: "
                "convert it with --protocol matched or 2026"
            )
        if not options.get("no_table", False):
            table = build_table(dataset, options.get("features"), elsewhere=options.get("elsewhere"), ctx=self.ctx)
            return ShowerEvents(dataset, table.folder, task)
        events = ComputedEvents.of(dataset, task, columns, self.ctx)
        with self.ctx.bars(f"reading {dataset.name}", "files") as progress:
            Dataset.open(dataset, labels=False).fingerprint(progress)
        return events


@dataclass(frozen=True, kw_only=True)
class _Rows(_Source):
    """Rows of a table in memory."""

    events: FrameEvents
    schema: Path
    """The file that says what columns the rows have."""

    def open(self, columns: tuple[str, ...]) -> FrameEvents:
        if unknown := [name for name in columns if name not in self.events.columns]:
            raise InputError(f"{self.schema} has no column {unknown[0]!r}, which a learner was trained on")
        return self.events


def columns_needed(run: Predictable) -> tuple[str, ...]:
    """Return the features that the shipped learners read."""
    return tuple(dict.fromkeys(name for fits in _needed_fits(run, everything=False) for name in fits.columns))


def open_events(
    run: Predictable,
    data: str | Path | Events,
    columns: tuple[str, ...],
    ctx: Context = Context(),
    **options: Unpack[Options],
) -> Events:
    """Return events that a run can predict, with these columns; see :func:`predict`."""
    return _source(run, data, options, ctx).open(columns)


def _source(run: Predictable, data: str | Path | Events, options: Options, ctx: Context) -> _Source:
    if isinstance(data, Events):
        return _Source(data)
    if run.of_table:
        return _row_source(run, Path(data), options.get("separator"))
    return _shower_source(run, Path(data), options, ctx)


def _shower_source(run: Predictable, dataset: Path, options: Options, ctx: Context) -> _Source:
    if dataset.is_file():
        raise InputError(f"{run.folder} was trained on showers: give it a dataset folder, not a table")
    data = Dataset.open(dataset, labels=False)
    if not len(data):
        raise InputError(f"{dataset} holds no events")
    refuse_other_kind(run, data)
    remarks = unusable_remarks(data, strict=options.get("strict", False))
    remarks = (*remarks, *unlike_remarks(str(dataset), run.trained.data.train_quantities or {}, quantities_of(data)))
    if options.get("no_table", False) and options.get("features"):
        raise InputError("a folder for the feature table, and none is to be used: leave one of the two options out")
    return _Showers(events=data, remarks=(*data.remarks, *remarks), run=run, options=options, ctx=ctx)


def refuse_other_kind(run: Predictable, data: Dataset) -> None:
    """Refuse events of another array, or of scalars rounded otherwise, than those that a run was trained on."""
    source, dtype = run.trained.data.train_source, run.trained.data.train_scalars
    if source is not None and not (array := array_of(source)).is_like(data.array):
        raise InputError(
            f"{data.path} holds events of another array ({data.array.name}) than {run.folder} was trained on "
            f"({array.name}): {data.array.difference(array)}; train a run on showers of this array"
        )
    if dtype is not None and dtype != str(data.scalars.dtype) and not (dtype == "float16" and _holds_halves(data)):
        mend = f"convert with --protocol {(source or {}).get('protocol', 'v2')!s}"
        if data.array != KASCADE:
            mend = "make the training set again, with simulate or convert"
        raise InputError(
            f"{data.path}: scalars are {data.scalars.dtype}, those that {run.folder} was trained on {dtype}: {mend}"
        )


def _holds_halves(data: Dataset) -> bool:
    """Return whether scalars in a wider type have values of float16: of others one in thousands has one by chance."""
    values = np.asarray(data.scalars)
    with np.errstate(over="ignore"):
        return bool(np.mean(values.astype(np.float16) == values) > 0.5) if values.size else False


def _row_source(run: Predictable, file: Path, separator: str | None) -> _Source:
    if file.is_dir():
        raise InputError(f"{run.folder} was trained on a table: give it a table, not a dataset folder")
    config = run.trained.config
    columns_file = run.checksums.path(COLUMNS_FILE)
    stated_as(Columns, stated := read_json(columns_file), columns_file)
    with understood(columns_file, "what such a run holds"):
        schema = Schema.from_json(stated)
    named = config.id or ()
    reserved = {*filter(None, (config.label, config.group, config.weight, config.split)), *named}
    frame, identifiers, remarks = read_new_rows(file, schema, reserved, named, separator or config.separator)
    matrix = np.asfortranarray(frame.to_numpy(), dtype=np.float32)
    events = FrameEvents(matrix, schema.names, hash_file(file), schema.categories)
    return _Rows(events=events, remarks=tuple(remarks), identifiers=identifiers, schema=columns_file)


def _needed_fits(run: Predictable, *, everything: bool) -> list[SavedFits]:
    """Return the fits that predictions need, each file compared with its checksum."""
    chain = run.chain
    names = chain.learners if everything else chain.needed
    estimating = chain.target_calibration.learner if chain.target_calibration else None
    return [
        replace(run.fits(name), log_proba=name in names, estimates=name == estimating)
        for name in dict.fromkeys((*names, *filter(None, [estimating])))
    ]


def _predict_pieces(run: Predictable, source: _Source, fits: list[SavedFits], ctx: Context) -> Iterator[Predictions]:
    columns = [name for learner in fits for name in learner.columns]
    columns += CORE_COLUMNS if run.chain.target_calibration else ()
    events = source.open(tuple(dict.fromkeys(columns)))
    ctx = replace(ctx, threads=run.threads)
    with ctx.bars("predicting", "predictions of fits") as progress:
        said = predict_fits(events, fits, ctx, progress)
        yield from each_within(partial(limited_threads, ctx.threads), run.chain.stream(said, events))


@dataclass(frozen=True)
class _FitJob:
    """One fit's prediction of one piece."""

    piece: slice
    learner: SavedFits
    fold: int
    batch: Batch

    @property
    def fit(self) -> SavedFit:
        return self.learner.fits[self.fold]


def uses_gpu(folder: Path) -> bool:
    """Return whether a saved fit was trained on a GPU and predicts on one, because one answers."""
    return gpu_answers() and any(predicts_on_gpu(read_json(file)) for file in folder.rglob(HEADER_FILE))


class _OpenFits:
    """Saved fits in memory. One that is at work in a thread is opened once more for another."""

    def __init__(self, places: Iterable[Path]) -> None:
        self._idle: dict[Path, list[Predictor]] = {place: [] for place in places}
        self._gpu, self._on_gpu = threading.BoundedSemaphore(GPU_FITS), set(filter(uses_gpu, self._idle))

    def predict(self, job: _FitJob) -> Posterior:
        """Return what of a job is wanted, all from one pass."""
        with self._gpu if job.fit.place in self._on_gpu else nullcontext():
            idle = self._idle[job.fit.place]
            try:
                fit = idle.pop()
            except IndexError:  # asked first, another thread might take the last one meanwhile
                fit = job.fit.open()
            log_proba = estimates = None
            with understood(job.fit.header, "what such a learner saves"):
                if job.learner.log_proba and job.learner.estimates:
                    log_proba, estimates = fit.predict_both(job.batch)
                elif job.learner.estimates:
                    estimates = fit.predict_targets(job.batch)
                else:
                    log_proba = fit.predict_log_proba(job.batch)
                if log_proba is not None:
                    log_proba = check_log_proba(log_proba, fit, job.batch)
            idle.append(fit)
        return Posterior(log_proba, estimates)


def predict_fits(events: Events, learners: Sequence[SavedFits], ctx: Context, progress: Progress) -> Iterator[Piece]:
    """Yield what all fits say, piece by piece in the order of the events, by several threads.

    Each piece is read once for all learners of the same columns, every model file once for each thread that needs
    it at the same time, and memory does not grow with the events. With a scheduler its workers do the pieces.
    ``progress`` is called with the number of predictions of single fits done, that of all, and the last one.
    """
    if ctx.scheduler:
        yield from _by_cluster(events, learners, ctx.scheduler, ctx.threads, progress)
        return
    places = {fit.place for learner in learners for fit in learner.fits}
    open_fits, all_pieces, n_fits = _OpenFits(places), list(pieces(len(events))), len(places)
    workers = max(1, (ctx.workers or cores()) // ctx.threads)
    at_once, done = -(-workers // n_fits), 0  # few fits work on several pieces
    for first in range(0, len(all_pieces), at_once):
        current = all_pieces[first : first + at_once]
        jobs = [job for piece in current for job in _jobs(events, piece, learners)]
        found: dict[int, dict[str, list[Posterior]]] = {piece.start: {} for piece in current}
        predictions = in_threads(open_fits.predict, ((job,) for job in jobs), workers=workers)
        for job, of_fit in zip(jobs, predictions, strict=True):
            found[job.piece.start].setdefault(job.learner.name, []).append(of_fit)
            done += len(job.batch)
            progress(done, n_fits * len(events), f"{job.learner.name} fold {job.fold}")
        for piece in current:
            yield piece, {name: Posterior.stacked(of_fits) for name, of_fits in found[piece.start].items()}


def _by_cluster(
    events: Events, learners: Sequence[SavedFits], scheduler: str, threads: int, progress: Progress
) -> Iterator[Piece]:
    """Yield what all fits say, in the order of the events, each piece by a worker of a cluster; those that end before
    others wait in memory."""
    if not isinstance(events, ShowerEvents):
        raise InputError("option scheduler: a cluster predicts showers from their feature table, no other events")
    events = events.absolute()
    there = [replace(one, fits=tuple(fit.absolute() for fit in one.fits)) for one in learners]
    places = {fit.place for learner in there for fit in learner.fits}
    parts = list(pieces(len(events)))
    tasks = [(events, there, part.start, part.stop, threads) for part in parts]
    waiting: dict[int, Piece] = {}
    due, done = iter(parts), 0
    following = next(due, None)
    for piece in spread_over(scheduler, predict_piece, tasks, [events.dataset, events.table, *places]):
        waiting[piece[0].start] = piece
        done += piece[0].stop - piece[0].start
        progress(done * len(places), len(events) * len(places))
        while following is not None and following.start in waiting:
            yield waiting.pop(following.start)
            following = next(due, None)


def predict_piece(events: Events, learners: Sequence[SavedFits], start: int, stop: int, threads: int) -> Piece:
    """Return what all fits say of the events from ``start`` to ``stop``; a worker keeps the fits open."""
    places = tuple(sorted({fit.place for learner in learners for fit in learner.fits}))
    open_fits = _opened(places, tuple(folder_state(place if place.is_dir() else place.parent) for place in places))
    said: dict[str, list[Posterior]] = {}
    with limited_threads(threads):
        for job in _jobs(events, slice(start, stop), learners):
            said.setdefault(job.learner.name, []).append(open_fits.predict(job))
    return slice(start, stop), {name: Posterior.stacked(of_fits) for name, of_fits in said.items()}


@lru_cache(maxsize=1)
def _opened(places: tuple[Path, ...], state: tuple[FolderState, ...]) -> _OpenFits:
    return _OpenFits(places)


def _jobs(events: Events, piece: slice, learners: Sequence[SavedFits]) -> Iterator[_FitJob]:
    """Yield the jobs of a piece, which is read once for all learners of the same columns."""
    rows = np.arange(piece.start, piece.stop)
    for columns, needs_grid in dict.fromkeys((learner.columns, learner.needs_grid) for learner in learners):
        batch = events.batch(rows, columns, grids=needs_grid)
        for learner in learners:
            if (learner.columns, learner.needs_grid) == (columns, needs_grid):
                yield from (_FitJob(piece, learner, fold, batch) for fold in range(len(learner.fits)))
