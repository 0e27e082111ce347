"""Metrics that the benchmark does not define, with intervals.

Any classes, also of tables: accuracy, log-loss, area under the ROC curve, balanced accuracy. Gamma/hadron separation:
Q-factor, efficiency at a fixed survival, bins at one threshold, thresholds with what survives them.

The gamma score is the float64 logit of the gamma posterior plus one half: strictly monotone, never saturated
(probabilities near one tie, and tied hadrons survive), and a score of 0.5 means p = 0.5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from showerstack.scoring.metrics.bins import BENCHMARK, Bin, MetricBins
from showerstack.scoring.metrics.gamma import (
    GAMMA_CLASS,
    HADRON,
    KEY_EFFICIENCY,
    area_under_curve,
    hadron_survival,
)
from showerstack.scoring.metrics.intervals import (
    Estimate,
    Interval,
    grouped_error,
    linearised,
    share_estimate,
    share_interval,
    student_half_width,
)
from showerstack.scoring.metrics.level import standard_errors
from showerstack.scoring.metrics.losses import error_of_mean, event_losses
from showerstack.scoring.metrics.survival_bootstrap import survival_interval

TABLE_EFFICIENCIES = (0.25, 0.50, 0.60, 0.75, 0.90, 0.95, 0.99)
REAL_RATIOS = (1e-4, 1e-5, 1e-6)
"""Gammas per hadron that a telescope of cosmic rays may meet."""
SCORE_OF_HALF = 0.5
"""Score of an event of probability one half."""


def table_metrics(
    labels: np.ndarray,
    log_proba: np.ndarray,
    classes: tuple[str, ...],
    weights: np.ndarray | None = None,
    groups: np.ndarray | None = None,
) -> dict[str, Any]:
    """Return accuracy, log-loss and AUC, each with its confidence interval.

    What the rows do not determine is None: the AUC of rows of one class, an interval of rows of one group.

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
    groups
        (N,) or None: rows of one value are one observation.
    """
    losses = event_losses(log_proba, labels)
    predicted = np.argmax(log_proba, axis=1)
    hits = predicted == labels
    counts = np.bincount(labels, minlength=len(classes))
    # A class without a row, or with all of them, has no such area.
    columns = [k for k in ([1] if len(classes) == 2 else range(len(classes))) if 0 < counts[k] < len(labels)]
    areas = {k: area_under_curve(labels == k, log_proba[:, k], weights, groups) for k in columns}
    # One-against-rest areas share their events; adding their errors as if fully correlated is the safe bound.
    area, error = (float(np.mean(each)) for each in zip(*areas.values(), strict=True)) if areas else (None, None)
    n_groups = None if groups is None else len(np.unique(groups))
    hit = share_interval(hits, groups, weights=weights)
    return {
        "accuracy": _entry(Estimate(float(np.average(hits, weights=weights)), hit)),
        "log_loss": _mean_loss(losses, weights, groups),
        "auc": _area(area, error, n_groups),
        "auc_by_class": {classes[k]: _area(*areas[k], n_groups) for k in columns},
        "confusion": np.histogram2d(labels, predicted, [np.arange(len(classes) + 1) - 0.5] * 2)[0].astype(int).tolist(),
    }


def _mean_loss(losses: np.ndarray, weights: np.ndarray | None, groups: np.ndarray | None) -> dict[str, float | None]:
    """Return a mean of losses, none of which is negative: normal in its logarithm, which few rows cover better too."""
    value, moved = float(np.average(losses, weights=weights)), linearised(losses, weights)
    n_groups = None if groups is None else len(np.unique(groups))
    if n_groups == 1:
        return {"value": value, "low": None, "high": None}
    error = error_of_mean(moved) if groups is None else grouped_error(moved, groups)[0]
    factor = np.exp(_half_width(n_groups) * error / value) if value > 0 else 1.0
    return _entry(Estimate(value, Interval(float(value / factor), float(value * factor))))


def _area(area: float | None, error: float | None, n_groups: int | None) -> dict[str, float | None] | None:
    """Return the entry of an area under the curve; None where there is none."""
    if area is None or error is None:
        return None
    if n_groups == 1:
        return {"value": area, "low": None, "high": None}
    half = _half_width(n_groups) * error
    return _entry(Estimate(area, Interval(max(area - half, 0.0), min(area + half, 1.0))))


def _half_width(n_groups: int | None) -> float:
    """Return the half width of an interval in standard errors: the normal law's, with groups Student's."""
    return standard_errors() if n_groups is None else student_half_width(n_groups)


def _entry(estimate: Estimate) -> dict[str, float | None]:
    return {"value": estimate.value, "low": estimate.interval.low, "high": estimate.interval.high}


def q_factor(
    labels: np.ndarray,
    scores: np.ndarray,
    efficiency: float = KEY_EFFICIENCY,
    weights: np.ndarray | None = None,
    groups: np.ndarray | None = None,
) -> Estimate:
    """Return gamma efficiency over the root of the hadron survival: the gain in significance over no separation.

    Arrays are (N,). Without a surviving hadron the value is that of half a hadron; the interval is the survival's,
    carried over.
    """
    at_threshold = hadron_survival(labels, scores, efficiency, weights)
    interval = survival_interval(labels, scores, groups, weights, efficiency=efficiency)
    survivors = at_threshold.weights
    least = 0.5 / at_threshold.n_hadron if survivors is None else 0.5 * survivors.scale / survivors.total
    value, low, high = (
        at_threshold.gamma_efficiency / math.sqrt(max(survival, least))
        for survival in (at_threshold.hadron_survival, interval.high, interval.low)
    )
    return Estimate(value, Interval(low, high, is_limit=interval.is_limit))


def efficiency_at_survival(
    labels: np.ndarray,
    scores: np.ndarray,
    survival: float,
    weights: np.ndarray | None = None,
    groups: np.ndarray | None = None,
) -> Estimate:
    """Return the share of gammas kept by the threshold that lets at most a share of the hadrons survive.

    The interval is binomial in the gammas, or in their groups (N,); the threshold is taken as it is. With importance
    weights (N,) both shares are those of weights.
    """
    gamma, hadron = labels == GAMMA_CLASS, labels == HADRON
    gammas, hadrons = scores[gamma], scores[hadron]
    of_gammas = None if groups is None else groups[gamma]
    if weights is not None:
        order = np.argsort(-hadrons, kind="stable")
        reached = np.cumsum(weights[hadron][order])
        place = min(int(np.searchsorted(reached, survival * reached[-1], side="right")), len(order) - 1)
        kept, gamma_weights = gammas > hadrons[order[place]], weights[gamma]
        return Estimate(
            float(np.average(kept, weights=gamma_weights)), share_interval(kept, of_gammas, weights=gamma_weights)
        )
    rank = len(hadrons) - int(survival * len(hadrons)) - 1
    kept = gammas > np.partition(hadrons, rank)[rank]
    return Estimate(float(kept.mean()), share_interval(kept, of_gammas))


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
    binning: MetricBins = BENCHMARK,
) -> dict[str, list[BinAtThreshold]]:
    """Return counts in each bin of ``energy`` and ``zenith`` at one threshold for all, as an analysis would cut."""
    kept, gamma = scores >= threshold, labels == GAMMA_CLASS
    event_weights = np.ones(len(labels)) if weights is None else weights

    def count_in(bins: Sequence[Bin], values: np.ndarray) -> list[BinAtThreshold]:
        rows = []
        for one in bins:
            inside = one.holds(values)
            g, h = inside & gamma, inside & ~gamma
            n_gamma, n_kept, n_hadron, n_surviving = (
                int(np.count_nonzero(mask)) for mask in (g, g & kept, h, h & kept)
            )
            total, surviving = (float(event_weights[mask].sum()) for mask in (h, h & kept))
            survival = surviving / total if total else 0.0
            rows.append(BinAtThreshold(one.name, n_gamma, n_kept, n_hadron, n_surviving, survival))
        return [row for row in rows if row.n_gamma + row.n_hadron]

    return {"energy": count_in(binning.energy, energy), "zenith": count_in(binning.zenith, zenith_deg)}


def balanced_accuracy(matrix: np.ndarray) -> Estimate:
    """Return the mean recall of the classes, and its interval from binomial variances.

    ``matrix`` (C, C) holds counts, row = true class; every class needs an event.
    """
    n_events, n_hits = matrix.sum(axis=1), np.diag(matrix)
    # A recall of 0 or 1 in few events is not certain: one event is added on either side.
    smooth = (n_hits + 1) / (n_events + 2)
    error = float(np.sqrt((smooth * (1 - smooth) / n_events).sum()) / len(matrix))
    return share_estimate(float((n_hits / n_events).mean()), error)


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
    table = []
    for efficiency in efficiencies:
        at_threshold = hadron_survival(labels, scores, efficiency, weights)
        kept = scores >= at_threshold.threshold
        gammas, hadrons = (
            share_interval(
                kept[of_class],
                None if groups is None else groups[of_class],
                weights=None if weights is None else weights[of_class],
            )
            for of_class in (labels == GAMMA_CLASS, labels == HADRON)
        )
        survivors = at_threshold.weights
        if survivors is not None and not survivors.quoted:
            hadrons = Interval(0.0, survivors.limit(), is_limit=True)
        purities = {
            f"{ratio:g}": [
                _purity(at_threshold.gamma_efficiency, survival, ratio)
                for survival in (at_threshold.hadron_survival, hadrons.high, hadrons.low)
            ]
            for ratio in ratios
        }
        table.append(
            {
                "efficiency": efficiency,
                "threshold": at_threshold.threshold,
                "gamma_efficiency": at_threshold.gamma_efficiency,
                "gamma_efficiency_interval": [gammas.low, gammas.high],
                "hadron_survival": at_threshold.hadron_survival,
                "hadron_survival_interval": [hadrons.low, hadrons.high],
                "n_surviving": at_threshold.n_surviving,
                **({} if survivors is None else survivors.as_dict()),
                "purity": {ratio: {"purity": value, "interval": ends} for ratio, (value, *ends) in purities.items()},
            }
        )
    return table


def _purity(efficiency: float, survival: float, ratio: float) -> float:
    selected = efficiency * ratio
    return selected / (selected + survival) if selected + survival > 0 else 0.0
