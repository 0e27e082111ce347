"""Every task's procedure under the task's name: what the modules of :mod:`stacking.procedures` hold."""

from __future__ import annotations

from operator import attrgetter

from showers.execution.declared import declared
from showers.schema import Task
from stacking import procedures
from stacking.procedure import Procedure
from stacking.procedures.classes import PROCEDURE as ANY_CLASSES


def _found() -> dict[str, Procedure]:
    return declared(procedures, "PROCEDURE", attrgetter("name"))


PROCEDURES: dict[str, Procedure] = _found()
"""By the task's name."""


def procedure_of(task: Task) -> Procedure:
    """Return what stacking does for a task; for classes of the user's own, the most probable one."""
    return PROCEDURES.get(task.name, ANY_CLASSES)
