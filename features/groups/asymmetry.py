"""How uneven the signal is around the axis: LCm, tail sums, dipole and quadrupole of the residuals.

Hadron showers are clumped by sub-showers and single muons; photon showers are smooth. Expectations come from the
fit, so that nothing has to be trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

from features.bounds import LG_E, defined, held
from features.feature import Feature, Group, row
from features.fitted import FittedEvents
from features.stations.sums import LCM_RINGS_M, Sums

GROUP = "asymmetry"
GROUPS = (Group(GROUP, "unevenness around the axis", fitted=True),)
HERE = "this project"
LCM = "R. Conceição et al., arXiv:2204.12337, 2304.02988; densities, since stations differ in area"
TAIL = "R. Conceição et al., arXiv:2309.17217; tail of the compound Poisson, features/stations/tail.py"
LCM_ZONES_M = ((30, 60), (60, 90), (90, 120))
"""Zones over whose rings of 10 m LCm is averaged."""
RINGS_PER_ZONE = len(LCM_RINGS_M) // len(LCM_ZONES_M)
ALPHAS = (0.5, 1.0, 2.0)
"""Exponents of the survival term -lg(tail probability)."""
MAX_EXCESS = 10.0
CHANNELS = (("e", "e/gamma"), ("mu", "muon"))


# fmt: off
def _declare() -> Iterator[Feature]:
    squares = "sum (d_i - d_j)^2"
    per_zone = f"mean over rings of 10 m of lg(2/(n(n-1)) {squares} / <d>), d = S / area"
    for c, words in CHANNELS:
        for low, high in LCM_ZONES_M:
            zone, metres = f"lcm_{c}_{low}_{high}", f"{low} to {high} m"
            yield row(zone, "lg", -20, 12, f"LCm of the {words} densities, {metres}", per_zone, GROUP, LCM)
            yield row(f"{zone}_excess", "lg", -20, 20, f"the same over the fit's expectation, {metres}",
                      f"mean over rings of 10 m of lg({squares} / expected)", GROUP, LCM)
        for alpha in ALPHAS:
            yield row(f"tail_{c}_{alpha:g}".replace(".", ""), "1", 0, 1e4,
                      f"tail sum of the {words} stations beyond 42 m, alpha = {alpha:g}",
                      f"mean of (-lg P(S >= seen))^{alpha:g}", GROUP, TAIL)
        yield row(f"dipole_{c}", "1", 0, 1e4, f"dipole of the {words} residuals around the axis",
                  "|sum z exp(i phi)| / sqrt(n)", GROUP, HERE)
        yield row(f"quadrupole_{c}", "1", 0, 1e4, f"quadrupole of the {words} residuals",
                  "|sum z exp(2 i phi)| / sqrt(n)", GROUP, HERE)
        yield row(f"dipole_{c}_azimuth", "1", -1e4, 1e4, f"dipole of the {words} residuals along the shower's azimuth",
                  "sum z cos(phi - azimuth) / sqrt(n)", GROUP, HERE)
    yield row("centroid_core_m", "m", 0, 300, "centroid of ln(1 + e/gamma) to the fitted core",
              "distance on the ground", GROUP, HERE)
# fmt: on


FEATURES: tuple[Feature, ...] = tuple(_declare())


def compute(seen: FittedEvents) -> dict[str, Any]:
    """Return the group's features, each (n,) float32; NaN without a fit or with fewer than 2 stations in a ring."""
    events, sums, core = seen.events, seen.sums, seen.fit.electron
    xp, here = events.xp, events.stations
    columns: dict[str, Any] = {}
    for channel, _ in CHANNELS:
        columns.update(_lcm(channel, sums[f"lcm_{channel}"], xp))
        columns.update(_pattern(channel, sums, xp))
    weight = xp.log1p(events.electron_mev)
    total = xp.sum(weight, axis=1) + 1e-20
    gap_x = xp.sum(weight * here.x_m, axis=1) / total - core[0]
    gap_y = xp.sum(weight * here.y_m, axis=1) / total - core[1]
    columns["centroid_core_m"] = xp.sqrt(gap_x * gap_x + gap_y * gap_y)
    return {name: defined(sums["fitted"], values, xp) for name, values in columns.items()}


def _lcm(channel: str, sums: list[Any], xp: ModuleType) -> dict[str, Any]:
    """LCm per zone: sum over pairs of (d_i - d_j)^2 is n sum d^2 - (sum d)^2.

    Parameters
    ----------
    sums
        Per ring, (n, rings) each, of densities d: stations, sum d, sum d^2, sums of expectations, of their squares, and
        of variances.
    """
    n, total, square, mean, mean_square, spread = sums
    pairs = xp.maximum(n * square - total * total, 0.0)
    predicted = n * (spread + mean_square) - spread - mean * mean
    enough = (n >= 2.0) & (total > 0.0)
    norm = xp.where(enough, 0.5 * (n - 1.0) * total, xp.ones_like(n))
    value = xp.log(pairs / norm + 1e-12) * LG_E
    ratio = (pairs + 1e-6) / (xp.maximum(predicted, 0.0) + 1e-6)
    excess = held(xp.log(ratio) * LG_E, MAX_EXCESS, xp)
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
