"""Small convex fits of log-posteriors: the mathematics that calibration and meta-learners share.

All minimise the weighted mean of ``-log p(true class)`` with an l2 penalty on the distance to a sensible start: where
numbers have bounds or are many by L-BFGS-B with analytic gradients, elsewhere by Newton's method, which needs few steps
however differently the loss is curved along what classes and learners have in common and along what they have not.
Inputs are log-probabilities; a fit never gets more than :data:`showerstack.stacking.fit.folds.MAX_EVENTS` events,
which leaves an error of the fitted numbers far below that of the learners.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.linalg import solve
from scipy.optimize import minimize
from scipy.special import softmax

from showerstack.models.base.posterior import log_softmax
from showerstack.scoring.metrics.intervals import linearised
from showerstack.stacking.fit.folds import subsampled

MAX_ITERATIONS = 200
TOLERANCE = 1e-9
"""Relative decrease of the loss at which a fit stops."""
AT_ONCE = 16_384
"""Events whose curvature is summed at once."""
NEWTON_NUMBERS = 400
"""More numbers are fitted by L-BFGS-B: the cost of Newton's steps grows with their square, in memory too."""
SHORTEST = 1e-6
"""Share of Newton's step below which a fit goes no further."""


def log_loss_per_event(log_proba: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Return ``-log p`` of the true class, (N,) float64, in nats.

    With importance weights (N,) the plain mean of what is returned is the weighted mean, and its spread gives the error
    of that (:func:`showerstack.scoring.metrics.intervals.linearised`); so of differences of two systems.
    """
    return linearised(-log_proba[np.arange(len(labels)), labels], weights)


def pooled(log_proba: np.ndarray, weights: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Return the log-linear pool ``log_softmax(sum_l w_l z_l + b)``, (N, C), of (L, N, C) log-probabilities."""
    return log_softmax(np.tensordot(weights, log_proba, axes=1) + bias)


def fit_pool(
    log_proba: np.ndarray, labels: np.ndarray, event_weights: np.ndarray | None = None, *, l2: float = 1e-4
) -> tuple[np.ndarray, np.ndarray]:
    """Fit a non-negative log-linear pool.

    Parameters
    ----------
    log_proba
        (L, N, C) log-probabilities of L learners.
    labels
        (N,) class numbers.
    event_weights
        (N,) or None.
    l2
        Weight of the squared distance of the weights towards 1/L and of the biases towards 0.

    Returns
    -------
    Weights (L,), not negative, and class biases (C,).
    """
    thin = subsampled(len(labels))
    z, y = np.ascontiguousarray(log_proba[:, thin]), labels[thin]
    w = None if event_weights is None else event_weights[thin]
    n_learners, n_events, n_classes = z.shape
    flat = z.reshape(n_learners, -1)
    start = np.concatenate([np.full(n_learners, 1.0 / n_learners), np.zeros(n_classes)])

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        logits = (theta[:n_learners] @ flat).reshape(n_events, n_classes) + theta[n_learners:]
        value, slope = _cross_entropy(logits, y, w)
        return value, np.concatenate([flat @ slope.ravel(), slope.sum(axis=0)])

    bounds = [(0.0, 10.0)] * n_learners + [(-10.0, 10.0)] * n_classes
    theta = _minimise(loss, start, l2, bounds)
    return theta[:n_learners], theta[n_learners:]


def fit_scaling(
    log_proba: np.ndarray,
    labels: np.ndarray,
    event_weights: np.ndarray | None = None,
    *,
    per_class: bool,
    l2: float = 1e-4,
) -> tuple[np.ndarray, np.ndarray]:
    """Fit ``z_c -> a_c z_c + b_c`` with all a equal and b = 0 (temperature 1/a), or free ``per_class``.

    Returns
    -------
    Positive scales (C,), between 0.05 and 20, and biases (C,).
    """
    thin = subsampled(len(labels))
    z, y = log_proba[thin], labels[thin]
    w = None if event_weights is None else event_weights[thin]
    n_classes = z.shape[1]
    n_scales = n_classes if per_class else 1
    start = np.concatenate([np.ones(n_scales), np.zeros(n_classes if per_class else 0)])

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = _cross_entropy(z * theta[:n_scales] + (theta[n_scales:] if per_class else 0.0), y, w)
        by_class = (slope * z).sum(axis=0)
        return value, np.concatenate([by_class, slope.sum(axis=0)]) if per_class else by_class.sum(keepdims=True)

    bounds = [(0.05, 20.0)] * n_scales + [(-10.0, 10.0)] * (len(start) - n_scales)
    theta = _minimise(loss, start, l2, bounds)
    scales = np.broadcast_to(theta[:n_scales], (n_classes,)).copy()
    return scales, theta[n_scales:] if per_class else np.zeros(n_classes)


def fit_linear(
    inputs: np.ndarray,
    labels: np.ndarray,
    centre: np.ndarray,
    event_weights: np.ndarray | None = None,
    *,
    l2: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Fit a multinomial logistic regression ``logits = x W + b``, its W pulled towards ``centre``.

    Parameters
    ----------
    inputs
        (N, F).
    centre
        (F, C): from where the distance is taken; for stacked log-probabilities the plain average of the learners.
    l2
        Weight of the squared distance, positive.

    Returns
    -------
    W (F, C) and b (C,).
    """
    thin = subsampled(len(labels))
    x, y = np.column_stack([inputs[thin], np.ones(len(labels[thin]))]), labels[thin]
    w = None if event_weights is None else event_weights[thin]
    start = np.vstack([centre, np.zeros(centre.shape[1])])
    if start.size > NEWTON_NUMBERS:

        def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
            value, slope = _cross_entropy(x @ theta.reshape(start.shape), y, w)
            return value, (x.T @ slope).ravel()

        result = _minimise(loss, start.ravel(), l2, None).reshape(start.shape)
        return result[:-1], result[-1]
    theta, (value, slope) = start, _cross_entropy(x @ start, y, w)
    for _ in range(MAX_ITERATIONS):
        gradient = x.T @ slope + l2 * (theta - start)
        curvature = _curvature(x, softmax(x @ theta, axis=1), w) + l2 * np.eye(theta.size)
        step = solve(curvature, gradient.T.ravel(), assume_a="pos").reshape(theta.shape[::-1]).T
        promised = float((gradient * step).sum())
        penalised = value + 0.5 * l2 * float(((theta - start) ** 2).sum())
        length = 1.0
        while True:
            moved = theta - length * step
            value, slope = _cross_entropy(x @ moved, y, w)
            now = value + 0.5 * l2 * float(((moved - start) ** 2).sum())
            if now <= penalised - 1e-4 * length * promised or length < SHORTEST:
                break
            length *= 0.5
        theta = moved
        if penalised - now <= TOLERANCE * max(abs(now), 1.0):
            break
    return theta[:-1], theta[-1]


def _curvature(x: np.ndarray, p: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Return the second derivatives of the mean loss by class and column, (C F, C F), at posteriors p (N, C)."""
    n_columns, n_classes = x.shape[1], p.shape[1]
    share = np.full(len(x), 1.0 / len(x)) if weights is None else weights / weights.sum()
    values = np.zeros((n_classes, n_columns, n_classes, n_columns))
    for begin in range(0, len(x), AT_ONCE):
        own, q, w = (part[begin : begin + AT_ONCE] for part in (x, p, share))
        for c in range(n_classes):
            for d in range(c + 1):
                block = (own * (w * q[:, c] * (float(c == d) - q[:, d]))[:, None]).T @ own
                values[c, :, d] += block
                if c != d:
                    values[d, :, c] += block
    return values.reshape(n_classes * n_columns, -1)


def _cross_entropy(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> tuple[float, np.ndarray]:
    """Return the mean loss and its derivative by the logits, (N, C)."""
    log_proba = log_softmax(logits)
    events = np.arange(len(labels))
    share = np.full(len(labels), 1.0 / len(labels)) if weights is None else weights / weights.sum()
    value = -float(share @ log_proba[events, labels])
    slope = np.exp(log_proba)
    slope[events, labels] -= 1.0
    return value, slope * share[:, None]


def _minimise(
    loss: Callable[[np.ndarray], tuple[float, np.ndarray]],
    start: np.ndarray,
    l2: float,
    bounds: list[tuple[float, float]] | None,
) -> np.ndarray:
    def penalised(theta: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = loss(theta)
        away = theta - start
        return value + 0.5 * l2 * float(away @ away), gradient + l2 * away

    options = {"maxiter": MAX_ITERATIONS, "ftol": TOLERANCE}
    return np.asarray(minimize(penalised, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x)
