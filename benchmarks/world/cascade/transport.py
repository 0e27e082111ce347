# ruff: noqa: NPY002 (compiled code has the legacy random numbers alone)
"""Particles through the air: interactions from a library, decays, electromagnetic cascades and muons, in one dimension.

Particles below a threshold are replaced by the mean of what they give (:mod:`benchmarks.world.cascade.tables`).
Energies are in GeV, depths along the shower's axis in g/cm2.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numba
import numpy as np

from benchmarks.world.cascade.air import altitude_cm, depth_over_density_cm

compiled = numba.njit(cache=True, fastmath=True)

NUCLEON, PION, KAON, K_LONG, PHOTON, ELECTRON, MUON = range(7)
SLOW = 9
"""A slow target nucleon: dropped."""
FORCED_NUCLEON, FORCED_PHOTON = 10, 11
"""A nucleon or photon that interacts hadronically here."""

RADIATION_LENGTH = 36.62
"""Of air, g/cm2; Review of Particle Physics."""
CRITICAL_ENERGY = 0.0811
"""Of electrons in air, GeV (K. Greisen's 81 MeV)."""
AIR_MASS = 24144.0
"""Mean mass of a nucleus of air over a millibarn, g/cm2: 14.54 atomic mass units."""
MUON_LOSS = 2.1e-3
"""Energy loss of muons in air, GeV per g/cm2; Review of Particle Physics."""
MUON_THRESHOLD = 0.1057 + 0.230
"""Least energy of a counted muon, GeV: KASCADE's 230 MeV and the mass."""
MUON_DECAY = 1.604e-6
"""Mass over proper decay length of a muon, GeV per cm: 0.10566 GeV / 65,870 cm."""
PION_DECAY, KAON_DECAY, K_LONG_DECAY = 1.7884e-4, 1.330e-3, 3.244e-4
"""The same of pions (0.13957 / 780.45), charged (0.49368 / 371.2) and long-lived neutral kaons (0.49761 / 1,534)."""
N_NODES, FIRST_NODE, NODE_STEP = 36, 0.4, 0.25
"""Nodes of lg(E/GeV) at which the library holds interactions."""
MIN_BREMSSTRAHLUNG = 1e-3
"""Photons of a smaller share of the electron's energy are not radiated."""
PROFILE_LEVELS = np.array([200.0 + 60.0 * i for i in range(14)])
"""Depths along the axis at which the longitudinal profile is kept, g/cm2."""


class Library(NamedTuple):
    """Interactions in air by projectile (nucleon, pion, kaon) and node of energy."""

    kind: np.ndarray
    """Particle of each secondary."""
    share: np.ndarray
    """Its share of the projectile's energy."""
    first: np.ndarray
    """Number of the first secondary of each interaction; one more at the end."""
    start: np.ndarray
    """(3, N_NODES): number of the first interaction of a node."""
    count: np.ndarray
    """(3, N_NODES): interactions of a node."""
    cross_section: np.ndarray
    """(3, N_NODES): production cross-section, mb."""


class Site(NamedTuple):
    """A direction, and the grounds at which particles are counted."""

    cosine: float
    grounds: np.ndarray
    """(G,): depths of the grounds along the axis, increasing."""
    altitudes_km: np.ndarray
    """(G,): heights of the grounds."""
    levels: np.ndarray
    """(K,): depths of the profile's levels, then the grounds."""
    n_profile: int
    production: np.ndarray
    """(P,): depths at which sub-threshold particles are tabulated; the grounds are among them."""
    cell: np.ndarray
    """Number of the production cell for each whole g/cm2."""


class Tables(NamedTuple):
    """What a particle below the threshold gives, over its energy."""

    lg_first: float
    lg_step: float
    n: int
    """Energies that are known."""
    hadrons: np.ndarray
    """(4, energies, P, outputs)"""
    photons: np.ndarray
    """(2, energies, P, 2 G): muons and their production heights, of photons and electrons."""
    greisen: np.ndarray
    """(201, 401): electrons over energy by lg E (-1 to 9 in steps of 0.05) and depth (in steps of 4 g/cm2)."""


def site_at(zenith_deg: float, grounds: np.ndarray, production: np.ndarray) -> Site:
    """Return a direction with grounds (vertical g/cm2, increasing) and its grid of production depths (vertical)."""
    cosine = math.cos(math.radians(zenith_deg))
    slant = np.asarray(grounds, dtype=float) / cosine
    profile = PROFILE_LEVELS[slant[-1] - 20.0 > PROFILE_LEVELS]
    produced = production / cosine
    cell = np.array(
        [max(0, min(len(produced) - 2, np.searchsorted(produced, i + 0.5) - 1)) for i in range(int(slant[-1]) + 2)]
    )
    altitudes = np.array([altitude_cm(float(x)) for x in grounds]) / 1e5
    return Site(cosine, slant, altitudes, np.append(profile, slant), len(profile), produced, cell)


def n_outputs(site: Site) -> int:
    """Return the length of a shower's output: Ne at all levels; at grounds Nmu, Ne times age, Nmu times km."""
    return len(site.levels) + 3 * len(site.grounds)


@compiled
def muon_survival(energy, depth, ground, cosine):
    """Return the probability that a muon made at a depth reaches the ground above the threshold.

    Energy loss a per g/cm2 and decay in an atmosphere of constant scale height h (T. K. Gaisser, "Cosmic rays and
    particle physics", 1990, section 6): ((E - a dX) X / (E Xg))^(eps h / ((E + a X) cos)).
    """
    left = energy - MUON_LOSS * (ground - depth)
    if left < MUON_THRESHOLD or depth >= ground:
        return 0.0
    scale = MUON_DECAY * depth_over_density_cm(math.sqrt(depth * ground) * cosine)
    return ((left * depth) / (energy * ground)) ** (scale / ((energy + MUON_LOSS * depth) * cosine))


@compiled
def greisen(energy, lengths):
    """Return the mean number of electrons of a photon's cascade after some radiation lengths.

    K. Greisen, Prog. Cosmic Ray Physics 3 (1956) 1: 0.31 / sqrt(b) exp(t (1 - 1.5 ln s)), b = ln(E/Ec),
    s = 3 t / (t + 2 b).
    """
    if energy <= CRITICAL_ENERGY * 1.3 or lengths <= 0:
        return 0.0
    b = math.log(energy / CRITICAL_ENERGY)
    s = 3 * lengths / (lengths + 2 * b)
    return 0.31 / math.sqrt(b) * math.exp(lengths * (1 - 1.5 * math.log(s)))


@compiled
def greisen_table():
    """Return electrons over energy, (201, 401), as :class:`Tables` holds them."""
    table = np.zeros((201, 401))
    for i in range(201):
        energy = 10 ** (-1 + 0.05 * i)
        for k in range(401):
            table[i, k] = greisen(energy, k * 4 / RADIATION_LENGTH) / energy
    return table


@compiled
def _muon(energy, depth, weight, site, out):
    """Count a muon at all grounds."""
    n = len(site.grounds)
    first = len(site.levels)
    km = altitude_cm(depth * site.cosine) * 1e-5
    for g in range(n):
        w = weight * muon_survival(energy, depth, site.grounds[g], site.cosine)
        if w > 0:
            out[first + g] += w
            out[first + 2 * n + g] += w * (km - site.altitudes_km[g])


@compiled
def _in_cell(depth, site):
    """Return the production cell of a depth and the place in it, 0 to 1."""
    j = site.cell[min(int(depth), len(site.cell) - 1)]
    part = (depth - site.production[j]) / (site.production[j + 1] - site.production[j])
    return j, min(max(part, 0.0), 1.0)


@compiled
def _add_electromagnetic(kind, energy, depth, weight, site, tables, out):
    """Add the mean electrons and muons of a photon or electron below the threshold."""
    n, levels, n_profile = len(site.grounds), len(site.levels), site.n_profile
    if energy <= 0.11:
        return
    f = (math.log10(energy) + 1) * 20
    i = int(f)
    f -= i
    start = depth - (20.0 if kind == ELECTRON else 0.0)  # an electron is about 0.55 radiation lengths ahead
    for k in range(levels):
        d = (site.levels[k] - start) * 0.25
        # At a ground above the particle there is nothing, although an electron starts ahead of itself.
        if d > 0 and (k < n_profile or site.levels[k] > depth):
            j = int(d)
            if j < 400:
                g = d - j
                upper = (1 - g) * tables.greisen[i, j] + g * tables.greisen[i, j + 1]
                lower = (1 - g) * tables.greisen[i + 1, j] + g * tables.greisen[i + 1, j + 1]
                electrons = weight * energy * ((1 - f) * upper + f * lower)
                out[k] += electrons
                if k >= n_profile:
                    t = (site.levels[k] - start) / RADIATION_LENGTH
                    age = 3 * t / (t + 2 * math.log(energy / CRITICAL_ENERGY))
                    out[levels + n + k - n_profile] += electrons * age
    if energy > 3.0:
        f = (math.log10(energy) - tables.lg_first) / tables.lg_step
        i = int(f)
        if i > tables.n - 2:
            i = tables.n - 2
        f -= i
        j, g = _in_cell(depth, site)
        c = kind - PHOTON
        for m in range(n):
            for part in range(2):
                q = m + part * n
                upper = (1 - g) * tables.photons[c, i, j, q] + g * tables.photons[c, i, j + 1, q]
                lower = (1 - g) * tables.photons[c, i + 1, j, q] + g * tables.photons[c, i + 1, j + 1, q]
                out[levels + m + 2 * part * n] += weight * energy * ((1 - f) * upper + f * lower)


@compiled
def _add_hadronic(kind, energy, depth, weight, site, tables, out):
    """Add the mean of what a hadron below the threshold gives."""
    f = (math.log10(energy) - tables.lg_first) / tables.lg_step
    if f < 0:
        return
    i = int(f)
    if i > tables.n - 2:
        i = tables.n - 2
    f -= i
    j, g = _in_cell(depth, site)
    a = weight * energy * (1 - f) * (1 - g)
    b = weight * energy * (1 - f) * g
    c = weight * energy * f * (1 - g)
    d = weight * energy * f * g
    t = tables.hadrons
    for k in range(len(out)):
        out[k] += (
            a * t[kind, i, j, k] + b * t[kind, i, j + 1, k] + c * t[kind, i + 1, j, k] + d * t[kind, i + 1, j + 1, k]
        )


@compiled
def interaction_length(projectile, energy, library):
    """Return the mean free path of a nucleon (0), pion (1) or kaon (2), g/cm2."""
    f = (math.log10(energy) - FIRST_NODE) / NODE_STEP
    i = int(f) if f > 0 else 0
    if i > N_NODES - 2:
        i = N_NODES - 2
    f = min(max(f - i, 0.0), 1.5)
    sigma = library.cross_section
    return AIR_MASS / (sigma[projectile, i] * (1 - f) + sigma[projectile, i + 1] * f)


@compiled
def photonuclear_share(energy):
    """Return the probability that a converting photon interacts hadronically.

    Photon-proton cross-section of A. Donnachie and P. Landshoff (Phys. Lett. B 296 (1992) 227), 11.6 effective
    nucleons, over pair production's 513 mb.
    """
    s = 0.88 + 1.877 * energy
    return 11.6 * (0.0677 * s**0.0808 + 0.129 * s**-0.4525) / 513.0 if energy > 2.5 else 0.0


@compiled
def muon_pair_share(energy):
    """Return the probability that a converting photon makes a pair of muons: (me/mmu)^2 of pair production's."""
    return 2.34e-5 * min(max(math.log(2 * energy / 0.1057) - 2.6, 0.0), 7.0) / 4.56


@compiled
def _push(stack, n, kind, energy, depth, weight):
    stack[n, 0] = kind
    stack[n, 1] = energy
    stack[n, 2] = depth
    stack[n, 3] = weight
    return n + 1


@compiled
def _photon(stack, n, energy, depth, weight, forced, site, out):
    """Let a photon convert; return the stack's new height and the energy of a hadronic interaction."""
    depth += -math.log(np.random.random()) * RADIATION_LENGTH * 9 / 7
    if depth >= site.grounds[-1]:
        return n, 0.0
    hadronic = photonuclear_share(energy)
    z = np.random.random()
    pair = muon_pair_share(energy)
    if pair > 0:
        _muon(energy * z, depth, weight * pair, site, out)
        _muon(energy * (1 - z), depth, weight * pair, site, out)
    if forced:
        if hadronic > 0:
            n = _push(stack, n, FORCED_PHOTON, energy, depth, weight * hadronic)
            weight *= 1 - hadronic
    elif np.random.random() < hadronic:
        return _push(stack, n, FORCED_PHOTON, energy, depth, weight), energy
    while True:  # pair production: 1 - 4/3 z (1 - z)
        z = np.random.random()
        if np.random.random() < 1 - 4 / 3 * z * (1 - z):
            break
    n = _push(stack, n, ELECTRON, energy * z, depth, weight)
    return _push(stack, n, ELECTRON, energy * (1 - z), depth, weight), 0.0


@compiled
def _electron(stack, n, energy, depth, weight, threshold, site, tables, out):
    """Let an electron radiate (4/3 (1 - v) / v + v) until it is below the threshold; return the stack's new height."""
    rate = 4 / 3 * (-math.log(MIN_BREMSSTRAHLUNG) - 1 + MIN_BREMSSTRAHLUNG) + 0.5
    while energy >= threshold:
        depth += -math.log(np.random.random()) * RADIATION_LENGTH / rate
        if depth >= site.grounds[-1]:
            break
        while True:
            v = MIN_BREMSSTRAHLUNG ** np.random.random()
            if np.random.random() < (1 - v) + 0.75 * v * v:
                break
        radiated = energy * v
        energy -= radiated
        if radiated >= threshold:
            n = _push(stack, n, PHOTON, radiated, depth, weight)
        else:
            _add_electromagnetic(PHOTON, radiated, depth, weight, site, tables, out)
    if depth < site.grounds[-1]:
        n = _push(stack, n, ELECTRON, energy, depth, weight)
    return n


@compiled
def _decay(stack, n, kind, energy, depth, weight, site, out):
    """Let a pion or kaon decay (branching ratios: Review of Particle Physics); return the stack's new height.

    Two-body decays share the energy uniformly between their limits; others in fixed mean shares.
    """
    r = np.random.random()
    u = np.random.random()
    if kind == PION:
        _muon(energy * (0.573 + 0.427 * u), depth, weight, site, out)
        return n
    pions, pion_share, neutral, neutral_share = 0, 0.0, 0, 0.0
    if kind == KAON:
        if r < 0.636:
            _muon(energy * (0.0459 + 0.954 * u), depth, weight, site, out)
            return n
        if r < 0.843:
            pions, pion_share, neutral = 1, 0.085 + 0.83 * u, 1
            neutral_share = 1 - pion_share
        elif r < 0.899:
            pions, pion_share = 3, 1 / 3.0
        elif r < 0.917:
            pions, pion_share, neutral, neutral_share = 1, 1 / 3.0, 2, 1 / 3.0
        else:
            neutral, neutral_share = 1, 0.35
            if r < 0.951:
                _muon(energy * (0.05 + 0.55 * u), depth, weight, site, out)
    else:
        if r < 0.405:
            pions, pion_share = 1, 0.4
        elif r < 0.675:
            pions, pion_share = 1, 0.4
            _muon(energy * (0.05 + 0.55 * u), depth, weight, site, out)
        elif r < 0.87:
            neutral, neutral_share = 3, 1 / 3.0
        else:
            pions, pion_share, neutral, neutral_share = 2, 1 / 3.0, 1, 1 / 3.0
    for _ in range(pions):
        n = _push(stack, n, PION, energy * pion_share, depth, weight)
    for _ in range(neutral):
        u = np.random.random()
        n = _push(stack, n, PHOTON, energy * neutral_share * u, depth, weight)
        n = _push(stack, n, PHOTON, energy * neutral_share * (1 - u), depth, weight)
    return n


@compiled
def follow(stack, n, threshold, photon_threshold, forced, site, library, tables, out):
    """Follow the particles of a stack, (height, 4): kind, energy, depth, weight, to the lowest ground.

    Parameters
    ----------
    stack, n
        Particles and their number; the stack is used up.
    threshold, photon_threshold
        Hadrons, and photons and electrons, below are replaced by their means.
    forced
        Photonuclear interactions of a photon by weight instead of by chance.
    site, library, tables
        Where, with what, and the means.
    out
        (outputs,): added to.

    Returns
    -------
    float
        Energy of the hardest photonuclear interaction.
    """
    hardest = 0.0
    lowest = site.grounds[-1]
    while n > 0:
        n -= 1
        kind = int(stack[n, 0])
        energy, depth, weight = stack[n, 1], stack[n, 2], stack[n, 3]
        if PHOTON <= kind <= ELECTRON:
            if energy < photon_threshold:
                _add_electromagnetic(kind, energy, depth, weight, site, tables, out)
            elif kind == PHOTON:
                n, hadronic = _photon(stack, n, energy, depth, weight, forced, site, out)
                hardest = max(hardest, hadronic)
            else:
                n = _electron(stack, n, energy, depth, weight, photon_threshold, site, tables, out)
            continue
        if kind == MUON:
            _muon(energy, depth, weight, site, out)
            continue
        if kind < PHOTON and energy < threshold:
            _add_hadronic(kind, energy, depth, weight, site, tables, out)
            continue
        decays = False
        if kind >= FORCED_NUCLEON:
            projectile = 0 if kind == FORCED_NUCLEON else 1
        else:
            projectile = kind if kind < K_LONG else 2
            at = depth - math.log(np.random.random()) * interaction_length(projectile, energy, library)
            if kind > NUCLEON:
                constant = PION_DECAY if kind == PION else (KAON_DECAY if kind == KAON else K_LONG_DECAY)
                k = energy * site.cosine / (constant * depth_over_density_cm(depth * site.cosine))
                if k < 50:
                    decay = depth * np.random.random() ** (-k)
                else:
                    decay = depth * math.exp(min(-k * math.log(np.random.random()), 50.0))
                if decay < at:
                    decays, at = True, decay
            if at >= lowest:
                continue
            depth = at
        if decays:
            n = _decay(stack, n, kind, energy, depth, weight, site, out)
            continue
        f = (math.log10(energy) - FIRST_NODE) / NODE_STEP
        if f < 0:
            f = 0.0
        i = int(f)
        if np.random.random() < f - i:
            i += 1
        if i > N_NODES - 1:
            i = N_NODES - 1
        event = library.start[projectile, i] + int(np.random.random() * library.count[projectile, i])
        for m in range(library.first[event], library.first[event + 1]):
            c = library.kind[m]
            one = energy * library.share[m]
            if c == SLOW or one < 0.3:
                continue
            if c < PHOTON and one < threshold:
                _add_hadronic(c, one, depth, weight, site, tables, out)
            elif c == PHOTON and one < photon_threshold:
                _add_electromagnetic(PHOTON, one, depth, weight, site, tables, out)
            else:
                n = _push(stack, n, c, one, depth, weight)
    return hardest
