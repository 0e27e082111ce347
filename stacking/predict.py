"""Predictions of new, unlabelled events with a finished run: a dataset folder, or the rows of a table.

>>> from showerstack import stacking                                                             # doctest: +SKIP
>>> from showerstack.stacking.predict import predict                                        # doctest: +SKIP
>>> stream = predict(stacking.load("runs/composition"), "data/new_events")      # doctest: +SKIP
>>> stream.write("new.npz")                                                     # doctest: +SKIP
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypedDict, Unpack

import numpy as np
import polars as pl

from showerstack.features.build import build_table
from showerstack.features.catalogue import GROUPS
from showerstack.features.compute import column_names
from showerstack.runtime.arrays import write_frames, write_pieces
from showerstack.runtime.code import versions
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError, need
from showerstack.runtime.files import check_target, hash_file, read_json
from showerstack.runtime.processes import limited_threads
from showerstack.runtime.versions import FEATURES_VERSION, STACKING_VERSION
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import TASKS, Task
from showerstack.stacking.decide.classes import stacking_of
from showerstack.stacking.decide.gamma import SCORES_FILE
from showerstack.stacking.decide.target import UNITS, fits_of
from showerstack.stacking.exported import ExportedLearner, ExportedRun, predict_exported
from showerstack.stacking.inputs.columns import Schema
from showerstack.stacking.inputs.computed import ComputedEvents
from showerstack.stacking.inputs.events import CORE_COLUMNS, Events, FrameEvents, ShowerEvents, unusable_remarks
from showerstack.stacking.inputs.tables import probabilities, read_new_rows
from showerstack.stacking.run.chain import STUDENT, Chain, Predictions, concatenated
from showerstack.stacking.run.folder import PLAN_FILE, stored_arrays
from showerstack.stacking.run.read import Run, SavedFits
from showerstack.stacking.saved_fits import predict_fits
from showerstack.stacking.student import student_line

TABLE_SUFFIXES = (".csv", ".parquet", ".pq")
_EVERY_GROUP = frozenset(GROUPS)
AGED = set(column_names(True, _EVERY_GROUP)) - set(column_names(False, _EVERY_GROUP))
"""Features that only sets with the shower age have."""


class Options(TypedDict, total=False):
    """How new events are to be predicted."""

    everything: bool
    """Also return the learners that the shipped prediction does not need."""
    fast: bool
    """Ask the student (:mod:`showerstack.stacking.student`) instead of what ships, unless that is one network
    already."""
    features: str | Path | None
    """Folder of the feature table; by default beside the dataset."""
    elsewhere: str | Path | None
    """Folder of the feature table where nothing can be written beside the dataset."""
    no_table: bool
    """Compute features in memory while predicting, only those that are needed: no table is read, built or kept."""
    strict: bool
    """Refuse events that cannot be used, instead of giving them the training prior."""
    separator: str | None
    """Between columns of a table; by default that of the training table."""


@dataclass(frozen=True)
class PredictionStream:
    """Predictions that are made while they are taken, piece by piece in the order of the events; to be taken once."""

    task: Task
    n_events: int
    pieces: Iterator[Predictions]
    remarks: tuple[str, ...] = ()
    """What whoever uses them should know."""
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
            Like ``predictions.npz``, or by its name a table (CSV or Parquet), see :func:`prediction_table`; rows of a
            table become a table.

        Raises
        ------
        InputError
            If there can be no such file, before any work; or if the events cannot be predicted.
        """
        file = Path(file)
        check_target(file, (*((".npz",) if self.task.name in TASKS else ()), *TABLE_SUFFIXES))
        if file.suffix.lower() in TABLE_SUFFIXES:
            first = next(self.pieces)
            origin = {"config_hash": first.config_hash, "test_fingerprint": first.test_fingerprint}
            known = {name: value for name, value in origin.items() if value is not None}
            write_frames(file, self._frames(itertools.chain((first,), self.pieces)), known)
        else:
            write_pieces(file, self.n_events, map(stored_arrays, self.pieces))

    def _frames(self, pieces: Iterable[Predictions]) -> Iterator[pl.DataFrame]:
        done = 0
        for piece in pieces:
            n = len(piece.log_proba)
            names = None if self.identifiers is None else self.identifiers.slice(done, n)
            yield prediction_table(piece, self.task, done, names)
            done += n


def prediction_table(
    predictions: Predictions, task: Task, first: int = 0, identifiers: pl.DataFrame | None = None
) -> pl.DataFrame:
    """Return predictions as a table.

    Columns of showers: event, ``p_<class>``; of composition ``argmax``, the most probable class, and ``decided``, that
    of the run's decision rule; of gamma the score; energy and core with errors where a learner was taught them
    (:data:`showerstack.stacking.decide.target.UNITS`). Of rows of a table: row, identifiers, ``p_<class>``, most
    probable class.

    Parameters
    ----------
    first
        Number of the first event.
    """
    frame = probabilities(predictions.log_proba, task.classes, identifiers, first)
    if task.name in TASKS:
        columns = stacking_of(task).columns(predictions.arrays, task)
        most_probable = {"predicted": "argmax"} if any(column.name == "decided" for column in columns) else {}
        frame = frame.rename({"row": "event"} | most_probable).drop("predicted", strict=False).with_columns(columns)
        estimates = {name: values for name, values in predictions.arrays.items() if name in UNITS}
        frame = frame.with_columns(pl.Series(name, values) for name, values in estimates.items())
    return frame


def predict(
    run: Run, data: str | Path | Events, ctx: Context = Context(), **options: Unpack[Options]
) -> PredictionStream:
    """Predict new events with a finished run, in pieces of bounded memory; labels are neither needed nor looked at.

    What takes long, the feature table first, is done when the first piece is taken.

    Parameters
    ----------
    run
        What :func:`showerstack.stacking.load` or :func:`showerstack.stacking.exported.open_predictor` returns.
    data
        Dataset folder, for a run on showers; its feature table is built if missing, unless ``no_table`` is asked for.
        Table (CSV, Parquet), for a run on a table. Or events that are open already.
    ctx
        Device of the features, processes, whether to trust the run's model files. Numerical threads are those of
        the training.
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
        raise TypeError(f"predict() has no option {min(unknown)!r}: device, workers and trust are in Context")
    need(run.needs, what=f"predicting with {run.folder}")
    library_remarks = _library_remarks(run)
    if isinstance(data, Events):
        source = _Source(len(data), lambda columns: data)
    elif run.has_grids:
        source = _showers(run, Path(data), options, ctx)
    else:
        source = _rows(run, Path(data), options.get("separator"))
    predictor = _Predictor.of(run, everything=options.get("everything", False), fast=options.get("fast", False))
    pieces = _pieces(run, source, predictor, ctx)
    remarks = (*library_remarks, *source.remarks, *predictor.remarks)
    return PredictionStream(run.task, source.n_events, pieces, remarks, source.identifiers)


@dataclass(frozen=True)
class _Source:
    """Events to be predicted."""

    n_events: int
    opened: Callable[[tuple[str, ...]], Events]
    """Returns the events with these features."""
    remarks: tuple[str, ...] = ()
    identifiers: pl.DataFrame | None = None


def _showers(run: Run, dataset: Path, options: Options, ctx: Context) -> _Source:
    if dataset.is_file():
        raise InputError(f"{run.folder} was trained on showers: give it a dataset folder, not a table")
    data = Dataset.open(dataset, labels=False)
    if not len(data):
        raise InputError(f"{dataset} holds no events")
    remarks = unusable_remarks(data, strict=options.get("strict", False))
    if options.get("no_table", False) and options.get("features"):
        raise InputError("a folder for the feature table, and none is to be used: leave one of the two options out")

    def opened(columns: tuple[str, ...]) -> ShowerEvents:
        if data.age is None and AGED & set(columns):
            raise InputError(
                f"{dataset} has no shower age, from which {run.folder} learned: "
                "convert it with --protocol matched or 2026"
            )
        if not options.get("no_table", False):
            table = build_table(dataset, options.get("features"), elsewhere=options.get("elsewhere"), ctx=ctx)
            return ShowerEvents(dataset, table.folder, run.task)
        events = ComputedEvents.of(dataset, run.task, columns, ctx)
        with ctx.bars(f"reading {dataset.name}", "files") as progress:
            Dataset.open(dataset, labels=False).fingerprint(progress)
        return events

    return _Source(len(data), opened, (*data.remarks, *remarks))


def _rows(run: Run, file: Path, separator: str | None) -> _Source:
    if file.is_dir():
        raise InputError(f"{run.folder} was trained on a table: give it a table, not a dataset folder")
    config = run.manifest["config"]
    content = read_json(run.checksums.path(f"table/{PLAN_FILE}"))
    if isinstance(content, list):
        raise InputError(f"{run.folder} was trained by a version that guessed what columns are: train it again")
    schema = Schema.from_json(content)
    reserved = {*(config.get(name) or "" for name in ("label", "group", "weight", "split")), *config["id"]}
    frame, identifiers, remarks = read_new_rows(file, schema, reserved, config["id"], separator or config["separator"])
    matrix = np.asfortranarray(frame.to_numpy(), dtype=np.float32)
    events = FrameEvents(matrix, schema.names, hash_file(file), schema.categories)
    return _Source(len(events), lambda columns: events, tuple(remarks), identifiers)


@dataclass(frozen=True)
class _Predictor:
    """What of a run predicts."""

    chain: Chain
    fits: list[SavedFits]
    remarks: tuple[str, ...]
    exported: list[ExportedLearner] = field(default_factory=list)
    """In place of the fits, of an exported run."""

    @classmethod
    def of(cls, run: Run, *, everything: bool, fast: bool) -> _Predictor:
        chain, remarks = run.chain, []
        names = chain.learners if everything else chain.needed
        if fast and chain.shipped in chain.networks:
            remarks.append(
                f"--fast changes nothing: what ships, {chain.shipped}, is one network with the mean weights of its "
                f"{chain.n_fits} fits"
            )
        elif fast:
            chain, names, remarks = chain.of_student(), (STUDENT,), _student_remarks(run)
        if isinstance(run, ExportedRun):
            return cls(chain, [], tuple(remarks), [run.exported(name) for name in names])
        fits = [run.fits(name) for name in names]
        if chain.target_calibration is not None:
            with_estimates = run.fits(chain.target_calibration.learner)
            fits.append(replace(with_estimates, name=fits_of(with_estimates.name), truth=True))
        return cls(chain, fits, tuple(remarks))

    @property
    def columns(self) -> tuple[str, ...]:
        """Features that are needed."""
        cores = CORE_COLUMNS if self.chain.target_calibration else ()
        each = [*(one.columns for one in self.fits), *(one.columns for one in self.exported)]
        return tuple(dict.fromkeys((*(name for columns in each for name in columns), *cores)))


def _pieces(run: Run, source: _Source, predictor: _Predictor, ctx: Context) -> Iterator[Predictions]:
    events = source.opened(predictor.columns)
    ctx = replace(ctx, threads=int(run.manifest["config"]["threads"]))
    with limited_threads(ctx.threads), ctx.bars("predicting", "predictions of fits") as progress:
        if predictor.exported:
            fits = predict_exported(events, predictor.exported, ctx, progress)
        else:
            fits = predict_fits(events, predictor.fits, ctx, progress)
        yield from predictor.chain.stream(fits, events, events.events_fingerprint())


def _student_remarks(run: Run) -> list[str]:
    """Return what predictions of the student cost; refuse a run without one."""
    record = run.manifest.get(STUDENT)
    if not record:
        raise InputError(
            f"{run.folder} has no student for --fast (few rows, another version, or nothing to learn from): "
            "predict without --fast, or train again with fast = true in a file for --config"
        )
    remarks = [student_line(record)]
    if f"meta/{SCORES_FILE}" in run.checksums.files:
        remarks.append("thresholds of the run do not hold for scores of --fast")
    return remarks


def _library_remarks(run: Run) -> tuple[str, ...]:
    """Refuse a run of another version of ours; name the libraries that have changed since the training.

    An export is asked through onnxruntime, whatever it was trained with.
    """
    here = {"stacking": STACKING_VERSION} | ({"features": FEATURES_VERSION} if run.has_grids else {})
    for what, now in here.items():
        made_by = run.manifest.get(f"{what}_version", 0)
        if made_by != now:
            raise InputError(
                f"{run.folder} was made by version {made_by} of the {what}, which is now {now}: train again "
                f"(python cli.py stack --task {run.task.name} --data DATA --run NEW_RUN)"
            )
    if isinstance(run, ExportedRun):
        return ()
    installed, recorded = versions(), run.manifest.get("versions", {})
    changed = [
        f"{name} {recorded[name]} (now {installed[name]})"
        for name in installed.keys() & recorded.keys() - {"python", "polars", "showerstack"}
        if recorded[name] != installed[name]
    ]
    if not changed:
        return ()
    return (f"{run.folder} was trained with {', '.join(sorted(changed))}: last digits of predictions may differ",)
