"""Predictions for tasks of classes, the most probable one, and :func:`stacking_of`, which finds any task's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from showerstack.runtime.code import plugins
from showerstack.showers.schema import Task
from showerstack.stacking import decide
from showerstack.stacking.decide.base import DecisionSample, SavedRule, TaskStacking


class ClassesStacking(TaskStacking):
    """Class numbers."""

    name = "classes"

    def decide(self, held_out: DecisionSample, run: Path) -> tuple[dict[str, Any], Mapping[str, SavedRule]]:
        """Take the most probable class: nothing to learn."""
        return {"chosen": "argmax"}, {}

    def arrays(
        self, rule: SavedRule | None, log_proba: np.ndarray, context: np.ndarray | None
    ) -> dict[str, np.ndarray]:
        """Return ``predictions``: (N,) int8, the most probable class."""
        return {"predictions": np.argmax(log_proba, axis=1).astype(np.int8)}

    def answers(
        self, log_proba: np.ndarray, stored: Callable[[str], np.ndarray | None]
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the most probable class as rule ``argmax``: (N,) int64."""
        yield "argmax", log_proba.argmax(axis=1)

    def columns(self, arrays: Mapping[str, np.ndarray], task: Task) -> list[pl.Series]:
        """Return nothing: the most probable class stands in every table."""
        return []


STACKING = ClassesStacking()


@cache
def task_stackings() -> dict[str, TaskStacking]:
    """Return what stacking does for each task, by the task's name: ``STACKING`` of the modules in this folder."""
    return plugins(decide, "STACKING", attrgetter("name"))


def stacking_of(task: Task) -> TaskStacking:
    """Return what stacking does for a task; for classes of the user's own, the most probable one."""
    return task_stackings().get(task.name, STACKING)
