"""Metrics of any two or more classes, with intervals: accuracy, log-loss, area under the ROC curve, Q-factor, bins.

They serve tables of any origin, and describe gamma/hadron separation in other terms than the benchmark's hadron
survival: Q-factor, efficiency at a fixed survival, bins at one threshold, thresholds with what survives them.

The gamma score is the float64 logit of the gamma posterior plus one half: strictly monotone, never saturated
(probabilities near one tie, and tied hadrons survive), and a score of 0.5 means p = 0.5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from showerstack.scoring.metrics.bins import ENERGY_BINS, ZENITH_BINS, Bin
from showerstack.scoring.metrics.gamma import (
    GAMMA,
    HADRON,
    KEY_EFFICIENCY,
    area_under_curve,
    hadron_survival,
)
from showerstack.scoring.metrics.intervals import (
    Estimate,
    Interval,
    clopper_pearson,
    linearised,
    share_interval,
    survival_interval,
    within,
)
from showerstack.scoring.metrics.level import standard_errors
from showerstack.scoring.metrics.losses import error_of_mean, event_losses

TABLE_EFFICIENCIES = (0.25, 0.50, 0.60, 0.75, 0.90, 0.95, 0.99)
REAL_RATIOS = (1e-4, 1e-5, 1e-6)
"""Gammas per hadron that a telescope of cosmic rays may meet."""
SCORE_OF_HALF = 0.5
"""Score of an event of probability one half."""


def table_metrics(
    labels: np.ndarray, log_proba: np.ndarray, classes: tuple[str, ...], weights: np.ndarray | None = None
) -> dict[str, Any]:
    """Return accuracy, log-loss and AUC, each with its confidence interval.

    Parameters
    ----------
    labels
        (N,) class numbers.
    log_proba
        (N, C) log-probabilities of rows that no fit learned from.
    classes
        Names. With two, the AUC is that of the second against the first; with more, the mean of one against the rest.
    weights
        (N,) of the rows, or None; the confusion counts rows.
    """
    loss = event_losses(log_proba, labels)
    predicted = np.argmax(log_proba, axis=1)
    right = share_interval(predicted == labels, weights=weights)
    counts = np.bincount(labels, minlength=len(classes))
    # A class without a row, or with all of them, has no such area.
    columns = [k for k in ([1] if len(classes) == 2 else range(len(classes))) if 0 < counts[k] < len(labels)]
    areas = [area_under_curve(labels == k, log_proba[:, k], weights) for k in columns]
    area = float(np.mean([value for value, _ in areas])) if areas else float("nan")
    # One-against-rest areas share their events; adding their errors as if fully correlated is the safe bound.
    error = float(np.mean([e for _, e in areas])) if areas else float("nan")
    return {
        "accuracy": _entry(float(np.average(predicted == labels, weights=weights)), right.low, right.high),
        "log_loss": _positive(float(np.average(loss, weights=weights)), error_of_mean(linearised(loss, weights))),
        "auc": _normal(area, error, 0.0, 1.0),
        "auc_by_class": {classes[k]: _normal(value, e, 0.0, 1.0) for k, (value, e) in zip(columns, areas, strict=True)},
        "confusion": np.histogram2d(labels, predicted, [np.arange(len(classes) + 1) - 0.5] * 2)[0].astype(int).tolist(),
    }


def _normal(value: float, error: float, low: float = -np.inf, high: float = np.inf) -> dict[str, float]:
    half = standard_errors() * error
    return _entry(value, max(low, value - half), min(high, value + half))


def _positive(value: float, error: float) -> dict[str, float]:
    """Return a mean of losses, none of which is negative: normal in its logarithm, which few rows cover better too."""
    factor = np.exp(standard_errors() * error / value) if value > 0 else 1.0
    return _entry(value, float(value / factor), float(value * factor))


def _entry(value: float, low: float, high: float) -> dict[str, float]:
    return {"value": value, "low": low, "high": high}


def q_factor(
    labels: np.ndarray, scores: np.ndarray, efficiency: float = KEY_EFFICIENCY, weights: np.ndarray | None = None
) -> Estimate:
    """Return gamma efficiency over the root of the hadron survival: the gain in significance over no separation.

    Without a surviving hadron the value is that of half a hadron; the interval is the survival's, carried over.

    Parameters
    ----------
    labels
        (N,) 0 gamma, 1 hadron.
    scores
        (N,) higher = more gamma-like.
    weights
        (N,) importance weights, or None.
    """
    result = hadron_survival(labels, scores, efficiency, weights)
    span = survival_interval(labels, scores, efficiency, weights=weights)
    least = 0.5 / result.n_hadron if result.weights is None else 0.5 * result.weights.scale / result.weights.total
    low, high = (result.gamma_efficiency / math.sqrt(max(share, least)) for share in (span.high, span.low))
    value = result.gamma_efficiency / math.sqrt(max(result.hadron_survival, least))
    return Estimate(value, Interval(low, high, is_limit=span.is_limit))


def efficiency_at_survival(
    labels: np.ndarray, scores: np.ndarray, survival: float, weights: np.ndarray | None = None
) -> Estimate:
    """Return the share of gammas kept by the threshold that lets at most a share of the hadrons survive.

    The interval is binomial in the gammas; the threshold is taken as it is. With importance weights (N,) both shares
    are those of weights.
    """
    if weights is not None:
        hadron, gamma = labels == HADRON, labels == GAMMA
        order = np.argsort(-scores[hadron], kind="stable")
        reached = np.cumsum(weights[hadron][order])
        place = min(int(np.searchsorted(reached, survival * reached[-1], side="right")), len(order) - 1)
        passed, own = scores[gamma] > scores[hadron][order[place]], weights[gamma]
        return Estimate(float(np.average(passed, weights=own)), share_interval(passed, weights=own))
    hadrons, gammas = scores[labels == HADRON], scores[labels == GAMMA]
    allowed = int(survival * len(hadrons))
    above = np.partition(hadrons, len(hadrons) - allowed - 1)[len(hadrons) - allowed - 1]
    kept = int(np.count_nonzero(gammas > above))
    return Estimate(kept / len(gammas), clopper_pearson(kept, len(gammas)))


@dataclass(frozen=True)
class BinAtThreshold:
    """One bin of energy or zenith at the threshold of the whole test set."""

    name: str
    n_gamma: int
    n_kept: int
    """Gammas at or above the threshold."""
    n_hadron: int
    n_surviving: int
    survival: float
    """Share of hadrons at or above the threshold, of their weights where they have any; 0 without a hadron."""


def bins_at_threshold(
    labels: np.ndarray,
    scores: np.ndarray,
    threshold: float,
    *,
    energy: np.ndarray,
    zenith_deg: np.ndarray,
    weights: np.ndarray | None = None,
) -> dict[str, list[BinAtThreshold]]:
    """Return counts in each bin of ``energy`` and ``zenith`` at one threshold for all, as an analysis would cut."""

    def counted(bins: Sequence[Bin], values: np.ndarray) -> list[BinAtThreshold]:
        passed, gamma = scores >= threshold, labels == GAMMA
        rows = []
        for one in bins:
            inside = one.holds(values)
            g, h = inside & gamma, inside & ~gamma
            n_gamma, n_kept, n_hadron, n_left = (int(np.count_nonzero(mask)) for mask in (g, g & passed, h, h & passed))
            total, left = (float(mask.sum() if weights is None else weights[mask].sum()) for mask in (h, h & passed))
            survival = left / total if total else 0.0
            rows.append(BinAtThreshold(one.name, n_gamma, n_kept, n_hadron, n_left, survival))
        return [row for row in rows if row.n_gamma + row.n_hadron]

    return {"energy": counted(ENERGY_BINS, energy), "zenith": counted(ZENITH_BINS, zenith_deg)}


def balanced_accuracy(matrix: np.ndarray) -> Estimate:
    """Return the mean recall of the classes, and its interval from binomial variances.

    Parameters
    ----------
    matrix
        (C, C) counts, row = true class; every class needs an event.
    """
    totals = matrix.sum(axis=1)
    recall = np.diag(matrix) / totals
    # A recall of 0 or 1 seen in few events is not certain: one event is added on either side.
    spread = (np.diag(matrix) + 1) / (totals + 2)
    error = float(np.sqrt((spread * (1 - spread) / totals).sum()) / len(matrix))
    value = float(recall.mean())
    return within(value, error)


def gamma_scores(log_proba: np.ndarray) -> np.ndarray:
    """Return ``logit(p_gamma) + 0.5``, (N,) float64, from (N, 2) log-probabilities (gamma, hadron)."""
    return np.asarray(log_proba[:, GAMMA] - log_proba[:, HADRON] + SCORE_OF_HALF, dtype=np.float64)


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
