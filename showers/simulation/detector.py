"""From densities to energy deposits: what the 252 stations read for a shower.

One compiled kernel walks over the stations of an event; a station's mean comes from the lateral distributions, its
count is Poisson, its deposit a compound of Gamma distributions. The stations draw from streams of their own.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numba
import numpy as np

from showers import array
from showers.lateral import MIN_R_M, MUON_R0_M, electron_normalisation, muon_normalisation
from showers.simulation import deviates
from showers.simulation.cascade import Showers
from showers.simulation.settings import Settings
from showers.simulation.spectrum import PHOTON

N_CELLS = array.SIDE * array.SIDE
X_M = array.X_M.ravel().copy()
Y_M = array.Y_M.ravel().copy()
ELECTRON_AREA_M2 = array.ELECTRON_AREA_M2.ravel().copy()
MUON_AREA_M2 = array.MUON_DETECTOR_AREA_M2.ravel().copy()
CLUSTER = array.CLUSTER.ravel().copy()
N_CLUSTERS = int(CLUSTER.max()) + 1
NEGLIGIBLE = 1e-12
"""Probability per station below which a component is not even drawn (exponentials beyond 27 ranges)."""
CLUMP_MODES = 6
CLUMP_VARIANCE = np.array([1 / 3, 0.15, 0.0625, 0.0625, 0.0625, 0.0625])
"""Shares of the clumping variance in the azimuthal modes m = 1..6 [m]; the rest is finer and drawn per station."""
CLUMP_FINE = 1.0 - float(CLUMP_VARIANCE.sum())
CLUMP_NEGLIGIBLE = 0.004
"""Clumping below this rms is not simulated: Poisson fluctuations of any triggered shower are far larger [g]."""
CLUMP_STREAM = N_CELLS
"""Random stream of an event beside those of its stations."""


class Response(NamedTuple):
    """The detector's constants as the kernel takes them; see :class:`showers.simulation.settings.Detector`."""

    electron_r0_m: float
    electron_mev: float
    electron_shape: float
    muon_in_electron_shape: float
    photon_share: float
    photon_share_core: float
    photon_core_m: float
    electron_threshold_mev: float
    electron_stray: float
    electron_cap_mev: float
    muon_mev: float
    muon_shape: float
    muon_threshold_mev: float
    muon_stray: float
    muon_cap_mev: float
    punch_range_m: float
    punch_mev: float
    dead: float


class Readings(NamedTuple):
    """What the array recorded."""

    grids: np.ndarray
    """(N, 16, 16, 2) float32, MeV."""
    hits: np.ndarray
    """(N,) int64: e/gamma stations above threshold."""
    largest_cluster: np.ndarray
    """(N,) int64: most of them in one cluster of 4 x 4."""


def response_of(settings: Settings) -> Response:
    """Collect the kernel's constants from the settings."""
    values = settings.detector.model_dump() | {"electron_r0_m": settings.shape.electron_r0_m}
    return Response(**{name: float(values[name]) for name in Response._fields})


def clump_sigma(showers: Showers, settings: Settings) -> np.ndarray:
    """Return the rms azimuthal fluctuation of the electron density beyond Poisson, (N,); photons have none.

    0.055 * 10^(-0.72 (lgE - 14.5)) for protons and 2.2 times that for iron, between them as a power of A.
    """
    shape = settings.shape
    mass = showers.primaries.mass
    power = math.log(max(shape.clump_iron_factor, 1e-9)) / math.log(56.0)
    sigma = shape.clump_sigma * 10.0 ** (shape.clump_slope * (showers.primaries.lg_energy - 14.5))
    sigma = np.minimum(sigma * np.maximum(mass, 1) ** power, 0.5)
    return np.where((mass == PHOTON) | (sigma < CLUMP_NEGLIGIBLE), 0.0, sigma)


def read_out(showers: Showers, settings: Settings, keys: np.ndarray, rows: np.ndarray) -> Readings:
    """Simulate the stations' deposits of the showers in ``rows``.

    Parameters
    ----------
    showers
        Showers at the ground.
    settings
        The world.
    keys
        (N,) uint64: one random key per shower.
    rows
        Indices of the showers to simulate.
    """
    primaries = showers.primaries
    zenith, azimuth = np.radians(primaries.zenith_deg[rows]), np.radians(primaries.azimuth_deg[rows])
    age, muon_age = showers.age[rows], showers.muon_age[rows]
    punch = settings.detector.punch * np.where(
        primaries.mass[rows] == PHOTON, settings.detector.punch_photon_factor, 1.0
    )
    density = 10.0 ** showers.lg_ne[rows] * electron_normalisation(age, settings.shape.electron_r0_m)
    muon_density = 10.0 ** showers.lg_nmu[rows] * muon_normalisation(muon_age)
    events = np.column_stack(
        [
            primaries.core_x_m[rows],
            primaries.core_y_m[rows],
            np.sin(zenith) * np.cos(azimuth),
            np.sin(zenith) * np.sin(azimuth),
            np.cos(zenith),
            density,
            age,
            muon_density,
            muon_age,
            punch,
            clump_sigma(showers, settings)[rows],
        ]
    )
    grids = np.zeros((len(rows), N_CELLS, 2), dtype=np.float32)
    hits = np.zeros(len(rows), dtype=np.int64)
    largest = np.zeros(len(rows), dtype=np.int64)
    _deposits(events, keys[rows], response_of(settings), grids, hits, largest)
    return Readings(grids.reshape(-1, *array.X_M.shape, 2), hits, largest)


@numba.njit(cache=True, nogil=True)
def _deposits(
    events: np.ndarray, keys: np.ndarray, c: Response, grids: np.ndarray, hits: np.ndarray, largest: np.ndarray
) -> None:
    state = np.empty(1, dtype=np.uint64)
    clusters = np.empty(N_CLUSTERS, dtype=np.int64)
    modes = np.zeros((CLUMP_MODES, 2))
    for k in range(len(events)):
        core_x, core_y, u_x, u_y, cosine, density, age, muon_density, muon_age, punch, clump = events[k]
        clusters[:] = 0
        if clump > 0.0:
            _clump_modes(state, keys[k], modes)
        for j in range(N_CELLS):
            area = ELECTRON_AREA_M2[j]
            if area == 0.0:
                continue
            dx, dy = X_M[j] - core_x, Y_M[j] - core_y
            along = dx * u_x + dy * u_y
            r = math.sqrt(max(dx * dx + dy * dy - along * along, MIN_R_M * MIN_R_M))
            x, y = r / c.electron_r0_m, r / MUON_R0_M
            rho_e = density * math.exp((age - 1.5) * math.log(x) + (age - 3.6) * math.log1p(x))
            rho_mu = muon_density * math.exp((muon_age - 2.0) * math.log(y) + (muon_age - 4.5) * math.log1p(y))
            deviates.start(state, keys[k], j)
            if c.dead > 0.0 and deviates.uniform(state) < c.dead:
                continue
            if clump > 0.0:
                rho_e *= max(0.0, 1.0 + clump * _clump(state, modes, dx, dy) * min(1.0, r / 15.0))
            deposit = _electron_deposit(state, rho_e * area * cosine, rho_mu * area * cosine, r, cosine, c)
            if deposit > 0.0:
                hits[k] += 1
                clusters[CLUSTER[j]] += 1
                grids[k, j, 0] = deposit
            area = MUON_AREA_M2[j]
            if area > 0.0:
                n_punch = rho_e * area * punch * math.exp(-r / c.punch_range_m)
                grids[k, j, 1] = _muon_deposit(state, rho_mu * area * cosine, n_punch, cosine, c)
        largest[k] = clusters.max()


@numba.njit(cache=True)
def _electron_deposit(state: np.ndarray, mean_e: float, mean_mu: float, r: float, cosine: float, c: Response) -> float:
    """Return the reading of an e/gamma detector, MeV: electrons with their photons, muons and strays."""
    n_e = deviates.poisson(state, mean_e)
    n_mu = deviates.poisson(state, mean_mu)
    deposit = 0.0
    if n_e + n_mu > 0:
        shape = c.electron_shape * n_e + c.muon_in_electron_shape * n_mu
        per_electron = 1.0 + c.photon_share + c.photon_share_core * math.exp(-r / c.photon_core_m)
        deposit = c.electron_mev / cosine * (per_electron * n_e + n_mu) * deviates.gamma(state, shape) / shape
    if deviates.uniform(state) < c.electron_stray:
        deposit += c.electron_mev
    if deposit < c.electron_threshold_mev:
        return 0.0
    return min(deposit, c.electron_cap_mev)


@numba.njit(cache=True)
def _muon_deposit(state: np.ndarray, mean_mu: float, mean_punch: float, cosine: float, c: Response) -> float:
    """Return the reading of a muon detector, MeV: muons, punch-through of the electromagnetic core and strays."""
    n_mu = deviates.poisson(state, mean_mu)
    deposit = 0.0
    if n_mu > 0:
        shape = c.muon_shape * n_mu
        deposit = c.muon_mev / cosine * n_mu * deviates.gamma(state, shape) / shape
    if mean_punch > NEGLIGIBLE:
        n_punch = deviates.poisson(state, mean_punch)
        if n_punch > 0:
            deposit += c.punch_mev * deviates.gamma(state, float(n_punch))
    if deviates.uniform(state) < c.muon_stray:
        deposit += c.muon_mev
    if deposit < c.muon_threshold_mev:
        return 0.0
    return min(deposit, c.muon_cap_mev)


@numba.njit(cache=True)
def _clump_modes(state: np.ndarray, key: np.uint64, modes: np.ndarray) -> None:
    """Draw the amplitudes of cos(m phi) and sin(m phi)."""
    deviates.start(state, key, CLUMP_STREAM)
    for m in range(CLUMP_MODES):
        modes[m, 0] = math.sqrt(CLUMP_VARIANCE[m]) * deviates.normal(state)
        modes[m, 1] = math.sqrt(CLUMP_VARIANCE[m]) * deviates.normal(state)


@numba.njit(cache=True)
def _clump(state: np.ndarray, modes: np.ndarray, dx: float, dy: float) -> float:
    """Return the relative density fluctuation at a station: azimuthal modes plus a finer, skewed part."""
    d = math.sqrt(dx * dx + dy * dy) + 1e-9
    cosine, sine = dx / d, dy / d
    re, im = 1.0, 0.0
    total = math.sqrt(CLUMP_FINE) * (deviates.exponential(state) - 1.0)
    for m in range(CLUMP_MODES):
        re, im = re * cosine - im * sine, re * sine + im * cosine
        total += modes[m, 0] * re + modes[m, 1] * im
    return total
