"""When the shower front reaches the stations, for the raw format's arrival-time channel.

A plane front moving with the speed of light, thickened as in J. Linsley, J. Phys. G 12 (1986) 51: particles at distance
r arrive late by sigma_t = 2.6 ns (1 + r/30 m)^1.5 on average. A station's time is that of the first of its n particles.
"""

from __future__ import annotations

import numpy as np

from showers.lateral import axis_distance
from showers.simulation.blocks import SimulatedEvents

LIGHT_M_PER_NS = 0.299792458
FRONT_NS = 2.6
FRONT_SCALE_M = 30.0
FRONT_POWER = 1.5
PARTICLE_MEV = 10.0
"""About one particle's deposit in an e/gamma detector."""
CLOCK_NS = 1.0
"""Resolution of a station's clock [g]."""


def arrival_times(events: SimulatedEvents, rng: np.random.Generator) -> np.ndarray:
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
    plane_ns = -towards * np.sin(np.radians(zenith_deg)) / LIGHT_M_PER_NS
    deposit = events.grids[..., 0]
    particles = np.maximum(np.rint(deposit / PARTICLE_MEV), 1.0)
    late_ns = FRONT_NS * (1.0 + r_m / FRONT_SCALE_M) ** FRONT_POWER / particles
    # The earliest of n exponential delays is exponential with an n-th of their mean.
    times = plane_ns + late_ns * rng.standard_exponential(r_m.shape) + CLOCK_NS * rng.standard_normal(r_m.shape)
    hit = deposit > 0.0
    earliest = np.min(times, axis=(1, 2), where=hit, initial=np.inf, keepdims=True)
    return np.where(hit, times - np.where(np.isfinite(earliest), earliest, 0.0) + 0.01, 0.0).astype(np.float32)
