"""Stacking on a table of any origin: Parquet or CSV, numeric columns, a label column, two or more classes.

The same engine as for showers, with the learners that need no grid. Results are judged on nested out-of-fold
predictions of the training table; a label column in the test table is dropped while reading and never seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from models.base import Batch
from models.devices import devices_for
from models.registry import LearnerSpec
from showers.execution.progress import Bars, silent
from showers.schema import TASKS, InputError, Task
from showers.storage.files import atomic_path, hash_file, write_json
from stacking.bundle import Bundle
from stacking.events import TRUTH_COLUMNS, Events, TableEvents, truth_file
from stacking.predict.chain import Predictions
from stacking.reading import read_table, scan_table
from stacking.run.config import TableConfig
from stacking.run.engine import Job, StackResult, run
from stacking.table_metrics import table_metrics

MAX_CLASSES = 100
"""More different labels are taken for a quantity, not for classes."""
TASK_NAME = "table"
PREDICTIONS_TABLE = "predictions.parquet"
METRICS_FILE = "metrics_table.json"

__all__ = ["TableConfig", "predict_table", "predict_table_to_file", "stack_table"]


@dataclass(frozen=True)
class FrameEvents(Events):
    """New rows in memory, to be predicted by a bundle."""

    matrix: np.ndarray
    """(N, F) float32, Fortran-ordered."""
    columns: tuple[str, ...]
    content_hash: str
    """Of the file they were read from."""

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
        table = np.asfortranarray(self.matrix[rows][:, position])
        return Batch(index=np.asarray(rows, dtype=np.int64), table=table, columns=columns)

    def labels(self) -> np.ndarray:
        """New rows have none."""
        raise InputError("rows to be predicted have no labels")

    def fingerprint(self) -> str:
        """Return the hash of the file that the rows were read from."""
        return self.content_hash


def stack_table(config: TableConfig, *, bars: Bars = silent) -> StackResult:
    """Train on a table, write ``predictions.parquet`` and ``metrics_table.json`` into the run folder.

    ``predictions.parquet`` holds, per row of the test table (without one: of the training table, out-of-fold), the
    probability of each class and the most probable one.

    Raises
    ------
    InputError
        For a file that cannot be read, a missing column, labels that are missing or not classes, infinite values, a
        test table that lacks columns.
    """
    train = read_table(config.table)
    label, classes = _labels(train, config.table, config.label)
    group = _groups(train, config.table, config.group)
    reserved = {config.label, config.group}
    columns, remarks = _numeric_columns(train, config.table, reserved)
    frame = _checked(train, config.table, columns)
    truth = pl.DataFrame({name: v for name, v in zip(TRUTH_COLUMNS, (label, group), strict=True) if v is not None})
    folder = config.run / "table"
    hashes = {"train": hash_file(config.table)}
    test_frame, test = None, None
    if config.test_table:
        test_frame, more = _test_rows(config.test_table, columns, reserved)
        remarks += more
        hashes["test"] = hash_file(config.test_table)
        test = TableEvents(folder / "test.parquet", columns, hashes["test"])

    def prepare() -> None:
        write_table(folder / "train.parquet", frame)
        write_table(truth_file(folder / "train.parquet"), truth)
        if test_frame is not None:
            write_table(folder / "test.parquet", test_frame)

    return run(
        Job(
            config=config,
            task=Task(TASK_NAME, classes),
            train=TableEvents(folder / "train.parquet", columns, hashes["train"], grouped=group is not None),
            test=test,
            devices=devices_for(config.learner_specs(Task(TASK_NAME, classes), grids=False), config.device),
            prepare=prepare,
            conclude=lambda manifest: _write_results(config.run, manifest, classes, label),
            remarks=tuple(remarks),
        ),
        bars=bars,
    )


def _write_results(folder: Path, manifest: Mapping[str, Any], classes: tuple[str, ...], labels: np.ndarray) -> None:
    systems = [row["name"] for row in manifest["learners"] if row["status"] == "ok"] + ["average", "stack"]
    shipped = "stack" if manifest["gate"]["shipped"] else manifest["gate"]["best_learner"]
    out_of_fold = {name: _out_of_fold(folder, name, classes) for name in systems}
    judged = _judged_rows(folder, bool(manifest["data"]["n_holdout"]))
    metrics: dict[str, Any] = {
        "judged_on": f"{manifest['judged']['on']} of the training table",
        "shipped": shipped,
        "systems": {
            name: table_metrics(labels[judged], log_proba[judged], classes) for name, log_proba in out_of_fold.items()
        },
    }
    write_json(folder / METRICS_FILE, metrics)
    file = folder / "test" / f"{shipped}.npz"
    if manifest["data"]["n_test"]:
        with np.load(file, allow_pickle=False) as stored:
            log_proba = stored["log_proba"]
    else:
        log_proba = out_of_fold[shipped]
    write_table(folder / PREDICTIONS_TABLE, probabilities(log_proba, classes))


def _judged_rows(folder: Path, holdout: bool) -> np.ndarray:
    """Return which rows what ships was judged on, (N,) bool: the outer holdout, or all that were predicted."""
    frame = pl.read_parquet(folder / "oof" / "stack.parquet", glob=False)
    judged = frame[:, -1].is_not_nan() & ((frame["fold"] < 0) | (not holdout))
    return judged.to_numpy()


def _out_of_fold(folder: Path, name: str, classes: tuple[str, ...]) -> np.ndarray:
    frame = pl.read_parquet(folder / "oof" / f"{name}.parquet", columns=[f"logp_{c}" for c in classes], glob=False)
    return frame.to_numpy()


def probabilities(log_proba: np.ndarray, classes: tuple[str, ...]) -> pl.DataFrame:
    """Return the table of class probabilities: row, ``p_<class>``, predicted class."""
    best = np.argmax(log_proba, axis=1)
    return pl.DataFrame(
        {
            "row": np.arange(len(log_proba), dtype=np.uint32),
            **{f"p_{name}": np.exp(log_proba[:, k]) for k, name in enumerate(classes)},
            "predicted": pl.Series([classes[k] for k in best], dtype=pl.String),
        }
    )


def predict_table(
    bundle: Bundle, file: Path, *, fast: bool = False, bars: Bars = silent
) -> tuple[Predictions, pl.DataFrame]:
    """Predict the rows of a new table with a finished run on tables.

    Raises
    ------
    InputError
        If the run was trained on showers, or the table lacks columns.
    """
    if bundle.task.name in TASKS:
        raise InputError(f"{bundle.run} was trained on showers: give it a dataset folder, not a table")
    columns = tuple(bundle.manifest["learners"][0]["features"])
    config = bundle.manifest["config"]
    frame, _ = _test_rows(Path(file), columns, {config["label"], config["group"]})
    events = FrameEvents(np.asfortranarray(frame.to_numpy(), dtype=np.float32), columns, hash_file(Path(file)))
    predictions = bundle.predict_events(events, fast=fast, bars=bars)
    return predictions, probabilities(predictions.log_proba, bundle.task.classes)


def predict_table_to_file(
    bundle: Bundle, file: Path, out: Path, *, fast: bool = False, bars: Bars = silent
) -> Predictions:
    """Predict a new table; write class probabilities and the hashes of run and table, as Parquet or CSV by ``out``."""
    predictions, frame = predict_table(bundle, file, fast=fast, bars=bars)
    origin = {"config_hash": predictions.config_hash, "test_fingerprint": predictions.test_fingerprint}
    write_table(out, frame.with_columns(pl.lit(value).alias(name) for name, value in origin.items()))
    return predictions


def _labels(frame: pl.DataFrame, file: Path, column: str) -> tuple[np.ndarray, tuple[str, ...]]:
    values = _column(frame, file, column, "label")
    found = values.unique().sort()
    if len(found) < 2:
        raise InputError(f"{file}: label column {column!r} holds one value only: expected 2 or more classes")
    if len(found) > MAX_CLASSES:
        raise InputError(f"{file}: label column {column!r} holds {len(found)} different values, at most {MAX_CLASSES}")
    codes = values.replace_strict(found, pl.Series(range(len(found)), dtype=pl.Int64), return_dtype=pl.Int64)
    return codes.to_numpy().astype(np.int64), tuple(str(value) for value in found)


def _groups(frame: pl.DataFrame, file: Path, column: str | None) -> np.ndarray | None:
    if column is None:
        return None
    return _column(frame, file, column, "group").rank("dense").to_numpy().astype(np.int64)


def _column(frame: pl.DataFrame, file: Path, column: str, what: str) -> pl.Series:
    if column not in frame.columns:
        raise InputError(f"{file} has no column {column!r} ({what}): it has {', '.join(frame.columns[:20])}")
    values = frame[column]
    empty = values.is_null() | (values.is_nan() if values.dtype.is_float() else False)
    if empty.any():
        first = int(empty.arg_true()[0])
        raise InputError(f"{file}: row {first}, column {column!r} is empty: every row needs a {what}")
    return values


def _numeric_columns(frame: pl.DataFrame, file: Path, reserved: set[str | None]) -> tuple[tuple[str, ...], list[str]]:
    columns: list[str] = []
    skipped: list[str] = []
    for name, dtype in frame.schema.items():
        if name not in reserved:
            (columns if dtype.is_numeric() or dtype == pl.Boolean else skipped).append(name)
    if not columns:
        raise InputError(f"{file} has no numeric column beside {', '.join(sorted(filter(None, reserved)))}")
    remarks = [f"{file}: columns that are not numeric are ignored: {', '.join(skipped)}"] if skipped else []
    return tuple(columns), remarks


def _test_rows(file: Path, columns: tuple[str, ...], reserved: set[str | None]) -> tuple[pl.DataFrame, list[str]]:
    header = scan_table(file).collect_schema().names()
    missing = [name for name in columns if name not in header]
    if missing:
        raise InputError(f"{file} lacks columns of the training table: {', '.join(missing)}")
    extra = [name for name in header if name not in columns and name not in reserved]
    remarks = [f"{file}: columns that the training table lacks are ignored: {', '.join(extra)}"] if extra else []
    return _checked(read_table(file, list(columns)), file, columns), remarks


def _checked(frame: pl.DataFrame, file: Path, columns: tuple[str, ...]) -> pl.DataFrame:
    for name in columns:
        if not (frame.schema[name].is_numeric() or frame.schema[name] == pl.Boolean):
            raise InputError(f"{file}: column {name!r} holds {frame.schema[name]}, expected numbers")
    found = frame.select(pl.col(name).cast(pl.Float32).fill_null(float("nan")) for name in columns)
    for name in columns:
        infinite = found[name].is_infinite()
        if infinite.any():
            row = int(infinite.arg_true()[0])
            raise InputError(f"{file}: row {row}, column {name!r} is infinite in float32, expected a number or nothing")
    return found


def write_table(file: Path, frame: pl.DataFrame) -> None:
    """Write a table atomically: CSV by its name, Parquet otherwise."""
    with atomic_path(file) as temporary:
        if file.suffix.lower() == ".csv":
            frame.write_csv(temporary)
        else:
            frame.write_parquet(temporary)
