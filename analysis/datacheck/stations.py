"""How often each station is hit, in data and weighted simulation: dead, noisy or miscalibrated ones stand out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.datacheck.statistics import holm, two_sided
from showers.datasets.dataset import Dataset

CHANNELS = ("e/gamma", "muon")
EVENTS_AT_ONCE = 2_048


@dataclass(frozen=True)
class StationHits:
    """Shares of events in which stations are hit."""

    data: np.ndarray
    """(rows, columns, 2)."""
    simulation: np.ndarray
    p: np.ndarray
    """(rows, columns, 2) adjusted (Holm); 1 where there is no detector."""


def compare_stations(
    data: Sequence[tuple[Dataset, np.ndarray]], simulation: Dataset, rows: np.ndarray, weights: np.ndarray
) -> StationHits:
    """Compare hit stations.

    Parameters
    ----------
    data
        Dataset folders with the rows to look at.
    simulation, rows, weights
        The training set, (R,) rows and weights.
    """
    order = np.argsort(rows)
    w = weights[order] / weights.sum()
    expected = _hits(simulation, rows[order], w)
    n = sum(len(chosen) for _, chosen in data)
    seen = sum(_hits(folder, chosen, np.full(len(chosen), 1.0 / n)) for folder, chosen in data)
    array = simulation.array
    there = np.stack([array.has_station, array.has_muon], axis=-1) | (seen > 0) | (expected > 0)
    pooled = np.clip((seen + expected) / 2, 0.5 / n, 1 - 0.5 / n)
    pull = (seen - expected) / np.sqrt(pooled * (1 - pooled) * (1.0 / n + (w**2).sum()))
    p = np.ones(expected.shape)
    p[there] = holm(two_sided(pull[there]))
    return StationHits(np.asarray(seen), expected, p)


def _hits(data: Dataset, rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    total = np.zeros(data.matrices.shape[1:])
    for start in range(0, len(rows), EVENTS_AT_ONCE):
        part = slice(start, start + EVENTS_AT_ONCE)
        total += np.tensordot(weights[part], (data.matrices[rows[part]] > 0).astype(np.float64), axes=1)
    return total
