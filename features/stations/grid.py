"""Sums and order statistics of the grid as it stands, without a core: what sizes, moments and grid statistics share.

Each in one compiled pass over the planes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import njit

from showerstack.features.lateral.compiled import ONE, ZERO, in_one_record
from showerstack.features.lateral.events import EventBatch
from showerstack.features.lateral.station import LN_2
from showerstack.features.lateral.translate import FAST, f32, full_vectors, vlog2
from showerstack.runtime.kernels import kernel
from showerstack.showers.array import DetectorArray

CHANNELS = ("e", "mu")
SUMS = (
    "total", "hits", "saturated", "logs", "squares",
    "mean_x", "mean_y", "xx", "yy", "xy", "along_2", "along_3", "r_4",
)  # fmt: skip
"""Per channel and event: deposits; stations hit; deposits at the upper limit; sums of w = ln(1 + deposit/MeV) and w^2;
centroid by w; mean products about it, along the shower's azimuth and radially. Lengths are in units of 100 m."""
SHARED = ("inner", "outer", "both_hits")
"""Deposits of e/gamma stations without and with a muon detector; stations hit in both channels."""
SQUARE_RING = ("deposits", "hits")
"""Per channel, event and square ring: deposits; stations hit."""
UNIT_M = 100.0
"""Moments are taken in this unit so that fourth powers stay within float32."""
N_RINGS = 8
"""Square rings around the array's centre."""
QUANTILES = (25, 50, 75, 90)
N_TOP = 5
ORDER = ("max", "top5", *(f"q{q}" for q in QUANTILES))
"""Per channel and event: the largest deposit, the sum of the five largest, quantiles of the hit stations."""
ORDER_SIZES = {"max": 1, "top": 1, "quantiles": len(QUANTILES)}
"""The record of these numbers that a kernel fills."""
CHANNEL_RECORD, SHARED_RECORD = (np.dtype([(name, np.float32) for name in names]) for names in (SUMS, SHARED))
RING_RECORD = np.dtype([(name, np.float32, (N_RINGS,)) for name in SQUARE_RING])
"""Sums by name: of one channel, of both, over all square rings of a channel."""
ORDER_RECORD = np.dtype([(name, np.float32, (size,) if size > 1 else ()) for name, size in ORDER_SIZES.items()])
SMALL = f32(4e-3)
"""Below it ln(1 + d) is a polynomial: 1 + d would lose digits of d."""


def shapes(n: int) -> list[tuple[int, ...]]:
    """Return the shapes of the arrays that a kernel fills: ``SUMS``, ``SHARED``, ``SQUARE_RING``."""
    return [(n, len(CHANNELS), len(SUMS)), (n, len(SHARED)), (n, len(CHANNELS), len(SQUARE_RING), N_RINGS)]


def sums_by_name(filled: Sequence[Any]) -> dict[str, Any]:
    """Return the sums by name from arrays of :func:`shapes`."""
    sums, shared, rings = filled
    by_name: dict[str, Any] = {name: shared[:, k] for k, name in enumerate(SHARED)}
    for c, channel in enumerate(CHANNELS):
        by_name.update({f"{channel}_{name}": sums[:, c, k] for k, name in enumerate(SUMS)})
        by_name[f"{channel}_rings"], by_name[f"{channel}_ring_hits"] = rings[:, c, 0], rings[:, c, 1]
    return by_name


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def _sum_channel(cells: Any, limit: Any, cosine: Any, sine: Any, z: Any, out: Any, rings: Any) -> None:
    """Fill ``SUMS`` and ``SQUARE_RING`` of one channel of one event."""
    full_vectors()
    x, y, ring_of, d, w, hit = z.x, z.y, z.ring, z.d, z.w, z.hit
    for k in range(x.size):
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
    for k in range(no_muon.size):
        inner += electron_mev[k] * no_muon[k]
        outer += electron_mev[k] * with_muon[k]
        both += (ONE if electron_mev[k] > ZERO else ZERO) * (ONE if muon_mev[k] > ZERO else ZERO)
    out.inner, out.outer, out.both_hits = inner, outer, both


@kernel(nogil=True, error_model="numpy")
def _sum_grids(grids: Any, limits: Any, cosine: Any, sine: Any, planes: Any, out: Any) -> None:
    full_vectors()
    electron_mev, muon_mev = grids
    sums, shared, rings = out
    z = planes[0]
    for n in range(electron_mev.shape[0]):
        _sum_channel(electron_mev[n], f32(limits[0]), cosine[n], sine[n], z, sums[n, 0], rings[n, 0])
        _sum_channel(muon_mev[n], f32(limits[1]), cosine[n], sine[n], z, sums[n, 1], rings[n, 1])
        _sum_shared(electron_mev[n], muon_mev[n], z, shared[n])


def _scratch(array: DetectorArray) -> Any:
    """Return the planes of one event with the array's geometry, new for each call: several threads call at once."""
    names = ("x", "y", "ring", "no_muon", "with_muon", "d", "w", "hit")
    record = in_one_record([(name, np.float32, (array.n_cells,)) for name in names])
    geometry = (
        array.x_m / UNIT_M,
        array.y_m / UNIT_M,
        array.square_ring,
        array.no_muon,
        array.has_station & ~array.no_muon,
    )
    for name, values in zip(names, geometry, strict=False):
        record[name] = values.ravel()
    return record


def grid_fused(events: EventBatch) -> dict[str, Any]:
    """Return ``SUMS`` as ``e_total`` and so on, ``SHARED``, and ``e_rings``, ``e_ring_hits``, (n, rings) each."""
    n, response = len(events), events.response
    azimuth = events.azimuth_deg * np.float32(np.pi / 180.0)
    out = tuple(np.empty(shape, np.float32) for shape in shapes(n))
    sums, shared, rings = out
    filled = (
        sums.view(CHANNEL_RECORD)[..., 0],
        shared.view(SHARED_RECORD)[..., 0],
        rings.reshape(n, len(CHANNELS), len(SQUARE_RING) * N_RINGS).view(RING_RECORD)[..., 0],
    )
    limits = (response.saturation_mev, response.muon_saturation_mev)
    grids = (events.electron_mev, events.muon_mev)
    _sum_grids(grids, limits, np.cos(azimuth), np.sin(azimuth), _scratch(events.array), filled)
    return sums_by_name(out)


@kernel(nogil=True, error_model="numpy")
def _look_up(ordered: Any, out: Any) -> None:
    """Fill maximum, sum of the largest and quantiles of every event from its sorted cells."""
    size = ordered.shape[1]
    for n in range(ordered.shape[0]):
        row, numbers = ordered[n], out[n]
        numbers.max = row[size - 1]
        top = ZERO
        for k in range(max(size - N_TOP, 0), size):
            top += row[k]
        numbers.top = top
        first = np.searchsorted(row, ZERO, side="right")
        for q in range(len(QUANTILES)):
            if first == size:
                numbers.quantiles[q] = np.nan
                continue
            rank = f32(first) + f32(QUANTILES[q] / 100.0) * f32(size - first - 1)
            below = int(rank)
            above = min(below + 1, size - 1)
            numbers.quantiles[q] = row[below] + (rank - f32(below)) * (row[above] - row[below])


def order_fused(events: EventBatch) -> dict[str, Any]:
    """Return ``ORDER`` as ``e_max`` and so on, (n,) each, of events on the CPU."""
    columns = {}
    for channel, ordered in (("e", events.electron_sorted), ("mu", events.muon_sorted)):
        out = np.empty((len(events), len(ORDER)), np.float32)
        _look_up(ordered, out.view(ORDER_RECORD)[:, 0])
        columns.update({f"{channel}_{name}": out[:, k] for k, name in enumerate(ORDER)})
    return columns
