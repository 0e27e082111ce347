"""Tasks, one a module: labels or scores, metric and loss, headline and tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from showerstack.runtime.errors import InputError
from showerstack.scoring.tasks.base import ERROR_RATE, Metric, TaskScoring
from showerstack.scoring.tasks.composition import CompositionScoring
from showerstack.scoring.tasks.gamma import GammaScoring
from showerstack.scoring.tasks.target import TargetScoring
from showerstack.showers.schema import COMPOSITION, ENERGY, GAMMA, Task

SCORINGS: dict[str, TaskScoring] = {
    COMPOSITION.name: CompositionScoring(),
    GAMMA.name: GammaScoring(),
    ENERGY.name: TargetScoring(ENERGY, (14.0, 14.5, 14.75, 15.0, 15.25, 15.5, 15.75, 16.0, 16.5, 17.0, 18.0)),
}
"""By the task's name."""


def scoring_of(task: Task) -> TaskScoring:
    """Return how a task is scored.

    Raises
    ------
    InputError
        For a task of the user's own, which nothing here scores.
    """
    if task.name not in SCORINGS:
        raise InputError(f"task {task.name!r} has no public metric: choose one of {', '.join(SCORINGS)}")
    return SCORINGS[task.name]


def metric_for(task: Task) -> Metric:
    """Return the metric of a task; the error rate of hard labels for any task of the user's own."""
    return SCORINGS[task.name].metric if task.name in SCORINGS else ERROR_RATE


def summarise(metrics: dict[str, Any], task: Task) -> Iterator[RenderableType]:
    """Yield what ``verify.py`` prints: the headline, then tables, then warnings."""
    yield from scoring_of(task).summary(metrics)
    for note in metrics["warnings"]:
        yield Text(f"warning: {note}", style="yellow")
