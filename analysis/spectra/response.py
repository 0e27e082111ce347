"""What simulated events tell about measured ones: mixing of classes, migration in energy, efficiency; and the exposure.

All of it depends a little on the spectrum, because bins of energy are wide and the resolution is finite. Simulated
events are therefore weighted from the spectrum they were thrown with to the one that is being measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from runtime.errors import InputError


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

    def place(self, lg_energy: np.ndarray) -> np.ndarray:
        """Return the bin of each reconstructed energy, -1 outside all."""
        return _place(lg_energy, self.edges)

    def place_fine(self, lg_energy: np.ndarray) -> np.ndarray:
        """Return the fine bin of each true energy; beyond the ends, the last ones."""
        return np.clip(np.searchsorted(self.fine, lg_energy, side="right") - 1, 0, len(self.fine) - 2)

    def bins_of_fine(self) -> np.ndarray:
        """Return which bin each fine one lies in, (T,), -1 outside all."""
        return _place((self.fine[1:] + self.fine[:-1]) / 2, self.edges)


def binning(edges: tuple[float, ...], low: float = 14.0, high: float = 18.0) -> Binning:
    """Return bins whose borders are ``edges``, with fine ones of about :data:`FINE_STEP` that share them.

    Raises
    ------
    InputError
        If there are fewer than two borders, or they do not rise.
    """
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


def _place(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    result = np.searchsorted(edges, np.asarray(values, dtype=np.float64), side="right") - 1
    return np.where((result >= 0) & (result < len(edges) - 1), result, -1)


@dataclass(frozen=True)
class ResponseSample:
    """Simulated events sorted into bins, with what each stands for."""

    bins: Binning
    place: np.ndarray
    """(N,) bin of the reconstructed energy, -1 outside."""
    fine: np.ndarray | None
    """(N,) fine bin of the true energy; None without truth."""
    labels: np.ndarray
    n_classes: int
    thrown: np.ndarray | None
    """(C, T) primaries thrown; None where nobody knows: there is no efficiency then."""

    @classmethod
    def of(
        cls, simulated: Simulated, bins: Binning, thrown: Thrown | None, models: tuple[int, ...] | None
    ) -> ResponseSample:
        """Sort events into bins; ``models``: the hadronic models that ``simulated`` holds, None for all."""
        fine = None if simulated.true_lg_energy is None else bins.place_fine(simulated.true_lg_energy)
        counts = None
        if thrown is not None and fine is not None:
            counts = thrown.counts if models is None else thrown.counts[list(models)]
            counts = counts.sum(axis=0).astype(np.float64)
        n_classes = simulated.log_proba.shape[1]
        return cls(bins, bins.place(simulated.lg_energy), fine, np.asarray(simulated.labels), n_classes, counts)

    def weights(self, shape: np.ndarray) -> np.ndarray:
        """Return (N,) weights that turn the thrown spectrum into ``shape``, (C, T) particles per fine bin."""
        if self.fine is None:
            return np.ones(len(self.labels))
        if self.thrown is None:
            # Thrown as dN/dE ~ E^-2 for want of anything better: only the change of slope inside a bin matters.
            centre = (self.bins.fine[1:] + self.bins.fine[:-1]) / 2
            lost = 10.0 ** (-(centre - 15.0)) * np.diff(self.bins.fine)
            return np.asarray((shape / lost)[self.labels, self.fine])
        share = np.divide(shape, self.thrown, out=np.zeros_like(shape), where=self.thrown > 0)
        return np.asarray(share[self.labels, self.fine])

    def mixing(self, functions: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return A (B, J, C): mean of each function over the simulated events of each class in each bin.

        Parameters
        ----------
        functions
            (N, J) estimating functions.
        weights
            (N,) weights.
        """
        inside = self.place >= 0
        cell = self.place[inside] * self.n_classes + self.labels[inside]
        n_cells = self.bins.n_bins * self.n_classes
        total = np.bincount(cell, weights[inside], n_cells)
        sums = np.stack([np.bincount(cell, weights[inside] * one[inside], n_cells) for one in functions.T])
        with np.errstate(invalid="ignore", divide="ignore"):
            means = sums / total
        return np.asarray(means.reshape(-1, self.bins.n_bins, self.n_classes).transpose(1, 0, 2))

    def counts(self) -> np.ndarray:
        """Return (B, C) simulated events."""
        inside = self.place >= 0
        cell = self.place[inside] * self.n_classes + self.labels[inside]
        return np.bincount(cell, minlength=self.bins.n_bins * self.n_classes).reshape(-1, self.n_classes)

    def acceptance(self, extra: np.ndarray | None = None) -> np.ndarray | None:
        """Return R (C, B, T): probability of a particle of true energy t to be accepted and reconstructed in bin b.

        Parameters
        ----------
        extra
            (N,) weights of a bootstrap replica.
        """
        if self.thrown is None or self.fine is None:
            return None
        n_fine = len(self.bins.fine) - 1
        inside = self.place >= 0
        cell = (self.labels[inside] * self.bins.n_bins + self.place[inside]) * n_fine + self.fine[inside]
        weights = None if extra is None else extra[inside]
        result = np.bincount(cell, weights, self.n_classes * self.bins.n_bins * n_fine).astype(np.float64)
        shape = (self.n_classes, self.bins.n_bins, n_fine)
        with np.errstate(invalid="ignore", divide="ignore"):
            share = result.reshape(shape) / self.thrown[:, None, :]
        return np.asarray(np.where(self.thrown[:, None, :] > 0, share, 0.0))


def corrections(acceptance: np.ndarray | None, shape: np.ndarray, bins: Binning) -> np.ndarray:
    """Return c (B, C): particles whose true energy lies in a bin, per event accepted and reconstructed in it.

    It corrects efficiency and migration at once and depends on the spectrum only through its shape inside and
    around the bin. Ones where the acceptance is not known.

    Parameters
    ----------
    acceptance
        R (C, B, T).
    shape
        (C, T) particles per fine bin.
    """
    if acceptance is None:
        return np.ones((bins.n_bins, len(shape)))
    accepted = np.einsum("cbt,ct->bc", acceptance, shape)
    mine = bins.bins_of_fine()
    sent = np.stack([shape[:, mine == b].sum(axis=1) for b in range(bins.n_bins)])
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(sent / accepted)
