"""What scoring knows of each task: which array it scores, by which metric, and how that metric is compared in pairs.

:func:`scorings` finds the tasks: it collects what the modules of :mod:`showerstack.scoring.tasks` declare. A
:class:`Metric` is the one number of a task, used by stacking and report alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np

from showerstack.runtime.code import plugins
from showerstack.runtime.errors import InputError
from showerstack.scoring import tasks
from showerstack.scoring.metrics.intervals import Interval, share_interval
from showerstack.scoring.metrics.losses import event_losses
from showerstack.scoring.metrics.paired import Paired, paired_accuracy
from showerstack.scoring.tasks.truth import Truth
from showerstack.showers.schema import Task


@dataclass(frozen=True)
class Metric:
    """A figure of merit.

    ``output`` is what the task scores: hard labels (N,) integer, or scores (N,) float for gamma/hadron separation.
    """

    name: str
    unit: str
    value: Callable[..., float]
    """``value(labels, output)``."""
    interval: Callable[..., Interval]
    """``interval(labels, output, groups=None)``; events of one group (N,) are one observation."""
    paired: Callable[..., Paired]
    """``paired(labels, output_a, output_b, groups=None)``: value of a minus value of b."""
    logarithmic: bool = False
    """Whether values span orders of magnitude: shown as powers of ten, drawn on a logarithmic axis."""

    def of(self, truth: Truth, output: np.ndarray) -> float:
        """Return the value as the benchmark draws it: rows in the order of the published file."""
        own = truth.in_published_order()
        return self.value(own.labels, truth.published(output), **_weights(truth, own.weights))

    def interval_of(self, truth: Truth, output: np.ndarray) -> Interval:
        """Return the interval of an output (N,) on a test set, its groups and weights counted."""
        return self.interval(truth.labels, output, truth.groups, **_weights(truth, truth.weights))

    def paired_of(self, truth: Truth, a: np.ndarray, b: np.ndarray) -> Paired:
        """Return the difference of two outputs (N,) on a test set, its groups and weights counted."""
        return self.paired(truth.labels, a, b, truth.groups, **_weights(truth, truth.weights))


def _weights(truth: Truth, weights: np.ndarray | None) -> dict[str, Any]:
    return {} if truth.weights is None else {"weights": weights}


def _error_rate(labels: np.ndarray, predicted: np.ndarray) -> float:
    return float(np.mean(labels != predicted))


def _error_rate_interval(labels: np.ndarray, predicted: np.ndarray, groups: np.ndarray | None = None) -> Interval:
    return share_interval(labels != predicted, groups)


def _error_rate_paired(labels: np.ndarray, a: np.ndarray, b: np.ndarray, groups: np.ndarray | None = None) -> Paired:
    return paired_accuracy(labels, b, a, groups)  # errors of a minus errors of b = hits of b minus hits of a


ERROR_RATE = Metric("error rate", "share of events", _error_rate, _error_rate_interval, _error_rate_paired)
"""Of hard labels, for any task of the user's own."""


class TaskScoring(ABC):
    """The scoring of one task; its instance stands in a module of :mod:`showerstack.scoring.tasks`, where it is found
    by itself."""

    task: ClassVar[Task]
    key: ClassVar[str]
    """Array of ``predictions.npz`` that is scored."""
    dtype: ClassVar[Any]
    """NumPy type in which it is stored."""
    metric: ClassVar[Metric]
    loss_name: ClassVar[str] = "log-loss"
    """A mean over events beside the metric, in which two systems can be told apart with fewer events."""
    loss_unit: ClassVar[str] = "nats"
    headline_key: ClassVar[str]
    """Where the metric's value stands in :meth:`metrics`, and its interval below ``intervals``."""

    @abstractmethod
    def checked(self, output: np.ndarray, where: str) -> np.ndarray:
        """Return the array (N,) as it is scored, or refuse it; ``where`` names it in the message.

        Raises
        ------
        InputError
            For a wrong type, or values that cannot be scored.
        """

    @abstractmethod
    def metrics(self, truth: Truth, output: np.ndarray, *, intervals: bool) -> dict[str, Any]:
        """Return everything that ``metrics_{task}.json`` holds; confidence intervals if asked for."""

    def warnings(self, truth: Truth, output: np.ndarray) -> list[str]:
        """Return what whoever reads the metrics should know."""
        return []

    def losses(self, labels: np.ndarray, log_proba: np.ndarray, output: np.ndarray) -> np.ndarray:
        """Return the loss (N,) of each event: minus the log-probability of the true class.

        Parameters
        ----------
        labels
            (N,) truth.
        log_proba
            (N, C) natural logarithms of posteriors.
        output
            (N,) what the metric scores.
        """
        return event_losses(log_proba, labels)

    def headline(self, metrics: Mapping[str, Any]) -> tuple[float, Interval | None]:
        """Return the value of the metric and, where it was computed, its interval."""
        interval = metrics.get("intervals", {}).get(self.headline_key)
        return float(metrics[self.headline_key]), Interval(**interval) if interval else None


@cache
def scorings() -> dict[str, TaskScoring]:
    """Return every task's scoring by the task's name: ``SCORING`` of the modules in
    :mod:`showerstack.scoring.tasks`."""
    return plugins(tasks, "SCORING", attrgetter("task.name"))


def scoring_of(task: Task) -> TaskScoring:
    """Return how a task is scored.

    Raises
    ------
    InputError
        For a task of the user's own, which nothing here scores.
    """
    if task.name not in scorings():
        raise InputError(f"task {task.name!r} has no public metric: choose one of {', '.join(scorings())}")
    return scorings()[task.name]


def metric_for(task: Task) -> Metric:
    """Return the metric of a task; the error rate of hard labels for any task of the user's own."""
    return scorings()[task.name].metric if task.name in scorings() else ERROR_RATE
