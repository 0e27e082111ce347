"""Uncertainty of every metric: intervals for one system, paired comparisons for two.

All bootstraps resample test events, but through sufficient statistics (confusion matrices, ranks, survivor counts),
which is exact and takes milliseconds. Seeds are fixed: same input, same interval.

* one system: :func:`accuracy_interval`, :func:`fraction_error_interval`, :func:`survival_interval`;
* two systems on the same events: :func:`paired_fraction_error`, :func:`paired_survival`, :func:`paired_log_loss`,
  :func:`paired_accuracy` (from :mod:`scoring.uncertainty.paired`).
"""

from __future__ import annotations

import numpy as np
from scipy.special import betaincinv

from scoring.metrics.composition import (
    MIXTURE_SIZE,
    class_fraction_errors,
    confusion_matrix,
    fraction_error,
    mixture_counts,
    mixture_fractions,
)
from scoring.metrics.gamma import GAMMA, HADRON, KEY_EFFICIENCY, threshold_rank
from scoring.uncertainty.paired import (
    McNemar,
    Paired,
    mcnemar,
    paired_accuracy,
    paired_fraction_error,
    paired_log_loss,
    paired_survival,
)
from scoring.uncertainty.resampling import (
    LEVEL,
    RESAMPLES,
    SEED,
    Interval,
    basic_interval,
    clopper_pearson,
    draw_variance,
    widened,
)

__all__ = [
    "LEVEL",
    "MIN_CLASS_EVENTS",
    "RESAMPLES",
    "Interval",
    "McNemar",
    "Paired",
    "accuracy_interval",
    "clopper_pearson",
    "confusion_intervals",
    "fraction_error_interval",
    "mcnemar",
    "paired_accuracy",
    "paired_fraction_error",
    "paired_log_loss",
    "paired_survival",
    "survival_interval",
]

MIN_CLASS_EVENTS = 20
"""With fewer events of any class (gammas, hadrons) a bin's metric is called unmeasured rather than shown."""


def accuracy_interval(labels: np.ndarray, predicted: np.ndarray, level: float = LEVEL) -> Interval:
    """Return the interval of the accuracy.

    Resampling events makes the number of hits binomial, so the exact binomial interval needs no resampling and,
    unlike the bootstrap's, does not collapse to a point at 0 or 1.
    """
    return clopper_pearson(int(np.count_nonzero(labels == predicted)), len(labels), level)


def fraction_error_interval(
    labels: np.ndarray,
    predicted: np.ndarray,
    *,
    value: float | None = None,
    n_classes: int = 5,
    level: float = LEVEL,
    n_resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Interval:
    """Return the interval of the fraction error by a bootstrap over test events.

    Parameters
    ----------
    labels, predicted
        (N,) integer class numbers, every class present in ``labels``.
    value
        The benchmark's sampled value, if already known.
    """
    value = fraction_error(labels, predicted, n_classes) if value is None else value
    matrix = confusion_matrix(labels, predicted, n_classes)
    return confusion_intervals(matrix, value, level=level, n_resamples=n_resamples, seed=seed)[0]


def confusion_intervals(
    confusion: np.ndarray,
    value: float,
    per_class: np.ndarray | None = None,
    *,
    level: float = LEVEL,
    n_resamples: int = RESAMPLES,
    seed: int = SEED,
) -> tuple[Interval, list[Interval]]:
    """Return the interval of the fraction error and those of its classes from a confusion matrix.

    The metric depends on the events only through the row-normalised confusion matrix, so drawing each row from its
    multinomial *is* the bootstrap within classes. One pseudo-event a class, spread evenly over the columns, keeps the
    width honest where a cell is empty. The interval is the basic one, value - quantiles of (replica - mean matrix):
    the error is convex in the matrix, replicas are therefore too large on average, and the percentile interval would
    be too. The variance of the benchmark's own draws is added.

    Parameters
    ----------
    confusion
        (C, C) integer counts.
    value
        The benchmark's sampled value, around which the interval is put.
    per_class
        (C,) the sampled errors of the classes; the closed form's if not given.
    """
    n_classes = len(confusion)
    smooth = (confusion + 1 / n_classes) / (confusion.sum(axis=1, keepdims=True) + 1)
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(confusion.sum(axis=1), smooth, size=(n_resamples, n_classes))
    # single precision is good to 1e-6, far below the width of any interval
    replicas = class_fraction_errors((drawn / confusion.sum(axis=1, keepdims=True)).astype(np.float32))
    centre = class_fraction_errors(smooth)
    if per_class is None:
        per_class = class_fraction_errors(confusion / confusion.sum(axis=1, keepdims=True))
    gaps = replicas - centre
    sign = np.sign(mixture_fractions(n_classes) @ (np.eye(n_classes) - smooth))
    noise = draw_variance(smooth, np.repeat(sign[:, None], n_classes, axis=1))
    overall = _not_negative(basic_interval(value, widened(gaps.mean(axis=1), noise), level))
    # for one class alone the draws are binomial
    counts = mixture_counts(n_classes)
    noises = counts.sum(axis=0) @ (smooth * (1 - smooth)) / (MIXTURE_SIZE * len(counts)) ** 2
    classes = [
        _not_negative(basic_interval(float(per_class[k]), widened(gaps[:, k], noises[k]), level))
        for k in range(n_classes)
    ]
    return overall, classes


def _not_negative(interval: Interval) -> Interval:
    return Interval(max(0.0, interval.low), max(0.0, interval.high), interval.level)


def survival_interval(
    labels: np.ndarray,
    scores: np.ndarray,
    efficiency: float = KEY_EFFICIENCY,
    *,
    level: float = LEVEL,
    n_resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Interval:
    """Return the interval of the hadron survival, with the uncertainty of the threshold.

    Resampling the gammas moves the threshold: the k-th largest of a bootstrap sample of n is the J-th largest of the
    original, ``J = ceil(n U)`` with U ~ Beta(k, n - k + 1), exactly. For each such threshold the survivors' count h of
    n_h hadrons gives the two Clopper-Pearson variates Beta(h, n_h - h + 1) and Beta(h + 1, n_h - h); the interval
    runs from the lower quantile of the first to the upper quantile of the second. With a certain threshold it is
    the Clopper-Pearson interval itself.
    """
    gammas = np.sort(scores[labels == GAMMA])[::-1]
    hadrons = np.sort(scores[labels == HADRON])
    rank = threshold_rank(len(gammas), efficiency)
    rng = np.random.default_rng(seed)
    share = rng.beta(rank, len(gammas) - rank + 1, size=n_resamples)
    thresholds = gammas[np.clip(np.ceil(len(gammas) * share).astype(int), 1, len(gammas)) - 1]
    surviving = len(hadrons) - np.searchsorted(hadrons, thresholds, side="left")
    # quantile of the mixture, by stratified variates: each replica contributes the whole distribution's levels
    levels = (np.arange(n_resamples) + 0.5) / n_resamples
    shuffled = rng.permutation(levels)
    with np.errstate(divide="ignore"):
        low = np.where(
            surviving == 0, 0.0, betaincinv(np.maximum(surviving, 1), len(hadrons) - surviving + 1, shuffled)
        )
        high = np.where(
            surviving == len(hadrons),
            1.0,
            betaincinv(surviving + 1, np.maximum(len(hadrons) - surviving, 1), shuffled),
        )
    tail = (1 - level) / 2
    return Interval(float(np.quantile(low, tail)), float(np.quantile(high, 1 - tail)), level)
