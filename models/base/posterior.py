"""Log-posteriors: from raw margins, and free of what training did to the class priors.

A classifier trained with class weights ``w`` learns ``Q_k`` proportional to ``w_k p_k``; one trained with label
smoothing ``e`` learns ``(1 - e) p_k + e / C``. Stacking and decision rules need ``p`` itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np

from showerstack.runtime.errors import InputError
from showerstack.scoring.metrics.losses import event_losses

PROBABILITY_FLOOR = 1e-6
"""Undoing label smoothing can give a probability at or below zero; it is then set to this."""


def log_softmax(margins: np.ndarray) -> np.ndarray:
    """Return (n, C) float64 log-probabilities of raw margins (n, C), without passing through probabilities."""
    # Class by class: few classes make NumPy's sums along them, and with them SciPy's function, several times slower.
    margins = np.asarray(margins, dtype=np.float64)
    shifted = margins - reduce(np.maximum, margins.T)[:, None]
    return shifted - np.log(reduce(np.add, np.exp(shifted).T))[:, None]


def log_sigmoid_pair(margin: np.ndarray) -> np.ndarray:
    """Return (n, 2) float64 log-probabilities from the logit (n,) of the *second* class."""
    margin = np.asarray(margin, dtype=np.float64).ravel()
    return np.column_stack([-np.logaddexp(0.0, margin), -np.logaddexp(0.0, -margin)])


def log_of_margins(margins: np.ndarray) -> np.ndarray:
    """Return (n, C) float64 log-probabilities of what a library calls raw scores.

    Parameters
    ----------
    margins
        (n, C), or for two classes the logit of the second: (n,) or (n, 1).
    """
    margins = np.asarray(margins)
    return log_sigmoid_pair(margins) if margins.ndim == 1 or margins.shape[1] == 1 else log_softmax(margins)


def class_weight_vector(
    setting: str | Sequence[float] | Mapping[str, float] | None, labels: np.ndarray, classes: Sequence[str]
) -> np.ndarray | None:
    """Return the (C,) float64 class weights that a setting asks for, or None for natural priors.

    Parameters
    ----------
    setting
        None; ``"balanced"`` (inverse to the class counts); one number per class; or class name to number.
    labels
        (n,) integer training labels.
    """
    if setting is None:
        return None
    if isinstance(setting, str):
        if setting != "balanced":
            raise InputError(f'class_weights={setting!r}: expected None, "balanced" or one weight per class')
        counts = np.bincount(labels, minlength=len(classes)).astype(np.float64)
        weights = counts.sum() / (len(classes) * np.maximum(counts, 1.0))
    elif isinstance(setting, Mapping):
        missing = [name for name in classes if name not in setting]
        if missing or len(setting) != len(classes):
            raise InputError(f"class_weights must name exactly the classes {', '.join(classes)}")
        weights = np.array([float(setting[name]) for name in classes])
    else:
        weights = np.asarray(setting, dtype=np.float64)
    if weights.shape != (len(classes),) or not np.all(np.isfinite(weights) & (weights > 0)):
        raise InputError(f"class_weights need {len(classes)} positive numbers, got {setting!r}")
    return weights


def undo_training_prior(
    log_q: np.ndarray, class_weights: np.ndarray | None = None, label_smoothing: float = 0.0
) -> np.ndarray:
    """Return the natural log-posterior of a model trained with class weights, label smoothing or both.

    The loss is ``- sum_k w_k t_k ln Q_k`` with targets ``t_k = (1 - e) y_k + e / C``. Its expectation is minimal at
    ``Q_k`` proportional to ``w_k ((1 - e) p_k + e / C)``; hence ``p_k = (R_k - e / C) / (1 - e)``, where R is ``Q / w``
    normalised.

    Parameters
    ----------
    log_q
        (n, C) float64, log-probabilities as the model gives them.
    class_weights
        (C,) float64 or None.
    label_smoothing
        e, in [0, 1).
    """
    log_r = np.asarray(log_q, dtype=np.float64)
    if class_weights is not None:
        log_r = log_softmax(log_r - np.log(class_weights))
    if not label_smoothing:
        return log_r
    share = label_smoothing / log_r.shape[1]
    probability = (np.exp(log_r) - share) / (1.0 - label_smoothing)
    return log_softmax(np.log(np.maximum(probability, PROBABILITY_FLOOR)))


def event_log_loss(log_proba: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Return the (weighted) mean of ``-log p`` of the true class."""
    return float(np.average(event_losses(log_proba, labels), weights=weights))
