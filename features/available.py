"""Which features an array has: those whose detectors, zones and reconstructed quantities are there.

Decided by the array and by the quantities of a set, never by the events: tables of one array have the same columns. A
zone about the core is there if one core in :data:`LEAST_SHARE` of those all over the array finds detectors in it; in a
sparse array the innermost rings would be columns of NaN.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from showerstack.features.lateral.station import ELECTRON_PIVOT_M
from showerstack.features.stations.grid import N_RINGS
from showerstack.features.stations.sums import EDGES_M, FAR_M, LCM_RINGS_M, MUON_AGE_FROM_M, OUTER_M
from showerstack.showers.array import DetectorArray
from showerstack.showers.schema import AGE, SCALAR_NAMES

LEAST_SHARE = 0.05
"""Of cores that find detectors in a zone."""
CORES, STEPS = 1000, (0.7548776662466927, 0.5698402909980532)
"""Cores that are tried all over the array; k times the steps, modulo 1, are their places (M. Roberts' R2 sequence):
even, and in step with no lattice."""
LCM_STATIONS = 2
"""A ring of LCm compares stations with each other."""
MUON_AGE_DETECTORS = 10
"""Muon detectors beyond 40 m from which the age of the muons is quoted."""
Zone = tuple[str, float, float, int]
"""Channel (``e`` or ``mu``), inner and outer edge (m from the core), least number of detectors."""

_ELECTRONS = re.compile(
    r"(grid_)?e_.*|fit_(lg_ne.*|age.*|lg_rho.*|deviance_e|minus_(ne|age)|ne_vertical)|(prof|res|slope|lcm|tail)_e_.*"
    r"|(dipole|quadrupole)_e.*|centroid_core_m|mu_e_.*|grid_mu_e_.*|both_hits"
)
_MUONS = re.compile(
    r"(grid_)?mu_.*|fit_(lg_nmu.*|muon_age.*|deviance_mu.*|minus_nmu|nmu_minus_proton)|(prof|res|lcm|tail)_mu_.*"
    r"|(dipole|quadrupole)_mu.*|e_(inner|outer)_lg|both_hits"
)
_NOT_ELECTRONS = frozenset({"e_minus_ne", "e_minus_nmu"})
_RING = re.compile(r"(?:prof|res|slope)_(e|mu)_(\d+)_(\d+)")
_WITHIN = re.compile(r"prof_(e|mu)_(?:r50_m|r90_m|in25)")
_LCM = re.compile(r"lcm_(e|mu)_(\d+)_(\d+)(?:_excess)?")
_TAIL = re.compile(r"tail_(e|mu)_\d+")
_SQUARE_RING = re.compile(r"grid_(e|mu)_ring(\d+)(?:_hits)?")
_FAR, _NEAR = ("mu", FAR_M, math.inf, 1), ("mu", 0.0, FAR_M, 1)
_MIDDLE, _OUTER = (MUON_AGE_FROM_M, OUTER_M), (OUTER_M, math.inf)
_OF_MUONS: dict[str, tuple[Zone, ...]] = {
    "mu_e_far_lg": (_FAR, ("e", *_FAR[1:])),
    "mu_e_40_90_lg": tuple((c, *_MIDDLE, 1) for c in ("e", "mu")),
    "mu_e_90_lg": tuple((c, *_OUTER, 1) for c in ("e", "mu")),
    "mu_slope": (("mu", *_MIDDLE, 1), ("mu", *_OUTER, 1)),
    "fit_muon_age": (("mu", MUON_AGE_FROM_M, math.inf, MUON_AGE_DETECTORS),),
}
NEEDED = {
    "mu_far_empty_reco": ("Nmu",),
    "mu_far_minus_reco": ("Nmu",),
    **{f"{c}_{name}": ("Az",) for c in ("e", "mu") for name in ("orientation", "skewness")},
    **{f"dipole_{c}_azimuth": ("Az",) for c in ("e", "mu")},
}
"""Reconstructed quantities that features beside those of the groups ``derived`` and ``contrast`` need."""


def zones_of(name: str) -> tuple[Zone, ...]:
    """Return the zones about the core that a feature is made of."""
    if found := _RING.fullmatch(name):
        channel, low, high = found[1], float(found[2]), float(found[3])
        rings = [(low, high)]
        if name.startswith("slope"):
            rings.append((EDGES_M[EDGES_M.index(low) - 1], low))
        return tuple((channel, *ring, 1) for ring in rings)
    if found := _WITHIN.fullmatch(name):
        return ((found[1], 0.0, EDGES_M[-1], 1),)
    if found := _LCM.fullmatch(name):
        low, high = float(found[2]), float(found[3])
        inside = [ring for ring in LCM_RINGS_M if low <= ring[0] < high]
        # One of its rings is enough; of these the outermost has most stations.
        return ((found[1], *inside[-1], LCM_STATIONS),)
    if found := _TAIL.fullmatch(name):
        return ((found[1], FAR_M, math.inf, 1),)
    if name in _OF_MUONS:
        return _OF_MUONS[name]
    if name.startswith("mu_far"):
        return (_FAR,)
    return (_NEAR,) if name.startswith("mu_near") else ()


def is_available(name: str, array: DetectorArray, quantities: Iterable[str]) -> bool:
    """Return whether events of an array with these reconstructed quantities have a feature of ours.

    Dead detectors take no feature away: what counts is the array as it was built.
    """
    array = array.complete
    if name in (*SCALAR_NAMES, AGE.name):
        return name in quantities
    if _ELECTRONS.fullmatch(name) and name not in _NOT_ELECTRONS and not array.has_electron.any():
        return False
    if _MUONS.fullmatch(name) and not array.has_muon.any():
        return False
    if not set(NEEDED.get(name, ())) <= set(quantities):
        return False
    if name.startswith("fit_lg_rho_opt") and array.optimum_m <= ELECTRON_PIVOT_M:
        return False
    if name == "e_inner_lg" and not array.no_muon.any():
        return False
    if found := _SQUARE_RING.fullmatch(name):
        return _has_square_ring(array, found[1], int(found[2]))
    zones = zones_of(name)
    return not zones or _share(array, zones) >= LEAST_SHARE


def _has_square_ring(array: DetectorArray, channel: str, ring: int) -> bool:
    there = array.has_electron if channel == "e" else array.has_muon
    return ring < N_RINGS and bool((array.square_ring[there] == ring).any())


@lru_cache(maxsize=1024)
def _share(array: DetectorArray, zones: tuple[Zone, ...]) -> float:
    """Return the share of cores all over the array that find enough detectors in all zones, seen from above."""
    enough = np.ones(CORES, dtype=bool)
    for channel, low, high, least in zones:
        r = _distances(array, channel)
        enough &= np.count_nonzero((r >= low) & (r < high), axis=0) >= least
    return float(enough.mean())


@lru_cache(maxsize=2)
def _distances(array: DetectorArray, channel: str) -> np.ndarray:
    """Return how far each detector of a channel is from each core that is tried, (D, CORES), in the fits' unit."""
    x, y = array.fit_geometry[:2]
    core_x, core_y = (
        plane.min() + np.mod(np.arange(1, CORES + 1) * step, 1.0) * np.ptp(plane)
        for plane, step in zip((x[array.has_station], y[array.has_station]), STEPS, strict=True)
    )
    there = array.has_electron if channel == "e" else array.has_muon
    return np.hypot(core_x - x[there][:, None], core_y - y[there][:, None])
