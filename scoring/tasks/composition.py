"""Mass composition: hard labels, scored by the benchmark's fraction error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from showerstack.runtime.errors import InputError
from showerstack.scoring.metrics.bins import energy_bins, zenith_bins
from showerstack.scoring.metrics.composition import (
    composition_metrics,
    confusion_matrix,
    expected_fraction_error,
    fraction_error,
)
from showerstack.scoring.metrics.intervals import (
    MIN_CLASS_EVENTS,
    RESAMPLES,
    confusion_intervals,
    confusion_replicas,
    fraction_error_interval,
    share_interval,
)
from showerstack.scoring.metrics.level import LEVEL_TEXT
from showerstack.scoring.metrics.paired import mcnemar, paired_accuracy, paired_fraction_error
from showerstack.scoring.tasks.base import ClassScoring, Metric, Named
from showerstack.scoring.tasks.published import best_published
from showerstack.scoring.tasks.text import mcnemar_table, table, with_interval
from showerstack.scoring.tasks.truth import Truth, check_range
from showerstack.showers.schema import COMPOSITION

BIN_RESAMPLES = 1000
"""Bootstrap replicas in each bin: their limits then wobble by a twelfth of a standard error."""
FRACTION_ERROR = Metric(
    "fraction error", "mean |true - predicted fraction|", fraction_error, fraction_error_interval,
    paired_fraction_error,
)  # fmt: skip


class CompositionScoring(ClassScoring):
    """Class numbers 0..4."""

    task = COMPOSITION
    key = "predictions"
    dtype = np.int8
    metric = FRACTION_ERROR
    headline_key = "mean_fraction_error"
    title = "Mass composition"
    metric_words = metric_column = "fraction error"
    right_words = "right label"
    meaning = (
        "Fraction error: 1001 mixtures of the classes, 5000 test showers each, are drawn; the error is the mean "
        "difference between the true and the predicted fraction of a class. 0 is perfect, 0.158 random labels, "
        "0.320 one label for all."
    )
    published = f"The best published is {best_published(COMPOSITION.name):.3f} (public test sets)."

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

    def summary(self, metrics: dict[str, Any]) -> Iterator[RenderableType]:
        """Yield errors by class, the confusion matrix, and tables by energy and zenith."""
        intervals = metrics.get("intervals", {})
        yield Text.assemble(
            ("fraction error ", "bold"),
            (with_interval(metrics["mean_fraction_error"], intervals.get("mean_fraction_error"), ".4f"), "bold green"),
            f", {metrics['n_events']:,} events{f', [{LEVEL_TEXT} interval]' if intervals else ''}",
        )
        yield Text(
            f"accuracy {with_interval(metrics['accuracy'], intervals.get('accuracy'), '.4f')}, "
            f"macro F1 {metrics['macro_f1']:.4f}, weighted F1 {metrics['weighted_f1']:.4f}"
        )
        drawn = table("by class", "", "events", "recall", "precision", "F1", "fraction error")
        errors = metrics["fraction_error_details"]["per_class_fraction_error"]
        spans = intervals.get("per_class_fraction_error", [None] * len(errors))
        for k, (name, row) in enumerate(metrics["per_class"].items()):
            drawn.add_row(
                name,
                f"{row['support']:,.0f}",
                with_interval(row["recall"], intervals.get("recall", {}).get(name), ".3f"),
                f"{row['precision']:.3f}",
                f"{row['f1']:.3f}",
                with_interval(errors[k], spans[k], ".3f"),
            )
        yield drawn
        names = list(metrics["per_class"])
        drawn = table("confusion, events (row: true, column: predicted)", "", *names)
        for name, counts in zip(names, metrics["confusion_matrix"], strict=True):
            drawn.add_row(name, *(f"{count:,}" for count in counts))
        yield drawn
        drawn = table("by energy, lg(E/eV)", "bin", "events", "accuracy", "fraction error")
        for name, row in metrics["energy_binned"].items():
            inside = row.get("intervals", {})
            error = row.get("fraction_error")
            if row.get("too_few_events") or error is None:
                accuracy = fraction = "too few events"
            else:
                accuracy = with_interval(row["accuracy"], inside.get("accuracy"), ".4f")
                fraction = with_interval(error["mean_fraction_error"], inside.get("mean_fraction_error"), ".4f")
            drawn.add_row(name, f"{row['count']:,}", accuracy, fraction)
        yield drawn
        if "zenith_binned" in metrics:
            yield _by_zenith(metrics["zenith_binned"])

    def hard(self, log_proba: np.ndarray, output: np.ndarray) -> np.ndarray:
        """Return the labels that are scored."""
        return output

    def details(self, metrics: dict[str, Any]) -> dict[str, str]:
        """Return the accuracy."""
        share = metrics["intervals"]["accuracy"]
        return {"accuracy": f"{100 * metrics['accuracy']:.2f} % [{100 * share['low']:.2f}, {100 * share['high']:.2f}]"}

    def right(self, labels: np.ndarray, output: np.ndarray) -> np.ndarray:
        """Return where the label is right."""
        return np.asarray(output == labels)

    def pair(
        self, labels: np.ndarray, a: Named, b: Named, groups: np.ndarray | None = None
    ) -> Iterator[RenderableType]:
        """Yield the difference of accuracies, and who is right where."""
        hits = paired_accuracy(labels, a[1], b[1], groups)
        yield Text(
            f"accuracy, first minus second: {100 * hits.difference:+z.2f} "
            f"[{100 * hits.interval.low:+z.2f}, {100 * hits.interval.high:+z.2f}] %, p = {hits.p_value:.2g}"
        )
        result = mcnemar(self.right(labels, a[1]), self.right(labels, b[1]), groups)
        yield mcnemar_table("labels right or wrong", result, a[0], b[0])


def _by_zenith(binned: dict[str, Any]) -> Table:
    drawn = table("by zenith, deg (fraction error: closed form)", "bin", "events", "accuracy", "fraction error")
    for name, row in binned.items():
        if row["too_few_events"]:
            accuracy = fraction = "too few events"
        else:
            accuracy = with_interval(row["accuracy"], row["intervals"]["accuracy"], ".4f")
            fraction = with_interval(row["expected_fraction_error"], row["intervals"]["expected_fraction_error"], ".4f")
        drawn.add_row(name, f"{row['count']:,}", accuracy, fraction)
    return drawn


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
