"""Arrival times of simulated events: the front of :mod:`showerstack.showers.front`, and the first particle of each
station.

The front is a plane, or a sphere where an array's card says so, and moves with the speed of light; particles at
distance r are late by an exponential time of mean sigma(r) = 2.6 ns (1 + r / 30 m)^1.5 (J. Linsley, J. Phys. G 12
(1986) 51). A station's time is that of the first of its n particles, and its clock's error.
"""

from __future__ import annotations

import math

import numpy as np

from showerstack.showers.front import LIGHT_M_PER_NS, FrontModel
from showerstack.showers.lateral import axis_distance
from showerstack.showers.simulation.blocks import SimulatedEvents

PARTICLE_MEV = 10.0
"""About one particle's deposit in an e/gamma detector."""
PLANE = FrontModel(curvature_m=math.inf)
"""Of the raw archives; a clock's resolution of 1 ns is a guess."""


def arrival_times(events: SimulatedEvents, rng: np.random.Generator, model: FrontModel = PLANE) -> np.ndarray:
    """Return the arrival times at the e/gamma detectors, (n, rows, columns) float32, ns.

    Times count from the event's earliest station, which reads a hundredth of a nanosecond; 0 means no hit.
    """
    primaries, rows, array = events.showers.primaries, events.rows, events.array

    def column(values: np.ndarray) -> np.ndarray:
        return values[rows, None, None]

    core_x_m, core_y_m = column(primaries.core_x_m), column(primaries.core_y_m)
    zenith_deg, azimuth_deg = column(primaries.zenith_deg), column(primaries.azimuth_deg)
    r_m = axis_distance(array.x_m, array.y_m, core_x_m, core_y_m, zenith_deg, azimuth_deg)
    azimuth = np.radians(azimuth_deg)
    towards = (array.x_m - core_x_m) * np.cos(azimuth) + (array.y_m - core_y_m) * np.sin(azimuth)
    front_ns = -towards * np.sin(np.radians(zenith_deg)) / LIGHT_M_PER_NS
    front_ns = front_ns + r_m * r_m * (0.5 / (LIGHT_M_PER_NS * model.curvature_m))
    deposit = events.grids[..., 0]
    particles = np.maximum(np.rint(deposit / PARTICLE_MEV), 1.0)
    late_ns = model.late_ns(r_m) / particles
    # The earliest of n exponential delays is exponential with an n-th of their mean.
    late_ns = late_ns * rng.standard_exponential(r_m.shape)
    times = front_ns + late_ns + model.resolution_ns * rng.standard_normal(r_m.shape)
    hit = deposit > 0.0
    earliest = np.min(times, axis=(1, 2), where=hit, initial=np.inf, keepdims=True)
    return np.where(hit, times - np.where(np.isfinite(earliest), earliest, 0.0) + 0.01, 0.0).astype(np.float32)
