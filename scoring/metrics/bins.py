"""The bins of energy and zenith angle by which metrics are given: the benchmark's, or those that other data fill."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Bin:
    """A bin: lower edge included, upper edge not."""

    low: float
    high: float
    digits: int

    @property
    def name(self) -> str:
        """Key in the metrics, as in ``15.0-15.5``."""
        return f"{self.low:.{self.digits}f}-{self.high:.{self.digits}f}"

    @property
    def middle(self) -> float:
        """Between the edges."""
        return (self.low + self.high) / 2

    @classmethod
    def named(cls, name: str) -> Bin:
        """Return the bin of a name."""
        low, high = name.split("-")
        return cls(float(low), float(high), len(low.partition(".")[2]))

    def holds(self, values: np.ndarray) -> np.ndarray:
        """Return which values (N,) lie in the bin, (N,) bool; compared in float32."""
        values = np.asarray(values, dtype=np.float32)
        return np.asarray((values >= self.low) & (values < self.high))


ENERGY_BINS = tuple(
    Bin(low, high, 1)
    for low, high in ((14.0, 15.0), (15.0, 15.5), (15.5, 16.0), (16.0, 16.5), (16.5, 17.0), (17.0, 18.0))
)
"""lg(E/eV) [benchmark]."""
ZENITH_BINS = tuple(Bin(low, low + 10, 0) for low in (0, 10, 20))
"""Degrees [benchmark]."""
GRID_ENERGY_BINS = tuple(Bin(14 + 0.5 * k, 14.5 + 0.5 * k, 1) for k in range(8))
"""lg(E/eV), of the grid in energy and zenith angle [benchmark]."""


OUTSIDE = 0.001
"""Share of events on either side that need be in no bin."""


@dataclass(frozen=True)
class MetricBins:
    """Bins of a test set."""

    energy: tuple[Bin, ...] = ENERGY_BINS
    """lg(E/eV)."""
    zenith: tuple[Bin, ...] = ZENITH_BINS
    """Degrees."""
    grid_energy: tuple[Bin, ...] = GRID_ENERGY_BINS
    """lg(E/eV), of the grid in energy and zenith angle."""

    @classmethod
    def of(cls, energy: np.ndarray, zenith_deg: np.ndarray) -> MetricBins:
        """Return half decades of energy and tens of degrees that cover events (N,) each; none where nothing is known.

        The benchmark's bins are those of KASCADE's energies and cuts.
        """
        energies = tuple(Bin(low, low + 0.5, 1) for low in _steps(energy, 0.5))
        return cls(energies, tuple(Bin(low, low + 10, 0) for low in _steps(zenith_deg, 10.0)), energies)


BENCHMARK = MetricBins()


def _steps(values: np.ndarray, step: float) -> list[float]:
    """Return the lower edges of the multiples of a step that cover all but a few of the values (N,)."""
    known = np.asarray(values, dtype=np.float64)
    known = known[np.isfinite(known)]
    if not len(known):
        return []
    low, high = np.floor(np.quantile(known, [OUTSIDE, 1 - OUTSIDE], method="nearest") / step).astype(int)
    return [step * k for k in range(low, high + 1)]


def energy_bins(energy: np.ndarray, binning: MetricBins = BENCHMARK) -> Iterator[tuple[str, np.ndarray]]:
    """Yield name and (N,) bool mask of each energy bin."""
    return ((energy_bin.name, energy_bin.holds(energy)) for energy_bin in binning.energy)


def zenith_bins(zenith_deg: np.ndarray, binning: MetricBins = BENCHMARK) -> Iterator[tuple[str, np.ndarray]]:
    """Yield name and (N,) bool mask of each zenith bin."""
    return ((zenith_bin.name, zenith_bin.holds(zenith_deg)) for zenith_bin in binning.zenith)


def energy_zenith_grid(
    energy: np.ndarray, zenith_deg: np.ndarray, binning: MetricBins = BENCHMARK
) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield zenith name, energy name and (N,) bool mask of each cell of the grid."""
    for zenith_name, mask in zenith_bins(zenith_deg, binning):
        for energy_bin in binning.grid_energy:
            yield zenith_name, energy_bin.name, mask & energy_bin.holds(energy)


def bins_with_events(binned: Mapping[str, dict[str, Any]]) -> list[tuple[Bin, dict[str, Any]]]:
    """Return bins with their metrics, of ``binned`` by name; those with too few events are left out."""
    return [(Bin.named(name), row) for name, row in binned.items() if not row.get("too_few_events")]
