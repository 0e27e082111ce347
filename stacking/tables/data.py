"""A user's table: labels, groups and identifiers as they are written, rows as events, posteriors beside them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import polars as pl

from showerstack.models.base.learner import Batch
from showerstack.models.base.spec import LearnerSpec
from showerstack.runtime.context import Context
from showerstack.runtime.errors import Changed, InputError
from showerstack.runtime.files import atomic_path, file_state, hash_file
from showerstack.runtime.logs import remark
from showerstack.runtime.tables import column_names, read_table
from showerstack.scoring.metrics.classes import table_metrics
from showerstack.showers.schema import Task
from showerstack.showers.source import weight_ratios
from showerstack.stacking.config import TableConfig
from showerstack.stacking.events import Data, Events
from showerstack.stacking.folder import RunFolder
from showerstack.stacking.layout import LABELS_TABLE
from showerstack.stacking.remarks import heap_remarks, repeated_remarks, telling_remarks, weight_remarks
from showerstack.stacking.sample import Labelled, Sample
from showerstack.stacking.tables.columns import CATEGORY, Schema, as_text, learned_columns

LOG = logging.getLogger(__name__)

LABEL_COLUMNS = ("label", "group", "weight", "fold")
"""Columns of the file beside a training table: apart from it, so that a table may have columns of any name."""
ROW_GROUP = 1 << 16
"""Rows of a row group in the Parquet files of a run on a table."""
MAX_CLASSES = 100
"""More different labels are taken for a quantity, not for classes."""
MAX_FOLDS = 100


def added_columns(classes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the columns that predictions add to identifiers."""
    return ("row", *(f"p_{name}" for name in classes), "predicted")


def probabilities(
    log_proba: np.ndarray, classes: tuple[str, ...], identifiers: pl.DataFrame | None = None, first: int = 0
) -> pl.DataFrame:
    """Return the table of class probabilities: row (counted from ``first``), identifiers, ``p_<class>``, predicted."""
    best = np.argmax(log_proba, axis=1)
    row, *shares, predicted = added_columns(classes)
    return pl.DataFrame(
        {
            row: np.arange(first, first + len(log_proba), dtype=np.uint32),
            **({} if identifiers is None else {name: identifiers[name] for name in identifiers.columns}),
            **{name: np.exp(log_proba[:, k]) for k, name in enumerate(shares)},
            predicted: pl.Series([classes[k] for k in best], dtype=pl.String),
        }
    )


def write_table(file: Path, frame: pl.DataFrame) -> None:
    """Write a table atomically: CSV by its name, Parquet otherwise."""
    with atomic_path(file) as temporary:
        if file.suffix.lower() == ".csv":
            frame.write_csv(temporary)
        else:
            frame.write_parquet(temporary, row_group_size=ROW_GROUP)


def read_new_rows(
    file: Path, schema: Schema, reserved: set[str], identifiers: Sequence[str], separator: str | None
) -> tuple[pl.DataFrame, pl.DataFrame, list[str]]:
    """Read rows to be predicted, never a label.

    Returns
    -------
    encoded
        The columns of training as float32.
    identifiers
        Those that the file has, as they are written.
    remarks
        On columns that are ignored, values that are taken as missing, and columns that are not as in training.
    """
    header = column_names(file, separator)
    missing = [name for name in schema.names if name not in header]
    if missing:
        raise InputError(f"{file} lacks columns of the training table: {', '.join(missing)}")
    extra = [name for name in header if name not in schema.names and name not in reserved]
    remarks = [f"{file}: columns that the training table lacks are ignored: {', '.join(extra)}"] if extra else []
    names = [name for name in identifiers if name in header]
    frame = read_table(file, [*schema.names, *names], separator)
    encoded, more = schema.encoded(frame, file)
    return encoded, frame.select(names), [*remarks, *more, *schema.unlike_remarks(encoded, file)]


def read_labels(frame: pl.DataFrame, file: Path, column: str) -> tuple[np.ndarray, tuple[str, ...], str]:
    """Return (N,) int64 class numbers, the classes as text, and the type of the labels.

    Classes are in the order of their values where all are numbers, else of the alphabet.
    """
    values = _complete(frame, file, column, "label")
    text = as_text(values)
    names = text.unique().to_list()
    if len(names) < 2:
        raise InputError(f"{file}: label column {column!r} holds one value only: expected 2 or more classes")
    if len(names) > MAX_CLASSES:
        raise InputError(f"{file}: label column {column!r} holds {len(names)} different values, at most {MAX_CLASSES}")
    numbers = pl.Series(names).cast(pl.Float64, strict=False)
    order = sorted(zip([0.0] * len(names) if numbers.null_count() else numbers.to_list(), names, strict=True))
    classes, dtype = tuple(name for _, name in order), values.dtype
    kinds = (("bool", dtype == pl.Boolean), ("int", dtype.is_integer()), ("float", dtype.is_float()), ("str", True))
    return class_positions(text, classes), classes, next(kind for kind, fits in kinds if fits)


def read_groups(frame: pl.DataFrame, file: Path, column: str | None) -> np.ndarray | None:
    """Return (N,) int64 group numbers; None without such a column."""
    if column is None:
        return None
    values = _complete(frame, file, column, "group")
    comparable = values if values.dtype.is_numeric() else as_text(values)
    return comparable.rank("dense").to_numpy().astype(np.int64)


def counted_in(groups: np.ndarray | None) -> str:
    """Return what is one observation in the errors of rows of groups (N,), in words."""
    return "rows" if groups is None else f"groups of rows, {len(np.unique(groups)):,} of them"


def read_weights(frame: pl.DataFrame, file: Path, column: str | None) -> np.ndarray | None:
    """Return (N,) float64 weights of mean 1, all positive; None without such a column."""
    if column is None:
        return None
    stored = _complete(frame, file, column, "weight")
    if not (stored.dtype.is_numeric() or stored.dtype == pl.String):
        raise InputError(f"{file}: column {column!r} holds {stored.dtype}, expected weights")
    weights = stored.cast(pl.Float64, strict=False)
    wrong = (~(weights.is_finite() & (weights > 0))).fill_null(True)
    if wrong.any():
        row = int(wrong.arg_true()[0])
        raise InputError(f"{file}: row {row}, column {column!r} holds {stored[row]!r}, expected a weight above 0")
    return weight_ratios(weights.to_numpy())


def read_folds(
    frame: pl.DataFrame, file: Path, column: str | None, labels: np.ndarray, classes: tuple[str, ...]
) -> np.ndarray | None:
    """Return the (N,) int64 fold of each row, counted from 0; None without such a column."""
    if column is None:
        return None
    folds = as_text(_complete(frame, file, column, "fold")).rank("dense").to_numpy().astype(np.int64) - 1
    if not 1 < (n_folds := int(folds.max()) + 1) <= MAX_FOLDS:
        raise InputError(f"{file}: column {column!r} has {n_folds} folds, expected 2 to {MAX_FOLDS}")
    for k, name in enumerate(classes):
        if len(np.unique(folds[labels == k])) < 2:
            raise InputError(f"{file}: class {name!r} is in one fold of column {column!r} only: it needs two at least")
    return folds


def check_identifiers(frame: pl.DataFrame, file: Path, names: Sequence[str], classes: tuple[str, ...]) -> None:
    """Refuse identifiers that are not there, or named as columns of the predictions are."""
    for name in names:
        if _present(frame, file, name, "identifier").dtype.is_nested():
            raise InputError(
                f"{file}: column {name!r} holds {frame[name].dtype}, expected text or numbers (identifier)"
            )
        if name in added_columns(classes):
            raise InputError(
                f"{file}: predictions have a column {name!r} of their own: rename the identifier, or leave it out "
                "by naming the columns to learn from (--columns)"
            )


def _complete(frame: pl.DataFrame, file: Path, column: str, what: str) -> pl.Series:
    values = _present(frame, file, column, what)
    if values.dtype.is_nested() or values.dtype == pl.Binary:
        raise InputError(f"{file}: column {column!r} holds {values.dtype}, expected text or numbers ({what})")
    empty = as_text(values).is_null() | (values.is_nan() if values.dtype.is_float() else False)
    if empty.any():
        first = int(empty.arg_true()[0])
        raise InputError(f"{file}: row {first}, column {column!r} is empty: every row needs a {what}")
    return values


def _present(frame: pl.DataFrame, file: Path, column: str, what: str) -> pl.Series:
    if column not in frame.columns:
        alone = " (one column only: is there another --separator?)" if len(frame.columns) == 1 else ""
        there = ", ".join(map(repr, frame.columns[:20]))
        raise InputError(f"{file} has no column {column!r} ({what}): it has {there}{alone}")
    return frame[column]


def class_positions(values: pl.Series, classes: tuple[str, ...]) -> np.ndarray:
    """Return the class number of each label by its text, (N,) int64, -1 where it is missing or none of the classes."""
    by_text = {name: k for k, name in enumerate(classes)}
    return np.array([by_text.get(text, -1) for text in as_text(values).to_list()], dtype=np.int64)


@dataclass(frozen=True)
class TableEvents(Events):
    """A Parquet file of float32 columns that :func:`write_table` wrote; training labels lie beside it."""

    file: Path
    columns: tuple[str, ...]
    content_hash: str
    categories: tuple[str, ...] = ()
    """Columns that hold codes of categories."""

    def __len__(self) -> int:
        return int(pl.scan_parquet(self.file, glob=False).select(pl.len()).collect().item())

    @property
    def location(self) -> Path:
        return self.file

    def absolute(self) -> Self:
        return replace(self, file=self.file.absolute())

    def columns_for(self, spec: LearnerSpec) -> tuple[str, ...]:
        """Return all columns: named feature sets mean nothing in a foreign table."""
        return self.columns

    def batch(self, rows: np.ndarray, columns: tuple[str, ...], *, grids: bool) -> Batch:
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
        categories = tuple(name for name in columns if name in self.categories)
        return Batch(index=rows, table=table, columns=columns, categories=categories)

    def known(self) -> Labelled:
        """Return :data:`LABEL_COLUMNS`, as far as the run names such columns."""
        beside = pl.read_parquet(self.file.with_name(Path(LABELS_TABLE).name), glob=False)
        label, group, weight, fold = (
            beside[name].to_numpy() if name in beside.columns else None for name in LABEL_COLUMNS
        )
        assert label is not None
        return Labelled(label, self.passes_evaluation_cuts(), groups=group, weights=weight, folds=fold)

    def fingerprint(self) -> str:
        """Return the hash of the file that the user gave."""
        return self.content_hash


def read_row_group(file: Path, number: int, columns: tuple[str, ...]) -> pl.DataFrame:
    """Read columns of one row group of a table that :func:`write_table` wrote."""
    return pl.scan_parquet(file, glob=False).select(columns).slice(number * ROW_GROUP, ROW_GROUP).collect()


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
        return

    def columns_for(self, spec: LearnerSpec) -> tuple[str, ...]:
        return self.columns

    def batch(self, rows: np.ndarray, columns: tuple[str, ...], *, grids: bool) -> Batch:
        places = [self.columns.index(name) for name in columns]
        categories = tuple(name for name in columns if name in self.categories)
        table = np.asfortranarray(self.matrix[rows][:, places])
        return Batch(index=np.asarray(rows, dtype=np.int64), table=table, columns=columns, categories=categories)

    def known(self) -> Labelled:
        raise InputError("rows to be predicted have no labels")

    def fingerprint(self) -> str:
        """Return the hash of the file that the rows were read from."""
        return self.content_hash


@dataclass(frozen=True, kw_only=True)
class TableData(Data):
    """The user's table as it was read, and its rows as events."""

    schema: Schema
    frame: pl.DataFrame
    """The columns of training as float32."""
    labels: pl.DataFrame
    """Labels, groups, weights and folds, under the names of :data:`LABEL_COLUMNS`."""
    identifiers: pl.DataFrame
    """Of the rows that are predicted: the test table's, without one the training table's."""
    test_frame: pl.DataFrame | None

    def write(self) -> None:
        """Write the tables that fits read, and the schema that new tables are read by."""
        run = RunFolder(self.config.run)
        write_table(run.train_table, self.frame)
        write_table(run.labels_table, self.labels)
        run.write_columns(self.schema.as_json())
        if self.test_frame is not None:
            write_table(run.test_table, self.test_frame)

    def write_results(
        self, on: str, shipped: str, scored: Mapping[str, tuple[Sample, np.ndarray]], log_proba: np.ndarray
    ) -> None:
        """Write the scores of all systems, and the table of predictions."""
        run, classes = RunFolder(self.config.run), self.task.classes
        scores = {
            name: table_metrics(rows.labels, z, classes, rows.weights, rows.groups)
            for name, (rows, z) in scored.items()
        }
        where = f"{on} rows of the training table"
        counted = counted_in(scored[shipped][0].groups)
        run.write_scores_of_table({"judged_on": where, "counted": counted, "shipped": shipped, "systems": scores})
        write_table(run.predictions_table, probabilities(log_proba, classes, self.identifiers))

    @property
    def label_type(self) -> str:
        return self.schema.label_type


def _group_remarks(config: TableConfig, train: pl.DataFrame) -> list[str]:
    """Read weights and groups of the test table, if it has them; a remark where groups are of the training as well."""
    file = config.test_table
    assert file is not None
    there = [name for name in (config.weight, config.group) if name in column_names(file, config.separator)]
    frame = read_table(file, there, config.separator) if there else pl.DataFrame()
    if config.weight in there:
        read_weights(frame, file, config.weight)  # refused before the fits
    if config.group is None or config.group not in there:
        return []
    here, known = (as_text(one[config.group]).drop_nulls().unique() for one in (frame, train))
    both = here.filter(here.is_in(known.implode())).sort()
    if both.is_empty():
        return []
    return [
        f"{file}: {both.len():,} of {here.len():,} groups in column {config.group!r} are in the training table too, "
        f"such as {both[0]!r}: scores on them say nothing about new groups"
    ]


TASK_NAME = "table"
TINY = 20_000
"""Rows times columns times classes below which the fits of ``quick`` take less time than another process to begin."""


def open_table(config: TableConfig, ctx: Context, *, strict: bool) -> TableData:
    """Read the tables and fix the schema of their columns; files are written when the run begins."""
    if strict:
        raise InputError("strict refuses showers that cannot be used, and a table has none: leave it out")
    for option, file in (("--table", config.table), ("--test-table", config.test_table)):
        if file is not None and config.run.resolve() in file.resolve().parents:
            raise InputError(f"--run {config.run} holds {option} {file}, which it may replace: choose another folder")
    before = file_state(config.table)
    train = read_table(config.table, separator=config.separator)
    labels, classes, label_type = read_labels(train, config.table, config.label)
    groups = read_groups(train, config.table, config.group)
    weights = read_weights(train, config.table, config.weight)
    folds = read_folds(train, config.table, config.split, labels, classes)
    check_identifiers(train, config.table, config.id, classes)
    columns, remarks = learned_columns(
        train, config.table, config.reserved, wanted=config.columns, categories=config.categories
    )
    schema = Schema(columns, config.label, label_type, classes)
    remarks = [*config.learner_remarks(), *_label_remarks(classes, config.table), *remarks]
    resolved, more = config.for_rows(labels, classes, groups, folds)
    remarks += more
    frame, more = schema.encoded(train, config.table)
    schema = schema.trained_on(frame)
    remarks += more
    is_tiny = frame.height * frame.width * len(classes) < TINY and config.preset == "quick"
    if is_tiny and resolved.workers is None:
        resolved = resolved.model_copy(update={"workers": 1})
    optional = zip(LABEL_COLUMNS, (labels, groups, weights, folds), strict=True)
    label_frame = pl.DataFrame({name: values for name, values in optional if values is not None})
    run, task = RunFolder(config.run), Task(TASK_NAME, classes)
    test_frame, test, identifiers = None, None, train.select(config.id)
    if config.test_table:
        test_frame, identifiers, more = read_new_rows(
            config.test_table, schema, config.reserved, config.id, config.separator
        )
        remarks += more + _group_remarks(config, train)
        test_hash = hash_file(config.test_table)
        test = TableEvents(run.test_table, schema.names, test_hash, categories=schema.categories)
    remarks += telling_remarks(str(config.table), {name: frame[name].to_numpy() for name in frame.columns}, labels)
    remarks += weight_remarks(str(config.table), weights, labels, classes)
    if groups is None and folds is None:
        quantities = frame.select(column.name for column in columns if column.kind != CATEGORY).to_numpy()
        remarks += heap_remarks(str(config.table), quantities, labels, "name them with --group")
    remarks += repeated_remarks(frame, labels, test_frame)
    remark(LOG, remarks)
    content_hash = hash_file(config.table)
    if file_state(config.table) != before:
        raise Changed(f"{config.table} changed while it was read: start again")
    train_events = TableEvents(run.train_table, schema.names, content_hash, categories=schema.categories)
    return TableData(
        resolved,
        task,
        train_events,
        test,
        tuple(remarks),
        schema=schema,
        frame=frame,
        labels=label_frame,
        identifiers=identifiers,
        test_frame=test_frame,
    )


def _label_remarks(classes: tuple[str, ...], file: Path) -> list[str]:
    alike: dict[str, list[str]] = {}
    for name in classes:
        alike.setdefault(" ".join(name.split()).casefold(), []).append(name)
    groups = [", ".join(map(repr, names)) for names in alike.values() if len(names) > 1]
    if not groups:
        return []
    return [f"{file}: labels {' and '.join(groups)} differ in spaces or case alone: they are classes of their own"]
