"""Sums over stations and over rings around the fitted core, from which profile, muon and quality features are made.

Here are their names; :mod:`showerstack.features.stations.compiled` sums on the CPU, ``kernel.cu`` on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from showerstack.features.lateral.elementwise import within
from showerstack.features.lateral.events import EventBatch
from showerstack.features.lateral.station import MUON_G_REF
from showerstack.showers.lateral import muon_normalisation

EDGES_M = (10.0, 16.0, 25.0, 40.0, 63.0, 90.0, 130.0)
"""Outer edges of the profile's rings, logarithmic; the first ring begins on the axis."""
RINGS_M: tuple[tuple[float, float], ...] = tuple(zip((0.0, *EDGES_M[:-1]), EDGES_M, strict=True))
LCM_RINGS_M: tuple[tuple[float, float], ...] = tuple((float(low), low + 10.0) for low in range(30, 120, 10))
"""Rings of LCm, 10 m wide as published; nearer than 30 m such a ring holds fewer than ten stations of 13 m pitch."""
FAR_M = 42.0
"""Beyond it the muon channel counts muons, nearer it measures punch-through too."""
MUON_AGE_FROM_M = 40.0
OUTER_M = 90.0
MAX_DEVIATE = 5.0
"""Residuals are bounded in the multipoles, so that one badly described station does not make the pattern."""

PLAIN = (
    "deviance_e", "deviance_mu", "deviance_mu_max", "muon_age_hits",
    "far_seen", "far_hits", "far_live", "far_area", "far_max", "far_seen_e",
    "fit_empty", "fit_empty_var", "reco_expected", "reco_empty", "reco_empty_var",
    "near_seen", "near_expected", "near_hits", "unexplained", "signal", "signal_var",
    "mid_seen_mu", "mid_area_mu", "mid_seen_e", "mid_area_e",
    "outer_seen_mu", "outer_area_mu", "outer_seen_e", "outer_area_e",
)  # fmt: skip
"""Sums with one value an event."""
PATTERN = (
    "live",
    "far_live",
    "tail_05",
    "tail_1",
    "tail_2",
    "dipole_cos",
    "dipole_sin",
    "quadrupole_cos",
    "quadrupole_sin",
)
"""Sums with one value an event and channel, named ``e_live`` and so on."""
RING = ("seen", "area", "expected", "variance")
"""Sums in a ring of the profile, named ``ring_e_seen`` and so on."""
LCM_RING = ("stations", "seen", "seen_2", "expected", "expected_2", "variance")
"""Stations in a ring of LCm and sums of their densities (``_2``: of squares), named ``lcm_e_stations`` and so on."""
RINGS, PATTERNS = "rings", "patterns"
PARTS = frozenset({RINGS, PATTERNS})
"""Sums beside ``PLAIN`` that some groups of features need: ``RING``; ``PATTERN`` and ``LCM_RING``."""
CHANNELS = ("e", "mu")
Sums = dict[str, Any]
"""Arrays by name, float32: (n,), of rings (n, rings); ``fitted`` is (n,) bool."""


def shapes(n: int, parts: frozenset[str]) -> list[tuple[int, ...]]:
    """Return the shapes of the arrays that a kernel fills: ``PLAIN``, ``PATTERN``, ``RING``, ``LCM_RING``."""
    n_rings, n_patterns = (n if part in parts else 0 for part in (RINGS, PATTERNS))
    channels, rings, lcm = len(CHANNELS), len(RINGS_M), len(LCM_RINGS_M)
    return [
        (n, len(PLAIN)),
        (n_patterns, channels, len(PATTERN)),
        (n_rings, channels, len(RING), rings),
        (n_patterns, channels, len(LCM_RING), lcm),
    ]


def sums_by_name(fitted: Any, parts: frozenset[str], filled: Sequence[Any]) -> Sums:
    """Return the sums by name from arrays of :func:`shapes`."""
    plain, pattern, rings, lcm = filled
    sums: Sums = {"fitted": fitted}
    sums.update({name: plain[:, k] for k, name in enumerate(PLAIN)})
    for c, channel in enumerate(CHANNELS):
        if RINGS in parts:
            sums.update({f"ring_{channel}_{name}": rings[:, c, k] for k, name in enumerate(RING)})
        if PATTERNS in parts:
            sums.update({f"{channel}_{name}": pattern[:, c, k] for k, name in enumerate(PATTERN)})
            sums.update({f"lcm_{channel}_{name}": lcm[:, c, k] for k, name in enumerate(LCM_RING)})
    return sums


def over_level_zero(events: EventBatch) -> Any:
    """Return the muon density of the reconstructed size and the mean age over that of level 0, (n,) float32."""
    xp, age = events.xp, events.response.muon_age_mean
    unit = float(muon_normalisation(age)) * math.exp(age * MUON_G_REF)
    return unit * xp.exp(within(events.lg_n_mu, 0.0, 9.0, xp) * math.log(10.0))
