"""Trigger and standard reconstruction: what the experiment's own analysis makes of the readings.

Core and direction are the truth with errors; muon number, electron number and age are estimated from the grids with
the lateral distributions that the reconstruction assumes (KASCADE's, see :mod:`showerstack.showers.lateral`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from showerstack.runtime.rows import Rows
from showerstack.showers.kascade import reconstructed_energy
from showerstack.showers.lateral import MIN_R_M, MUON_R0_M, axis_distance, electron_normalisation, rho_muon
from showerstack.showers.simulation.cascade import Showers, mean_muon_age
from showerstack.showers.simulation.deposits import stations_of
from showerstack.showers.simulation.detector import CHUNK, Readings, energy_per_electron
from showerstack.showers.simulation.ground import KASCADES, GroundScales, ground_of
from showerstack.showers.simulation.primaries import PHOTON
from showerstack.showers.simulation.settings import Settings, Trigger

REFERENCE_HITS = 60.0
"""Hit stations at which the errors of core and direction are quoted [g]."""
AGE_RANGE = (0.10, 1.48)
"""Limits of the reconstructed age: those of the public data's ages [p]."""
TINY = np.float32(1e-30)
"""Keeps the sums over no station at all (saturated, or none beyond the least distance) from dividing by zero."""
FIRST_LG_NMU = 4.0
"""Size from which the mean muon age of the first pass is taken."""
NEWTON_STEPS = 5
MAX_STEP = 0.4
MIN_VARIANCE = 0.05
"""Steps of the age and the floor under the variance of G that keeps them finite [g]."""
MAX_ERROR_FACTOR = 3.0
"""Limit of what a small size adds to the errors of muon number and age [g]."""


@dataclass(frozen=True)
class Reconstructed(Rows):
    """Reconstructed quantities, all (N,) float64."""

    lg_energy: np.ndarray
    core_x_m: np.ndarray
    core_y_m: np.ndarray
    zenith_deg: np.ndarray
    azimuth_deg: np.ndarray
    lg_ne: np.ndarray
    lg_nmu: np.ndarray
    age: np.ndarray


def triggered(largest_cluster: np.ndarray, trigger: Trigger) -> np.ndarray:
    """Return which events have enough hit e/gamma stations in one cluster, (N,) bool."""
    return largest_cluster >= trigger.stations


def passes_selection(event: Reconstructed, trigger: Trigger) -> np.ndarray:
    """Return which events the standard selection of reconstructed showers keeps, (N,) bool.

    The floor of 100 muons (lg = 2 exactly) does not pass: events without a counted muon are lost.
    """
    radius = np.hypot(event.core_x_m, event.core_y_m)
    return (
        (event.lg_ne > trigger.lg_ne_min)
        & (event.lg_nmu > trigger.lg_nmu_min)
        & (event.zenith_deg < trigger.zenith_max_deg)
        & (radius < trigger.core_max_m)
    )


def reconstruct(
    showers: Showers, rows: np.ndarray, readings: Readings, settings: Settings, deviates: np.ndarray, chance: np.ndarray
) -> Reconstructed:
    """Reconstruct showers.

    Parameters
    ----------
    showers, rows
        True showers and the indices of those to reconstruct.
    readings
        Their readings, in the same order.
    deviates
        (6, n) standard normal: errors of core x, core y, zenith, azimuth, lg Nmu, age.
    chance
        (4, n) uniform: whether the muon number fails, and how.
    """
    primaries = showers.primaries
    hits = np.maximum(readings.hits, 5)
    constants = settings.reconstruction
    core_error = constants.core_m * np.clip(REFERENCE_HITS / hits, 0.4, 4.0)
    angle_error = constants.angle_deg * np.clip(np.sqrt(REFERENCE_HITS / hits), 0.7, 3.0)
    zenith_true = primaries.zenith_deg[rows]
    zenith_deg = np.abs(zenith_true + angle_error * deviates[2])
    turn = angle_error / np.maximum(np.sin(np.radians(zenith_true)), 0.05)
    azimuth_deg = np.mod(primaries.azimuth_deg[rows] + turn * deviates[3], 360.0)
    core_x_m = primaries.core_x_m[rows] + core_error * deviates[0]
    core_y_m = primaries.core_y_m[rows] + core_error * deviates[1]
    lg_ne, lg_nmu, age = sizes(readings, core_x_m, core_y_m, zenith_deg, azimuth_deg, deviates[5], settings)
    lg_nmu = lg_nmu + constants.lg_nmu_error * error_factor(lg_nmu, 4.5) * deviates[4]
    lg_nmu = with_failures(lg_nmu, primaries.mass[rows], settings, chance)
    lg_energy = reconstructed_energy(lg_ne, lg_nmu, zenith_deg)
    return Reconstructed(lg_energy, core_x_m, core_y_m, zenith_deg, azimuth_deg, lg_ne, lg_nmu, age)


def error_factor(lg_size: np.ndarray, reference: float) -> np.ndarray:
    """Return by what errors grow toward small sizes: as one over the root of the number, 1 at the reference."""
    return np.minimum(10.0 ** (0.5 * (reference - lg_size)), MAX_ERROR_FACTOR)


def with_failures(lg_nmu: np.ndarray, mass: np.ndarray, settings: Settings, chance: np.ndarray) -> np.ndarray:
    """Return lg Nmu after failures of its reconstruction, which leave the readings alone; hadrons only.

    A failed number lies uniformly in lg Nmu = 2.05..3.6 unless it was smaller; a partly lost one is lower by a
    uniform share of lg Nmu. Both are deduced from the real data's tails, not from a mechanism.
    """
    constants = settings.reconstruction
    hadron = mass != PHOTON
    a = np.maximum(mass, 1).astype(np.float64)
    lost = hadron & (chance[2] < constants.muon_loss * a**constants.muon_loss_mass)
    lg_nmu = lg_nmu - np.where(
        lost, constants.muon_loss_min + (constants.muon_loss_max - constants.muon_loss_min) * chance[3], 0.0
    )
    failed = hadron & (chance[0] < constants.muon_failure * a**constants.muon_failure_mass)
    return np.where(failed, np.minimum(lg_nmu, 2.05 + 1.55 * chance[1]), lg_nmu)


def sizes(
    readings: Readings,
    core_x_m: np.ndarray,
    core_y_m: np.ndarray,
    zenith_deg: np.ndarray,
    azimuth_deg: np.ndarray,
    deviates: np.ndarray,
    settings: Settings,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return lg Ne, lg Nmu and age, (n,) float64 each, estimated from the readings at a given axis.

    ``deviates``, (n,) standard normal, are the age's errors that the readings do not show. Estimated electron numbers
    below 1 (background subtracted from nothing) count as 1.
    """
    axes = np.column_stack([core_x_m, core_y_m, zenith_deg, azimuth_deg]).astype(np.float32)
    lg_ne, lg_nmu, age = (np.empty(len(axes)) for _ in range(3))
    here, ground = stations_of(readings.array), ground_of(readings.array)
    for begin in range(0, len(axes), CHUNK):
        part = slice(begin, begin + CHUNK)
        core_x, core_y, zenith, azimuth = (column[:, None] for column in axes[part].T)
        r_m = axis_distance(here.x_m, here.y_m, core_x, core_y, zenith, azimuth)
        cosine = np.cos(np.radians(zenith))
        lg_nmu[part], rho_mu = muon_number(
            readings.muon[part], r_m, here.muon_area_m2 * cosine, cosine, settings, ground
        )
        lg_ne[part], age[part] = electron_number(
            readings.electron[part],
            r_m,
            here.electron_area_m2 * cosine,
            cosine,
            rho_mu,
            deviates[part],
            settings,
            ground,
        )
    return lg_ne, lg_nmu, age


def muon_number(
    deposit: np.ndarray,
    r_m: np.ndarray,
    area_m2: np.ndarray,
    cosine: np.ndarray,
    settings: Settings,
    ground: GroundScales = KASCADES,
) -> tuple[np.ndarray, np.ndarray]:
    """Return lg Nmu and the density it implies: muons counted beyond 40 m over the sum of S cos(theta) f(r).

    f has the mean muon age at the estimated size, found in two passes.

    Parameters
    ----------
    deposit
        (n, S) float32, MeV in the muon detectors.
    r_m
        (n, S) float32, distances from the axis.
    area_m2
        (n, S) float32, sensitive areas seen along the axis.
    cosine
        (n, 1) of the zenith angle.

    Returns
    -------
    lg_nmu
        (n,) float32.
    rho_mu
        (n, S) float32, muons per m2 in the shower plane.
    """
    constants, muon_r0_m = settings.reconstruction, MUON_R0_M * ground.muon_scale
    area = (r_m > constants.muon_r_min_m) * area_m2
    muons = np.rint(deposit * (cosine / settings.detector.muon_mev) + np.float32(constants.muon_round))
    counted = (muons * ((area > 0.0) & (deposit > 0.0))).sum(axis=1)
    lg_nmu = np.full(len(deposit), FIRST_LG_NMU, dtype=np.float32)
    for _ in range(2):
        per_muon = rho_muon(r_m, np.float32(1.0), mean_muon_age(lg_nmu[:, None], 1.0 / cosine), muon_r0_m)
        n_mu = counted / np.maximum(np.einsum("ij,ij->i", area, per_muon), TINY)
        # The floor is taken in lg: rounded, lg 100 could exceed 2 and slip through the selection.
        lg_nmu = np.maximum(np.log10(np.maximum(n_mu, np.float32(1.0))), np.float32(np.log10(constants.min_muons)))
    return lg_nmu, np.float32(10.0) ** lg_nmu[:, None] * per_muon


def electron_number(
    deposit: np.ndarray,
    r_m: np.ndarray,
    area_m2: np.ndarray,
    cosine: np.ndarray,
    rho_mu: np.ndarray,
    deviates: np.ndarray,
    settings: Settings,
    ground: GroundScales = KASCADES,
) -> tuple[np.ndarray, np.ndarray]:
    """Return lg Ne and age, (n,) each, by moments of G = ln x + ln(1 + x), x = r/r0.

    ln rho is linear in the age with slope G, so that <G> of the data equals <G> of the model at the likelihood's
    maximum; five Newton steps from age 1. Ne is then the sum of electrons over the sum of the model's weights. The real
    reconstruction selects and weighs stations in its own way: its age gets a further error, and Ne follows the age.
    Stations near the axis and saturated ones are left out; negative electron numbers are allowed.

    Parameters
    ----------
    deposit
        (n, S) float32, MeV in the e/gamma detectors.
    r_m
        (n, S) float32, distances from the axis.
    area_m2
        (n, S) float32, sensitive areas seen along the axis.
    cosine
        (n, 1) of the zenith angle.
    rho_mu
        (n, S) muons per m2, to be subtracted.
    deviates
        (n,) standard normal.
    """
    constants, detector = settings.reconstruction, settings.detector
    r0_m = constants.electron_r0_m * ground.electron_scale
    particles = deposit * (cosine / detector.electron_mev) - rho_mu * area_m2 - np.float32(detector.electron_stray)
    used = (r_m > constants.electron_r_min_m) & (deposit < detector.electron_cap_mev)
    electrons = used * particles / energy_per_electron(r_m, settings)
    x = np.maximum(r_m, MIN_R_M) / np.float32(r0_m)
    log_x, log_1x = np.log(x), np.log1p(x)
    g = log_x + log_1x
    at_one = used * area_m2 * np.exp(np.float32(-0.5) * log_x - np.float32(2.6) * log_1x)
    total = electrons.sum(axis=1)
    bright = total > 0.0
    target = np.einsum("ij,ij->i", electrons, g) / np.where(bright, total, np.float32(1.0))
    age = np.ones(len(total), dtype=np.float32)
    for _ in range(NEWTON_STEPS):
        weight = at_one * np.exp((age[:, None] - 1.0) * g)
        norm = np.maximum(weight.sum(axis=1), TINY)
        weight *= g
        mean = weight.sum(axis=1) / norm
        variance = np.einsum("ij,ij->i", weight, g) / norm - mean * mean
        step = np.clip((target - mean) / np.maximum(variance, MIN_VARIANCE), -MAX_STEP, MAX_STEP)
        age = np.clip(age + np.where(bright, step, np.float32(0.0)), *AGE_RANGE)

    def lg_number(age: np.ndarray) -> np.ndarray:
        weight = at_one * np.exp((age[:, None] - 1.0) * g)
        c = electron_normalisation(age, r0_m)
        return np.asarray(np.log10(np.maximum(total / np.maximum(weight.sum(axis=1) * c, TINY), 1.0)))

    if constants.age_error > 0.0:
        error = constants.age_error * error_factor(lg_number(age), 5.0) * deviates
        age = np.clip(age + error.astype(np.float32), *AGE_RANGE)
    return lg_number(age), age
