"""Gamma/hadron separation: hadron survival at a given gamma efficiency, to the letter of the benchmark.

:func:`hadron_survival` is the published number, :func:`gamma_metrics` returns all that ``metrics_gamma.json`` holds but
for the intervals (:mod:`showerstack.scoring.metrics.survival_bootstrap`). Beside them stands the area under the ROC
curve.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from showerstack.runtime.errors import InputError
from showerstack.scoring.metrics.bins import BENCHMARK, MetricBins, energy_bins, energy_zenith_grid, zenith_bins
from showerstack.scoring.metrics.intervals import Estimate, number_groups, share_estimate, weighted_upper
from showerstack.scoring.metrics.level import LEVEL
from showerstack.showers.schema import GAMMA_CLASS, HADRON

EFFICIENCIES: tuple[float, ...] = (0.50, 0.75, 0.90, 0.95, 0.99)
"""Gamma efficiencies at which survivals are reported [benchmark]."""
KEY_EFFICIENCY = 0.75
"""Gamma efficiency of the key metric [benchmark]."""

MIN_EFFECTIVE = 100.0
"""Effective number of survivors above which a weighted survival is quoted as a number; else an upper limit is."""
MAX_SHARE = 0.05
"""Share of the surviving weight that one more hadron, the heaviest, may have where a survival is quoted."""


@dataclass(frozen=True)
class SurvivorWeights:
    """How well the importance weights of hadrons determine a survival."""

    error: float
    """Standard error of the survival from the sum of squared weights, at a certain threshold."""
    n_effective: float
    """Effective number of survivors, (sum w)^2 / sum w^2."""
    heaviest: float
    """Largest weight of all hadrons, whether they survive or not."""
    scale: float
    """Weight that counts as one Poisson event, sum w^2 / sum w of survivors; the largest of all where none survives."""
    total: float
    """Weight of all hadrons."""

    @classmethod
    def of(cls, survives: np.ndarray, weights: np.ndarray) -> SurvivorWeights:
        """Return it for hadrons (N,) with their weights (N,)."""
        total, squares, heaviest = float(weights.sum()), float((weights**2).sum()), float(weights.max())
        surviving, surviving_squares = float(weights[survives].sum()), float((weights[survives] ** 2).sum())
        share = surviving / total
        variance = surviving_squares * (1 - share) ** 2 + (squares - surviving_squares) * share**2
        return cls(
            error=math.sqrt(max(variance, 0.0)) / total,
            n_effective=surviving**2 / surviving_squares if surviving_squares > 0 else 0.0,
            heaviest=heaviest,
            scale=surviving_squares / surviving if surviving > 0 else heaviest,
            total=total,
        )

    @property
    def largest(self) -> float:
        """Share that the heaviest of all hadrons would have in the surviving weight if it survived as well."""
        return self.heaviest / (self.n_effective * self.scale + self.heaviest)

    @property
    def quoted(self) -> bool:
        """Whether the survival is well enough determined to be quoted as a number.

        A heavy shower that did not survive counts: a few light survivors look certain exactly where it is missing.
        """
        return self.n_effective > MIN_EFFECTIVE and self.largest <= MAX_SHARE

    def limit(self, level: float = LEVEL) -> float:
        """Return the one-sided upper limit of the survival, as if the heaviest hadron might have survived too.

        See M. P. Fay, E. J. Feuer, Stat. Med. 16 (1997) 791.
        """
        surviving, squares = self.n_effective * self.scale, self.n_effective * self.scale**2
        return min(1.0, float(weighted_upper(surviving, squares, self.heaviest, level)) / self.total)

    def as_dict(self) -> dict[str, Any]:
        """Return what ``metrics_gamma.json`` adds for weighted hadrons."""
        return {
            "error": self.error,
            "n_effective": self.n_effective,
            "largest_weight": self.largest,
            "quoted": self.quoted,
            "upper_limit": self.limit(),
        }


@dataclass(frozen=True)
class Survival:
    """How many hadrons survive a threshold that keeps a wanted share of the gammas."""

    threshold: float
    gamma_efficiency: float
    """Share of gammas at or above the threshold (above the wanted one where scores tie)."""
    hadron_survival: float
    n_surviving: int
    n_gamma: int
    n_hadron: int
    n_tied_hadrons: int = 0
    """Surviving hadrons whose score equals the threshold exactly."""
    n_tied_gammas: int = 1
    """Gammas whose score equals the threshold (the one that defines it included)."""
    weights: SurvivorWeights | None = None
    """Of weighted hadrons; None where all count alike."""

    def as_dict(self, *, counts: bool = False) -> dict[str, Any]:
        """Return the benchmark's keys; ``counts`` adds ``n_gamma`` and ``n_hadron``."""
        keys: dict[str, Any] = {
            "threshold": self.threshold,
            "gamma_efficiency": self.gamma_efficiency,
            "hadron_survival": self.hadron_survival,
            "hadron_surviving": self.n_surviving,
        }
        keys |= {} if self.weights is None else self.weights.as_dict()
        return keys | {"n_gamma": self.n_gamma, "n_hadron": self.n_hadron} if counts else keys


def threshold_rank(n_gamma: int, efficiency: float) -> int:
    """Return which of the descending gamma scores is the threshold, counted from 1: ``ceil(efficiency n_gamma)``."""
    return math.ceil(efficiency * n_gamma)


def weighted_threshold(scores: np.ndarray, weights: np.ndarray, efficiency: float) -> float:
    """Return the highest of the gammas' scores (N,) that keeps a wanted share of their weight (N,)."""
    order = np.argsort(-scores, kind="stable")
    reached = np.cumsum(weights[order])
    place = int(np.searchsorted(reached, efficiency * reached[-1] * (1 - 1e-12)))
    return float(scores[order[place]])


def hadron_survival(
    labels: np.ndarray, scores: np.ndarray, efficiency: float = KEY_EFFICIENCY, weights: np.ndarray | None = None
) -> Survival:
    """Return the hadron survival at a gamma efficiency (lower is better).

    The threshold is element ``ceil(efficiency * n_gamma) - 1`` of the gamma scores sorted descending; survivors are
    hadrons with ``score >= threshold``, so ties survive.

    Parameters
    ----------
    labels
        (N,) integers: 0 gamma, 1 hadron.
    scores
        (N,) finite numbers, higher = more gamma-like.
    efficiency
        Wanted share of gammas, in (0, 1].
    weights
        (N,) importance weights of the events, or None: shares are then those of weights.

    Raises
    ------
    InputError
        If there is no gamma or no hadron (of positive weight), or the efficiency is outside (0, 1].
    """
    if not 0 < efficiency <= 1:
        raise InputError(f"gamma efficiency {efficiency} is outside (0, 1]")
    gamma, hadron = labels == GAMMA_CLASS, labels == HADRON
    gammas, hadrons = scores[gamma], scores[hadron]
    if not len(gammas) or not len(hadrons):
        raise InputError(f"hadron survival needs gammas and hadrons: got {len(gammas)} gammas, {len(hadrons)} hadrons")
    rank = threshold_rank(len(gammas), efficiency)
    threshold = np.partition(gammas, len(gammas) - rank)[len(gammas) - rank]
    if weights is not None:
        gamma_weights, hadron_weights = weights[gamma], weights[hadron]
        if not gamma_weights.any() or not hadron_weights.any():
            raise InputError("hadron survival needs gammas and hadrons of positive weight: all weights of one are zero")
        if np.ptp(gamma_weights) > 0:
            threshold = weighted_threshold(gammas, gamma_weights, efficiency)
    kept, survives = gammas >= threshold, hadrons >= threshold
    n_surviving = int(np.count_nonzero(survives))
    survivors = None
    if weights is None:
        gamma_efficiency, survival = np.count_nonzero(kept) / len(gammas), n_surviving / len(hadrons)
    else:
        survivors = SurvivorWeights.of(survives, hadron_weights)
        gamma_efficiency = gamma_weights[kept].sum() / gamma_weights.sum()
        survival = hadron_weights[survives].sum() / survivors.total
    return Survival(
        threshold=float(threshold),
        gamma_efficiency=float(gamma_efficiency),
        hadron_survival=float(survival),
        n_surviving=n_surviving,
        n_gamma=len(gammas),
        n_hadron=len(hadrons),
        n_tied_hadrons=int(np.count_nonzero(hadrons == threshold)),
        n_tied_gammas=int(np.count_nonzero(gammas == threshold)),
        weights=survivors,
    )


def efficiency_name(efficiency: float) -> str:
    """Return the key of an efficiency, as in ``75%``."""
    return f"{efficiency:.0%}"


def _survival_in_bin(
    labels: np.ndarray, scores: np.ndarray, mask: np.ndarray, weights: np.ndarray | None
) -> dict[str, Any] | None:
    """Return the survival of some events; None where either class has none, or none of positive weight."""
    counting = labels[mask] if weights is None else labels[mask & (weights > 0)]
    if not (counting == GAMMA_CLASS).any() or not (counting == HADRON).any():
        return None
    weights_in_bin = None if weights is None else weights[mask]
    return hadron_survival(labels[mask], scores[mask], weights=weights_in_bin).as_dict(counts=True)


def gamma_metrics(
    labels: np.ndarray,
    scores: np.ndarray,
    energy: np.ndarray,
    zenith: np.ndarray,
    weights: np.ndarray | None = None,
    binning: MetricBins = BENCHMARK,
) -> dict[str, Any]:
    """Return every number of the benchmark's ``metrics_gamma.json``.

    Parameters
    ----------
    labels
        (N,) integers: 0 gamma, 1 hadron.
    scores
        (N,) finite numbers, higher = more gamma-like.
    energy
        (N,) lg(E/eV), compared in float32.
    zenith
        (N,) degrees, compared in float32.
    weights
        (N,) importance weights, or None. With them survivals, efficiencies and the accuracy are shares of weight, and
        each survival says how well it is determined (:class:`SurvivorWeights`).
    binning
        Bins of energy and zenith angle.

    Raises
    ------
    InputError
        If there is no gamma or no hadron.
    """
    rates = {efficiency_name(share): hadron_survival(labels, scores, share, weights) for share in EFFICIENCIES}
    key = rates[efficiency_name(KEY_EFFICIENCY)]
    by_energy = {name: _survival_in_bin(labels, scores, mask, weights) for name, mask in energy_bins(energy, binning)}
    by_zenith = {name: _survival_in_bin(labels, scores, mask, weights) for name, mask in zenith_bins(zenith, binning)}
    grid: dict[str, dict[str, Any]] = {}
    for zenith_name, energy_name, mask in energy_zenith_grid(energy, zenith, binning):
        cell = _survival_in_bin(labels, scores, mask, weights)
        if cell is not None:
            grid.setdefault(zenith_name, {})[energy_name] = cell
    return {
        "n_gamma": key.n_gamma,
        "n_hadron": key.n_hadron,
        "survival_rates": {name: survival.as_dict() for name, survival in rates.items()},
        "key_metric": key.hadron_survival,
        "accuracy_at_0.5": float(np.average((scores >= 0.5) == (labels == GAMMA_CLASS), weights=weights)),
        "energy_binned": {name: survival for name, survival in by_energy.items() if survival is not None},
        "zenith_binned": {name: survival for name, survival in by_zenith.items() if survival is not None},
        "energy_zenith_grid": grid,
    }


def area_under_curve(
    positive: np.ndarray, score: np.ndarray, weights: np.ndarray | None = None, groups: np.ndarray | None = None
) -> tuple[float, float]:
    """Return the area under the ROC curve and its standard error.

    The area is the Mann-Whitney statistic (ties count one half); its variance follows from the placements of each event
    among those of the other kind (E. R. DeLong et al., Biometrics 44 (1988) 837), by ranks in N log N. ``positive``
    (N,) is bool, a higher ``score`` (N,) more likely positive; with importance weights placements are among weights.
    With groups (N,) those of one group are added up before they are squared (N. A. Obuchowski, Biometrics 53 (1997)
    567); one group alone has no error: NaN.
    """
    if groups is not None:
        return _grouped_area(positive, score, weights, groups)
    if weights is not None:
        return _weighted_area(score[positive], weights[positive], score[~positive], weights[~positive])
    n_positive, n_negative = int(positive.sum()), int((~positive).sum())
    placed_positive = _count_below(score[~positive], score[positive]) / n_negative
    placed_negative = _count_below(score[positive], score[~positive]) / n_positive  # its variance alone counts
    variance = 0.0
    for placed in (placed_positive, placed_negative):
        variance += float(placed.var(ddof=1)) / len(placed) if len(placed) > 1 else 0.25
    return float(placed_positive.mean()), float(np.sqrt(variance))


def _grouped_area(
    positive: np.ndarray, score: np.ndarray, weights: np.ndarray | None, groups: np.ndarray
) -> tuple[float, float]:
    """Return the area and its standard error, the events of a group one observation."""
    counted = np.ones(len(score)) if weights is None else weights
    moved, area = np.zeros(len(score)), 0.0
    for side, sign in ((~positive, -1.0), (positive, 1.0)):
        order = np.argsort(score[~side])
        below = np.concatenate([[0.0], np.cumsum(counted[~side][order])]) / counted[~side].sum()
        ends = [below[np.searchsorted(score[~side][order], score[side], where)] for where in ("left", "right")]
        placed, own = 0.5 * (ends[0] + ends[1]), counted[side]
        area = float(np.average(placed, weights=own))
        moved[side] = sign * own * (placed - area) / own.sum()
    member, n_groups = number_groups(groups)
    variance = float((np.bincount(member, moved) ** 2).sum()) * n_groups / max(n_groups - 1, 1)
    return area, math.sqrt(variance) if n_groups > 1 else float("nan")


def _count_below(others: np.ndarray, score: np.ndarray) -> np.ndarray:
    """Return how many of the others (M,) are below each score (n,), equal ones counted half."""
    ordered = np.sort(others)
    return 0.5 * (np.searchsorted(ordered, score) + np.searchsorted(ordered, score, side="right"))


def _weighted_area(
    positive: np.ndarray, positive_weights: np.ndarray, negative: np.ndarray, negative_weights: np.ndarray
) -> tuple[float, float]:
    """Return the area under the ROC curve of positive scores over negative ones, and its standard error."""
    variance, area = 0.0, 0.0
    for score, weights, others, other_weights in (
        (negative, negative_weights, positive, positive_weights),
        (positive, positive_weights, negative, negative_weights),
    ):
        order = np.argsort(others)
        below = np.concatenate([[0.0], np.cumsum(other_weights[order])]) / other_weights.sum()
        sides = [below[np.searchsorted(others[order], score, side)] for side in ("left", "right")]
        placed = 0.5 * (sides[0] + sides[1])
        area = float(np.average(placed, weights=weights))
        variance += float((weights**2 * (placed - area) ** 2).sum() / weights.sum() ** 2)
    return area, math.sqrt(variance)


def gamma_area(
    labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None, groups: np.ndarray | None = None
) -> Estimate:
    """Return the area under the ROC curve of gammas against hadrons; ``weights`` (N,) are importance weights.

    Events of one group (N,) are one observation.
    """
    return share_estimate(*area_under_curve(labels == GAMMA_CLASS, scores, weights, groups))
