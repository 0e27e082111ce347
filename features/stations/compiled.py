"""Compiled loops over the stations of one event that make the sums of :mod:`features.stations.sums`.

Planes of one event live in the first-level cache; loops are kept short, with few arrays each, because LLVM vectorises
them only then (see :mod:`features.lateral.compiled`).

The sums of :mod:`features.stations.sums` as one compiled loop over events.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from features.lateral.compiled import (
    ONE,
    TINY,
    ZERO,
    electron_density,
    electron_expected,
    half_deviance,
    muon_density,
    punch_through,
    radii,
)
from features.lateral.events import EventBatch
from features.lateral.fit import RawFit
from features.lateral.response import StationResponse
from features.lateral.station import MUON_G_REF
from features.lateral.translate import FAST, f32, full_vectors, vexp, vln
from features.stations import tail
from features.stations.sums import (
    CHANNELS,
    FAR_M,
    LCM_RINGS_M,
    MAX_DEVIATE,
    MUON_AGE_FROM_M,
    OUTER_M,
    PATTERN,
    PLAIN,
    RINGS_M,
    Sums,
)
from features.stations.tail import tail_table
from runtime.kernels import kernel
from showers.lateral import muon_normalisation

N_RINGS, N_LCM = len(RINGS_M), len(LCM_RINGS_M)
RING_EDGES = np.array([low for low, _ in RINGS_M] + [RINGS_M[-1][1]], np.float32)
LCM_EDGES = np.array([low for low, _ in LCM_RINGS_M] + [LCM_RINGS_M[-1][1]], np.float32)
FAR, OUTER, MUON_AGE_FROM, LIMIT = f32(FAR_M), f32(OUTER_M), f32(MUON_AGE_FROM_M), f32(MAX_DEVIATE)
TWO, MICRO = f32(2.0), f32(1e-6)
TAIL_LEAST, TAIL_MOST, TAIL_LOW = f32(tail.MIN_MEAN), f32(tail.MAX_MEAN), f32(tail.LOW)
TAIL_PER_MEAN, TAIL_PER_STEP, TAIL_LAST = f32(1.0 / tail.MEAN_STEP), f32(1.0 / tail.STEP), f32(tail.N_STEPS - 1.001)


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def expect(res: StationResponse, fit: Any, r: Any, area_e: Any, area_m: Any, planes: Any) -> None:
    """Fill densities, the e/gamma channel's expectation and variance, punch-through, the muon channel's expectation."""
    full_vectors()
    electrons, muons, mean_e, var_e, punch, mean_m = planes[0], planes[1], planes[2], planes[3], planes[4], planes[5]
    strays = f32(res.muon_strays)
    level, age, level_m, muon_age = fit.electron[2], fit.electron[3], fit.muon[0], fit.muon[1]
    for k in range(r.size):
        electrons[k] = electron_density(r[k], level, age)
        muons[k] = muon_density(r[k], level_m, muon_age)
    for k in range(r.size):
        live = ONE if area_e[k] > ZERO else ZERO
        mean, _, _ = electron_expected(res, area_e[k], r[k], electrons[k], muons[k])
        mean_e[k] = mean * live
    for k in range(r.size):
        live = ONE if area_e[k] > ZERO else ZERO
        _, variance, _ = electron_expected(res, area_e[k], r[k], electrons[k], muons[k])
        var_e[k] = variance * live
    for k in range(r.size):
        punch[k] = punch_through(res, area_m[k], r[k], electrons[k])
    for k in range(r.size):
        live = ONE if area_m[k] > ZERO else ZERO
        mean_m[k] = area_m[k] * muons[k] + punch[k] + strays * live


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def deviance(signal: Any, mean: Any, variance: Any, limit: Any, out: Any) -> None:
    """Fill half the deviance per station; stations at the limit say nothing once the expectation exceeds it."""
    full_vectors()
    for k in range(signal.size):
        full = ONE if signal[k] >= limit else ZERO
        weight = mean[k] / max(variance[k], TINY) if variance[k] > ZERO else ZERO
        out[k], _ = half_deviance(signal[k], mean[k] + TINY, full, weight)


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def muon_sums(
    res: StationResponse, reco: Any, r: Any, s_e: Any, s: Any, area_e: Any, area: Any, planes: Any, out: Any
) -> None:
    """Fill everything of ``PLAIN`` but the deviances."""
    full_vectors()
    muons, punch, mean = planes[1], planes[4], planes[5]
    strays, found = f32(res.muon_strays), f32(1.0 - res.muon_miss)
    punches, uncertainty = f32(res.punch_through_dispersion), f32(res.punch_through_uncertainty)
    spread, muon_age = f32(res.muon_dispersion), f32(res.muon_age_mean)
    hits40 = seen = hits = live = areas = top = seen_e = empty = empty_var = expected = blank = blank_var = ZERO
    near = near_mean = near_hits = beyond_all = signal = signal_var = ZERO
    mid_m = mid_am = mid_e = mid_ae = out_m = out_am = out_e = out_ae = ZERO
    for k in range(r.size):
        here = ONE if area[k] > ZERO else ZERO
        hit = ONE if s[k] > ZERO else ZERO
        far = ONE if r[k] > FAR else ZERO
        outer = ONE if r[k] > OUTER else ZERO
        mid = (ONE if r[k] > MUON_AGE_FROM else ZERO) - outer
        hits40 += hit * (mid + outer)
        seen += s[k] * far
        hits += hit * far
        live += here * far
        areas += area[k] * far
        seen_e += s_e[k] * far
        template = muon_density(r[k], ZERO, muon_age) * area[k]
        e = vexp(-(area[k] * muons[k] * found + strays)) * here * far
        empty += e
        empty_var += e * (ONE - e)
        n = reco * template * far
        expected += n
        b = vexp(-(n * found + strays)) * here * far
        blank += b
        blank_var += b * (ONE - b)
        close = (ONE - far) * here
        near += s[k] * close
        near_mean += mean[k] * close
        near_hits += hit * close
        background = punch[k] + strays * here
        variance = punches * punch[k] + uncertainty * uncertainty * punch[k] * punch[k] + spread * strays * here
        beyond_all += max(s[k] - background - TWO * np.sqrt(variance), ZERO)
        weight = template / (variance + TINY)
        signal += weight * (s[k] - background)
        signal_var += weight * weight * variance
        mid_m += s[k] * mid
        mid_am += area[k] * mid
        mid_e += s_e[k] * mid
        mid_ae += area_e[k] * mid
        out_m += s[k] * outer
        out_am += area[k] * outer
        out_e += s_e[k] * outer
        out_ae += area_e[k] * outer
    # Apart, because a running maximum keeps LLVM from vectorising a loop.
    for k in range(r.size):
        if r[k] > FAR and s[k] > top:
            top = s[k]
    out[3], out[4], out[5], out[6], out[7], out[8], out[9] = hits40, seen, hits, live, areas, top, seen_e
    out[10], out[11], out[12], out[13], out[14] = empty, empty_var, expected, blank, blank_var
    out[15], out[16], out[17], out[18], out[19], out[20] = near, near_mean, near_hits, beyond_all, signal, signal_var
    out[21], out[22], out[23], out[24] = mid_m, mid_am, mid_e, mid_ae
    out[25], out[26], out[27], out[28] = out_m, out_am, out_e, out_ae


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def root_lg_tail(seen: Any, mean: Any, variance: Any, dispersion: Any, table: Any) -> Any:
    """Return the square root of -lg P(S >= seen), as :func:`features.stations.tail.minus_lg_tail` looks it up."""
    per_deposit = dispersion * mean / (variance + TINY)
    deposits = min(max(per_deposit * mean, TAIL_LEAST), TAIL_MOST)
    row = vln(deposits / TAIL_LEAST) * TAIL_PER_MEAN
    column = (np.sqrt(per_deposit * seen) - np.sqrt(deposits) - TAIL_LOW) * TAIL_PER_STEP
    column = min(max(column, ZERO), TAIL_LAST)
    i, j = int(row), int(column)
    a, b = row - f32(i), column - f32(j)
    near = table[i, j] + b * (table[i, j + 1] - table[i, j])
    far = table[i + 1, j] + b * (table[i + 1, j + 1] - table[i + 1, j])
    return near + a * (far - near)


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def add_pattern(
    fit: Any, ca: Any, sa: Any, x: Any, y: Any, r: Any, s: Any, area: Any, mean: Any, var: Any, tails: Any, out: Any
) -> None:
    """Fill the nine sums of ``PATTERN`` of one channel; ``tails``: its dispersion and table (:mod:`..tail`)."""
    full_vectors()
    core_x, core_y = fit.electron[0], fit.electron[1]
    live = far_live = tail05 = tail1 = tail2 = c1 = s1 = c2 = s2 = ZERO
    dispersion, table = tails
    for k in range(r.size):
        if s[k] > ZERO and r[k] > FAR and area[k] > ZERO:
            root = root_lg_tail(s[k], mean[k], var[k], f32(dispersion), table)
            tail05 += root
            tail1 += root * root
            tail2 += root * root * root * root
    for k in range(r.size):
        here = ONE if area[k] > ZERO else ZERO
        far = (ONE if r[k] > FAR else ZERO) * here
        live += here
        far_live += far
        deviate = (s[k] - mean[k]) / np.sqrt(var[k] + MICRO)
        deviate = min(max(deviate, -LIMIT), LIMIT) * here
        dx, dy = x[k] - core_x, y[k] - core_y
        length = np.sqrt(dx * dx + dy * dy) + f32(1e-3)
        c, d = (dx * ca + dy * sa) / length, (dy * ca - dx * sa) / length
        c1 += deviate * c
        s1 += deviate * d
        c2 += deviate * (c * c - d * d)
        s2 += deviate * TWO * c * d
    out[0], out[1], out[2], out[3], out[4] = live, far_live, tail05, tail1, tail2
    out[5], out[6], out[7], out[8] = c1, s1, c2, s2


@njit(error_model="numpy", forceinline=True)
def add_rings(r: Any, s: Any, area: Any, mean: Any, var: Any, rings: Any, lcm: Any) -> None:
    """Add every station to its rings: (4, rings) and (6, rings of LCm), zero before."""
    for k in range(r.size):
        if r[k] >= RING_EDGES[N_RINGS]:
            continue
        ring = 0
        while r[k] >= RING_EDGES[ring + 1]:
            ring += 1
        rings[0, ring] += s[k]
        rings[1, ring] += area[k]
        rings[2, ring] += mean[k]
        rings[3, ring] += var[k]
        if area[k] <= ZERO or r[k] < LCM_EDGES[0] or r[k] >= LCM_EDGES[N_LCM]:
            continue
        ring = 0
        while r[k] >= LCM_EDGES[ring + 1]:
            ring += 1
        per_m2 = ONE / area[k]
        density, expected = s[k] * per_m2, mean[k] * per_m2
        lcm[0, ring] += ONE
        lcm[1, ring] += density
        lcm[2, ring] += density * density
        lcm[3, ring] += expected
        lcm[4, ring] += expected * expected
        lcm[5, ring] += var[k] * per_m2 * per_m2


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def total_of(values: Any) -> Any:
    full_vectors()
    total = ZERO
    for k in range(values.size):
        total += values[k]
    return total


@njit(error_model="numpy", forceinline=True)
def _sum_all(
    electron_mev: Any,
    muon_mev: Any,
    cosine: Any,
    u: Any,
    v: Any,
    cos_azimuth: Any,
    sin_azimuth: Any,
    reco: Any,
    x: Any,
    y: Any,
    area_e_m2: Any,
    area_m_m2: Any,
    fits: Any,
    res: StationResponse,
    tails_e: Any,
    tails_m: Any,
    plain: Any,
    pattern: Any,
    rings: Any,
    lcm: Any,
) -> None:
    full_vectors()
    size = x.size
    planes, work = np.empty((8, size), np.float32), np.empty((6, size), np.float32)
    r, s_e, s_m, area_e, area_m, value = work[0], work[1], work[2], work[3], work[4], work[5]
    mean_e, var_e, punch, mean_m, var_m, var_fit = planes[2], planes[3], planes[4], planes[5], planes[6], planes[7]
    spread, punches, uncertainty = (
        f32(res.muon_dispersion),
        f32(res.punch_through_dispersion),
        f32(res.punch_through_uncertainty),
    )
    top_e, top_m = f32(res.saturation_mev), f32(res.muon_saturation_mev)
    for n in range(fits.shape[0]):
        fit = fits[n]
        if np.isnan(fit.electron[0]):
            continue
        per_e, per_m = f32(cosine[n] / res.electron_deposit_mev), f32(cosine[n] / res.muon_deposit_mev)
        for k in range(size):
            s_e[k] = min(electron_mev[n, k], top_e) * per_e
            s_m[k] = min(muon_mev[n, k], top_m) * per_m
        for k in range(size):
            area_e[k] = area_e_m2[k] * cosine[n]
            area_m[k] = area_m_m2[k] * cosine[n]
        radii(fit.electron[0], fit.electron[1], u[n], v[n], x, y, r)
        expect(res, fit, r, area_e, area_m, planes)
        for k in range(size):
            var_m[k] = spread * (mean_m[k] - punch[k]) + punches * punch[k]
        for k in range(size):
            var_fit[k] = var_m[k] + uncertainty * uncertainty * punch[k] * punch[k]
        deviance(s_e, mean_e, var_e, top_e * per_e, value)
        plain[n, 0] = total_of(value)
        deviance(s_m, mean_m, var_fit, top_m * per_m, value)
        plain[n, 1], plain[n, 2] = total_of(value), np.max(value)
        muon_sums(res, reco[n], r, s_e, s_m, area_e, area_m, planes, plain[n])
        add_pattern(fit, cos_azimuth[n], sin_azimuth[n], x, y, r, s_e, area_e, mean_e, var_e, tails_e, pattern[n, 0])
        add_pattern(fit, cos_azimuth[n], sin_azimuth[n], x, y, r, s_m, area_m, mean_m, var_m, tails_m, pattern[n, 1])
        add_rings(r, s_e, area_e, mean_e, var_e, rings[n, 0], lcm[n, 0])
        add_rings(r, s_m, area_m, mean_m, var_m, rings[n, 1], lcm[n, 1])


@kernel(error_model="numpy")
def _sum_events(planes: Any, columns: Any, here: Any, fits: Any, res: StationResponse, tails: Any, out: Any) -> None:
    full_vectors()
    electron_mev, muon_mev = planes
    cosine, u, v, cos_azimuth, sin_azimuth, reco = columns
    x, y, area_e, area_m = here
    plain, pattern, rings, lcm = out
    _sum_all(
        electron_mev,
        muon_mev,
        cosine,
        u,
        v,
        cos_azimuth,
        sin_azimuth,
        reco,
        x,
        y,
        area_e,
        area_m,
        fits,
        res,
        tails[0],
        tails[1],
        plain,
        pattern,
        rings,
        lcm,
    )


def sum_fused(events: EventBatch, fit: RawFit) -> Sums:
    """Return the same sums as :func:`features.stations.sums.sum_reference`."""
    n, here, response = len(events), events.stations, events.response
    fits = fit.records()
    azimuth = events.azimuth_deg * np.float32(math.pi / 180.0)
    muon_age = response.muon_age_mean
    # rho_mu(N_mu = 1) over the density at level 0, which the loop has at hand.
    unit = float(muon_normalisation(muon_age)) * math.exp(muon_age * MUON_G_REF)
    reco = np.float32(unit) * np.exp(np.clip(events.lg_n_mu, 0.0, 9.0) * np.float32(math.log(10.0)))
    out = tuple(
        np.zeros(dims, np.float32)
        for dims in ((n, len(PLAIN)), (n, 2, len(PATTERN)), (n, 2, 4, N_RINGS), (n, 2, 6, N_LCM))
    )
    columns = (events.cos_zenith, *events.direction, np.cos(azimuth), np.sin(azimuth), reco)
    dispersions = (response.electron_dispersion, response.muon_dispersion)
    tails = tuple((dispersion, tail_table(dispersion)) for dispersion in dispersions)
    geometry = (here.x_m, here.y_m, here.electron_area_m2, here.muon_area_m2)
    _sum_events((events.electron_mev, events.muon_mev), columns, geometry, fits, response, tails, out)
    plain, pattern, rings, lcm = out
    sums: Sums = {"fitted": ~np.isnan(fits["electron"][:, 0])}
    sums.update({name: plain[:, k] for k, name in enumerate(PLAIN)})
    for c, channel in enumerate(CHANNELS):
        sums.update({f"{channel}_{name}": pattern[:, c, k] for k, name in enumerate(PATTERN)})
        sums[f"ring_{channel}"] = [rings[:, c, k] for k in range(4)]
        sums[f"lcm_{channel}"] = [lcm[:, c, k] for k in range(6)]
    return sums
