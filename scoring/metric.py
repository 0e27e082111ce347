"""The number by which each task is judged, as one object that stacking and report can use alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scoring.composition import fraction_error
from scoring.gamma import hadron_survival
from scoring.intervals import Interval, Paired, clopper_pearson, fraction_error_interval, survival_interval
from scoring.paired import paired_accuracy, paired_fraction_error, paired_survival
from showers.schema import COMPOSITION, GAMMA, Task


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


def _survival(labels: np.ndarray, scores: np.ndarray) -> float:
    return hadron_survival(labels, scores).hadron_survival


def _error_rate(labels: np.ndarray, predicted: np.ndarray) -> float:
    return float(np.mean(labels != predicted))


def _error_rate_interval(labels: np.ndarray, predicted: np.ndarray) -> Interval:
    return clopper_pearson(int(np.count_nonzero(labels != predicted)), len(labels))


def _error_rate_paired(labels: np.ndarray, a: np.ndarray, b: np.ndarray) -> Paired:
    return paired_accuracy(labels, b, a)  # errors of a minus errors of b = hits of b minus hits of a


FRACTION_ERROR = Metric(
    "fraction error", "mean |true - predicted fraction|", True, fraction_error, fraction_error_interval,
    paired_fraction_error,
)  # fmt: skip
SURVIVAL = Metric(
    "hadron survival", "share at 75 % gamma efficiency", True, _survival, survival_interval, paired_survival
)
ERROR_RATE = Metric("error rate", "share of events", True, _error_rate, _error_rate_interval, _error_rate_paired)
_BY_TASK = {COMPOSITION.name: FRACTION_ERROR, GAMMA.name: SURVIVAL}


def metric_for(task: Task) -> Metric:
    """Return the benchmark's metric of a task; the error rate of hard labels for any task of the user's own."""
    return _BY_TASK.get(task.name, ERROR_RATE)
