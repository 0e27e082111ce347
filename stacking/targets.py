"""A target as classes: bins of what a reconstructed scalar leaves of it, with equal numbers of training events.

The energy spectrum is steep and estimates are good to a tenth of a decade: bins of lg E itself would be too wide where
events are rare and too many where they are not. What the reconstructed energy leaves of lg E has one scale everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from showers.datasets.dataset import Dataset
from showers.schema import SCALAR_NAMES, TargetQuantity


def reference(target: TargetQuantity, scalars: np.ndarray) -> np.ndarray:
    """Return the reconstructed scalar (N,) float64 from which a target is counted; zeros where it has none."""
    if target.reference is None:
        return np.zeros(len(scalars))
    return np.asarray(scalars[:, SCALAR_NAMES.index(target.reference)], dtype=np.float64)


@dataclass(frozen=True)
class Binned:
    """The training events of a target."""

    offsets: np.ndarray
    """(N,) float64: true value minus reference."""
    labels: np.ndarray
    """(N,) int64: bin of the offset."""


def binned(data: Dataset) -> Binned:
    """Return bins whose borders are quantiles over the events that pass the evaluation cuts (over all if none does)."""
    assert data.labels is not None
    assert data.task is not None
    assert data.task.target is not None
    offsets = np.asarray(data.labels, dtype=np.float64) - reference(data.task.target, data.scalars)
    passing = data.evaluation_cuts.mask(data.scalar_frame())
    counted = offsets[passing] if passing.any() else offsets
    n_bins = data.task.n_classes
    edges = np.quantile(counted, np.arange(1, n_bins) / n_bins) if len(counted) else np.zeros(n_bins - 1)
    return Binned(offsets, np.searchsorted(edges, offsets, side="right"))


def class_numbers(data: Dataset) -> np.ndarray:
    """Return the class numbers (N,) int64 of a dataset opened with labels."""
    assert data.task is not None
    return np.asarray(data.labels, dtype=np.int64) if data.task.target is None else binned(data).labels
