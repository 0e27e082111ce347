"""Scoring of tasks with a target, such as primary energy: residuals against the truth, by bins of the true value.

For the energy these are bias and resolution of lg E, by true energy.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from showerstack.runtime.errors import InputError
from showerstack.scoring.metrics.bins import BENCHMARK, MetricBins
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
from showerstack.scoring.tasks.text import TOO_FEW, mcnemar_table, table, with_interval
from showerstack.scoring.tasks.truth import Truth, check_finite
from showerstack.showers.schema import ENERGY, Task

EDGES: dict[str, tuple[float, ...]] = {
    ENERGY.name: (14.0, 14.5, 14.75, 15.0, 15.25, 15.5, 15.75, 16.0, 16.5, 17.0, 18.0)
}
"""Borders of the bins of the true value, by the task's name."""


def _value(truth: np.ndarray, estimate: np.ndarray) -> float:
    return resolution(estimate - truth)


def _interval(truth: np.ndarray, estimate: np.ndarray, groups: np.ndarray | None = None) -> Interval:
    return resolution_interval(estimate - truth, groups)


def _paired(truth: np.ndarray, a: np.ndarray, b: np.ndarray, groups: np.ndarray | None = None) -> Paired:
    return paired_resolution(a - truth, b - truth, groups)


RESOLUTION = Metric("resolution", "half the width of the central 68 %", _value, _interval, _paired)
MEASURES = ("bias", "resolution", "rms")


def _edges_of(labels: np.ndarray) -> tuple[float, ...]:
    """Return the borders of half units that cover true values (N,) of another array."""
    bins = MetricBins.of(labels, labels).energy
    return (*(one.low for one in bins), *(one.high for one in bins[-1:]))


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

    def __init__(self, task: Task) -> None:
        assert task.target is not None
        self.task, self.target, self.edges = task, task.target, EDGES[task.name]
        self.title = self.target.meaning.capitalize()
        self.loss_unit = self.target.unit
        self.right_words = f"within {self.target.close:g} of the truth, {self.target.unit}"

    def check_output(self, output: np.ndarray, where: str) -> np.ndarray:
        """Return (N,) float64."""
        if output.dtype.kind != "f":
            raise InputError(f"{where} has type {output.dtype}, expected real numbers, {self.target.unit}")
        check_finite(output, where)
        return output.astype(np.float64)

    def metrics(self, truth: Truth, output: np.ndarray, *, intervals: bool) -> dict[str, Any]:
        """Return bias, resolution, rms and mean absolute error: overall and by bins of the true value.

        ``reconstruction`` holds the same of the reconstructed scalar that the target refers to.
        """
        residuals = output - truth.labels
        metrics = _measures_of(residuals, intervals)
        if truth.reference is not None:
            metrics["reconstruction"] = _measures_of(truth.reference - truth.labels, intervals)
            if intervals:
                metrics["minus_reconstruction"] = _paired(truth.labels, output, truth.reference).as_dict()
        edges = self.edges if truth.binning is BENCHMARK else _edges_of(truth.labels)
        metrics["true_binned"] = {
            f"{low:g} to {high:g}": _measures_of(residuals[inside], intervals)
            | {"too_few_events": int(inside.sum()) < MIN_EVENTS}
            for low, high in pairwise(edges)
            if (inside := (truth.labels >= low) & (truth.labels < high)).any()
        }
        return metrics

    def losses(self, labels: np.ndarray, log_proba: np.ndarray, output: np.ndarray) -> np.ndarray:
        """Return |estimate - truth|, (N,)."""
        return np.abs(output - labels)

    def summary(self, metrics: dict[str, Any]) -> Iterator[RenderableType]:
        """Yield the resolution, what the reconstruction reaches, and the table by true value."""
        intervals = metrics.get("intervals", {})
        yield Text.assemble(
            ("resolution ", "bold"),
            (with_interval(metrics["resolution"], intervals.get("resolution"), ".4f"), "bold green"),
            f" in {self.target.unit}, {metrics['n_events']:,} events"
            f"{f', {LEVEL_TEXT} intervals in brackets' if intervals else ''}",
        )
        overall = table("estimates against the truth", "", *MEASURES)
        overall.add_row("estimate", *_measure_cells(metrics))
        if "reconstruction" in metrics:
            overall.add_row(f"reconstructed {self.target.reference}", *_measure_cells(metrics["reconstruction"]))
        yield overall
        gap = metrics.get("minus_reconstruction")
        if gap:
            low, high = gap["interval"]["low"], gap["interval"]["high"]
            yield Text(
                f"resolution, estimate minus reconstruction: {gap['difference']:+z.4f} [{low:+z.4f}, {high:+z.4f}], "
                f"p = {gap['p_value']:.2g}"
            )
        by_truth = table(f"by true {self.target.unit}", "bin", "events", *MEASURES)
        for name, row in metrics["true_binned"].items():
            cells = [TOO_FEW] * len(MEASURES) if row["too_few_events"] else _measure_cells(row)
            by_truth.add_row(name, f"{row['count']:,}", *cells)
        yield by_truth

    def second_metric(
        self,
        labels: np.ndarray,
        log_proba: np.ndarray,
        output: np.ndarray,
        weights: np.ndarray | None = None,
        groups: np.ndarray | None = None,
    ) -> Quantity:
        """Return the bias."""
        residuals = output - labels
        return Quantity("bias", float(residuals.mean()), bias_interval(residuals, groups), 4)

    def details(self, metrics: dict[str, Any]) -> dict[str, str]:
        """Return bias and rms."""
        return {name: with_interval(metrics[name], metrics["intervals"][name], ".4f") for name in ("bias", "rms")}

    def is_right(self, labels: np.ndarray, output: np.ndarray) -> np.ndarray:
        """Return which estimates are close."""
        return np.asarray(np.abs(output - labels) < self.target.close)

    def compare(
        self, labels: np.ndarray, a: Named, b: Named, groups: np.ndarray | None = None
    ) -> Iterator[RenderableType]:
        """Yield which system's estimates are close where."""
        split = mcnemar(self.is_right(labels, a[1]), self.is_right(labels, b[1]), groups)
        yield mcnemar_table(self.right_words, split, a[0], b[0])


def _measures_of(residuals: np.ndarray, intervals: bool) -> dict[str, Any]:
    metrics = residual_metrics(residuals)
    return {name: value for name, value in metrics.items() if intervals or name != "intervals"}


def _measure_cells(metrics: dict[str, Any]) -> list[str]:
    return [with_interval(metrics[name], metrics.get("intervals", {}).get(name), ".4f") for name in MEASURES]
