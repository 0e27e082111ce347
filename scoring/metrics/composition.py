"""Mass composition: the benchmark's fraction error to the letter, its closed form, and the numbers beside it.

Use :func:`fraction_error` for the published number (a seeded sampling experiment), :func:`expected_fraction_error`
for its noise-free closed form (what decision rules and bootstraps need), :func:`composition_metrics` for everything
that ``metrics_composition.json`` holds.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from showerstack.runtime.errors import InputError
from showerstack.scoring.metrics.bins import energy_bins
from showerstack.showers.schema import COMPOSITION

MIXTURE_SIZE = 5000
"""Events drawn for each mixture [benchmark]."""
GRID_STEP = 0.1
"""Step of the fractions in a mixture [benchmark]."""
SEED = 2026
"""Seed of the benchmark's generator; the energy bins share a second one with the same seed [benchmark]."""


@functools.cache
def mixture_counts(n_classes: int = 5) -> np.ndarray:
    """Return how many events of each class every mixture of the benchmark draws.

    The grid holds all vectors of fractions that are multiples of 0.1 and sum to one, in lexicographic order of
    all but the last: 1001 of them for 5 classes.

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


def mixture_fractions(n_classes: int = 5) -> np.ndarray:
    """Return the true class fractions of the benchmark's mixtures, (G, C) float64."""
    return mixture_counts(n_classes) / MIXTURE_SIZE


def confusion_matrix(labels: np.ndarray, predicted: np.ndarray, n_classes: int = 5) -> np.ndarray:
    """Return (C, C) int64 counts: row = true class, column = predicted class."""
    cell = np.asarray(labels, dtype=np.int64) * n_classes + np.asarray(predicted, dtype=np.int64)
    return np.bincount(cell, minlength=n_classes * n_classes).reshape(n_classes, n_classes)


def row_normalised(confusion: np.ndarray) -> np.ndarray:
    """Return P(predicted | true), (..., C, C) float64.

    Raises
    ------
    InputError
        If a class has no event, so that its row is undefined.
    """
    confusion = np.asarray(confusion, dtype=np.float64)
    totals = confusion.sum(axis=-1, keepdims=True)
    if (totals <= 0).any():
        missing = sorted({int(k) for k in np.argwhere(totals[..., 0] <= 0)[:, -1]})
        raise InputError(f"the fraction error needs events of every class; none of class {missing}")
    return confusion / totals


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
    n_classes = probabilities.shape[-1]
    kind = probabilities.dtype
    fractions = mixture_fractions(n_classes).astype(kind)
    residual = (np.eye(n_classes, dtype=kind) - probabilities).reshape(-1, n_classes, n_classes)
    errors = np.empty((len(residual), n_classes), dtype=kind)
    # products this small stay in the cache, and BLAS does not start threads that then fight for busy cores
    block = 10
    for start in range(0, len(residual), block):
        part = residual[start : start + block]
        flat = fractions @ part.transpose(1, 0, 2).reshape(n_classes, -1)
        errors[start : start + block] = np.abs(flat, out=flat).mean(axis=0).reshape(len(part), n_classes)
    return errors.reshape(probabilities.shape[:-1])


def sampled_errors(
    labels: np.ndarray, predicted: np.ndarray, rng: np.random.Generator, n_classes: int = 5
) -> np.ndarray | None:
    """Run the benchmark's sampling experiment.

    For each mixture and each class with a positive count, in order, that many events of the class are drawn with
    replacement; the error is ``|counts / 5000 - predicted fractions|``.

    Parameters
    ----------
    labels, predicted
        (N,) integer class numbers.
    rng
        The generator; it is advanced exactly as ``rng.choice`` on the indices of each class would.

    Returns
    -------
    (G, C) float64, or None (nothing drawn) if a class has no event.
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


def fraction_error(labels: np.ndarray, predicted: np.ndarray, n_classes: int = 5) -> float:
    """Return the benchmark's ``mean_fraction_error`` (lower is better): the sampled value with its fixed seed.

    Perfect labels give 0, uniformly random ones 0.158, one constant class 0.32.

    Raises
    ------
    InputError
        If a class has no event.
    """
    # the value is asked for again and again (table, interval, comparisons): remember it by content
    return _remembered_error(np.asarray(labels, np.int8).tobytes(), np.asarray(predicted, np.int8).tobytes(), n_classes)


@functools.lru_cache(maxsize=32)
def _remembered_error(labels: bytes, predicted: bytes, n_classes: int) -> float:
    truth, guess = np.frombuffer(labels, np.int8), np.frombuffer(predicted, np.int8)
    errors = sampled_errors(truth, guess, np.random.default_rng(SEED), n_classes)
    if errors is None:
        missing = sorted(set(range(n_classes)) - set(truth.tolist()))
        raise InputError(f"the fraction error needs events of every class; none of class {missing}")
    return float(errors.mean())


def _error_details(labels: np.ndarray, predicted: np.ndarray, rng: np.random.Generator) -> dict[str, Any] | None:
    errors = sampled_errors(labels, predicted, rng)
    if errors is None:
        return None
    return {
        "mean_fraction_error": float(errors.mean()),
        "per_class_fraction_error": [float(value) for value in errors.mean(axis=0)],
        "n_ensembles": len(errors),
        "mixture_size": MIXTURE_SIZE,
        "grid_step": GRID_STEP,
    }


def _per_class(confusion: np.ndarray) -> dict[str, dict[str, float]]:
    hits = np.diag(confusion).astype(np.float64)
    support, claimed = confusion.sum(axis=1), confusion.sum(axis=0)
    precision = np.divide(hits, claimed, out=np.zeros_like(hits), where=claimed > 0)
    recall = np.divide(hits, support, out=np.zeros_like(hits), where=support > 0)
    f1 = np.divide(2 * hits, claimed + support, out=np.zeros_like(hits), where=claimed + support > 0)
    return {
        name: {
            "precision": float(precision[k]),
            "recall": float(recall[k]),
            "f1": float(f1[k]),
            "support": float(support[k]),
        }
        for k, name in enumerate(COMPOSITION.classes)
    }


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

    Raises
    ------
    InputError
        If a class has no event.
    """
    proba, n_classes = np.exp(log_proba.astype(np.float64)), log_proba.shape[1]
    counts = np.bincount(labels, minlength=n_classes)
    row_normalised(np.diag(counts))  # refuses a truth without all classes
    means = np.stack([proba[labels == k].mean(axis=0) for k in range(n_classes)], axis=1)
    inverse = np.linalg.pinv(means)
    covariance = np.cov(proba, rowvar=False, aweights=1.0 / counts[labels])
    return np.sqrt(np.diag(inverse @ covariance @ inverse.T) / n_events)


def composition_metrics(labels: np.ndarray, predicted: np.ndarray, energy: np.ndarray) -> dict[str, Any]:
    """Return every number of the benchmark's ``metrics_composition.json``.

    Parameters
    ----------
    labels, predicted
        (N,) integers 0..4.
    energy
        (N,) lg(E/eV), compared in float32.

    Raises
    ------
    InputError
        If a class has no event.
    """
    confusion = confusion_matrix(labels, predicted)
    row_normalised(confusion)  # refuses a truth without all classes
    per_class = _per_class(confusion)
    details = _error_details(labels, predicted, np.random.default_rng(SEED))
    assert details is not None
    shared = np.random.default_rng(SEED)
    binned: dict[str, Any] = {}
    for name, mask in energy_bins(energy):
        if not mask.any():
            continue
        inside, guessed = labels[mask], predicted[mask]
        matrix = confusion_matrix(inside, guessed)
        binned[name] = {
            "accuracy": float(np.trace(matrix) / matrix.sum()),
            "count": int(matrix.sum()),
            "confusion_matrix": matrix.tolist(),
        }
        in_bin = _error_details(inside, guessed, shared)
        if in_bin is not None:
            binned[name]["fraction_error"] = in_bin
    f1 = np.array([row["f1"] for row in per_class.values()])
    return {
        "accuracy": float(np.trace(confusion) / confusion.sum()),
        "per_class": per_class,
        "macro_f1": float(f1.mean()),
        "weighted_f1": float(np.average(f1, weights=confusion.sum(axis=1))),
        "confusion_matrix": confusion.tolist(),
        "mean_fraction_error": details["mean_fraction_error"],
        "fraction_error_details": details,
        "energy_binned": binned,
    }
