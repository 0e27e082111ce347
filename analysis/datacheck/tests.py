"""Honest p-values of histograms against weighted ones, and of many tests at once."""

from __future__ import annotations

import numpy as np
from scipy.stats import chi2, norm

TINY_P = 1e-300


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
    share, expected = counts / n, sums / total
    weight = squares / total**2
    effective = 1.0 / weight.sum()
    pooled = (counts + expected * effective) / (n + effective)
    variance = pooled / n + np.maximum(weight, pooled / effective * 0.5)
    used = variance > 0
    freedom = int(used.sum()) - 1
    if freedom < 1:
        return 1.0, 0
    value = float(((share - expected)[used] ** 2 / variance[used]).sum())
    return max(float(chi2.sf(value, freedom)), TINY_P), freedom


def two_sided(z: np.ndarray) -> np.ndarray:
    """Return two-sided p-values of standard normal numbers."""
    return np.maximum(2.0 * norm.sf(np.abs(z)), TINY_P)
