"""Weights that give simulated showers another energy spectrum than the one they were drawn with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from showerstack.runtime.errors import InputError

SLOPES = (-5.0, 0.0)
"""Steepest and flattest spectrum that can be asked for."""
ROUNDING = 1e-5
"""Of energies and their limits, stored in single precision."""


@dataclass(frozen=True)
class DrawnSpectrum:
    """Energies of a run: a power law between two limits."""

    name: str
    slope: float
    """dN/dE is proportional to E^slope."""
    least_gev: float
    most_gev: float

    def density(self, energy_gev: np.ndarray) -> np.ndarray:
        """Return the probability density (N,) per GeV; 0 outside the limits."""
        u, low = 1.0 + self.slope, self.least_gev
        ratio = self.most_gev / low
        total = np.log(ratio) if abs(u) < 1e-6 else (ratio**u - 1.0) / u
        inside = (energy_gev >= low * (1 - ROUNDING)) & (energy_gev <= self.most_gev * (1 + ROUNDING))
        return np.where(inside, (energy_gev / low) ** self.slope / (low * total), 0.0)


def check_slope(slope: float) -> None:
    """Refuse a slope that no spectrum has."""
    low, high = SLOPES
    if not low <= slope <= high:
        raise InputError(f"--slope is {slope:g}, expected a number from {low:g} to {high:g}: of dN/dE, such as -2.7")


def spectrum_weights(
    runs: Sequence[DrawnSpectrum], run: np.ndarray, kind: np.ndarray, energy_gev: np.ndarray, slope: float
) -> np.ndarray:
    """Return what each shower counts in a spectrum of another slope.

    A shower of energy E counts E^slope over the density at which showers of its kind were drawn by all runs together,
    sum over runs r of n_r p_r(E): runs may overlap, or have other slopes. At the energies that all kinds have in common
    (:func:`common_energies`) the kinds' weights add up as their numbers of showers do: there the mixture stays as it
    was simulated. The weights of all showers have the mean 1.

    Parameters
    ----------
    runs
        R runs.
    run
        (N,) number of each shower's run.
    kind
        (N,) primary of each shower.
    energy_gev
        (N,) true energies, GeV.
    slope
        The wanted one, of dN/dE.

    Returns
    -------
    (N,) float64.

    Raises
    ------
    InputError
        For runs at one energy, which have no slope, or without limits, and for kinds with no shower at the energies
        that all have in common.
    """
    for number in np.unique(run):
        one = runs[number]
        if not 0 < one.least_gev < one.most_gev * (1 - ROUNDING):
            raise InputError(
                f"{one.name}: energies are drawn from {one.least_gev:g} to {one.most_gev:g} GeV, which is no spectrum "
                "to be weighted: leave out --slope"
            )
    low, high = common_energies(runs, run, kind)
    weights = np.empty(len(energy_gev))
    for one_kind in np.unique(kind):
        rows = np.flatnonzero(kind == one_kind)
        energy = energy_gev[rows]
        n_by_run = np.bincount(run[rows], minlength=len(runs))
        drawn = sum(n * one.density(energy) for n, one in zip(n_by_run, runs, strict=True) if n)
        outside = np.flatnonzero(drawn == 0)
        if outside.size:
            row = rows[outside[0]]
            raise InputError(
                f"{runs[run[row]].name}: a shower of {energy_gev[row]:g} GeV lies outside the limits of its run header"
            )
        common = (energy >= low * (1 - ROUNDING)) & (energy <= high * (1 + ROUNDING))
        if not common.any():
            raise InputError(
                f"{runs[run[rows[0]]].name}: primary {one_kind} has no shower at energies that all primaries have in "
                f"common ({low:g} to {high:g} GeV): --slope cannot tell what it counts beside the others"
            )
        wanted = (energy / low) ** slope / drawn
        weights[rows] = wanted * (len(rows) / wanted[common].sum())
    return weights / weights.mean()


def common_energies(runs: Sequence[DrawnSpectrum], run: np.ndarray, kind: np.ndarray) -> tuple[float, float]:
    """Return the least and the greatest energy, GeV, at which every kind of shower was drawn.

    Arguments as of :func:`spectrum_weights`. The first exceeds the second where there is no such energy.
    """
    by_kind = [[runs[number] for number in np.unique(run[kind == one])] for one in np.unique(kind)]
    low = max(min(one.least_gev for one in drawn) for drawn in by_kind)
    return low, min(max(one.most_gev for one in drawn) for drawn in by_kind)


def effective_number(weights: np.ndarray) -> float:
    """Return how many showers of equal weight have the statistical error of these: (sum w)^2 / sum w^2."""
    return float(weights.sum() ** 2 / (weights**2).sum())
