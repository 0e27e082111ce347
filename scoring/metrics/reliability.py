"""Whether events happen as often as posteriors say."""

from __future__ import annotations

from typing import Any

import numpy as np

RELIABILITY_BINS = 15


def reliability(log_proba: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> dict[str, Any]:
    """Return the reliability diagram of all classes together and the expected calibration error.

    Every (event, class) pair is an entry: predicted probability against "is it this class". Bins have equal width.
    Importance weights (N,) count in everything but the number of entries.

    Returns
    -------
    ``bins``: rows of mean predicted probability, observed frequency, its binomial error, entries;
    ``expected_calibration_error``: mean of |predicted - observed| weighted by entries;
    ``of_perfect_posteriors``: what it would be on average for so many events if these posteriors were right.
    """
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
