"""Muons against electrons: counts beyond 42 m, missing muons, and deposits that the electrons cannot explain.

Near the core, electrons and hadrons punch through the shielding of the muon detectors; photon showers bring few
hadrons. So the muon channel is read in two parts: beyond 42 m it counts muons, nearer it measures punch-through.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from showerstack.features.groups import FITS, OURS, Feature, FittedEvents, Group, row
from showerstack.features.lateral.elementwise import LG_E, clip_symmetric, defined
from showerstack.features.lateral.events import EventBatch
from showerstack.features.stations.sums import Sums
from showerstack.showers.array import KASCADE

GROUP = "muon-electron"
GROUPS = (Group(GROUP, "muons against electrons", (*FITS, "all"), needs_fits=True),)
MAX_DEVIATE = 100.0

# fmt: off
FEATURES: tuple[Feature, ...] = (
    row("mu_far", "1", 0, 1e7, "muons seen beyond 42 m", "sum of particles, r > 42 m", GROUP, OURS),
    row("mu_far_hits", "1", 0, KASCADE.n_muon_detectors, "muon stations hit beyond 42 m", "count", GROUP, OURS),
    row("mu_far_stations", "1", 0, KASCADE.n_muon_detectors, "live muon stations beyond 42 m", "count", GROUP, OURS),
    row("mu_far_density_lg", "lg m^-2", -4, 4, "muon density beyond 42 m",
        "lg((mu_far + 0.5) / live area)", GROUP, OURS),
    row("mu_far_empty_excess", "1", -100, 100, "more empty muon stations than the fit expects, beyond 42 m",
        "(seen - expected empties) / sqrt(variance + 0.1)", GROUP, OURS),
    row("mu_far_empty_reco", "1", -100, 100,
        "more empty muon stations than the reconstructed N_mu expects, beyond 42 m",
        "(seen - expected empties) / sqrt(variance + 0.1), rho_mu(N_mu, s_mu = 1.3)", GROUP, OURS),
    row("mu_far_minus_reco", "1", -1000, 1e7, "muons seen beyond 42 m against the reconstructed N_mu",
        "(seen - expected) / sqrt(variance + 0.1)", GROUP, OURS),
    row("mu_far_max", "1", 0, 10000, "largest muon deposit beyond 42 m", "max of particles", GROUP, OURS),
    row("mu_near", "1", 0, 1e7, "muon-channel signal within 42 m", "sum of particles, r < 42 m", GROUP, OURS),
    row("mu_near_hits", "1", 0, 60, "muon stations hit within 42 m", "count", GROUP, OURS),
    row("mu_near_punch_lg", "lg", -8, 8, "muon-channel signal within 42 m over expected punch-through and muons",
        "lg((seen + 0.5) / (expected + 0.5))", GROUP, OURS),
    row("mu_unexplained", "1", 0, 1e7, "muon-channel signal that electrons alone do not explain",
        "sum of max(0, seen - background - 2 sqrt(variance)), background: punch-through and strays", GROUP, OURS),
    row("mu_significance", "1", -100, 1e7, "significance of the muon signal over punch-through and strays",
        "sum w (seen - background) / sqrt(sum w^2 variance), w = muons of a mean shower / variance", GROUP, OURS),
    row("mu_e_fit", "lg", -14, 8, "muon over electron number of the fits", "fit_lg_nmu - fit_lg_ne", GROUP, OURS),
    row("mu_e_far_lg", "lg", -6, 6, "muon over e/gamma signal beyond 42 m",
        "lg((mu_far + 0.5) / (e_far + 0.5))", GROUP, OURS),
    row("mu_e_40_90_lg", "lg", -8, 8, "muon over e/gamma density between 40 and 90 m",
        "lg ratio of densities", GROUP, OURS),
    row("mu_e_90_lg", "lg", -8, 8, "muon over e/gamma density beyond 90 m", "lg ratio of densities", GROUP, OURS),
    row("mu_slope", "1", -6, 6, "muon density beyond 90 m against that between 40 and 90 m",
        "lg ratio of densities", GROUP, OURS),
)
# fmt: on


def compute(fitted: FittedEvents) -> dict[str, Any]:
    """Return the features of this group, each (n,) float32; NaN without a fit."""
    events, sums, xp = fitted.events, fitted.sums, fitted.xp
    columns = {**_far(events, sums), **_near(sums, xp), **_ratios(sums, xp)}
    columns["mu_e_fit"] = fitted.columns["fit_lg_nmu"] - fitted.columns["fit_lg_ne"]
    return {name: defined(sums["fitted"], values, xp) for name, values in columns.items()}


def _far(events: EventBatch, sums: Sums) -> dict[str, Any]:
    xp, response = events.xp, events.response
    n_muons, n_live = sums["far_seen"], sums["far_live"]
    columns = {
        "mu_far": n_muons,
        "mu_far_hits": sums["far_hits"],
        "mu_far_stations": n_live,
        "mu_far_max": sums["far_max"],
    }
    columns["mu_far_density_lg"] = xp.log((n_muons + 0.5) / (sums["far_area"] + 1e-3)) * LG_E
    for name, source in (("mu_far_empty_excess", "fit"), ("mu_far_empty_reco", "reco")):
        excess = n_live - sums["far_hits"] - sums[f"{source}_empty"]
        columns[name] = clip_symmetric(excess / xp.sqrt(sums[f"{source}_empty_var"] + 0.1), MAX_DEVIATE, xp)
    expected = sums["reco_expected"]
    spread = xp.sqrt(response.muon_dispersion * (expected + response.muon_strays * n_live) + 0.1)
    columns["mu_far_minus_reco"] = (n_muons - expected - response.muon_strays * n_live) / spread
    return columns


def _near(sums: Sums, xp: ModuleType) -> dict[str, Any]:
    return {
        "mu_near": sums["near_seen"],
        "mu_near_hits": sums["near_hits"],
        "mu_near_punch_lg": xp.log((sums["near_seen"] + 0.5) / (sums["near_expected"] + 0.5)) * LG_E,
        "mu_unexplained": sums["unexplained"],
        "mu_significance": sums["signal"] / xp.sqrt(sums["signal_var"] + 1e-20),
    }


def _ratios(sums: Sums, xp: ModuleType) -> dict[str, Any]:
    def density(zone: str, channel: str) -> Any:
        return xp.log((sums[f"{zone}_seen_{channel}"] + 0.5) / (sums[f"{zone}_area_{channel}"] + 1e-3)) * LG_E

    return {
        "mu_e_far_lg": xp.log((sums["far_seen"] + 0.5) / (sums["far_seen_e"] + 0.5)) * LG_E,
        "mu_e_40_90_lg": density("mid", "mu") - density("mid", "e"),
        "mu_e_90_lg": density("outer", "mu") - density("outer", "e"),
        "mu_slope": density("outer", "mu") - density("mid", "mu"),
    }
