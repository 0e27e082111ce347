"""What the compiled kernels sum, once more on whole planes of any array library: the reference that they are held to.

The station model is :mod:`showerstack.features.lateral.station` itself; what is summed is written here a second time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from showerstack.features.lateral.elementwise import decay, defined
from showerstack.features.lateral.events import EventBatch, electron_density, energy_correction, muon_density
from showerstack.features.lateral.fit import RawFit
from showerstack.features.lateral.translate import on_arrays
from showerstack.features.stations.grid import N_RINGS, N_TOP, QUANTILES, SUMS, UNIT_M
from showerstack.features.stations.sums import (
    FAR_M,
    LCM_RING,
    LCM_RINGS_M,
    MAX_DEVIATE,
    MUON_AGE_FROM_M,
    OUTER_M,
    PARTS,
    PATTERN,
    PATTERNS,
    RING,
    RINGS,
    RINGS_M,
    Sums,
)
from showerstack.features.stations.tail import LOW, MAX_MEAN, MEAN_STEP, MIN_MEAN, N_STEPS, STEP, flat_table
from showerstack.showers.lateral import rho_muon
from showerstack.showers.response import StationResponse

NO_FLOOR = 1e30
"""No residual is below minus this."""


@dataclass(frozen=True)
class Signals:
    """What the stations measured, in particles; all (n, cells) float32."""

    electron: Any
    electron_area_m2: Any
    """Projected area, 0 where there is no station."""
    electron_saturated: Any
    """1 where the deposit is a lower limit, else 0."""
    muon: Any
    muon_area_m2: Any
    muon_saturated: Any
    response: StationResponse


@dataclass(frozen=True)
class Frozen:
    """What a minimisation keeps fixed; all (n, cells) float32."""

    area_m2: Any
    """Projected area times the share of the deposit above the threshold."""
    background: Any
    """Expected particles of other kinds."""
    weight: Any
    """1/phi; 0 where there is no station."""


def signals(events: EventBatch) -> Signals:
    """Return deposits as particle counts with their projected areas; a saturated deposit counts as its limit.

    What lies above the limit is no measurement: taken at its value it would count only where it is above the
    expectation, and draw the density up.
    """
    xp = events.xp
    cosine = events.cos_zenith[:, None]
    here = events.stations
    response = events.response
    return Signals(
        electron=_limited(events.electron_mev, response.saturation_mev, xp) * (cosine / response.electron_deposit_mev),
        electron_area_m2=here.electron_area_m2 * cosine,
        electron_saturated=xp.astype(events.electron_mev >= response.saturation_mev, xp.float32),
        muon=_limited(events.muon_mev, response.muon_saturation_mev, xp) * (cosine / response.muon_deposit_mev),
        muon_area_m2=here.muon_area_m2 * cosine,
        muon_saturated=xp.astype(events.muon_mev >= response.muon_saturation_mev, xp.float32),
        response=response,
    )


def muon_hit(events: EventBatch) -> Any:
    """Return (n, cells) float32, 1 where a muon station reports a deposit."""
    return events.xp.astype(events.muon_mev > 0.0, events.xp.float32)


def _limited(deposits_mev: Any, limit_mev: float, xp: ModuleType) -> Any:
    return xp.minimum(deposits_mev, xp.ones_like(deposits_mev) * limit_mev)


def distances(events: EventBatch, core_x_m: Any, core_y_m: Any) -> Any:
    """Return the distance of each station from the axis (softened), (n, cells)."""
    here = events.stations
    u, v = (component[:, None] for component in events.direction)
    return on_arrays(events.xp).distance(
        events.response, here.x_m - core_x_m[:, None], here.y_m - core_y_m[:, None], u, v
    )


def freeze_electron(measured: Signals, r_m: Any, electrons: Any, muons: Any, xp: ModuleType) -> Frozen:
    """Freeze the electron channel at densities ``electrons`` and ``muons`` (per m2, (n, cells))."""
    return Frozen(*on_arrays(xp).electron_frozen(measured.response, measured.electron_area_m2, r_m, electrons, muons))


def freeze_muon(measured: Signals, r_m: Any, electrons: Any, muons: Any, xp: ModuleType) -> Frozen:
    """Freeze the muon channel: punch-through of ``electrons`` as background with its own uncertainty."""
    area = measured.muon_area_m2
    return Frozen(area, *on_arrays(xp).muon_frozen(measured.response, area, r_m, electrons, muons))


def half_deviance(y: Any, mu: Any, saturated: Any, weight: Any, xp: ModuleType) -> tuple[Any, Any]:
    """Return per station half the deviance, and the weight that counts: 0 below a saturated signal's expectation."""
    floor = (saturated - 1.0) * NO_FLOOR
    return on_arrays(xp).half_deviance(y, mu, floor, weight)


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
    n_electrons = measured.electron_area_m2 * electrons
    n_muons = measured.muon_area_m2 * muons
    expected = electron_frozen.area_m2 * electrons * energy_correction(r_m, response, xp) + electron_frozen.background
    muon_expected, muon_variance, punch = on_arrays(xp).muon_expected(
        response, measured.muon_area_m2, r_m, electrons, muons
    )
    return StationExpectation(
        fitted=fitted,
        measured=measured,
        r_m=r_m,
        electron_expected=expected * live_e,
        electron_variance=expected / (electron_frozen.weight + 1e-12) * live_e,
        muon_expected=muon_expected,
        muon_variance=muon_variance,
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
            of_rings = ring_sums(masks, [signal, area, expected, variance], xp)
            sums.update({f"ring_{channel}_{name}": values for name, values in zip(RING, of_rings, strict=True)})
        if PATTERNS not in parts:
            continue
        # Densities: stations of different area are compared.
        per_m2 = live / xp.maximum(area, 1e-6)
        density, mean = signal * per_m2, expected * per_m2
        products = [live, density, density * density, mean, mean * mean, variance * per_m2 * per_m2]
        of_rings = ring_sums(lcm_masks, products, xp)
        sums.update({f"lcm_{channel}_{name}": values for name, values in zip(LCM_RING, of_rings, strict=True)})
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
        "muon_age_hits": xp.sum(muon_hit(events) * xp.astype(frame.r_m > MUON_AGE_FROM_M, xp.float32), axis=1),
        "far_seen": xp.sum(measured.muon * far, axis=1),
        "far_hits": xp.sum(muon_hit(events) * far, axis=1),
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
    beyond, variance = on_arrays(xp).over_punch(response, frame.measured.muon_area_m2, signal, punch)
    # Weights: where a muon of a mean shower is most visible over punch-through.
    one = xp.ones_like(frame.r_m)
    template = muon_density(frame.r_m, one * 0.0, one * response.muon_age_mean, xp) * frame.measured.muon_area_m2
    weight = template / (variance + 1e-12)
    return {
        "near_seen": xp.sum(signal * near, axis=1),
        "near_expected": xp.sum(frame.muon_expected * near, axis=1),
        "near_hits": xp.sum(muon_hit(events) * near, axis=1),
        "unexplained": xp.sum(xp.maximum(beyond - 2.0 * xp.sqrt(variance), one * 0.0), axis=1),
        "signal": xp.sum(weight * beyond, axis=1),
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


def grid_reference(events: EventBatch) -> dict[str, Any]:
    """Return ``SUMS`` as ``e_total`` and so on, ``SHARED``, and ``e_rings``, ``e_ring_hits``, (n, rings) each."""
    xp, here, response = events.xp, events.stations, events.response
    sums = {
        "inner": xp.sum(events.electron_mev * here.no_muon, axis=1),
        "outer": xp.sum(events.electron_mev * here.has_muon, axis=1),
        "both_hits": xp.sum(events.electron_hit * muon_hit(events), axis=1),
    }
    azimuth = events.azimuth_deg * (3.141592653589793 / 180.0)
    cosine, sine = xp.cos(azimuth)[:, None], xp.sin(azimuth)[:, None]
    x, y = here.x_m * (1.0 / UNIT_M), here.y_m * (1.0 / UNIT_M)
    rings = xp.asarray((events.array.square_ring.reshape(-1, 1) == np.arange(N_RINGS)).astype(np.float32))
    planes = {
        "e": (events.electron_mev, events.electron_hit, response.saturation_mev),
        "mu": (events.muon_mev, muon_hit(events), response.muon_saturation_mev),
    }
    for c, (cells, hit, limit) in planes.items():
        w = xp.log1p(cells)
        logs = xp.sum(w, axis=1)
        share = w / xp.where(logs > 0.0, logs, xp.ones_like(logs))[:, None]
        mean_x, mean_y = xp.sum(share * x, axis=1), xp.sum(share * y, axis=1)
        dx, dy = x - mean_x[:, None], y - mean_y[:, None]
        along, r2 = dx * cosine + dy * sine, dx * dx + dy * dy
        products = [share * product for product in (dx * dx, dy * dy, dx * dy, along**2, along**3, r2 * r2)]
        saturated = xp.sum(xp.astype(cells >= limit, xp.float32), axis=1)
        values = [xp.sum(cells, axis=1), xp.sum(hit, axis=1), saturated, logs, xp.sum(w * w, axis=1), mean_x, mean_y]
        values += [xp.sum(product, axis=1) for product in products]
        sums.update({f"{c}_{name}": value for name, value in zip(SUMS, values, strict=True)})
        sums[f"{c}_rings"], sums[f"{c}_ring_hits"] = xp.matmul(cells, rings), xp.matmul(hit, rings)
    return sums


def order_reference(events: EventBatch) -> dict[str, Any]:
    """Return ``e_max``, ``e_top5`` (sum of the largest) and quantiles of the hit stations, ``e_q25`` and so on."""
    xp, result = events.xp, {}
    for c, ordered, hit in (
        ("e", events.electron_sorted, events.electron_hit),
        ("mu", events.muon_sorted, muon_hit(events)),
    ):
        result[f"{c}_max"], result[f"{c}_top5"] = ordered[:, -1], xp.sum(ordered[:, -N_TOP:], axis=1)
        hits = xp.sum(hit, axis=1)
        result.update({f"{c}_q{q}": hit_quantile(ordered, hits, q / 100.0, xp) for q in QUANTILES})
    return result


def hit_quantile(ordered: Any, hits: Any, quantile: float, xp: Any) -> Any:
    """Return a quantile of the hit stations by linear interpolation between order statistics.

    Parameters
    ----------
    ordered
        (n, cells) cells sorted ascending: the hit ones are the last ``hits``.
    hits
        (n,) float32.
    """
    size = ordered.shape[1]
    place = (float(size) - hits) + quantile * (hits - 1.0)
    place = xp.where(hits > 0.0, place, xp.zeros_like(place))
    below = xp.floor(place)
    share = place - below
    first = xp.astype(below, xp.int64)
    second = xp.where(first < size - 1, first + 1, first)
    low = xp.take_along_axis(ordered, first[:, None], axis=1)[:, 0]
    high = xp.take_along_axis(ordered, second[:, None], axis=1)[:, 0]
    return defined(hits > 0.0, low + share * (high - low), xp)


def minus_lg_tail(signal: Any, expected: Any, variance: Any, dispersion: float, xp: ModuleType) -> Any:
    """Return -lg P(S >= seen), not above 60, and 0 for an empty station.

    Parameters
    ----------
    seen, expected, variance
        Signal in particles with its mean and variance, any shape, float32.
    dispersion
        Variance over mean of the signal of the channel's own particles, above 1.
    """
    per_deposit = dispersion * expected / (variance + 1e-12)
    mean = xp.clip(per_deposit * expected, MIN_MEAN, MAX_MEAN)
    row = xp.log(mean / MIN_MEAN) * (1.0 / MEAN_STEP)
    column = (xp.sqrt(per_deposit * signal) - xp.sqrt(mean) - LOW) * (1.0 / STEP)
    column = xp.clip(column, 0.0, N_STEPS - 1.001)
    i, j = xp.floor(row), xp.floor(column)
    a, b = row - i, column - j
    place = xp.reshape(xp.astype(i, xp.int64) * N_STEPS + xp.astype(j, xp.int64), (-1,))
    table = flat_table(dispersion, xp)
    corners = [xp.reshape(xp.take(table, place + k), signal.shape) for k in (0, 1, N_STEPS, N_STEPS + 1)]
    near, far = (x + b * (y - x) for x, y in (corners[:2], corners[2:]))
    root = near + a * (far - near)
    return root * root * xp.astype(signal > 0.0, xp.float32)
