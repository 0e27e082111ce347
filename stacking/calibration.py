"""Calibration: one temperature a system, after fits are averaged and learners pooled, kept only where it gains.

``log_softmax(z / T)`` (C. Guo et al., ICML 2017) changes how sure a system is, never the order of classes or events.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from showerstack.models.base.posterior import log_softmax
from showerstack.stacking.pools import cross_entropy
from showerstack.stacking.sample import Sample, cross_fitted

KEEP_SIGMA = 2.0
"""Gain over no calibration, in standard errors, from which a temperature is kept."""
SCALES = (0.05, 20.0)
"""Limits of 1/T."""
RELIABILITY_BINS = 15


def scaled(log_proba: np.ndarray, scale: float) -> np.ndarray:
    """Return ``log_softmax(scale z)`` of (..., C) log-probabilities z; z itself where the scale is 1."""
    return log_proba if scale == 1.0 else log_softmax(scale * log_proba)


def fit_scale(log_proba: np.ndarray, sample: Sample) -> float:
    """Return the scale 1/T of least log-loss."""
    rows = sample.subsample()
    part, z = sample.take(rows), log_proba[rows]
    low, high = np.log(SCALES)
    from scipy.optimize import minimize_scalar

    result = minimize_scalar(lambda t: cross_entropy(np.exp(t) * z, part)[0], bounds=(low, high), method="bounded")
    return float(np.exp(result.x))


def calibrated(log_proba: np.ndarray, sample: Sample) -> tuple[float, np.ndarray]:
    """Return the scale of (N, C) log-probabilities, and (N, C) to score them by, each fold scaled by the other folds.

    The scale is 1 where it does not gain :data:`KEEP_SIGMA` standard errors. No fit learned from the N events.
    """

    def of(outside: np.ndarray, inside: np.ndarray) -> np.ndarray:
        return scaled(log_proba[inside], _useful_scale(log_proba[outside], sample.take(outside)))

    return _useful_scale(log_proba, sample), cross_fitted(sample.folds, log_proba, of)


def _useful_scale(log_proba: np.ndarray, sample: Sample) -> float:
    """Return the scale, or 1 where it gains too little.

    One number fitted to N events gains 1/(2 N) by chance: nothing beside two standard errors of any gain.
    """
    scale = fit_scale(log_proba, sample)
    gain = sample.mean_of(sample.losses(log_proba) - sample.losses(scaled(log_proba, scale)))
    return scale if gain.mean > KEEP_SIGMA * gain.error else 1.0


def reliability(log_proba: np.ndarray, sample: Sample) -> dict[str, Any]:
    """Return the reliability diagram of all classes together and the expected calibration error.

    Every (event, class) pair is an entry: predicted probability against "is it this class". Bins have equal width.
    Importance weights (N,) count in everything but the number of entries.

    Returns
    -------
    ``bins``: rows of mean predicted probability, observed frequency, its binomial error, entries;
    ``expected_calibration_error``: mean of |predicted - observed| weighted by entries;
    ``of_perfect_posteriors``: what it would be on average for so many events if these posteriors were right.
    """
    labels, weights = sample.labels, sample.weights
    probability = np.exp(log_proba).ravel()
    is_class = (labels[:, None] == np.arange(log_proba.shape[1])).ravel()
    bin_of = np.minimum((probability * RELIABILITY_BINS).astype(int), RELIABILITY_BINS - 1)
    weight = np.repeat(np.ones(len(labels)) if weights is None else weights, log_proba.shape[1])
    entries = np.bincount(bin_of, minlength=RELIABILITY_BINS)
    filled = np.bincount(bin_of, weight, minlength=RELIABILITY_BINS) > 0
    mass, squares = (np.bincount(bin_of, weight**k, minlength=RELIABILITY_BINS)[filled] for k in (1, 2))
    predicted = np.bincount(bin_of, probability * weight, minlength=RELIABILITY_BINS)[filled] / mass
    observed = np.bincount(bin_of, is_class * weight, minlength=RELIABILITY_BINS)[filled] / mass
    variance = np.bincount(bin_of, probability * (1 - probability) * weight**2, minlength=RELIABILITY_BINS)
    if weights is None:
        error = np.sqrt(observed * (1 - observed) / mass)
    else:
        error = np.sqrt(observed * (1 - observed) * squares) / mass
    return {
        "bins": [
            {"predicted": float(p), "observed": float(o), "error": float(e), "entries": int(n)}
            for p, o, e, n in zip(predicted, observed, error, entries[filled], strict=True)
        ],
        "expected_calibration_error": float(np.abs(predicted - observed) @ mass / mass.sum()),
        # the mean distance of a normal number from its mean is .8 standard deviations
        "of_perfect_posteriors": float(np.sqrt(2 / np.pi * variance).sum() / mass.sum()),
    }
