"""What a dataset folder says of its showers: their origin, in ``source.json``, and their weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from showerstack.runtime.errors import InputError
from showerstack.runtime.files import read_json
from showerstack.showers.schema import GAMMA, SIMULATION, SOURCE_FILE, Task


def is_simulated(source: Mapping[str, Any]) -> bool:
    """Tell from a dataset's ``source.json`` whether its showers come from the embedded simulation."""
    return str(source.get("generator", "")).startswith(SIMULATION)


def read_source(folder: Path) -> dict[str, Any]:
    """Return ``source.json`` of a dataset folder, empty where there is none."""
    file = folder / SOURCE_FILE
    return dict(read_json(file)) if file.exists() else {}


def check_weights(weights: np.ndarray, task: Task, path: Path) -> None:
    """Refuse importance weights (N,) that are negative, not finite or all zero, or of a task that has none."""
    if task != GAMMA:
        raise InputError(f"{path} holds weights, which task {task.name} has none of: remove the file")
    bad = np.flatnonzero(~np.isfinite(weights) | (weights < 0))
    if bad.size:
        raise InputError(
            f"{path}: row {bad[0]} holds {weights[bad[0]]:g}, expected a weight from 0 up ({bad.size} bad rows): "
            "simulate the set again"
        )
    if len(weights) and not weights.any():
        raise InputError(f"{path}: all {len(weights):,} weights are zero, from row 0 on: simulate the set again")
