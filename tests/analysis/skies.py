"""A sky in a few lines, for tests: five groups, known fluxes, one hidden observable, resolution and efficiency."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from showerstack.analysis.spectra.response import Binning, Simulated, SpectrumEvents, Thrown, binning

EDGES = (15.2, 15.4, 15.6, 15.8, 16.0, 16.2, 16.4, 16.6)
SEPARATION = 0.9
CHARGES = np.array([1, 2, 6, 14, 26])
ABUNDANCES = np.array([0.30, 0.30, 0.17, 0.12, 0.11])
LOW, HIGH = 14.6, 17.6
EXPOSURE = 3e11
"""m2 sr s"""
FLUX_AT_PEV = 2.5e-21
"""All particles at 1 PeV, m^-2 sr^-1 s^-1 eV^-1."""


@dataclass(frozen=True)
class Sky:
    """Fluxes with a smooth knee at a rigidity."""

    knee_pev: float = 4.4
    abundances: tuple[float, ...] = tuple(ABUNDANCES)
    before: float = 2.7
    after: float = 3.3
    sharpness: float = 0.25

    def flux(self, energy_ev: np.ndarray) -> np.ndarray:
        """Return fluxes (C, ...) in m^-2 sr^-1 s^-1 eV^-1."""
        knee = self.knee_pev * 1e15 * CHARGES.reshape(-1, *([1] * np.ndim(energy_ev)))
        height = FLUX_AT_PEV * np.reshape(self.abundances, knee.shape)
        bend = (1 + (energy_ev / knee) ** (1 / self.sharpness)) ** (self.sharpness * (self.before - self.after))
        return height * (energy_ev / 1e15) ** -self.before * bend


def observe(
    labels: np.ndarray, lg_energy: np.ndarray, rng: np.random.Generator, *, shift: float = 0.0
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return who is accepted, and what is measured of them (keywords of :class:`SpectrumEvents`)."""
    accepted = rng.random(len(labels)) < 0.9 / (1 + np.exp(-(lg_energy - 15.0 + 0.03 * labels) / 0.15))
    labels, lg_energy = labels[accepted], lg_energy[accepted]
    x = SEPARATION * labels + rng.normal(0, 1, len(labels)) + shift
    log_density = -0.5 * (x[:, None] - SEPARATION * np.arange(5)) ** 2
    log_proba = log_density - np.logaddexp.reduce(log_density, axis=1, keepdims=True)
    reconstructed = lg_energy + 0.02 * (labels - 2) + rng.normal(0, 0.1, len(labels))
    lg_nmu = reconstructed - 11 + 0.06 * x
    return accepted, {
        "log_proba": log_proba,
        "predicted": log_proba.argmax(axis=1),
        "lg_energy": reconstructed,
        "lg_ne": reconstructed - 10.2 - 0.05 * x,
        "lg_nmu": lg_nmu,
        "zenith_deg": rng.uniform(0, 18, len(labels)),
    }


def simulated(n: int, seed: int, bins: Binning | None = None) -> tuple[Simulated, Thrown]:
    """Throw ``n`` primaries as E^-2, all groups alike, two hadronic models that do not differ."""
    rng = np.random.default_rng(seed)
    bins = bins or binning(EDGES)
    labels, model = rng.integers(0, 5, n), rng.integers(0, 2, n)
    lg_energy = LOW - np.log10(1 - rng.random(n) * (1 - 10.0 ** (LOW - HIGH)))
    thrown = np.zeros((2, 5, len(bins.fine) - 1))
    np.add.at(thrown, (model, labels, bins.fine_bin_of(lg_energy)), 1)
    accepted, visited = observe(labels, lg_energy, rng)
    events = Simulated(**visited, labels=labels[accepted], true_lg_energy=lg_energy[accepted], model=model[accepted])
    return events, Thrown(bins.fine, thrown)


def measured(sky: Sky, seed: int, *, exposure: float = EXPOSURE, shift: float = 0.0) -> SpectrumEvents:
    """Observe a sky."""
    rng = np.random.default_rng(seed)
    fine = np.linspace(LOW, HIGH, 601)
    middle = 10.0 ** ((fine[1:] + fine[:-1]) / 2)
    counts = rng.poisson(sky.flux(middle) * np.diff(10.0**fine) * exposure)
    labels = np.repeat(np.arange(5), counts.sum(axis=1))
    cell = np.concatenate([np.repeat(np.arange(600), row) for row in counts])
    lg_energy = fine[cell] + rng.random(len(cell)) * np.diff(fine)[cell]
    return SpectrumEvents(**observe(labels, lg_energy, rng, shift=shift)[1])


def true_flux(sky: Sky, bins: Binning) -> np.ndarray:
    """Return the mean fluxes in the bins, (B, C)."""
    entries = []
    for low, high in zip(bins.edges[:-1], bins.edges[1:], strict=True):
        energy = 10.0 ** np.linspace(low, high, 401)
        entries.append(np.trapezoid(sky.flux(energy), energy, axis=1) / (energy[-1] - energy[0]))
    return np.array(entries)
