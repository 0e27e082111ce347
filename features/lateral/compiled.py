"""The station model in compiled loops over the stations of one event.

The formulas are those of :mod:`features.lateral.station`. Loops are written so that LLVM vectorises them: straight-line
code, few arrays that might overlap, float32 throughout.

Start and minimisation of one event's compiled fit; the steps are told in :mod:`features.lateral.fit`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from features.lateral import station, translate
from features.lateral.response import Recipe, StationResponse
from features.lateral.translate import FAST, f32, full_vectors, vexp

MODEL = translate.compiled()
distance, electron_age_terms, muon_age_terms = MODEL.distance, MODEL.electron_age_terms, MODEL.muon_age_terms
electron_density, muon_density = MODEL.electron_density, MODEL.muon_density
energy_correction, punch_through = MODEL.energy_correction, MODEL.punch_through
electron_expected = MODEL.electron_expected
half_deviance, muon_age_mean = MODEL.half_deviance, MODEL.muon_age_mean
_electron_frozen, _muon_frozen = MODEL.electron_frozen, MODEL.muon_frozen
_electron_terms, _muon_terms = MODEL.electron_terms, MODEL.muon_terms
_electron_prior, _muon_prior = MODEL.electron_prior, MODEL.muon_prior
ZERO, ONE, HALF, TINY = f32(0.0), f32(1.0), f32(0.5), f32(station.TINY)


class StationPositions(NamedTuple):
    """Detectors of one channel: where in the event's plane, position and area; all (n,)."""

    where: Any
    x: Any
    y: Any
    area_m2: Any


class Electrons(NamedTuple):
    """The e/gamma channel of one event, (n,) float32 each; see :mod:`features.lateral.station`."""

    signal: Any
    full: Any
    """1 where saturated."""
    projected: Any
    """Projected area."""
    kept: Any
    """Projected area times the share of the deposit above the threshold."""
    background: Any
    weight: Any


class Muons(NamedTuple):
    """The muon channel of one event, (n,) float32 each."""

    signal: Any
    full: Any
    projected: Any
    background: Any
    weight: Any
    g: Any
    """Derivative of ln(density) by the muon age."""
    base: Any
    """ln(density) at level and muon age 0."""


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def radii(core_x: Any, core_y: Any, u: Any, v: Any, x: Any, y: Any, r: Any) -> None:
    full_vectors()
    for k in range(x.size):
        r[k] = distance(x[k] - core_x, y[k] - core_y, u, v)


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def freeze_electron(res: StationResponse, p: Any, q: Any, r: Any, e: Electrons) -> None:
    full_vectors()
    area, kept, background, weight = e.projected, e.kept, e.background, e.weight
    level, age, muon_level, muon_age = f32(p[2]), f32(p[3]), f32(q[0]), f32(q[1])
    # Two loops, because LLVM vectorises a loop only with few pairs of arrays that might overlap.
    for k in range(r.size):
        kept[k] = electron_density(r[k], level, age)
        background[k] = muon_density(r[k], muon_level, muon_age)
    for k in range(r.size):
        kept[k], background[k], weight[k] = _electron_frozen(res, area[k], r[k], kept[k], background[k])


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def freeze_muon(res: StationResponse, p: Any, q: Any, r: Any, m: Muons) -> None:
    full_vectors()
    area, background, weight, g, base = m.projected, m.background, m.weight, m.g, m.base
    level, age, muon_level, muon_age = f32(p[2]), f32(p[3]), f32(q[0]), f32(q[1])
    for k in range(r.size):
        g[k], base[k] = muon_age_terms(r[k])
    for k in range(r.size):
        background[k] = electron_density(r[k], level, age)
        weight[k] = vexp(muon_level + muon_age * g[k] + base[k])
    for k in range(r.size):
        background[k], weight[k] = _muon_frozen(res, area[k], r[k], background[k], weight[k])


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def electron_terms(
    res: StationResponse, p: Any, u: Any, v: Any, places: StationPositions, e: Electrons, out: Any
) -> None:
    """Fill ``out`` with F, 4 components of its gradient and 10 of Fisher's matrix."""
    full_vectors()
    x, y, signal, full, kept, background, weight = places.x, places.y, e.signal, e.full, e.kept, e.background, e.weight
    core_x, core_y, level, age = f32(p[0]), f32(p[1]), f32(p[2]), f32(p[3])
    value = g0 = g1 = g2 = g3 = ZERO
    h00 = h10 = h11 = h20 = h21 = h22 = h30 = h31 = h32 = h33 = ZERO
    for k in range(x.size):
        half, pull, info, by_x, by_y, g, _, _, _, _, _ = _electron_terms(
            res, x[k] - core_x, y[k] - core_y, u, v, signal[k], full[k], kept[k], background[k], weight[k], level, age
        )
        value += half
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
    prior, by_age, core, precision = _electron_prior(res, p[0], p[1], p[2], p[3])
    out[0] = value + prior
    out[1], out[2], out[3], out[4] = core * p[0] - g0, core * p[1] - g1, -0.5 - g2, by_age - g3
    out[5], out[6], out[7], out[8], out[9], out[10] = h00 + core, h10, h11 + core, h20, h21, h22
    out[11], out[12], out[13], out[14] = h30, h31, h32, h33 + precision


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def electron_hessian(
    res: StationResponse, p: Any, u: Any, v: Any, places: StationPositions, e: Electrons, out: Any
) -> None:
    """Fill the Hessian, ``out[15:25]``, from Fisher's matrix, ``out[5:15]``: as few steps need it."""
    full_vectors()
    x, y, signal, full, kept, background, weight = places.x, places.y, e.signal, e.full, e.kept, e.background, e.weight
    core_x, core_y, level, age = f32(p[0]), f32(p[1]), f32(p[2]), f32(p[3])
    c00 = c10 = c11 = c30 = c31 = ZERO
    for k in range(x.size):
        _, _, _, _, _, _, c_xx, c_xy, c_yy, c_xs, c_ys = _electron_terms(
            res, x[k] - core_x, y[k] - core_y, u, v, signal[k], full[k], kept[k], background[k], weight[k], level, age
        )
        c00 += c_xx
        c10 += c_xy
        c11 += c_yy
        c30 += c_xs
        c31 += c_ys
    out[15:25] = out[5:15]
    out[15] -= c00
    out[16] -= c10
    out[17] -= c11
    out[21] -= c30
    out[22] -= c31


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def muon_terms(res: StationResponse, q: Any, mean_age: Any, m: Muons, out: Any) -> None:
    """Fill ``out`` with F, 2 components of its gradient and 3 of the Fisher matrix."""
    full_vectors()
    signal, full, area, background, weight, g, base = m.signal, m.full, m.projected, m.background, m.weight, m.g, m.base
    level, muon_age = f32(q[0]), f32(q[1])
    value = g0 = g1 = h00 = h10 = h11 = ZERO
    for k in range(signal.size):
        half, pull, info = _muon_terms(
            signal[k], full[k], area[k], background[k], weight[k], g[k], base[k], level, muon_age
        )
        value += half
        g0 += pull
        g1 += pull * g[k]
        h00 += info
        h10 += info * g[k]
        h11 += info * g[k] * g[k]
    prior, by_age, precision = _muon_prior(res, q[0], q[1], mean_age)
    out[0] = value + prior
    out[1], out[2] = -0.5 - g0, by_age - g1
    out[3], out[4], out[5] = h00, h10, h11 + precision


@njit(error_model="numpy", forceinline=True)
def _factorise(terms: Any, matrix: Any, size: int, damping: float, least: float, factor: Any) -> bool:
    """Factorise H + damping diag I by Cholesky; returns whether no pivot is below ``least`` of Fisher's diagonal I."""
    fine = True
    for i in range(size):
        unit = terms[1 + size + i * (i + 3) // 2]
        for j in range(i + 1):
            total = matrix[i * (i + 1) // 2 + j]
            if i == j:
                total += damping * unit
            for k in range(j):
                total -= factor[i, k] * factor[j, k]
            if i == j:
                fine = fine and total >= least * unit
                factor[i, i] = np.sqrt(max(total, unit * 1e-6 + 1e-30))
            else:
                factor[i, j] = total / factor[j, j]
    return fine


@njit(error_model="numpy", forceinline=True)
def _solve(terms: Any, size: int, factor: Any, step: Any) -> float:
    """Solve L L^T step = -g; returns the decrement -g step."""
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


class Event(NamedTuple):
    """What both minimisations of one event look at."""

    u: Any
    v: Any
    """Horizontal part of the axis' unit vector."""
    places: StationPositions
    electrons: Electrons
    muons: Muons


@njit(error_model="numpy", forceinline=True)
def evaluate(kind: int, res: StationResponse, p: Any, mean_age: Any, event: Event, out: Any) -> None:
    if kind == ELECTRON:
        electron_terms(res, p, event.u, event.v, event.places, event.electrons, out)
    else:
        muon_terms(res, p, mean_age, event.muons, out)


@njit(error_model="numpy", forceinline=True)
def minimise(
    kind: int,
    res: StationResponse,
    recipe: Recipe,
    tolerance: float,
    p: Any,
    mean_age: Any,
    event: Event,
    step_limit: Any,
    low: Any,
    high: Any,
    work: Any,
) -> tuple[int, bool]:
    """Levenberg-Marquardt for one event; ``p`` and the first row of ``work`` (terms) end at the minimum.

    Returns the number of steps and whether the event converged.
    """
    size = p.size
    terms, tried, step, trial, factor = work[0], work[1], work[2], work[3], work[4:8]
    trial[:size] = p
    damping, decrement, steps, hessian_known = recipe.first_damping, 0.0, 0, False
    while True:
        # One place of evaluation, because all of it is inlined here.
        evaluate(kind, res, trial[:size], mean_age, event, tried)
        slack = recipe.rounding * abs(terms[0])
        fallen = terms[0] - tried[0] + slack
        ratio = fallen / (0.5 * decrement + slack)
        if steps == 0 or fallen >= 0.0:
            terms[:] = tried
            p[:] = trial[:size]
            hessian_known = False
        if steps > 0 and ratio > recipe.good_ratio:
            damping = max(damping * recipe.ease, recipe.min_damping)
        elif steps > 0 and ratio < recipe.poor_ratio:
            damping *= recipe.stiffen
        curved = kind == ELECTRON and damping > recipe.first_damping
        if curved and not hessian_known:
            electron_hessian(res, p, event.u, event.v, event.places, event.electrons, terms)
            hessian_known = True
        if not (curved and _factorise(terms, terms[15:25], size, damping, recipe.least_pivot, factor)):
            _factorise(terms, terms[1 + size : 15], size, damping, 0.0, factor)
        decrement = _solve(terms, size, factor, step)
        if decrement * (1.0 + damping) < tolerance and damping <= recipe.trusted_damping:
            return steps, True
        if damping >= recipe.max_damping or steps >= recipe.max_steps:
            return steps, False
        for i in range(size):
            moved = p[i] + min(max(step[i], -step_limit[i]), step_limit[i])
            trial[i] = min(max(moved, low[i]), high[i])
        steps += 1


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def start_muon(res: StationResponse, recipe: Recipe, r: Any, cosine: Any, m: Muons, q: Any) -> None:
    """Fill level and muon age of ``q``: by the counts far from the axis, at the prior's mean muon age."""
    full_vectors()
    signal, area = m.signal, m.projected
    muon_age, near = f32(res.muon_age_mean), f32(recipe.muon_start_r_m)
    counted, expected = HALF, f32(1e-6)
    for k in range(r.size):
        far = ONE if r[k] > near else ZERO
        counted += signal[k] * far
        expected += muon_density(r[k], ZERO, muon_age) * area[k] * far
    q[0] = np.log(counted / expected)
    q[1] = muon_age_mean(res, q[0], cosine)


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def _start_age(
    res: StationResponse,
    age: Any,
    e: Electrons,
    total: Any,
    shown: Any,
    correction: Any,
    background: Any,
    g: Any,
    base: Any,
) -> tuple[Any, Any]:
    """Return level and half deviance for one age, the level set by the total signal."""
    full_vectors()
    signal, full, area = e.signal, e.full, e.projected
    expected = f32(1e-20)
    for k in range(g.size):
        shown[k] = area[k] * correction[k] * vexp(age * g[k] + base[k])
        expected += shown[k]
    factor = total / expected
    wide = f32(res.electron_dispersion)
    value = ZERO
    for k in range(g.size):
        live = ONE if area[k] > ZERO else ZERO
        half, _ = half_deviance(signal[k], shown[k] * factor + background[k], full[k], live / (wide * correction[k]))
        value += half
    return np.log(factor), value


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def centroid(places: StationPositions, e: Electrons) -> tuple[Any, Any]:
    """Return the centroid of density^1.5."""
    full_vectors()
    x, y, signal, area = places.x, places.y, e.signal, e.projected
    total, sum_x, sum_y = ZERO, ZERO, ZERO
    for k in range(x.size):
        density = signal[k] / area[k] if area[k] > ZERO else ZERO
        weight = density * np.sqrt(density) + f32(1e-20)
        total += weight
        sum_x += weight * x[k]
        sum_y += weight * y[k]
    return sum_x / total, sum_y / total


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def start_electron(res: StationResponse, recipe: Recipe, p: Any, q: Any, r: Any, e: Electrons, scratch: Any) -> None:
    """Fill level and age of ``p``: the best of three ages at the centroid."""
    full_vectors()
    area, signal = e.projected, e.signal
    background, shown, correction, g, base = scratch[0], scratch[1], scratch[2], scratch[3], scratch[4]
    strays, total = f32(res.electron_strays), HALF
    for k in range(r.size):
        background[k] = area[k] * muon_density(r[k], f32(q[0]), f32(q[1])) + strays
        correction[k] = energy_correction(res, r[k])
        total += signal[k]
    for k in range(r.size):
        g[k], base[k] = electron_age_terms(r[k])
    best = np.inf
    for age in (recipe.low_start_age, recipe.middle_start_age, recipe.high_start_age):
        level, value = _start_age(res, f32(age), e, total, shown, correction, background, g, base)
        if value < best:
            best, p[2], p[3] = value, level, age
