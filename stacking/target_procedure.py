"""What all tasks with a target have in common: the mean of the posterior over the target's bins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl

from scoring.residuals import residual_metrics, resolution
from showers.execution.progress import Progress
from showers.schema import TargetQuantity, Task
from stacking.combine.judges import OrderedJudge
from stacking.decide.posterior_mean import PosteriorMean
from stacking.events import CONTEXT_SCALARS
from stacking.procedure import HeldOut, Procedure, SavedRule


class TargetProcedure(Procedure):
    """Estimates with errors; a task's own class says which task it is."""

    task: ClassVar[Task]
    judge = OrderedJudge()

    def __init_subclass__(cls) -> None:
        """Take the name from the task."""
        cls.name = cls.task.name

    @property
    def target(self) -> TargetQuantity:
        """What is estimated."""
        assert self.task.target is not None
        return self.task.target

    def decide(
        self, held_out: HeldOut, run: Path, progress: Progress
    ) -> tuple[dict[str, Any], Mapping[str, SavedRule]]:
        """Take bins from the training events, and the scale of the errors from held-out ones."""
        assert held_out.training is not None
        assert held_out.offsets is not None
        rule = PosteriorMean.of(held_out.training.offsets, held_out.training.labels, self.task.n_classes)
        estimate, error = rule(held_out.systems[held_out.shipped])
        record: dict[str, Any] = {"chosen": "posterior mean"}
        record["held_out"] = residual_metrics(estimate - held_out.offsets)
        record["held_out_in_widths"] = residual_metrics((estimate - held_out.offsets) / np.maximum(error, 1e-12))
        rules = {name: self._scaled(rule, z, held_out.offsets) for name, z in held_out.systems.items()}
        return record, rules

    def _scaled(self, rule: PosteriorMean, log_proba: np.ndarray, offsets: np.ndarray) -> PosteriorMean:
        """Return the rule whose errors hold 68 % of the held-out events."""
        estimate, error = rule(log_proba)
        return replace(rule, scale=resolution((estimate - offsets) / np.maximum(error, 1e-12)))

    def rule_from_json(self, content: Mapping[str, Any]) -> PosteriorMean:
        """Read means and variances."""
        return PosteriorMean.from_json(content)

    def arrays(
        self, rule: SavedRule | None, log_proba: np.ndarray, context: np.ndarray | None
    ) -> dict[str, np.ndarray]:
        """Return estimates and errors: (N,) float64 each."""
        assert isinstance(rule, PosteriorMean)
        estimate, error = rule(log_proba)
        if self.target.reference is not None:
            assert context is not None
            estimate = estimate + context[:, CONTEXT_SCALARS.index(self.target.reference)]
        return {self.target.name: estimate, f"{self.target.name}_error": error}

    def answers(
        self, log_proba: np.ndarray, stored: Callable[[str], np.ndarray | None]
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the estimates as rule ``estimate``."""
        estimate = stored(self.target.name)
        if estimate is not None:
            yield "estimate", estimate

    def columns(self, arrays: Mapping[str, np.ndarray], task: Task) -> list[pl.Series]:
        """Return estimates and errors."""
        return [pl.Series(name, values) for name, values in arrays.items()]
