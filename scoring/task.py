"""What scoring knows of a task: which array it judges, how, and by which number."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from scoring.metric import Metric
from scoring.reading.truth import Truth
from scoring.uncertainty.resampling import Interval
from showers.schema import Task


class TaskScoring(ABC):
    """The scoring of one task; its instance stands in a module of :mod:`scoring.tasks`, where it is found by itself."""

    task: ClassVar[Task]
    key: ClassVar[str]
    """Array of ``predictions.npz`` that is judged."""
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
        """Return everything that ``metrics_{task}.json`` holds; 95 % intervals if asked for."""

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
            (N,) what the metric judges.
        """
        return np.asarray(-log_proba[np.arange(len(labels)), labels])

    def headline(self, metrics: Mapping[str, Any]) -> tuple[float, Interval | None]:
        """Return the value of the metric and, where it was computed, its interval."""
        interval = metrics.get("intervals", {}).get(self.headline_key)
        return float(metrics[self.headline_key]), Interval(**interval) if interval else None
