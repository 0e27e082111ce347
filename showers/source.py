"""What a dataset folder says of its showers: their origin, in ``source.json``, and their weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from showerstack.runtime.errors import InputError
from showerstack.runtime.files import read_json
from showerstack.showers.schema import SIMULATION, SOURCE_FILE, Task


def is_simulated(source: Mapping[str, Any]) -> bool:
    """Tell from a dataset's ``source.json`` whether its showers come from the embedded simulation."""
    return str(source.get("generator", "")).startswith(SIMULATION)


def read_source(folder: Path) -> dict[str, Any]:
    """Return ``source.json`` of a dataset folder, empty where there is none."""
    file = folder / SOURCE_FILE
    return dict(read_json(file)) if file.exists() else {}


WEIGHT_BITS = 24
"""Binary digits of a weight that count, as many as float32 has: a constant factor moves digits far behind them."""


def weight_ratios(weights: np.ndarray) -> np.ndarray:
    """Return weights (N,) as ratios to their mean, (N,) float64, the same bytes for weights times a constant.

    Weights say how much a row counts beside others. Libraries take them as numbers of rows instead: a booster does not
    split rows that weigh 1e-6 each. Everything that is given weights is therefore given these.
    """
    if not len(weights) or not weights.max() > 0:
        return weights.astype(np.float64)
    to_largest = weights / weights.max()  # first, so that no sum overflows
    digits, exponent = np.frexp(to_largest / to_largest.mean())
    return np.ldexp(np.round(np.ldexp(digits, WEIGHT_BITS)), exponent - WEIGHT_BITS)


def checked_weights(weights: np.ndarray, task: Task, path: Path) -> np.ndarray:
    """Return importance weights (N,) as :func:`weight_ratios`."""
    if task.target:
        raise InputError(f"{path} holds weights, which task {task.name} has none of: remove the file")
    bad = np.flatnonzero(~np.isfinite(weights) | (weights < 0))
    if bad.size:
        raise InputError(
            f"{path}: row {bad[0]} holds {weights[bad[0]]:g}, expected a weight from 0 up ({bad.size} bad rows): "
            "make the set again"
        )
    if len(weights) and not weights.any():
        raise InputError(f"{path}: all {len(weights):,} weights are zero, from row 0 on: make the set again")
    return weight_ratios(weights)
