"""What the report knows of a task: its words, its tables and its sections."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from rich.console import RenderableType

from report.page.markup import Section
from report.reading.subject import Subject
from report.terminal.text import plus_minus
from scoring.uncertainty.intervals import Interval, accuracy_interval

Part = Callable[[Subject], Section | None]


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
        """The interval in words."""
        low, high = self._in_units(self.interval.low), self._in_units(self.interval.high)
        return f"{low} to {high} {self.unit}".rstrip()

    @property
    def plus_minus(self) -> str:
        """Value and half the width of the interval."""
        return plus_minus(self.value, self.interval, self.digits, self.scale)

    @property
    def bracketed(self) -> str:
        """Value and interval."""
        low, high = self._in_units(self.interval.low), self._in_units(self.interval.high)
        return f"{self._in_units(self.value)} [{low}, {high}]"

    def _in_units(self, value: float) -> str:
        return f"{self.scale * value:.{self.digits}f}"


class TaskReport(ABC):
    """How one task's results are told; its instance stands in a module of :mod:`report.tasks`."""

    name: ClassVar[str]
    """The task's."""
    title: ClassVar[str]
    """Of the page."""
    metric_words: ClassVar[str]
    """The metric, in full."""
    metric_column: ClassVar[str]
    """The metric, as the head of a column."""
    right_words: ClassVar[str]
    """What :meth:`right` counts."""
    meaning: ClassVar[str] = ""
    """The metric's definition and scale, for readers who meet it first."""
    legend: ClassVar[str] = ""
    """What the rules of the systems mean."""

    @abstractmethod
    def summary(self, metrics: dict[str, Any]) -> Iterator[RenderableType]:
        """Yield what ``verify.py`` prints: the headline, then tables."""

    @abstractmethod
    def headline(self, metrics: dict[str, Any]) -> tuple[str, str, str]:
        """Return the metric for the box at the top of the page: name, value, remark."""

    def boxes(self, subject: Subject) -> list[tuple[str, str, str]]:
        """Return the boxes at the top of the page but for the loss: name, value, remark."""
        beside = self.beside(subject.labels, subject.final, subject.output)
        return [self.headline(subject.metrics), (beside.name, beside.number, beside.span)]

    @abstractmethod
    def beside(self, labels: np.ndarray, log_proba: np.ndarray, output: np.ndarray) -> Quantity:
        """Return the number that stands beside the metric for every system, such as the accuracy."""

    @abstractmethod
    def details(self, metrics: dict[str, Any]) -> dict[str, str]:
        """Return what a submission says beside the metric."""

    @abstractmethod
    def right(self, labels: np.ndarray, output: np.ndarray) -> np.ndarray:
        """Return (N,) bool by which two systems are compared event by event."""

    @abstractmethod
    def pair(
        self, labels: np.ndarray, a: tuple[str, np.ndarray], b: tuple[str, np.ndarray]
    ) -> Iterator[RenderableType]:
        """Yield what a comparison says of two systems (name, output) beside the metric's difference."""

    @property
    @abstractmethod
    def sections(self) -> list[Part]:
        """Sections of the page that only this task has."""


class ClassReport(TaskReport):
    """What tasks with classes have in common."""

    def hard(self, log_proba: np.ndarray, output: np.ndarray) -> np.ndarray:
        """Return (N,) class numbers: the most probable class."""
        return np.asarray(log_proba.argmax(axis=1))

    def beside(self, labels: np.ndarray, log_proba: np.ndarray, output: np.ndarray) -> Quantity:
        """Return the accuracy."""
        said = self.hard(log_proba, output)
        share = float(np.mean(said == labels))
        return Quantity("accuracy", share, accuracy_interval(labels, said), 2, "%", 100)
