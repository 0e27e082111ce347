"""Calibration: making probabilities mean what they say; one calibrator a system, after fits are averaged and combined.

Every calibrator is affine in log-probabilities, ``log_softmax(z A + b)``: temperature scaling (A = a 1), vector scaling
(A diagonal) and matrix scaling (A full); C. Guo et al., ICML 2017. A kind is kept only if it lowers the out-of-fold
log-loss by more than twice the standard error of the gain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from showerstack.models.base.posterior import log_softmax
from showerstack.scoring.metrics.intervals import linearised
from showerstack.stacking.fit.folds import assign_folds, subsampled
from showerstack.stacking.meta.gate import standard_error
from showerstack.stacking.meta.softmax import fit_linear, fit_scaling, log_loss_per_event

MATRIX_L2 = 0.3
"""Pull of matrix scaling towards the temperature's result, times C (C - 1) / N: as many events as numbers to fit."""
KEEP_SIGMA = 2.0
"""Gain over no calibration, in standard errors, from which a calibrator is kept."""
MATRIX_CLASSES = 20
"""With more classes no matrix is tried: it has as many numbers as few tables have rows."""
RELIABILITY_BINS = 15
CHOICE_EVENTS = 20_000
"""Events on which kinds are compared; a gain that so many cannot show is not worth having."""


@dataclass(frozen=True)
class Calibrator:
    """An affine map of log-probabilities."""

    kind: str
    matrix: np.ndarray
    """(C, C) float64."""
    bias: np.ndarray
    """(C,) float64."""

    def __call__(self, log_proba: np.ndarray) -> np.ndarray:
        """Return calibrated log-probabilities, (..., C)."""
        if self.kind == "identity":
            return log_proba
        return log_softmax(log_proba @ self.matrix + self.bias)

    def as_json(self) -> dict[str, Any]:
        """Return JSON content."""
        return {"kind": self.kind, "matrix": self.matrix.tolist(), "bias": self.bias.tolist()}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Read what :meth:`as_json` returned."""
        return cls(str(content["kind"]), np.array(content["matrix"], float), np.array(content["bias"], float))


def identity(n_classes: int) -> Calibrator:
    """Return the calibrator that changes nothing."""
    return Calibrator("identity", np.eye(n_classes), np.zeros(n_classes))


def _temperature(log_proba: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> Calibrator:
    scales, bias = fit_scaling(log_proba, labels, weights, per_class=False)
    return Calibrator("temperature", np.diag(scales), bias)


def _vector(log_proba: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> Calibrator:
    scales, bias = fit_scaling(log_proba, labels, weights, per_class=True)
    return Calibrator("vector", np.diag(scales), bias)


def _matrix(log_proba: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> Calibrator:
    """Fit a matrix to what the temperature leaves.

    As in structured scaling (E. Berta et al., arXiv:2511.03685) ``l2`` falls with the number of events N.
    """
    n_events, n_classes = log_proba.shape
    scales, _ = fit_scaling(log_proba, labels, weights, per_class=False)
    l2 = MATRIX_L2 * n_classes * (n_classes - 1) / n_events
    matrix, bias = fit_linear(log_proba * scales, labels, np.eye(n_classes), weights, l2=l2)
    return Calibrator("matrix", scales[:, None] * matrix, bias)


KINDS: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray | None], Calibrator]] = {
    "temperature": _temperature,
    "vector": _vector,
    "matrix": _matrix,
}
"""Simplest first. Two classes go without the matrix: it need not keep the order of events."""


def fit_calibrator(
    log_proba: np.ndarray,
    labels: np.ndarray,
    folds: np.ndarray,
    groups: np.ndarray | None = None,
    weights: np.ndarray | None = None,
) -> Calibrator:
    """Choose and fit a calibrator.

    Parameters
    ----------
    log_proba
        (N, C) log-probabilities of events that no fit learned from.
    labels
        (N,) class numbers.
    folds
        (N,) fold of each event; kinds are compared by cross-validation over these folds (over two random halves
        where there is only one).
    groups
        (N,) or None: events of one value are one observation.
    weights
        (N,) importance weights, or None.

    Returns
    -------
    The simplest kind within one standard error of the best, fitted on all events; the identity if none gains
    more than :data:`KEEP_SIGMA` standard errors over it.
    """
    n_classes = log_proba.shape[1]
    thin = subsampled(len(labels), CHOICE_EVENTS)
    z, y, f = log_proba[thin], labels[thin], folds[thin]
    g = None if groups is None else groups[thin]
    w = None if weights is None else weights[thin]
    if len(np.unique(f)) < 2:
        f = assign_folds(y, 2, seed=0, groups=g)
    kinds = {kind: fit for kind, fit in KINDS.items() if kind != "matrix" or 2 < n_classes <= MATRIX_CLASSES}
    before = log_loss_per_event(z, y, w)
    losses = {kind: np.empty(len(y)) for kind in kinds}
    for k in np.unique(f):
        inside = f == k
        outside_weights = None if w is None else w[~inside]
        for kind, fit in kinds.items():
            losses[kind][inside] = log_loss_per_event(
                fit(z[~inside], y[~inside], outside_weights)(z[inside]), y[inside]
            )
    losses = {kind: linearised(values, w) for kind, values in losses.items()}
    best = min(kinds, key=lambda kind: losses[kind].mean())
    if not _gains(before, losses[best], KEEP_SIGMA, g):
        return identity(n_classes)
    chosen = next(kind for kind in kinds if not _gains(losses[kind], losses[best], 1.0, g))
    return kinds[chosen](log_proba, labels, weights)


def _gains(old: np.ndarray, new: np.ndarray, sigma: float, groups: np.ndarray | None) -> bool:
    gain = old - new
    return bool(gain.mean() > sigma * standard_error(gain, groups))


def cross_fit(
    log_proba: np.ndarray,
    labels: np.ndarray,
    folds: np.ndarray,
    groups: np.ndarray | None = None,
    weights: np.ndarray | None = None,
) -> tuple[Calibrator, np.ndarray]:
    """Fit a calibrator on all events, and calibrate each fold by one fitted on all *other* folds.

    Returns
    -------
    The calibrator that ships, and (N, C) log-probabilities to score it by, none calibrated with its own label.
    """
    calibrated = np.empty_like(log_proba)
    for k in np.unique(folds):
        inside = folds == k
        other_groups, other_weights = (None if part is None else part[~inside] for part in (groups, weights))
        fitted = fit_calibrator(log_proba[~inside], labels[~inside], folds[~inside], other_groups, other_weights)
        calibrated[inside] = fitted(log_proba[inside])
    return fit_calibrator(log_proba, labels, folds, groups, weights), calibrated


def reliability(
    log_proba: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None, n_bins: int = RELIABILITY_BINS
) -> dict[str, Any]:
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
    number = np.minimum((probability * n_bins).astype(int), n_bins - 1)
    each = np.ones(len(labels)) if weights is None else weights
    each = np.repeat(each, log_proba.shape[1])
    entries = np.bincount(number, minlength=n_bins)
    filled = np.bincount(number, each, minlength=n_bins) > 0
    mass, squares = (np.bincount(number, each**k, minlength=n_bins)[filled] for k in (1, 2))
    predicted = np.bincount(number, probability * each, minlength=n_bins)[filled] / mass
    observed = np.bincount(number, is_class * each, minlength=n_bins)[filled] / mass
    variance = np.bincount(number, probability * (1 - probability) * each**2, minlength=n_bins)
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
