"""Prediction of new, unlabelled events by a finished run, in memory or streamed to a file; for showers and for tables.

>>> import stacking                                         # doctest: +SKIP
>>> predictions = stacking.load("runs/composition").predict("data/new_events")     # doctest: +SKIP
>>> predictions.labels                                      # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypedDict, Unpack

import joblib
import numpy as np
import polars as pl
from threadpoolctl import threadpool_limits

from features.build import build_table
from features.device import resolve_device
from features.table import feature_code_version
from runtime.arrays import write_frames, write_pieces
from runtime.checksums import Checksums
from runtime.context import Bars, silent
from runtime.errors import InputError
from runtime.files import check_target, hash_file, read_json
from showers.dataset import Dataset
from showers.schema import TASKS, Task
from stacking.decide.classes import stacking_of
from stacking.decide.gamma import SCORES_FILE
from stacking.decide.target import UNITS, fits_of
from stacking.inputs.columns import Plan
from stacking.inputs.computed import ComputedEvents
from stacking.inputs.events import CORE_COLUMNS, Events, FrameEvents, ShowerEvents, unusable_remarks
from stacking.inputs.tables import probabilities, read_new_rows, write_table
from stacking.meta.scorers import REAL_RATIOS, TABLE_EFFICIENCIES, threshold_table
from stacking.run.chain import STUDENT, Chain, Predictions, concatenated, load_chain
from stacking.run.folder import (
    PLAN_FILE,
    learner_folder,
    open_finished,
    required_names,
    stored_arrays,
    student_folder,
)
from stacking.run.identity import stacking_code_version
from stacking.saved_fits import SavedFits, predict_fits
from stacking.student import student_line


class Options(TypedDict, total=False):
    """How a dataset folder is to be predicted."""

    device: str
    """Where features are computed; ``auto`` if not given."""
    workers: int | None
    """Processes; all cores if None."""
    everything: bool
    """Also return the learners that the shipped prediction does not need."""
    fast: bool
    """Ask the student (:mod:`stacking.student`) instead of what ships."""
    features: str | Path | None
    """Folder of the feature table; by default beside the dataset."""
    elsewhere: str | Path | None
    """Folder of the feature table where nothing can be written beside the dataset."""
    no_table: bool
    """Compute features in memory while predicting, only those that are needed: no table is read, built or kept."""
    anyway: bool
    """Predict even if feature code or its libraries have changed since the training; a remark then says so."""
    strict: bool
    """Refuse events that cannot be used, instead of giving them the training prior."""


@dataclass(frozen=True)
class Stream:
    """Predictions that are made while they are taken, piece by piece in the order of the events."""

    n_events: int
    pieces: Iterator[Predictions]
    """To be taken once."""
    remarks: tuple[str, ...] = ()

    def concatenated(self) -> Predictions:
        """Return all of them, with the remarks."""
        return replace(concatenated(list(self.pieces)), remarks=self.remarks)


@dataclass(frozen=True)
class _Asked:
    """Who is asked for a prediction."""

    chain: Chain
    saved: list[SavedFits]
    remarks: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Features that are needed."""
        cores = CORE_COLUMNS if self.chain.target_calibration else ()
        return tuple(dict.fromkeys((*(name for one in self.saved for name in one.columns), *cores)))


@dataclass(frozen=True)
class Bundle:
    """A finished run, ready to predict; see :func:`load`."""

    run: Path
    chain: Chain
    manifest: Mapping[str, Any]
    checksums: Checksums
    """Checksums by which every file is compared before it is used."""
    trusted: bool = False
    """Whether the learners' model files are opened in this process: faster, but a damaged or hostile one can end it."""

    @property
    def task(self) -> Task:
        """What is predicted."""
        return self.chain.task

    def predict(self, dataset: str | Path, *, bars: Bars = silent, **options: Unpack[Options]) -> Predictions:
        """Predict the events of a dataset folder; labels are neither needed nor looked at.

        Parameters
        ----------
        dataset
            Dataset folder; its feature table is built if missing, unless ``no_table`` is asked for.
        options
            See :class:`Options`.

        Raises
        ------
        InputError
            If the folder cannot be used, the run was trained on a table, or on features of other code.
        """
        return self.stream(dataset, bars=bars, **options).concatenated()

    def stream(self, dataset: str | Path, *, bars: Bars = silent, **options: Unpack[Options]) -> Stream:
        """Predict like :meth:`predict`, in pieces of bounded memory: any number of events."""
        if self.task.name not in TASKS:
            raise InputError(f"{self.run} was trained on a table: give it a table, not a dataset folder")
        opened = Dataset.open(dataset, labels=False)
        if not len(opened):
            raise InputError(f"{dataset} holds no events")
        remarks = self._code_remarks(anyway=options.get("anyway", False))
        remarks += unusable_remarks(opened, strict=options.get("strict", False))
        requested = self._asked(everything=options.get("everything", False), fast=options.get("fast", False))
        events = self._opened(Path(dataset), requested, bars, options)
        found = self._stream(events, requested, options.get("workers"), bars)
        return replace(found, remarks=(*opened.remarks, *remarks, *found.remarks))

    def _opened(self, dataset: Path, requested: _Asked, bars: Bars, options: Options) -> ShowerEvents:
        """Return the events of a dataset folder, with their feature table or what computes features in its place."""
        device, workers = resolve_device(options.get("device", "auto")), options.get("workers")
        if not options.get("no_table", False):
            table = build_table(
                dataset,
                options.get("features"),
                elsewhere=options.get("elsewhere"),
                device=device,
                workers=workers,
                bars=bars,
            )
            return ShowerEvents(dataset, table.folder, self.task)
        if options.get("features"):
            raise InputError("a folder for the feature table, and none is to be used: leave one of the two options out")
        events = ComputedEvents.of(dataset, self.task, requested.columns, device=device, workers=workers)
        with bars(f"reading {dataset.name}", "files") as progress:
            Dataset.open(dataset, labels=False).fingerprint(progress)
        return events

    def predict_events(
        self,
        events: Events,
        *,
        workers: int | None = None,
        everything: bool = False,
        fast: bool = False,
        bars: Bars = silent,
    ) -> Predictions:
        """Predict opened events; see :class:`Options`."""
        return self.stream_events(events, workers=workers, everything=everything, fast=fast, bars=bars).concatenated()

    def stream_events(
        self,
        events: Events,
        *,
        workers: int | None = None,
        everything: bool = False,
        fast: bool = False,
        bars: Bars = silent,
    ) -> Stream:
        """Predict opened events in pieces of bounded memory; see :class:`Options`."""
        return self._stream(events, self._asked(everything=everything, fast=fast), workers, bars)

    def _asked(self, *, everything: bool, fast: bool) -> _Asked:
        """Return who is asked."""
        chain, learners, remarks = self.chain, self.chain.learners if everything else self.chain.needed, []
        if fast:
            chain, learners, remarks = self.chain.of_student(), (STUDENT,), self._student_remarks()
        saved = [self.saved_fits(name) for name in learners]
        if chain.target_calibration is not None:
            fits = self.saved_fits(chain.target_calibration.learner)
            saved.append(replace(fits, name=fits_of(fits.name), truth=True))
        if self.manifest.get("code_version") != stacking_code_version():
            remarks.append(
                f"{self.run} was trained by another version of the learners' code: "
                "its saved models are used as they are"
            )
        return _Asked(chain, saved, tuple(remarks))

    def _stream(self, events: Events, requested: _Asked, workers: int | None, bars: Bars) -> Stream:
        return Stream(
            len(events), self._pieces(events, requested.chain, requested.saved, workers, bars), requested.remarks
        )

    def _pieces(
        self, events: Events, chain: Chain, saved: list[SavedFits], workers: int | None, bars: Bars
    ) -> Iterator[Predictions]:
        threads = int(self.manifest["config"]["threads"])
        with threadpool_limits(threads), bars("predicting", "predictions of fits") as progress:
            fits = predict_fits(
                events,
                saved,
                trusted=self.trusted,
                threads=threads,
                workers=max(1, (workers or joblib.cpu_count()) // threads),
                progress=progress,
            )
            yield from chain.stream(fits, events, events.events_fingerprint())

    def _student_remarks(self) -> list[str]:
        """Return what predictions of the student cost; refuse a run without one."""
        record = self.manifest.get(STUDENT)
        if not record:
            raise InputError(
                f"{self.run} has no student for --fast (another version made it, or there was nothing to learn from): "
                "train again, or predict without --fast"
            )
        remarks = [student_line(record)]
        if f"meta/{SCORES_FILE}" in self.checksums.files:
            remarks.append("thresholds of the run do not hold for scores of --fast")
        return remarks

    def thresholds(
        self,
        efficiencies: tuple[float, ...] = TABLE_EFFICIENCIES,
        ratios: tuple[float, ...] = REAL_RATIOS,
    ) -> list[dict[str, Any]]:
        """Return thresholds on gamma scores for your own efficiencies and gamma-to-hadron ratios.

        See :func:`stacking.meta.scorers.threshold_table`; made from out-of-fold scores of the training events.

        Raises
        ------
        InputError
            If this is no gamma run, or an efficiency is outside (0, 1].
        """
        if f"meta/{SCORES_FILE}" not in self.checksums.files:
            raise InputError(f"{self.run} has no thresholds: it was trained for {self.task.name}")
        with np.load(self.checksums.path(f"meta/{SCORES_FILE}"), allow_pickle=False) as stored:
            groups = stored["groups"] if "groups" in stored.files else None
            return threshold_table(stored["labels"], stored["scores"], efficiencies, ratios, groups)

    def _code_remarks(self, *, anyway: bool) -> tuple[str, ...]:
        """Refuse a run whose learners were trained on features of other code, or say so."""
        made_by, now = self.manifest.get("feature_code_version"), feature_code_version()
        if made_by == now:
            return ()
        changed = f"{self.run} was trained on features of other code or libraries ({str(made_by)[:12]}, now {now[:12]})"
        if anyway:
            return (f"{changed}: the learners may be given numbers that they do not know",)
        raise InputError(
            f"{changed}: train again (python cli.py stack --task {self.task.name} --data DATA --run NEW_RUN), "
            "or predict with --anyway"
        )

    def saved_fits(self, name: str) -> SavedFits:
        """Return where a learner's fits are, each file compared with its checksum."""
        if name == STUDENT:
            return SavedFits(name, (student_folder(self.checksums),), tuple(self.manifest[STUDENT]["columns"]), False)
        record = next(row for row in self.manifest["learners"] if row["name"] == name)
        folders = tuple(learner_folder(self.checksums, name, fold) for fold in range(self.chain.n_fits))
        return SavedFits(name, folders, tuple(record["features"]), bool(record["needs_grid"]))

    @classmethod
    def load(cls, run: str | Path, *, trusted: bool = False) -> Self:
        """Open a finished run folder; nothing in it is executed.

        Parameters
        ----------
        run
            The run folder.
        trusted
            For one's own runs: open the learners' model files in this process instead of a limited one of their own
            (:mod:`models.isolated`), because the libraries' parsers of such files are not memory-safe.

        Raises
        ------
        InputError
            If it is not a run folder, not finished, or a file is not the one that was written.
        """
        checksums, manifest = open_finished(Path(run))
        checksums = Checksums.open(checksums.folder, required_names(manifest))
        return cls(Path(run), load_chain(checksums, manifest), manifest, checksums, trusted)


def load(run: str | Path, *, trusted: bool = False) -> Bundle:
    """Open a finished run folder for predictions; see :meth:`Bundle.load`."""
    return Bundle.load(run, trusted=trusted)


def predict_table(
    bundle: Bundle,
    file: Path,
    *,
    separator: str | None = None,
    fast: bool = False,
    workers: int | None = None,
    bars: Bars = silent,
) -> tuple[Predictions, pl.DataFrame]:
    """Predict the rows of a new table with a finished run on tables.

    Raises
    ------
    InputError
        If the run was trained on showers, or the table lacks columns.
    """
    file = Path(file)
    if bundle.task.name in TASKS:
        raise InputError(f"{bundle.run} was trained on showers: give it a dataset folder, not a table")
    config = bundle.manifest["config"]
    reserved = {config["label"], config["group"] or "", *config["id"]}
    separator = separator or config["separator"]
    found = Plan.from_json(read_json(bundle.checksums.path(f"table/{PLAN_FILE}")))
    frame, remarks = read_new_rows(file, found, reserved, config["id"], separator)
    matrix = np.asfortranarray(found.encoded(frame, file).to_numpy(), dtype=np.float32)
    events = FrameEvents(matrix, found.names, hash_file(file), found.categories)
    predictions = bundle.predict_events(events, fast=fast, workers=workers, bars=bars)
    predictions = replace(predictions, remarks=(*remarks, *predictions.remarks))
    names = frame.select([name for name in config["id"] if name in frame.columns])
    return predictions, probabilities(predictions.log_proba, bundle.task.classes, names)


def predict_table_to_file(
    bundle: Bundle, file: Path, out: Path, *, separator: str | None = None, fast: bool = False, bars: Bars = silent
) -> Predictions:
    """Predict a new table; write class probabilities and the hashes of run and table, as Parquet or CSV by ``out``."""
    predictions, frame = predict_table(bundle, file, separator=separator, fast=fast, bars=bars)
    origin = {"config_hash": predictions.config_hash, "test_fingerprint": predictions.test_fingerprint}
    write_table(out, frame.with_columns(pl.lit(value).alias(name) for name, value in origin.items()))
    return predictions


TABLE_SUFFIXES = (".csv", ".parquet", ".pq")


@dataclass(frozen=True)
class Written:
    """What was written."""

    n_events: int
    remarks: tuple[str, ...]
    """What whoever uses the predictions should know."""


def predict_to_file(
    run: Path,
    data: Path,
    out: Path,
    *,
    device: str = "auto",
    workers: int | None = None,
    anyway: bool = False,
    trusted: bool = False,
    features: Path | None = None,
    no_table: bool = False,
    fast: bool = False,
    separator: str | None = None,
    strict: bool = False,
    bars: Bars = silent,
) -> Written:
    """Predict new data with a finished run and write the result, in pieces: memory does not grow with the events.

    A dataset folder gives a file like ``predictions.npz``, or by the name of ``out`` a table (CSV or Parquet) of
    class probabilities per event; a table, for a run on tables, class probabilities per row. The feature table of the
    events goes to ``features``, by default beside the data, or beside ``out`` where the data cannot be written; with
    ``no_table`` there is none.

    Raises
    ------
    InputError
        If run, data or ``out`` cannot be used; ``out`` is checked before any work.
    """
    bundle = load(run, trusted=trusted)
    on_table = bundle.task.name not in TASKS
    check_target(Path(out), TABLE_SUFFIXES if on_table else (".npz", *TABLE_SUFFIXES))
    if on_table:
        predictions = predict_table_to_file(bundle, Path(data), Path(out), separator=separator, fast=fast, bars=bars)
        return Written(len(predictions.log_proba), predictions.remarks)
    found = bundle.stream(
        data,
        device=device,
        workers=workers,
        anyway=anyway,
        features=features,
        no_table=no_table,
        elsewhere=Path(out).with_name(f"{Path(out).name}.features"),
        fast=fast,
        strict=strict,
        bars=bars,
    )
    if Path(out).suffix.lower() in TABLE_SUFFIXES:
        write_frames(Path(out), _frames(found.pieces, bundle.task))
    else:
        write_pieces(Path(out), found.n_events, map(stored_arrays, found.pieces))
    return Written(found.n_events, found.remarks)


def _frames(pieces: Iterable[Predictions], task: Task) -> Iterator[pl.DataFrame]:
    done = 0
    for piece in pieces:
        frame = event_table(piece, task)
        yield frame.with_columns(pl.col("event") + done)
        done += len(frame)


def event_table(predictions: Predictions, task: Task) -> pl.DataFrame:
    """Return predictions of showers as a table.

    Columns: event, ``p_<class>``, the decided class (composition) or the score (gamma), energy and core with errors
    where a learner learned them (:data:`stacking.decide.target.UNITS`), hashes of run and events.
    """
    frame = probabilities(predictions.log_proba, task.classes).rename({"row": "event"})
    frame = frame.drop("predicted").with_columns(stacking_of(task).columns(predictions.arrays, task))
    estimates = {name: values for name, values in predictions.arrays.items() if name in UNITS}
    frame = frame.with_columns(pl.Series(name, values) for name, values in estimates.items())
    origin = {"config_hash": predictions.config_hash, "test_fingerprint": predictions.test_fingerprint}
    return frame.with_columns(pl.lit(value).alias(name) for name, value in origin.items())
