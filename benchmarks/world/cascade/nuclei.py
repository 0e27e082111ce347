# ruff: noqa: NPY002 (compiled code has the legacy random numbers alone)
"""Nuclei as projectiles: wounded nucleons by an optical limit of Glauber's model, evaporation of the spectators.

Event generators are asked for nucleons alone: with a nucleus as projectile, chromo 0.11.0's Sibyll returns the last
nucleon's interaction only.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq
from scipy.special import exp1

from benchmarks.world.cascade.transport import AIR_MASS, FORCED_NUCLEON, NUCLEON, compiled

TOP = 0.1
"""Depth at which primaries start, g/cm2."""
RANGE_SQUARED = 6.8
"""Squared range of the nucleon-air profile exp(-b^2 / R^2), fm2."""
EVAPORATED = 1.3
"""Mean number of nucleons that evaporate per wounded one."""


@compiled
def _place(mass):
    """Return a nucleon's transverse place in a nucleus, fm: Gaussian up to mass 16, Woods-Saxon beyond."""
    radius = 1.12 * mass ** (1 / 3.0) - 0.86 * mass ** (-1 / 3.0)
    if mass <= 4:
        return np.random.normal() * 0.95, np.random.normal() * 0.95
    if mass <= 16:
        return np.random.normal() * 1.43, np.random.normal() * 1.43
    while True:
        r = (radius + 5) * np.random.random() ** (1 / 3.0)
        if np.random.random() < 1 / (1 + math.exp((r - radius) / 0.54)):
            break
    c = 2 * np.random.random() - 1
    s = math.sqrt(1 - c * c)
    azimuth = 6.2831853 * np.random.random()
    return r * s * math.cos(azimuth), r * s * math.sin(azimuth)


@compiled
def _wounded(mass, opacity, largest_b):
    """Return how many nucleons of a nucleus interact at a random impact parameter up to ``largest_b``, fm."""
    b = largest_b * math.sqrt(np.random.random())
    n = 0
    for _ in range(mass):
        x, y = _place(mass)
        d2 = (x - b) ** 2 + y * y
        if np.random.random() < 1 - math.exp(-opacity * math.exp(-d2 / RANGE_SQUARED)):
            n += 1
    return n


@compiled
def _largest_b(mass):
    return 1.2 * mass ** (1 / 3.0) + 7.0


@compiled
def cross_sections(opacity, heaviest, throws, seed):
    """Return the cross-section of nuclei on air by mass number up to a heaviest, mb; 0 for masses 0 and 1."""
    np.random.seed(seed)
    result = np.zeros(heaviest + 1)
    for mass in range(2, heaviest + 1):
        largest = _largest_b(mass)
        hits = 0
        for _ in range(throws):
            if _wounded(mass, opacity, largest) > 0:
                hits += 1
        result[mass] = math.pi * largest * largest * hits / throws * 10
    return result


def opacity_of(cross_section: float) -> float:
    """Return the central opacity of the profile that has a nucleon's production cross-section, mb."""

    def excess(opacity: float) -> float:
        return float(math.pi * RANGE_SQUARED * 10 * (0.5772 + math.log(opacity) + exp1(opacity)) - cross_section)

    return float(brentq(excess, 0.05, 500))


@compiled
def break_up(mass, energy, sections, opacity, lowest, stack):
    """Fill the stack with the nucleons of a nucleus at the depths where they are freed; return their number.

    ``energy`` is a nucleon's; wounded nucleons interact where they are freed.
    """
    if mass == 1:
        stack[0, 0] = NUCLEON
        stack[0, 1] = energy
        stack[0, 2] = TOP
        stack[0, 3] = 1.0
        return 1
    n, depth, left = 0, TOP, mass
    while left > 1:
        depth += -math.log(np.random.random()) * AIR_MASS / sections[left]
        if depth >= lowest:
            break
        wounded = 0
        while wounded == 0:
            wounded = _wounded(left, opacity, _largest_b(left))
        spectators = left - wounded
        evaporated = min(spectators, np.random.poisson(EVAPORATED * wounded))
        left = spectators - evaporated
        for i in range(wounded + evaporated):
            stack[n, 0] = FORCED_NUCLEON if i < wounded else NUCLEON
            stack[n, 1] = energy
            stack[n, 2] = depth
            stack[n, 3] = 1.0
            n += 1
    if left == 1 and depth < lowest:
        stack[n, 0] = NUCLEON
        stack[n, 1] = energy
        stack[n, 2] = depth
        stack[n, 3] = 1.0
        n += 1
    return n
