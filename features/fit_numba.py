"""The lateral fits as one compiled loop over events: same steps as :mod:`features.lateral_fit`, a hundred times faster.

One event is finished before the next begins, so each takes only the steps it needs and everything it touches stays in
the first-level cache. Constants arrive as arguments, so that the cached machine code never holds an old value;
everything is inlined into one cached function, so that the same machine code runs in the process that compiled it and
in those that load it (bits would differ otherwise).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from features.detector import Response
from features.events import Events, stations
from features.lateral_fit import RawFit
from features.recipe import RECIPE, Recipe
from features.station_model import ELECTRON_G_REF, MUON_G_REF, SOFT_M
from features.vector_math import FAST, f32, vexp, vln

G_E, G_M = f32(ELECTRON_G_REF), f32(MUON_G_REF)
R0_E, R0_M = f32(1.0 / 40.0), f32(1.0 / 420.0)
ZERO, ONE, HALF = f32(0.0), f32(1.0), f32(0.5)
TINY = f32(1e-12)
SOFT = f32(SOFT_M**2)


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def _radii(core_x: Any, core_y: Any, u: Any, v: Any, x: Any, y: Any, r: Any) -> None:
    for k in range(x.size):
        dx, dy = x[k] - core_x, y[k] - core_y
        along = dx * u + dy * v
        r[k] = np.sqrt(max(dx * dx + dy * dy - along * along, ZERO) + SOFT)


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def _electron_density(r: Any, level: Any, age: Any) -> Any:
    x = r * R0_E
    log_x, log_1x = vln(x), vln(ONE + x)
    return vexp(level + age * (log_x + log_1x - G_E) - f32(1.5) * log_x - f32(3.6) * log_1x)


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def _muon_density(r: Any, level: Any, shape: Any) -> Any:
    y = r * R0_M
    log_y, log_1y = vln(y), vln(ONE + y)
    return vexp(level + shape * (log_y + log_1y - G_M) - f32(2.0) * log_y - f32(4.5) * log_1y)


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def _freeze_electron(res: Response, p: Any, q: Any, r: Any, area: Any, kept: Any, background: Any, weight: Any) -> None:
    level, age, muon_level, shape = f32(p[2]), f32(p[3]), f32(q[0]), f32(q[1])
    far, excess, scale = f32(res.gamma_fraction), f32(res.core_excess), f32(-1.0 / res.core_excess_scale_m)
    lost, strays = f32(res.lost_share), f32(res.electron_strays)
    wide, narrow = f32(res.electron_dispersion), f32(res.muon_in_electron_dispersion)
    # Three loops, because LLVM vectorises a loop only with few pairs of arrays that might overlap.
    for k in range(r.size):
        kept[k] = area[k] * _electron_density(r[k], level, age)
        background[k] = area[k] * _muon_density(r[k], muon_level, shape)
    for k in range(r.size):
        n_e, n_m = kept[k], background[k]
        a = far + excess * vexp(r[k] * scale)
        mean = n_e * a * (ONE - lost * vexp(-n_e - n_m)) + n_m + strays
        weight[k] = mean / (wide * n_e * a * a + narrow * n_m + wide * strays)
    for k in range(r.size):
        live = ONE if area[k] > ZERO else ZERO
        kept[k] = area[k] * (ONE - lost * vexp(-kept[k] - background[k]))
        background[k] = (background[k] + strays) * live
        weight[k] = weight[k] * live


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def _freeze_muon(
    res: Response, p: Any, q: Any, r: Any, area: Any, background: Any, weight: Any, g: Any, base: Any
) -> None:
    level, age, muon_level, shape = f32(p[2]), f32(p[3]), f32(q[0]), f32(q[1])
    share, scale, strays = f32(res.punch_through), f32(-1.0 / res.punch_through_scale_m), f32(res.muon_strays)
    muons, punches, unsure = (
        f32(res.muon_dispersion),
        f32(res.punch_through_dispersion),
        f32(res.punch_through_uncertainty),
    )
    for k in range(r.size):
        y = r[k] * R0_M
        log_y, log_1y = vln(y), vln(ONE + y)
        g[k] = log_y + log_1y - G_M
        base[k] = -f32(2.0) * log_y - f32(4.5) * log_1y
    for k in range(r.size):
        background[k] = area[k] * _electron_density(r[k], level, age) * share * vexp(r[k] * scale)
    for k in range(r.size):
        punch, n_m = background[k], area[k] * vexp(muon_level + shape * g[k] + base[k])
        variance = muons * (n_m + strays) + punches * punch + unsure * unsure * punch * punch
        weight[k] = (n_m + punch + strays) / variance
    for k in range(r.size):
        background[k] += strays


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def _electron_terms(
    res: Response,
    p: Any,
    u: Any,
    v: Any,
    x: Any,
    y: Any,
    signal: Any,
    full: Any,
    area: Any,
    background: Any,
    weight: Any,
    out: Any,
) -> None:
    """Fill ``out`` with F, 4 components of its gradient and 10 of the Fisher matrix."""
    core_x, core_y, level, age = f32(p[0]), f32(p[1]), f32(p[2]), f32(p[3])
    far, peak, scale = f32(res.gamma_fraction), f32(res.core_excess), f32(1.0 / res.core_excess_scale_m)
    value = g0 = g1 = g2 = g3 = ZERO
    h00 = h10 = h11 = h20 = h21 = h22 = h30 = h31 = h32 = h33 = ZERO
    for k in range(x.size):
        dx, dy = x[k] - core_x, y[k] - core_y
        along = dx * u + dy * v
        r = np.sqrt(max(dx * dx + dy * dy - along * along, ZERO) + SOFT)
        per_r = ONE / r
        z = r * R0_E
        log_z, log_1z = vln(z), vln(ONE + z)
        g = log_z + log_1z - G_E
        excess = peak * vexp(-r * scale)
        a = far + excess
        m = area[k] * vexp(level + age * g - f32(1.5) * log_z - f32(3.6) * log_1z) * a
        mu = m + background[k] + TINY
        inverse = ONE / mu
        slope = ((age - f32(1.5)) / z + (age - f32(3.6)) / (ONE + z)) * R0_E - excess * scale / a
        by_x, by_y = slope * (along * u - dx) * per_r, slope * (along * v - dy) * per_r
        s = signal[k]
        residual = s - mu
        # A saturated station is a lower limit: it says nothing once the expectation exceeds it.
        open_end = ZERO if (full[k] > ZERO and residual < ZERO) else ONE
        w = weight[k] * open_end
        value += w * (s * vln(max(s, TINY) * inverse) - residual)
        pull = w * residual * m * inverse
        info = w * m * m * inverse
        g0 += pull * by_x
        g1 += pull * by_y
        g2 += pull
        g3 += pull * g
        ix, iy, ig = info * by_x, info * by_y, info * g
        h00 += ix * by_x
        h10 += iy * by_x
        h11 += iy * by_y
        h20 += ix
        h21 += iy
        h22 += info
        h30 += ix * g
        h31 += iy * g
        h32 += ig
        h33 += ig * g
    core, spread = 1.0 / (res.core_spread_m * res.core_spread_m), 1.0 / (res.age_spread * res.age_spread)
    older = p[3] - res.age_mean
    out[0] = value + 0.5 * core * (p[0] * p[0] + p[1] * p[1]) + 0.5 * spread * older * older
    out[1], out[2], out[3], out[4] = core * p[0] - g0, core * p[1] - g1, -g2, spread * older - g3
    out[5], out[6], out[7], out[8], out[9], out[10] = h00 + core, h10, h11 + core, h20, h21, h22
    out[11], out[12], out[13], out[14] = h30, h31, h32, h33 + spread


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def _muon_terms(
    res: Response, q: Any, signal: Any, full: Any, area: Any, background: Any, weight: Any, g: Any, base: Any, out: Any
) -> None:
    """Fill ``out`` with F, 2 components of its gradient and 3 of the Fisher matrix."""
    level, shape = f32(q[0]), f32(q[1])
    value = g0 = g1 = h00 = h10 = h11 = ZERO
    for k in range(signal.size):
        m = area[k] * vexp(level + shape * g[k] + base[k])
        mu = m + background[k] + TINY
        inverse = ONE / mu
        s = signal[k]
        residual = s - mu
        open_end = ZERO if (full[k] > ZERO and residual < ZERO) else ONE
        w = weight[k] * open_end
        value += w * (s * vln(max(s, TINY) * inverse) - residual)
        pull = w * residual * m * inverse
        info = w * m * m * inverse
        g0 += pull
        g1 += pull * g[k]
        h00 += info
        h10 += info * g[k]
        h11 += info * g[k] * g[k]
    spread = 1.0 / (res.muon_shape_spread * res.muon_shape_spread)
    wider = q[1] - res.muon_shape_mean
    out[0] = value - 0.5 * q[0] + 0.5 * spread * wider * wider
    out[1], out[2] = -0.5 - g0, spread * wider - g1
    out[3], out[4], out[5] = h00, h10, h11 + spread


@njit(error_model="numpy", forceinline=True)
def _solve(terms: Any, size: int, damping: float, factor: Any, step: Any) -> float:
    """Solve (H + damping diag H) step = -g by Cholesky; returns the decrement -g step."""
    h = 1 + size
    for i in range(size):
        for j in range(i + 1):
            total = terms[h + i * (i + 1) // 2 + j]
            if i == j:
                total *= 1.0 + damping
            for k in range(j):
                total -= factor[i, k] * factor[j, k]
            if i == j:
                factor[i, i] = np.sqrt(max(total, terms[h + i * (i + 3) // 2] * 1e-6 + 1e-30))
            else:
                factor[i, j] = total / factor[j, j]
    for i in range(size):
        total = -terms[1 + i]
        for k in range(i):
            total -= factor[i, k] * step[k]
        step[i] = total / factor[i, i]
    for back in range(size):
        i = size - 1 - back
        total = step[i]
        for k in range(i + 1, size):
            total -= factor[k, i] * step[k]
        step[i] = total / factor[i, i]
    decrement = 0.0
    for i in range(size):
        decrement -= terms[1 + i] * step[i]
    return decrement


ELECTRON, MUON = 0, 1


@njit(error_model="numpy", forceinline=True)
def _terms(kind: int, res: Response, p: Any, u: Any, v: Any, x: Any, y: Any, planes: Any, out: Any) -> None:
    if kind == ELECTRON:
        _electron_terms(res, p, u, v, x, y, planes[0], planes[1], planes[2], planes[3], planes[4], out)
    else:
        _muon_terms(res, p, planes[0], planes[1], planes[2], planes[3], planes[4], planes[5], planes[6], out)


@njit(error_model="numpy", forceinline=True)
def _minimise(
    kind: int,
    res: Response,
    recipe: Recipe,
    tolerance: float,
    p: Any,
    u: Any,
    v: Any,
    x: Any,
    y: Any,
    planes: Any,
    longest: Any,
    low: Any,
    high: Any,
    work: Any,
) -> tuple[int, bool]:
    """Levenberg-Marquardt for one event; ``p`` and the first row of ``work`` (terms) end at the minimum.

    Returns the number of steps and whether the event converged.
    """
    size = p.size
    terms, tried, step, trial, factor = work[0], work[1], work[2], work[3], work[4:8]
    _terms(kind, res, p, u, v, x, y, planes, terms)
    damping = recipe.first_damping
    steps = 0
    for _ in range(int(recipe.max_steps)):
        decrement = _solve(terms, size, damping, factor, step)
        if decrement * (1.0 + damping) < tolerance and damping <= recipe.trusted_damping:
            return steps, True
        if damping >= recipe.max_damping:
            return steps, False
        for i in range(size):
            moved = p[i] + min(max(step[i], -longest[i]), longest[i])
            trial[i] = min(max(moved, low[i]), high[i])
        _terms(kind, res, trial[:size], u, v, x, y, planes, tried)
        steps += 1
        slack = recipe.rounding * abs(terms[0])
        fallen = terms[0] - tried[0] + slack
        ratio = fallen / (0.5 * decrement + slack)
        if fallen >= 0.0:
            terms[:] = tried
            p[:] = trial[:size]
        if ratio > recipe.good_ratio:
            damping = max(damping * recipe.ease, recipe.min_damping)
        elif ratio < recipe.poor_ratio:
            damping *= recipe.stiffen
    return steps, False


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def _start_muon(res: Response, recipe: Recipe, r: Any, signal: Any, area: Any, q: Any) -> None:
    shape, near = f32(res.muon_shape_mean), f32(recipe.muon_start_r_m)
    counted, expected = HALF, f32(1e-6)
    for k in range(r.size):
        far = ONE if r[k] > near else ZERO
        counted += signal[k] * far
        expected += _muon_density(r[k], ZERO, shape) * area[k] * far
    q[0], q[1] = np.log(counted / expected), res.muon_shape_mean


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def _start_age(
    res: Response, age: Any, r: Any, planes: Any, muons: Any, total: Any, shown: Any, correction: Any
) -> tuple[Any, Any]:
    """Return level and half deviance for one age, the level set by the total signal."""
    signal, full, area = planes[0], planes[1], planes[2]
    expected = f32(1e-20)
    for k in range(r.size):
        shown[k] = area[k] * correction[k] * _electron_density(r[k], ZERO, age)
        expected += shown[k]
    factor = total / expected
    strays, wide = f32(res.electron_strays), f32(res.electron_dispersion)
    value = ZERO
    for k in range(r.size):
        mu = shown[k] * factor + area[k] * muons[k] + strays
        residual = signal[k] - mu
        open_end = ZERO if (full[k] > ZERO and residual < ZERO) else ONE
        live = ONE if area[k] > ZERO else ZERO
        value += live * open_end * (signal[k] * vln(max(signal[k], TINY) / mu) - residual) / (wide * correction[k])
    return np.log(factor), value


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def _load(mev: Any, where: Any, cosine: Any, area_m2: Any, deposit: float, limit: float, area: Any, planes: Any) -> int:
    """Fill signal (particles), saturation and projected area of one channel; returns the number of hit stations."""
    to_particles, top = f32(cosine / deposit), f32(limit)
    hits = 0
    for k in range(where.size):
        deposit_mev = mev[where[k]]
        planes[0, k] = deposit_mev * to_particles
        planes[1, k] = ONE if deposit_mev >= top else ZERO
        area[k] = area_m2[k] * cosine
        planes[2, k] = area[k]
        hits += 1 if deposit_mev > ZERO else 0
    return hits


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def _centroid(signal: Any, area: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Return the centroid of density^1.5."""
    total, sum_x, sum_y = ZERO, ZERO, ZERO
    for k in range(x.size):
        density = signal[k] / area[k] if area[k] > ZERO else ZERO
        weight = density * np.sqrt(density) + f32(1e-20)
        total += weight
        sum_x += weight * x[k]
        sum_y += weight * y[k]
    return sum_x / total, sum_y / total


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def _start_electron(
    res: Response, recipe: Recipe, p: Any, q: Any, r: Any, area: Any, planes: Any, scratch: Any
) -> None:
    """Fill level and age of ``p``: the best of three ages at the centroid."""
    far, peak, scale = f32(res.gamma_fraction), f32(res.core_excess), f32(-1.0 / res.core_excess_scale_m)
    muons, shown, correction = scratch[0], scratch[1], scratch[2]
    total = HALF
    for k in range(r.size):
        muons[k] = _muon_density(r[k], f32(q[0]), f32(q[1]))
        correction[k] = far + peak * vexp(r[k] * scale)
        total += planes[0, k]
    best = np.inf
    for age in (recipe.young, recipe.middle, recipe.old):
        level, value = _start_age(res, f32(age), r, planes, muons, total, shown, correction)
        if value < best:
            best, p[2], p[3] = value, level, age


@njit(error_model="numpy", cache=True)
def fit_events(
    electron_mev: Any,
    muon_mev: Any,
    cosine: Any,
    u: Any,
    v: Any,
    everywhere: Any,
    x: Any,
    y: Any,
    area_e: Any,
    where_m: Any,
    x_m: Any,
    y_m: Any,
    area_m: Any,
    res: Response,
    recipe: Recipe,
    raw: Any,
) -> None:
    """Fill ``raw`` (n, 25) float32 with both minima of every event; NaN where an event has too few hits."""
    n_e, n_m = x.size, x_m.size
    planes_e, planes_m = np.empty((5, n_e), np.float32), np.empty((7, n_m), np.float32)
    r_e, r_m = np.empty(n_e, np.float32), np.empty(n_m, np.float32)
    projected_e, projected_m = np.empty(n_e, np.float32), np.empty(n_m, np.float32)
    scratch, work = np.empty((3, n_e), np.float32), np.zeros((8, 15))
    p, q = np.empty(4), np.empty(2)
    far, low_level, high_level = recipe.core_limit_m, recipe.min_level, recipe.max_level
    longest_e = np.array([recipe.longest_core_m, recipe.longest_core_m, recipe.longest_level, recipe.longest_shape])
    low_e, high_e = np.array([-far, -far, low_level, recipe.min_age]), np.array([far, far, high_level, recipe.max_age])
    longest_m = np.array([recipe.longest_level, recipe.longest_shape])
    low_m, high_m = np.array([low_level, recipe.min_muon_shape]), np.array([high_level, recipe.max_muon_shape])
    for n in range(electron_mev.shape[0]):
        hits = _load(
            electron_mev[n],
            everywhere,
            cosine[n],
            area_e,
            res.electron_deposit_mev,
            res.saturation_mev,
            projected_e,
            planes_e,
        )
        if hits < recipe.min_hits:
            raw[n] = np.nan
            continue
        _load(
            muon_mev[n],
            where_m,
            cosine[n],
            area_m,
            res.muon_deposit_mev,
            res.muon_saturation_mev,
            projected_m,
            planes_m,
        )
        p[0], p[1] = _centroid(planes_e[0], projected_e, x, y)
        _radii(f32(p[0]), f32(p[1]), u[n], v[n], x_m, y_m, r_m)
        _start_muon(res, recipe, r_m, planes_m[0], projected_m, q)
        _radii(f32(p[0]), f32(p[1]), u[n], v[n], x, y, r_e)
        _start_electron(res, recipe, p, q, r_e, projected_e, planes_e, scratch)
        steps = muon_steps = 0
        arrived = muon_arrived = False
        for tolerance in (recipe.coarse, recipe.fine):
            _radii(f32(p[0]), f32(p[1]), u[n], v[n], x, y, r_e)
            _freeze_electron(res, p, q, r_e, projected_e, planes_e[2], planes_e[3], planes_e[4])
            more, arrived = _minimise(
                ELECTRON, res, recipe, tolerance, p, u[n], v[n], x, y, planes_e, longest_e, low_e, high_e, work
            )
            steps += more
            raw[n, 4:14] = work[0, 5:15]
            raw[n, 14] = work[0, 0]
            _radii(f32(p[0]), f32(p[1]), u[n], v[n], x_m, y_m, r_m)
            _freeze_muon(res, p, q, r_m, projected_m, planes_m[3], planes_m[4], planes_m[5], planes_m[6])
            more, muon_arrived = _minimise(
                MUON, res, recipe, tolerance, q, u[n], v[n], x_m, y_m, planes_m, longest_m, low_m, high_m, work
            )
            muon_steps += more
            raw[n, 19:22] = work[0, 3:6]
            raw[n, 22] = work[0, 0]
        raw[n, 0:4] = p
        raw[n, 15], raw[n, 16] = steps, arrived
        raw[n, 17:19] = q
        raw[n, 23], raw[n, 24] = muon_steps, muon_arrived


def fit_fused(events: Events) -> RawFit:
    """Fit both lateral distributions of every event; same result as :func:`features.lateral_fit.fit_reference`."""
    here = stations(events.xp)
    muon_cells = np.flatnonzero(here.has_muon)
    raw = np.empty((len(events), RawFit.N_COLUMNS), np.float32)
    fit_events(
        events.electron_mev, events.muon_mev, events.cos_zenith, *events.direction,
        np.arange(here.x_m.size), here.x_m, here.y_m, here.electron_area_m2,
        muon_cells, here.x_m[muon_cells], here.y_m[muon_cells], here.muon_area_m2[muon_cells],
        events.response, RECIPE, raw,
    )  # fmt: skip
    return RawFit.from_columns([raw[:, k] for k in range(RawFit.N_COLUMNS)])
