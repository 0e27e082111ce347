"""Gamma/hadron separation: hadron survival at a given gamma efficiency, to the letter of the benchmark.

Beside it stands the area under the ROC curve with its standard error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import rankdata

from runtime.errors import InputError
from scoring.metrics.composition import bin_name, energy_bins

GAMMA, HADRON = 0, 1
"""Labels of ``labels_gamma.npy``."""
EFFICIENCIES: tuple[float, ...] = (0.50, 0.75, 0.90, 0.95, 0.99)
"""Gamma efficiencies at which survivals are reported [benchmark]."""
KEY_EFFICIENCY = 0.75
"""Gamma efficiency of the key metric [benchmark]."""
ZENITH_BINS_DEG: tuple[tuple[int, int], ...] = ((0, 10), (10, 20), (20, 30))
GRID_ENERGY_BINS: tuple[tuple[float, float], ...] = tuple((14 + 0.5 * k, 14.5 + 0.5 * k) for k in range(8))
"""lg(E/eV) bins of the energy-zenith grid [benchmark]."""


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

    def as_dict(self, *, counts: bool = False) -> dict[str, Any]:
        """Return the benchmark's keys; ``counts`` adds ``n_gamma`` and ``n_hadron``."""
        keys: dict[str, Any] = {
            "threshold": self.threshold,
            "gamma_efficiency": self.gamma_efficiency,
            "hadron_survival": self.hadron_survival,
            "hadron_surviving": self.n_surviving,
        }
        return keys | {"n_gamma": self.n_gamma, "n_hadron": self.n_hadron} if counts else keys


def threshold_rank(n_gamma: int, efficiency: float) -> int:
    """Return which of the descending gamma scores is the threshold, counted from 1: ``ceil(efficiency n_gamma)``."""
    return math.ceil(efficiency * n_gamma)


def hadron_survival(labels: np.ndarray, scores: np.ndarray, efficiency: float = KEY_EFFICIENCY) -> Survival:
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

    Raises
    ------
    InputError
        If there is no gamma or no hadron, or the efficiency is outside (0, 1].
    """
    if not 0 < efficiency <= 1:
        raise InputError(f"gamma efficiency {efficiency} is outside (0, 1]")
    gammas, hadrons = scores[labels == GAMMA], scores[labels == HADRON]
    if not len(gammas) or not len(hadrons):
        raise InputError(f"hadron survival needs gammas and hadrons: got {len(gammas)} gammas, {len(hadrons)} hadrons")
    rank = threshold_rank(len(gammas), efficiency)
    threshold = np.partition(gammas, len(gammas) - rank)[len(gammas) - rank]
    n_surviving = int(np.count_nonzero(hadrons >= threshold))
    return Survival(
        threshold=float(threshold),
        gamma_efficiency=float(np.count_nonzero(gammas >= threshold) / len(gammas)),
        hadron_survival=float(n_surviving / len(hadrons)),
        n_surviving=n_surviving,
        n_gamma=len(gammas),
        n_hadron=len(hadrons),
        n_tied_hadrons=int(np.count_nonzero(hadrons == threshold)),
        n_tied_gammas=int(np.count_nonzero(gammas == threshold)),
    )


def efficiency_name(efficiency: float) -> str:
    """Return the key of an efficiency, as in ``75%``."""
    return f"{efficiency:.0%}"


def zenith_bins(zenith_deg: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield name and (N,) bool mask of each zenith bin; compared in float32."""
    zenith_deg = np.asarray(zenith_deg, dtype=np.float32)
    for low, high in ZENITH_BINS_DEG:
        yield f"{low}-{high}", (zenith_deg >= low) & (zenith_deg < high)


def energy_zenith_grid(energy: np.ndarray, zenith_deg: np.ndarray) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield zenith name, energy name and (N,) bool mask of each cell of the grid."""
    energy = np.asarray(energy, dtype=np.float32)
    for zenith_name, row in zenith_bins(zenith_deg):
        for low, high in GRID_ENERGY_BINS:
            yield zenith_name, bin_name(low, high), row & (energy >= low) & (energy < high)


def _in_bin(labels: np.ndarray, scores: np.ndarray, mask: np.ndarray) -> dict[str, Any] | None:
    inside = labels[mask]
    if not (inside == GAMMA).any() or not (inside == HADRON).any():
        return None
    return hadron_survival(inside, scores[mask]).as_dict(counts=True)


def gamma_metrics(labels: np.ndarray, scores: np.ndarray, energy: np.ndarray, zenith: np.ndarray) -> dict[str, Any]:
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

    Raises
    ------
    InputError
        If there is no gamma or no hadron.
    """
    rates = {efficiency_name(share): hadron_survival(labels, scores, share) for share in EFFICIENCIES}
    key = rates[efficiency_name(KEY_EFFICIENCY)]
    by_energy = {name: _in_bin(labels, scores, mask) for name, mask in energy_bins(energy)}
    by_zenith = {name: _in_bin(labels, scores, mask) for name, mask in zenith_bins(zenith)}
    grid: dict[str, dict[str, Any]] = {}
    for zenith_name, energy_name, mask in energy_zenith_grid(energy, zenith):
        cell = _in_bin(labels, scores, mask)
        if cell is not None:
            grid.setdefault(zenith_name, {})[energy_name] = cell
    return {
        "n_gamma": key.n_gamma,
        "n_hadron": key.n_hadron,
        "survival_rates": {name: survival.as_dict() for name, survival in rates.items()},
        "key_metric": key.hadron_survival,
        "accuracy_at_0.5": float(np.mean((scores >= 0.5) == (labels == GAMMA))),
        "energy_binned": {name: result for name, result in by_energy.items() if result is not None},
        "zenith_binned": {name: result for name, result in by_zenith.items() if result is not None},
        "energy_zenith_grid": grid,
    }


def area_under_curve(positive: np.ndarray, score: np.ndarray) -> tuple[float, float]:
    """Return the area under the ROC curve and its standard error.

    The area is the Mann-Whitney statistic (ties count one half); its variance follows from the placements of each event
    among those of the other kind (E. R. DeLong et al., Biometrics 44 (1988) 837), by ranks in N log N.

    Parameters
    ----------
    positive
        (N,) bool.
    score
        (N,) float, higher = more likely positive.
    """
    n_positive, n_negative = int(positive.sum()), int((~positive).sum())
    ranks = rankdata(score)
    placed_positive = (ranks[positive] - rankdata(score[positive])) / n_negative
    placed_negative = 1.0 - (ranks[~positive] - rankdata(score[~positive])) / n_positive
    variance = 0.0
    for placed in (placed_positive, placed_negative):
        variance += float(placed.var(ddof=1)) / len(placed) if len(placed) > 1 else 0.25
    return float(placed_positive.mean()), float(np.sqrt(variance))
