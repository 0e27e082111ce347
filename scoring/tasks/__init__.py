"""Tasks, one a module: labels or scores, metric and loss, headline and tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from showerstack.runtime.errors import InputError
from showerstack.scoring.tasks.base import ERROR_RATE, Metric, TaskScoring
from showerstack.showers.schema import COMPOSITION, GAMMA, TASKS, Task


def scoring_of(task: Task) -> TaskScoring:
    """Return how a task is scored; the modules of other tasks are not imported."""
    if task.target is not None:
        from showerstack.scoring.tasks.target import TargetScoring

        return TargetScoring(task)
    if task.name == COMPOSITION.name:
        from showerstack.scoring.tasks.composition import CompositionScoring

        return CompositionScoring(task)
    if task == GAMMA:
        from showerstack.scoring.tasks.gamma import GammaScoring

        return GammaScoring()
    raise InputError(f"task {task.name!r} has no public metric: choose one of {', '.join(TASKS)}")


def metric_for(task: Task) -> Metric:
    """Return the metric of a task; the error rate of hard labels for any task of the user's own."""
    return scoring_of(task).metric if task.name in TASKS else ERROR_RATE


def summarise(metrics: dict[str, Any], task: Task) -> Iterator[RenderableType]:
    """Yield what ``verify.py`` prints: the headline, then tables, then warnings."""
    yield from scoring_of(task).summary(metrics)
    for warning in metrics["warnings"]:
        yield Text(f"warning: {warning}", style="yellow")
