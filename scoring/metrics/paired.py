"""Two systems compared on the same events: difference, interval and p-value of a paired bootstrap.

Differences are ``a - b``; where lower is better, a negative difference says that ``a`` is better. The p-value is
two-sided and consistent with the basic interval: the share of centred replicas at least as far from zero as the
difference itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import bdtr, ndtr, stdtr, stdtrit

from showerstack.scoring.metrics.composition import class_fraction_errors, fraction_error, mixture_fractions
from showerstack.scoring.metrics.gamma import GAMMA, HADRON, KEY_EFFICIENCY, hadron_survival, threshold_rank
from showerstack.scoring.metrics.intervals import (
    GROUP_RESAMPLES,
    RESAMPLES,
    SEED,
    Interval,
    basic_interval,
    draw_variance,
    grouped_counts,
    grouped_error,
    linearised,
    survival_replicas,
    weighted_replicas,
    widened,
)
from showerstack.scoring.metrics.level import LEVEL, standard_errors
from showerstack.scoring.metrics.losses import error_of_mean, event_losses
from showerstack.showers.schema import COMPOSITION


@dataclass(frozen=True)
class Paired:
    """Difference of two systems' metrics on the same events."""

    difference: float
    """Metric of a minus metric of b."""
    interval: Interval
    p_value: float
    """Two-sided probability of at least such a difference between equal systems."""
    standard_error: float

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison for JSON."""
        return {
            "difference": self.difference,
            "interval": self.interval.as_dict(),
            "p_value": self.p_value,
            "standard_error": self.standard_error,
        }


def _from_replicas(difference: float, deviations: np.ndarray) -> Paired:
    far = np.count_nonzero(np.abs(deviations) >= abs(difference))
    p_value = 1.0 if difference == 0 else (1 + far) / (1 + len(deviations))
    return Paired(difference, basic_interval(difference, deviations), float(p_value), float(deviations.std()))


def paired_fraction_error(
    labels: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    groups: np.ndarray | None = None,
    *,
    n_resamples: int = RESAMPLES,
) -> Paired:
    """Compare the fraction errors of two sets of hard labels.

    Events are resampled within classes through the joint counts n[true, a, b], which hold everything that both
    metrics depend on; see :func:`showerstack.scoring.metrics.intervals.confusion_intervals` for the rest of the
    construction.

    Parameters
    ----------
    labels, a, b
        (N,) integer class numbers.
    groups
        (N,) or None: events of one value are resampled together.
    """
    n_classes = COMPOSITION.n_classes
    size = n_classes * n_classes
    cell = (labels.astype(np.int64) * n_classes + a) * n_classes + b
    joint = np.bincount(cell, minlength=n_classes * size).reshape(n_classes, size)
    per_class = joint.sum(axis=1)
    difference = fraction_error(labels, a) - fraction_error(labels, b)
    rng = np.random.default_rng(SEED)
    if groups is None:
        drawn = rng.multinomial(per_class, joint / per_class[:, None], size=(n_resamples, n_classes))
    else:
        drawn = grouped_counts(cell, n_classes * size, labels, groups, n_resamples, SEED).reshape(-1, n_classes, size)
    tables = np.concatenate([drawn, joint[None]]).reshape(-1, n_classes, n_classes, n_classes)
    shares = tables / np.maximum(tables.sum(axis=(2, 3), keepdims=True), 1)
    gap = (class_fraction_errors(shares.sum(axis=3)) - class_fraction_errors(shares.sum(axis=2))).mean(axis=1)
    fractions, identity = mixture_fractions(n_classes), np.eye(n_classes)
    sign_a = np.sign(fractions @ (identity - shares[-1].sum(axis=2)))
    sign_b = np.sign(fractions @ (identity - shares[-1].sum(axis=1)))
    weights = (sign_a[:, :, None] - sign_b[:, None, :]).reshape(len(fractions), 1, size)
    noise = draw_variance(joint / per_class[:, None], np.repeat(weights, n_classes, axis=1))
    return _from_replicas(difference, widened(gap[:-1] - gap[-1], noise))


def paired_survival(
    labels: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    efficiency: float = KEY_EFFICIENCY,
    groups: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    *,
    n_resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Paired:
    """Compare the hadron survivals of two sets of scores; gammas and hadrons are resampled, thresholds recomputed.

    Parameters
    ----------
    labels
        (N,) integers: 0 gamma, 1 hadron.
    a, b
        (N,) finite scores.
    groups
        (N,) or None: events of one value are resampled together.
    weights
        (N,) importance weights, or None.
    """
    if weights is not None:
        drawn = weighted_replicas(labels, (a, b), (efficiency,), weights, groups, seed=seed)[:, 0]
        first, second = (hadron_survival(labels, scores, efficiency, weights) for scores in (a, b))
        assert first.weights is not None
        assert second.weights is not None
        gap, value = drawn[0] - drawn[1], first.hadron_survival - second.hadron_survival
        # as below: one hadron, the heaviest
        extra = first.weights.heaviest / first.weights.total
        return _from_replicas(value, widened(gap - gap.mean(), extra**2))
    if groups is not None:
        result = survival_replicas(labels, (a, b), efficiency, groups, GROUP_RESAMPLES, seed)
        gap, now = (
            result[0] - result[1],
            [hadron_survival(labels, scores, efficiency).hadron_survival for scores in (a, b)],
        )
        extra = 1 / len(np.unique(groups[labels == HADRON])) ** 2  # as below: one shower
        return _from_replicas(now[0] - now[1], widened(gap - gap.mean(), extra))
    gamma, hadron = labels == GAMMA, labels == HADRON
    n_gamma, n_hadron = int(gamma.sum()), int(hadron.sum())
    rank = threshold_rank(n_gamma, efficiency)
    among_gammas = [scores[gamma] for scores in (a, b)]
    ordered = [np.argsort(-scores, kind="stable") for scores in among_gammas]
    thresholds = np.empty((2, n_resamples))
    rng = np.random.default_rng(seed)
    for k in range(n_resamples):
        weight = np.bincount(rng.integers(0, n_gamma, n_gamma), minlength=n_gamma)
        for s, (order, scores) in enumerate(zip(ordered, among_gammas, strict=True)):
            thresholds[s, k] = scores[order[np.searchsorted(np.cumsum(weight[order]), rank)]]
    # hadrons below both lowest thresholds never survive: only the number of the others is random
    reach = (a[hadron] >= thresholds[0].min()) | (b[hadron] >= thresholds[1].min())
    near_a, near_b = a[hadron][reach], b[hadron][reach]
    replicas = np.empty(n_resamples)
    n_near = len(near_a)
    for k, n_drawn in enumerate(rng.binomial(n_hadron, n_near / n_hadron, n_resamples)):
        weight = np.bincount(rng.integers(0, max(n_near, 1), n_drawn), minlength=n_near)[:n_near]
        survive = (near_a >= thresholds[0, k]).astype(np.int64) - (near_b >= thresholds[1, k])
        replicas[k] = weight @ survive / n_hadron
    difference = (
        hadron_survival(labels, a, efficiency).hadron_survival - hadron_survival(labels, b, efficiency).hadron_survival
    )
    # one pseudo-hadron keeps the width honest where both have next to no survivors
    return _from_replicas(difference, widened(replicas - replicas.mean(), 1 / n_hadron**2))


def paired_mean(values: np.ndarray, groups: np.ndarray | None = None) -> Paired:
    """Return the mean of differences (N,), normal for large N; with groups (N,) Student's t of their number."""
    difference = float(values.mean())
    if groups is not None:
        error, n_groups = grouped_error(values, groups)
        half = float(stdtrit(n_groups - 1, 0.5 + LEVEL / 2)) * error
        p_value = (
            1.0 if difference == 0 else (2 * float(stdtr(n_groups - 1, -abs(difference) / error)) if error else 0.0)
        )
        return Paired(difference, Interval(difference - half, difference + half), p_value, error)
    error = error_of_mean(values, ddof=1) if len(values) > 1 else float("inf")
    half = standard_errors() * error
    p_value = 1.0 if difference == 0 else (2 * float(ndtr(-abs(difference) / error)) if error > 0 else 0.0)
    return Paired(difference, Interval(difference - half, difference + half), p_value, error)


def paired_log_loss(
    labels: np.ndarray,
    log_a: np.ndarray,
    log_b: np.ndarray,
    groups: np.ndarray | None = None,
    weights: np.ndarray | None = None,
) -> Paired:
    """Compare the log-losses of two sets of posteriors.

    The metric is a mean over events, so the paired bootstrap's limit, the normal interval of the mean difference,
    is used directly.

    Parameters
    ----------
    labels
        (N,) integer class numbers.
    log_a, log_b
        (N, C) natural logarithms of posteriors.
    groups
        (N,) or None: events of one value are one observation.
    weights
        (N,) importance weights, or None.
    """
    return paired_mean(linearised(event_losses(log_a, labels) - event_losses(log_b, labels), weights), groups)


def paired_accuracy(labels: np.ndarray, a: np.ndarray, b: np.ndarray, groups: np.ndarray | None = None) -> Paired:
    """Compare two accuracies on the same events (N,); the p-value is McNemar's exact one, with groups Student's."""
    right_a, right_b = labels == a, labels == b
    result = paired_mean(right_a.astype(np.float64) - right_b, groups)
    if groups is not None:
        return result
    return Paired(result.difference, result.interval, mcnemar(right_a, right_b).p_value, result.standard_error)


@dataclass(frozen=True)
class McNemar:
    """Where two systems agree and disagree (Q. McNemar, Psychometrika 12 (1947) 153)."""

    both: int
    only_a: int
    only_b: int
    neither: int
    p_value: float
    """Two-sided probability of the split of the disagreements: exact (binomial), with groups Student's."""


def mcnemar(yes_a: np.ndarray, yes_b: np.ndarray, groups: np.ndarray | None = None) -> McNemar:
    """Return the table of two yes/no outcomes on the same events, (N,) bool each.

    With groups (N,) events of one value are one observation; a single group shows nothing, and p is 1.
    """
    only_a, only_b = int(np.count_nonzero(yes_a & ~yes_b)), int(np.count_nonzero(yes_b & ~yes_a))
    # both tails of a fair binomial are mirror images; an even split is its own mirror
    p_value = 1.0 if only_a == only_b else 2 * float(bdtr(min(only_a, only_b), only_a + only_b, 0.5))
    if groups is not None and len(groups):
        single = groups.min() == groups.max()
        p_value = 1.0 if single else paired_mean(yes_a.astype(np.float64) - yes_b, groups).p_value
    both = int(np.count_nonzero(yes_a & yes_b))
    return McNemar(both, only_a, only_b, len(yes_a) - both - only_a - only_b, p_value)
