"""Mass composition: fraction errors, confusion, and the plane of sizes coloured by mass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from showerstack.report.pictures.style import as_svg
from showerstack.report.pictures.tasks import (
    balanced_by_energy_picture,
    by_class_and_energy_picture,
    by_energy_picture,
    confusion_picture,
    confusions_picture,
    error_by_class_picture,
)
from showerstack.report.shared.markup import Section, picture, pictures
from showerstack.report.shared.published import best_published
from showerstack.report.shared.text import mcnemar_table, table, with_interval
from showerstack.report.tasks.base import ClassReport, Named, Part, plane, posteriors, thin_note
from showerstack.scoring.metrics.level import LEVEL_TEXT
from showerstack.scoring.metrics.paired import mcnemar, paired_accuracy
from showerstack.showers.kascade import LN_MASSES
from showerstack.showers.schema import COMPOSITION

if TYPE_CHECKING:
    from showerstack.report.shared.subject import EvaluatedRun


class CompositionReport(ClassReport):
    """Hard labels of five classes."""

    name = COMPOSITION.name
    title = "Mass composition"
    metric_words = metric_column = "fraction error"
    right_words = "right label"
    meaning = (
        "Fraction error: 1001 mixtures of the classes, 5000 test showers each, are drawn; the error is the mean "
        "difference between the true and the predicted fraction of a class. 0 is perfect, 0.158 random labels, "
        f"0.320 one label for all; the best published is {best_published(COMPOSITION.name):.3f} (public test sets)."
    )

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

    def headline(self, metrics: dict[str, Any]) -> tuple[str, str, str]:
        """Return the fraction error."""
        span = metrics["intervals"]["mean_fraction_error"]
        words = f"{span['low']:.4f} to {span['high']:.4f}; 0 perfect, 0.158 random"
        return (
            "fraction error (lower is better)",
            f"{metrics['mean_fraction_error']:.4f}",
            words,
        )

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

    @property
    def sections(self) -> list[Part]:
        """Confusion, fraction errors, reliability, the plane of sizes."""
        return [confusion, fraction_errors, mass_posteriors]


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


def confusion(evaluated: EvaluatedRun) -> Section:
    """Return confusion matrices, overall and by energy."""
    metrics, classes = evaluated.metrics, evaluated.task.classes
    overall = confusion_picture(np.array(metrics["confusion_matrix"]), classes, "all energies")
    figures = [
        picture(as_svg(overall, "confusion matrix"), "Each row sums to 100 %; events of each class at the left.")
    ]
    binned = {
        f"lg(E/eV) {name}": np.array(row["confusion_matrix"])
        for name, row in metrics["energy_binned"].items()
        if not row.get("too_few_events")
    }
    if binned:
        drawn = as_svg(confusions_picture(binned, classes), "confusion matrices by energy")
        figures.append(picture(drawn, "By reconstructed energy: rows true, columns predicted, one scale for all."))
    return Section("confusion", "Confusion matrices", pictures(figures) + thin_note(metrics["energy_binned"]))


def fraction_errors(evaluated: EvaluatedRun) -> Section:
    """Return fraction error by class and by energy, and accuracy by energy."""
    metrics = evaluated.metrics
    figures = [
        picture(
            as_svg(error_by_class_picture(metrics), "fraction error by class"),
            f"Mean |true − predicted fraction| of each class over the benchmark's 1001 mixtures, "
            f"{LEVEL_TEXT} intervals.",
        ),
        picture(
            as_svg(by_energy_picture(metrics), "fraction error by energy"),
            f"By reconstructed energy, {LEVEL_TEXT} intervals; events of each bin above it.",
        ),
        picture(
            as_svg(by_class_and_energy_picture(metrics), "fraction error by class and energy"),
            f"Each class in each energy bin, {LEVEL_TEXT} intervals; markers are shifted to be told apart.",
        ),
        picture(
            as_svg(balanced_by_energy_picture(metrics), "balanced accuracy by energy"),
            f"Mean over the classes of the share of correct labels, {LEVEL_TEXT} intervals: independent of how many "
            "events of each class a bin holds. Dashed: random labels.",
        ),
    ]
    note = thin_note(metrics["energy_binned"])
    return Section("fractions", "Fraction error by class and energy", pictures(figures) + note)


def mass_posteriors(evaluated: EvaluatedRun) -> Section:
    """Return the reliability diagram, and the Ne-Nmu plane coloured by the mean logarithmic mass."""
    value = np.exp(evaluated.final) @ LN_MASSES
    limits = (0.0, float(LN_MASSES[-1]))
    return posteriors(evaluated, plane(evaluated, value, "mean posterior ln A (0 proton, 4.03 iron)", limits))


REPORT = CompositionReport()
