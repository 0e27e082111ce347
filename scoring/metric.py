"""The number by which each task is judged, as one object that stacking and report can use alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scoring.reading.truth import Truth
from scoring.uncertainty.paired import Paired, paired_accuracy
from scoring.uncertainty.resampling import Interval, clopper_pearson


@dataclass(frozen=True)
class Metric:
    """A figure of merit.

    ``output`` is what the task judges: hard labels (N,) integer, or scores (N,) float for gamma/hadron separation.
    """

    name: str
    unit: str
    lower_is_better: bool
    value: Callable[[np.ndarray, np.ndarray], float]
    """``value(labels, output)``."""
    interval: Callable[[np.ndarray, np.ndarray], Interval]
    """``interval(labels, output)``: 95 %."""
    paired: Callable[[np.ndarray, np.ndarray, np.ndarray], Paired]
    """``paired(labels, output_a, output_b)``: value of a minus value of b."""
    logarithmic: bool = False
    """Whether values span orders of magnitude: shown as powers of ten, drawn on a logarithmic axis."""

    def of(self, truth: Truth, output: np.ndarray) -> float:
        """Return the value as the benchmark draws it: rows in the order of the published file."""
        return self.value(truth.published(truth.labels), truth.published(output))


def _error_rate(labels: np.ndarray, predicted: np.ndarray) -> float:
    return float(np.mean(labels != predicted))


def _error_rate_interval(labels: np.ndarray, predicted: np.ndarray) -> Interval:
    return clopper_pearson(int(np.count_nonzero(labels != predicted)), len(labels))


def _error_rate_paired(labels: np.ndarray, a: np.ndarray, b: np.ndarray) -> Paired:
    return paired_accuracy(labels, b, a)  # errors of a minus errors of b = hits of b minus hits of a


ERROR_RATE = Metric("error rate", "share of events", True, _error_rate, _error_rate_interval, _error_rate_paired)
"""Of hard labels, for any task of the user's own."""
