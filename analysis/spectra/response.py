"""Events of spectra, measured and simulated, the primaries behind them, and bins of energy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, zip_longest
from typing import Self

import numpy as np

from showerstack.runtime.errors import InputError
from showerstack.runtime.rows import Rows
from showerstack.showers.kascade import CHARGES, MASS_NUMBERS
from showerstack.showers.nuclei import nearest_of_five
from showerstack.showers.schema import COMPOSITION, Task, mean_ln_masses

ALL = "all"
LIGHTEST = 4
"""Largest mass number of light nuclei; the others are heavy."""


@dataclass(frozen=True)
class MassGroups:
    """The mass groups that a simulation holds; all arrays (K,)."""

    names: tuple[str, ...] = COMPOSITION.classes
    """From the lightest on."""
    masses: tuple[tuple[int, ...], ...] = COMPOSITION.masses
    """Mass numbers of the nuclei of each."""

    @classmethod
    def of(cls, task: Task) -> Self:
        """Return the groups of a composition task."""
        return cls(task.classes, task.masses)

    def __len__(self) -> int:
        return len(self.names)

    def means_of_five(self, values: Sequence[float]) -> np.ndarray:
        """Return of values (5,) of the five groups the mean, (K,), over those that a group's nuclei are nearest to."""
        return np.array([np.mean([values[k] for k in five]) for five in nearest_of_five(self.masses)])

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of the groups of nature of which no nucleus is there."""
        there = set(chain(*nearest_of_five(self.masses)))
        return tuple(name for k, name in enumerate(COMPOSITION.classes) if k not in there)

    @cached_property
    def mass_numbers(self) -> np.ndarray:
        """Mean mass number of the nuclei."""
        return np.array([np.mean(masses) for masses in self.masses])

    @cached_property
    def charges(self) -> np.ndarray:
        """Charge number of that mass number, between those of the five nuclei."""
        return np.interp(self.mass_numbers, MASS_NUMBERS, CHARGES)

    @cached_property
    def ln_masses(self) -> np.ndarray:
        return mean_ln_masses(self.masses)

    @cached_property
    def sums(self) -> dict[str, np.ndarray]:
        """Ones and zeros by name of a sum: of light and heavy groups, where there are both, and of all."""
        light = np.array([float(max(masses) <= LIGHTEST) for masses in self.masses])
        both = {"light": light, "heavy": 1.0 - light} if 0 < light.sum() < len(self) else {}
        return {name: one for name, one in both.items() if name not in self.names} | {ALL: np.ones(len(self))}

    @cached_property
    def members(self) -> dict[str, np.ndarray]:
        """The same of each group alone, before the sums."""
        return dict(zip(self.names, np.eye(len(self)), strict=True)) | self.sums


FIVE = MassGroups()


@dataclass(frozen=True)
class SpectrumEvents(Rows):
    """What was measured of events; all arrays have N entries."""

    log_proba: np.ndarray
    """(N, C) float64 natural logarithms of the shipped posteriors."""
    predicted: np.ndarray
    """(N,) int64 numbers of the most probable classes."""
    lg_energy: np.ndarray
    """(N,) reconstructed lg(E/eV)."""
    lg_ne: np.ndarray
    lg_nmu: np.ndarray
    zenith_deg: np.ndarray
    groups: MassGroups = field(default=FIVE, kw_only=True)
    """What the classes are."""

    def __len__(self) -> int:
        return len(self.predicted)


@dataclass(frozen=True)
class Simulated(SpectrumEvents):
    """Simulated events with truth, predicted as measured ones are."""

    labels: np.ndarray
    """(N,) true classes."""
    true_lg_energy: np.ndarray | None = None
    """(N,) true lg(E/eV); None where there is no truth file: energy migration is then left alone."""
    model: np.ndarray | None = None
    """(N,) number of the hadronic model; None where unknown."""
    group: np.ndarray | None = None
    """(N,) equal value = same simulated shower; None: all different."""
    mirrored: np.ndarray | None = None
    """(N, 2) bool: events of a set without showers below the cut in lg Ne, in lg Nmu; None: all sets hold them."""
    y_again: np.ndarray | None = None
    """(N, 4) the mass summary y with lg Nmu moved down and up, then lg Ne, and predicted again
    (:mod:`showerstack.analysis.spectra.moving`); NaN where not known, None: of no event."""


@dataclass(frozen=True)
class Thrown:
    """Simulated primaries before any selection, so that efficiencies are known."""

    lg_energy_edges: np.ndarray
    """(T + 1,) borders of fine bins of the true lg(E/eV)."""
    counts: np.ndarray
    """(M, C, T) primaries by hadronic model, class and energy, within the zenith range and the area."""
    changes: tuple[np.ndarray, ...] = ()
    """(M, C, T) each: what one standard deviation of each independent source of error changes; none where counted."""

    common: tuple[np.ndarray, ...] = ()
    """The same of sources that all sets share, in one order."""

    def __add__(self, other: Thrown) -> Thrown:
        common = tuple(np.asarray(a + b) for a, b in zip_longest(self.common, other.common, fillvalue=0.0))
        return replace(self, counts=self.counts + other.counts, changes=self.changes + other.changes, common=common)


FINE_STEP = 0.05
"""Width of the fine bins of the true lg(E/eV)."""


@dataclass(frozen=True)
class Binning:
    """Bins of the reconstructed energy, and fine ones of the true energy."""

    edges: np.ndarray
    """(B + 1,) lg(E/eV)."""
    fine: np.ndarray
    """(T + 1,) lg(E/eV)."""

    @property
    def n_bins(self) -> int:
        """Number of bins of the reconstructed energy."""
        return len(self.edges) - 1

    @property
    def widths_ev(self) -> np.ndarray:
        """(B,) widths in eV."""
        return np.asarray(np.diff(10.0**self.edges))

    @property
    def centres_ev(self) -> np.ndarray:
        """(B,) middles in eV, linear as published spectra have them."""
        return np.asarray((10.0 ** self.edges[1:] + 10.0 ** self.edges[:-1]) / 2)

    def bin_of(self, lg_energy: np.ndarray) -> np.ndarray:
        """Return the bin of each reconstructed energy, -1 outside all."""
        return _bin_of(lg_energy, self.edges)

    def fine_bin_of(self, lg_energy: np.ndarray) -> np.ndarray:
        """Return the fine bin of each true energy; beyond the ends, the last ones."""
        return np.clip(np.searchsorted(self.fine, lg_energy, side="right") - 1, 0, len(self.fine) - 2)

    def bins_of_fine(self) -> np.ndarray:
        """Return which bin each fine one lies in, (T,), -1 outside all."""
        return _bin_of((self.fine[1:] + self.fine[:-1]) / 2, self.edges)


def binning(edges: tuple[float, ...], low: float = 14.0, high: float = 18.0) -> Binning:
    """Return bins whose borders are ``edges``, with fine ones of about :data:`FINE_STEP` that share them."""
    borders = np.asarray(edges, dtype=np.float64)
    if len(borders) < 2 or not np.isfinite(borders).all() or (np.diff(borders) <= 0).any():
        raise InputError("energy bins: give two or more rising borders of lg(E/eV), such as 15.2,15.4,15.6")
    if borders[0] < low or borders[-1] > high:
        raise InputError(
            f"energy bins must lie in lg(E/eV) {low:g} to {high:g}, where there is simulation; got "
            f"{borders[0]:g} to {borders[-1]:g}"
        )
    fine: list[float] = []
    for left, right in zip([low, *borders], [*borders, high], strict=True):
        steps = max(1, round((right - left) / FINE_STEP)) if right > left + 1e-9 else 0
        fine.extend(left + (right - left) * np.arange(steps) / max(steps, 1))
    return Binning(borders, np.array([*fine, high]))


def _bin_of(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    index = np.searchsorted(edges, np.asarray(values, dtype=np.float64), side="right") - 1
    return np.where((index >= 0) & (index < len(edges) - 1), index, -1)
