"""The passes of :mod:`showerstack.features.stations.grid` over the planes of an event, compiled by Numba."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from showerstack.features.lateral.compiled import ONE, ZERO
from showerstack.features.lateral.native import f32, full_vectors, vlog2
from showerstack.features.lateral.station import LN_2
from showerstack.features.stations.grid import N_RINGS, N_TOP, QUANTILES
from showerstack.runtime.kernels import FAST, kernel

SMALL = f32(4e-3)
"""Below it ln(1 + d) is a polynomial: 1 + d would lose digits of d."""


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def _sum_channel(cells: Any, limit: Any, cosine: Any, sine: Any, z: Any, out: Any, rings: Any) -> None:
    """Fill ``SUMS`` and ``SQUARE_RING`` of one channel of one event."""
    full_vectors()
    x, y, ring_of, d, w, hit = z.x, z.y, z.ring, z.d, z.w, z.hit
    for k in range(cells.size):
        d[k] = cells[k]
    total = hits = saturated = logs = squares = sum_x = sum_y = ZERO
    for k in range(x.size):
        small = d[k] * (ONE - d[k] * (f32(0.5) - d[k] * f32(1.0 / 3.0)))
        large = vlog2(ONE + d[k]) * f32(LN_2)
        w[k] = small if d[k] < SMALL else large
        hit[k] = ONE if d[k] > ZERO else ZERO
    for k in range(x.size):
        total += d[k]
        hits += hit[k]
        saturated += ONE if d[k] >= limit else ZERO
        logs += w[k]
        squares += w[k] * w[k]
        sum_x += w[k] * x[k]
        sum_y += w[k] * y[k]
    per_log = ONE / logs if logs > ZERO else ONE
    mean_x, mean_y = sum_x * per_log, sum_y * per_log
    xx = yy = xy = along_2 = along_3 = r_4 = ZERO
    for k in range(x.size):
        dx, dy = x[k] - mean_x, y[k] - mean_y
        wx, wy = w[k] * dx, w[k] * dy
        xx += wx * dx
        yy += wy * dy
        xy += wx * dy
        along, r2 = dx * cosine + dy * sine, dx * dx + dy * dy
        square = w[k] * along * along
        along_2 += square
        along_3 += square * along
        r_4 += w[k] * r2 * r2
    out.total, out.hits, out.saturated, out.logs, out.squares = total, hits, saturated, logs, squares
    out.mean_x, out.mean_y, out.xx, out.yy, out.xy = mean_x, mean_y, xx * per_log, yy * per_log, xy * per_log
    out.along_2, out.along_3, out.r_4 = along_2 * per_log, along_3 * per_log, r_4 * per_log
    for ring in range(N_RINGS):
        number, deposits, stations = f32(ring), ZERO, ZERO
        for k in range(x.size):
            inside = ONE if ring_of[k] == number else ZERO
            deposits += inside * d[k]
            stations += inside * hit[k]
        rings.deposits[ring], rings.hits[ring] = deposits, stations


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def _sum_shared(electron_mev: Any, muon_mev: Any, z: Any, out: Any) -> None:
    full_vectors()
    no_muon, with_muon = z.no_muon, z.with_muon
    inner = outer = both = ZERO
    for k in range(electron_mev.size):
        inner += electron_mev[k] * no_muon[k]
        outer += electron_mev[k] * with_muon[k]
        both += (ONE if electron_mev[k] > ZERO else ZERO) * (ONE if muon_mev[k] > ZERO else ZERO)
    out.inner, out.outer, out.both_hits = inner, outer, both


@kernel(nogil=True, error_model="numpy")
def sum_grids(grids: Any, limits: Any, cosine: Any, sine: Any, planes: Any, out: Any) -> None:
    full_vectors()
    electron_mev, muon_mev = grids
    sums, shared, rings = out
    z = planes[0]
    for n in range(electron_mev.shape[0]):
        _sum_channel(electron_mev[n], f32(limits[0]), cosine[n], sine[n], z, sums[n, 0], rings[n, 0])
        _sum_channel(muon_mev[n], f32(limits[1]), cosine[n], sine[n], z, sums[n, 1], rings[n, 1])
        _sum_shared(electron_mev[n], muon_mev[n], z, shared[n])


@njit(error_model="numpy", forceinline=True)
def _look_up_in(row: Any, out: Any) -> None:
    full_vectors()
    size = row.size
    out.max = row[size - 1]
    top = ZERO
    for k in range(max(size - N_TOP, 0), size):
        top += row[k]
    out.top = top
    first, last = 0, size  # of those above 0
    while first < last:
        middle = (first + last) // 2
        if row[middle] <= ZERO:
            first = middle + 1
        else:
            last = middle
    for q in range(len(QUANTILES)):
        rank = f32(first) + f32(QUANTILES[q] / 100.0) * f32(size - first - 1)
        below = min(int(rank), size - 1)
        above = min(below + 1, size - 1)
        value = row[below] + (rank - f32(below)) * (row[above] - row[below])
        out.quantiles[q] = f32(np.nan) if first == size else value


@kernel(nogil=True, error_model="numpy")
def look_up(ordered: Any, out: Any) -> None:
    """Fill maximum, sum of the largest and quantiles of every event from its sorted cells."""
    for n in range(ordered.shape[0]):
        _look_up_in(ordered[n], out[n])
