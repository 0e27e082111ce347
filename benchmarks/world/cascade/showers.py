# ruff: noqa: NPY002 (compiled code has the legacy random numbers alone)
"""Tables of sub-threshold particles and samples of showers, kept on disk one by one."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from benchmarks.world.cascade.nuclei import TOP, break_up, cross_sections, opacity_of
from benchmarks.world.cascade.transport import (
    AIR_MASS,
    ELECTRON,
    K_LONG,
    PHOTON,
    Library,
    Site,
    Tables,
    compiled,
    follow,
    greisen_table,
    interaction_length,
    n_outputs,
)

LOG = logging.getLogger(__name__)
LG_FIRST, LG_STEP, N_ENERGIES = 0.0, 0.125, 45
"""Energies of the tables, lg(E/GeV): 1 GeV to 10^5.5 GeV."""
PRODUCTION_DEPTHS = np.array(
    [0.5, 2, 5, 10, 20, 35, 50, 75, 100, 140, 180, 220, 270, 320, 380, 440, 500, 570, 640, 720, 800, 880, 960]
)
"""Vertical depths of the tables, g/cm2, without the grounds."""
NEAREST = 20.0
"""Depths of the tables nearer to a ground are left out, g/cm2."""
NUCLEI = 1500
"""Throws from which a nucleus' cross-section is found, to two per cent."""
THRESHOLD, PHOTON_THRESHOLD = 1e-3, 2e-4
"""Least energy of followed particles over the primary's; the second for photons and electrons in photon showers."""


def production_depths(grounds: np.ndarray) -> np.ndarray:
    """Return the vertical production depths of the tables, the grounds among them."""
    kept = [x for x in PRODUCTION_DEPTHS if x < grounds[-1] and np.abs(grounds - x).min() >= NEAREST]
    return np.sort(np.concatenate([kept, grounds]))


@compiled
def _build(hadrons, photons, greisen, site, library, most, least, seed):
    """Fill the tables from the lowest energy upwards: each uses those below."""
    np.random.seed(seed)
    n_out, n_muon = hadrons.shape[3], photons.shape[3]
    levels, grounds = len(site.levels), len(site.grounds)
    stack, out = np.zeros((20_000, 4)), np.zeros(n_out)
    for i in range(N_ENERGIES):
        energy = 10 ** (LG_FIRST + LG_STEP * i)
        threshold = 10 ** (LG_FIRST + LG_STEP * (i - 1)) * 1.0001 if i > 0 else 0.999
        n = int(most + (least - most) * i / N_ENERGIES)
        tables = Tables(LG_FIRST, LG_STEP, max(i, 2), hadrons, photons, greisen)
        for j in range(len(site.production) - 1):
            for kind in range(ELECTRON + 1):
                if kind > K_LONG and energy < 3:
                    continue
                out[:] = 0.0
                showers = n if kind < PHOTON else max(n // 3, 1)
                for _ in range(showers):
                    stack[0, 0] = kind
                    stack[0, 1] = energy
                    stack[0, 2] = site.production[j]
                    stack[0, 3] = 1.0
                    follow(stack, 1, threshold, threshold, kind > K_LONG, site, library, tables, out)
                if kind < PHOTON:
                    for k in range(n_out):
                        hadrons[kind, i, j, k] = out[k] / showers / energy
                else:
                    for k in range(n_muon):
                        place = levels + k if k < grounds else levels + grounds + k
                        photons[kind - PHOTON, i, j, k] = out[place] / showers / energy


def tables_at(site: Site, library: Library, showers: int, seed: int) -> Tables:
    """Return the tables of a site; ``showers`` for each entry at the lowest energy, 0.28 of them at the highest."""
    shape = (N_ENERGIES, len(site.production))
    hadrons, photons = np.zeros((4, *shape, n_outputs(site))), np.zeros((2, *shape, 2 * len(site.grounds)))
    greisen = greisen_table()
    _build(hadrons, photons, greisen, site, library, showers, round(0.28 * showers), seed)
    return Tables(LG_FIRST, LG_STEP, N_ENERGIES, hadrons, photons, greisen)


@compiled
def _throw(n, mass, energy, threshold, photon_threshold, seed, site, library, tables, sections, opacity, n_out):
    """Return n showers' outputs, (n, outputs), and the energy of each one's hardest photonuclear interaction."""
    np.random.seed(seed)
    stack = np.zeros((400_000, 4))
    outputs, hardest = np.zeros((n, n_out)), np.zeros(n)
    for q in range(n):
        if mass == 0:
            stack[0, 0] = PHOTON
            stack[0, 1] = energy
            stack[0, 2] = TOP
            stack[0, 3] = 1.0
            height = 1
        else:
            height = break_up(mass, energy / mass, sections, opacity, site.grounds[-1], stack)
        hardest[q] = follow(stack, height, threshold, photon_threshold, False, site, library, tables, outputs[q])
    return outputs, hardest


@dataclass(frozen=True)
class CascadeSample:
    """Showers of one primary, energy and direction, at all grounds."""

    mass: int
    lg_energy: float
    """lg(E/eV)."""
    zenith_deg: float
    grounds: np.ndarray
    """(G,): vertical depths, g/cm2."""
    electrons: np.ndarray
    """(N, G)"""
    muons: np.ndarray
    """(N, G): above 230 MeV."""
    age: np.ndarray
    """(N, G): longitudinal age of the sub-showers' cascades, weighted by their electrons."""
    production_km: np.ndarray
    """(N, G): mean height above the ground at which the counted muons were made."""
    xmax: np.ndarray
    """(N,): depth of the maximum along the axis, g/cm2."""
    hardest: np.ndarray
    """(N,): share of the energy in the hardest photonuclear interaction."""


def throw(
    site: Site, library: Library, tables: Tables, *, mass: int, lg_energy: float, showers: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Throw showers; return their outputs and hardest photonuclear energies (:func:`_throw`), GeV."""
    energy = 10 ** (lg_energy - 9)
    opacity = opacity_of(AIR_MASS / interaction_length(0, energy / max(mass, 1), library))
    sections = cross_sections(opacity, mass, NUCLEI, seed)
    photon_threshold = THRESHOLD if mass else PHOTON_THRESHOLD
    return _throw(
        showers, mass, energy, THRESHOLD * energy, photon_threshold * energy, seed, site, library, tables, sections,
        opacity, n_outputs(site),
    )  # fmt: skip


def sample_of(
    outputs: np.ndarray, hardest: np.ndarray, site: Site, mass: int, lg_energy: float, zenith_deg: float
) -> CascadeSample:
    """Return showers' outputs by name."""
    levels, n = len(site.levels), len(site.grounds)
    electrons, muons = outputs[:, levels - n : levels], outputs[:, levels : levels + n]
    with np.errstate(divide="ignore", invalid="ignore"):
        age = outputs[:, levels + n : levels + 2 * n] / electrons
        production = outputs[:, levels + 2 * n :] / muons
    profile = np.append(np.arange(site.n_profile), levels - 1)
    return CascadeSample(
        mass, lg_energy, zenith_deg, site.grounds * site.cosine, electrons, muons, age, production,
        depth_of_maximum(outputs[:, profile], site.levels[profile]), hardest / 10 ** (lg_energy - 9),
    )  # fmt: skip


def depth_of_maximum(profile: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Return where a parabola through the three highest levels of ln Ne has its maximum, (N,) g/cm2."""
    ln_ne = np.log(np.maximum(profile, 1e-9))
    i = np.clip(np.argmax(ln_ne, axis=1), 1, len(levels) - 2)
    rows = np.arange(len(ln_ne))
    x0, x1, x2 = levels[i - 1], levels[i], levels[i + 1]
    y0, y1, y2 = ln_ne[rows, i - 1], ln_ne[rows, i], ln_ne[rows, i + 1]
    below = (x0 - x1) * (x0 - x2) * (x1 - x2)
    a = (x2 * (y1 - y0) + x1 * (y0 - y2) + x0 * (y2 - y1)) / below
    b = (x2 * x2 * (y0 - y1) + x1 * x1 * (y2 - y0) + x0 * x0 * (y1 - y2)) / below
    return np.where(a < 0, -b / (2 * np.where(a < 0, a, -1)), levels[i])
