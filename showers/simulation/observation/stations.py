"""The stations of an array as the simulation's kernels take them."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from showers.array import DetectorArray
from showers.simulation.observation import deviates


class Stations(NamedTuple):
    """Planes of a :class:`showers.array.DetectorArray`, one entry per station."""

    x_m: np.ndarray
    """(S,) float32, m."""
    y_m: np.ndarray
    electron_area_m2: np.ndarray
    """(S,) float32, m2."""
    muon_area_m2: np.ndarray
    """(S,) float32, m2; 0 without a muon detector."""
    cluster: np.ndarray
    """(S,) int64: trigger unit."""
    streams: np.ndarray
    """(3 S,) uint64: random streams of an event, for the e/gamma detectors, the muon detectors and dead stations."""


@lru_cache(maxsize=8)
def stations_of(array: DetectorArray) -> Stations:
    """Return the stations of an array."""
    cells = array.cells

    def plane(values: np.ndarray) -> np.ndarray:
        return values.ravel()[cells].astype(np.float32)

    return Stations(
        x_m=plane(array.x_m),
        y_m=plane(array.y_m),
        electron_area_m2=plane(array.electron_area_m2),
        muon_area_m2=plane(array.muon_area_m2),
        cluster=array.cluster.ravel()[cells],
        streams=deviates.stream_offsets(3 * len(cells)),
    )
