"""Every base learner under its name: which class, which inputs, which settings, where it comes from.

``LEARNERS`` holds our own and the published systems (``published.*``); :func:`create` makes one, :func:`load` opens a
saved one, :func:`listing` shows them all.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from models.base import Learner
from models.saving import HEADER_FILE, read_header
from showers.schema import InputError, Task

PRESETS = ("quick", "good", "best")


@dataclass(frozen=True)
class LearnerSpec:
    """One learner of the registry."""

    name: str
    learner: str
    """Where the class is: ``module:Class``."""
    meaning: str
    """What it is, in a line."""
    features: str | tuple[str, ...] | None
    """Named feature set or columns of its table; None for no table."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What differs from the class's defaults."""
    quick: Mapping[str, Any] = field(default_factory=dict)
    """What differs further in the preset that has to be done in minutes."""
    best: Mapping[str, Any] = field(default_factory=dict)
    """What differs further in the preset that may take its time."""
    needs_grid: bool = False
    tasks: tuple[str, ...] = ()
    """Tasks it serves; empty for any."""
    source: str = "showerstack"
    """Publication or library."""

    @property
    def kind(self) -> str:
        """Family: the module's last name."""
        return self.learner.partition(":")[0].removeprefix("models.").removeprefix("networks.")

    @property
    def inputs(self) -> str:
        """What it needs, in words."""
        table = self.features if isinstance(self.features, str | None) else f"{len(self.features)} columns"
        parts = [f"table ({table})"] if table else []
        return " + ".join(parts + (["grid, scalars"] if self.needs_grid else []))

    def settings_for(self, preset: str = "good") -> dict[str, Any]:
        """Return the settings of a preset (``quick``, ``good`` or ``best``)."""
        if preset not in PRESETS:
            raise InputError(f"unknown preset {preset!r}: choose one of {', '.join(PRESETS)}")
        changes = {"quick": self.quick, "best": self.best}.get(preset, {})
        return {**self.settings, **changes}


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


_OURS = (
    LearnerSpec(
        "lightgbm",
        "models.lightgbm:LightGBM",
        "boosted trees, slow and shallow",
        "fits+profile",
        quick={"learning_rate": 0.08, "rounds": 500, "patience": 25, "max_bin": 127},
        best={"learning_rate": 0.02, "rounds": 5000, "patience": 120},
        source="LightGBM",
    ),
    LearnerSpec(
        "xgboost",
        "models.xgboost:XGBoost",
        "boosted trees on quantile bins",
        "fits+profile",
        quick={"learning_rate": 0.1, "rounds": 400, "patience": 25, "max_bin": 128},
        best={"learning_rate": 0.025, "rounds": 5000, "patience": 120},
        source="XGBoost",
    ),
    LearnerSpec(
        "catboost",
        "models.catboost:CatBoost",
        "boosted symmetric trees",
        "fits+profile",
        quick={"learning_rate": 0.15, "rounds": 400, "patience": 25, "border_count": 64},
        best={"learning_rate": 0.03, "rounds": 5000, "patience": 120},
        source="CatBoost",
    ),
    LearnerSpec(
        "random_forest",
        "models.forest:RandomForest",
        "bagged trees with smoothed leaves",
        "fits+profile",
        quick={"trees": 200, "min_samples_leaf": 10},
        best={"trees": 1000},
        source="scikit-learn",
    ),
    LearnerSpec(
        "mlp",
        "models.networks.tabular:TabularMLP",
        "residual MLP on features",
        "fits+profile",
        quick={"epochs": 40, "patience": 8},
    ),
    LearnerSpec(
        "lenet",
        "models.networks.lenet:LeNetLearner",
        "LeNet on log1p grids with 8 symmetries",
        None,
        quick={"epochs": 12},
        needs_grid=True,
        source="JINST 19 (2024) P01025",
    ),
)

LEARNERS: dict[str, LearnerSpec] = {entry.name: entry for entry in _OURS}
"""All learners by name."""
