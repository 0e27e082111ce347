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
    muon_expected,
    muon_logs,
    over_punch,
    punch_uncertainty,
    squared_distance,
)
from showerstack.features.lateral.native import f32, full_vectors, vexp2, vlog2
from showerstack.features.stations import tail
from showerstack.features.stations.sums import (
    FAR_M,
    LCM_RINGS_M,
    MAX_DEVIATE,
    MUON_AGE_FROM_M,
    OUTER_M,
    RINGS_M,
)
from showerstack.runtime.kernels import FAST, kernel
from showerstack.showers.response import StationResponse

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


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def expect(
    res: StationResponse, electron_mev: Any, muon_mev: Any, fit: Any, cosine: Any, u: Any, v: Any, z: Any
) -> None:
    """Fill signals, areas, distances and zones, and both channels' expectations and variances."""
    full_vectors()
    x, y, r, electrons, muons, typical = z.x, z.y, z.r, z.electrons, z.muons, z.typical
    s_e, s_m, area_e, area_m, live_e, live_m = z.s_e, z.s_m, z.area_e, z.area_m, z.live_e, z.live_m
    area_e_m2, area_m_m2, far, outer, mid = z.area_e_m2, z.area_m_m2, z.far, z.outer, z.mid
    mean_e, var_e, mean_m, var_m, var_fit, punch = z.mean_e, z.var_e, z.mean_m, z.var_m, z.var_fit, z.punch
    per_e, per_m = f32(cosine / res.electron_deposit_mev), f32(cosine / res.muon_deposit_mev)
    top_e, top_m = f32(res.saturation_mev), f32(res.muon_saturation_mev)
    core_x, core_y, level, age = fit.electron[0], fit.electron[1], fit.electron[2], fit.electron[3]
    level_m, muon_age, mean_age = fit.muon[0], fit.muon[1], f32(res.muon_age_mean)
    for k in range(electron_mev.size):
        s_e[k] = min(electron_mev[k], top_e) * per_e
        s_m[k] = min(muon_mev[k], top_m) * per_m
    for k in range(x.size):
        area_e[k] = area_e_m2[k] * cosine
        area_m[k] = area_m_m2[k] * cosine
        live_e[k] = ONE if area_e_m2[k] > ZERO else ZERO
        live_m[k] = ONE if area_m_m2[k] > ZERO else ZERO
    for k in range(x.size):
        q = squared_distance(res, x[k] - core_x, y[k] - core_y, u, v)
        r[k] = np.sqrt(q)
        _, electrons[k] = electron_logs(q, r[k], level, age)
        _, muons[k] = muon_logs(q, r[k], level_m, muon_age)
        _, typical[k] = muon_logs(q, r[k], ZERO, mean_age)
    for k in range(x.size):
        far[k] = ONE if r[k] > FAR else ZERO
        outer[k] = ONE if r[k] > OUTER else ZERO
        mid[k] = (ONE if r[k] > MUON_AGE_FROM else ZERO) - outer[k]
    for k in range(x.size):
        electrons[k] = vexp2(electrons[k])
        muons[k] = vexp2(muons[k])
        typical[k] = vexp2(typical[k]) * area_m[k]
    for k in range(x.size):
        mean, variance, _ = electron_expected(res, area_e[k], r[k], electrons[k], muons[k])
        mean_e[k] = mean * live_e[k]
        var_e[k] = variance * live_e[k]
    for k in range(x.size):
        mean_m[k], var_m[k], punch[k] = muon_expected(res, area_m[k], r[k], electrons[k], muons[k])
        var_fit[k] = var_m[k] + punch_uncertainty(res, punch[k])


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def deviance(signal: Any, mean: Any, variance: Any, limit: Any, out: Any) -> Any:
    """Fill half the deviance per station, 0 for one at the limit whose expectation exceeds it.

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
    muons, typical, punch, mean, far_signal = z.muons, z.typical, z.punch, z.mean_m, z.value
    far_seen = far_hits = far_live = far_area = far_seen_e = ZERO
    for k in range(s.size):
        far_signal[k] = s[k] * far[k]
        far_seen += far_signal[k]
        far_hits += ONE if far_signal[k] > ZERO else ZERO
        far_live += live[k] * far[k]
        far_area += area[k] * far[k]
        far_seen_e += s_e[k] * far[k]
    mid_seen_mu = mid_area_mu = mid_seen_e = mid_area_e = ZERO
    outer_seen_mu = outer_area_mu = outer_seen_e = outer_area_e = muon_age_hits = ZERO
    for k in range(s.size):
        mid_seen_mu += s[k] * mid[k]
        mid_area_mu += area[k] * mid[k]
        mid_seen_e += s_e[k] * mid[k]
        mid_area_e += area_e[k] * mid[k]
        outer_seen_mu += s[k] * outer[k]
        outer_area_mu += area[k] * outer[k]
        outer_seen_e += s_e[k] * outer[k]
        outer_area_e += area_e[k] * outer[k]
        muon_age_hits += ONE if s[k] * (mid[k] + outer[k]) > ZERO else ZERO
    fit_empty = fit_empty_var = reco_expected = reco_empty = reco_empty_var = ZERO
    for k in range(s.size):
        counted = live[k] * far[k]
        by_fit = empty(res, area[k] * muons[k]) * counted
        fit_empty += by_fit
        fit_empty_var += by_fit * (ONE - by_fit)
        expected = reco * typical[k] * far[k]
        reco_expected += expected
        by_reco = empty(res, expected) * counted
        reco_empty += by_reco
        reco_empty_var += by_reco * (ONE - by_reco)
    near_seen = near_expected = near_hits = unexplained = signal = signal_var = ZERO
    for k in range(s.size):
        close = (ONE - far[k]) * live[k]
        near_seen += s[k] * close
        near_expected += mean[k] * close
        near_hits += ONE if s[k] * close > ZERO else ZERO
        beyond, variance = over_punch(res, area[k], s[k], punch[k])
        unexplained += max(beyond - TWO * np.sqrt(variance), ZERO)
        weight = typical[k] / (variance + TINY)
        signal += weight * beyond
        signal_var += weight * weight * variance
    out.far_seen, out.far_hits, out.far_live, out.far_area = far_seen, far_hits, far_live, far_area
    out.far_seen_e, out.far_max, out.muon_age_hits = far_seen_e, largest(far_signal), muon_age_hits
    out.fit_empty, out.fit_empty_var = fit_empty, fit_empty_var
    out.reco_expected, out.reco_empty, out.reco_empty_var = reco_expected, reco_empty, reco_empty_var
    out.near_seen, out.near_expected, out.near_hits = near_seen, near_expected, near_hits
    out.unexplained, out.signal, out.signal_var = unexplained, signal, signal_var
    out.mid_seen_mu, out.mid_area_mu, out.mid_seen_e, out.mid_area_e = mid_seen_mu, mid_area_mu, mid_seen_e, mid_area_e
    out.outer_seen_mu, out.outer_area_mu = outer_seen_mu, outer_area_mu
    out.outer_seen_e, out.outer_area_e = outer_seen_e, outer_area_e


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
    # Unsigned, so that no test for an index from the end is compiled.
    place = np.uint32(i * TAIL_STEPS + j)
    near = table[place] + b * (table[place + ONE_ON] - table[place])
    low, high = table[place + ROW_ON], table[place + ROW_ON + ONE_ON]
    return near + a * (low + b * (high - low) - near)


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def add_pattern(
    fit: Any, cosine: Any, sine: Any, s: Any, live: Any, mean: Any, var: Any, tails: Any, z: Any, out: Any
) -> None:
    """Fill the sums of ``PATTERN`` of one channel.

    ``cosine`` and ``sine`` are those of the azimuth, ``tails`` the channel's dispersion and its table of probabilities.
    """
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
    tail_05 = tail_1 = tail_2 = ZERO
    for k in range(x.size):
        root = root_lg_tail(row[k], column[k], table) * hit[k]
        square = root * root
        tail_05 += root
        tail_1 += square
        tail_2 += square * square
    n_live = far_live = dipole_cos = dipole_sin = quadrupole_cos = quadrupole_sin = ZERO
    for k in range(x.size):
        n_live += live[k]
        far_live += live[k] * far[k]
        deviate = (s[k] - mean[k]) / np.sqrt(var[k] + MICRO)
        deviate = min(max(deviate, -LIMIT), LIMIT) * live[k]
        dx, dy = x[k] - core_x, y[k] - core_y
        per_length = ONE / np.sqrt(max(dx * dx + dy * dy, MICRO))
        c, d = (dx * cosine + dy * sine) * per_length, (dy * cosine - dx * sine) * per_length
        dipole_cos += deviate * c
        dipole_sin += deviate * d
        quadrupole_cos += deviate * (c * c - d * d)
        quadrupole_sin += deviate * TWO * c * d
    out.live, out.far_live, out.tail_05, out.tail_1, out.tail_2 = n_live, far_live, tail_05, tail_1, tail_2
    out.dipole_cos, out.dipole_sin = dipole_cos, dipole_sin
    out.quadrupole_cos, out.quadrupole_sin = quadrupole_cos, quadrupole_sin


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def add_rings(z: Any, out: Any) -> None:
    """Fill the sums of ``RING`` of both channels, one ring after the other."""
    full_vectors()
    r, s_e, s_m, area_e, area_m = z.r, z.s_e, z.s_m, z.area_e, z.area_m
    mean_e, mean_m, var_e, var_m = z.mean_e, z.mean_m, z.var_e, z.var_m
    for ring in range(N_RINGS):
        low, high = RING_EDGES[ring], RING_EDGES[ring + 1]
        seen_e = in_ring_e = expected_e = variance_e = seen_m = in_ring_m = expected_m = variance_m = ZERO
        for k in range(r.size):
            inside = (ONE if r[k] >= low else ZERO) * (ONE if r[k] < high else ZERO)
            seen_e += inside * s_e[k]
            in_ring_e += inside * area_e[k]
            expected_e += inside * mean_e[k]
            variance_e += inside * var_e[k]
            seen_m += inside * s_m[k]
            in_ring_m += inside * area_m[k]
            expected_m += inside * mean_m[k]
            variance_m += inside * var_m[k]
        e, m = out[0], out[1]
        e.seen[ring], e.area[ring], e.expected[ring], e.variance[ring] = seen_e, in_ring_e, expected_e, variance_e
        m.seen[ring], m.area[ring], m.expected[ring], m.variance[ring] = seen_m, in_ring_m, expected_m, variance_m


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def add_lcm(z: Any, out: Any) -> None:
    """Fill the sums of ``LCM_RING`` of both channels, from densities."""
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
        n_e = seen_e = seen_2_e = expected_e = expected_2_e = variance_e = ZERO
        n_m = seen_m = seen_2_m = expected_m = expected_2_m = variance_m = ZERO
        for k in range(r.size):
            inside = (ONE if r[k] >= low else ZERO) * (ONE if r[k] < high else ZERO)
            n_e += inside * live_e[k]
            seen_e += inside * d_e[k]
            seen_2_e += inside * d_e[k] * d_e[k]
            expected_e += inside * f_e[k]
            expected_2_e += inside * f_e[k] * f_e[k]
            variance_e += inside * v_e[k]
            n_m += inside * live_m[k]
            seen_m += inside * d_m[k]
            seen_2_m += inside * d_m[k] * d_m[k]
            expected_m += inside * f_m[k]
            expected_2_m += inside * f_m[k] * f_m[k]
            variance_m += inside * v_m[k]
        e, m = out[0], out[1]
        e.stations[ring], e.seen[ring], e.seen_2[ring] = n_e, seen_e, seen_2_e
        e.expected[ring], e.expected_2[ring], e.variance[ring] = expected_e, expected_2_e, variance_e
        m.stations[ring], m.seen[ring], m.seen_2[ring] = n_m, seen_m, seen_2_m
        m.expected[ring], m.expected_2[ring], m.variance[ring] = expected_m, expected_2_m, variance_m


@kernel(nogil=True, error_model="numpy")
def sum_events(
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
            add_pattern(
                fit, cos_azimuth[n], sin_azimuth[n], z.s_e, z.live_e, z.mean_e, z.var_e, tails[0], z, pattern[n, 0]
            )
            add_pattern(
                fit, cos_azimuth[n], sin_azimuth[n], z.s_m, z.live_m, z.mean_m, z.var_m, tails[1], z, pattern[n, 1]
            )
            add_lcm(z, lcm[n])
