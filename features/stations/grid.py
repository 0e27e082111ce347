"""Sums and order statistics of the grid as it stands, without a core: what sizes, moments and grid statistics share.

Each in one compiled pass over the planes (:mod:`showerstack.features.stations.compiled_grid`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from showerstack.features.lateral.events import EventBatch
from showerstack.features.lateral.planes import CELLS_STEP, filled_up, in_one_record
from showerstack.runtime.kernels import kernel_of
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
_COMPILED = "showerstack.features.stations.compiled_grid"
_sum_grids, _look_up = kernel_of(_COMPILED, "sum_grids"), kernel_of(_COMPILED, "look_up")


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


def _scratch(array: DetectorArray) -> Any:
    """Return the planes of one event with the array's geometry, new for each call: several threads call at once."""
    names = ("x", "y", "ring", "no_muon", "with_muon", "d", "w", "hit")
    size = filled_up(array.x_m.ravel(), CELLS_STEP).size
    record = in_one_record([(name, np.float32, (size,)) for name in names])
    geometry = (
        array.x_m / UNIT_M,
        array.y_m / UNIT_M,
        array.square_ring,
        array.no_muon,
        array.has_station & ~array.no_muon,
    )
    for name, values in zip(names, geometry, strict=False):
        record[name][0, : array.n_cells] = values.ravel()
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


def order_fused(events: EventBatch) -> dict[str, Any]:
    """Return ``ORDER`` as ``e_max`` and so on, (n,) each, of events on the CPU."""
    columns = {}
    for channel, ordered in (("e", events.electron_sorted), ("mu", events.muon_sorted)):
        out = np.empty((len(events), len(ORDER)), np.float32)
        _look_up(ordered, out.view(ORDER_RECORD)[:, 0])
        columns.update({f"{channel}_{name}": out[:, k] for k, name in enumerate(ORDER)})
    return columns
