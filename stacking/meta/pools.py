"""Meta-learners that pool: the plain average, greedy selection, log-linear pools with and without calibration before.

The non-negative log-linear pool is the one to trust. Greedy ensemble selection goes by the task's own metric (R.
Caruana et al., ICML 2004).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from showerstack.models.base.posterior import log_softmax
from showerstack.stacking.fit.folds import subsampled
from showerstack.stacking.meta.base import MetaLearner, StackInputs
from showerstack.stacking.meta.calibration import Calibrator, fit_calibrator
from showerstack.stacking.meta.scorers import Scorer
from showerstack.stacking.meta.softmax import fit_pool, pooled


class LogPool(MetaLearner):
    """``log_softmax(sum_l w_l z_l + b)`` with w >= 0, by log-loss."""

    name = "log_pool"
    complexity = 1

    def fit(self, inputs: StackInputs, scorer: Scorer) -> None:
        """Learn weights and biases."""
        self.weights_, self.bias_ = fit_pool(inputs.log_proba, inputs.labels, inputs.weights)
        if inputs.weights is not None:
            self.weights_, self.bias_ = back_to_natural(inputs, self.weights_, self.bias_)

    def predict(self, log_proba: np.ndarray, context: np.ndarray | None = None) -> np.ndarray:
        """Return the pool."""
        return pooled(log_proba, self.weights_, self.bias_)

    def as_json(self) -> dict[str, Any]:
        """Return weights and biases."""
        return {"weights": self.weights_.tolist(), "bias": self.bias_.tolist()}

    def restore(self, content: Mapping[str, Any]) -> None:
        """Take weights and biases."""
        self.weights_, self.bias_ = np.array(content["weights"], float), np.array(content["bias"], float)

    def importance(self) -> dict[str, float]:
        """Return the weights, summing to one."""
        total = self.weights_.sum() or 1.0
        return dict(zip(self.learners, (self.weights_ / total).tolist(), strict=True))


def back_to_natural(inputs: StackInputs, weights: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Give a pool natural priors and the right sharpness again: one scale, one bias per class, data's weights alone."""
    weighted = np.tensordot(weights, inputs.log_proba, axes=1) + bias
    (scale,), shift = fit_pool(weighted[None], inputs.labels, inputs.event_weights)
    return weights * scale, bias * scale + shift


class Average(LogPool):
    """The plain average in log-probability: nothing to learn, hard to beat where events are few."""

    name = "average"
    complexity = 0

    def fit(self, inputs: StackInputs, scorer: Scorer) -> None:
        """Give every learner the same weight."""
        n_learners, _, n_classes = inputs.log_proba.shape
        self.weights_, self.bias_ = np.full(n_learners, 1.0 / n_learners), np.zeros(n_classes)


GREEDY_ROUNDS = 25


class Greedy(LogPool):
    """Greedy selection with replacement on the scorer's metric; a log-linear pool with weights count / total."""

    name = "greedy"
    complexity = 2

    def fit(self, inputs: StackInputs, scorer: Scorer) -> None:
        """Add, round after round, the learner that lowers the metric most; keep the best round."""
        thin = subsampled(len(inputs.labels))
        log_proba, labels = np.ascontiguousarray(inputs.log_proba[:, thin]), inputs.labels[thin]
        weights = None if inputs.event_weights is None else inputs.event_weights[thin]
        counts = np.zeros(len(log_proba))
        best_counts, best_metric = counts.copy(), np.inf
        total = np.zeros_like(log_proba[0])
        for size in range(1, GREEDY_ROUNDS + 1):
            metrics = [scorer.metric(log_softmax((total + z) / size), labels, weights) for z in log_proba]
            chosen = int(np.argmin(metrics))
            counts[chosen] += 1
            total += log_proba[chosen]
            if metrics[chosen] < best_metric:
                best_counts, best_metric = counts.copy(), metrics[chosen]
        shares, bias = best_counts / best_counts.sum(), np.zeros(log_proba.shape[2])
        self.weights_, self.bias_ = back_to_natural(inputs, shares, bias)


CALIBRATION_EVENTS = 60_000
"""Events that a learner is calibrated on at most; 30 numbers need no more."""


class CalibratedPool(LogPool):
    """``log_softmax(sum_l w_l c_l(z_l) + b)`` with w >= 0, each learner with a calibrator c_l of its own.

    A pool has one weight for all classes of a learner. One that is sharp between some classes and blurred between
    others gets less weight than it is worth; calibrated first, it can be used for what it knows.
    """

    name = "calibrated_pool"
    complexity = 3

    def fit(self, inputs: StackInputs, scorer: Scorer) -> None:
        """Choose and fit a calibrator for each learner, then the pool."""
        thin = subsampled(len(inputs.labels), CALIBRATION_EVENTS)
        labels, folds = inputs.labels[thin], inputs.folds[thin]
        groups, weights = (None if part is None else part[thin] for part in (inputs.groups, inputs.event_weights))
        self.calibrators_ = [fit_calibrator(z[thin], labels, folds, groups, weights) for z in inputs.log_proba]
        super().fit(replace(inputs, log_proba=self._calibrated(inputs.log_proba)), scorer)

    def predict(self, log_proba: np.ndarray, context: np.ndarray | None = None) -> np.ndarray:
        """Return the pool of the calibrated learners."""
        return super().predict(self._calibrated(log_proba), context)

    def _calibrated(self, log_proba: np.ndarray) -> np.ndarray:
        return np.stack([calibrator(z) for calibrator, z in zip(self.calibrators_, log_proba, strict=True)])

    def as_json(self) -> dict[str, Any]:
        """Return weights, biases and calibrators."""
        return {**super().as_json(), "calibrators": [one.as_json() for one in self.calibrators_]}

    def restore(self, content: Mapping[str, Any]) -> None:
        """Take weights, biases and calibrators."""
        super().restore(content)
        self.calibrators_ = [Calibrator.from_json(one) for one in content["calibrators"]]


META_LEARNERS = (LogPool, Average, Greedy, CalibratedPool)
