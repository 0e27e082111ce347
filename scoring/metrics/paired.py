"""Two systems compared on the same events: difference, interval and p-value.

Differences are ``a - b``; where lower is better, a negative difference says that ``a`` is better. The p-value of a
bootstrap is two-sided and consistent with the basic interval: the share of centred replicas at least as far from zero
as the difference itself. A task's own metric is compared beside it, in
:mod:`showerstack.scoring.metrics.composition`, ``gamma`` and ``residuals``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.special import bdtr, ndtr, stdtr

from showerstack.scoring.metrics.intervals import (
    Interval,
    basic_interval,
    grouped_error,
    linearised,
    student_half_width,
)
from showerstack.scoring.metrics.level import standard_errors
from showerstack.scoring.metrics.losses import error_of_mean, event_losses


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


def compare_replicas(difference: float, deviations: np.ndarray) -> Paired:
    """Return a difference with what the deviations (B,) of its bootstrap replicas from their centre show."""
    far = np.count_nonzero(np.abs(deviations) >= abs(difference))
    p_value = 1.0 if difference == 0 else (1 + far) / (1 + len(deviations))
    return Paired(difference, basic_interval(difference, deviations), float(p_value), float(deviations.std()))


def paired_mean(values: np.ndarray, groups: np.ndarray | None = None) -> Paired:
    """Return the mean of differences (N,), normal for large N; with groups (N,) Student's t of their number."""
    difference = float(values.mean())
    if groups is None:
        error = error_of_mean(values, ddof=1) if len(values) > 1 else float("inf")
        half_width, tail = standard_errors(), ndtr
    else:
        error, n_groups = grouped_error(values, groups)
        half_width, tail = student_half_width(n_groups), partial(stdtr, n_groups - 1)
    half = half_width * error
    p_value = 1.0 if difference == 0 else (2 * float(tail(-abs(difference) / error)) if error > 0 else 0.0)
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
    of_mean = paired_mean(right_a.astype(np.float64) - right_b, groups)
    if groups is not None:
        return of_mean
    return Paired(of_mean.difference, of_mean.interval, mcnemar(right_a, right_b).p_value, of_mean.standard_error)


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
