"""How far estimates are from the truth: bias, resolution (half the width of the central 68 %) and rms, with intervals.

Bootstraps resample events through at most :data:`CELLS` cells of neighbouring residuals; a cell is far narrower than
the quantiles' own errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from showerstack.scoring.metrics.intervals import BOOTSTRAP_SEED, Interval, basic_interval
from showerstack.scoring.metrics.paired import Paired, compare_replicas, paired_mean

CENTRAL = (0.158655, 0.841345)
"""One standard deviation to both sides of a Gaussian's middle."""
CELLS = 500
REPLICAS = 1000
PAIRED_REPLICAS = 400
MIN_EVENTS = 50
"""A bin with fewer events is called unmeasured rather than shown."""


def resolution(residuals: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Return half the width of the central 68.27 % of residuals (N,), of their weight (N,) where they have any."""
    low, high = _quantiles(residuals, CENTRAL, weights)
    return float(high - low) / 2


def shown_median(residuals: np.ndarray, weights: np.ndarray | None = None, groups: np.ndarray | None = None) -> float:
    """Return the median of residuals (N,), or 0 where it is less than two of its standard errors from it.

    The error is that of a normal distribution, sqrt(pi / 2) resolution / sqrt(N), of as many events as weights (N,) are
    worth, or of as many as there are groups (N,): uses of one shower may all err alike.
    """
    (middle,) = _quantiles(residuals, (0.5,), weights)
    n = len(residuals) if weights is None else weights.sum() ** 2 / (weights**2).sum()
    n = n if groups is None else min(n, len(np.unique(groups)))
    error = np.sqrt(np.pi / 2 / n) * resolution(residuals, weights)
    return float(middle) if abs(middle) > 2 * error else 0.0


def _quantiles(values: np.ndarray, shares: Sequence[float], weights: np.ndarray | None) -> np.ndarray:
    if weights is None:
        return np.quantile(values, shares)
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) - weights[order] / 2
    return np.interp(np.array(shares) * weights.sum(), reached, values[order])


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
    replicas = _replicas(residuals, weights)
    intervals = {name: _interval_around(values[name], replicas[name]).as_dict() for name in values}
    return {"count": len(residuals), **values, "intervals": intervals}


def resolution_interval(residuals: np.ndarray, groups: np.ndarray | None = None) -> Interval:
    """Return the confidence interval of the resolution; events of one group (N,) are resampled together."""
    if groups is None:
        replicas = _replicas(residuals)["resolution"]
    else:
        replicas = np.array([resolution(residuals[rows]) for rows in _resampled_rows(len(residuals), groups)])
    return _interval_around(resolution(residuals), replicas)


def bias_interval(residuals: np.ndarray, groups: np.ndarray | None = None) -> Interval:
    """Return the confidence interval of the bias; events of one group (N,) are one observation."""
    if groups is not None:
        return paired_mean(residuals, groups).interval
    return _interval_around(float(residuals.mean()), _replicas(residuals)["bias"])


def paired_resolution(a: np.ndarray, b: np.ndarray, groups: np.ndarray | None = None) -> Paired:
    """Compare the resolutions of two systems by their residuals (N,) on the same events, resampled together.

    With groups (N,) whole groups are resampled.
    """
    replicas = np.array([resolution(a[rows]) - resolution(b[rows]) for rows in _resampled_rows(len(a), groups)])
    return compare_replicas(resolution(a) - resolution(b), replicas - replicas.mean())


def _resampled_rows(n_events: int, groups: np.ndarray | None) -> Iterator[np.ndarray]:
    """Yield the rows of :data:`PAIRED_REPLICAS` bootstrap samples of events, or of groups (N,)."""
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    if groups is None:
        yield from (rng.integers(0, n_events, n_events) for _ in range(PAIRED_REPLICAS))
        return
    _, member, size = np.unique(groups, return_inverse=True, return_counts=True)
    rows_of_group = np.split(np.argsort(member, kind="stable"), np.cumsum(size)[:-1])
    for _ in range(PAIRED_REPLICAS):
        yield np.concatenate([rows_of_group[k] for k in rng.integers(0, len(rows_of_group), len(rows_of_group))])


def _interval_around(value: float, replicas: np.ndarray) -> Interval:
    return basic_interval(value, replicas - replicas.mean())


def _replicas(residuals: np.ndarray, weights: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """Return the metrics of bootstrap samples, (B,) each.

    The number of events of a cell is drawn from the multinomial law. With weights (N,) drawing events anew gives a cell
    a weight of mean sum(w) and variance sum(w^2): it is drawn from the gamma law that has both, in a cell of one event
    the exponential one of the Bayesian bootstrap (D. B. Rubin, Ann. Stat. 9 (1981) 130). The cell's means stay.
    """
    rng, n_events = np.random.default_rng(BOOTSTRAP_SEED), len(residuals)
    order = np.argsort(residuals)
    ordered = residuals[order]
    values = {"bias": ordered, "rms": ordered**2, "mean_absolute_error": np.abs(ordered)}
    borders = np.unique(np.linspace(0, n_events, min(n_events, CELLS) + 1).astype(int))
    first, count = borders[:-1], np.diff(borders)
    if weights is None:
        total = count
        shares = rng.multinomial(n_events, count / n_events, size=REPLICAS) / n_events
    else:
        w, tiny = weights[order], np.finfo(float).tiny
        values = {name: w * of_events for name, of_events in values.items()}
        total, squares = np.add.reduceat(w, first), np.add.reduceat(w**2, first)
        effective = np.where(squares > 0, total**2 / np.maximum(squares, tiny), 1.0)
        shares = total / effective * rng.standard_gamma(effective, (REPLICAS, len(first)))
        shares /= shares.sum(axis=1, keepdims=True)
        total = np.maximum(total, tiny)
    replicas = {name: shares @ (np.add.reduceat(of_events, first) / total) for name, of_events in values.items()}
    replicas["rms"] = np.sqrt(replicas["rms"])
    reached, middle = np.cumsum(shares, axis=1), ordered[first + count // 2]
    low, high = (middle[np.argmax(reached >= level, axis=1)] for level in CENTRAL)
    return replicas | {"resolution": (high - low) / 2}
