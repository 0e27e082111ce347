"""Radial profiles around the fitted core, in the shower plane: densities, residuals, slopes and containment."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from features.bounds import LG_E, defined, held
from features.feature import Feature, Group, row
from features.fitted import FittedEvents
from features.stations.sums import EDGES_M, RINGS_M

GROUP = "profile"
GROUPS = (Group(GROUP, "radial profiles around the fitted core", ("fits+profile", "all"), fitted=True),)
HERE = "this project"
N_RINGS = len(EDGES_M)
MAX_RESIDUAL = 100.0
CHANNELS = (("e", "e/gamma"), ("mu", "muon"))


def ring_name(k: int) -> str:
    """Return the part of a column's name that tells the ring, such as ``25_40``."""
    return f"{int(EDGES_M[k - 1]) if k else 0}_{int(EDGES_M[k])}"


# fmt: off
def _declare() -> Iterator[Feature]:
    inside, cumulative = "signal within 130 m", "interpolation of the cumulative ring sums"
    for k in range(N_RINGS):
        ring, where = ring_name(k), f"{ring_name(k).replace('_', ' to ')} m from the axis"
        for c, words in CHANNELS:
            yield row(f"prof_{c}_{ring}", "lg m^-2", -3.1, 6, f"{words} density {where}",
                      "lg(particles / live area + 0.001)", GROUP, HERE)
            yield row(f"res_{c}_{ring}", "1", -100, 100, f"{words} residual of the fit {where}",
                      "(seen - expected) / sqrt(variance), held within 100", GROUP, HERE)
    for c, words in CHANNELS:
        yield row(f"prof_{c}_r50_m", "m", 0, 130, f"radius with half of the {words} {inside}", cumulative, GROUP, HERE)
        yield row(f"prof_{c}_r90_m", "m", 0, 130, f"radius with 90 % of the {words} {inside}", cumulative, GROUP, HERE)
        yield row(f"prof_{c}_in25", "1", 0, 1.0001, f"share of the {words} signal within 25 m",
                  "sum r < 25 m / sum r < 130 m", GROUP, HERE)
    for k in range(2, N_RINGS):
        inner, outer = ring_name(k - 1), ring_name(k)
        yield row(f"slope_e_{outer}", "1", -60, 60, f"local slope of the e/gamma density, rings {inner} and {outer}",
                  "difference of lg density / difference of lg mean radius", GROUP, HERE)
# fmt: on


FEATURES: tuple[Feature, ...] = tuple(_declare())


def compute(seen: FittedEvents) -> dict[str, Any]:
    """Return the features of this group, each (n,) float32; NaN without a live station in the ring, or without hits."""
    sums, xp = seen.sums, seen.xp
    columns: dict[str, Any] = {}
    for channel in ("e", "mu"):
        seen, area, expected, variance = sums[f"ring_{channel}"]
        live = (area > 0.0) & sums["fitted"][:, None]
        density = defined(live, seen / xp.where(live, area, xp.ones_like(area)), xp)
        density = xp.log(density + 1e-3) * LG_E
        residual = (seen - expected) / xp.sqrt(variance + 1e-6)
        # A saturated or wholly unexpected station would otherwise dwarf all others.
        residual = defined(live, held(residual, MAX_RESIDUAL, xp), xp)
        for k in range(N_RINGS):
            columns[f"prof_{channel}_{ring_name(k)}"] = density[:, k]
            columns[f"res_{channel}_{ring_name(k)}"] = residual[:, k]
        if channel == "e":
            columns.update(_slopes(density))
        columns.update(_containment(channel, seen, sums["fitted"], xp))
    return columns


def _slopes(density: Any) -> dict[str, Any]:
    middles = [0.5 * (math.log10(low) + math.log10(high)) for low, high in pairwise(EDGES_M)]
    return {
        f"slope_e_{ring_name(k)}": (density[:, k] - density[:, k - 1]) / (middles[k - 1] - middles[k - 2])
        for k in range(2, N_RINGS)
    }


def _containment(channel: str, seen: Any, fitted: Any, xp: Any) -> dict[str, Any]:
    """Return the radii that hold 50 and 90 % of the signal within 130 m, and the share within 25 m.

    The cumulative signal is taken as linear in r within a ring.

    Parameters
    ----------
    seen
        (n, rings): signal per ring.
    """
    total = xp.sum(seen, axis=1)
    some = (total > 0.0) & fitted
    safe = xp.where(some, total, xp.ones_like(total))
    columns = {f"prof_{channel}_in25": defined(some, xp.sum(seen[:, :3], axis=1) / safe, xp)}
    for name, share in (("r50_m", 0.5), ("r90_m", 0.9)):
        before, radius = xp.zeros_like(total), xp.zeros_like(total)
        for k, (low, high) in enumerate(RINGS_M):
            missing = xp.maximum(share * safe - before, 0.0)
            held_here = xp.maximum(seen[:, k], 1e-20)
            part = xp.minimum(missing / held_here, 1.0)
            # The first ring that is only partly needed is the last to move the radius outwards.
            radius = xp.where(missing > 0.0, low + (high - low) * part, radius)
            before = before + seen[:, k]
        columns[f"prof_{channel}_{name}"] = defined(some, radius, xp)
    return columns
