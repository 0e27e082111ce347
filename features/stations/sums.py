"""Sums over stations and over rings, seen from the fitted core: what profile, muon and quality features are made of.

Distances, expected signals and their variances are computed once per chunk and station. This is the array-API
reference; :mod:`features.stations.compiled` is the compiled version of the same sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from features.lateral.elementwise import decay
from features.lateral.events import (
    EventBatch,
    Frozen,
    Signals,
    distances,
    electron_density,
    energy_correction,
    freeze_electron,
    freeze_muon,
    half_deviance,
    muon_density,
    signals,
)
from features.lateral.fit import RawFit
from features.lateral.station import MUON_G_REF
from features.stations.tail import minus_lg_tail
from showers.lateral import muon_normalisation, rho_muon


@dataclass(frozen=True)
class StationExpectation:
    """Planes (n, cells) float32 in particles, NaN-free: events without a fit have ``fitted`` false."""

    fitted: Any
    """(n,) bool."""
    measured: Signals
    r_m: Any
    """Distance from the fitted axis, metres."""
    electron_expected: Any
    """Expected signal of the e/gamma channel, muons and strays included."""
    electron_variance: Any
    muon_expected: Any
    """Expected signal of the muon channel, punch-through and strays included."""
    muon_variance: Any
    """Without the uncertainty of punch-through."""
    punch_through: Any
    """Part of ``muon_expected`` that electrons make."""
    n_electrons: Any
    """Expected number of electrons in the e/gamma detector."""
    n_muons: Any
    """Expected number of muons in the muon detector."""
    electron_frozen: Frozen
    muon_frozen: Frozen


def expected_signals(events: EventBatch, fit: RawFit) -> StationExpectation:
    """Return the planes at the fitted parameters."""
    xp, response = events.xp, events.response
    core_x = fit.electron[0]
    fitted = core_x == core_x  # false for NaN

    def filled(values: Any, instead: float) -> Any:
        return xp.where(fitted, values, xp.zeros_like(values) + instead)

    measured = signals(events)
    r_m = distances(events, filled(core_x, 0.0), filled(fit.electron[1], 0.0))
    electrons = electron_density(r_m, filled(fit.electron[2], -5.0)[:, None], filled(fit.electron[3], 1.0)[:, None], xp)
    muons = muon_density(
        r_m, filled(fit.muon[0], -5.0)[:, None], filled(fit.muon[1], response.muon_age_mean)[:, None], xp
    )
    electron_frozen = freeze_electron(measured, r_m, electrons, muons, xp)
    muon_frozen = freeze_muon(measured, r_m, electrons, muons, xp)
    live_e = xp.astype(measured.electron_area_m2 > 0.0, xp.float32)
    live_m = xp.astype(measured.muon_area_m2 > 0.0, xp.float32)
    n_electrons = measured.electron_area_m2 * electrons
    n_muons = measured.muon_area_m2 * muons
    expected = electron_frozen.area_m2 * electrons * energy_correction(r_m, response, xp) + electron_frozen.background
    muon_expected = n_muons + muon_frozen.background
    punch = xp.maximum(muon_frozen.background - response.muon_strays, xp.zeros_like(muon_expected)) * live_m
    return StationExpectation(
        fitted=fitted,
        measured=measured,
        r_m=r_m,
        electron_expected=expected * live_e,
        electron_variance=expected / (electron_frozen.weight + 1e-12) * live_e,
        muon_expected=muon_expected * live_m,
        muon_variance=response.muon_dispersion * (muon_expected - punch) * live_m
        + response.punch_through_dispersion * punch,
        punch_through=punch,
        n_electrons=n_electrons,
        n_muons=n_muons,
        electron_frozen=electron_frozen,
        muon_frozen=muon_frozen,
    )


def ring_masks(r_m: Any, rings: tuple[tuple[float, float], ...], xp: ModuleType) -> Any:
    """Return which station lies in each ring, (n, rings, cells) float32 of 0 and 1; a ring holds low <= r < high."""
    low = xp.asarray([ring[0] for ring in rings], dtype=xp.float32)[None, :, None]
    high = xp.asarray([ring[1] for ring in rings], dtype=xp.float32)[None, :, None]
    r = r_m[:, None, :]
    return xp.astype((r >= low) & (r < high), xp.float32)


def ring_sums(masks: Any, planes: list[Any], xp: ModuleType) -> list[Any]:
    """Return for each plane (n, cells) its sums per ring, (n, rings): one small matrix product an event."""
    sums = xp.matmul(masks, xp.matrix_transpose(xp.stack(planes, axis=1)))
    return [sums[:, :, k] for k in range(len(planes))]


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
RINGS, PATTERNS = "rings", "patterns"
PARTS = frozenset({RINGS, PATTERNS})
"""What is summed beside ``PLAIN`` where a group asks for it: profiles; ``PATTERN`` and densities for LCm."""
CHANNELS = ("e", "mu")
Sums = dict[str, Any]
"""Arrays (n,) float32 by name. ``ring_e`` and ``ring_mu`` are lists of (n, rings): seen, area, expected, variance;
``lcm_e`` and ``lcm_mu`` lists of (n, rings of LCm), densities: stations, seen, seen^2, expected, expected^2, variance;
``fitted`` is (n,) bool."""


def shapes(n: int, parts: frozenset[str]) -> list[tuple[int, ...]]:
    """Return the shapes of what a kernel fills: ``PLAIN``, ``PATTERN``, sums over rings and over rings of LCm."""
    n_rings, n_patterns = (n if part in parts else 0 for part in (RINGS, PATTERNS))
    channels, rings, lcm = len(CHANNELS), len(RINGS_M), len(LCM_RINGS_M)
    return [
        (n, len(PLAIN)),
        (n_patterns, channels, len(PATTERN)),
        (n_rings, channels, 4, rings),
        (n_patterns, channels, 6, lcm),
    ]


def named(fitted: Any, parts: frozenset[str], filled: Sequence[Any]) -> Sums:
    """Return the sums by name from arrays of :func:`shapes`."""
    plain, pattern, rings, lcm = filled
    sums: Sums = {"fitted": fitted}
    sums.update({name: plain[:, k] for k, name in enumerate(PLAIN)})
    for c, channel in enumerate(CHANNELS):
        if RINGS in parts:
            sums[f"ring_{channel}"] = [rings[:, c, k] for k in range(4)]
        if PATTERNS in parts:
            sums.update({f"{channel}_{name}": pattern[:, c, k] for k, name in enumerate(PATTERN)})
            sums[f"lcm_{channel}"] = [lcm[:, c, k] for k in range(6)]
    return sums


def over_level_zero(events: EventBatch) -> Any:
    """Return the muon density of the reconstructed size and the mean age over that of level 0, (n,) float32."""
    xp, age = events.xp, events.response.muon_age_mean
    unit = float(muon_normalisation(age)) * math.exp(age * MUON_G_REF)
    return unit * xp.exp(xp.clip(events.lg_n_mu, 0.0, 9.0) * math.log(10.0))


def sum_reference(events: EventBatch, fit: RawFit, parts: frozenset[str] = PARTS) -> Sums:
    """Return the sums of ``PLAIN`` and of the parts asked for; without meaning where ``fitted`` is false."""
    xp = events.xp
    frame = expected_signals(events, fit)
    measured = frame.measured
    sums: Sums = {"fitted": frame.fitted}
    mean, weight = frame.electron_expected + 1e-12, frame.electron_frozen.weight
    value, _ = half_deviance(measured.electron, mean, measured.electron_saturated, weight, xp)
    sums["deviance_e"] = xp.sum(value, axis=1)
    mean, weight = frame.muon_expected + 1e-12, frame.muon_frozen.weight
    value, _ = half_deviance(measured.muon, mean, measured.muon_saturated, weight, xp)
    sums["deviance_mu"], sums["deviance_mu_max"] = xp.sum(value, axis=1), xp.max(value, axis=1)
    far = xp.astype(frame.r_m > FAR_M, xp.float32)
    sums.update(_far(events, frame, far))
    sums.update(_near(events, frame, far))
    sums.update(_zones(frame, xp))
    live_e = events.stations.has_electron * xp.ones_like(far)
    live_mu = events.stations.has_muon * xp.ones_like(far)
    planes = {
        "e": (measured.electron, measured.electron_area_m2, frame.electron_expected, frame.electron_variance, live_e),
        "mu": (measured.muon, measured.muon_area_m2, frame.muon_expected, frame.muon_variance, live_mu),
    }
    dispersions = {"e": events.response.electron_dispersion, "mu": events.response.muon_dispersion}
    masks, lcm_masks = ring_masks(frame.r_m, RINGS_M, xp), ring_masks(frame.r_m, LCM_RINGS_M, xp)
    angles = _angles(events, fit)
    for channel, (signal, area, expected, variance, live) in planes.items():
        if RINGS in parts:
            sums[f"ring_{channel}"] = ring_sums(masks, [signal, area, expected, variance], xp)
        if PATTERNS not in parts:
            continue
        # Densities: stations of different area are compared.
        per_m2 = live / xp.maximum(area, 1e-6)
        density, mean = signal * per_m2, expected * per_m2
        products = [live, density, density * density, mean, mean * mean, variance * per_m2 * per_m2]
        sums[f"lcm_{channel}"] = ring_sums(lcm_masks, products, xp)
        tail = minus_lg_tail(signal, expected, variance, dispersions[channel], xp) * far * live
        pattern = _pattern(signal, expected, variance, tail, live, far, angles, xp)
        sums.update({f"{channel}_{name}": values for name, values in pattern.items()})
    return sums


def _far(events: EventBatch, frame: StationExpectation, far: Any) -> Sums:
    xp, response, measured = events.xp, events.response, frame.measured
    live = events.stations.has_muon * far
    n_mu = xp.exp(xp.clip(events.lg_n_mu, 0.0, 9.0) * math.log(10.0))
    muon_age = xp.ones_like(n_mu) * response.muon_age_mean
    reconstructed = measured.muon_area_m2 * rho_muon(frame.r_m, n_mu[:, None], muon_age[:, None], xp=xp) * far
    sums = {
        "muon_age_hits": xp.sum(events.muon_hit * xp.astype(frame.r_m > MUON_AGE_FROM_M, xp.float32), axis=1),
        "far_seen": xp.sum(measured.muon * far, axis=1),
        "far_hits": xp.sum(events.muon_hit * far, axis=1),
        "far_live": xp.sum(live, axis=1),
        "far_area": xp.sum(measured.muon_area_m2 * far, axis=1),
        "far_max": xp.max(measured.muon * far, axis=1),
        "far_seen_e": xp.sum(measured.electron * far, axis=1),
        "reco_expected": xp.sum(reconstructed, axis=1),
    }
    for name, expected in (("fit", frame.n_muons), ("reco", reconstructed)):
        # A station stays empty if every muon misses the threshold, and no stray hits.
        empty = decay(expected * (1.0 - response.muon_miss) + response.muon_strays, xp) * live
        sums[f"{name}_empty"] = xp.sum(empty, axis=1)
        sums[f"{name}_empty_var"] = xp.sum(empty * (1.0 - empty), axis=1)
    return sums


def _near(events: EventBatch, frame: StationExpectation, far: Any) -> Sums:
    xp, response = events.xp, events.response
    near = (1.0 - far) * events.stations.has_muon
    signal, punch = frame.measured.muon, frame.punch_through
    strays = response.muon_strays * events.stations.has_muon
    background = punch + strays
    uncertainty = response.punch_through_uncertainty * punch
    variance = response.punch_through_dispersion * punch + uncertainty * uncertainty + response.muon_dispersion * strays
    beyond = signal - background - 2.0 * xp.sqrt(variance)
    # Weights: where a muon of a mean shower is most visible over punch-through.
    one = xp.ones_like(frame.r_m)
    template = muon_density(frame.r_m, one * 0.0, one * response.muon_age_mean, xp) * frame.measured.muon_area_m2
    weight = template / (variance + 1e-12)
    return {
        "near_seen": xp.sum(signal * near, axis=1),
        "near_expected": xp.sum(frame.muon_expected * near, axis=1),
        "near_hits": xp.sum(events.muon_hit * near, axis=1),
        "unexplained": xp.sum(xp.maximum(beyond, one * 0.0), axis=1),
        "signal": xp.sum(weight * (signal - background), axis=1),
        "signal_var": xp.sum(weight * weight * variance, axis=1),
    }


def _zones(frame: StationExpectation, xp: Any) -> Sums:
    measured = frame.measured
    outer = xp.astype(frame.r_m > OUTER_M, xp.float32)
    mid = xp.astype(frame.r_m > MUON_AGE_FROM_M, xp.float32) - outer
    planes = {
        "seen_mu": measured.muon,
        "area_mu": measured.muon_area_m2,
        "seen_e": measured.electron,
        "area_e": measured.electron_area_m2,
    }
    zones = {"mid": mid, "outer": outer}
    return {f"{z}_{p}": xp.sum(plane * mask, axis=1) for z, mask in zones.items() for p, plane in planes.items()}


def _angles(events: EventBatch, fit: RawFit) -> tuple[Any, Any]:
    """Return cosine and sine of each station's angle around the core, counted from the shower's azimuth."""
    xp, here = events.xp, events.stations
    x, y = (xp.where(c == c, c, xp.zeros_like(c))[:, None] for c in fit.electron[:2])
    dx, dy = here.x_m - x, here.y_m - y
    azimuth = events.azimuth_deg * (math.pi / 180.0)
    cosine, sine = xp.cos(azimuth)[:, None], xp.sin(azimuth)[:, None]
    length = xp.sqrt(xp.maximum(dx * dx + dy * dy, 1e-6))
    return (dx * cosine + dy * sine) / length, (dy * cosine - dx * sine) / length


def _pattern(
    signal: Any, expected: Any, variance: Any, tail: Any, live: Any, far: Any, angles: tuple[Any, Any], xp: Any
) -> Sums:
    deviate = (signal - expected) / xp.sqrt(variance + 1e-6)
    deviate = xp.clip(deviate, -MAX_DEVIATE, MAX_DEVIATE) * live
    cosine, sine = angles
    double_c, double_s = cosine * cosine - sine * sine, 2.0 * cosine * sine
    planes = [live, far * live, xp.sqrt(tail), tail, tail * tail]
    planes += [deviate * cosine, deviate * sine, deviate * double_c, deviate * double_s]
    return {name: xp.sum(plane, axis=1) for name, plane in zip(PATTERN, planes, strict=True)}
