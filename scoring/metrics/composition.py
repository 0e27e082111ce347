"""Mass composition: the benchmark's fraction error to the letter, its closed form, its intervals and comparisons.

:func:`fraction_error` is the published number (a seeded sampling experiment), :func:`expected_fraction_error` its
noise-free closed form (which bootstraps need). :func:`composition_metrics` returns all that
``metrics_composition.json`` holds but for the intervals. :func:`fraction_error_interval` and
:func:`paired_fraction_error` bootstrap test events for one system and for two.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from showerstack.runtime.errors import InputError
from showerstack.scoring.metrics.bins import BENCHMARK, MetricBins, energy_bins
from showerstack.scoring.metrics.intervals import (
    BOOTSTRAP_SEED,
    RESAMPLES,
    Interval,
    basic_interval,
    grouped_counts,
    widened,
)
from showerstack.scoring.metrics.paired import Paired, compare_replicas
from showerstack.showers.schema import COMPOSITION

N_CLASSES = COMPOSITION.n_classes
MIXTURE_SIZE = 5000
"""Events drawn for each mixture [benchmark]."""
GRID_STEP = 0.1
"""Step of the fractions in a mixture [benchmark]."""
PRIOR_EVENTS = 0.05
"""Events that each column of a class has before data, in intervals of single classes. Chosen by how often intervals of
known matrices hold, with 20 to 2,000 events a class: 0.2, one in all, is too many where nearly all are right."""
COLUMNS, ROWS = 200, 251
"""Of a product of mixtures with confusion matrices: long rows are summed fast, all stays in the cache, and BLAS starts
no threads, which would fight for busy cores, for so small a product."""
DRAW_SEED = 2026
"""Seed of the benchmark's generator; the energy bins share a second one with the same seed [benchmark]."""


@functools.cache
def mixture_counts(n_classes: int = N_CLASSES) -> np.ndarray:
    """Return how many events of each class every mixture of the benchmark draws.

    The grid holds all vectors of fractions that are multiples of 0.1 and sum to one, in lexicographic order of
    all but the last: 1001 of them for five classes.

    Returns
    -------
    (G, C) int64, read-only; rows sum to 5000.
    """
    steps = round(1 / GRID_STEP)

    def extend(head: tuple[int, ...], remaining: int) -> Iterator[tuple[int, ...]]:
        if len(head) == n_classes - 1:
            yield (*head, remaining)
            return
        for step in range(remaining + 1):
            yield from extend((*head, step), remaining - step)

    fractions = np.array(list(extend((), steps)), dtype=np.int64) * GRID_STEP
    counts = np.round(fractions * MIXTURE_SIZE).astype(np.int64)
    counts[np.arange(len(counts)), counts.argmax(axis=1)] += MIXTURE_SIZE - counts.sum(axis=1)
    counts.setflags(write=False)
    return counts


def mixture_fractions(n_classes: int = N_CLASSES) -> np.ndarray:
    """Return the true class fractions of the benchmark's mixtures, (G, C) float64."""
    return mixture_counts(n_classes) / MIXTURE_SIZE


def confusion_matrix(
    labels: np.ndarray, predicted: np.ndarray, n_classes: int = N_CLASSES, weights: np.ndarray | None = None
) -> np.ndarray:
    """Return (C, C) int64 counts, or float64 sums of weights: row = true class, column = predicted class."""
    cell = np.asarray(labels, dtype=np.int64) * n_classes + np.asarray(predicted, dtype=np.int64)
    return np.bincount(cell, weights, minlength=n_classes * n_classes).reshape(n_classes, n_classes)


def row_normalised(confusion: np.ndarray) -> np.ndarray:
    """Return P(predicted | true), (..., C, C) float64."""
    confusion = np.asarray(confusion, dtype=np.float64)
    n_events = confusion.sum(axis=-1)
    check_all_classes(n_events)
    return confusion / n_events[..., None]


def check_all_classes(n_events: np.ndarray) -> None:
    """Refuse a truth that lacks a class, by the number of events of each (..., C)."""
    if (n_events <= 0).any():
        missing = sorted({int(k) for k in np.argwhere(n_events <= 0)[:, -1]})
        raise InputError(f"the fraction error needs events of every class; none of class {missing}")


def expected_fraction_error(confusion: np.ndarray) -> float:
    """Return the noise-free fraction error of a confusion matrix: mean ``|F - F P|``.

    ``F`` is the grid of mixtures (G, C), ``P`` the row-normalised confusion matrix. The benchmark's sampled number
    differs from it by about 1e-4.

    Parameters
    ----------
    confusion
        (C, C) counts or probabilities, row = true class.
    """
    return float(class_fraction_errors(row_normalised(confusion)).mean())


def class_fraction_errors(probabilities: np.ndarray) -> np.ndarray:
    """Return the expected fraction error of each class for many confusion matrices at once.

    Parameters
    ----------
    probabilities
        (..., C, C) float64 or float32 (twice as fast, good to 1e-6), rows sum to one: P(predicted | true).

    Returns
    -------
    (..., C) of the same type: mean over the grid of ``|F - F P|``.
    """
    dtype, n_classes = probabilities.dtype, probabilities.shape[-1]
    fractions = mixture_fractions(n_classes).astype(dtype)
    residual = (np.eye(n_classes, dtype=dtype) - probabilities).reshape(-1, n_classes, n_classes)
    columns = residual.transpose(1, 0, 2).reshape(n_classes, -1)
    errors, gaps = np.empty(columns.shape[1], dtype=dtype), np.empty((len(fractions), COLUMNS), dtype=dtype)
    for start in range(0, len(errors), COLUMNS):
        part = columns[:, start : start + COLUMNS]
        inside = gaps[:, : part.shape[1]]
        for row in range(0, len(fractions), ROWS):
            np.matmul(fractions[row : row + ROWS], part, out=inside[row : row + ROWS])
        errors[start : start + COLUMNS] = np.abs(inside, out=inside).mean(axis=0)
    return errors.reshape(probabilities.shape[:-1])


def sampled_errors(
    labels: np.ndarray, predicted: np.ndarray, rng: np.random.Generator, n_classes: int = N_CLASSES
) -> np.ndarray | None:
    """Run the benchmark's sampling experiment.

    For each mixture and each class with a positive count, in order, that many events of the class are drawn with
    replacement, by exactly the random numbers that ``rng.choice`` on the indices of each class would take.

    Returns
    -------
    ``|counts / 5000 - predicted fractions|``, (G, C) float64, or None (nothing drawn) if a class has no event.
    """
    by_class = [np.asarray(predicted[labels == k], dtype=np.intp) for k in range(n_classes)]
    if not all(len(members) for members in by_class):
        return None
    counts = mixture_counts(n_classes)
    tally = np.empty(counts.shape, dtype=np.int64)
    drawn = np.empty(MIXTURE_SIZE, dtype=np.intp)
    for row, wanted in enumerate(counts.tolist()):
        start = 0
        for members, size in zip(by_class, wanted, strict=True):
            if size:
                index = rng.integers(0, len(members), size=size)
                # "clip" only spares take() a buffer; the drawn indices are always in range
                np.take(members, index, out=drawn[start : start + size], mode="clip")
                start += size
        tally[row] = np.bincount(drawn, minlength=n_classes)
    return np.abs(counts / MIXTURE_SIZE - tally / MIXTURE_SIZE)


def fraction_error(
    labels: np.ndarray, predicted: np.ndarray, weights: np.ndarray | None = None, n_classes: int = N_CLASSES
) -> float:
    """Return the benchmark's ``mean_fraction_error`` (lower is better): the sampled value with its fixed seed.

    Perfect labels give 0, with five classes uniformly random ones 0.158, one constant class 0.32. Events with
    importance weights (N,) would be drawn in their proportion: the value is then the closed form,
    :func:`expected_fraction_error`.

    Raises
    ------
    InputError
        If a class has no event.
    """
    if weights is not None:
        return expected_fraction_error(confusion_matrix(labels, predicted, n_classes, weights))
    # table, interval and comparisons need the value again and again: it is remembered by content
    return _remembered_error(np.asarray(labels, np.int8).tobytes(), np.asarray(predicted, np.int8).tobytes(), n_classes)


@functools.lru_cache(maxsize=32)
def _remembered_error(labels: bytes, predicted: bytes, n_classes: int) -> float:
    of_labels, of_predicted = np.frombuffer(labels, np.int8), np.frombuffer(predicted, np.int8)
    check_all_classes(np.bincount(of_labels, minlength=n_classes))
    errors = sampled_errors(of_labels, of_predicted, np.random.default_rng(DRAW_SEED), n_classes)
    assert errors is not None
    return float(errors.mean())


def mixture_errors(confusion: np.ndarray) -> np.ndarray:
    """Return ``|F - F P|``, (G, C) float64: the noise-free error of every mixture and class."""
    probabilities = row_normalised(confusion)
    return np.abs(mixture_fractions(len(probabilities)) @ (np.eye(len(probabilities)) - probabilities))


def _accuracy(confusion: np.ndarray) -> float:
    total = confusion.sum()
    return float(np.trace(confusion) / total) if total else 0.0


def _error_details(errors: np.ndarray | None) -> dict[str, Any] | None:
    """Return the benchmark's entry of what :func:`sampled_errors` drew."""
    if errors is None:
        return None
    return {
        "mean_fraction_error": float(errors.mean()),
        "per_class_fraction_error": [float(value) for value in errors.mean(axis=0)],
        "n_ensembles": len(errors),
        "mixture_size": MIXTURE_SIZE,
        "grid_step": GRID_STEP,
    }


def _per_class(confusion: np.ndarray, classes: tuple[str, ...]) -> dict[str, dict[str, float]]:
    hits = np.diag(confusion).astype(np.float64)
    support, predicted = confusion.sum(axis=1), confusion.sum(axis=0)
    precision = np.divide(hits, predicted, out=np.zeros_like(hits), where=predicted > 0)
    recall = np.divide(hits, support, out=np.zeros_like(hits), where=support > 0)
    f1 = np.divide(2 * hits, predicted + support, out=np.zeros_like(hits), where=predicted + support > 0)
    columns = {"precision": precision, "recall": recall, "f1": f1, "support": support}
    return {name: {column: float(values[k]) for column, values in columns.items()} for k, name in enumerate(classes)}


def share_errors(log_proba: np.ndarray, labels: np.ndarray, n_events: int) -> np.ndarray:
    """Return the statistical error of each class's share in a sample of equal shares, (C,) float64.

    Shares solve mean(p) = M w, where p are an event's probabilities and M their means by true class, so that they are
    unbiased for any probabilities; their covariance is M^-1 cov(p) M^-T / n. With true probabilities at equal shares
    no estimator is better: p is then the score of the likelihood (G. J. McLachlan, D. Peel, Finite Mixture Models,
    Wiley 2000).

    Parameters
    ----------
    log_proba
        (N, C) log-probabilities of labelled events.
    labels
        (N,) class numbers.
    n_events
        Events of the sample whose shares are estimated.

    Returns
    -------
    inf where posteriors do not tell the classes apart.
    """
    proba, n_classes = np.exp(log_proba.astype(np.float64)), log_proba.shape[1]
    counts = np.bincount(labels, minlength=n_classes)
    check_all_classes(counts)
    means = np.stack([proba[labels == k].mean(axis=0) for k in range(n_classes)], axis=1)
    if np.linalg.matrix_rank(means) < n_classes:  # some classes look alike: nothing tells their shares
        return np.full(n_classes, np.inf)
    inverse = np.linalg.inv(means)
    covariance = np.cov(proba, rowvar=False, aweights=1.0 / counts[labels])
    return np.sqrt(np.diag(inverse @ covariance @ inverse.T) / n_events)


def composition_metrics(
    labels: np.ndarray,
    predicted: np.ndarray,
    energy: np.ndarray,
    weights: np.ndarray | None = None,
    binning: MetricBins = BENCHMARK,
    classes: tuple[str, ...] = COMPOSITION.classes,
) -> dict[str, Any]:
    """Return every number of the benchmark's ``metrics_composition.json``, and those of its newest printed block.

    ``fraction_error_extremes`` are, by class, the largest error of a mixture and the 99 % quantile of the mixtures'.
    With importance weights all are of weights but for counts of events: ``count``, ``support`` and the confusion.

    Parameters
    ----------
    labels, predicted
        (N,) integers 0..C-1.
    energy
        (N,) lg(E/eV), compared in float32.
    weights
        (N,) importance weights, or None.
    binning
        Bins of energy.
    classes
        Names of the C classes.

    Raises
    ------
    InputError
        If a class has no event.
    """
    rng, rng_of_bins = np.random.default_rng(DRAW_SEED), np.random.default_rng(DRAW_SEED)

    def matrices(rows: Any) -> tuple[np.ndarray, np.ndarray]:
        counts = confusion_matrix(labels[rows], predicted[rows], len(classes))
        if weights is None:
            return counts, counts
        return counts, confusion_matrix(labels[rows], predicted[rows], len(classes), weights[rows])

    def errors_of(rows: Any, matrix: np.ndarray, random: np.random.Generator) -> np.ndarray | None:
        if weights is None:
            return sampled_errors(labels[rows], predicted[rows], random, len(classes))
        return mixture_errors(matrix) if matrix.sum(axis=1).min() > 0 else None

    every = slice(None)
    confusion, worth = matrices(every)
    check_all_classes(worth.sum(axis=1))
    per_class = _per_class(worth, classes)
    for row, support in zip(per_class.values(), confusion.sum(axis=1), strict=True):
        row["support"] = float(support)
    errors = errors_of(every, worth, rng)
    details = _error_details(errors)
    assert errors is not None
    assert details is not None
    binned: dict[str, Any] = {}
    for name, mask in energy_bins(energy, binning):
        if not mask.any():
            continue
        in_bin, worth_in_bin = matrices(mask)
        binned[name] = {
            "accuracy": _accuracy(worth_in_bin),
            "count": int(in_bin.sum()),
            "confusion_matrix": in_bin.tolist(),
        }
        details_in_bin = _error_details(errors_of(mask, worth_in_bin, rng_of_bins))
        if details_in_bin is not None:
            binned[name]["fraction_error"] = details_in_bin
    f1 = np.array([row["f1"] for row in per_class.values()])
    return {
        "accuracy": _accuracy(worth),
        "per_class": per_class,
        "macro_f1": float(f1.mean()),
        "weighted_f1": float(np.average(f1, weights=worth.sum(axis=1))),
        "confusion_matrix": confusion.tolist(),
        "mean_fraction_error": details["mean_fraction_error"],
        "fraction_error_details": details,
        "fraction_error_extremes": {
            "per_class_max": errors.max(axis=0).tolist(),
            "per_class_p99": np.percentile(errors, 99, axis=0).tolist(),
        },
        "energy_binned": binned,
    }


def fraction_error_interval(
    labels: np.ndarray,
    predicted: np.ndarray,
    groups: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    n_classes: int = N_CLASSES,
) -> Interval:
    """Return the interval of the fraction error by a bootstrap over test events.

    Parameters
    ----------
    labels, predicted
        (N,) integer class numbers, every class present in ``labels``.
    groups
        (N,) or None: events of one value are resampled together.
    weights
        (N,) importance weights, or None.
    """
    value = fraction_error(labels, predicted, weights, n_classes)
    drawn = confusion_replicas(labels, predicted, groups, weights, n_classes)
    confusion = confusion_matrix(labels, predicted, n_classes, weights)
    return confusion_intervals(confusion, value, drawn=drawn, is_sampled=weights is None)[0]


def confusion_replicas(
    labels: np.ndarray,
    predicted: np.ndarray,
    groups: np.ndarray | None,
    weights: np.ndarray | None = None,
    n_classes: int = N_CLASSES,
    *,
    n_resamples: int = RESAMPLES,
) -> np.ndarray | None:
    """Return confusion matrices (B, C, C) of the events (N,) of resampled groups (N,), or of their weights (N,).

    None without groups and weights: :func:`confusion_intervals` then needs no events.
    """
    if groups is None and weights is None:
        return None
    cell = labels.astype(np.int64) * n_classes + predicted
    each = np.arange(len(labels)) if groups is None else groups
    counts = grouped_counts(cell, n_classes**2, labels, each, n_resamples, weights)
    return counts.reshape(-1, n_classes, n_classes)


def confusion_intervals(
    confusion: np.ndarray,
    value: float,
    per_class: np.ndarray | None = None,
    *,
    n_resamples: int = RESAMPLES,
    drawn: np.ndarray | None = None,
    is_sampled: bool = True,
) -> tuple[Interval, list[Interval]]:
    """Return the interval of the fraction error and those of its classes from a confusion matrix.

    The metric depends on the events only through the row-normalised confusion matrix, so drawing each row from its
    multinomial *is* the bootstrap within classes. One pseudo-event a class, spread evenly over the columns, keeps the
    width honest where a cell is empty. The interval is the basic one, value - quantiles of (replica - mean matrix):
    the error is convex in the matrix, replicas are therefore too large on average, and the percentile interval would
    be too. Single classes of few events have about one wrong event, and the basic interval of them holds too seldom
    (77 % of 95 with 20 to 50 events): where events are counted, theirs are quantiles of the distribution after the
    data, each row from Dirichlet's law of its counts and :data:`PRIOR_EVENTS` a column (D. B. Rubin, Ann. Stat. 9
    (1981) 130, where that number is 0). The variance of the benchmark's own draws is added.

    Parameters
    ----------
    confusion
        (C, C) integer counts, or sums of weights where ``drawn`` is given.
    value
        The benchmark's sampled value, around which the interval is put.
    per_class
        (C,) the sampled errors of the classes; the closed form's if not given.
    drawn
        (B, C, C) matrices of resampled groups of events, in place of those of resampled events.
    is_sampled
        Whether ``value`` is the sampled one: the closed form lacks the variance of the draws.
    """
    n_events, n_classes = confusion.sum(axis=1), len(confusion)
    observed = confusion / n_events[:, None]
    smooth = (confusion + 1 / n_classes) / (n_events[:, None] + 1)
    if per_class is None:
        per_class = class_fraction_errors(observed)
    of_classes = None
    if drawn is None:
        likely = np.random.default_rng(BOOTSTRAP_SEED).standard_gamma(
            confusion + PRIOR_EVENTS, size=(n_resamples, n_classes, n_classes)
        )
        likely /= likely.sum(axis=2, keepdims=True)
        # Turned round: a basic interval turns it back.
        of_classes = class_fraction_errors(observed) - class_fraction_errors(likely.astype(np.float32))
        drawn = np.random.default_rng(BOOTSTRAP_SEED).multinomial(n_events, smooth, size=(n_resamples, n_classes))
        centre = smooth
    else:
        centre = observed
    # single precision is good to 1e-6, far below the width of any interval
    totals = drawn.sum(axis=2, keepdims=True)
    replicas = class_fraction_errors((drawn / np.where(totals > 0, totals, 1)).astype(np.float32))
    deviations = replicas - class_fraction_errors(centre)
    sign = np.sign(mixture_fractions(n_classes) @ (np.eye(n_classes) - smooth))
    draws = draw_variance(smooth, np.repeat(sign[:, None], n_classes, axis=1))
    draws *= is_sampled
    overall = _not_negative(basic_interval(value, widened(deviations.mean(axis=1), draws)))
    of_classes = deviations if of_classes is None else of_classes
    # for one class alone the draws are binomial
    counts = mixture_counts(n_classes)
    draws_of_class = is_sampled * (counts.sum(axis=0) @ (smooth * (1 - smooth))) / (MIXTURE_SIZE * len(counts)) ** 2
    classes = [
        _not_negative(basic_interval(float(per_class[k]), widened(of_classes[:, k], draws_of_class[k])))
        for k in range(n_classes)
    ]
    return overall, classes


def _not_negative(interval: Interval) -> Interval:
    return Interval(max(0.0, interval.low), max(0.0, interval.high), interval.level)


def draw_variance(probabilities: np.ndarray, weights: np.ndarray) -> float:
    """Return the variance that the benchmark's 5000 draws a mixture add to the mean error.

    To first order the mean error moves by the mean over mixtures g and classes of ``sign * (drawn - expected)``;
    draws are independent between mixtures and classes, so variances of the drawn weights add.

    Parameters
    ----------
    probabilities
        (C, M) probability of each outcome (predicted class, or pair of them) for events of each class.
    weights
        (G, C, M) what drawing the outcome adds to the sum over classes of the signed error.
    """
    counts = mixture_counts(len(probabilities))
    mean = np.einsum("gcm,cm->gc", weights, probabilities)
    variance = np.einsum("gcm,cm->gc", weights**2, probabilities) - mean**2
    total = float((counts * variance).sum()) / MIXTURE_SIZE**2
    return total / counts.size**2


def paired_fraction_error(
    labels: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    groups: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    n_classes: int = N_CLASSES,
    *,
    n_resamples: int = RESAMPLES,
) -> Paired:
    """Compare the fraction errors of two sets of hard labels.

    Events are resampled within classes through the joint counts n[true, a, b], which hold everything that both
    metrics depend on; see :func:`confusion_intervals` for the rest of the construction.

    Parameters
    ----------
    labels, a, b
        (N,) integer class numbers.
    groups
        (N,) or None: events of one value are resampled together.
    weights
        (N,) importance weights, or None.
    """
    n_pairs = n_classes**2
    cell = (labels.astype(np.int64) * n_classes + a) * n_classes + b
    joint = np.bincount(cell, weights, minlength=n_classes * n_pairs).reshape(n_classes, n_pairs)
    n_events = joint.sum(axis=1)
    probabilities = joint / n_events[:, None]
    if weights is not None and groups is None:
        groups = np.arange(len(labels))
    if groups is None:
        rng = np.random.default_rng(BOOTSTRAP_SEED)
        drawn = rng.multinomial(n_events, probabilities, size=(n_resamples, n_classes))
    else:
        counted = grouped_counts(cell, joint.size, labels, groups, n_resamples, weights)
        drawn = counted.reshape(-1, n_classes, n_pairs)
    tables = np.concatenate([drawn, joint[None]]).reshape(-1, n_classes, n_classes, n_classes)
    totals = tables.sum(axis=(2, 3), keepdims=True)
    shares = tables / np.where(totals > 0, totals, 1)
    of_a, of_b = shares.sum(axis=3), shares.sum(axis=2)
    gaps = (class_fraction_errors(of_a) - class_fraction_errors(of_b)).mean(axis=1)
    fractions, identity = mixture_fractions(n_classes), np.eye(n_classes)
    sign_a = np.sign(fractions @ (identity - of_a[-1]))
    sign_b = np.sign(fractions @ (identity - of_b[-1]))
    signs = (sign_a[:, :, None] - sign_b[:, None, :]).reshape(len(fractions), 1, n_pairs)
    draws = draw_variance(probabilities, np.repeat(signs, n_classes, axis=1)) if weights is None else 0.0
    difference = fraction_error(labels, a, weights, n_classes) - fraction_error(labels, b, weights, n_classes)
    return compare_replicas(difference, widened(gaps[:-1] - gaps[-1], draws))
