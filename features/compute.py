"""All features of one chunk of events, on whatever device the namespace stands for."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from features.catalogue import CATALOGUE, FIT_GROUPS, MODULES
from features.device import namespace
from features.events import make_events
from features.fitted import FittedEvents
from features.groups.lateral import ELECTRON_GROUP, MUON_GROUP
from showers.array import DetectorArray
from showers.kascade import KASCADE

FITTED = frozenset({ELECTRON_GROUP, MUON_GROUP})


def warm_up() -> None:
    """Compile the fused kernels if they are not on disk yet, so that worker processes find them there."""
    nothing = make_events(
        namespace("cpu"), np.zeros((1, *KASCADE.grid_shape), np.float32), np.zeros((1, 5), np.float32)
    )
    assert FittedEvents(nothing).sums


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
    seen = FittedEvents(make_events(xp, grids, scalars, array=array))
    # The fits' own columns are what others are made of in the table: they come with any group that needs fits.
    wanted = groups | (FITTED if groups & FIT_GROUPS else frozenset())
    for module in MODULES:
        if hasattr(module, "compute") and wanted & {group.name for group in module.GROUPS}:
            seen.columns.update(module.compute(seen))
    return {name: values for name, values in seen.columns.items() if CATALOGUE[name].group in wanted}
