"""Gamma/hadron separation: scores, and thresholds on them.

The gamma score is the float64 logit of the gamma posterior plus one half: strictly monotone, never saturated
(probabilities near one tie, and tied hadrons survive), and a score of 0.5 means p = 0.5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from showerstack.runtime.files import write_npz
from showerstack.scoring.metrics.gamma import GAMMA as GAMMA_CLASS
from showerstack.scoring.metrics.gamma import HADRON, hadron_survival
from showerstack.scoring.metrics.intervals import Interval, share_interval
from showerstack.showers.schema import Task
from showerstack.stacking.answers import DecisionSample, SavedRule, TaskStacking

SCORES_FILE = "held_out_scores.npz"
"""Labels, scores and, where there are any, groups and importance weights of the events that what ships is scored on."""


TABLE_EFFICIENCIES = (0.25, 0.50, 0.60, 0.75, 0.90, 0.95, 0.99)
REAL_RATIOS = (1e-4, 1e-5, 1e-6)
"""Gammas per hadron that a telescope of cosmic rays may meet."""
SCORE_OF_HALF = 0.5
"""Score of an event of probability one half."""


def gamma_scores(log_proba: np.ndarray) -> np.ndarray:
    """Return ``logit(p_gamma) + 0.5``, (N,) float64, from (N, 2) log-probabilities (gamma, hadron)."""
    return np.asarray(log_proba[:, GAMMA_CLASS] - log_proba[:, HADRON] + SCORE_OF_HALF, dtype=np.float64)


def threshold_table(
    labels: np.ndarray,
    scores: np.ndarray,
    efficiencies: tuple[float, ...] = TABLE_EFFICIENCIES,
    ratios: tuple[float, ...] = REAL_RATIOS,
    groups: np.ndarray | None = None,
    weights: np.ndarray | None = None,
) -> list[dict[str, Any]]:
    """Return thresholds for chosen gamma efficiencies, with what survives them and the purity to expect.

    Parameters
    ----------
    labels
        (N,) 0 gamma, 1 hadron: held-out events that pass the evaluation cuts.
    scores
        (N,) gamma scores of the same events.
    efficiencies
        Wanted shares of gammas.
    ratios
        Gammas per hadron among the events that will be selected from.
    groups
        (N,) or None: events of one value are one observation; see
        :func:`showerstack.scoring.metrics.intervals.share_interval`.
    weights
        (N,) importance weights, or None.

    Returns
    -------
    One row per efficiency: threshold, gamma efficiency and hadron survival with their Clopper-Pearson
    intervals, with weights how well the survival is determined (where it is not quoted the interval ends at the upper
    limit), and per ratio r the expected purity ``e r / (e r + s)`` with the interval that follows from that of
    the survival s.
    """
    table, of_class = [], (labels == 0, labels == 1)
    for efficiency in efficiencies:
        result = hadron_survival(labels, scores, efficiency, weights)
        kept = scores >= result.threshold
        gammas, left = (
            share_interval(
                kept[c], None if groups is None else groups[c], weights=None if weights is None else weights[c]
            )
            for c in of_class
        )
        more = {}
        if result.weights is not None:
            more = result.weights.as_dict()
            if not result.weights.quoted:
                left = Interval(0.0, result.weights.limit(), is_limit=True)
        survival = result.hadron_survival
        table.append(
            {
                "efficiency": efficiency,
                "threshold": result.threshold,
                "gamma_efficiency": result.gamma_efficiency,
                "gamma_efficiency_interval": _as_list(gammas),
                "hadron_survival": survival,
                "hadron_survival_interval": _as_list(left),
                "n_surviving": result.n_surviving,
                **more,
                "purity": {
                    f"{ratio:g}": {
                        "purity": _purity(result.gamma_efficiency, survival, ratio),
                        "interval": [
                            _purity(result.gamma_efficiency, left.high, ratio),
                            _purity(result.gamma_efficiency, left.low, ratio),
                        ],
                    }
                    for ratio in ratios
                },
            }
        )
    return table


def _purity(efficiency: float, survival: float, ratio: float) -> float:
    selected = efficiency * ratio
    return selected / (selected + survival) if selected + survival > 0 else 0.0


def _as_list(interval: Interval) -> list[float]:
    return [interval.low, interval.high]


class GammaStacking(TaskStacking):
    """Scores, higher = more gamma-like."""

    survival = True

    def decide(self, held_out: DecisionSample, run: Path) -> tuple[dict[str, Any], Mapping[str, SavedRule]]:
        """Make the table of thresholds and keep the scores, for thresholds of the user's own."""
        scores, sample = gamma_scores(held_out.systems[held_out.shipped]), held_out.sample
        optional = (("groups", sample.groups), ("weights", sample.weights))
        beside = {name: values for name, values in optional if values is not None}
        write_npz(run / "meta" / SCORES_FILE, labels=sample.labels.astype(np.int8), scores=scores, **beside)
        return {"thresholds": threshold_table(sample.labels, scores, groups=sample.groups, weights=sample.weights)}, {}

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
