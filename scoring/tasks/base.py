"""What every task has: the output that is scored, metric and loss, comparisons in pairs, words and tables.

A :class:`Metric` is the one number of a task, in scores, tables and reports alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from rich.console import RenderableType

from showerstack.scoring.metrics.intervals import Interval, share_interval
from showerstack.scoring.metrics.losses import event_losses
from showerstack.scoring.metrics.paired import Paired, paired_accuracy
from showerstack.scoring.tasks.text import plus_minus
from showerstack.scoring.tasks.truth import Truth
from showerstack.showers.schema import Task


@dataclass(frozen=True)
class Metric:
    """A figure of merit.

    ``output`` is what the task scores: hard labels (N,) integer; scores or estimates (N,) float.
    """

    name: str
    unit: str
    value: Callable[..., float]
    """``value(labels, output)``; where a task has importance weights (N,), all three also take ``weights``."""
    interval: Callable[..., Interval]
    """``interval(labels, output, groups=None)``; events of one group (N,) are one observation."""
    paired: Callable[..., Paired]
    """``paired(labels, output_a, output_b, groups=None)``: value of a minus value of b."""
    logarithmic: bool = False
    """Whether values span orders of magnitude: shown as powers of ten, drawn on a logarithmic axis."""

    def of(self, truth: Truth, output: np.ndarray) -> float:
        """Return the value as the benchmark draws it: rows in the order of the published file."""
        published = truth.in_published_order()
        return self.value(published.labels, truth.published(output), **_weights(published))

    def interval_of(self, truth: Truth, output: np.ndarray) -> Interval:
        """Return the interval of an output (N,) on a test set, its groups and weights counted."""
        return self.interval(truth.labels, output, truth.groups, **_weights(truth))

    def paired_of(self, truth: Truth, a: np.ndarray, b: np.ndarray) -> Paired:
        """Return the difference of two outputs (N,) on a test set, its groups and weights counted."""
        return self.paired(truth.labels, a, b, truth.groups, **_weights(truth))


def _weights(truth: Truth) -> dict[str, Any]:
    """Return the argument ``weights`` where there are any: only metrics of tasks that have them take it."""
    return {} if truth.weights is None else {"weights": truth.weights}


def _error_rate(labels: np.ndarray, predicted: np.ndarray) -> float:
    return float(np.mean(labels != predicted))


def _error_rate_interval(labels: np.ndarray, predicted: np.ndarray, groups: np.ndarray | None = None) -> Interval:
    return share_interval(labels != predicted, groups)


def _error_rate_paired(labels: np.ndarray, a: np.ndarray, b: np.ndarray, groups: np.ndarray | None = None) -> Paired:
    return paired_accuracy(labels, b, a, groups)  # errors of a minus errors of b = hits of b minus hits of a


ERROR_RATE = Metric("error rate", "share of events", _error_rate, _error_rate_interval, _error_rate_paired)
"""Of hard labels, for any task of the user's own."""


@dataclass(frozen=True)
class Quantity:
    """A number with its interval, and how it is written."""

    name: str
    value: float
    interval: Interval
    digits: int
    unit: str = ""
    scale: float = 1.0

    @property
    def head(self) -> str:
        """Name and unit, for the head of a column."""
        return f"{self.name}, {self.unit}" if self.unit else self.name

    @property
    def number(self) -> str:
        """The value with its unit."""
        return f"{self._in_units(self.value)} {self.unit}".rstrip()

    @property
    def span(self) -> str:
        """The interval."""
        low, high = self._in_units(self.interval.low), self._in_units(self.interval.high)
        return f"[{low}, {high}] {self.unit}".rstrip()

    @property
    def plus_minus(self) -> str:
        """Value and standard error."""
        return plus_minus(self.value, self.interval, self.digits, self.scale)

    @property
    def bracketed(self) -> str:
        """Value and interval."""
        low, high = self._in_units(self.interval.low), self._in_units(self.interval.high)
        return f"{self._in_units(self.value)} [{low}, {high}]"

    def _in_units(self, value: float) -> str:
        return f"{self.scale * value:.{self.digits}f}"


Named: TypeAlias = tuple[str, np.ndarray]
"""A system's name and its output (N,)."""


class TaskScoring(ABC):
    """One task, as it is scored and spoken of.

    What it looks like on pages is in ``report/task_sections.py``.
    """

    task: Task
    dtype: Any
    """NumPy type in which the output is stored."""
    metric: Metric
    loss_name: str = "log-loss"
    """A mean over events beside the metric, in which fewer events show a difference of two systems."""
    loss_unit: str = ""
    headline_key: str
    """Where the metric's value stands in :meth:`metrics`, and its interval below ``intervals``."""
    title: str
    """Of the page."""
    metric_words: str
    """The metric, in full."""
    metric_column: str
    """The metric, as the head of a column."""
    right_words: str
    """What :meth:`is_right` counts."""
    meaning: str = ""
    """The metric's definition and scale, for readers who meet it first."""

    @property
    def published(self) -> str:
        """The best published value, a sentence for pages on the benchmark's array."""
        return ""

    @property
    def loss_head(self) -> str:
        """Name and unit of the loss, for the head of a column."""
        return f"{self.loss_name}, {self.loss_unit}" if self.loss_unit else self.loss_name

    @abstractmethod
    def check_output(self, output: np.ndarray, where: str) -> np.ndarray:
        """Return the array (N,) as it is scored, or refuse it; ``where`` names it in the message."""

    @abstractmethod
    def metrics(self, truth: Truth, output: np.ndarray, *, intervals: bool) -> dict[str, Any]:
        """Return everything that ``metrics_{task}.json`` holds, with ``intervals`` also confidence intervals."""

    def warnings(self, truth: Truth, output: np.ndarray) -> list[str]:
        """Return remarks for readers of the metrics."""
        return []

    def losses(self, labels: np.ndarray, log_proba: np.ndarray, output: np.ndarray) -> np.ndarray:
        """Return the loss (N,) of each event: minus the log-probability (N, C) of the true class."""
        return event_losses(log_proba, labels)

    def headline(self, metrics: Mapping[str, Any]) -> tuple[float, Interval | None]:
        """Return the value of the metric and, where it was computed, its interval."""
        interval = metrics.get("intervals", {}).get(self.headline_key)
        return float(metrics[self.headline_key]), Interval(**interval) if interval else None

    @abstractmethod
    def summary(self, metrics: dict[str, Any]) -> Iterator[RenderableType]:
        """Yield what ``verify.py`` prints but for the warnings: the headline, then tables."""

    @abstractmethod
    def second_metric(
        self,
        labels: np.ndarray,
        log_proba: np.ndarray,
        output: np.ndarray,
        weights: np.ndarray | None = None,
        groups: np.ndarray | None = None,
    ) -> Quantity:
        """Return the number that stands beside the metric for every system, such as the accuracy.

        Of the tasks here those in classes have importance weights (N,), targets none. Events of one value of ``groups``
        (N,) are one observation.
        """

    @abstractmethod
    def details(self, metrics: dict[str, Any]) -> dict[str, str]:
        """Return what stands beside the metric in a submission, by name."""

    @abstractmethod
    def is_right(self, labels: np.ndarray, output: np.ndarray) -> np.ndarray:
        """Return (N,) bool by which two systems are compared event by event."""

    @abstractmethod
    def compare(
        self, labels: np.ndarray, a: Named, b: Named, groups: np.ndarray | None = None
    ) -> Iterator[RenderableType]:
        """Yield the comparison of two systems, but for the metric's difference.

        Events of one value of ``groups`` (N,) are one observation.
        """
