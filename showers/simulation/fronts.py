"""Arrival times of simulated events: the front of :mod:`showerstack.showers.front`, and the first particle of each
station.

The front is a plane, or a sphere where an array's card says so, and moves with the speed of light. The sphere's radius
follows the distance to the shower's maximum: the card's is that of a vertical shower with its maximum at 570 g/cm2.
Particles at distance r are late by an exponential time of mean sigma(r) = 2.6 ns (1 + r / 30 m)^1.5 (J. Linsley, J.
Phys. G 12 (1986) 51). A station's time is that of the first of its n particles, and its clock's error.
"""

from __future__ import annotations

import math

import numpy as np

from showerstack.showers.atmosphere import altitude_of
from showerstack.showers.front import LIGHT_M_PER_NS, FrontModel
from showerstack.showers.lateral import axis_distance
from showerstack.showers.simulation.blocks import SimulatedEvents
from showerstack.showers.simulation.ground import ground_of

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
    if math.isfinite(model.curvature_m):
        front_ns = front_ns + r_m * r_m * (0.5 / (LIGHT_M_PER_NS * model.curvature_m * column(_distances(events))))
    deposit = events.grids[..., 0]
    particles = np.maximum(np.rint(deposit / PARTICLE_MEV), 1.0)
    late_ns = model.late_ns(r_m) / particles
    # The earliest of n exponential delays is exponential with an n-th of their mean.
    late_ns = late_ns * rng.standard_exponential(r_m.shape)
    times = front_ns + late_ns + model.resolution_ns * rng.standard_normal(r_m.shape)
    hit = deposit > 0.0
    earliest = np.min(times, axis=(1, 2), where=hit, initial=np.inf, keepdims=True)
    return np.where(hit, times - np.where(np.isfinite(earliest), earliest, 0.0) + 0.01, 0.0).astype(np.float32)


MEAN_XMAX = 570.0
"""Of protons and iron at 10^15.5 eV, g/cm2."""
LEAST_DISTANCE_M = 300.0
"""Showers that have their maximum nearer, or below the ground, count as this far."""


def _distances(events: SimulatedEvents) -> np.ndarray:
    """Return the distance from the ground to the maximum along the axis, in units of the mean vertical shower's, (N,).

    Depths of the maximum are along the axis: its height is that of the vertical depth Xmax cos(zenith).
    """
    depth = ground_of(events.array).depth_g_cm2
    ground_m, cosine = altitude_of(depth), np.cos(np.radians(events.showers.primaries.zenith_deg))

    def distance_m(xmax: np.ndarray | float, cosine: np.ndarray | float) -> np.ndarray:
        return np.maximum((altitude_of(xmax * cosine) - ground_m) / cosine, LEAST_DISTANCE_M)

    return distance_m(events.showers.xmax, cosine) / distance_m(MEAN_XMAX, 1.0)
