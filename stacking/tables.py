"""The rows of a user's table: labels, groups and identifiers as they are written; posteriors beside them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from showerstack.runtime.errors import InputError
from showerstack.runtime.files import atomic_path
from showerstack.runtime.tables import column_names, read_table
from showerstack.stacking.columns import Schema, as_text
from showerstack.stacking.events import ROW_GROUP

MAX_CLASSES = 100
"""More different labels are taken for a quantity, not for classes."""
MAX_FOLDS = 100


def own_names(classes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the columns that predictions add to identifiers."""
    return ("row", *(f"p_{name}" for name in classes), "predicted")


def probabilities(
    log_proba: np.ndarray, classes: tuple[str, ...], identifiers: pl.DataFrame | None = None, first: int = 0
) -> pl.DataFrame:
    """Return the table of class probabilities: row (counted from ``first``), identifiers, ``p_<class>``, predicted."""
    best = np.argmax(log_proba, axis=1)
    row, *shares, predicted = own_names(classes)
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
        On columns that are ignored and values that are taken as missing.
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
    return encoded, frame.select(names), [*remarks, *more]


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
    classes = tuple(name for _, name in order)
    is_kind = {"bool": values.dtype == pl.Boolean, "int": values.dtype.is_integer(), "float": values.dtype.is_float()}
    return class_positions(text, classes), classes, next((kind for kind, holds in is_kind.items() if holds), "str")


def read_groups(frame: pl.DataFrame, file: Path, column: str | None) -> np.ndarray | None:
    """Return (N,) int64 group numbers; None without such a column."""
    if column is None:
        return None
    values = _complete(frame, file, column, "group")
    comparable = values if values.dtype.is_numeric() else as_text(values)
    return comparable.rank("dense").to_numpy().astype(np.int64)


def read_weights(frame: pl.DataFrame, file: Path, column: str | None) -> np.ndarray | None:
    """Return (N,) float64 weights, all positive; None without such a column."""
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
    return weights.to_numpy()


def read_folds(
    frame: pl.DataFrame, file: Path, column: str | None, labels: np.ndarray, classes: tuple[str, ...]
) -> np.ndarray | None:
    """Return the (N,) int64 fold of each row, counted from 0; None without such a column.

    Raises
    ------
    InputError
        If there is one fold only, or a class that only one fold has: no learner could learn it for those rows.
    """
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
        if name in own_names(classes):
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
