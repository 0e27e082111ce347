"""The sums of :mod:`showerstack.features.stations.sums` on a CPU, by the loop in
:mod:`showerstack.features.stations.compiled`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from showerstack.features.lateral.events import EventBatch
from showerstack.features.lateral.fit import RawFit
from showerstack.features.lateral.planes import CELLS_STEP, filled_up, in_one_record
from showerstack.features.stations.sums import (
    CHANNELS,
    LCM_RING,
    LCM_RINGS_M,
    PARTS,
    PATTERN,
    PATTERNS,
    PLAIN,
    RING,
    RINGS,
    RINGS_M,
    Sums,
    over_level_zero,
    shapes,
    sums_by_name,
)
from showerstack.features.stations.tail import tail_table
from showerstack.runtime.kernels import kernel_of
from showerstack.showers.array import DetectorArray

PLANES = (
    "x", "y", "area_e_m2", "area_m_m2",  # the array's
    "s_e", "s_m", "area_e", "area_m", "live_e", "live_m",
    "r", "far", "outer", "mid", "electrons", "muons", "typical",
    "mean_e", "var_e", "mean_m", "var_m", "var_fit", "punch", "value",
    "d_e", "d_m", "f_e", "f_m", "v_e", "v_m",  # densities: signal, expected, variance
)  # fmt: skip
"""Planes of one event, (cells,) float32 each; see ``expect`` and ``add_lcm`` there. ``typical``: muons expected at
level 0 and the mean age."""
N_RINGS, N_LCM = len(RINGS_M), len(LCM_RINGS_M)
PLAIN_SUMS, PATTERN_SUMS = (np.dtype([(name, np.float32) for name in names]) for names in (PLAIN, PATTERN))
"""Sums by name, of an event and of one of its channels."""
RING_SUMS = np.dtype([(name, np.float32, (N_RINGS,)) for name in RING])
LCM_SUMS = np.dtype([(name, np.float32, (N_LCM,)) for name in LCM_RING])
"""Sums over all rings by name, of a channel."""
_sum_events = kernel_of("showerstack.features.stations.compiled", "sum_events")


def planes_of(*geometry: np.ndarray) -> Any:
    """Return the record of one event's planes with x, y and both areas of all cells in it, (cells,) float32 each."""
    x_m, y_m = (filled_up(values, CELLS_STEP) for values in geometry[:2])
    record = in_one_record([(name, np.float32, x_m.shape) for name in PLANES])
    record["x"], record["y"] = x_m, y_m
    for name, area_m2 in zip(PLANES[2:], geometry[2:], strict=False):
        record[name][0, : area_m2.size] = area_m2
    return record


def _scratch(array: DetectorArray) -> Any:
    """Return the planes of one event, new for each call: calls run in several threads at once."""
    return planes_of(*(values.astype(np.float32).ravel() for values in array.fit_geometry))


def sum_fused(events: EventBatch, fit: RawFit, parts: frozenset[str] = PARTS) -> Sums:
    """Return the sums of ``PLAIN`` and of ``parts``; without meaning where ``fitted`` is false."""
    n, response = len(events), events.response
    fits = fit.records()
    azimuth = events.azimuth_deg * np.float32(math.pi / 180.0)
    reco = over_level_zero(events)
    out = tuple(np.zeros(shape, np.float32) for shape in shapes(n, parts))
    columns = (events.cos_zenith, *events.direction, np.cos(azimuth), np.sin(azimuth), reco)
    dispersions = (response.electron_dispersion, response.muon_dispersion)
    tails = tuple((dispersion, tail_table(dispersion).ravel()) for dispersion in dispersions)
    grids, wanted = (events.electron_mev, events.muon_mev), (RINGS in parts, PATTERNS in parts)
    plain, pattern, rings, lcm = out
    filled = (
        plain.view(PLAIN_SUMS)[:, 0],
        pattern.view(PATTERN_SUMS)[..., 0],
        rings.reshape(len(rings), len(CHANNELS), len(RING) * N_RINGS).view(RING_SUMS)[..., 0],
        lcm.reshape(len(lcm), len(CHANNELS), len(LCM_RING) * N_LCM).view(LCM_SUMS)[..., 0],
    )
    _sum_events(grids, columns, _scratch(events.array), fits, response, tails, wanted, filled)
    return sums_by_name(~np.isnan(fits["electron"][:, 0]), parts, out)
