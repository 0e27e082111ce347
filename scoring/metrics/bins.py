"""The bins of energy and zenith angle by which metrics are given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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


def energy_bins(energy: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield name and (N,) bool mask of each energy bin."""
    return ((energy_bin.name, energy_bin.holds(energy)) for energy_bin in ENERGY_BINS)


def zenith_bins(zenith_deg: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield name and (N,) bool mask of each zenith bin."""
    return ((zenith_bin.name, zenith_bin.holds(zenith_deg)) for zenith_bin in ZENITH_BINS)


def energy_zenith_grid(energy: np.ndarray, zenith_deg: np.ndarray) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield zenith name, energy name and (N,) bool mask of each cell of the grid."""
    for zenith_name, mask in zenith_bins(zenith_deg):
        for energy_bin in GRID_ENERGY_BINS:
            yield zenith_name, energy_bin.name, mask & energy_bin.holds(energy)


def bins_with_events(binned: Mapping[str, dict[str, Any]], bins: Sequence[Bin]) -> list[tuple[Bin, dict[str, Any]]]:
    """Return bins with their metrics, of ``binned`` by name; those without events or with too few are left out."""
    rows = [(known, binned[known.name]) for known in bins if known.name in binned]
    return [(known, row) for known, row in rows if not row.get("too_few_events")]
