"""Events as an analysis of spectra sees them: what a run says of each, its reconstructed sizes, and simulated truth."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np


@dataclass(frozen=True)
class SpectrumEvents:
    """What was measured of events; all arrays have N entries."""

    log_proba: np.ndarray
    """(N, C) float64 natural logarithms of the shipped posteriors."""
    decided: np.ndarray
    """(N,) integer hard labels by the run's decision rule."""
    lg_energy: np.ndarray
    """(N,) reconstructed lg(E/eV)."""
    lg_ne: np.ndarray
    lg_nmu: np.ndarray
    zenith_deg: np.ndarray

    def __len__(self) -> int:
        return len(self.decided)

    def take(self, rows: np.ndarray) -> Self:
        """Return some of the events (positions or a mask)."""
        return replace(self, **{name: value[rows] for name, value in vars(self).items() if value is not None})


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


@dataclass(frozen=True)
class Thrown:
    """Simulated primaries before any selection, so that efficiencies are known."""

    lg_energy_edges: np.ndarray
    """(T + 1,) borders of fine bins of the true lg(E/eV)."""
    counts: np.ndarray
    """(M, C, T) primaries by hadronic model, class and energy, within the zenith range and the area."""

    def __add__(self, other: Thrown) -> Thrown:
        return replace(self, counts=self.counts + other.counts)
