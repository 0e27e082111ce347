"""The station model in compiled loops over the stations of one event, and the minimisation of its fit.

The formulas are those of :mod:`showerstack.features.lateral.station`, the steps of the fit those of
:mod:`showerstack.features.lateral.fit`. Loops are written so that LLVM vectorises them: straight-line code in float32,
short, because one long chain of root, logarithm, exponential and division keeps the processor waiting for itself; and
all planes of an event in one record (:mod:`showerstack.features.lateral.planes`), because their places in it are
constants of the compiler: no call then tests whether two planes overlap.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from showerstack.features.lateral import native, station
from showerstack.features.lateral.native import f32, float_of_half, full_vectors, vexp2
from showerstack.features.lateral.recipe import Recipe
from showerstack.runtime.kernels import FAST, kernel
from showerstack.showers.response import StationResponse

MODEL = native.compiled()
squared_distance, electron_logs, muon_logs = MODEL.squared_distance, MODEL.electron_logs, MODEL.muon_logs
muon_density = MODEL.muon_density
energy_correction, core_excess = MODEL.energy_correction, MODEL.core_excess
muon_expected, over_punch = MODEL.muon_expected, MODEL.over_punch
punch_uncertainty, empty = MODEL.punch_uncertainty, MODEL.empty
electron_expected, half_deviance, signal_terms = MODEL.electron_expected, MODEL.half_deviance, MODEL.signal_terms
_electron_frozen, _electron_signal, muon_signal = MODEL.electron_frozen, MODEL.electron_signal, MODEL.muon_signal
_electron_slope, _electron_curvature, _muon_frozen = MODEL.electron_slope, MODEL.electron_curvature, MODEL.muon_frozen
_electron_prior, _muon_prior, muon_age_mean = MODEL.electron_prior, MODEL.muon_prior, MODEL.muon_age_mean
ZERO, ONE, HALF, TINY = f32(0.0), f32(1.0), f32(0.5), f32(station.TINY)
NOTHING = f32(1e-6)
LOG2_E, NO_FLOOR = f32(station.LOG2_E), f32(-np.inf)


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def load(mev: Any, cosine: Any, deposit: float, limit: float, z: Any) -> Any:
    """Fill signal, floor and projected area of the e/gamma channel; returns the number of hit stations."""
    full_vectors()
    signal, floor, area, area_m2 = z.signal, z.floor, z.area, z.area_m2
    to_particles, top = f32(cosine / deposit), f32(limit)
    hits = ZERO
    for k in range(mev.size):
        deposit_mev = mev[k]
        signal[k] = min(deposit_mev, top) * to_particles
        floor[k] = ZERO if deposit_mev >= top else NO_FLOOR
        area[k] = area_m2[k] * cosine
        hits += ONE if deposit_mev > ZERO else ZERO
    return hits


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def load_muons(mev: Any, muon_cells: Any, cosine: Any, deposit: float, limit: float, z: Any) -> None:
    """Fill signal, floor and projected area of the muon channel, whose detectors stand in the cells ``muon_cells``."""
    full_vectors()
    signal, floor, area, area_m2 = z.m_signal, z.m_floor, z.m_area, z.m_area_m2
    to_particles, top = f32(cosine / deposit), f32(limit)
    for k in range(muon_cells.size):
        signal[k] = mev[muon_cells[k]]
    for k in range(signal.size):
        deposit_mev = signal[k]
        signal[k] = min(deposit_mev, top) * to_particles
        floor[k] = ZERO if deposit_mev >= top else NO_FLOOR
        area[k] = area_m2[k] * cosine


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def freeze_electron(res: StationResponse, u: Any, v: Any, z: Any) -> None:
    """Freeze the e/gamma channel at (p, q) and fill the expectation there with its derivatives."""
    full_vectors()
    x, y, area, kept, background, weight = z.x, z.y, z.area, z.kept, z.background, z.weight
    expected, by_x, by_y, g, r, excess = z.expected, z.by_x, z.by_y, z.g, z.residual, z.info
    core_x, core_y, level, age = f32(z.p[0]), f32(z.p[1]), f32(z.p[2]), f32(z.p[3])
    muon_level, muon_age = f32(z.q[0]), f32(z.q[1])
    for k in range(x.size):
        q = squared_distance(res, x[k] - core_x, y[k] - core_y, u, v)
        r[k] = np.sqrt(q)
        g[k], expected[k] = electron_logs(q, r[k], level, age)
        _, background[k] = muon_logs(q, r[k], muon_level, muon_age)
    for k in range(x.size):
        electrons = vexp2(expected[k])
        kept[k], background[k], weight[k] = _electron_frozen(res, area[k], r[k], electrons, vexp2(background[k]))
        excess[k] = core_excess(res, r[k])
        expected[k] = kept[k] * electrons * (f32(res.gamma_fraction) + excess[k])
    for k in range(x.size):
        by_x[k], by_y[k] = _electron_slope(res, x[k] - core_x, y[k] - core_y, u, v, r[k], excess[k], age)


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def expect_electrons(res: StationResponse, p: Any, u: Any, v: Any, z: Any) -> None:
    """Fill the expectation of the e/gamma channel at p and its derivatives."""
    full_vectors()
    x, y, kept, expected, by_x, by_y, g = z.x, z.y, z.kept, z.expected, z.by_x, z.by_y, z.g
    core_x, core_y, level, age = f32(p[0]), f32(p[1]), f32(p[2]), f32(p[3])
    for k in range(x.size):
        expected[k], by_x[k], by_y[k], g[k] = _electron_signal(
            res, x[k] - core_x, y[k] - core_y, u, v, kept[k], level, age
        )


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def compare_electrons(z: Any) -> Any:
    """Fill residuals and information of the e/gamma channel; returns half the deviance."""
    full_vectors()
    signal, floor, expected, background, weight = z.signal, z.floor, z.expected, z.background, z.weight
    residual, info = z.residual, z.info
    value = ZERO
    for k in range(signal.size):
        half, residual[k], info[k] = signal_terms(signal[k], floor[k], expected[k], background[k], weight[k])
        value += half
    return value


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def electron_terms(res: StationResponse, p: Any, z: Any, out: Any) -> None:
    """Fill ``out`` with F, 4 components of its gradient and 10 of Fisher's matrix, at p, where the planes are."""
    full_vectors()
    value = compare_electrons(z)
    residual, info, by_x, by_y, g = z.residual, z.info, z.by_x, z.by_y, z.g
    g0 = g1 = g2 = g3 = ZERO
    h00 = h10 = h11 = h20 = h21 = h22 = h30 = h31 = h32 = h33 = ZERO
    for k in range(residual.size):
        g0 += residual[k] * by_x[k]
        g1 += residual[k] * by_y[k]
        g2 += residual[k]
        g3 += residual[k] * g[k]
        ix, iy, ig = info[k] * by_x[k], info[k] * by_y[k], info[k] * g[k]
        h00 += ix * by_x[k]
        h10 += iy * by_x[k]
        h11 += iy * by_y[k]
        h20 += ix
        h21 += iy
        h22 += info[k]
        h30 += ix * g[k]
        h31 += iy * g[k]
        h32 += ig
        h33 += ig * g[k]
    prior, by_age, core, precision = _electron_prior(res, p[0], p[1], p[2], p[3])
    out[0] = value + prior
    out[1], out[2], out[3], out[4] = core * p[0] - g0, core * p[1] - g1, -0.5 - g2, by_age - g3
    out[5], out[6], out[7], out[8], out[9], out[10] = h00 + core, h10, h11 + core, h20, h21, h22
    out[11], out[12], out[13], out[14] = h30, h31, h32, h33 + precision


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def electron_hessian(res: StationResponse, p: Any, u: Any, v: Any, z: Any, out: Any) -> None:
    """Fill the Hessian, ``out[15:25]``, from Fisher's matrix, ``out[5:15]``, and the residuals at p."""
    full_vectors()
    x, y, residual = z.x, z.y, z.residual
    core_x, core_y, age = f32(p[0]), f32(p[1]), f32(p[3])
    c00 = c10 = c11 = c30 = c31 = ZERO
    for k in range(x.size):
        c_xx, c_xy, c_yy, c_xs, c_ys = _electron_curvature(res, x[k] - core_x, y[k] - core_y, u, v, age, residual[k])
        c00 += c_xx
        c10 += c_xy
        c11 += c_yy
        c30 += c_xs
        c31 += c_ys
    for i in range(10):
        out[15 + i] = out[5 + i]
    out[15] -= c00
    out[16] -= c10
    out[17] -= c11
    out[21] -= c30
    out[22] -= c31


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def freeze_muon(res: StationResponse, u: Any, v: Any, z: Any) -> None:
    """Freeze the muon channel at (p, q) and fill the expectation there."""
    full_vectors()
    x, y, area, background, weight = z.m_x, z.m_y, z.m_area, z.m_background, z.m_weight
    expected, g, base, r = z.m_expected, z.m_g, z.m_base, z.m_residual
    core_x, core_y, level, age = f32(z.p[0]), f32(z.p[1]), f32(z.p[2]), f32(z.p[3])
    muon_level, muon_age = f32(z.q[0]), f32(z.q[1])
    for k in range(x.size):
        q = squared_distance(res, x[k] - core_x, y[k] - core_y, u, v)
        r[k] = np.sqrt(q)
        _, background[k] = electron_logs(q, r[k], level, age)
        g[k], base[k] = muon_logs(q, r[k], ZERO, ZERO)
    for k in range(x.size):
        muons = vexp2(LOG2_E * (muon_level + muon_age * g[k]) + base[k])
        background[k], weight[k] = _muon_frozen(res, area[k], r[k], vexp2(background[k]), muons)
        expected[k] = area[k] * muons


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def expect_muons(q: Any, z: Any) -> None:
    """Fill the expectation of the muon channel at q."""
    full_vectors()
    area, g, base, expected = z.m_area, z.m_g, z.m_base, z.m_expected
    level, muon_age = f32(q[0]), f32(q[1])
    for k in range(area.size):
        expected[k] = muon_signal(area[k], g[k], base[k], level, muon_age)


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def muon_terms(res: StationResponse, q: Any, mean_age: Any, z: Any, out: Any) -> None:
    """Fill ``out`` with F, 2 components of its gradient and 3 of Fisher's matrix, at q, where the planes are."""
    full_vectors()
    signal, floor, expected, background, weight = z.m_signal, z.m_floor, z.m_expected, z.m_background, z.m_weight
    residual, info, g = z.m_residual, z.m_info, z.m_g
    value = g0 = g1 = h00 = h10 = h11 = ZERO
    for k in range(signal.size):
        half, residual[k], info[k] = signal_terms(signal[k], floor[k], expected[k], background[k], weight[k])
        value += half
    for k in range(signal.size):
        g0 += residual[k]
        g1 += residual[k] * g[k]
        h00 += info[k]
        h10 += info[k] * g[k]
        h11 += info[k] * g[k] * g[k]
    prior, by_age, precision = _muon_prior(res, q[0], q[1], mean_age)
    out[0] = value + prior
    out[1], out[2] = -0.5 - g0, by_age - g1
    out[3], out[4], out[5] = h00, h10, h11 + precision


ELECTRON, MUON = 0, 1


@njit(error_model="numpy", forceinline=True)
def _factorise(terms: Any, first: int, size: int, damping: float, least: float, factor: Any) -> bool:
    """Factorise H + damping diag I as L D L^T; returns whether no pivot is below ``least`` of Fisher's diagonal I.

    H is the triangle ``terms[first:]``. ``factor`` (size x size) holds 1/D on its diagonal, L below and D L^T above it.
    """
    fine = True
    for j in range(size):
        unit = terms[1 + size + j * (j + 3) // 2]
        pivot = terms[first + j * (j + 3) // 2] + damping * unit
        for k in range(j):
            pivot -= factor[j * size + k] * factor[k * size + j]
        fine = fine and pivot >= least * unit
        per_pivot = 1.0 / max(pivot, unit * 1e-6 + 1e-30)
        factor[j * size + j] = per_pivot
        for i in range(j + 1, size):
            total = terms[first + i * (i + 1) // 2 + j]
            for k in range(j):
                total -= factor[i * size + k] * factor[k * size + j]
            factor[j * size + i] = total
            factor[i * size + j] = total * per_pivot
    return fine


@njit(error_model="numpy", forceinline=True)
def _solve(terms: Any, size: int, factor: Any, step: Any) -> float:
    """Solve L D L^T step = -g; returns the decrement -g step."""
    for i in range(size):
        total = -terms[1 + i]
        for k in range(i):
            total -= factor[i * size + k] * step[k]
        step[i] = total
    for back in range(size):
        i = size - 1 - back
        total = step[i] * factor[i * size + i]
        for k in range(i + 1, size):
            total -= factor[k * size + i] * step[k]
        step[i] = total
    decrement = 0.0
    for i in range(size):
        decrement -= terms[1 + i] * step[i]
    return decrement


@njit(error_model="numpy", forceinline=True)
def minimise(
    kind: int,
    size: int,
    res: StationResponse,
    recipe: Recipe,
    tolerance: float,
    p: Any,
    mean_age: Any,
    u: Any,
    v: Any,
    step_limit: Any,
    low: Any,
    high: Any,
    z: Any,
) -> tuple[int, bool]:
    """Levenberg-Marquardt for one event, whose planes are those at ``p``; ``p`` and ``z.terms`` end at the minimum.

    Returns the number of steps and whether the event converged.
    """
    terms, tried, step, trial, factor = z.terms, z.tried, z.step, z.trial, z.factor
    for i in range(size):
        trial[i] = p[i]
    damping, decrement, steps, hessian_known = recipe.first_damping, 0.0, 0, False
    while True:
        if kind == ELECTRON:
            electron_terms(res, trial, z, tried)
        else:
            muon_terms(res, trial, mean_age, z, tried)
        slack = recipe.rounding * abs(terms[0])
        fallen = terms[0] - tried[0] + slack
        ratio = fallen / (0.5 * decrement + slack)
        accepted = steps == 0 or fallen >= 0.0
        if accepted:
            for i in range(1 + size + size * (size + 1) // 2):
                terms[i] = tried[i]
            for i in range(size):
                p[i] = trial[i]
            hessian_known = False
        if steps > 0 and ratio > recipe.good_ratio:
            damping = max(damping * recipe.ease, recipe.min_damping)
        elif steps > 0 and ratio < recipe.poor_ratio:
            damping *= recipe.stiffen
        curved = kind == ELECTRON and damping > recipe.first_damping
        if curved and not hessian_known:
            if not accepted:
                expect_electrons(res, p, u, v, z)
                compare_electrons(z)
            electron_hessian(res, p, u, v, z, terms)
            hessian_known = True
        if not (curved and _factorise(terms, 15, size, damping, recipe.least_pivot, factor)):
            _factorise(terms, 1 + size, size, damping, 0.0, factor)
        decrement = _solve(terms, size, factor, step)
        if decrement * (1.0 + damping) < tolerance and damping <= recipe.trusted_damping:
            return steps, True
        if damping >= recipe.max_damping or steps >= recipe.max_steps:
            return steps, False
        for i in range(size):
            moved = p[i] + min(max(step[i], -step_limit[i]), step_limit[i])
            trial[i] = min(max(moved, low[i]), high[i])
        if kind == ELECTRON:
            expect_electrons(res, trial, u, v, z)
        else:
            expect_muons(trial, z)
        steps += 1


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def centroid(z: Any) -> tuple[Any, Any]:
    """Return the centroid of density^1.5."""
    full_vectors()
    x, y, signal, area = z.x, z.y, z.signal, z.area
    total, sum_x, sum_y = ZERO, ZERO, ZERO
    for k in range(x.size):
        density = signal[k] / area[k] if area[k] > ZERO else ZERO
        weight = density * np.sqrt(density) + f32(1e-20)
        total += weight
        sum_x += weight * x[k]
        sum_y += weight * y[k]
    return sum_x / total, sum_y / total


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def start_muon(res: StationResponse, recipe: Recipe, u: Any, v: Any, cosine: Any, z: Any) -> None:
    """Fill level and muon age of ``q``: by the counts far from the axis, at the prior's mean muon age."""
    full_vectors()
    x, y, signal, area = z.m_x, z.m_y, z.m_signal, z.m_area
    core_x, core_y = f32(z.p[0]), f32(z.p[1])
    muon_age, near = f32(res.muon_age_mean), f32(recipe.muon_start_r_m)
    counted, expected = HALF, NOTHING
    for k in range(x.size):
        r = np.sqrt(squared_distance(res, x[k] - core_x, y[k] - core_y, u, v))
        far = ONE if r > near else ZERO
        counted += signal[k] * far
        expected += muon_density(r, ZERO, muon_age) * area[k] * far
    if expected <= NOTHING:  # no detector stands so far away
        for k in range(x.size):
            r = np.sqrt(squared_distance(res, x[k] - core_x, y[k] - core_y, u, v))
            counted += signal[k]
            expected += muon_density(r, ZERO, muon_age) * area[k]
    z.q[0] = np.log(counted / expected)
    z.q[1] = muon_age_mean(res, z.q[0], cosine)


@njit(error_model="numpy", forceinline=True)
def no_muons(res: StationResponse, recipe: Recipe, z: Any, raw: Any) -> None:
    """Fill ``q`` and the muons' part of a record where there are no muon detectors: as good as no muons, no error."""
    z.q[0], z.q[1] = recipe.min_level, res.muon_age_mean
    raw.muon_converged = ONE
    raw.muon_value = ZERO
    raw.muon_fisher[0] = raw.muon_fisher[2] = ONE
    raw.muon_fisher[1] = ZERO


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def start_electron(res: StationResponse, recipe: Recipe, u: Any, v: Any, z: Any) -> None:
    """Fill level and age of ``p``: the best of three ages at the centroid, the level set by the total signal."""
    full_vectors()
    x, y, signal, floor, area = z.x, z.y, z.signal, z.floor, z.area
    background, weight, ratio = z.background, z.weight, z.g
    low, middle, high = z.expected, z.by_x, z.by_y
    core_x, core_y, muon_level, muon_age = f32(z.p[0]), f32(z.p[1]), f32(z.q[0]), f32(z.q[1])
    first, age_step = f32(recipe.first_start_age), f32(recipe.start_age_step)
    strays, wide = f32(res.electron_strays), f32(res.electron_dispersion)
    r, to_step, known = z.residual, age_step * LOG2_E, ZERO
    for k in range(x.size):
        q = squared_distance(res, x[k] - core_x, y[k] - core_y, u, v)
        r[k] = np.sqrt(q)
        known += signal[k] if floor[k] < ZERO else ZERO
        g, low[k] = electron_logs(q, r[k], ZERO, first)
        ratio[k] = to_step * g
        _, background[k] = muon_logs(q, r[k], muon_level, muon_age)
    of_limit = f32(recipe.start_limit) if known > ZERO else ONE
    total, of_low, of_middle, of_high = HALF, f32(1e-20), f32(1e-20), f32(1e-20)
    for k in range(x.size):
        background[k] = area[k] * vexp2(background[k]) + strays
        correction = energy_correction(res, r[k])
        weight[k] = (ONE if area[k] > ZERO else ZERO) / (wide * correction)
        step = vexp2(ratio[k])
        low[k] = area[k] * correction * vexp2(low[k])
        middle[k] = low[k] * step
        high[k] = middle[k] * step
        counts = ONE if floor[k] < ZERO else of_limit
        total += signal[k] * counts
        of_low += low[k] * counts
        of_middle += middle[k] * counts
        of_high += high[k] * counts
    of_low, of_middle, of_high = total / of_low, total / of_middle, total / of_high
    value_low = value_middle = value_high = ZERO
    for k in range(x.size):
        half, _ = half_deviance(signal[k], low[k] * of_low + background[k], floor[k], weight[k])
        value_low += half
    for k in range(x.size):
        half, _ = half_deviance(signal[k], middle[k] * of_middle + background[k], floor[k], weight[k])
        value_middle += half
    for k in range(x.size):
        half, _ = half_deviance(signal[k], high[k] * of_high + background[k], floor[k], weight[k])
        value_high += half
    best, factor, age = value_low, of_low, first
    if value_middle < best:
        best, factor, age = value_middle, of_middle, first + age_step
    if value_high < best:
        factor, age = of_high, first + age_step + age_step
    z.p[2], z.p[3] = np.log(factor), age


@kernel(nogil=True, error_model="numpy")
def split(bits: Any, has_electron: Any, has_muon: Any, electron_mev: Any, muon_mev: Any) -> None:
    """Fill both planes from the bits of float16 cells, (n, cells, 2) uint16, in one pass."""
    full_vectors()
    for n in range(bits.shape[0]):
        for k in range(has_electron.size):
            electron_mev[n, k] = float_of_half(bits[n, k, 0]) * has_electron[k]
            muon_mev[n, k] = float_of_half(bits[n, k, 1]) * has_muon[k]


@kernel(nogil=True, error_model="numpy")
def fit_events(
    electron_mev: Any,
    muon_mev: Any,
    cosine: Any,
    u: Any,
    v: Any,
    muon_cells: Any,
    planes: Any,
    res: StationResponse,
    recipe: Recipe,
    limits: Any,
    out: Any,
) -> None:
    """Fill the records ``out`` (n,) with both minima of every event that has enough hits."""
    full_vectors()
    z = planes[0]
    step_limit_e, low_e, high_e, step_limit_m, low_m, high_m = limits
    for n in range(electron_mev.shape[0]):
        hits = load(electron_mev[n], cosine[n], res.electron_deposit_mev, res.saturation_mev, z)
        if hits < recipe.min_hits:
            continue
        raw = out[n]
        z.p[0], z.p[1] = centroid(z)
        if muon_cells.size:
            load_muons(muon_mev[n], muon_cells, cosine[n], res.muon_deposit_mev, res.muon_saturation_mev, z)
            start_muon(res, recipe, u[n], v[n], cosine[n], z)
        else:
            no_muons(res, recipe, z, raw)
        mean_age = f32(z.q[1])
        start_electron(res, recipe, u[n], v[n], z)
        raw.electron_steps = raw.muon_steps = ZERO
        for tolerance in (recipe.coarse, recipe.fine):
            freeze_electron(res, u[n], v[n], z)
            steps, converged = minimise(
                ELECTRON, 4, res, recipe, tolerance, z.p, mean_age, u[n], v[n], step_limit_e, low_e, high_e, z
            )
            raw.electron_steps += steps
            raw.electron_converged = ONE if converged else ZERO
            raw.electron_value = z.terms[0]
            for i in range(10):
                raw.electron_fisher[i] = z.terms[5 + i]
            if not muon_cells.size:
                continue
            freeze_muon(res, u[n], v[n], z)
            steps, converged = minimise(
                MUON, 2, res, recipe, tolerance, z.q, mean_age, u[n], v[n], step_limit_m, low_m, high_m, z
            )
            raw.muon_steps += steps
            raw.muon_converged = ONE if converged else ZERO
            raw.muon_value = z.terms[0]
            for i in range(3):
                raw.muon_fisher[i] = z.terms[3 + i]
        for i in range(4):
            raw.electron[i] = z.p[i]
        for i in range(2):
            raw.muon[i] = z.q[i]
