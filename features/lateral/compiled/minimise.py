"""Start and minimisation of one event's compiled fit; the steps are told in :mod:`features.lateral.fit`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from features.lateral.compiled.cpu_model import (
    HALF,
    ONE,
    ZERO,
    Electrons,
    Muons,
    Places,
    electron_age_terms,
    electron_hessian,
    electron_terms,
    energy_correction,
    half_deviance,
    muon_age_mean,
    muon_density,
    muon_terms,
)
from features.lateral.constants import StationResponse
from features.lateral.options import Recipe
from features.lateral.vector_math import FAST, f32, full_vectors, vexp


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
    places: Places
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
def centroid(places: Places, e: Electrons) -> tuple[Any, Any]:
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
