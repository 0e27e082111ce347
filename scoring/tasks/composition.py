"""Mass composition: hard labels, scored by the benchmark's fraction error."""

from __future__ import annotations

from typing import Any

import numpy as np

from showerstack.runtime.errors import InputError
from showerstack.scoring.metrics.composition import (
    composition_metrics,
    confusion_matrix,
    energy_bins,
    expected_fraction_error,
    fraction_error,
)
from showerstack.scoring.metrics.gamma import zenith_bins
from showerstack.scoring.metrics.intervals import (
    MIN_CLASS_EVENTS,
    RESAMPLES,
    confusion_intervals,
    confusion_replicas,
    fraction_error_interval,
    share_interval,
)
from showerstack.scoring.metrics.paired import paired_fraction_error
from showerstack.scoring.tasks.base import Metric, TaskScoring
from showerstack.scoring.tasks.truth import Truth, check_range
from showerstack.showers.schema import COMPOSITION

BIN_RESAMPLES = 1000
"""Bootstrap replicas in each bin: their limits then wobble by a twelfth of a standard error."""
FRACTION_ERROR = Metric(
    "fraction error", "mean |true - predicted fraction|", fraction_error, fraction_error_interval,
    paired_fraction_error,
)  # fmt: skip


class CompositionScoring(TaskScoring):
    """Class numbers 0..4."""

    task = COMPOSITION
    key = "predictions"
    dtype = np.int8
    metric = FRACTION_ERROR
    headline_key = "mean_fraction_error"

    def checked(self, output: np.ndarray, where: str) -> np.ndarray:
        """Return (N,) int64."""
        n_classes = self.task.n_classes
        if output.dtype.kind not in "iu":
            raise InputError(f"{where} has type {output.dtype}, expected integers 0..{n_classes - 1}, one an event")
        check_range(output, n_classes, where)
        return output.astype(np.int64)

    def metrics(self, truth: Truth, output: np.ndarray, *, intervals: bool) -> dict[str, Any]:
        """Return the benchmark's keys; with intervals also the table by zenith."""
        metrics = composition_metrics(truth.labels, output, truth.energy)
        if intervals:
            add_composition_intervals(metrics, truth, output)
            metrics["zenith_binned"] = composition_by_zenith(truth, output)
        return metrics


SCORING = CompositionScoring()


def add_composition_intervals(metrics: dict[str, Any], truth: Truth, predicted: np.ndarray) -> None:
    """Add confidence intervals to the metrics of :func:`showerstack.scoring.metrics.composition.composition_metrics`,
    in place."""
    everything = np.ones(len(predicted), dtype=bool)
    metrics["intervals"] = _confusion_part(truth, predicted, everything, metrics["fraction_error_details"])
    metrics["intervals"]["recall"] = {
        name: _share(truth, predicted, truth.labels == k) for k, name in enumerate(metrics["per_class"])
    }
    for name, mask in energy_bins(truth.energy):
        value = metrics["energy_binned"].get(name)
        if value is None:
            continue
        matrix = np.array(value["confusion_matrix"])
        value["too_few_events"] = bool(matrix.sum(axis=1).min() < MIN_CLASS_EVENTS)
        value["intervals"] = _confusion_part(truth, predicted, mask, value.get("fraction_error"), BIN_RESAMPLES)


def composition_by_zenith(truth: Truth, predicted: np.ndarray) -> dict[str, Any]:
    """Return accuracy and expected fraction error (closed form, without draws) by zenith, with confidence intervals.

    The public metrics have no such table, so nothing is drawn for it. Bins without events have no key, those that
    lack a class no fraction error.
    """
    result: dict[str, Any] = {}
    for name, mask in zenith_bins(truth.zenith_deg):
        if not mask.any():
            continue
        matrix = confusion_matrix(truth.labels[mask], predicted[mask])
        per_class = matrix.sum(axis=1)
        result[name] = {
            "accuracy": float(np.trace(matrix) / matrix.sum()),
            "count": int(matrix.sum()),
            "too_few_events": bool(per_class.min() < MIN_CLASS_EVENTS),
            "intervals": {"accuracy": _share(truth, predicted, mask)},
        }
        if per_class.min() > 0:
            value = expected_fraction_error(matrix)
            result[name]["expected_fraction_error"] = value
            result[name]["intervals"]["expected_fraction_error"] = confusion_intervals(
                matrix, value, n_resamples=BIN_RESAMPLES, drawn=_replicas(truth, predicted, mask, BIN_RESAMPLES)
            )[0].as_dict()
    return result


def _share(truth: Truth, predicted: np.ndarray, mask: np.ndarray) -> dict[str, float]:
    """Return the interval of the share of right labels among some events."""
    groups = None if truth.groups is None else truth.groups[mask]
    return share_interval(truth.labels[mask] == predicted[mask], groups).as_dict()


def _replicas(truth: Truth, predicted: np.ndarray, mask: np.ndarray, n_resamples: int) -> np.ndarray | None:
    """Return confusion matrices of resampled groups; None where every event is a group of its own."""
    if truth.groups is None:
        return None
    return confusion_replicas(truth.labels[mask], predicted[mask], truth.groups[mask], n_resamples=n_resamples)


def _confusion_part(
    truth: Truth, predicted: np.ndarray, mask: np.ndarray, error: dict[str, Any] | None, n_resamples: int = RESAMPLES
) -> dict[str, Any]:
    part: dict[str, Any] = {"accuracy": _share(truth, predicted, mask)}
    if error is not None:
        matrix = confusion_matrix(truth.labels[mask], predicted[mask])
        overall, classes = confusion_intervals(
            matrix,
            error["mean_fraction_error"],
            np.array(error["per_class_fraction_error"]),
            n_resamples=n_resamples,
            drawn=_replicas(truth, predicted, mask, n_resamples),
        )
        part["mean_fraction_error"] = overall.as_dict()
        part["per_class_fraction_error"] = [interval.as_dict() for interval in classes]
    return part
