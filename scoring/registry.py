"""Every task's scoring under its name: what the modules of :mod:`scoring.tasks` hold."""

from __future__ import annotations

from operator import attrgetter

from scoring import tasks
from scoring.metric import ERROR_RATE, Metric
from scoring.task import TaskScoring
from showers.execution.declared import declared
from showers.schema import InputError, Task


def _found() -> dict[str, TaskScoring]:
    return declared(tasks, "SCORING", attrgetter("task.name"))


SCORINGS: dict[str, TaskScoring] = _found()
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
