"""Scoring of tasks with a target, such as primary energy: residuals against the truth, by bins of the true value.

For the energy these are bias and resolution of lg E, by true energy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from showerstack.runtime.errors import InputError
from showerstack.scoring.metrics.intervals import Interval
from showerstack.scoring.metrics.paired import Paired
from showerstack.scoring.metrics.residuals import (
    MIN_EVENTS,
    paired_resolution,
    residual_metrics,
    resolution,
    resolution_interval,
)
from showerstack.scoring.tasks.base import Metric, TaskScoring
from showerstack.scoring.tasks.truth import Truth, check_finite
from showerstack.showers.schema import ENERGY, TargetQuantity


def _value(truth: np.ndarray, estimate: np.ndarray) -> float:
    return resolution(estimate - truth)


def _interval(truth: np.ndarray, estimate: np.ndarray, groups: np.ndarray | None = None) -> Interval:
    return resolution_interval(estimate - truth, groups)


def _paired(truth: np.ndarray, a: np.ndarray, b: np.ndarray, groups: np.ndarray | None = None) -> Paired:
    return paired_resolution(a - truth, b - truth, groups)


RESOLUTION = Metric("resolution", "half the width of the central 68 %", _value, _interval, _paired)


class TargetScoring(TaskScoring):
    """Estimates (N,), in the target's unit; a task's own class says which task and bins it has."""

    dtype = np.float64
    metric = RESOLUTION
    headline_key = "resolution"
    loss_name = "mean absolute error"
    edges: ClassVar[tuple[float, ...]]
    """Borders of the bins of the true value."""

    def __init_subclass__(cls) -> None:
        """Take the array's name from the target."""
        assert cls.task.target is not None
        cls.key = cls.task.target.name

    @property
    def target(self) -> TargetQuantity:
        """What is estimated."""
        assert self.task.target is not None
        return self.task.target

    @property
    def loss_unit(self) -> str:  # type: ignore[override]
        """The target's."""
        return self.target.unit

    def checked(self, output: np.ndarray, where: str) -> np.ndarray:
        """Return (N,) float64."""
        if output.dtype.kind != "f":
            raise InputError(f"{where} has type {output.dtype}, expected real numbers, {self.target.unit}")
        check_finite(output, where)
        return output.astype(np.float64)

    def metrics(self, truth: Truth, output: np.ndarray, *, intervals: bool) -> dict[str, Any]:
        """Return bias, resolution, rms and mean absolute error: overall, by bins of the true value and of the zenith.

        ``reconstruction`` holds the same of the reconstructed scalar that the target refers to.
        """
        residuals = output - truth.labels
        result = _measured(residuals, intervals)
        if truth.reference is not None:
            result["reconstruction"] = _measured(truth.reference - truth.labels, intervals)
            if intervals:
                result["minus_reconstruction"] = _paired(truth.labels, output, truth.reference).as_dict()
        result["true_binned"] = {
            f"{low:g} to {high:g}": self._in_bin(residuals[inside], intervals)
            for low, high in zip(self.edges, self.edges[1:], strict=False)
            if (inside := (truth.labels >= low) & (truth.labels < high)).any()
        }
        return result

    def _in_bin(self, residuals: np.ndarray, intervals: bool) -> dict[str, Any]:
        return _measured(residuals, intervals) | {"too_few_events": len(residuals) < MIN_EVENTS}

    def losses(self, labels: np.ndarray, log_proba: np.ndarray, output: np.ndarray) -> np.ndarray:
        """Return |estimate - truth|, (N,)."""
        return np.abs(output - labels)


def _measured(residuals: np.ndarray, intervals: bool) -> dict[str, Any]:
    content: Mapping[str, Any] = residual_metrics(residuals)
    return {name: value for name, value in content.items() if intervals or name != "intervals"}


class EnergyScoring(TargetScoring):
    """lg(E/eV)."""

    task = ENERGY
    edges = (14.0, 14.5, 14.75, 15.0, 15.25, 15.5, 15.75, 16.0, 16.5, 17.0, 18.0)


SCORING = EnergyScoring()
