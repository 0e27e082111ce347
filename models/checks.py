"""What every learner asks of the events it is given, refused with one clear line otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from models.base import Batch
from showers.array import DetectorArray
from showers.schema import InputError


def check_settings(owner: str, settings: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """Return ``known`` updated by ``settings``; refuse names that are not in ``known``."""
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise InputError(f"{owner} has no setting {', '.join(map(repr, unknown))}: it knows {', '.join(sorted(known))}")
    return {**known, **settings}


def check_training(train: Batch, valid: Batch, classes: Sequence[str], *, table: bool, grid: bool) -> None:
    """Refuse events from which nothing can be learned.

    Raises
    ------
    InputError
        For missing labels, labels out of range, a class without events, an empty validation part, weights that are
        negative, not finite or all zero, a missing or unusable input.
    """
    for name, batch in (("training", train), ("validation", valid)):
        if not len(batch):
            raise InputError(f"no {name} events")
        if batch.labels is None:
            raise InputError(f"the {name} events have no labels")
        labels = batch.labels
        bad = np.flatnonzero((labels < 0) | (labels >= len(classes)))
        if bad.size:
            raise InputError(
                f"{name} labels: row {bad[0]} holds {labels[bad[0]]}, expected 0..{len(classes) - 1} ({bad.size} bad)"
            )
        _check_weights(name, batch)
        if table:
            if batch.table is None or not batch.columns:
                raise InputError(f"this learner needs a feature table, the {name} events have none")
            check_finite_or_missing(batch)
        if grid and batch.grids is None:
            raise InputError(f"this learner needs detector grids, the {name} events have none")
    if valid.columns != train.columns:
        raise InputError("training and validation events have different table columns")
    assert train.labels is not None
    weights = np.ones(len(train)) if train.weights is None else train.weights
    mass = np.bincount(train.labels, weights=weights, minlength=len(classes))
    empty = [name for name, total in zip(classes, mass, strict=True) if total <= 0]
    if empty:
        raise InputError(f"no training event (of positive weight) of class {', '.join(empty)}")
    if table:
        assert train.table is not None
        if not usable_columns(train.table).any():
            raise InputError(f"none of the {len(train.columns)} features varies: all are constant or missing")


def usable_columns(table: np.ndarray) -> np.ndarray:
    """Return which columns of (n, F) hold at least two different values, missing counting as a value; (F,) bool."""
    usable = np.zeros(table.shape[1], dtype=bool)
    for k in range(table.shape[1]):
        column = table[:, k]
        missing = np.isnan(column)
        if missing.all():
            continue
        usable[k] = bool(missing.any()) or bool(column.min() < column.max())
    return usable


def check_finite_or_missing(batch: Batch) -> None:
    """Refuse infinite values in the table; NaN means a missing value and is fine."""
    assert batch.table is not None
    if batch.table.shape != (len(batch), len(batch.columns)):
        raise InputError(
            f"the table has shape {batch.table.shape}, expected ({len(batch)}, {len(batch.columns)}) for its columns"
        )
    for k, name in enumerate(batch.columns):
        bad = np.flatnonzero(np.isinf(batch.table[:, k]))
        if bad.size:
            raise InputError(
                f"feature {name!r}: row {int(batch.index[bad[0]])} is infinite, expected a number or NaN "
                f"({bad.size} bad rows)"
            )


def select_table(batch: Batch, columns: tuple[str, ...]) -> np.ndarray:
    """Return the (n, F) float32 table with exactly these columns in this order, wherever they stand in the batch.

    Raises
    ------
    InputError
        If the batch has no table or lacks columns; they are named.
    """
    if batch.table is None:
        raise InputError("this learner needs a feature table, the events have none")
    if batch.columns == columns:
        check_finite_or_missing(batch)
        return batch.table
    position = {name: k for k, name in enumerate(batch.columns)}
    missing = [name for name in columns if name not in position]
    if missing:
        raise InputError(
            f"the events lack {len(missing)} of the {len(columns)} features this learner was trained on: "
            f"{', '.join(missing[:8])}{' ...' if len(missing) > 8 else ''}"
        )
    check_finite_or_missing(batch)
    return np.asfortranarray(batch.table[:, [position[name] for name in columns]])


def check_grids(batch: Batch, array: DetectorArray) -> np.ndarray:
    """Return the batch's grids after checking that they are of the given array."""
    if batch.grids is None:
        raise InputError("this learner needs detector grids, the events have none")
    if batch.grids.shape[1:] != array.grid_shape:
        raise InputError(f"grids have shape {batch.grids.shape[1:]}, expected {array.grid_shape} of array {array.name}")
    if batch.array != array:
        raise InputError(f"the events are of array {batch.array.name}, this learner was trained on {array.name}")
    return batch.grids


def _check_weights(name: str, batch: Batch) -> None:
    if batch.weights is None:
        return
    if batch.weights.shape != (len(batch),):
        raise InputError(f"{name} weights have shape {batch.weights.shape}, expected ({len(batch)},)")
    bad = np.flatnonzero(~np.isfinite(batch.weights) | (batch.weights < 0))
    if bad.size:
        raise InputError(f"{name} weights: row {bad[0]} holds {batch.weights[bad[0]]}, expected a number from 0 up")
    if not batch.weights.any():
        raise InputError(f"all {name} weights are zero")
