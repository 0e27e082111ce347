"""Non-negative log-linear pooling: the one to trust."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from stacking.combine.judges import Judge
from stacking.combine.meta import MetaLearner, StackInputs
from stacking.combine.softmax import fit_pool, pooled


class LogPool(MetaLearner):
    """``log_softmax(sum_l w_l z_l + b)`` with w >= 0, by log-loss."""

    name = "log_pool"
    complexity = 1

    def fit(self, inputs: StackInputs, judge: Judge) -> None:
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
    """Give a pool natural priors and the right sharpness again: one scale, one bias per class, fitted unweighted."""
    weighted = np.tensordot(weights, inputs.log_proba, axes=1) + bias
    (scale,), shift = fit_pool(weighted[None], inputs.labels)
    return weights * scale, bias * scale + shift
