"""Every base learner under its name: which class, which inputs, which settings, where it comes from.

``LEARNERS`` holds our own and the published systems (``published.*``); :func:`create` makes one, :func:`load` opens a
saved one, :func:`listing` shows them all.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from models.base import Learner
from models.ours import OURS
from models.published import PUBLISHED
from models.saving import HEADER_FILE, read_header
from models.spec import LearnerSpec
from showers.schema import InputError, Task


def spec(name: str) -> LearnerSpec:
    """Return the learner called ``name``.

    Raises
    ------
    InputError
        If there is none; the message lists those that exist.
    """
    if name not in LEARNERS:
        raise InputError(f"unknown learner {name!r}: choose from {', '.join(LEARNERS)}")
    return LEARNERS[name]


def learner_class(path: str) -> type[Learner]:
    """Return the class at ``module:Class``, which must be one of the registry's."""
    module, _, name = path.partition(":")
    found: type[Learner] = getattr(importlib.import_module(module), name)
    return found


def create(
    spec: LearnerSpec,
    classes: tuple[str, ...],
    *,
    threads: int = 1,
    overrides: Mapping[str, Any] | None = None,
    preset: str = "good",
) -> Learner:
    """Return an untrained learner.

    Parameters
    ----------
    spec
        Registered learner, as :func:`spec` returns it.
    classes
        Class names in label order.
    threads
        Numerical threads it may use.
    overrides
        Settings that replace the registered ones.
    preset
        Which registered settings.
    """
    settings = {**spec.settings_for(preset), **(overrides or {})}
    return learner_class(spec.learner)(classes, settings, threads=threads)


def load(folder: Path, *, classes: tuple[str, ...] | None = None) -> Learner:
    """Open a saved learner of any registered class.

    Parameters
    ----------
    folder
        Where it was saved.
    classes
        Class names it must have, in this order; None for any.

    Raises
    ------
    InputError
        If the folder holds no complete learner, one of an unknown class, or one for other classes.
    """
    header = read_header(Path(folder))
    paths = {path.partition(":")[2]: path for path in (entry.learner for entry in LEARNERS.values())}
    name = header["learner"]
    if name not in paths:
        raise InputError(f"{Path(folder) / HEADER_FILE} names learner {name!r}; known are {', '.join(sorted(paths))}")
    found = tuple(header["classes"])
    if classes is not None and found != tuple(classes):
        raise InputError(f"{folder} was trained for classes {', '.join(found)}, expected {', '.join(classes)}")
    return learner_class(paths[name]).load(Path(folder))


def fitting(task: Task) -> tuple[LearnerSpec, ...]:
    """Return the learners that serve a task."""
    return tuple(entry for entry in LEARNERS.values() if not entry.tasks or task.name in entry.tasks)


def rows() -> list[dict[str, str]]:
    """Return name, kind, inputs, tasks, meaning and source of every learner."""
    return [
        {
            "name": entry.name,
            "kind": entry.kind,
            "inputs": entry.inputs,
            "tasks": ", ".join(entry.tasks) or "any",
            "meaning": entry.meaning,
            "source": entry.source,
        }
        for entry in LEARNERS.values()
    ]


def listing() -> Table:
    """Return all learners as a table to print."""
    table = Table(title="Base learners", row_styles=["", "dim"])
    content = rows()
    for name in content[0]:
        table.add_column(name, overflow="fold")
    for row in content:
        table.add_row(*row.values())
    return table


LEARNERS: dict[str, LearnerSpec] = {entry.name: entry for entry in (*OURS, *PUBLISHED)}
"""All learners by name."""
