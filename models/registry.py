"""Every base learner under its name: which class, which inputs, which settings, where it comes from.

``LEARNERS`` holds what the modules of :mod:`models.catalogue` declare, our own learners and the published systems
(``published.*``) among them; a module put beside them is found by itself. :func:`create` makes a learner, :func:`load`
opens a saved one, :func:`listing` shows them all.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from models import catalogue
from models.base import Learner
from models.saving import HEADER_FILE, read_header
from models.spec import LearnerSpec
from showers.execution.suggestions import like
from showers.schema import AGE, COMPOSITION, TASKS, InputError, Task


def spec(name: str) -> LearnerSpec:
    """Return the learner called ``name``.

    Raises
    ------
    InputError
        If there is none; the message names the one that was probably meant, or lists those that exist.
    """
    if name not in LEARNERS:
        near = like(name, LEARNERS)
        if near:
            raise InputError(f"unknown learner {name!r}: did you mean {near}? (python cli.py learners lists them)")
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
    n_rows: int | None = None,
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
    n_rows
        Training rows, where settings depend on their number.
    """
    settings = {**spec.settings_for(preset, n_rows), **(overrides or {})}
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
    """Return name, kind, tasks, inputs, weights (of networks), meaning and source of every learner."""
    return [
        {
            "name": entry.name,
            "kind": entry.kind,
            "tasks": ", ".join(entry.tasks) or "any",
            "inputs": entry.inputs,
            "weights": weights_of(entry),
            "meaning": entry.meaning,
            "source": entry.source,
        }
        for entry in LEARNERS.values()
    ]


def weights_of(entry: LearnerSpec) -> str:
    """Return how many weights a network has in the benchmark's v2 protocol, in words; empty for other learners."""
    # Only who lists the learners waits for torch and the features; whoever asks for a name does not.
    from features.catalogue import CATALOGUE, feature_set
    from models.catalogue.average import LearnerAverage
    from models.networks.learner import NetworkLearner

    task = TASKS[entry.tasks[0]] if entry.tasks else COMPOSITION
    learner = create(entry, task.classes)
    parts = learner.members if isinstance(learner, LearnerAverage) else [learner]
    in_v2 = tuple(name for name in CATALOGUE if name not in (AGE.name, "fit_minus_age"))
    columns = feature_set(entry.features, in_v2) if isinstance(entry.features, str) else entry.features or ()
    counts = [part.count_weights(columns) for part in parts if isinstance(part, NetworkLearner)]
    return f"{sum(counts):,}" if counts else ""


def listing() -> Table:
    """Return all learners as a table to print."""
    table = Table(title="Base learners", row_styles=["", "dim"])
    for name in ("name", "inputs", "weights", "what it is", "source"):
        table.add_column(name, overflow="fold", justify="right" if name == "weights" else "left")
    for row in rows():
        what = row["meaning"] if row["tasks"] == "any" else f"{row['meaning']} ({row['tasks']})"
        table.add_row(row["name"], row["inputs"], row["weights"], what, row["source"])
    return table


def _declared() -> dict[str, LearnerSpec]:
    """Return what the catalogue's modules declare in ``LEARNERS``; names must differ."""
    found: dict[str, LearnerSpec] = {}
    for module in pkgutil.iter_modules(catalogue.__path__, f"{catalogue.__name__}."):
        for entry in getattr(importlib.import_module(module.name), "LEARNERS", ()):
            if entry.name in found:
                raise ValueError(f"{module.name} declares learner {entry.name!r}, which exists already")
            found[entry.name] = entry
    return found


LEARNERS: dict[str, LearnerSpec] = _declared()
"""All learners by name."""
