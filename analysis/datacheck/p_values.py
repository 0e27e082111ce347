"""Honest p-values of histograms against weighted ones, and of many tests at once."""

from __future__ import annotations

import numpy as np
from scipy.special import chdtrc, ndtr

TINY_P = 1e-300
LEAST_EXPECTED = 5.0
"""Events that a bin of a compared histogram must expect, of data and, in events of equal weight, of simulation."""


def holm(p_values: np.ndarray) -> np.ndarray:
    """Return Holm's adjusted p-values: each below alpha keeps the family's false alarms below alpha (Holm 1979)."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p)
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted


def histograms_differ(counts: np.ndarray, sums: np.ndarray, squares: np.ndarray) -> tuple[float, int]:
    """Return the p-value and degrees of freedom of "counts come from the weighted histogram's distribution".

    Neighbouring bins are added up until data and simulation both have :data:`LEAST_EXPECTED` events there, of which
    chi-square needs so many.

    Parameters
    ----------
    counts
        (B,) data.
    sums, squares
        (B,) sums of the simulation's weights and of their squares.
    """
    n, total = counts.sum(), sums.sum()
    if n == 0 or total == 0:
        return 1.0, 0
    effective = total**2 / squares.sum()
    start = np.flatnonzero(_starts(sums / total * min(n, effective)))
    counts, sums, squares = (np.add.reduceat(column, start) for column in (counts, sums, squares))
    share, expected = counts / n, sums / total
    weight = squares / total**2
    pooled = (counts + expected * effective) / (n + effective)
    variance = pooled / n + np.maximum(weight, pooled / effective * 0.5)
    used = variance > 0
    freedom = int(used.sum()) - 1
    if freedom < 1:
        return 1.0, 0
    value = float(((share - expected)[used] ** 2 / variance[used]).sum())
    return max(float(chdtrc(freedom, value)), TINY_P), freedom


def _starts(expected: np.ndarray) -> np.ndarray:
    """Return where bins (B,) begin that expect enough, (B,) bool; the rest at the end belongs to the last of them."""
    starts, in_this_bin = np.zeros(len(expected), dtype=bool), np.inf
    for k, here_expected in enumerate(expected):
        if in_this_bin >= LEAST_EXPECTED and expected[k:].sum() >= LEAST_EXPECTED:
            starts[k], in_this_bin = True, 0.0
        in_this_bin += here_expected
    starts[0] = True
    return starts


def two_sided(z: np.ndarray) -> np.ndarray:
    """Return two-sided p-values of standard normal numbers."""
    return np.maximum(2.0 * ndtr(-np.abs(z)), TINY_P)
