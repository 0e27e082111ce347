"""The sums of :mod:`showerstack.features.stations.sums` and :mod:`showerstack.features.stations.grid` on a GPU, one
warp an event.

``kernel.cu`` has the loops over stations, :mod:`showerstack.features.lateral.station` the formulas.
"""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from showerstack.features.lateral import cuda
from showerstack.features.lateral.events import EventBatch
from showerstack.features.lateral.fit import RawFit, record_in_c
from showerstack.features.stations import grid, sums, tail
from showerstack.features.stations.sums import PARTS, PATTERNS, RINGS, Sums
from showerstack.showers.array import KASCADE, DetectorArray
from showerstack.showers.response import StationResponse


@lru_cache(maxsize=4)
def kernel_source(response: StationResponse, array: DetectorArray = KASCADE) -> cuda.Kernels:
    """Return the CUDA kernels."""
    zones = {name: getattr(sums, name) for name in ("FAR_M", "OUTER_M", "MUON_AGE_FROM_M", "MAX_DEVIATE")}
    table = {name: getattr(tail, name) for name in ("MIN_MEAN", "MAX_MEAN", "MEAN_STEP", "LOW", "STEP", "N_STEPS")}
    n_ordered = 1 << (array.n_cells - 1).bit_length()
    records = {
        "Plain": dict.fromkeys(sums.PLAIN, 1),
        "Pattern": dict.fromkeys(sums.PATTERN, 1),
        "Ring": dict.fromkeys(sums.RING, len(sums.RINGS_M)),
        "LcmRing": dict.fromkeys(sums.LCM_RING, len(sums.LCM_RINGS_M)),
        "GridSums": dict.fromkeys(grid.SUMS, 1),
        "BothChannels": dict.fromkeys(grid.SHARED, 1),
        "SquareRing": dict.fromkeys(grid.SQUARE_RING, grid.N_RINGS),
        "Order": grid.ORDER_SIZES,
    }
    return cuda.assemble(
        Path(__file__).with_name("kernel.cu"),
        response,
        array,
        max(7 * array.n_cells, n_ordered),
        record_in_c(),
        *(cuda.struct_in_c(name, sizes) for name, sizes in records.items()),
        cuda.space_in_c("zone", zones),
        cuda.space_in_c("tail", table),
        cuda.list_in_c("ring_edge", [low for low, _ in sums.RINGS_M] + [sums.RINGS_M[-1][1]]),
        cuda.list_in_c("lcm_edge", [low for low, _ in sums.LCM_RINGS_M] + [sums.LCM_RINGS_M[-1][1]]),
        cuda.list_in_c("quantile", [q / 100.0 for q in grid.QUANTILES]),
        f"const int N_SQUARE_RINGS = {grid.N_RINGS}, N_TOP = {grid.N_TOP}, N_ORDERED = {n_ordered};",
    )


def sum_cuda(events: EventBatch, fit: RawFit, parts: frozenset[str] = PARTS) -> Sums:
    """Return the same sums as :func:`showerstack.features.stations.compiled.sum_fused`."""
    xp, here, n, response = events.xp, events.stations, len(events), events.response
    azimuth = events.azimuth_deg * (math.pi / 180.0)
    out = [xp.zeros(shape, dtype=xp.float32) for shape in sums.shapes(n, parts)]
    planes = [events.electron_mev, events.muon_mev, events.cos_zenith, *events.direction]
    planes += [xp.cos(azimuth), xp.sin(azimuth), sums.over_level_zero(events)]
    planes += [here.x_m, here.y_m, here.electron_area_m2, here.muon_area_m2]
    planes += [tail.flat_table(d, xp) for d in (response.electron_dispersion, response.muon_dispersion)]
    planes.append(xp.stack(fit.columns(), axis=1) if fit.numbers is None else fit.numbers)
    arrays = [xp.ascontiguousarray(plane) for plane in planes]
    with_parts = [int(RINGS in parts), int(PATTERNS in parts)]
    cuda.launch(kernel_source(response, events.array), "sum_events", n, [*arrays, *with_parts, n, *out])
    return sums.sums_by_name(~xp.isnan(fit.electron[0]), parts, out)


@lru_cache(maxsize=16)
def _cells(xp: Any, array: DetectorArray) -> tuple[Any, ...]:
    """Return x, y (in units of the moments) and the number of the square ring of each cell, on the device."""
    x, y = (xp.asarray((values / grid.UNIT_M).astype(np.float32).ravel()) for values in (array.x_m, array.y_m))
    return x, y, xp.asarray(array.square_ring.astype(np.int32).ravel())


def grid_cuda(events: EventBatch) -> dict[str, Any]:
    """Return the same sums as :func:`showerstack.features.stations.grid.grid_fused`."""
    xp, here, n = events.xp, events.stations, len(events)
    azimuth = events.azimuth_deg * (math.pi / 180.0)
    planes = [events.electron_mev, events.muon_mev, xp.cos(azimuth), xp.sin(azimuth)]
    planes += [*_cells(xp, events.array), here.no_muon, here.has_electron - here.no_muon]
    out = [xp.empty(shape, dtype=xp.float32) for shape in grid.shapes(n)]
    arrays = [xp.ascontiguousarray(plane) for plane in planes]
    cuda.launch(kernel_source(events.response, events.array), "sum_grids", n, [*arrays, n, *out])
    return grid.sums_by_name(out)


def order_cuda(events: EventBatch) -> dict[str, Any]:
    """Return the same numbers as :func:`showerstack.features.stations.grid.order_fused`."""
    xp, n, columns = events.xp, len(events), {}
    for channel, cells in (("e", events.electron_mev), ("mu", events.muon_mev)):
        out = xp.empty((n, len(grid.ORDER)), dtype=xp.float32)
        kernels = kernel_source(events.response, events.array)
        cuda.launch(kernels, "order_cells", n, [xp.ascontiguousarray(cells), n, out])
        columns.update({f"{channel}_{name}": out[:, k] for k, name in enumerate(grid.ORDER)})
    return columns
