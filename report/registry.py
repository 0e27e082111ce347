"""Every task's report under the task's name: what the modules of :mod:`report.tasks` hold."""

from __future__ import annotations

from operator import attrgetter

from report import tasks
from report.target import TargetReport
from report.task import TaskReport
from showers.execution.declared import declared
from showers.schema import InputError, Task


def _found() -> dict[str, TaskReport]:
    return declared(tasks, "REPORT", attrgetter("name"))


REPORTS: dict[str, TaskReport] = _found()
"""By the task's name."""


def report_of(task: Task) -> TaskReport:
    """Return how a task's results are told; a task with a target needs no module for it.

    Raises
    ------
    InputError
        For a task of the user's own.
    """
    if task.name not in REPORTS and task.target:
        return TargetReport(task, task.target)
    if task.name not in REPORTS:
        raise InputError(f"task {task.name!r} has no report: choose one of {', '.join(REPORTS)}")
    return REPORTS[task.name]
