"""A log-linear pool of learners that are calibrated before they are pooled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from stacking.combine.calibration import Calibrator, fit_calibrator
from stacking.combine.judges import Judge
from stacking.combine.meta import StackInputs
from stacking.combine.metas.log_pool import LogPool
from stacking.combine.softmax import thinned

CALIBRATION_EVENTS = 60_000
"""Events that a learner is calibrated on at most; 30 numbers need no more."""


class CalibratedPool(LogPool):
    """``log_softmax(sum_l w_l c_l(z_l) + b)`` with w >= 0, each learner with a calibrator c_l of its own.

    A pool has one weight for all classes of a learner. One that is sharp between some classes and blurred between
    others gets less weight than it is worth; calibrated first, it can be used for what it knows.
    """

    name = "calibrated_pool"
    complexity = 3

    def fit(self, inputs: StackInputs, judge: Judge) -> None:
        """Choose and fit a calibrator for each learner, then the pool."""
        thin = thinned(len(inputs.labels), CALIBRATION_EVENTS)
        labels, folds = inputs.labels[thin], inputs.folds[thin]
        self.calibrators_ = [fit_calibrator(z[thin], labels, folds) for z in inputs.log_proba]
        super().fit(replace(inputs, log_proba=self._calibrated(inputs.log_proba)), judge)

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
