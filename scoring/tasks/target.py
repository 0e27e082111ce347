"""Scoring of tasks with a target, such as primary energy: residuals against the truth, by bins of the true value.

For the energy these are bias and resolution of lg E, by true energy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from showerstack.runtime.errors import InputError
from showerstack.scoring.metrics.intervals import Interval
from showerstack.scoring.metrics.level import LEVEL_TEXT
from showerstack.scoring.metrics.paired import Paired, mcnemar
from showerstack.scoring.metrics.residuals import (
    MIN_EVENTS,
    bias_interval,
    paired_resolution,
    residual_metrics,
    resolution,
    resolution_interval,
)
from showerstack.scoring.tasks.base import Metric, Named, Quantity, TaskScoring
from showerstack.scoring.tasks.text import mcnemar_table, table, with_interval
from showerstack.scoring.tasks.truth import Truth, check_finite
from showerstack.showers.schema import Task


def _value(truth: np.ndarray, estimate: np.ndarray) -> float:
    return resolution(estimate - truth)


def _interval(truth: np.ndarray, estimate: np.ndarray, groups: np.ndarray | None = None) -> Interval:
    return resolution_interval(estimate - truth, groups)


def _paired(truth: np.ndarray, a: np.ndarray, b: np.ndarray, groups: np.ndarray | None = None) -> Paired:
    return paired_resolution(a - truth, b - truth, groups)


RESOLUTION = Metric("resolution", "half the width of the central 68 %", _value, _interval, _paired)


MEASURES = ("bias", "resolution", "rms")


class TargetScoring(TaskScoring):
    """Estimates (N,), in the target's unit."""

    dtype = np.float64
    metric = RESOLUTION
    headline_key = "resolution"
    loss_name = "mean absolute error"
    metric_words = "resolution, half the width of the central 68 %"
    metric_column = "resolution"
    meaning = (
        "Resolution: half the width of the central 68 % of estimated minus true values; 0 is perfect. Bias: their mean."
    )

    def __init__(self, task: Task, edges: tuple[float, ...]) -> None:
        """Take the task, and the borders of the bins of the true value."""
        assert task.target is not None
        self.task, self.target, self.edges = task, task.target, edges  # type: ignore[misc]
        self.key = task.target.name  # type: ignore[misc]

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

    @property
    def title(self) -> str:  # type: ignore[override]
        """What is estimated."""
        return self.target.meaning.capitalize()

    @property
    def right_words(self) -> str:  # type: ignore[override]
        """How close is right."""
        return f"within {self.target.close:g} of the truth, {self.target.unit}"

    def summary(self, metrics: dict[str, Any]) -> Iterator[RenderableType]:
        """Yield the resolution, what the reconstruction reaches, and the table by true value."""
        spans = metrics.get("intervals", {})
        yield Text.assemble(
            ("resolution ", "bold"),
            (with_interval(metrics["resolution"], spans.get("resolution"), ".4f"), "bold green"),
            f" in {self.target.unit}, {metrics['n_events']:,} events"
            f"{f', {LEVEL_TEXT} intervals in brackets' if spans else ''}",
        )
        drawn = table("estimates against the truth", "", *MEASURES)
        drawn.add_row("estimate", *_measures(metrics))
        if "reconstruction" in metrics:
            drawn.add_row(f"reconstructed {self.target.reference}", *_measures(metrics["reconstruction"]))
        yield drawn
        value = metrics.get("minus_reconstruction")
        if value:
            low, high = value["interval"]["low"], value["interval"]["high"]
            yield Text(
                f"resolution, estimate minus reconstruction: {value['difference']:+z.4f} [{low:+z.4f}, {high:+z.4f}], "
                f"p = {value['p_value']:.2g}"
            )
        drawn = table(f"by true {self.target.unit}", "bin", "events", *MEASURES)
        for name, row in metrics["true_binned"].items():
            cells = ["too few events"] * len(MEASURES) if row["too_few_events"] else _measures(row)
            drawn.add_row(name, f"{row['count']:,}", *cells)
        yield drawn

    def second_metric(
        self, labels: np.ndarray, log_proba: np.ndarray, output: np.ndarray, weights: np.ndarray | None = None
    ) -> Quantity:
        """Return the bias."""
        residuals = output - labels
        return Quantity("bias", float(residuals.mean()), bias_interval(residuals), 4)

    def details(self, metrics: dict[str, Any]) -> dict[str, str]:
        """Return bias and rms."""
        return {name: with_interval(metrics[name], metrics["intervals"][name], ".4f") for name in ("bias", "rms")}

    def right(self, labels: np.ndarray, output: np.ndarray) -> np.ndarray:
        """Return which estimates are close."""
        return np.asarray(np.abs(output - labels) < self.target.close)

    def pair(
        self, labels: np.ndarray, a: Named, b: Named, groups: np.ndarray | None = None
    ) -> Iterator[RenderableType]:
        """Yield whose estimates are close where."""
        result = mcnemar(self.right(labels, a[1]), self.right(labels, b[1]), groups)
        yield mcnemar_table(self.right_words, result, a[0], b[0])


def _measured(residuals: np.ndarray, intervals: bool) -> dict[str, Any]:
    content: Mapping[str, Any] = residual_metrics(residuals)
    return {name: value for name, value in content.items() if intervals or name != "intervals"}


def _measures(content: dict[str, Any]) -> list[str]:
    return [with_interval(content[name], content.get("intervals", {}).get(name), ".4f") for name in MEASURES]
