"""How far estimates are from the truth: bias, resolution (half the width of the central 68 %) and rms, with intervals.

Bootstraps resample events through at most :data:`CELLS` cells of neighbouring residuals, whose counts are multinomial;
a cell is far narrower than the quantiles' own errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from showerstack.scoring.metrics.intervals import SEED, Interval, basic_interval
from showerstack.scoring.metrics.paired import Paired

CENTRAL = (0.158655, 0.841345)
"""One standard deviation to both sides of a Gaussian's middle."""
CELLS = 500
REPLICAS = 1000
PAIRED_REPLICAS = 400
MIN_EVENTS = 50
"""A bin with fewer events is called unmeasured rather than shown."""


def resolution(residuals: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Return half the width of the central 68.27 % of residuals (N,), of their weight (N,) where they have any."""
    if weights is None:
        low, high = np.quantile(residuals, CENTRAL)
    else:
        order = np.argsort(residuals)
        reached = np.cumsum(weights[order]) - weights[order] / 2
        low, high = np.interp(np.array(CENTRAL) * weights.sum(), reached, residuals[order])
    return float(high - low) / 2


def residual_metrics(residuals: np.ndarray, weights: np.ndarray | None = None) -> dict[str, Any]:
    """Return bias (mean), resolution, rms about zero and mean absolute value of residuals (N,), with intervals.

    With importance weights (N,) all of them are of weight.
    """
    values = {
        "bias": float(np.average(residuals, weights=weights)),
        "resolution": resolution(residuals, weights),
        "rms": float(np.sqrt(np.average(residuals**2, weights=weights))),
        "mean_absolute_error": float(np.average(np.abs(residuals), weights=weights)),
    }
    replicas = _replicas(residuals) if weights is None else _weighted_replicas(residuals, weights)
    intervals = {name: _around(values[name], replicas[name]).as_dict() for name in values}
    return {"count": len(residuals), **values, "intervals": intervals}


def resolution_interval(residuals: np.ndarray, groups: np.ndarray | None = None) -> Interval:
    """Return the confidence interval of the resolution; events of one group (N,) are resampled together."""
    if groups is not None:
        value = resolution(residuals)
        replicas = [resolution(residuals[rows]) for rows in _drawn(len(residuals), groups)]
        return _around(value, np.array(replicas))
    return _around(resolution(residuals), _replicas(residuals)["resolution"])


def bias_interval(residuals: np.ndarray) -> Interval:
    """Return the confidence interval of the bias."""
    return _around(float(residuals.mean()), _replicas(residuals)["bias"])


def paired_resolution(a: np.ndarray, b: np.ndarray, groups: np.ndarray | None = None) -> Paired:
    """Compare the resolutions of two systems by their residuals (N,) on the same events, resampled together.

    With groups (N,) whole groups are resampled.
    """
    difference = resolution(a) - resolution(b)
    replicas = np.array([resolution(a[rows]) - resolution(b[rows]) for rows in _drawn(len(a), groups)])
    deviations = replicas - replicas.mean()
    far = np.count_nonzero(np.abs(deviations) >= abs(difference))
    p_value = 1.0 if difference == 0 else (1 + far) / (1 + PAIRED_REPLICAS)
    return Paired(difference, basic_interval(difference, deviations), float(p_value), float(deviations.std()))


def _drawn(n_events: int, groups: np.ndarray | None) -> Iterator[np.ndarray]:
    """Yield the rows of :data:`PAIRED_REPLICAS` bootstrap samples of events, or of groups (N,)."""
    rng = np.random.default_rng(SEED)
    if groups is None:
        yield from (rng.integers(0, n_events, n_events) for _ in range(PAIRED_REPLICAS))
        return
    _, member, size = np.unique(groups, return_inverse=True, return_counts=True)
    of_group = np.split(np.argsort(member, kind="stable"), np.cumsum(size)[:-1])
    for _ in range(PAIRED_REPLICAS):
        yield np.concatenate([of_group[k] for k in rng.integers(0, len(of_group), len(of_group))])


def _around(value: float, replicas: np.ndarray) -> Interval:
    return basic_interval(value, replicas - replicas.mean())


def _replicas(residuals: np.ndarray) -> dict[str, np.ndarray]:
    """Return the metrics of bootstrap samples, (B,) each."""
    ordered = np.sort(residuals)
    borders = np.unique(np.linspace(0, len(ordered), min(len(ordered), CELLS) + 1).astype(int))
    first, count = borders[:-1], np.diff(borders)
    means = {
        "bias": np.add.reduceat(ordered, first) / count,
        "rms": np.add.reduceat(ordered**2, first) / count,
        "mean_absolute_error": np.add.reduceat(np.abs(ordered), first) / count,
    }
    n = len(ordered)
    weights = np.random.default_rng(SEED).multinomial(n, count / n, size=REPLICAS) / n
    result = {name: weights @ cells for name, cells in means.items()}
    result["rms"] = np.sqrt(result["rms"])
    reached = np.cumsum(weights, axis=1)
    low, high = (ordered[first + count // 2][np.argmax(reached >= level, axis=1)] for level in CENTRAL)
    result["resolution"] = (high - low) / 2
    return result


def _weighted_replicas(residuals: np.ndarray, weights: np.ndarray) -> dict[str, np.ndarray]:
    """Return the metrics of bootstrap samples of weighted residuals, (B,) each.

    Drawing events anew gives a cell a weight of mean sum(w) and variance sum(w^2): it is drawn from the gamma law that
    has both, in a cell of one event the exponential one of the Bayesian bootstrap (D. B. Rubin, Ann. Stat. 9 (1981)
    130). The cell's means stay.
    """
    order = np.argsort(residuals)
    ordered, w = residuals[order], weights[order]
    borders = np.unique(np.linspace(0, len(ordered), min(len(ordered), CELLS) + 1).astype(int))
    first = borders[:-1]
    total, squares = np.add.reduceat(w, first), np.add.reduceat(w**2, first)
    some = np.maximum(total, np.finfo(float).tiny)
    effective = np.where(squares > 0, total**2 / np.maximum(squares, np.finfo(float).tiny), 1.0)
    share = total / effective * np.random.default_rng(SEED).standard_gamma(effective, (REPLICAS, len(first)))
    share /= share.sum(axis=1, keepdims=True)
    means = {
        "bias": np.add.reduceat(w * ordered, first) / some,
        "rms": np.add.reduceat(w * ordered**2, first) / some,
        "mean_absolute_error": np.add.reduceat(w * np.abs(ordered), first) / some,
    }
    result = {name: share @ cells for name, cells in means.items()}
    result["rms"] = np.sqrt(result["rms"])
    reached, middle = np.cumsum(share, axis=1), ordered[first + np.diff(borders) // 2]
    low, high = (middle[np.argmax(reached >= level, axis=1)] for level in CENTRAL)
    result["resolution"] = (high - low) / 2
    return result
