"""Around the fitted core, in the shower plane: radial profiles, residuals, and how uneven the signal is (LCm, moments).

Hadron showers are clumped by sub-showers and single muons; photon showers are smooth. Expectations come from the fit,
so that nothing has to be trained.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from types import ModuleType
from typing import Any

from showerstack.features.groups import OURS, Feature, FittedEvents, Group, row
from showerstack.features.lateral.elementwise import LG_E, clip_symmetric, defined
from showerstack.features.stations.grid import UNIT_M
from showerstack.features.stations.sums import EDGES_M, LCM_RING, LCM_RINGS_M, PATTERNS, RING, RINGS, RINGS_M, Sums

PROFILE_GROUP = "profile"
_PROFILE_GROUPS = (
    Group(
        PROFILE_GROUP, "radial profiles around the fitted core", ("fits+profile", "all"), needs_fits=True, sums=RINGS
    ),
)
N_RINGS = len(EDGES_M)
MAX_RESIDUAL = 100.0
CHANNELS = (("e", "e/gamma"), ("mu", "muon"))


def ring_name(k: int) -> str:
    """Return the part of a column's name that tells the ring, such as ``25_40``."""
    return f"{int(EDGES_M[k - 1]) if k else 0}_{int(EDGES_M[k])}"


# fmt: off
def _declare_profile() -> Iterator[Feature]:
    inside, cumulative = "signal within 130 m", "interpolation of the cumulative ring sums"
    for k in range(N_RINGS):
        ring, where = ring_name(k), f"{ring_name(k).replace('_', ' to ')} m from the axis"
        for c, words in CHANNELS:
            yield row(f"prof_{c}_{ring}", "lg m^-2", -3.1, 6, f"{words} density {where}",
                      "lg(particles / live area + 0.001)", PROFILE_GROUP, OURS)
            yield row(f"res_{c}_{ring}", "1", -100, 100, f"{words} residual of the fit {where}",
                      "(seen - expected) / sqrt(variance), held within 100", PROFILE_GROUP, OURS)
    for c, words in CHANNELS:
        yield row(f"prof_{c}_r50_m", "m", 0, 130, f"radius with half of the {words} {inside}", cumulative,
                  PROFILE_GROUP, OURS)
        yield row(f"prof_{c}_r90_m", "m", 0, 130, f"radius with 90 % of the {words} {inside}", cumulative,
                  PROFILE_GROUP, OURS)
        yield row(f"prof_{c}_in25", "1", 0, 1.0001, f"share of the {words} signal within 25 m",
                  "sum r < 25 m / sum r < 130 m", PROFILE_GROUP, OURS)
    for k in range(2, N_RINGS):
        inner, outer = ring_name(k - 1), ring_name(k)
        yield row(f"slope_e_{outer}", "1", -60, 60, f"local slope of the e/gamma density, rings {inner} and {outer}",
                  "difference of lg density / difference of lg sqrt(inner edge x outer edge)", PROFILE_GROUP, OURS)
# fmt: on


_PROFILE_FEATURES: tuple[Feature, ...] = tuple(_declare_profile())


def _compute_profile(fitted: FittedEvents) -> dict[str, Any]:
    """Return the features of this group, each (n,) float32; NaN without a live station in the ring, or without hits."""
    sums, xp = fitted.sums, fitted.xp
    columns: dict[str, Any] = {}
    for channel in ("e", "mu"):
        signal, area, expected, variance = (sums[f"ring_{channel}_{name}"] for name in RING)
        live = (area > 0.0) & sums["fitted"][:, None]
        density = defined(live, signal / xp.where(live, area, 1.0), xp)
        density = xp.log(density + 1e-3) * LG_E
        residual = (signal - expected) / xp.sqrt(variance + 1e-6)
        # A saturated or wholly unexpected station would otherwise dwarf all others.
        residual = defined(live, clip_symmetric(residual, MAX_RESIDUAL, xp), xp)
        for k in range(N_RINGS):
            columns[f"prof_{channel}_{ring_name(k)}"] = density[:, k]
            columns[f"res_{channel}_{ring_name(k)}"] = residual[:, k]
        if channel == "e":
            columns.update(_slopes(density))
        columns.update(_containment(channel, signal, sums["fitted"], xp))
    return columns


def _slopes(density: Any) -> dict[str, Any]:
    middles = [0.5 * (math.log10(low) + math.log10(high)) for low, high in pairwise(EDGES_M)]
    return {
        f"slope_e_{ring_name(k)}": (density[:, k] - density[:, k - 1]) / (middles[k - 1] - middles[k - 2])
        for k in range(2, N_RINGS)
    }


def _containment(channel: str, signal: Any, has_fit: Any, xp: Any) -> dict[str, Any]:
    """Return the radii that hold 50 and 90 % of the signal within 130 m, and the share within 25 m.

    The cumulative signal is taken as linear in r within a ring.

    Parameters
    ----------
    signal
        (n, rings): signal per ring.
    has_fit
        (n,) bool.
    """
    total = xp.sum(signal, axis=1)
    some = (total > 0.0) & has_fit
    safe = xp.where(some, total, 1.0)
    columns = {f"prof_{channel}_in25": defined(some, xp.sum(signal[:, :3], axis=1) / safe, xp)}
    for name, share in (("r50_m", 0.5), ("r90_m", 0.9)):
        before, radius = xp.zeros_like(total), xp.zeros_like(total)
        for k, (low, high) in enumerate(RINGS_M):
            missing = xp.maximum(share * safe - before, 0.0)
            held_here = xp.maximum(signal[:, k], 1e-20)
            part = xp.minimum(missing / held_here, 1.0)
            # The first ring that is only partly needed is the last to move the radius outwards.
            radius = xp.where(missing > 0.0, low + (high - low) * part, radius)
            before = before + signal[:, k]
        columns[f"prof_{channel}_{name}"] = defined(some, radius, xp)
    return columns


ASYMMETRY_GROUP = "asymmetry"
_ASYMMETRY_GROUPS = (Group(ASYMMETRY_GROUP, "unevenness around the axis", needs_fits=True, sums=PATTERNS),)
LCM = "R. Conceição et al., arXiv:2204.12337, 2304.02988; densities, since stations differ in area"
TAIL = "R. Conceição et al., arXiv:2309.17217; tail of the compound Poisson, features/stations/tail.py"
LCM_ZONES_M = ((30, 60), (60, 90), (90, 120))
"""Zones over whose rings of 10 m LCm is averaged."""
RINGS_PER_ZONE = len(LCM_RINGS_M) // len(LCM_ZONES_M)
ALPHAS = (0.5, 1.0, 2.0)
"""Exponents of the survival term -lg(tail probability)."""
MAX_EXCESS = 10.0
ROUNDING = 6e-8
"""Of a sum over the stations of a ring in float32, relative and for each station."""


# fmt: off
def _declare_asymmetry() -> Iterator[Feature]:
    squares = "sum (d_i - d_j)^2"
    per_zone = f"mean over rings of 10 m of lg(2/(n(n-1)) {squares} / <d>), d = S / area"
    for c, words in CHANNELS:
        for low, high in LCM_ZONES_M:
            zone, metres = f"lcm_{c}_{low}_{high}", f"{low} to {high} m"
            yield row(zone, "lg", -20, 12, f"LCm of the {words} densities, {metres}", per_zone, ASYMMETRY_GROUP, LCM)
            yield row(f"{zone}_excess", "lg", -20, 20, f"the same over the fit's expectation, {metres}",
                      f"mean over rings of 10 m of lg({squares} / expected)", ASYMMETRY_GROUP, LCM)
        for alpha in ALPHAS:
            yield row(f"tail_{c}_{alpha:g}".replace(".", ""), "1", 0, 1e4,
                      f"tail sum of the {words} stations beyond 42 m, alpha = {alpha:g}",
                      f"mean of (-lg P(S >= seen))^{alpha:g}", ASYMMETRY_GROUP, TAIL)
        yield row(f"dipole_{c}", "1", 0, 1e4, f"dipole of the {words} residuals around the axis",
                  "|sum z exp(i phi)| / sqrt(n), z = (seen - expected) / sqrt(variance) held within 5",
                  ASYMMETRY_GROUP, OURS)
        yield row(f"quadrupole_{c}", "1", 0, 1e4, f"quadrupole of the {words} residuals",
                  "|sum z exp(2 i phi)| / sqrt(n), z as for the dipole", ASYMMETRY_GROUP, OURS)
        yield row(f"dipole_{c}_azimuth", "1", -1e4, 1e4, f"dipole of the {words} residuals along the shower's azimuth",
                  "sum z cos(phi - azimuth) / sqrt(n), z as for the dipole", ASYMMETRY_GROUP, OURS)
    yield row("centroid_core_m", "m", 0, 300, "centroid of ln(1 + e/gamma) to the fitted core",
              "distance on the ground", ASYMMETRY_GROUP, OURS)
# fmt: on


_ASYMMETRY_FEATURES: tuple[Feature, ...] = tuple(_declare_asymmetry())


def _compute_asymmetry(fitted: FittedEvents) -> dict[str, Any]:
    """Return the group's features, each (n,) float32; NaN without a fit or with fewer than 2 stations in a ring."""
    sums, core, xp = fitted.sums, fitted.fit.electron, fitted.xp
    columns: dict[str, Any] = {}
    for channel, _ in CHANNELS:
        columns.update(_lcm(channel, sums, xp))
        columns.update(_pattern(channel, sums, xp))
    gap_x, gap_y = (
        fitted.grid[f"e_mean_{axis}"] * UNIT_M - core[k] * fitted.events.array.fit_unit_m for k, axis in enumerate("xy")
    )
    columns["centroid_core_m"] = xp.sqrt(gap_x * gap_x + gap_y * gap_y)
    return {name: defined(sums["fitted"], values, xp) for name, values in columns.items()}


def _lcm(channel: str, sums: dict[str, Any], xp: ModuleType) -> dict[str, Any]:
    """LCm per zone: the sum over pairs of densities (d_i - d_j)^2 is n sum d^2 - (sum d)^2."""
    n, total, square, mean, mean_square, spread = (sums[f"lcm_{channel}_{name}"] for name in LCM_RING)
    pairs = n * square - total * total
    # Of equal densities (all stations saturated) only the rounding of float32 sums is left, other on each processor.
    pairs = xp.where(pairs <= ROUNDING * n * n * square, 0.0, pairs)
    predicted = n * (spread + mean_square) - spread - mean * mean
    enough = (n >= 2.0) & (total > 0.0)
    norm = xp.where(enough, 0.5 * (n - 1.0) * total, 1.0)
    value = xp.log(pairs / norm + 1e-12) * LG_E
    ratio = (pairs + 1e-6) / (xp.maximum(predicted, 0.0) + 1e-6)
    excess = clip_symmetric(xp.log(ratio) * LG_E, MAX_EXCESS, xp)
    counted = xp.astype(enough, xp.float32)
    columns = {}
    for k, (low, high) in enumerate(LCM_ZONES_M):
        rings = slice(k * RINGS_PER_ZONE, (k + 1) * RINGS_PER_ZONE)
        n_rings = xp.sum(counted[:, rings], axis=1)
        for name, each in (("", value), ("_excess", excess)):
            mean = xp.sum(each[:, rings] * counted[:, rings], axis=1) / xp.maximum(n_rings, 1.0)
            columns[f"lcm_{channel}_{low}_{high}{name}"] = defined(n_rings > 0.0, mean, xp)
    return columns


def _pattern(channel: str, sums: Sums, xp: ModuleType) -> dict[str, Any]:
    n_far, root = sums[f"{channel}_far_live"] + 1e-6, xp.sqrt(sums[f"{channel}_live"] + 1e-6)
    columns = {f"tail_{channel}_{name}": sums[f"{channel}_tail_{name}"] / n_far for name in ("05", "1", "2")}
    dipole = (sums[f"{channel}_dipole_cos"], sums[f"{channel}_dipole_sin"])
    quadrupole = (sums[f"{channel}_quadrupole_cos"], sums[f"{channel}_quadrupole_sin"])
    columns[f"dipole_{channel}"] = xp.sqrt(dipole[0] ** 2 + dipole[1] ** 2) / root
    columns[f"quadrupole_{channel}"] = xp.sqrt(quadrupole[0] ** 2 + quadrupole[1] ** 2) / root
    columns[f"dipole_{channel}_azimuth"] = dipole[0] / root
    return columns


GROUPS = (*_PROFILE_GROUPS, *_ASYMMETRY_GROUPS)
FEATURES: tuple[Feature, ...] = (*_PROFILE_FEATURES, *_ASYMMETRY_FEATURES)


def compute(fitted: FittedEvents) -> dict[str, Any]:
    """Return the features of the groups asked for, each (n,) float32."""
    return {
        **(_compute_profile(fitted) if fitted.wants(PROFILE_GROUP) else {}),
        **(_compute_asymmetry(fitted) if fitted.wants(ASYMMETRY_GROUP) else {}),
    }
