"""The plain average."""

from __future__ import annotations

import numpy as np

from stacking.combine.judges import Judge
from stacking.combine.meta import StackInputs
from stacking.combine.metas.log_pool import LogPool


class Average(LogPool):
    """The plain average in log-probability: nothing to learn, hard to beat where events are few."""

    name = "average"
    complexity = 0

    def fit(self, inputs: StackInputs, judge: Judge) -> None:
        """Give every learner the same weight."""
        n_learners, _, n_classes = inputs.log_proba.shape
        self.weights_, self.bias_ = np.full(n_learners, 1.0 / n_learners), np.zeros(n_classes)
