"""Random numbers, counts and deposits of stations (:mod:`showerstack.showers.simulation.deposits`), compiled."""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

from showerstack.runtime.kernels import kernel
from showerstack.showers.simulation.deposits import (
    CLUMP_AMPLITUDE,
    CLUMP_ELECTRONS,
    CLUMP_FINE,
    CLUMP_FLAT_M,
    FEW,
    STEP,
    DetectorConstants,
    Stations,
    mix,
)

_mix: Any = numba.njit(inline="always")(mix)
_S11 = np.uint64(11)
_TO_UNIT = 1.0 / 9007199254740992.0
"""2^-53."""
INVERSION_LIMIT = 12.0
"""Poisson means below are sampled by inversion, others by transformed rejection."""


@numba.njit
def start(state: np.ndarray, key: np.uint64, offset: np.uint64) -> None:
    """Begin the stream with the given offset for the event ``key`` in ``state``, a (1,) uint64 array."""
    state[0] = _mix(key + offset)


@numba.njit
def uniform(state: np.ndarray) -> float:
    """Return a uniform number in 0 < u < 1 (53 bits, never 0)."""
    state[0] += STEP
    return (np.float64(_mix(state[0]) >> _S11) + 0.5) * _TO_UNIT


@numba.njit
def exponential(state: np.ndarray) -> float:
    """Return an exponential number of mean 1."""
    return -math.log(uniform(state))


@numba.njit
def normal(state: np.ndarray) -> float:
    """Return a standard normal number (Box and Muller 1958)."""
    radius = math.sqrt(-2.0 * math.log(uniform(state)))
    return radius * math.cos(2.0 * math.pi * uniform(state))


@numba.njit
def gamma(state: np.ndarray, shape: float) -> float:
    """Return a Gamma number of the given shape and scale 1 (Marsaglia and Tsang, ACM TOMS 26 (2000) 363)."""
    boost = 1.0
    if shape < 1.0:
        boost = math.exp(math.log(uniform(state)) / shape)
        shape += 1.0
    d = shape - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    while True:
        x = normal(state)
        v = 1.0 + c * x
        if v <= 0.0:
            continue
        v = v * v * v
        u = uniform(state)
        x_2 = x * x
        # The first condition is the paper's squeeze: it spares the logarithms nearly always.
        if u < 1.0 - 0.0331 * x_2 * x_2 or math.log(u) < 0.5 * x_2 + d - d * v + d * math.log(v):
            return boost * d * v


@numba.njit
def poisson(state: np.ndarray, mean: float) -> int:
    """Return a Poisson number.

    Small means by inversion of one uniform number; large ones by transformed rejection with squeeze
    (PTRS of W. Hörmann, Insurance: Mathematics and Economics 12 (1993) 39).
    """
    if mean <= 0.0:
        return 0
    if mean < INVERSION_LIMIT:
        return poisson_inverse(uniform(state), mean)
    b = 0.931 + 2.53 * math.sqrt(mean)
    a = -0.059 + 0.02483 * b
    inverse_alpha = 1.1239 + 1.1328 / (b - 3.4)
    v_r = 0.9277 - 3.6224 / (b - 2.0)
    log_mean = math.log(mean)
    while True:
        u = uniform(state) - 0.5
        v = uniform(state)
        u_s = 0.5 - abs(u)
        k = math.floor((2.0 * a / u_s + b) * u + mean + 0.43)
        if u_s >= 0.07 and v <= v_r:
            return int(k)
        if k < 0.0 or (u_s < 0.013 and v > u_s):
            continue
        left = math.log(v * inverse_alpha / (a / (u_s * u_s) + b))
        if left <= k * log_mean - mean - math.lgamma(k + 1.0):
            return int(k)


@numba.njit
def poisson_inverse(u: float, mean: float) -> int:
    """Return the Poisson number that belongs to the uniform number ``u``, for means below about 20."""
    term = math.exp(-mean)
    total = term
    k = 0
    while u > total and k < 200:
        k += 1
        term *= mean / k
        total += term
    return k


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
    state: np.ndarray,
    above: np.ndarray,
    clusters: np.ndarray,
    electron: np.ndarray,
    muon: np.ndarray,
    hits: np.ndarray,
    largest: np.ndarray,
) -> None:
    """Draw the readings of n showers into ``electron``, ``muon`` (n, S), ``hits`` and ``largest`` (n,).

    Parameters are what the stations expect (``expected`` in :mod:`showerstack.showers.simulation.detector`), the
    cosine of the zenith, core and clumping of each shower, its clumping modes (n, 6, 2) and its random key, the
    detector's constants and the S stations of the array; ``state`` (1,) uint64, ``above`` (S,) and ``clusters``, one
    for each, int64, to work in. Without a trigger (so many hit e/gamma stations in a cluster)
    the muon detectors are not drawn. The muon detector of a station lies under its e/gamma detectors: a share of the
    muons that were counted above crosses it as well, and is not drawn again.
    """
    n_stations = len(here.x_m)
    for k in range(len(keys)):
        for j in range(len(clusters)):
            clusters[j] = 0
        for j in range(n_stations):
            above[j] = 0
        core_x, core_y, sigma = core_and_sigma[k, 0], core_and_sigma[k, 1], core_and_sigma[k, 2]
        for j in range(n_stations):
            if here.electron_area_m2[j] == 0.0:
                continue
            start(state, keys[k], here.streams[j])
            mean_e = mean_electrons[k, j]
            if sigma > 0.0 and mean_e > CLUMP_ELECTRONS:
                mean_e *= max(0.0, 1.0 + sigma * _clump(state, modes[k], here.x_m[j] - core_x, here.y_m[j] - core_y))
            mean_mu = muon_density[k, j] * here.electron_area_m2[j]
            u = uniform(state)
            if u < 1.0 - (mean_e + mean_mu + c.electron_stray):
                continue  # u is below exp(-sum), the probability of no particle: the usual case, decided cheaply
            deposit, above[j] = _electron_deposit(state, u, mean_e, mean_mu, per_electron[k, j], cosine[k], c)
            if deposit > 0.0 and not _is_dead(state, keys[k], here.streams[2 * n_stations + j], c.dead):
                electron[k, j] = deposit
                hits[k] += 1
                clusters[here.cluster[j]] += 1
        for j in range(len(clusters)):
            largest[k] = max(largest[k], clusters[j])
        if largest[k] < trigger_stations:
            continue
        for j in range(n_stations):
            if here.muon_area_m2[j] == 0.0:
                continue
            start(state, keys[k], here.streams[n_stations + j])
            shared = min(c.muon_overlap * here.electron_area_m2[j], here.muon_area_m2[j])
            mean_mu = muon_density[k, j] * (here.muon_area_m2[j] - shared)
            u = uniform(state)
            if above[j] == 0 and u < 1.0 - (mean_mu + mean_punch[k, j] + c.muon_stray):
                continue
            both = _crossing(state, above[j], shared / here.electron_area_m2[j]) if above[j] > 0 else 0
            deposit = _muon_deposit(state, u, both, mean_mu, mean_punch[k, j], cosine[k], c)
            if deposit > 0.0 and not _is_dead(state, keys[k], here.streams[2 * n_stations + j], c.dead):
                muon[k, j] = deposit


@numba.njit
def _clump(state: np.ndarray, modes: np.ndarray, dx: float, dy: float) -> float:
    """Return the relative density fluctuation at a station: azimuthal modes plus a finer, skewed part."""
    d = math.sqrt(dx * dx + dy * dy) + 1e-6
    cosine, sine = dx / d, dy / d
    re, im = 1.0, 0.0
    total = CLUMP_FINE * (exponential(state) - 1.0)
    for m in range(len(CLUMP_AMPLITUDE)):
        re, im = re * cosine - im * sine, re * sine + im * cosine
        total += CLUMP_AMPLITUDE[m] * (modes[m, 0] * re + modes[m, 1] * im)
    return total * min(1.0, d / CLUMP_FLAT_M)


@numba.njit
def _is_dead(state: np.ndarray, key: np.uint64, stream: np.uint64, probability: float) -> bool:
    """Return whether a station is dead for this event: in both its detectors, or in none."""
    if probability == 0.0:
        return False
    start(state, key, stream)
    return uniform(state) < probability


@numba.njit
def _counts(state: np.ndarray, u: float, mean_1: float, mean_2: float, mean_3: float) -> tuple[int, int, int]:
    """Return three independent Poisson numbers; few particles from the uniform ``u`` by splitting their sum."""
    total = mean_1 + mean_2 + mean_3
    if total >= FEW:
        return poisson(state, mean_1), poisson(state, mean_2), poisson(state, mean_3)
    n_1, n_2, n_3 = 0, 0, 0
    for _ in range(poisson_inverse(u, total)):
        kind = uniform(state) * total
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
        deposit += c.electron_mev / cosine * (per_electron * n_e + n_mu) * gamma(state, shape) / shape
    if deposit < c.electron_threshold_mev:
        return 0.0, n_mu
    return min(deposit, c.electron_cap_mev), n_mu


@numba.njit
def _crossing(state: np.ndarray, n: int, probability: float) -> int:
    """Return how many of ``n`` muons through the e/gamma detector cross the muon detector below."""
    result = 0
    for _ in range(n):
        if uniform(state) < probability:
            result += 1
    return result


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
        deposit += c.muon_mev / cosine * n_mu * gamma(state, shape) / shape
    if n_punch > 0:
        deposit += c.punch_mev * gamma(state, float(n_punch))
    if deposit < c.muon_threshold_mev:
        return 0.0
    return min(deposit, c.muon_cap_mev)
