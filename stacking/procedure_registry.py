"""Every task's procedure under the task's name: what the modules of :mod:`stacking.procedures` hold."""

from __future__ import annotations

import importlib
import pkgutil

from showers.schema import Task
from stacking import procedures
from stacking.procedure import Procedure
from stacking.procedures.classes import PROCEDURE as ANY_CLASSES


def _found() -> dict[str, Procedure]:
    found: dict[str, Procedure] = {}
    for entry in pkgutil.iter_modules(procedures.__path__, f"{procedures.__name__}."):
        procedure = importlib.import_module(entry.name).PROCEDURE
        if procedure.name in found:
            raise ValueError(f"{entry.name} serves task {procedure.name!r}, which another module serves already")
        found[procedure.name] = procedure
    return found


PROCEDURES: dict[str, Procedure] = _found()
"""By the task's name."""


def procedure_of(task: Task) -> Procedure:
    """Return what stacking does for a task; for classes of the user's own, the most probable one."""
    return PROCEDURES.get(task.name, ANY_CLASSES)
