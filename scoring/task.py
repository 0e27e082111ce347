"""What scoring knows of a task: which array it judges, how, and by which number."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from scoring.metric import Metric
from scoring.resampling import Interval
from scoring.truth import Truth
from showers.schema import Task


class TaskScoring(ABC):
    """The scoring of one task; its instance stands in a module of :mod:`scoring.tasks`, where it is found by itself."""

    task: ClassVar[Task]
    key: ClassVar[str]
    """Array of ``predictions.npz`` that is judged."""
    dtype: ClassVar[Any]
    """NumPy type in which it is stored."""
    metric: ClassVar[Metric]
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
        """Return everything that ``metrics_{task}.json`` holds; 95 % intervals if asked for."""

    def warnings(self, truth: Truth, output: np.ndarray) -> list[str]:
        """Return what whoever reads the metrics should know."""
        return []

    def headline(self, metrics: Mapping[str, Any]) -> tuple[float, Interval | None]:
        """Return the value of the metric and, where it was computed, its interval."""
        interval = metrics.get("intervals", {}).get(self.headline_key)
        return float(metrics[self.headline_key]), Interval(**interval) if interval else None
