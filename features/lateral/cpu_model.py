"""Expected signals and their quasi-likelihood in compiled loops over the stations of one event.

The formulas are those of :mod:`features.lateral.model`. Loops are written so that LLVM vectorises them: straight-line
code, few arrays that might overlap, float32 throughout.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from features.lateral.constants import Response
from features.lateral.model import ELECTRON_G_REF, MUON_G_REF, SOFT_M
from features.lateral.vector_math import FAST, f32, full_vectors, vexp, vln

G_E, G_M = f32(ELECTRON_G_REF), f32(MUON_G_REF)
R0_E, R0_M, SCALE_E = f32(1.0 / 40.0), f32(1.0 / 420.0), f32(40.0)
ZERO, ONE, HALF = f32(0.0), f32(1.0), f32(0.5)
TINY = f32(1e-12)
SOFT = f32(SOFT_M**2)


class Places(NamedTuple):
    """Detectors of one channel: where in the event's plane, position and area; all (n,)."""

    where: Any
    x: Any
    y: Any
    area_m2: Any


class Electrons(NamedTuple):
    """The e/gamma channel of one event, (n,) float32 each; see :mod:`features.lateral.model`."""

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
    """Derivative of ln(density) by the shape."""
    base: Any
    """ln(density) at level and shape 0."""


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def radii(core_x: Any, core_y: Any, u: Any, v: Any, x: Any, y: Any, r: Any) -> None:
    full_vectors()
    for k in range(x.size):
        dx, dy = x[k] - core_x, y[k] - core_y
        along = dx * u + dy * v
        r[k] = np.sqrt(max(dx * dx + dy * dy - along * along, ZERO) + SOFT)


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def electron_density(r: Any, level: Any, age: Any) -> Any:
    x = r * R0_E
    log_x, log_1x = vln(x), vln(ONE + x)
    return vexp(level + age * (log_x + log_1x - G_E) - f32(1.5) * log_x - f32(3.6) * log_1x)


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def muon_density(r: Any, level: Any, shape: Any) -> Any:
    y = r * R0_M
    log_y, log_1y = vln(y), vln(ONE + y)
    return vexp(level + shape * (log_y + log_1y - G_M) - f32(2.0) * log_y - f32(4.5) * log_1y)


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def freeze_electron(res: Response, p: Any, q: Any, r: Any, e: Electrons) -> None:
    full_vectors()
    area, kept, background, weight = e.projected, e.kept, e.background, e.weight
    level, age, muon_level, shape = f32(p[2]), f32(p[3]), f32(q[0]), f32(q[1])
    far, excess, scale = f32(res.gamma_fraction), f32(res.core_excess), f32(-1.0 / res.core_excess_scale_m)
    lost, strays = f32(res.lost_share), f32(res.electron_strays)
    wide, narrow = f32(res.electron_dispersion), f32(res.muon_in_electron_dispersion)
    # Two loops, because LLVM vectorises a loop only with few pairs of arrays that might overlap.
    for k in range(r.size):
        kept[k] = area[k] * electron_density(r[k], level, age)
        background[k] = area[k] * muon_density(r[k], muon_level, shape)
    for k in range(r.size):
        n_e, n_m = kept[k], background[k]
        a = far + excess * vexp(r[k] * scale)
        live = ONE if area[k] > ZERO else ZERO
        share = ONE - lost * vexp(-n_e - n_m)
        mean = n_e * a * share + n_m + strays
        weight[k] = live * mean / (wide * n_e * a * a + narrow * n_m + wide * strays)
        kept[k] = area[k] * share
        background[k] = (n_m + strays) * live


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def freeze_muon(res: Response, p: Any, q: Any, r: Any, m: Muons) -> None:
    full_vectors()
    area, background, weight, g, base = m.projected, m.background, m.weight, m.g, m.base
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
        background[k] = area[k] * electron_density(r[k], level, age) * share * vexp(r[k] * scale)
    for k in range(r.size):
        punch, n_m = background[k], area[k] * vexp(muon_level + shape * g[k] + base[k])
        variance = muons * (n_m + strays) + punches * punch + unsure * unsure * punch * punch
        weight[k] = (n_m + punch + strays) / variance
    for k in range(r.size):
        background[k] += strays


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def electron_terms(res: Response, p: Any, u: Any, v: Any, places: Places, e: Electrons, out: Any) -> None:
    """Fill ``out`` with F, 4 components of its gradient, 10 of Fisher's matrix and 10 of the Hessian."""
    full_vectors()
    x, y, signal, full, area, background, weight = places.x, places.y, e.signal, e.full, e.kept, e.background, e.weight
    core_x, core_y, level, age = f32(p[0]), f32(p[1]), f32(p[2]), f32(p[3])
    far, peak, scale = f32(res.gamma_fraction), f32(res.core_excess), f32(1.0 / res.core_excess_scale_m)
    value = g0 = g1 = g2 = g3 = ZERO
    h00 = h10 = h11 = h20 = h21 = h22 = h30 = h31 = h32 = h33 = ZERO
    c00 = c10 = c11 = c30 = c31 = ZERO
    uu, uv, vv = ONE - u * u, u * v, ONE - v * v
    young, old = age - f32(1.5), age - f32(3.6)
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
        # One division for two quotients.
        outer = SCALE_E + r
        both = ONE / (outer * a)
        beyond, steep = both * a, both * outer * excess * scale
        slope = young * per_r + old * beyond - steep
        r_x, r_y = (along * u - dx) * per_r, (along * v - dy) * per_r
        by_x, by_y = slope * r_x, slope * r_y
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
        bend = steep * (scale - steep) - young * per_r * per_r - old * beyond * beyond
        around = slope * per_r * pull
        ahead, sharp = bend * pull - around, (per_r + beyond) * pull
        c00 += ahead * r_x * r_x + around * uu
        c10 += ahead * r_x * r_y - around * uv
        c11 += ahead * r_y * r_y + around * vv
        c30 += sharp * r_x
        c31 += sharp * r_y
    core, spread = 1.0 / (res.core_spread_m * res.core_spread_m), 1.0 / (res.age_spread * res.age_spread)
    older = p[3] - res.age_mean
    out[0] = value - 0.5 * p[2] + 0.5 * core * (p[0] * p[0] + p[1] * p[1]) + 0.5 * spread * older * older
    out[1], out[2], out[3], out[4] = core * p[0] - g0, core * p[1] - g1, -0.5 - g2, spread * older - g3
    out[5], out[6], out[7], out[8], out[9], out[10] = h00 + core, h10, h11 + core, h20, h21, h22
    out[11], out[12], out[13], out[14] = h30, h31, h32, h33 + spread
    out[15:25] = out[5:15]
    out[15] -= c00
    out[16] -= c10
    out[17] -= c11
    out[21] -= c30
    out[22] -= c31


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def muon_terms(res: Response, q: Any, shape_mean: Any, m: Muons, out: Any) -> None:
    """Fill ``out`` with F, 2 components of its gradient and 3 of the Fisher matrix."""
    full_vectors()
    signal, full, area, background, weight, g, base = m.signal, m.full, m.projected, m.background, m.weight, m.g, m.base
    level, shape = f32(q[0]), f32(q[1])
    value = g0 = g1 = h00 = h10 = h11 = ZERO
    for k in range(signal.size):
        n_m = area[k] * vexp(level + shape * g[k] + base[k])
        mu = n_m + background[k] + TINY
        inverse = ONE / mu
        s = signal[k]
        residual = s - mu
        open_end = ZERO if (full[k] > ZERO and residual < ZERO) else ONE
        w = weight[k] * open_end
        value += w * (s * vln(max(s, TINY) * inverse) - residual)
        pull = w * residual * n_m * inverse
        info = w * n_m * n_m * inverse
        g0 += pull
        g1 += pull * g[k]
        h00 += info
        h10 += info * g[k]
        h11 += info * g[k] * g[k]
    spread = 1.0 / (res.muon_shape_spread * res.muon_shape_spread)
    wider = q[1] - shape_mean
    out[0] = value - 0.5 * q[0] + 0.5 * spread * wider * wider
    out[1], out[2] = -0.5 - g0, spread * wider - g1
    out[3], out[4], out[5] = h00, h10, h11 + spread
