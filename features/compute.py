"""All features of one chunk of events, on whatever device the namespace stands for."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
from array_api_compat import is_cupy_namespace, is_numpy_namespace

from features.catalogue import CATALOGUE, FIT_GROUPS
from features.device import namespace
from features.events import Events, make_events
from features.groups import asymmetry, deposits, lateral, moments, muons, profile, published
from features.lateral.cpu import fit_fused
from features.lateral.fit import RawFit
from features.lateral.gpu import fit_cuda
from features.stations.cpu import sum_fused
from features.stations.sums import Sums, sum_reference
from showers.array import DetectorArray
from showers.kascade import KASCADE


def fit_showers(events: Events) -> RawFit:
    """Fit both lateral distributions, on the device where the events are."""
    return fit_cuda(events) if is_cupy_namespace(events.xp) else fit_fused(events)


def sum_stations(events: Events, raw: RawFit) -> Sums:
    """Return the sums over stations that the features around the core are made of."""
    if is_numpy_namespace(events.xp):
        return sum_fused(events, raw)
    return sum_reference(events, raw)


def warm_up() -> None:
    """Compile the fused kernels if they are not on disk yet, so that worker processes find them there."""
    nothing = make_events(
        namespace("cpu"), np.zeros((1, *KASCADE.grid_shape), np.float32), np.zeros((1, 5), np.float32)
    )
    sum_fused(nothing, fit_fused(nothing))


def compute_chunk(
    xp: ModuleType, grids: Any, scalars: np.ndarray, groups: frozenset[str], array: DetectorArray = KASCADE
) -> dict[str, Any]:
    """Return the features of ``groups`` that need the grids, each (n,) float32 on the device of ``xp``.

    Parameters
    ----------
    grids
        (n, rows, columns, 2) float32, MeV per station.
    scalars
        (n, 5) float32: E, Ze, Az, Ne, Nmu.
    array
        The stations.
    """
    events = make_events(xp, grids, scalars, array=array)
    columns: dict[str, Any] = {}
    for module in (deposits, moments, published):
        if module.GROUP in groups:
            columns.update(module.compute(events))
    if groups & FIT_GROUPS:
        columns.update(_around_core(events, groups))
    return {
        name: values
        for name, values in columns.items()
        if CATALOGUE[name].group in groups | {lateral.ELECTRON_GROUP, lateral.MUON_GROUP}
    }


def _around_core(events: Events, groups: frozenset[str]) -> dict[str, Any]:
    raw = fit_showers(events)
    sums = sum_stations(events, raw)
    columns = lateral.compute(events, raw, sums)
    if muons.GROUP in groups:
        columns.update(muons.compute(events, sums, columns))
    if profile.GROUP in groups:
        columns.update(profile.compute(sums, events.xp))
    if asymmetry.GROUP in groups:
        columns.update(asymmetry.compute(events, sums, (raw.electron[0], raw.electron[1])))
    return columns
