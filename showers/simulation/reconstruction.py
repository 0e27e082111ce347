"""Trigger and standard reconstruction: what the experiment's own analysis makes of the readings.

Core and direction are the truth with errors; muon number, electron number and age are estimated from the grids with
the lateral distributions that the reconstruction assumes (KASCADE's, see :mod:`showers.lateral`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import NamedTuple, Self

import numba
import numpy as np

from showers.lateral import MIN_R_M, MUON_R0_M, electron_normalisation, muon_normalisation
from showers.simulation.cascade import Showers, mean_muon_age
from showers.simulation.detector import ELECTRON_AREA_M2, MUON_AREA_M2, N_CELLS, X_M, Y_M, Readings
from showers.simulation.settings import Settings, Trigger
from showers.simulation.spectrum import PHOTON

REFERENCE_HITS = 60.0
"""Hit stations at which the errors of core and direction are quoted [g]."""
AGE_RANGE = (0.15, 1.75)
"""Limits of the reconstructed age [g]."""
FIRST_LG_NMU = 4.0
"""Size from which the mean muon shape of the first pass is taken."""
MAX_ENERGY_ZENITH_RAD = 1.05
"""The energy formula is not extrapolated beyond this zenith [g]."""


@dataclass(frozen=True)
class Reconstructed:
    """Reconstructed quantities, all (N,) float64."""

    lg_energy: np.ndarray
    core_x_m: np.ndarray
    core_y_m: np.ndarray
    zenith_deg: np.ndarray
    azimuth_deg: np.ndarray
    lg_ne: np.ndarray
    lg_nmu: np.ndarray
    age: np.ndarray

    def take(self, rows: np.ndarray) -> Self:
        """Return the given events."""
        return type(self)(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


class Convention(NamedTuple):
    """Constants of the size estimates as the kernel takes them."""

    electron_r0_m: float
    electron_mev: float
    photon_share: float
    photon_share_core: float
    photon_core_m: float
    electron_stray: float
    electron_cap_mev: float
    muon_mev: float
    electron_r_min_m: float
    muon_r_min_m: float
    muon_round: float
    min_muons: float


def triggered(largest_cluster: np.ndarray, trigger: Trigger) -> np.ndarray:
    """Return which events have enough hit e/gamma stations in one cluster, (N,) bool."""
    return largest_cluster >= trigger.stations


def kept(event: Reconstructed, trigger: Trigger) -> np.ndarray:
    """Return which events the standard selection of reconstructed showers keeps, (N,) bool.

    Sizes are compared in float32, as stored: the floor of 100 muons (lg = 2) passes "at least 2".
    """
    radius = np.hypot(event.core_x_m, event.core_y_m)
    return (
        (event.lg_ne > trigger.lg_ne_min)
        & (event.lg_nmu.astype(np.float32) >= np.float32(trigger.lg_nmu_min))
        & (event.zenith_deg < trigger.zenith_max_deg)
        & (radius < trigger.core_max_m)
    )


def reconstruct(
    showers: Showers, rows: np.ndarray, readings: Readings, settings: Settings, deviates: np.ndarray, chance: np.ndarray
) -> Reconstructed:
    """Reconstruct the showers in ``rows``.

    Parameters
    ----------
    showers, rows
        True showers and the indices of those that were read out.
    readings
        Readings of the showers in ``rows``, in the same order.
    settings
        The world.
    deviates
        (4, n) standard normal: errors of core x, core y, zenith, azimuth.
    chance
        (2, n) uniform: whether the muon number fails, and how.
    """
    primaries = showers.primaries
    hits = np.maximum(readings.hits, 5)
    own = settings.reconstruction
    core_error = own.core_m * np.clip(REFERENCE_HITS / hits, 0.4, 4.0)
    angle_error = own.angle_deg * np.clip(np.sqrt(REFERENCE_HITS / hits), 0.7, 3.0)
    zenith_true = primaries.zenith_deg[rows]
    zenith_deg = np.abs(zenith_true + angle_error * deviates[2])
    turn = own.angle_deg / np.maximum(np.sin(np.radians(zenith_true)), 0.05)
    azimuth_deg = np.mod(primaries.azimuth_deg[rows] + turn * deviates[3], 360.0)
    core_x_m = primaries.core_x_m[rows] + core_error * deviates[0]
    core_y_m = primaries.core_y_m[rows] + core_error * deviates[1]
    lg_ne, lg_nmu, age = sizes(readings.grids, core_x_m, core_y_m, zenith_deg, azimuth_deg, settings)
    mass = primaries.mass[rows]
    probability = np.minimum(own.muon_failure * np.maximum(mass, 1) ** own.muon_failure_mass, 1.0)
    failed = (mass != PHOTON) & (chance[0] < probability)
    lg_nmu = np.where(failed, np.minimum(lg_nmu, 2.05 + 1.55 * chance[1]), lg_nmu)
    lg_energy = energy(lg_ne, lg_nmu, zenith_deg)
    return Reconstructed(lg_energy, core_x_m, core_y_m, zenith_deg, azimuth_deg, lg_ne, lg_nmu, age)


def sizes(
    grids: np.ndarray,
    core_x_m: np.ndarray,
    core_y_m: np.ndarray,
    zenith_deg: np.ndarray,
    azimuth_deg: np.ndarray,
    settings: Settings,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return lg Ne, lg Nmu and age, (n,) each, estimated from the readings at a given axis.

    Estimated electron numbers below 1 (background subtracted from nothing) count as 1.
    """
    n = len(grids)
    zenith, azimuth = np.radians(zenith_deg), np.radians(azimuth_deg)
    secant = 1.0 / np.cos(zenith)
    axes = np.column_stack(
        [core_x_m, core_y_m, np.sin(zenith) * np.cos(azimuth), np.sin(zenith) * np.sin(azimuth), np.cos(zenith)]
    )
    convention = _convention(settings)
    cells = grids.reshape(n, N_CELLS, 2)
    n_mu = np.empty(n)
    lg_nmu = np.full(n, FIRST_LG_NMU)
    for _ in range(2):
        muon_age = mean_muon_age(lg_nmu, secant)
        _muon_number(cells, axes, muon_age, convention, n_mu)
        n_mu = np.maximum(n_mu / muon_normalisation(muon_age), convention.min_muons)
        lg_nmu = np.log10(n_mu)
    muon_age = mean_muon_age(lg_nmu, secant)
    weight, age = np.empty(n), np.empty(n)
    _electron_number(cells, axes, muon_age, n_mu * muon_normalisation(muon_age), convention, weight, age)
    # The normalisation is a density only below 1.55; older showers are quoted with that of the limit.
    n_e = weight / electron_normalisation(np.minimum(age, 1.549), convention.electron_r0_m)
    return np.log10(np.maximum(n_e, 1.0)), lg_nmu, age


def energy(lg_ne: np.ndarray, lg_nmu: np.ndarray, zenith_deg: np.ndarray) -> np.ndarray:
    """Return lg(E/eV) from sizes and zenith by KASCADE's formula (constant term fitted).

    a = lgNe + 3.0 (sec-1), b = lgNmu + 0.5 (sec-1);
    lgE = 9 + 1.905 + 0.25788 a + 0.66704 b + 0.07507 a^2 + 0.09277 b^2 - 0.16131 a b.
    """
    secant = 1.0 / np.cos(np.minimum(np.radians(zenith_deg), MAX_ENERGY_ZENITH_RAD))
    a = lg_ne + 3.0 * (secant - 1.0)
    b = lg_nmu + 0.5 * (secant - 1.0)
    return 10.905 + 0.25788 * a + 0.66704 * b + 0.07507 * a * a + 0.09277 * b * b - 0.16131 * a * b


def _convention(settings: Settings) -> Convention:
    values = settings.detector.model_dump() | settings.reconstruction.model_dump()
    return Convention(**{name: float(values[name]) for name in Convention._fields})


@numba.njit(cache=True, nogil=True)
def _muon_number(cells: np.ndarray, axes: np.ndarray, muon_age: np.ndarray, c: Convention, number: np.ndarray) -> None:
    """Fill ``number`` with counted muons over the sum of S cos(theta) f(r), f without its normalisation."""
    for k in range(len(cells)):
        core_x, core_y, u_x, u_y, cosine = axes[k]
        counted, expected = 0.0, 0.0
        for j in range(N_CELLS):
            if MUON_AREA_M2[j] == 0.0:
                continue
            dx, dy = X_M[j] - core_x, Y_M[j] - core_y
            along = dx * u_x + dy * u_y
            r = math.sqrt(max(dx * dx + dy * dy - along * along, MIN_R_M * MIN_R_M))
            if r <= c.muon_r_min_m:
                continue
            y = r / MUON_R0_M
            expected += math.exp((muon_age[k] - 2.0) * math.log(y) + (muon_age[k] - 4.5) * math.log1p(y))
            if cells[k, j, 1] > 0.0:
                counted += np.rint(cells[k, j, 1] * cosine / c.muon_mev + c.muon_round)
        number[k] = counted / (expected * MUON_AREA_M2.max() * cosine)


@numba.njit(cache=True, nogil=True)
def _electron_number(
    cells: np.ndarray,
    axes: np.ndarray,
    muon_age: np.ndarray,
    muon_density: np.ndarray,
    c: Convention,
    weight: np.ndarray,
    age: np.ndarray,
) -> None:
    """Fill ``age`` by moments of G = ln x + ln(1 + x), x = r/r0, and ``weight`` with Ne times the normalisation.

    ln rho is linear in the age with slope G, so that <G> of the data equals <G> of the model at the solution.
    """
    g, base, electrons = np.empty(N_CELLS), np.empty(N_CELLS), np.empty(N_CELLS)
    for k in range(len(cells)):
        core_x, core_y, u_x, u_y, cosine = axes[k]
        n, total, moment = 0, 0.0, 0.0
        for j in range(N_CELLS):
            area = ELECTRON_AREA_M2[j]
            if area == 0.0 or cells[k, j, 0] >= c.electron_cap_mev:
                continue
            dx, dy = X_M[j] - core_x, Y_M[j] - core_y
            along = dx * u_x + dy * u_y
            r = math.sqrt(max(dx * dx + dy * dy - along * along, MIN_R_M * MIN_R_M))
            if r <= c.electron_r_min_m:
                continue
            x, y = r / c.electron_r0_m, r / MUON_R0_M
            rho_mu = muon_density[k] * math.exp((muon_age[k] - 2.0) * math.log(y) + (muon_age[k] - 4.5) * math.log1p(y))
            particles = cells[k, j, 0] * cosine / c.electron_mev - rho_mu * area * cosine - c.electron_stray
            per_electron = 1.0 + c.photon_share + c.photon_share_core * math.exp(-r / c.photon_core_m)
            log_x, log_1x = math.log(x), math.log1p(x)
            g[n] = log_x + log_1x
            # ln of S cos(theta) rho at age 1, in units of the normalisation
            base[n] = math.log(area * cosine) - 0.5 * log_x - 2.6 * log_1x
            electrons[n] = particles / per_electron
            total += electrons[n]
            moment += electrons[n] * g[n]
            n += 1
        age[k] = _solve_age(g, base, n, moment / total) if total > 0.0 else 1.0
        model = 0.0
        for i in range(n):
            model += math.exp(base[i] + (age[k] - 1.0) * g[i])
        weight[k] = total / model if model > 0.0 else 0.0


@numba.njit(cache=True)
def _solve_age(g: np.ndarray, base: np.ndarray, n: int, target: float) -> float:
    """Return the age at which the model's <G> is ``target``: 5 Newton steps of at most 0.4 from 1."""
    age = 1.0
    for _ in range(5):
        s0, s1, s2 = 0.0, 0.0, 0.0
        for i in range(n):
            w = math.exp(base[i] + (age - 1.0) * g[i])
            s0 += w
            s1 += w * g[i]
            s2 += w * g[i] * g[i]
        mean = s1 / s0
        step = (target - mean) / max(s2 / s0 - mean * mean, 0.05)
        age = min(max(age + min(max(step, -0.4), 0.4), AGE_RANGE[0]), AGE_RANGE[1])
    return age
