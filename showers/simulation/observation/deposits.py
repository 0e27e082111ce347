"""What the detectors of a station read: particle counts and their deposits, in compiled kernels.

Counts are Poisson, deposits compounds of Gamma distributions. Every station of every event draws from a random stream
of its own (:mod:`showers.simulation.observation.deviates`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numba
import numpy as np

from showers.execution.kernels import kernel
from showers.simulation.observation import deviates
from showers.simulation.observation.stations import Stations

FEW = 1.0
"""Below this expected number of particles, of all kinds together, one count is drawn and split by kind."""
CLUMP_AMPLITUDE = np.sqrt([1 / 3, 0.15, 0.0625, 0.0625, 0.0625, 0.0625])
"""Clumping: rms of the azimuthal modes m = 1..6 [m]; the rest of the variance is finer and drawn per station."""
CLUMP_FINE = math.sqrt(1.0 - float((CLUMP_AMPLITUDE**2).sum()))
CLUMP_NEGLIGIBLE = 0.02
"""Clumping below this rms is not simulated: Poisson fluctuations of any triggered shower are far larger [g]."""
CLUMP_ELECTRONS = 0.5
"""Clumping is not simulated where fewer electrons than this are expected in a station."""
CLUMP_FLAT_M = 15.0
"""Inside this radius the fluctuation falls linearly towards the axis [m]."""


class DetectorConstants(NamedTuple):
    """The detector's constants as the kernel takes them; see :class:`showers.simulation.settings.Detector`."""

    electron_mev: float
    electron_shape: float
    muon_in_electron_shape: float
    electron_threshold_mev: float
    electron_stray: float
    electron_cap_mev: float
    muon_mev: float
    muon_shape: float
    muon_threshold_mev: float
    muon_stray: float
    muon_cap_mev: float
    punch_mev: float
    muon_overlap: float
    dead: float


@kernel(nogil=True)
def draw_deposits(
    mean_electrons: np.ndarray,
    muon_density: np.ndarray,
    mean_punch: np.ndarray,
    per_electron: np.ndarray,
    cosine: np.ndarray,
    core_and_sigma: np.ndarray,
    modes: np.ndarray,
    keys: np.ndarray,
    c: DetectorConstants,
    here: Stations,
    trigger_stations: int,
    electron: np.ndarray,
    muon: np.ndarray,
    hits: np.ndarray,
    largest: np.ndarray,
) -> None:
    """Draw the readings of n showers into ``electron``, ``muon`` (n, S), ``hits`` and ``largest`` (n,).

    Parameters are what the stations expect (``expected`` in ``detector.py``), the cosine of the zenith, core and
    clumping of each shower, its clumping modes (n, 6, 2) and its random key, the detector's constants and the
    S stations of the array. Without a trigger (so many hit e/gamma stations in a cluster) the muon detectors are not
    drawn. The muon detector of a station lies under its e/gamma detectors: a share of the muons that were counted
    above crosses it as well, and is not drawn again.
    """
    state = np.empty(1, dtype=np.uint64)
    n_stations = len(here.x_m)
    above = np.empty(n_stations, dtype=np.int64)
    clusters = np.empty(here.cluster.max() + 1, dtype=np.int64)
    for k in range(len(keys)):
        clusters[:] = 0
        above[:] = 0
        core_x, core_y, sigma = core_and_sigma[k]
        for j in range(n_stations):
            deviates.start(state, keys[k], here.streams[j])
            mean_e = mean_electrons[k, j]
            if sigma > 0.0 and mean_e > CLUMP_ELECTRONS:
                mean_e *= max(0.0, 1.0 + sigma * _clump(state, modes[k], here.x_m[j] - core_x, here.y_m[j] - core_y))
            mean_mu = muon_density[k, j] * here.electron_area_m2[j]
            u = deviates.uniform(state)
            if u < 1.0 - (mean_e + mean_mu + c.electron_stray):
                continue  # u is below exp(-sum), the probability of no particle: the usual case, decided cheaply
            deposit, above[j] = _electron_deposit(state, u, mean_e, mean_mu, per_electron[k, j], cosine[k], c)
            if deposit > 0.0 and not _is_dead(state, keys[k], here.streams[2 * n_stations + j], c.dead):
                electron[k, j] = deposit
                hits[k] += 1
                clusters[here.cluster[j]] += 1
        largest[k] = clusters.max()
        if largest[k] < trigger_stations:
            continue
        for j in range(n_stations):
            if here.muon_area_m2[j] == 0.0:
                continue
            deviates.start(state, keys[k], here.streams[n_stations + j])
            shared = min(c.muon_overlap * here.electron_area_m2[j], here.muon_area_m2[j])
            mean_mu = muon_density[k, j] * (here.muon_area_m2[j] - shared)
            u = deviates.uniform(state)
            if above[j] == 0 and u < 1.0 - (mean_mu + mean_punch[k, j] + c.muon_stray):
                continue
            both = _crossing(state, above[j], shared / here.electron_area_m2[j])
            deposit = _muon_deposit(state, u, both, mean_mu, mean_punch[k, j], cosine[k], c)
            if deposit > 0.0 and not _is_dead(state, keys[k], here.streams[2 * n_stations + j], c.dead):
                muon[k, j] = deposit


@numba.njit
def _clump(state: np.ndarray, modes: np.ndarray, dx: float, dy: float) -> float:
    """Return the relative density fluctuation at a station: azimuthal modes plus a finer, skewed part."""
    d = math.sqrt(dx * dx + dy * dy) + 1e-6
    cosine, sine = dx / d, dy / d
    re, im = 1.0, 0.0
    total = CLUMP_FINE * (deviates.exponential(state) - 1.0)
    for m in range(len(CLUMP_AMPLITUDE)):
        re, im = re * cosine - im * sine, re * sine + im * cosine
        total += CLUMP_AMPLITUDE[m] * (modes[m, 0] * re + modes[m, 1] * im)
    return total * min(1.0, d / CLUMP_FLAT_M)


@numba.njit
def _is_dead(state: np.ndarray, key: np.uint64, stream: np.uint64, probability: float) -> bool:
    """Return whether a station is dead for this event: in both its detectors, or in none."""
    if probability == 0.0:
        return False
    deviates.start(state, key, stream)
    return deviates.uniform(state) < probability


@numba.njit
def _counts(state: np.ndarray, u: float, mean_1: float, mean_2: float, mean_3: float) -> tuple[int, int, int]:
    """Return three independent Poisson numbers; few particles from the uniform ``u`` by splitting their sum."""
    total = mean_1 + mean_2 + mean_3
    if total >= FEW:
        return deviates.poisson(state, mean_1), deviates.poisson(state, mean_2), deviates.poisson(state, mean_3)
    n_1, n_2, n_3 = 0, 0, 0
    for _ in range(deviates.poisson_inverse(u, total)):
        kind = deviates.uniform(state) * total
        if kind < mean_1:
            n_1 += 1
        elif kind < mean_1 + mean_2:
            n_2 += 1
        else:
            n_3 += 1
    return n_1, n_2, n_3


@numba.njit
def _electron_deposit(
    state: np.ndarray, u: float, mean_e: float, mean_mu: float, per_electron: float, cosine: float, c: DetectorConstants
) -> tuple[float, int]:
    """Return the reading of an e/gamma detector, MeV (electrons with their photons, muons, strays), and its muons."""
    n_e, n_mu, n_stray = _counts(state, u, mean_e, mean_mu, c.electron_stray)
    deposit = c.electron_mev * n_stray
    if n_e + n_mu > 0:
        shape = c.electron_shape * n_e + c.muon_in_electron_shape * n_mu
        deposit += c.electron_mev / cosine * (per_electron * n_e + n_mu) * deviates.gamma(state, shape) / shape
    if deposit < c.electron_threshold_mev:
        return 0.0, n_mu
    return min(deposit, c.electron_cap_mev), n_mu


@numba.njit
def _crossing(state: np.ndarray, n: int, probability: float) -> int:
    """Return how many of ``n`` muons through the e/gamma detector cross the muon detector below."""
    found = 0
    for _ in range(n):
        if deviates.uniform(state) < probability:
            found += 1
    return found


@numba.njit
def _muon_deposit(
    state: np.ndarray, u: float, both: int, mean_mu: float, mean_punch: float, cosine: float, c: DetectorConstants
) -> float:
    """Return the reading of a muon detector, MeV: muons, punch-through of the electromagnetic core, strays.

    ``both`` muons came through the e/gamma detector; ``mean_mu`` others are expected beside it.
    """
    n_mu, n_punch, n_stray = _counts(state, u, mean_mu, mean_punch, c.muon_stray)
    n_mu += both
    deposit = c.muon_mev * n_stray
    if n_mu > 0:
        shape = c.muon_shape * n_mu
        deposit += c.muon_mev / cosine * n_mu * deviates.gamma(state, shape) / shape
    if n_punch > 0:
        deposit += c.punch_mev * deviates.gamma(state, float(n_punch))
    if deposit < c.muon_threshold_mev:
        return 0.0
    return min(deposit, c.muon_cap_mev)
