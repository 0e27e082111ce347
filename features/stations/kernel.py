"""Compiled loops over the stations of one event that make the sums of :mod:`features.stations.sums`.

Planes of one event live in the first-level cache; loops are kept short, with few arrays each, because LLVM vectorises
them only then (see :mod:`features.lateral.compiled.cpu_model`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from features.lateral.compiled.cpu_model import (
    ONE,
    TINY,
    ZERO,
    electron_density,
    electron_expected,
    half_deviance,
    muon_density,
    punch_through,
)
from features.lateral.constants import StationResponse
from features.lateral.vector_math import FAST, f32, full_vectors, vexp, vln
from features.stations import tail
from features.stations.sums import FAR_M, LCM_RINGS_M, MAX_DEVIATE, MUON_AGE_FROM_M, OUTER_M, RINGS_M

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
    punches, unsure = f32(res.punch_through_dispersion), f32(res.punch_through_uncertainty)
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
        variance = punches * punch[k] + unsure * unsure * punch[k] * punch[k] + spread * strays * here
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
