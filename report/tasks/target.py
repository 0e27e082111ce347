"""The report of any task with a target, bias and resolution against the truth, and :func:`report_of` for any task.

No task with a target needs a file of its own. :func:`task_reports` collects what the modules of
:mod:`showerstack.report.tasks` declare.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from showerstack.report import tasks
from showerstack.report.pictures.style import as_svg
from showerstack.report.pictures.tasks import by_bin_picture, residual_picture
from showerstack.report.shared.markup import Section, picture, pictures
from showerstack.report.shared.text import mcnemar_table, table, with_interval
from showerstack.report.tasks.base import Named, Part, Quantity, TaskReport
from showerstack.runtime.code import plugins
from showerstack.runtime.errors import InputError
from showerstack.scoring.metrics.level import LEVEL_TEXT
from showerstack.scoring.metrics.paired import mcnemar
from showerstack.scoring.metrics.residuals import bias_interval
from showerstack.showers.schema import TargetQuantity, Task

if TYPE_CHECKING:
    from showerstack.report.shared.subject import EvaluatedRun

MEASURES = ("bias", "resolution", "rms")


class TargetReport(TaskReport):
    """Estimates of a quantity."""

    metric_words = "resolution, half the width of the central 68 %"
    metric_column = "resolution"
    meaning = (
        "Resolution: half the width of the central 68 % of estimated minus true values; 0 is perfect. Bias: their mean."
    )

    def __init__(self, task: Task, target: TargetQuantity) -> None:
        self.task, self.target = task, target

    @property
    def name(self) -> str:  # type: ignore[override]
        """The task's."""
        return self.task.name

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

    def headline(self, metrics: dict[str, Any]) -> tuple[str, str, str]:
        """Return the resolution."""
        span = metrics["intervals"]["resolution"]
        remark = f"{span['low']:.4f} to {span['high']:.4f}"
        if "reconstruction" in metrics:
            remark += f"; reconstructed {self.target.reference}: {metrics['reconstruction']['resolution']:.4f}"
        return f"resolution in {self.target.unit} (lower is better)", f"{metrics['resolution']:.4f}", remark

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

    @property
    def sections(self) -> list[Part]:
        """Bias and resolution by true value."""
        return [against_truth]


def _measures(content: dict[str, Any]) -> list[str]:
    return [with_interval(content[name], content.get("intervals", {}).get(name), ".4f") for name in MEASURES]


def against_truth(evaluated: EvaluatedRun) -> Section:
    """Return bias and resolution by true value, and the plane of residuals."""
    target = evaluated.task.target
    assert target is not None
    label = f"true {target.unit}"
    figures = [
        picture(
            as_svg(by_bin_picture(evaluated.metrics["true_binned"], name, label), f"{name} by true value"),
            f"{name.capitalize()} of what ships by true value, {LEVEL_TEXT} intervals; events of each bin above it. In "
            "bins of the truth estimates lean towards where most events are.",
        )
        for name in ("bias", "resolution")
    ]
    drawn = residual_picture(evaluated.labels, evaluated.output, target.unit)
    figures.append(picture(as_svg(drawn, "residuals"), "Estimate minus truth of every test shower."))
    return Section("truth", "Estimates against the truth", pictures(figures))


@cache
def task_reports() -> dict[str, TaskReport]:
    """Return every task's report by the task's name: ``REPORT`` of the modules in :mod:`showerstack.report.tasks`."""
    return plugins(tasks, "REPORT", attrgetter("name"))


def report_of(task: Task) -> TaskReport:
    """Return the report of a task's results; a task with a target needs no module for it.

    Raises
    ------
    InputError
        For a task of the user's own.
    """
    if task.name not in task_reports() and task.target:
        return TargetReport(task, task.target)
    if task.name not in task_reports():
        raise InputError(f"task {task.name!r} has no report: choose one of {', '.join(task_reports())}")
    return task_reports()[task.name]


def summarise(metrics: dict[str, Any], task: Task) -> Iterator[RenderableType]:
    """Yield what ``verify.py`` prints: the headline, then tables, then warnings."""
    yield from report_of(task).summary(metrics)
    for note in metrics["warnings"]:
        yield Text(f"warning: {note}", style="yellow")
