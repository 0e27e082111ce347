"""Stacking on a table of any origin: Parquet, CSV or TSV, a label column, two or more classes.

The same engine as for showers, with learners and settings made for tables. Results are judged on held-out rows of the
training table; a label column in the test table is dropped while reading and never seen here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from models.devices import devices_for
from scoring.metrics.table import table_metrics
from showers.execution.progress import Bars, silent
from showers.schema import InputError, Task
from showers.storage.files import hash_file, write_json
from stacking.events import TRUTH_COLUMNS, TableEvents, truth_file
from stacking.run.config import TableConfig
from stacking.run.engine import Job, StackResult, run
from stacking.tables.columns import Plan, plan
from stacking.tables.output import probabilities, write_table
from stacking.tables.reading import REPEATED, read_table, scan_table
from stacking.tables.repeated import repeated_remarks

MAX_CLASSES = 100
"""More different labels are taken for a quantity, not for classes."""
TASK_NAME = "table"
PREDICTIONS_TABLE = "predictions.parquet"
METRICS_FILE = "metrics_table.json"
PLAN_FILE = "columns.json"
"""In the run's folder ``table``: what each column is."""


def stack_table(
    config: TableConfig,
    *,
    bars: Bars = silent,
    say: Callable[[str], None] = lambda line: None,
    began: float | None = None,
) -> StackResult:
    """Train on a table, write ``predictions.parquet`` and ``metrics_table.json`` into the run folder.

    ``predictions.parquet`` holds, per row of the test table (without one: of the training table, out-of-fold), the
    identifiers, the probability of each class and the most probable one. A time limit counts from ``began``
    (seconds since 1970), by default from when the table has been read.

    Raises
    ------
    InputError
        For a file that cannot be read, a missing column, labels that are missing or not classes, infinite values, a
        test table that lacks columns. A refused run leaves its folder free.
    """
    train = read_table(config.table, separator=config.separator)
    label, classes = _labels(train, config.table, config.label)
    group = _groups(train, config.table, config.group)
    for name in config.id:
        _present(train, config.table, name, "identifier")
    reserved = {config.label, *((config.group,) if config.group else ()), *config.id}
    found, remarks = plan(train, config.table, reserved, config.columns)
    remarks = [*config.learner_remarks(), *_header_remarks(train, config.table), *remarks]
    resolved, more = config.for_rows(label, classes)
    remarks += more
    frame = found.encoded(train, config.table)
    truth = pl.DataFrame({name: v for name, v in zip(TRUTH_COLUMNS, (label, group), strict=True) if v is not None})
    folder, task = config.run / "table", Task(TASK_NAME, classes)
    hashes = {"train": hash_file(config.table)}
    test_frame, test, test_raw = None, None, None
    if config.test_table:
        test_raw, more = read_new_rows(config.test_table, found, reserved, config.id, config.separator)
        remarks += more
        test_frame = found.encoded(test_raw, config.test_table)
        hashes["test"] = hash_file(config.test_table)
        test = TableEvents(folder / "test.parquet", found.names, hashes["test"], categories=found.categories)
    remarks += repeated_remarks(frame, label, test_frame)

    def prepare() -> None:
        write_table(folder / "train.parquet", frame)
        write_table(truth_file(folder / "train.parquet"), truth)
        write_json(folder / PLAN_FILE, found.as_json())
        if test_frame is not None:
            write_table(folder / "test.parquet", test_frame)

    names = train if test_raw is None else test_raw
    identifiers = names.select([name for name in config.id if name in names.columns])
    return run(
        Job(
            config=resolved,
            task=task,
            train=TableEvents(
                folder / "train.parquet",
                found.names,
                hashes["train"],
                grouped=group is not None,
                categories=found.categories,
            ),
            test=test,
            devices=devices_for(config.learner_specs(task, grids=False), config.device),
            prepare=prepare,
            began=began,
            conclude=lambda manifest: _write_results(config.run, manifest, classes, label, identifiers),
            remarks=tuple(remarks),
        ),
        bars=bars,
        say=say,
    )


def _header_remarks(frame: pl.DataFrame, file: Path) -> list[str]:
    repeated = [name for name in frame.columns if REPEATED in name and name.partition(REPEATED)[0] in frame.columns]
    remarks = [f"{file}: a second column {name.partition(REPEATED)[0]!r} is called {name!r}" for name in repeated]
    if len(frame.columns) == 1:
        remarks.append(f"{file} has one column only: is there another --separator?")
    return remarks


def _write_results(
    folder: Path, manifest: Mapping[str, Any], classes: tuple[str, ...], labels: np.ndarray, identifiers: pl.DataFrame
) -> None:
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
    write_table(folder / PREDICTIONS_TABLE, probabilities(log_proba, classes, identifiers))


def _judged_rows(folder: Path, holdout: bool) -> np.ndarray:
    """Return which rows what ships was judged on, (N,) bool: the outer holdout, or all that were predicted."""
    frame = pl.read_parquet(folder / "oof" / "stack.parquet", glob=False)
    judged = frame[:, -1].is_not_nan() & ((frame["fold"] < 0) | (not holdout))
    return judged.to_numpy()


def _out_of_fold(folder: Path, name: str, classes: tuple[str, ...]) -> np.ndarray:
    frame = pl.read_parquet(folder / "oof" / f"{name}.parquet", columns=[f"logp_{c}" for c in classes], glob=False)
    return frame.to_numpy()


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


def _present(frame: pl.DataFrame, file: Path, column: str, what: str) -> pl.Series:
    if column not in frame.columns:
        alone = " (one column only: is there another --separator?)" if len(frame.columns) == 1 else ""
        raise InputError(f"{file} has no column {column!r} ({what}): it has {', '.join(frame.columns[:20])}{alone}")
    return frame[column]


def _column(frame: pl.DataFrame, file: Path, column: str, what: str) -> pl.Series:
    values = _present(frame, file, column, what)
    empty = values.is_null() | (values.is_nan() if values.dtype.is_float() else False)
    if empty.any():
        first = int(empty.arg_true()[0])
        raise InputError(f"{file}: row {first}, column {column!r} is empty: every row needs a {what}")
    return values


def read_new_rows(
    file: Path, found: Plan, reserved: set[str], identifiers: Sequence[str], separator: str | None
) -> tuple[pl.DataFrame, list[str]]:
    """Read rows to be predicted: the columns of training and, where they are there, identifiers; never a label.

    Raises
    ------
    InputError
        If the table cannot be read or lacks columns.
    """
    header = scan_table(file, separator).collect_schema().names()
    missing = [name for name in found.names if name not in header]
    if missing:
        raise InputError(f"{file} lacks columns of the training table: {', '.join(missing)}")
    extra = [name for name in header if name not in found.names and name not in reserved]
    remarks = [f"{file}: columns that the training table lacks are ignored: {', '.join(extra)}"] if extra else []
    names = [name for name in identifiers if name in header]
    frame = read_table(file, [*found.names, *names], separator)
    for column in found.columns:
        unknown = column.unknown(frame[column.name])
        if unknown:
            remarks.append(
                f"{file}: column {column.name!r} holds {', '.join(map(repr, unknown[:5]))}, which training rows do not "
                "have: taken as missing"
            )
    return frame, remarks
