"""Predictions of new data with a finished run, written to a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from showers.execution.progress import Bars, silent
from showers.schema import TASKS, Task
from showers.storage.targets import check_target
from stacking.bundle import load
from stacking.predict.chain import Predictions
from stacking.predict.truth import UNITS
from stacking.predict.writing import write_frames, write_pieces
from stacking.procedure_registry import procedure_of
from stacking.run.folder import stored_arrays
from stacking.tables.output import probabilities
from stacking.tables.predict import predict_table_to_file

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
    where a learner was taught them (:data:`stacking.predict.truth.UNITS`), hashes of run and events.
    """
    frame = probabilities(predictions.log_proba, task.classes).rename({"row": "event"})
    frame = frame.drop("predicted").with_columns(procedure_of(task).columns(predictions.arrays, task))
    estimates = {name: values for name, values in predictions.arrays.items() if name in UNITS}
    frame = frame.with_columns(pl.Series(name, values) for name, values in estimates.items())
    origin = {"config_hash": predictions.config_hash, "test_fingerprint": predictions.test_fingerprint}
    return frame.with_columns(pl.lit(value).alias(name) for name, value in origin.items())
