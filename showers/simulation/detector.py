"""From showers to readings: what the stations of the array can expect of a shower, and what they read.

Expected particle numbers come from the lateral distributions, in float32 and in chunks that stay in the cache;
:mod:`showerstack.showers.simulation.deposits` then draws counts and deposits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from showerstack.runtime.rows import Rows
from showerstack.showers.array import KASCADE, DetectorArray
from showerstack.showers.lateral import (
    ELECTRON_ALPHA,
    ELECTRON_BETA,
    ELECTRON_R0_M,
    MUON_ALPHA,
    MUON_BETA,
    MUON_R0_M,
    axis_distance,
    density,
)  # fmt: skip
from showerstack.showers.simulation.cascade import Showers
from showerstack.showers.simulation.deposits import CLUMP_NEGLIGIBLE, DetectorConstants, draw_deposits, stations_of
from showerstack.showers.simulation.ground import ground_of
from showerstack.showers.simulation.primaries import PHOTON
from showerstack.showers.simulation.settings import Settings

CHUNK = 256
"""Showers at once: their density arrays (0.26 MB each) stay in the second-level cache."""


@dataclass(frozen=True)
class Readings(Rows):
    """What the array recorded."""

    electron: np.ndarray
    """(N, S) float32, MeV in the e/gamma detectors of the S stations."""
    muon: np.ndarray
    """(N, S) float32, MeV in the muon detectors; not filled without a trigger."""
    hits: np.ndarray
    """(N,) int64: e/gamma stations above threshold."""
    largest_cluster: np.ndarray
    """(N,) int64: most of them in one trigger cluster."""
    array: DetectorArray

    def grids(self) -> np.ndarray:
        """Return (N, rows, columns, 2) float32, MeV per station."""
        cells = np.zeros((len(self.hits), self.array.n_cells, 2), dtype=np.float32)
        cells[:, self.array.cells, 0] = self.electron
        cells[:, self.array.cells, 1] = self.muon
        return cells.reshape(-1, *self.array.grid_shape)


def energy_per_electron(r_m: np.ndarray, settings: Settings) -> np.ndarray:
    """Return the deposit that comes with an electron, in units of a single particle's: photons add to it.

    1 + photon_share + photon_share_core exp(-r / photon_core_m).
    """
    d = settings.detector
    return 1.0 + d.photon_share + d.photon_share_core * np.exp(r_m * (-1.0 / d.photon_core_m))


def punch_through(
    r_m: np.ndarray, mass: np.ndarray, settings: Settings, content: np.ndarray | None = None
) -> np.ndarray:
    """Return the expected punch-through particles in a muon detector per electron above it.

    punch A^punch_mass exp(-r / punch_range_m) for hadrons of mass number A, constants of their own for photons. Where
    showers have a hadronic ``content``, protons have a photon's, and what is beyond it times their content.
    """
    d = settings.detector
    photon = mass == PHOTON
    share = np.where(photon, d.punch_photon, d.punch * np.maximum(mass, 1.0) ** d.punch_mass).astype(np.float32)
    inverse = np.where(photon, -1.0 / d.punch_photon_range_m, -1.0 / d.punch_range_m).astype(np.float32)
    punch = share * np.exp(r_m * inverse)
    if content is None:
        return punch
    least = np.float32(d.punch_photon) * np.exp(r_m * np.float32(-1.0 / d.punch_photon_range_m))
    return np.where(mass == 1, least + content * np.maximum(punch - least, 0.0), punch)


def clump_sigma(showers: Showers, settings: Settings) -> np.ndarray:
    """Return the rms azimuthal fluctuation of the electron density beyond Poisson, (N,); photons have none.

    0.055 * 10^(-0.72 (lgE - 14.5)) for protons and 2.2 times that for iron, between them as a power of A.
    """
    shape = settings.shape
    mass = showers.primaries.mass
    power = math.log(max(shape.clump_iron_factor, 1e-9)) / math.log(56.0)
    sigma = shape.clump_sigma * 10.0 ** (shape.clump_slope * (showers.primaries.lg_energy - 14.5))
    sigma = np.minimum(sigma * np.maximum(mass, 1) ** power, 0.5)
    if showers.content is not None:
        sigma = sigma * np.minimum(showers.content, 1.0)
    return np.where((mass == PHOTON) | (sigma < CLUMP_NEGLIGIBLE), 0.0, sigma)


def read_out(
    showers: Showers,
    rows: np.ndarray,
    settings: Settings,
    keys: np.ndarray,
    modes: np.ndarray,
    array: DetectorArray = KASCADE,
) -> Readings:
    """Simulate the stations' deposits of the showers in ``rows``.

    Parameters
    ----------
    rows
        (n,) indices of the showers to simulate.
    keys
        (N,) uint64: one random key per shower.
    modes
        (N, 6, 2) standard normal: azimuthal modes of the clumping.
    """
    n, n_stations = len(rows), array.n_stations
    readings = Readings(
        electron=np.zeros((n, n_stations), dtype=np.float32),
        muon=np.zeros((n, n_stations), dtype=np.float32),
        hits=np.zeros(n, dtype=np.int64),
        largest_cluster=np.zeros(n, dtype=np.int64),
        array=array,
    )
    values = settings.detector.model_dump()
    response = DetectorConstants(**{name: float(values[name]) for name in DetectorConstants._fields})
    sigma = clump_sigma(showers, settings)
    here = stations_of(array)
    work = (np.empty(1, np.uint64), np.empty(n_stations, np.int64), np.empty(here.cluster.max() + 1, np.int64))
    for begin in range(0, n, CHUNK):
        part = slice(begin, begin + CHUNK)
        chosen = rows[part]
        primaries = showers.primaries
        draw_deposits(
            *expected(showers, chosen, settings, array),
            np.cos(np.radians(primaries.zenith_deg[chosen])),
            np.column_stack([primaries.core_x_m[chosen], primaries.core_y_m[chosen], sigma[chosen]]),
            modes[chosen],
            keys[chosen],
            response,
            here,
            settings.trigger.stations,
            *work,
            readings.electron[part],
            readings.muon[part],
            readings.hits[part],
            readings.largest_cluster[part],
        )
    if settings.detector.gain_spread:
        draws = np.random.default_rng(settings.detector.gain_seed).standard_normal((2, n_stations))
        gains = np.exp(settings.detector.gain_spread * draws).astype(np.float32)
        np.minimum(readings.electron * gains[0], response.electron_cap_mev, out=readings.electron)
        np.minimum(readings.muon * gains[1], response.muon_cap_mev, out=readings.muon)
    return readings


def expected(
    showers: Showers, rows: np.ndarray, settings: Settings, array: DetectorArray = KASCADE
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return what the stations can expect of the showers in ``rows``, (n, S) float32 each.

    Returns
    -------
    electrons
        Electrons through the e/gamma detectors.
    muons
        Muons per m2 of horizontal detector.
    punch
        Punch-through particles in the muon detectors.
    per_electron
        Deposit per electron in units of a single particle's.
    """

    def column(values: np.ndarray) -> np.ndarray:
        return values[rows].astype(np.float32)[:, None]

    p, here, ground = showers.primaries, stations_of(array), ground_of(array)
    zenith = column(p.zenith_deg)
    r_m = axis_distance(here.x_m, here.y_m, column(p.core_x_m), column(p.core_y_m), zenith, column(p.azimuth_deg))
    cosine = np.cos(np.radians(zenith))
    n_e, n_mu = column(10.0**showers.lg_ne), column(10.0**showers.lg_nmu)
    shape = settings.shape
    alpha, beta, r0_m = shape.electron_alpha, shape.electron_beta, shape.electron_r0_m
    age = as_steep(
        column(showers.age), (alpha, beta, r0_m), (ELECTRON_ALPHA, ELECTRON_BETA, ELECTRON_R0_M), ELECTRONS_AT_M
    )
    electrons = density(r_m, n_e, age, r0_m * ground.electron_scale, alpha, beta)
    if shape.electron_curvature:
        electrons *= np.exp(-shape.electron_curvature * np.log(np.maximum(r_m, CURVED_FROM_M) / CURVED_ABOUT_M) ** 2)
    alpha, beta, r0_m = shape.muon_alpha, shape.muon_beta, shape.muon_r0_m
    age = as_steep(column(showers.muon_age), (alpha, beta, r0_m), (MUON_ALPHA, MUON_BETA, MUON_R0_M), MUONS_AT_M)
    muons = density(r_m, n_mu * cosine, age, r0_m * ground.muon_scale, alpha, beta)
    content = None if showers.content is None else column(showers.content)
    punch = electrons * punch_through(r_m, column(p.mass), settings, content) * here.muon_area_m2
    through = (electrons * cosine + settings.detector.electrons_per_muon * muons) * here.electron_area_m2
    return through, muons, punch, energy_per_electron(r_m, settings)


ELECTRONS_AT_M, MUONS_AT_M = 40.0, 200.0
"""Where another lateral form than KASCADE's is as steep as that is."""
CURVED_ABOUT_M, CURVED_FROM_M = 100.0, 5.0
AGE_MARGIN = 0.05
"""Ages keep so far from where a form has no finite integral."""


def as_steep(
    age: np.ndarray, form: tuple[float, float, float], known: tuple[float, float, float], r_m: float
) -> np.ndarray:
    """Return the ages with which a lateral form falls at a distance as the known one does with ``age``.

    d ln rho / d ln r = (s - alpha) + (s - beta) w with w = r / (r + r0); a form is alpha, beta and r0 (m). Forms that
    differ from the known one in their scale alone keep the age.
    """
    (alpha, beta, r0_m), (alpha_0, beta_0, r0_0_m) = form, known
    if (alpha, beta) == (alpha_0, beta_0):
        return age
    w, w_0 = r_m / (r_m + r0_m), r_m / (r_m + r0_0_m)
    slope = (1.0 + w_0) * age - alpha_0 - beta_0 * w_0
    wanted = (slope + alpha + beta * w) / (1.0 + w)
    least, most = alpha - 2.0 + AGE_MARGIN, 0.5 * (alpha + beta) - 1.0 - AGE_MARGIN
    return np.clip(wanted, least, most).astype(age.dtype)
