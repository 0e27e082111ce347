"""Gamma/hadron separation: scores, and thresholds on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from showerstack.runtime.context import Progress
from showerstack.runtime.files import write_npz
from showerstack.showers.schema import GAMMA, Task
from showerstack.stacking.decide.base import DecisionSample, SavedRule, TaskStacking
from showerstack.stacking.meta.scorers import GammaScorer, gamma_scores, threshold_table

SCORES_FILE = "held_out_scores.npz"
"""Labels, scores and, where there are any, groups and importance weights of the events that what ships is scored on."""


class GammaStacking(TaskStacking):
    """Scores, higher = more gamma-like."""

    name = GAMMA.name
    scorer = GammaScorer()

    def decide(
        self, held_out: DecisionSample, run: Path, progress: Progress
    ) -> tuple[dict[str, Any], Mapping[str, SavedRule]]:
        """Make the table of thresholds and keep the scores, for thresholds of the user's own."""
        scores = gamma_scores(held_out.systems[held_out.shipped])
        groups, weights = held_out.groups, held_out.weights
        optional = {"groups": groups, "weights": weights}
        beside = {name: values for name, values in optional.items() if values is not None}
        write_npz(run / "meta" / SCORES_FILE, labels=held_out.labels.astype(np.int8), scores=scores, **beside)
        return {"thresholds": threshold_table(held_out.labels, scores, groups=groups, weights=weights)}, {}

    def arrays(
        self, rule: SavedRule | None, log_proba: np.ndarray, context: np.ndarray | None
    ) -> dict[str, np.ndarray]:
        """Return ``gamma_scores``: (N,) float64."""
        return {"gamma_scores": gamma_scores(log_proba)}

    def test_arrays(
        self, rule: SavedRule | None, log_proba: np.ndarray, context: np.ndarray | None
    ) -> dict[str, np.ndarray]:
        """Return ``scores``: (N,) float64."""
        return {"scores": gamma_scores(log_proba)}

    def answers(
        self, log_proba: np.ndarray, stored: Callable[[str], np.ndarray | None]
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the scores as rule ``score``: (N,) float64."""
        scores = stored("scores")
        yield "score", log_proba[:, 0] - log_proba[:, 1] if scores is None else scores

    def columns(self, arrays: Mapping[str, np.ndarray], task: Task) -> list[pl.Series]:
        """Return the scores."""
        return [pl.Series("gamma_score", arrays["gamma_scores"])]


STACKING = GammaStacking()
