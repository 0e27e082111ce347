"""Muons against electrons: counts beyond 42 m, missing muons, and deposits that the electrons cannot explain.

Near the core, electrons and hadrons punch through the shielding of the muon detectors; photon showers bring few
hadrons. So the muon channel is read in two parts: beyond 42 m it counts muons, nearer it measures punch-through.
"""

from __future__ import annotations

import math
from typing import Any

from features.bounds import LG_E, decay, defined, held
from features.events import Events
from features.feature import Feature
from features.fit import TRUNCATED_M
from features.frame import Frame
from features.lateral_fit import RawFit
from features.station_model import muon_density
from showers.lateral import rho_muon

GROUP = "muon-electron"
HERE = "this project"
FAR_M = 42.0
MAX_DEVIATE = 100.0

FEATURES: tuple[Feature, ...] = (
    Feature("mu_far", "1", "muons seen beyond 42 m", "sum of deposits / 8.4 MeV, r > 42 m", HERE, GROUP, 0, 1e7),
    Feature("mu_far_hits", "1", "muon stations hit beyond 42 m", "count", HERE, GROUP, 0, 192),
    Feature("mu_far_live", "1", "live muon stations beyond 42 m", "count", HERE, GROUP, 0, 192),
    Feature(
        "mu_far_density_lg", "lg m^-2", "muon density beyond 42 m", "lg((mu_far + 0.5) / live area)", HERE, GROUP, -4, 4
    ),
    Feature(
        "mu_far_empty_excess",
        "1",
        "more empty muon stations than the fit expects, beyond 42 m",
        "(seen - expected empties) / sqrt(variance)",
        HERE,
        GROUP,
        -100,
        100,
    ),
    Feature(
        "mu_far_empty_reco",
        "1",
        "more empty muon stations than the reconstructed N_mu expects, beyond 42 m",
        "(seen - expected empties) / sqrt(variance), rho_mu(N_mu, s_mu = 1.3)",
        HERE,
        GROUP,
        -100,
        100,
    ),
    Feature(
        "mu_far_minus_reco",
        "1",
        "muons seen beyond 42 m against the reconstructed N_mu",
        "(seen - expected) / sqrt(variance)",
        HERE,
        GROUP,
        -1e3,
        1e7,
    ),
    Feature("mu_far_max", "1", "largest muon deposit beyond 42 m", "max of particles", HERE, GROUP, 0, 1e4),
    Feature("mu_near", "1", "muon-channel signal within 42 m", "sum of particles, r < 42 m", HERE, GROUP, 0, 1e7),
    Feature("mu_near_hits", "1", "muon stations hit within 42 m", "count", HERE, GROUP, 0, 60),
    Feature(
        "mu_near_punch_lg",
        "lg",
        "muon-channel signal within 42 m over expected punch-through and muons",
        "lg((seen + 0.5) / (expected + 0.5))",
        HERE,
        GROUP,
        -8,
        8,
    ),
    Feature(
        "mu_unexplained",
        "1",
        "muon-channel signal that electrons alone do not explain",
        "sum of max(0, seen - punch-through - 2 sqrt(variance))",
        HERE,
        GROUP,
        0,
        1e7,
    ),
    Feature(
        "mu_significance",
        "1",
        "significance of the muon signal over punch-through and strays",
        "(seen - background) / sqrt(variance of background), inverse-variance weights",
        HERE,
        GROUP,
        -100,
        1e7,
    ),
    Feature("mu_e_fit", "lg", "muon over electron number of the fits", "fit_lg_nmu - fit_lg_ne", HERE, GROUP, -14, 8),
    Feature(
        "mu_e_far_lg",
        "lg",
        "muon over e/gamma signal beyond 42 m",
        "lg((mu_far + 0.5) / (e_far + 0.5))",
        HERE,
        GROUP,
        -6,
        6,
    ),
    Feature(
        "mu_e_40_90_lg",
        "lg",
        "muon over e/gamma density between 40 and 90 m",
        "lg ratio of densities",
        HERE,
        GROUP,
        -8,
        8,
    ),
    Feature("mu_e_90_lg", "lg", "muon over e/gamma density beyond 90 m", "lg ratio of densities", HERE, GROUP, -8, 8),
    Feature(
        "mu_slope",
        "1",
        "muons beyond 90 m against those between 42 and 90 m",
        "lg ratio of densities",
        HERE,
        GROUP,
        -6,
        6,
    ),
)


def compute(events: Events, fit: RawFit, frame: Frame, sizes: dict[str, Any]) -> dict[str, Any]:
    """Return the features of this group, each (n,) float32; NaN without a fit.

    Parameters
    ----------
    sizes
        Columns that hold ``fit_lg_ne`` and ``fit_lg_nmu``.
    """
    xp = events.xp
    far = xp.astype(frame.r_m > FAR_M, xp.float32)
    columns = {**_far(events, frame, far), **_near(events, fit, frame, far), **_ratios(frame, far, xp)}
    columns["mu_e_fit"] = sizes["fit_lg_nmu"] - sizes["fit_lg_ne"]
    return {name: defined(frame.fitted, values, xp) for name, values in columns.items()}


def _sum(plane: Any, mask: Any, xp: Any) -> Any:
    return xp.sum(plane * mask, axis=1)


def _far(events: Events, frame: Frame, far: Any) -> dict[str, Any]:
    xp, response = events.xp, events.response
    live = events.stations.has_muon * far
    area = frame.measured.muon_area_m2
    seen = _sum(frame.measured.muon, far, xp)
    hits = _sum(events.muon_hit, far, xp)
    n_live = xp.sum(live, axis=1)
    floor = xp.ones_like(events.lg_n_mu)
    n_mu = xp.exp(xp.minimum(xp.maximum(events.lg_n_mu, floor * 0.0), floor * 9.0) * math.log(10.0))
    shape = floor * response.muon_shape_mean
    reconstructed = area * rho_muon(frame.r_m, n_mu[:, None], shape[:, None], xp=xp) * far
    fitted = frame.n_muons * far
    columns = {"mu_far": seen, "mu_far_hits": hits, "mu_far_live": n_live}
    total_area = xp.sum(area * far, axis=1)
    columns["mu_far_density_lg"] = xp.log((seen + 0.5) / (total_area + 1e-3)) * LG_E
    for name, expected in (("mu_far_empty_excess", fitted), ("mu_far_empty_reco", reconstructed)):
        # A station stays empty if every muon misses the threshold, and no stray hits.
        empty = decay(expected * (1.0 - response.muon_miss) + response.muon_strays, xp) * live
        variance = xp.sum(empty * (1.0 - empty), axis=1) + 0.1
        columns[name] = held((n_live - hits - xp.sum(empty, axis=1)) / xp.sqrt(variance), MAX_DEVIATE, xp)
    expected = xp.sum(reconstructed, axis=1)
    spread = xp.sqrt(response.muon_dispersion * (expected + response.muon_strays * n_live) + 0.1)
    columns["mu_far_minus_reco"] = (seen - expected - response.muon_strays * n_live) / spread
    columns["mu_far_max"] = xp.max(frame.measured.muon * far, axis=1)
    return columns


def _near(events: Events, fit: RawFit, frame: Frame, far: Any) -> dict[str, Any]:
    xp, response = events.xp, events.response
    near = (1.0 - far) * events.stations.has_muon
    seen = frame.measured.muon
    near_seen, near_expected = _sum(seen, near, xp), _sum(frame.muon_expected, near, xp)
    strays = response.muon_strays * events.stations.has_muon
    background = frame.punch_through + strays
    variance = (
        response.punch_through_dispersion * frame.punch_through
        + (response.punch_through_uncertainty * frame.punch_through) ** 2
        + response.muon_dispersion * strays
    )
    beyond = seen - background - 2.0 * xp.sqrt(variance)
    # Weights: where a muon of a mean shower is most visible over punch-through.
    one = xp.ones_like(frame.r_m)
    template = muon_density(frame.r_m, one * 0.0, one * response.muon_shape_mean, xp) * frame.measured.muon_area_m2
    weight = template / (variance + 1e-12)
    significance = xp.sum(weight * (seen - background), axis=1) / xp.sqrt(
        xp.sum(weight * weight * variance, axis=1) + 1e-20
    )
    return {
        "mu_near": near_seen,
        "mu_near_hits": _sum(events.muon_hit, near, xp),
        "mu_near_punch_lg": xp.log((near_seen + 0.5) / (near_expected + 0.5)) * LG_E,
        "mu_unexplained": xp.sum(xp.maximum(beyond, one * 0.0), axis=1),
        "mu_significance": significance,
    }


def _ratios(frame: Frame, far: Any, xp: Any) -> dict[str, Any]:
    measured = frame.measured
    outer = xp.astype(frame.r_m > 90.0, xp.float32)
    middle = xp.astype(frame.r_m > TRUNCATED_M[0], xp.float32) - outer

    def density(signal: Any, area: Any, mask: Any) -> Any:
        return xp.log((_sum(signal, mask, xp) + 0.5) / (_sum(area, mask, xp) + 1e-3)) * LG_E

    muon = [density(measured.muon, measured.muon_area_m2, mask) for mask in (middle, outer)]
    electron = [density(measured.electron, measured.electron_area_m2, mask) for mask in (middle, outer)]
    far_ratio = xp.log((_sum(measured.muon, far, xp) + 0.5) / (_sum(measured.electron, far, xp) + 0.5)) * LG_E
    return {
        "mu_e_far_lg": far_ratio,
        "mu_e_40_90_lg": muon[0] - electron[0],
        "mu_e_90_lg": muon[1] - electron[1],
        "mu_slope": muon[1] - muon[0],
    }
