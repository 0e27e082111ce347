"""Any task of classes, such as a table's labels: the most probable class, judged by log-loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from showers.execution.progress import Progress
from showers.schema import Task
from stacking.combine.judges import LogLossJudge
from stacking.procedure import HeldOut, Procedure, SavedRule


class ClassesProcedure(Procedure):
    """Class numbers."""

    name = "classes"
    judge = LogLossJudge()

    def decide(
        self, held_out: HeldOut, run: Path, progress: Progress
    ) -> tuple[dict[str, Any], Mapping[str, SavedRule]]:
        """Take the most probable class: nothing to learn."""
        return {"chosen": "argmax"}, {}

    def labels(self, rule: SavedRule | None, log_proba: np.ndarray) -> np.ndarray:
        """Return (N,) int8 hard labels."""
        return np.argmax(log_proba, axis=1).astype(np.int8)

    def arrays(
        self, rule: SavedRule | None, log_proba: np.ndarray, context: np.ndarray | None
    ) -> dict[str, np.ndarray]:
        """Return ``predictions``: (N,) int8."""
        return {"predictions": self.labels(rule, log_proba)}

    def test_arrays(
        self, rule: SavedRule | None, log_proba: np.ndarray, context: np.ndarray | None
    ) -> dict[str, np.ndarray]:
        """Return ``argmax`` and ``decided``: (N,) int8 each."""
        return {"argmax": np.argmax(log_proba, axis=1).astype(np.int8), "decided": self.labels(rule, log_proba)}

    def answers(
        self, log_proba: np.ndarray, stored: Callable[[str], np.ndarray | None]
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Yield ``argmax``, then ``decided`` where it is there: (N,) int64 each."""
        labels = stored("argmax")
        yield "argmax", log_proba.argmax(axis=1) if labels is None else labels.astype(np.int64)
        decided = stored("decided")
        if decided is not None:
            yield "decided", decided.astype(np.int64)

    def columns(self, arrays: Mapping[str, np.ndarray], task: Task) -> list[pl.Series]:
        """Return the names of the decided classes."""
        return [pl.Series("predicted", [task.classes[k] for k in arrays["predictions"]], dtype=pl.String)]


PROCEDURE = ClassesProcedure()
