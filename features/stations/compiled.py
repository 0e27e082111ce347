"""The sums of :mod:`showerstack.features.stations.sums` in one compiled loop over events.

Loops over stations are short, and all planes of an event stand in one record, for the reasons given in
:mod:`showerstack.features.lateral.compiled`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from showerstack.features.lateral.compiled import (
    NO_FLOOR,
    ONE,
    TINY,
    ZERO,
    electron_expected,
    electron_logs,
    empty,
    half_deviance,
    in_one_record,
    muon_expected,
    muon_logs,
    over_punch,
    punch_uncertainty,
    squared_distance,
)
from showerstack.features.lateral.events import EventBatch
from showerstack.features.lateral.fit import RawFit
from showerstack.features.lateral.response import StationResponse
from showerstack.features.lateral.translate import FAST, f32, full_vectors, vexp2, vlog2
from showerstack.features.stations import tail
from showerstack.features.stations.sums import (
    FAR_M,
    LCM_RINGS_M,
    MAX_DEVIATE,
    MUON_AGE_FROM_M,
    OUTER_M,
    PARTS,
    PATTERN,
    PATTERNS,
    PLAIN,
    RINGS,
    RINGS_M,
    Sums,
    over_level_zero,
    shapes,
    sums_by_name,
)
from showerstack.features.stations.tail import tail_table
from showerstack.runtime.kernels import kernel
from showerstack.showers.array import DetectorArray

PLANES = (
    "x", "y", "area_e_m2", "area_m_m2",  # the array's
    "s_e", "s_m", "area_e", "area_m", "live_e", "live_m",
    "r", "far", "outer", "mid", "electrons", "muons", "template",
    "mean_e", "var_e", "mean_m", "var_m", "var_fit", "punch", "value",
    "d_e", "d_m", "f_e", "f_m", "v_e", "v_m",  # densities: signal, expected, variance
)  # fmt: skip
"""Planes of one event, (cells,) float32 each; see :func:`expect` and :func:`add_rings`."""
PLAIN_SUMS, PATTERN_SUMS = (np.dtype([(name, np.float32) for name in names]) for names in (PLAIN, PATTERN))
"""One event's sums by name."""
N_RINGS, N_LCM = len(RINGS_M), len(LCM_RINGS_M)
RING_EDGES = np.array([low for low, _ in RINGS_M] + [RINGS_M[-1][1]], np.float32)
LCM_EDGES = np.array([low for low, _ in LCM_RINGS_M] + [LCM_RINGS_M[-1][1]], np.float32)
FAR, OUTER, MUON_AGE_FROM, LIMIT = f32(FAR_M), f32(OUTER_M), f32(MUON_AGE_FROM_M), f32(MAX_DEVIATE)
TWO, MICRO = f32(2.0), f32(1e-6)
TAIL_LEAST, TAIL_MOST, TAIL_LOW = f32(tail.MIN_MEAN), f32(tail.MAX_MEAN), f32(tail.LOW)
TAIL_STEPS, ONE_ON, ROW_ON = f32(tail.N_STEPS), np.uint32(1), np.uint32(tail.N_STEPS)
TAIL_PER_LEAST = f32(1.0 / tail.MIN_MEAN)
TAIL_PER_MEAN, TAIL_PER_STEP, TAIL_LAST = (
    f32(math.log(2.0) / tail.MEAN_STEP),
    f32(1.0 / tail.STEP),
    f32(tail.N_STEPS - 1.001),
)


def planes_of(*geometry: np.ndarray) -> Any:
    """Return the record of one event's planes with x, y and both areas of all cells in it, (cells,) float32 each."""
    record = in_one_record([(name, np.float32, geometry[0].shape) for name in PLANES])
    for name, values in zip(PLANES, geometry, strict=False):
        record[name] = values
    return record


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def expect(
    res: StationResponse, electron_mev: Any, muon_mev: Any, fit: Any, cosine: Any, u: Any, v: Any, z: Any
) -> None:
    """Fill signals, areas, distances and zones, and both channels' expectations and variances."""
    full_vectors()
    x, y, r, electrons, muons, template = z.x, z.y, z.r, z.electrons, z.muons, z.template
    s_e, s_m, area_e, area_m, live_e, live_m = z.s_e, z.s_m, z.area_e, z.area_m, z.live_e, z.live_m
    area_e_m2, area_m_m2, far, outer, mid = z.area_e_m2, z.area_m_m2, z.far, z.outer, z.mid
    mean_e, var_e, mean_m, var_m, var_fit, punch = z.mean_e, z.var_e, z.mean_m, z.var_m, z.var_fit, z.punch
    per_e, per_m = f32(cosine / res.electron_deposit_mev), f32(cosine / res.muon_deposit_mev)
    top_e, top_m = f32(res.saturation_mev), f32(res.muon_saturation_mev)
    core_x, core_y, level, age = fit.electron[0], fit.electron[1], fit.electron[2], fit.electron[3]
    level_m, muon_age, mean_age = fit.muon[0], fit.muon[1], f32(res.muon_age_mean)
    for k in range(x.size):
        s_e[k] = min(electron_mev[k], top_e) * per_e
        s_m[k] = min(muon_mev[k], top_m) * per_m
    for k in range(x.size):
        area_e[k] = area_e_m2[k] * cosine
        area_m[k] = area_m_m2[k] * cosine
        live_e[k] = ONE if area_e_m2[k] > ZERO else ZERO
        live_m[k] = ONE if area_m_m2[k] > ZERO else ZERO
    for k in range(x.size):
        q = squared_distance(x[k] - core_x, y[k] - core_y, u, v)
        r[k] = np.sqrt(q)
        _, electrons[k] = electron_logs(q, r[k], level, age)
        _, muons[k] = muon_logs(q, r[k], level_m, muon_age)
        _, template[k] = muon_logs(q, r[k], ZERO, mean_age)
    for k in range(x.size):
        far[k] = ONE if r[k] > FAR else ZERO
        outer[k] = ONE if r[k] > OUTER else ZERO
        mid[k] = (ONE if r[k] > MUON_AGE_FROM else ZERO) - outer[k]
    for k in range(x.size):
        electrons[k] = vexp2(electrons[k])
        muons[k] = vexp2(muons[k])
        template[k] = vexp2(template[k]) * area_m[k]
    for k in range(x.size):
        mean, variance, _ = electron_expected(res, area_e[k], r[k], electrons[k], muons[k])
        mean_e[k] = mean * live_e[k]
        var_e[k] = variance * live_e[k]
    for k in range(x.size):
        mean_m[k], var_m[k], punch[k] = muon_expected(res, area_m[k], r[k], electrons[k], muons[k])
        var_fit[k] = var_m[k] + punch_uncertainty(res, punch[k])


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def deviance(signal: Any, mean: Any, variance: Any, limit: Any, out: Any) -> Any:
    """Fill half the deviance per station; stations at the limit say nothing once the expectation exceeds it.

    Returns their sum.
    """
    full_vectors()
    total = ZERO
    for k in range(signal.size):
        floor = ZERO if signal[k] >= limit else NO_FLOOR
        weight = mean[k] / max(variance[k], TINY)
        out[k], _ = half_deviance(signal[k], mean[k] + TINY, floor, weight)
        total += out[k]
    return total


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def largest(values: Any) -> Any:
    """Return the largest value, by halving the plane: a running maximum would not be vectorised."""
    full_vectors()
    size = values.size
    while size > 1:
        half = (size + 1) // 2
        for k in range(size // 2):
            values[k] = max(values[k], values[k + half])
        size = half
    return values[0]


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def muon_sums(res: StationResponse, reco: Any, z: Any, out: Any) -> None:
    """Fill everything of ``PLAIN`` but the deviances."""
    full_vectors()
    s_e, s, area_e, area, live, far, outer, mid = z.s_e, z.s_m, z.area_e, z.area_m, z.live_m, z.far, z.outer, z.mid
    muons, template, punch, mean, value = z.muons, z.template, z.punch, z.mean_m, z.value
    values = hits = lives = areas = seen_e = ZERO
    for k in range(s.size):
        value[k] = s[k] * far[k]
        values += value[k]
        hits += ONE if value[k] > ZERO else ZERO
        lives += live[k] * far[k]
        areas += area[k] * far[k]
        seen_e += s_e[k] * far[k]
    mid_m = mid_am = mid_e = mid_ae = out_m = out_am = out_e = out_ae = hits40 = ZERO
    for k in range(s.size):
        mid_m += s[k] * mid[k]
        mid_am += area[k] * mid[k]
        mid_e += s_e[k] * mid[k]
        mid_ae += area_e[k] * mid[k]
        out_m += s[k] * outer[k]
        out_am += area[k] * outer[k]
        out_e += s_e[k] * outer[k]
        out_ae += area_e[k] * outer[k]
        hits40 += ONE if s[k] * (mid[k] + outer[k]) > ZERO else ZERO
    by_fit = by_fit_var = expected = blank = blank_var = ZERO
    for k in range(s.size):
        counted = live[k] * far[k]
        e = empty(res, area[k] * muons[k]) * counted
        by_fit += e
        by_fit_var += e * (ONE - e)
        n = reco * template[k] * far[k]
        expected += n
        b = empty(res, n) * counted
        blank += b
        blank_var += b * (ONE - b)
    near = near_mean = near_hits = beyond_all = signal = signal_var = ZERO
    for k in range(s.size):
        close = (ONE - far[k]) * live[k]
        near += s[k] * close
        near_mean += mean[k] * close
        near_hits += ONE if s[k] * close > ZERO else ZERO
        beyond, variance = over_punch(res, area[k], s[k], punch[k])
        beyond_all += max(beyond - TWO * np.sqrt(variance), ZERO)
        weight = template[k] / (variance + TINY)
        signal += weight * beyond
        signal_var += weight * weight * variance
    out.muon_age_hits, out.far_seen, out.far_hits, out.far_live = hits40, values, hits, lives
    out.far_area, out.far_max, out.far_seen_e = areas, largest(value), seen_e
    out.fit_empty, out.fit_empty_var = by_fit, by_fit_var
    out.reco_expected, out.reco_empty, out.reco_empty_var = expected, blank, blank_var
    out.near_seen, out.near_expected, out.near_hits = near, near_mean, near_hits
    out.unexplained, out.signal, out.signal_var = beyond_all, signal, signal_var
    out.mid_seen_mu, out.mid_area_mu, out.mid_seen_e, out.mid_area_e = mid_m, mid_am, mid_e, mid_ae
    out.outer_seen_mu, out.outer_area_mu, out.outer_seen_e, out.outer_area_e = out_m, out_am, out_e, out_ae


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def tail_place(signal: Any, mean: Any, variance: Any, dispersion: Any) -> tuple[Any, Any]:
    """Return row and column of the table of tails, with their fractions."""
    per_deposit = dispersion * mean / (variance + TINY)
    deposits = min(max(per_deposit * mean, TAIL_LEAST), TAIL_MOST)
    row = vlog2(deposits * TAIL_PER_LEAST) * TAIL_PER_MEAN
    column = np.sqrt(per_deposit * signal) * TAIL_PER_STEP - (np.sqrt(deposits) + TAIL_LOW) * TAIL_PER_STEP
    return row, min(max(column, ZERO), TAIL_LAST)


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def root_lg_tail(row: Any, column: Any, table: Any) -> Any:
    """Return the square root of -lg P(S >= seen) from :func:`showerstack.features.stations.tail.tail_table`, flat."""
    i, j = np.floor(row), np.floor(column)
    a, b = row - i, column - j
    # Unsigned, because an index from the end would have to be asked for otherwise.
    place = np.uint32(i * TAIL_STEPS + j)
    near = table[place] + b * (table[place + ONE_ON] - table[place])
    low, high = table[place + ROW_ON], table[place + ROW_ON + ONE_ON]
    return near + a * (low + b * (high - low) - near)


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def add_pattern(
    fit: Any, ca: Any, sa: Any, s: Any, live: Any, mean: Any, var: Any, tails: Any, z: Any, out: Any
) -> None:
    """Fill the nine sums of ``PATTERN`` of one channel; ``tails``: its dispersion and its table of probabilities."""
    full_vectors()
    core_x, core_y = fit.electron[0], fit.electron[1]
    dispersion, table = f32(tails[0]), tails[1]
    x, y, far, row, column, hit = z.x, z.y, z.far, z.d_e, z.d_m, z.value
    signal, expected, variance = z.f_e, z.f_m, z.v_e
    for k in range(x.size):
        signal[k], expected[k], variance[k] = s[k], mean[k], var[k]
    for k in range(x.size):
        row[k], column[k] = tail_place(signal[k], expected[k], variance[k], dispersion)
    for k in range(x.size):
        hit[k] = ONE if s[k] * far[k] * live[k] > ZERO else ZERO
    tail05 = tail1 = tail2 = ZERO
    for k in range(x.size):
        root = root_lg_tail(row[k], column[k], table) * hit[k]
        square = root * root
        tail05 += root
        tail1 += square
        tail2 += square * square
    lives = far_live = c1 = s1 = c2 = s2 = ZERO
    for k in range(x.size):
        lives += live[k]
        far_live += live[k] * far[k]
        deviate = (s[k] - mean[k]) / np.sqrt(var[k] + MICRO)
        deviate = min(max(deviate, -LIMIT), LIMIT) * live[k]
        dx, dy = x[k] - core_x, y[k] - core_y
        per_length = ONE / np.sqrt(max(dx * dx + dy * dy, MICRO))
        c, d = (dx * ca + dy * sa) * per_length, (dy * ca - dx * sa) * per_length
        c1 += deviate * c
        s1 += deviate * d
        c2 += deviate * (c * c - d * d)
        s2 += deviate * TWO * c * d
    out.live, out.far_live, out.tail_05, out.tail_1, out.tail_2 = lives, far_live, tail05, tail1, tail2
    out.dipole_cos, out.dipole_sin, out.quadrupole_cos, out.quadrupole_sin = c1, s1, c2, s2


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def add_rings(z: Any, out: Any) -> None:
    """Fill the ring sums of both channels, (2, 4, rings), one ring after the other."""
    full_vectors()
    r, s_e, s_m, area_e, area_m = z.r, z.s_e, z.s_m, z.area_e, z.area_m
    mean_e, mean_m, var_e, var_m = z.mean_e, z.mean_m, z.var_e, z.var_m
    for ring in range(N_RINGS):
        low, high = RING_EDGES[ring], RING_EDGES[ring + 1]
        e0 = e1 = e2 = e3 = m0 = m1 = m2 = m3 = ZERO
        for k in range(r.size):
            inside = (ONE if r[k] >= low else ZERO) * (ONE if r[k] < high else ZERO)
            e0 += inside * s_e[k]
            e1 += inside * area_e[k]
            e2 += inside * mean_e[k]
            e3 += inside * var_e[k]
            m0 += inside * s_m[k]
            m1 += inside * area_m[k]
            m2 += inside * mean_m[k]
            m3 += inside * var_m[k]
        out[0, 0, ring], out[0, 1, ring], out[0, 2, ring], out[0, 3, ring] = e0, e1, e2, e3
        out[1, 0, ring], out[1, 1, ring], out[1, 2, ring], out[1, 3, ring] = m0, m1, m2, m3


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def add_lcm(z: Any, out: Any) -> None:
    """Fill the sums of densities in the rings of LCm of both channels, (2, 6, rings of LCm)."""
    full_vectors()
    r, s_e, s_m, area_e, area_m, live_e, live_m = z.r, z.s_e, z.s_m, z.area_e, z.area_m, z.live_e, z.live_m
    mean_e, mean_m, var_e, var_m = z.mean_e, z.mean_m, z.var_e, z.var_m
    d_e, d_m, f_e, f_m, v_e, v_m = z.d_e, z.d_m, z.f_e, z.f_m, z.v_e, z.v_m
    for k in range(r.size):
        per_e, per_m = live_e[k] / max(area_e[k], MICRO), live_m[k] / max(area_m[k], MICRO)
        d_e[k], f_e[k], v_e[k] = s_e[k] * per_e, mean_e[k] * per_e, var_e[k] * per_e * per_e
        d_m[k], f_m[k], v_m[k] = s_m[k] * per_m, mean_m[k] * per_m, var_m[k] * per_m * per_m
    for ring in range(N_LCM):
        low, high = LCM_EDGES[ring], LCM_EDGES[ring + 1]
        e0 = e1 = e2 = e3 = e4 = e5 = m0 = m1 = m2 = m3 = m4 = m5 = ZERO
        for k in range(r.size):
            inside = (ONE if r[k] >= low else ZERO) * (ONE if r[k] < high else ZERO)
            e0 += inside * live_e[k]
            e1 += inside * d_e[k]
            e2 += inside * d_e[k] * d_e[k]
            e3 += inside * f_e[k]
            e4 += inside * f_e[k] * f_e[k]
            e5 += inside * v_e[k]
            m0 += inside * live_m[k]
            m1 += inside * d_m[k]
            m2 += inside * d_m[k] * d_m[k]
            m3 += inside * f_m[k]
            m4 += inside * f_m[k] * f_m[k]
            m5 += inside * v_m[k]
        out[0, 0, ring], out[0, 1, ring], out[0, 2, ring] = e0, e1, e2
        out[0, 3, ring], out[0, 4, ring], out[0, 5, ring] = e3, e4, e5
        out[1, 0, ring], out[1, 1, ring], out[1, 2, ring] = m0, m1, m2
        out[1, 3, ring], out[1, 4, ring], out[1, 5, ring] = m3, m4, m5


@kernel(nogil=True, error_model="numpy")
def _sum_events(
    grids: Any, columns: Any, planes: Any, fits: Any, res: StationResponse, tails: Any, parts: Any, out: Any
) -> None:
    full_vectors()
    electron_mev, muon_mev = grids
    cosine, u, v, cos_azimuth, sin_azimuth, reco = columns
    with_rings, with_patterns = parts
    plain, pattern, rings, lcm = out
    z = planes[0]
    for n in range(fits.shape[0]):
        fit = fits[n]
        if np.isnan(fit.electron[0]):
            continue
        expect(res, electron_mev[n], muon_mev[n], fit, cosine[n], u[n], v[n], z)
        limit = f32(res.saturation_mev) * f32(cosine[n] / res.electron_deposit_mev)
        sums = plain[n]
        sums.deviance_e = deviance(z.s_e, z.mean_e, z.var_e, limit, z.value)
        limit = f32(res.muon_saturation_mev) * f32(cosine[n] / res.muon_deposit_mev)
        sums.deviance_mu = deviance(z.s_m, z.mean_m, z.var_fit, limit, z.value)
        sums.deviance_mu_max = largest(z.value)
        muon_sums(res, reco[n], z, sums)
        if with_rings:
            add_rings(z, rings[n])
        if with_patterns:
            ca, sa = cos_azimuth[n], sin_azimuth[n]
            add_pattern(fit, ca, sa, z.s_e, z.live_e, z.mean_e, z.var_e, tails[0], z, pattern[n, 0])
            add_pattern(fit, ca, sa, z.s_m, z.live_m, z.mean_m, z.var_m, tails[1], z, pattern[n, 1])
            add_lcm(z, lcm[n])


def _scratch(array: DetectorArray) -> Any:
    """Return the planes of one event, new for each call: calls run in several threads at once."""
    geometry = (array.x_m, array.y_m, array.electron_area_m2, array.muon_area_m2)
    return planes_of(*(values.astype(np.float32).ravel() for values in geometry))


def sum_fused(events: EventBatch, fit: RawFit, parts: frozenset[str] = PARTS) -> Sums:
    """Return the sums of ``PLAIN`` and of the parts asked for; without meaning where ``fitted`` is false."""
    n, response = len(events), events.response
    fits = fit.records()
    azimuth = events.azimuth_deg * np.float32(math.pi / 180.0)
    reco = over_level_zero(events)
    out = tuple(np.zeros(shape, np.float32) for shape in shapes(n, parts))
    columns = (events.cos_zenith, *events.direction, np.cos(azimuth), np.sin(azimuth), reco)
    dispersions = (response.electron_dispersion, response.muon_dispersion)
    tails = tuple((dispersion, tail_table(dispersion).ravel()) for dispersion in dispersions)
    grids, wanted = (events.electron_mev, events.muon_mev), (RINGS in parts, PATTERNS in parts)
    filled = (out[0].view(PLAIN_SUMS)[:, 0], out[1].view(PATTERN_SUMS)[..., 0], *out[2:])
    _sum_events(grids, columns, _scratch(events.array), fits, response, tails, wanted, filled)
    return sums_by_name(~np.isnan(fits["electron"][:, 0]), parts, out)
