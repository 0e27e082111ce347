"""What the report knows of a task: its words, its tables and its sections.

Sections that several tasks have are here too: reliability, the plane of sizes, a remark on thin bins.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
from rich.console import RenderableType

from showerstack.report.pictures.style import as_svg
from showerstack.report.pictures.tasks import plane_picture, reliability_picture
from showerstack.report.shared.markup import Section, paragraph, picture, pictures
from showerstack.report.shared.text import plus_minus
from showerstack.scoring.metrics.intervals import Interval, accuracy_interval
from showerstack.scoring.metrics.level import LEVEL_TEXT
from showerstack.showers.schema import SCALAR_NAMES
from showerstack.stacking import calibration
from showerstack.stacking.sample import Sample

if TYPE_CHECKING:
    from showerstack.report.shared.subject import EvaluatedRun

Part: TypeAlias = "Callable[[EvaluatedRun], Section | None]"


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


Named = tuple[str, np.ndarray]
"""A system's name and its output (N,)."""


class TaskReport(ABC):
    """How one task's results are reported; its instance stands in a module of :mod:`showerstack.report.tasks`."""

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

    @abstractmethod
    def summary(self, metrics: dict[str, Any]) -> Iterator[RenderableType]:
        """Yield what ``verify.py`` prints: the headline, then tables."""

    @abstractmethod
    def headline(self, metrics: dict[str, Any]) -> tuple[str, str, str]:
        """Return the metric for the box at the top of the page: name, value, remark."""

    def boxes(self, evaluated: EvaluatedRun) -> list[tuple[str, str, str]]:
        """Return the boxes at the top of the page but for the loss: name, value, remark."""
        beside = self.second_metric(evaluated.labels, evaluated.final, evaluated.output, evaluated.truth.weights)
        return [self.headline(evaluated.metrics), (beside.name, beside.number, beside.span)]

    @abstractmethod
    def second_metric(
        self, labels: np.ndarray, log_proba: np.ndarray, output: np.ndarray, weights: np.ndarray | None = None
    ) -> Quantity:
        """Return the number that stands beside the metric for every system, such as the accuracy.

        Of the tasks here gamma/hadron separation alone has importance weights (N,).
        """

    @abstractmethod
    def details(self, metrics: dict[str, Any]) -> dict[str, str]:
        """Return what a submission says beside the metric."""

    @abstractmethod
    def right(self, labels: np.ndarray, output: np.ndarray) -> np.ndarray:
        """Return (N,) bool by which two systems are compared event by event."""

    @abstractmethod
    def pair(
        self, labels: np.ndarray, a: Named, b: Named, groups: np.ndarray | None = None
    ) -> Iterator[RenderableType]:
        """Yield what a comparison says of two systems beside the metric's difference.

        Events of one value of ``groups`` (N,) are one observation.
        """

    @property
    @abstractmethod
    def sections(self) -> list[Part]:
        """Sections of the page that only this task has."""


class ClassReport(TaskReport):
    """What tasks with classes have in common."""

    def hard(self, log_proba: np.ndarray, output: np.ndarray) -> np.ndarray:
        """Return (N,) class numbers: the most probable class."""
        return np.asarray(log_proba.argmax(axis=1))

    def second_metric(
        self, labels: np.ndarray, log_proba: np.ndarray, output: np.ndarray, weights: np.ndarray | None = None
    ) -> Quantity:
        """Return the accuracy."""
        result = self.hard(log_proba, output)
        share = float(np.mean(result == labels))
        return Quantity("accuracy", share, accuracy_interval(labels, result), 2, "%", 100)


def thin_note(binned: dict[str, Any]) -> str:
    """Return a remark that names the bins with too few events to be drawn."""
    thin = [
        f"{name} ({row['count']:,} events)" if "count" in row else f"{name} ({row['n_gamma']:,} gammas)"
        for name, row in binned.items()
        if row.get("too_few_events")
    ]
    return paragraph(f"Too few events of some class for a number: {', '.join(thin)}.", "quiet") if thin else ""


def posteriors(evaluated: EvaluatedRun, plane_figure: str) -> Section:
    """Return the reliability diagram and the plane of sizes, side by side."""
    figures = pictures([reliability(evaluated), plane_figure])
    return Section("reliability", "Posteriors: reliability, and where they lie", figures)


def reliability(evaluated: EvaluatedRun) -> str:
    """Return the reliability diagram and the calibration error of what ships on the test set."""
    figure = reliability_picture(evaluated.labels, evaluated.final, evaluated.task.classes)
    result = calibration.reliability(evaluated.final, Sample(evaluated.labels, evaluated.labels))
    caption = (
        f"Posteriors of {evaluated.shipped_words} on the test set: on the dashed line posteriors are calibrated; bars "
        f"are {LEVEL_TEXT} binomial intervals. Expected calibration error over {calibration.RELIABILITY_BINS} bins: "
        f"{result['expected_calibration_error']:.4f}; right posteriors would show about "
        f"{result['of_perfect_posteriors']:.4f} with so many events."
    )
    return picture(as_svg(figure, "reliability diagram"), caption)


def plane(evaluated: EvaluatedRun, value: np.ndarray, label: str, limits: tuple[float, float]) -> str:
    """Return the Ne-Nmu plane coloured by a value (N,) that the posterior gives."""
    usable = evaluated.dataset.usable
    scalars, value = np.asarray(evaluated.dataset.scalars, dtype=np.float32)[usable], value[usable]
    n_e, n_mu = (scalars[:, SCALAR_NAMES.index(name)] for name in ("Ne", "Nmu"))
    figure = plane_picture(n_e, n_mu, value, label, limits)
    caption = (
        f"Test showers by reconstructed sizes; colour is the mean posterior of {evaluated.shipped_words} in each cell "
        "(3 events or more)."
    )
    return picture(as_svg(figure, "Ne-Nmu plane"), caption)
