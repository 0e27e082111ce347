"""The sums of :mod:`features.sums` as one compiled loop over events.

Planes of one event live in the first-level cache; loops over stations are kept short, with few arrays each, because
LLVM vectorises them only then (see :mod:`features.kernel_model`).
"""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from features.bounds import LG_E
from features.detector import Response
from features.events import Events, stations
from features.kernel_model import ONE, TINY, ZERO, electron_density, muon_density, radii
from features.lateral_fit import RawFit
from features.station_model import MUON_G_REF
from features.sums import (
    CHANNELS,
    FAR_M,
    LCM_RINGS_M,
    MAX_DEVIATE,
    OUTER_M,
    PATTERN,
    PLAIN,
    RINGS_M,
    SHAPE_FROM_M,
    Sums,
)
from features.vector_math import FAST, f32, vexp, vln
from showers.lateral import muon_normalisation

N_RINGS, N_LCM = len(RINGS_M), len(LCM_RINGS_M)
RING_EDGES = np.array([low for low, _ in RINGS_M] + [RINGS_M[-1][1]], np.float32)
LCM_EDGES = np.array([low for low, _ in LCM_RINGS_M] + [LCM_RINGS_M[-1][1]], np.float32)
FAR, OUTER, SHAPE_FROM, LIMIT, LG = f32(FAR_M), f32(OUTER_M), f32(SHAPE_FROM_M), f32(MAX_DEVIATE), f32(LG_E)
SOURCES = ("sums_numba.py", "sums.py", "kernel_model.py", "vector_math.py", "station_model.py")
HALF, TWO, MICRO = f32(0.5), f32(2.0), f32(1e-6)


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def _expect(res: Response, fit: Any, r: Any, area_e: Any, area_m: Any, planes: Any) -> None:
    """Fill densities, the e/gamma channel's expectation and variance, punch-through, the muon channel's expectation."""
    electrons, muons, mean_e, var_e, punch, mean_m = planes[0], planes[1], planes[2], planes[3], planes[4], planes[5]
    far, peak, scale = f32(res.gamma_fraction), f32(res.core_excess), f32(-1.0 / res.core_excess_scale_m)
    lost, strays, strays_m = f32(res.lost_share), f32(res.electron_strays), f32(res.muon_strays)
    wide, narrow = f32(res.electron_dispersion), f32(res.muon_in_electron_dispersion)
    share, punch_scale = f32(res.punch_through), f32(-1.0 / res.punch_through_scale_m)
    level, age, level_m, shape = fit[2], fit[3], fit[17], fit[18]
    for k in range(r.size):
        electrons[k] = electron_density(r[k], level, age)
        muons[k] = muon_density(r[k], level_m, shape)
    for k in range(r.size):
        n_e, n_m = area_e[k] * electrons[k], area_e[k] * muons[k]
        a = far + peak * vexp(r[k] * scale)
        live = ONE if area_e[k] > ZERO else ZERO
        mean_e[k] = (n_e * a * (ONE - lost * vexp(-n_e - n_m)) + n_m + strays) * live
    for k in range(r.size):
        n_e, n_m = area_e[k] * electrons[k], area_e[k] * muons[k]
        a = far + peak * vexp(r[k] * scale)
        live = ONE if area_e[k] > ZERO else ZERO
        var_e[k] = (wide * n_e * a * a + narrow * n_m + wide * strays) * live
    for k in range(r.size):
        punch[k] = area_m[k] * electrons[k] * share * vexp(r[k] * punch_scale)
    for k in range(r.size):
        live = ONE if area_m[k] > ZERO else ZERO
        mean_m[k] = area_m[k] * muons[k] + punch[k] + strays_m * live


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def _deviance(signal: Any, mean: Any, variance: Any, limit: Any, out: Any) -> None:
    """Fill half the deviance per station; stations at the limit say nothing once the expectation exceeds it."""
    for k in range(signal.size):
        mu = mean[k] + TINY
        residual = signal[k] - mu
        counted = ZERO if (signal[k] >= limit and residual < ZERO) or variance[k] <= ZERO else ONE
        weight = counted * mean[k] / max(variance[k], TINY)
        out[k] = weight * (signal[k] * vln(max(signal[k], TINY) / mu) - residual)


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def _muon_sums(
    res: Response, reco: Any, r: Any, s_e: Any, s: Any, area_e: Any, area: Any, planes: Any, out: Any
) -> None:
    """Fill everything of ``PLAIN`` but the deviances."""
    muons, punch, mean = planes[1], planes[4], planes[5]
    strays, found = f32(res.muon_strays), f32(1.0 - res.muon_miss)
    punches, unsure = f32(res.punch_through_dispersion), f32(res.punch_through_uncertainty)
    spread, shape = f32(res.muon_dispersion), f32(res.muon_shape_mean)
    hits40 = seen = hits = live = areas = top = seen_e = empty = empty_var = expected = blank = blank_var = ZERO
    near = near_mean = near_hits = beyond_all = signal = signal_var = ZERO
    mid_m = mid_am = mid_e = mid_ae = out_m = out_am = out_e = out_ae = ZERO
    for k in range(r.size):
        here = ONE if area[k] > ZERO else ZERO
        hit = ONE if s[k] > ZERO else ZERO
        far = ONE if r[k] > FAR else ZERO
        outer = ONE if r[k] > OUTER else ZERO
        mid = (ONE if r[k] > SHAPE_FROM else ZERO) - outer
        hits40 += hit * (mid + outer)
        seen += s[k] * far
        hits += hit * far
        live += here * far
        areas += area[k] * far
        top = max(top, s[k] * far)
        seen_e += s_e[k] * far
        template = muon_density(r[k], ZERO, shape) * area[k]
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
    out[3], out[4], out[5], out[6], out[7], out[8], out[9] = hits40, seen, hits, live, areas, top, seen_e
    out[10], out[11], out[12], out[13], out[14] = empty, empty_var, expected, blank, blank_var
    out[15], out[16], out[17], out[18], out[19], out[20] = near, near_mean, near_hits, beyond_all, signal, signal_var
    out[21], out[22], out[23], out[24] = mid_m, mid_am, mid_e, mid_ae
    out[25], out[26], out[27], out[28] = out_m, out_am, out_e, out_ae


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def _pattern(
    fit: Any, ca: Any, sa: Any, x: Any, y: Any, r: Any, s: Any, area: Any, mean: Any, var: Any, out: Any
) -> None:
    """Fill the nine sums of ``PATTERN`` of one channel."""
    live = far_live = tail05 = tail1 = tail2 = c1 = s1 = c2 = s2 = ZERO
    for k in range(r.size):
        here = ONE if area[k] > ZERO else ZERO
        far = (ONE if r[k] > FAR else ZERO) * here
        hit = ONE if s[k] > ZERO else ZERO
        mu = mean[k] + MICRO
        shape = mu * mu / (var[k] + MICRO)
        root = vexp(vln(max(s[k] / mu, TINY)) * f32(1.0 / 3.0))
        z = min(f32(3.0) * np.sqrt(shape) * (root - ONE + ONE / (f32(9.0) * shape)), f32(12.0))
        exponent = z * (f32(1.5976) + f32(0.07056) * z * z)
        tail = (max(exponent, ZERO) + vln(ONE + vexp(-abs(exponent)))) * LG * far * hit
        live += here
        far_live += far
        tail05 += np.sqrt(max(tail, ZERO))
        tail1 += tail
        tail2 += tail * tail
        deviate = (s[k] - mean[k]) / np.sqrt(var[k] + MICRO)
        deviate = min(max(deviate, -LIMIT), LIMIT) * here
        dx, dy = x[k] - fit[0], y[k] - fit[1]
        length = np.sqrt(dx * dx + dy * dy) + f32(1e-3)
        c, d = (dx * ca + dy * sa) / length, (dy * ca - dx * sa) / length
        c1 += deviate * c
        s1 += deviate * d
        c2 += deviate * (c * c - d * d)
        s2 += deviate * TWO * c * d
    out[0], out[1], out[2], out[3], out[4] = live, far_live, tail05, tail1, tail2
    out[5], out[6], out[7], out[8] = c1, s1, c2, s2


@njit(error_model="numpy", forceinline=True)
def _rings(r: Any, s: Any, area: Any, mean: Any, var: Any, rings: Any, lcm: Any) -> None:
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
        lcm[0, ring] += ONE
        lcm[1, ring] += s[k]
        lcm[2, ring] += s[k] * s[k]
        lcm[3, ring] += mean[k]
        lcm[4, ring] += mean[k] * mean[k]
        lcm[5, ring] += var[k]


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
    res: Response,
    plain: Any,
    pattern: Any,
    rings: Any,
    lcm: Any,
) -> None:
    size = x.size
    planes, work = np.empty((8, size), np.float32), np.empty((6, size), np.float32)
    r, s_e, s_m, area_e, area_m, value = work[0], work[1], work[2], work[3], work[4], work[5]
    mean_e, var_e, punch, mean_m, var_m, var_fit = planes[2], planes[3], planes[4], planes[5], planes[6], planes[7]
    spread, punches, unsure = (
        f32(res.muon_dispersion),
        f32(res.punch_through_dispersion),
        f32(res.punch_through_uncertainty),
    )
    for n in range(fits.shape[0]):
        fit = fits[n]
        if np.isnan(fit[0]):
            continue
        per_e, per_m = f32(cosine[n] / res.electron_deposit_mev), f32(cosine[n] / res.muon_deposit_mev)
        for k in range(size):
            s_e[k] = electron_mev[n, k] * per_e
            s_m[k] = muon_mev[n, k] * per_m
        for k in range(size):
            area_e[k] = area_e_m2[k] * cosine[n]
            area_m[k] = area_m_m2[k] * cosine[n]
        radii(fit[0], fit[1], u[n], v[n], x, y, r)
        _expect(res, fit, r, area_e, area_m, planes)
        for k in range(size):
            var_m[k] = spread * (mean_m[k] - punch[k]) + punches * punch[k]
        for k in range(size):
            var_fit[k] = var_m[k] + unsure * unsure * punch[k] * punch[k]
        _deviance(s_e, mean_e, var_e, f32(res.saturation_mev) * per_e, value)
        plain[n, 0] = _total(value)
        _deviance(s_m, mean_m, var_fit, f32(res.muon_saturation_mev) * per_m, value)
        plain[n, 1], plain[n, 2] = _total(value), np.max(value)
        _muon_sums(res, reco[n], r, s_e, s_m, area_e, area_m, planes, plain[n])
        _pattern(fit, cos_azimuth[n], sin_azimuth[n], x, y, r, s_e, area_e, mean_e, var_e, pattern[n, 0])
        _pattern(fit, cos_azimuth[n], sin_azimuth[n], x, y, r, s_m, area_m, mean_m, var_m, pattern[n, 1])
        _rings(r, s_e, area_e, mean_e, var_e, rings[n, 0], lcm[n, 0])
        _rings(r, s_m, area_m, mean_m, var_m, rings[n, 1], lcm[n, 1])


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def _total(values: Any) -> Any:
    total = ZERO
    for k in range(values.size):
        total += values[k]
    return total


@lru_cache
def _compiled() -> Any:
    """Return the compiled function; its cache follows all sources (see :mod:`features.fit_numba`)."""
    here = Path(__file__).parent
    version = hashlib.sha256(b"".join((here / name).read_bytes() for name in SOURCES)).hexdigest()

    @njit(error_model="numpy", cache=True)
    def sum_events(planes: Any, columns: Any, here: Any, fits: Any, res: Response, out: Any) -> None:
        _ = version
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
            plain,
            pattern,
            rings,
            lcm,
        )

    return sum_events


def sum_fused(events: Events, fit: RawFit) -> Sums:
    """Return the same sums as :func:`features.sums.sum_reference`."""
    n, here, response = len(events), stations(events.xp), events.response
    fits = np.stack(fit.columns(), axis=1).astype(np.float32)
    azimuth = events.azimuth_deg * np.float32(math.pi / 180.0)
    shape = response.muon_shape_mean
    # rho_mu(N_mu = 1) over the density at level 0, which the loop has at hand.
    unit = float(muon_normalisation(shape)) * math.exp(shape * MUON_G_REF)
    reco = np.float32(unit) * np.exp(np.clip(events.lg_n_mu, 0.0, 9.0) * np.float32(math.log(10.0)))
    out = tuple(
        np.zeros(dims, np.float32)
        for dims in ((n, len(PLAIN)), (n, 2, len(PATTERN)), (n, 2, 4, N_RINGS), (n, 2, 6, N_LCM))
    )
    columns = (events.cos_zenith, *events.direction, np.cos(azimuth), np.sin(azimuth), reco)
    geometry = (here.x_m, here.y_m, here.electron_area_m2, here.muon_area_m2)
    _compiled()((events.electron_mev, events.muon_mev), columns, geometry, fits, response, out)
    plain, pattern, rings, lcm = out
    sums: Sums = {"fitted": ~np.isnan(fits[:, 0])}
    sums.update({name: plain[:, k] for k, name in enumerate(PLAIN)})
    for c, channel in enumerate(CHANNELS):
        sums.update({f"{channel}_{name}": pattern[:, c, k] for k, name in enumerate(PATTERN)})
        sums[f"ring_{channel}"] = [rings[:, c, k] for k in range(4)]
        sums[f"lcm_{channel}"] = [lcm[:, c, k] for k in range(6)]
    return sums
