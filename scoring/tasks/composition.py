"""Mass composition: hard labels, scored by the benchmark's fraction error."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from showerstack.runtime.errors import InputError
from showerstack.scoring.metrics.bins import energy_bins, zenith_bins
from showerstack.scoring.metrics.composition import (
    composition_metrics,
    confusion_intervals,
    confusion_matrix,
    confusion_replicas,
    expected_fraction_error,
    fraction_error,
    fraction_error_interval,
    mixture_fractions,
    paired_fraction_error,
)
from showerstack.scoring.metrics.intervals import MIN_CLASS_EVENTS, RESAMPLES, share_interval
from showerstack.scoring.metrics.level import LEVEL_TEXT
from showerstack.scoring.metrics.paired import mcnemar, paired_accuracy, paired_mean
from showerstack.scoring.tasks.base import Metric, Named, Quantity, TaskScoring
from showerstack.scoring.tasks.text import TOO_FEW, mcnemar_table, table, with_interval
from showerstack.scoring.tasks.truth import Truth, check_labels
from showerstack.showers.schema import COMPOSITION, Task

CHANCE_SIGMA = 5.0
"""Standard errors by which labels must be right more rarely than by chance to be told."""
BIN_RESAMPLES = 1000
"""Bootstrap replicas in each bin: their limits then wobble by a twelfth of a standard error."""


class CompositionScoring(TaskScoring):
    """Class numbers: 0..4 of the benchmark's mass groups, or of those of them that there are."""

    dtype = np.int8
    headline_key = "mean_fraction_error"
    title = "Mass composition"
    metric_words = metric_column = "fraction error"
    right_words = "right label"

    def __init__(self, task: Task = COMPOSITION) -> None:
        self.task = task
        n_classes = task.n_classes
        self.metric = Metric(
            "fraction error",
            "mean |true - predicted fraction|",
            partial(fraction_error, n_classes=n_classes),
            partial(fraction_error_interval, n_classes=n_classes),
            partial(paired_fraction_error, n_classes=n_classes),
        )
        self._fractions = mixture_fractions(task.n_classes)
        self.meaning = (
            f"Fraction error: {len(self._fractions)} mixtures of the classes, 5000 test showers each, are drawn; the "
            "error is the mean difference between the true and the predicted fraction of a class. 0 is perfect, "
            f"{self.random_error:.3f} random labels, {self._error_of(np.eye(task.n_classes)[0]):.3f} one label for all."
        )

    def _error_of(self, shares: np.ndarray) -> float:
        return float(np.abs(self._fractions - shares).mean())

    @property
    def random_error(self) -> float:
        """The fraction error of random labels."""
        return self._error_of(np.full(self.task.n_classes, 1 / self.task.n_classes))

    @property
    def published(self) -> str:
        """The best published fraction error."""
        if self.task != COMPOSITION:
            return ""
        from showerstack.scoring.tasks.published import best_published  # of pages alone

        return f"The best published is {best_published(COMPOSITION.name):.3f} (public test sets)."

    def check_output(self, output: np.ndarray, where: str) -> np.ndarray:
        """Return (N,) int64: class numbers of labels."""
        if output.dtype.kind not in "iu":
            words = self.task.label_words
            raise InputError(f"{where} has type {output.dtype}, expected integers {words}, one an event")
        check_labels(output, self.task, where)
        return self.task.encoded(output)

    def metrics(self, truth: Truth, output: np.ndarray, *, intervals: bool) -> dict[str, Any]:
        """Return the benchmark's keys; with intervals also the table by zenith."""
        metrics = composition_metrics(
            truth.labels, output, truth.energy, truth.weights, truth.binning, self.task.classes
        )
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
        by_class = table("by class", "", "events", "recall", "precision", "F1", "fraction error")
        errors = metrics["fraction_error_details"]["per_class_fraction_error"]
        spans = intervals.get("per_class_fraction_error", [None] * len(errors))
        for (name, row), error, span in zip(metrics["per_class"].items(), errors, spans, strict=True):
            by_class.add_row(
                name,
                f"{row['support']:,.0f}",
                with_interval(row["recall"], intervals.get("recall", {}).get(name), ".3f"),
                f"{row['precision']:.3f}",
                f"{row['f1']:.3f}",
                with_interval(error, span, ".3f"),
            )
        yield by_class
        names = list(metrics["per_class"])
        if extremes := metrics.get("fraction_error_extremes"):  # files of earlier versions have none
            mixtures = table("fraction errors of the mixtures", "", *names)
            for row_name, key in (("99 % quantile", "per_class_p99"), ("largest", "per_class_max")):
                mixtures.add_row(row_name, *(f"{value:.3f}" for value in extremes[key]))
            yield mixtures
        confusion = table("confusion, events (row: true, column: predicted)", "", *names)
        for name, counts in zip(names, metrics["confusion_matrix"], strict=True):
            confusion.add_row(name, *(f"{count:,}" for count in counts))
        yield confusion
        by_energy = table("by energy, lg(E/eV)", "bin", "events", "accuracy", "fraction error")
        for name, row in metrics["energy_binned"].items():
            error = row.get("fraction_error", {}).get("mean_fraction_error")
            by_energy.add_row(name, *_bin_cells(row, error, "mean_fraction_error"))
        yield by_energy
        if "zenith_binned" in metrics:
            title = "by zenith, deg (fraction error: closed form)"
            by_zenith = table(title, "bin", "events", "accuracy", "fraction error")
            for name, row in metrics["zenith_binned"].items():
                error = row.get("expected_fraction_error")
                by_zenith.add_row(name, *_bin_cells(row, error, "expected_fraction_error"))
            yield by_zenith

    def warnings(self, truth: Truth, output: np.ndarray) -> list[str]:
        """Return whether groups are fewer than five, and whether labels are right more rarely than by chance."""
        few = [
            f"{self.task.n_classes} mass groups, {', '.join(self.task.classes)}: random labels have a fraction error "
            f"of {self.random_error:.3f}, and no error of other groups compares"
        ] if self.task != COMPOSITION else []  # fmt: skip
        groups = None if truth.groups is None or len(np.unique(truth.groups)) < 2 else truth.groups
        right = paired_mean((output == truth.labels).astype(np.float64), groups)
        chance = 1 / self.task.n_classes
        if not right.difference < chance - CHANCE_SIGMA * right.standard_error:
            return few
        share, classes = 100 * right.difference, ", ".join(self.task.classes)
        return [
            *few,
            f"{share:.1f} % of the labels are right, by chance {100 * chance:.0f} % would be: are they the numbers of "
            f"{classes}, in the order of the test set's rows?",
        ]

    def second_metric(
        self,
        labels: np.ndarray,
        log_proba: np.ndarray,
        output: np.ndarray,
        weights: np.ndarray | None = None,
        groups: np.ndarray | None = None,
    ) -> Quantity:
        """Return the accuracy of the labels that are scored."""
        hits = output == labels
        interval = share_interval(hits, groups, weights=weights)
        return Quantity("accuracy", float(np.average(hits, weights=weights)), interval, 2, "%", 100)

    def details(self, metrics: dict[str, Any]) -> dict[str, str]:
        """Return the accuracy."""
        share = metrics["intervals"]["accuracy"]
        return {"accuracy": f"{100 * metrics['accuracy']:.2f} % [{100 * share['low']:.2f}, {100 * share['high']:.2f}]"}

    def is_right(self, labels: np.ndarray, output: np.ndarray) -> np.ndarray:
        """Return where the label is right."""
        return np.asarray(output == labels)

    def compare(
        self, labels: np.ndarray, a: Named, b: Named, groups: np.ndarray | None = None
    ) -> Iterator[RenderableType]:
        """Yield the difference of accuracies, and which system is right where."""
        hits = paired_accuracy(labels, a[1], b[1], groups)
        yield Text(
            f"accuracy, first minus second: {100 * hits.difference:+z.2f} "
            f"[{100 * hits.interval.low:+z.2f}, {100 * hits.interval.high:+z.2f}] %, p = {hits.p_value:.2g}"
        )
        split = mcnemar(self.is_right(labels, a[1]), self.is_right(labels, b[1]), groups)
        yield mcnemar_table("labels right or wrong", split, a[0], b[0])


def _bin_cells(row: dict[str, Any], error: float | None, error_key: str) -> tuple[str, str, str]:
    """Return number of events, accuracy and fraction error of a bin as they stand in a table."""
    count, intervals = f"{row['count']:,}", row.get("intervals", {})
    if row.get("too_few_events") or error is None:
        return count, TOO_FEW, TOO_FEW
    accuracy = with_interval(row["accuracy"], intervals.get("accuracy"), ".4f")
    return count, accuracy, with_interval(error, intervals.get(error_key), ".4f")


def add_composition_intervals(metrics: dict[str, Any], truth: Truth, predicted: np.ndarray) -> None:
    """Add confidence intervals to the metrics of :func:`showerstack.scoring.metrics.composition.composition_metrics`,
    in place."""
    metrics["intervals"] = _intervals_of(truth, predicted, metrics["fraction_error_details"], RESAMPLES)
    metrics["intervals"]["recall"] = {
        name: _accuracy_interval(truth.take(truth.labels == k), predicted[truth.labels == k])
        for k, name in enumerate(metrics["per_class"])
    }
    for name, mask in energy_bins(truth.energy, truth.binning):
        row = metrics["energy_binned"].get(name)
        if row is not None:
            details = row.get("fraction_error")
            row["too_few_events"] = _has_too_few(np.array(row["confusion_matrix"]))
            row["intervals"] = _intervals_of(truth.take(mask), predicted[mask], details, BIN_RESAMPLES)


def composition_by_zenith(truth: Truth, predicted: np.ndarray) -> dict[str, Any]:
    """Return accuracy and expected fraction error (closed form, without draws) by zenith, with confidence intervals.

    The public metrics have no such table, so nothing is drawn for it. Bins without events have no key, those that
    lack a class no fraction error.
    """
    binned: dict[str, Any] = {}
    for name, mask in zenith_bins(truth.zenith_deg, truth.binning):
        if not mask.any():
            continue
        in_bin, predicted_in_bin = truth.take(mask), predicted[mask]
        counts = confusion_matrix(in_bin.labels, predicted_in_bin, truth.task.n_classes)
        hits = predicted_in_bin == in_bin.labels
        binned[name] = {
            "accuracy": share_of(hits, in_bin.weights),
            "count": int(counts.sum()),
            "too_few_events": _has_too_few(counts),
            "intervals": {"accuracy": _accuracy_interval(in_bin, predicted_in_bin)},
        }
        matrix = confusion_matrix(in_bin.labels, predicted_in_bin, truth.task.n_classes, in_bin.weights)
        if matrix.sum(axis=1).min() > 0:
            error = expected_fraction_error(matrix)
            interval, _ = confusion_intervals(
                matrix, error, n_resamples=BIN_RESAMPLES, drawn=_replicas(in_bin, predicted_in_bin, BIN_RESAMPLES)
            )
            binned[name]["expected_fraction_error"] = error
            binned[name]["intervals"]["expected_fraction_error"] = interval.as_dict()
    return binned


def share_of(hits: np.ndarray, weights: np.ndarray | None) -> float:
    """Return the share of true among (N,) bool, or its weight (N,) among all weights."""
    if weights is None:
        return float(np.count_nonzero(hits) / len(hits))
    return float(np.average(hits, weights=weights)) if weights.any() else 0.0


def _replicas(truth: Truth, predicted: np.ndarray, n_resamples: int) -> np.ndarray | None:
    n_classes = truth.task.n_classes
    return confusion_replicas(truth.labels, predicted, truth.groups, truth.weights, n_classes, n_resamples=n_resamples)


def _has_too_few(matrix: np.ndarray) -> bool:
    return bool(matrix.sum(axis=1).min() < MIN_CLASS_EVENTS)


def _accuracy_interval(truth: Truth, predicted: np.ndarray) -> dict[str, float]:
    return share_interval(truth.labels == predicted, truth.groups, weights=truth.weights).as_dict()


def _intervals_of(
    truth: Truth, predicted: np.ndarray, details: dict[str, Any] | None, n_resamples: int
) -> dict[str, Any]:
    """Return the intervals of the accuracy and, where it was determined, of the fraction error."""
    intervals: dict[str, Any] = {"accuracy": _accuracy_interval(truth, predicted)}
    if details is not None:
        overall, classes = confusion_intervals(
            confusion_matrix(truth.labels, predicted, truth.task.n_classes, truth.weights),
            details["mean_fraction_error"],
            np.array(details["per_class_fraction_error"]),
            n_resamples=n_resamples,
            drawn=_replicas(truth, predicted, n_resamples),
            is_sampled=truth.weights is None,
        )
        intervals["mean_fraction_error"] = overall.as_dict()
        intervals["per_class_fraction_error"] = [interval.as_dict() for interval in classes]
    return intervals
