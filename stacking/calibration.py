"""Calibration: one temperature a system, after fits are averaged and learners pooled, kept only where it gains.

``log_softmax(z / T)`` (C. Guo et al., ICML 2017) changes how sure a system is, never the order of classes or events.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from showerstack.models.base.posterior import log_softmax
from showerstack.stacking.gate import MeanAndError
from showerstack.stacking.pools import FIT_EVENTS, cross_entropy
from showerstack.stacking.sample import Sample

KEEP_SIGMA = 2.0
"""Gain over no calibration, in standard errors, from which a temperature is kept."""
SCALES = (0.05, 20.0)
"""Limits of 1/T."""
RELIABILITY_BINS = 15


def scaled(log_proba: np.ndarray, scale: float) -> np.ndarray:
    """Return ``log_softmax(scale z)`` of (..., C) log-probabilities; with a scale of 1 what was given."""
    return log_proba if scale == 1.0 else log_softmax(scale * log_proba)


def fit_scale(log_proba: np.ndarray, sample: Sample) -> float:
    """Return the scale 1/T of least log-loss."""
    rows = sample.subsample(FIT_EVENTS)
    part, z = sample.take(rows), log_proba[rows]
    low, high = np.log(SCALES)
    from scipy.optimize import minimize_scalar

    result = minimize_scalar(lambda t: cross_entropy(np.exp(t) * z, part)[0], bounds=(low, high), method="bounded")
    return float(np.exp(result.x))


def calibrated(log_proba: np.ndarray, sample: Sample) -> tuple[float, np.ndarray]:
    """Fit the scale that ships, and calibrate each fold by what the other folds say.

    Parameters
    ----------
    log_proba
        (N, C) of events that no fit learned from.
    sample
        The N events.

    Returns
    -------
    The scale, 1 where it does not gain :data:`KEEP_SIGMA` standard errors, and (N, C) log-probabilities to score the
    system by, none calibrated with its own label.
    """
    result = np.empty_like(log_proba)
    for k in np.unique(sample.folds):
        inside = sample.folds == k
        result[inside] = scaled(log_proba[inside], _kept(log_proba[~inside], sample.take(~inside)))
    return _kept(log_proba, sample), result


def _kept(log_proba: np.ndarray, sample: Sample) -> float:
    """Return the scale, or 1 where it gains too little.

    One number fitted to N events gains 1/(2 N) by chance: nothing beside two standard errors of any gain.
    """
    scale = fit_scale(log_proba, sample)
    gain = MeanAndError.of(sample.losses(log_proba) - sample.losses(scaled(log_proba, scale)), sample)
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
    number = np.minimum((probability * RELIABILITY_BINS).astype(int), RELIABILITY_BINS - 1)
    each = np.ones(len(labels)) if weights is None else weights
    each = np.repeat(each, log_proba.shape[1])
    entries = np.bincount(number, minlength=RELIABILITY_BINS)
    filled = np.bincount(number, each, minlength=RELIABILITY_BINS) > 0
    mass, squares = (np.bincount(number, each**k, minlength=RELIABILITY_BINS)[filled] for k in (1, 2))
    predicted = np.bincount(number, probability * each, minlength=RELIABILITY_BINS)[filled] / mass
    observed = np.bincount(number, is_class * each, minlength=RELIABILITY_BINS)[filled] / mass
    variance = np.bincount(number, probability * (1 - probability) * each**2, minlength=RELIABILITY_BINS)
    error = (
        np.sqrt(observed * (1 - observed) * squares) / mass
        if weights is not None
        else np.sqrt(observed * (1 - observed) / mass)
    )
    return {
        "bins": [
            {"predicted": float(p), "observed": float(o), "error": float(e), "entries": int(n)}
            for p, o, e, n in zip(predicted, observed, error, entries[filled], strict=True)
        ],
        "expected_calibration_error": float(np.abs(predicted - observed) @ mass / mass.sum()),
        # the mean distance of a normal number from its mean is .8 standard deviations
        "of_perfect_posteriors": float(np.sqrt(2 / np.pi * variance).sum() / mass.sum()),
    }
