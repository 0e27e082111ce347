"""What the detectors of a station read: particle counts and their deposits, drawn in compiled kernels.

Counts are Poisson, deposits compounds of Gamma distributions. Every station has a random stream of its own, started
from a hash of (event key, station). Results therefore do not depend on the order or the number of workers, and a change
of a constant leaves all other stations' numbers alone (common random numbers, which the calibration needs). The
generator is the counter-based SplitMix64 (Steele, Lea, Flood, OOPSLA 2014). The loops are in
:mod:`showerstack.showers.simulation.compiled`.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from showerstack.runtime.kernels import kernel_of
from showerstack.showers.array import DetectorArray

draw_deposits = kernel_of("showerstack.showers.simulation.compiled", "draw_deposits")
STEP = np.uint64(0x9E3779B97F4A7C15)
"""Of a random stream's counter."""
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31 = np.uint64(30), np.uint64(27), np.uint64(31)


def mix(z: Any) -> Any:
    """Return hashes of uint64 numbers."""
    z = (z ^ (z >> _S30)) * _MIX1
    z = (z ^ (z >> _S27)) * _MIX2
    return z ^ (z >> _S31)


def stream_offsets(n: int) -> np.ndarray:
    """Return (n,) uint64 offsets, far apart, of the streams that share an event's key."""
    offsets: np.ndarray = mix(np.arange(1, n + 1, dtype=np.uint64) * STEP)
    return offsets


class Stations(NamedTuple):
    """Planes of a :class:`showerstack.showers.array.DetectorArray`, one entry per station."""

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
        streams=stream_offsets(3 * len(cells)),
    )


FEW = 1.0
"""Below this expected number of particles, of all kinds together, one count is drawn and split by kind."""
CLUMP_AMPLITUDE = np.sqrt([1 / 3, 0.15, 0.0625, 0.0625, 0.0625, 0.0625])
"""Clumping: rms of the azimuthal modes m = 1..6 [m]; the rest of the variance is finer and drawn per station."""
CLUMP_FINE = math.sqrt(1.0 - float((CLUMP_AMPLITUDE**2).sum()))
CLUMP_NEGLIGIBLE = 0.02
"""Clumping below this rms is not simulated: Poisson fluctuations of any triggered shower are far larger [g]."""
CLUMP_ELECTRONS = 0.5
"""Clumping is not simulated where fewer electrons than this are expected in a station."""
CLUMP_FLAT_M = 15.0
"""Inside this radius the fluctuation falls linearly towards the axis [m]."""


class DetectorConstants(NamedTuple):
    """The detector's constants as the kernel takes them; see
    :class:`showerstack.showers.simulation.settings.Detector`."""

    electron_mev: float
    electron_shape: float
    muon_in_electron_shape: float
    electron_threshold_mev: float
    electron_stray: float
    electron_cap_mev: float
    muon_mev: float
    muon_shape: float
    muon_threshold_mev: float
    muon_stray: float
    muon_cap_mev: float
    punch_mev: float
    muon_overlap: float
    dead: float
