"""Greedy ensemble selection on the real metric (R. Caruana et al., ICML 2004)."""

from __future__ import annotations

import numpy as np

from models.posterior import log_softmax
from stacking.combine.judges import Judge
from stacking.combine.meta import StackInputs
from stacking.combine.metas.log_pool import LogPool, back_to_natural
from stacking.combine.softmax import thinned

GREEDY_ROUNDS = 25


class Greedy(LogPool):
    """Greedy selection with replacement on the judge's metric; a log-linear pool with weights count / total."""

    name = "greedy"
    complexity = 2

    def fit(self, inputs: StackInputs, judge: Judge) -> None:
        """Add, round after round, the learner that lowers the metric most; keep the best round."""
        thin = thinned(len(inputs.labels))
        log_proba, labels = np.ascontiguousarray(inputs.log_proba[:, thin]), inputs.labels[thin]
        counts = np.zeros(len(log_proba))
        best_counts, best_metric = counts.copy(), np.inf
        total = np.zeros_like(log_proba[0])
        for size in range(1, GREEDY_ROUNDS + 1):
            metrics = [judge.metric(log_softmax((total + z) / size), labels) for z in log_proba]
            chosen = int(np.argmin(metrics))
            counts[chosen] += 1
            total += log_proba[chosen]
            if metrics[chosen] < best_metric:
                best_counts, best_metric = counts.copy(), metrics[chosen]
        weights, bias = best_counts / best_counts.sum(), np.zeros(log_proba.shape[2])
        self.weights_, self.bias_ = back_to_natural(inputs, weights, bias)
