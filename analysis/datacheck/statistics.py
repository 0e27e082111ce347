"""Tests that the checks share: weighted simulation against data, and honest p-values for many tests at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import betabinom, chi2, norm

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


@dataclass(frozen=True)
class Auc:
    """A weighted area under the ROC curve, and its standard error (DeLong et al. 1988, with weights)."""

    value: float
    error: float


def weighted_auc(data: np.ndarray, simulation: np.ndarray, weights: np.ndarray) -> Auc:
    """Return the probability that a datum scores higher than a weighted simulated event, ties counted half."""
    order = np.argsort(simulation)
    scores, w = simulation[order], weights[order] / weights.sum()
    below = np.concatenate([[0.0], np.cumsum(w)])
    left, right = np.searchsorted(scores, data, "left"), np.searchsorted(scores, data, "right")
    of_data = (below[left] + below[right]) / 2
    ordered = np.sort(data)
    above = 1.0 - (np.searchsorted(ordered, scores, "left") + np.searchsorted(ordered, scores, "right")) / 2 / len(data)
    value = float(of_data.mean())
    variance = of_data.var() / len(data) + float((w**2 * (above - value) ** 2).sum())
    return Auc(value, float(np.sqrt(max(variance, 1e-12))))


def more_than_expected(seen: int, n: int, beyond: float, effective: float) -> float:
    """Return the probability of at least ``seen`` of ``n`` data beyond a limit that a share of the simulation passes.

    Parameters
    ----------
    beyond
        Weighted share of the simulated events beyond the limit.
    effective
        Their effective number, which limits how well the share is known (beta-binomial predictive).
    """
    k = beyond * effective
    return max(float(betabinom.sf(seen - 1, n, k + 1.0, max(effective - k, 1.0))), TINY_P)


def two_sided(z: np.ndarray) -> np.ndarray:
    """Return two-sided p-values of standard normal numbers."""
    return np.maximum(2.0 * norm.sf(np.abs(z)), TINY_P)
