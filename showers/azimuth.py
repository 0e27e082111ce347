"""How azimuths are counted: from +x towards +y, of the origin, in all tables of the project; elsewhere otherwise.

Distances from a shower's axis, and all features of them, need the azimuth in the array's own x and y. Planes through
arrival times show how a column of azimuths counts, and azimuths that count otherwise are turned when events are
converted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

NORTH_FROM_X_DEG = 105.0
"""Where north lies, from KASCADE's +x, anticlockwise: the array is turned by 15 degrees (D. Fokkema, PhD thesis,
Twente 2012, map of KASCADE)."""
AZIMUTH = "azimuth"
"""Entry of ``source.json``: how azimuths count, where arrival times show it."""
FRONT_EVENTS = 4_096
"""Events of a run whose fronts tell how azimuths count."""
MIN_STATIONS = 8
"""Hit stations below which no front is fitted."""
KNOWN_SIGMAS = 5.0
"""Standard deviations from no relation of azimuths to fronts above which it is known how they count."""
MIN_ZENITH_DEG = 10.0
"""Events nearer to the zenith say little about the azimuth."""


def front_azimuth(times_ns: np.ndarray, hit: np.ndarray, x_m: np.ndarray, y_m: np.ndarray) -> np.ndarray:
    """Return where showers come from by a plane through their arrival times: azimuth from +x, anticlockwise, deg.

    (n,) float64, NaN for events with fewer than :data:`MIN_STATIONS` stations, from arrival times in ns (n, rows,
    columns) of the stations that are ``hit`` and have a finite one, at positions (rows, columns) in m. Unweighted
    least squares, done again without stations that are late or early by more than 100 ns.
    """
    n = len(times_ns)
    used = (hit & np.isfinite(times_ns)).reshape(n, -1)
    times = np.where(used, times_ns.reshape(n, -1), 0.0).astype(np.float64)
    design = np.stack([np.ones(x_m.size), x_m.ravel() / 100, y_m.ravel() / 100], axis=1)
    azimuth = np.full(n, np.nan)
    for _ in range(2):
        enough = np.flatnonzero(used.sum(axis=1) >= MIN_STATIONS)
        if not enough.size:
            return azimuth
        weights = used[enough].astype(np.float64)
        normal = np.einsum("ns,si,sj->nij", weights, design, design) + 1e-9 * np.eye(3)
        right_side = np.einsum("ns,si->ni", weights * times[enough], design)
        plane = np.linalg.solve(normal, right_side[..., None])[..., 0]
        azimuth[:] = np.nan
        # The front reaches stations on the side of the origin first.
        azimuth[enough] = np.degrees(np.arctan2(-plane[:, 2], -plane[:, 1])) % 360.0
        used[enough] &= np.abs(times[enough] - plane @ design.T) < 100.0
    return azimuth


OURS = "from +x towards +y, of the origin"
"""How azimuths count in all tables of the project."""


@dataclass(frozen=True)
class AzimuthConvention:
    """How a column of azimuths is counted, found from arrival times."""

    n_events: int
    sense: int
    """1: anticlockwise as in the simulated sets; -1: clockwise as a compass."""
    offset_deg: float
    """Azimuth of a shower from +x."""
    agreement: float
    """Length of the mean direction of the differences: 1 if all are equal, near 0 for no relation."""

    @property
    def significance(self) -> float:
        """Standard deviations from no relation, by Rayleigh's test: 2 n R^2 is chi-square of two degrees of freedom."""
        return float(np.sqrt(2 * self.n_events) * self.agreement)

    @property
    def offset_error_deg(self) -> float:
        """Standard error of the offset where the differences are normal and wrapped around the circle."""
        spread = np.sqrt(-2 * np.log(np.clip(self.agreement, 1e-9, 1.0)))
        return float(np.degrees(spread) / np.sqrt(max(self.n_events, 1)))

    @property
    def is_known(self) -> bool:
        """Whether arrival times show it."""
        return self.agreement >= 0.5 and self.significance >= KNOWN_SIGMAS

    @property
    def of_north_deg(self) -> float:
        """Azimuth of a shower from the north, at KASCADE."""
        return (self.offset_deg + self.sense * NORTH_FROM_X_DEG) % 360.0

    @property
    def is_ours(self) -> bool:
        """Whether azimuths are counted as in the simulated sets: from +x towards +y, of the origin."""
        return self.sense > 0 and abs((self.offset_deg + 180) % 360 - 180) < 5

    @property
    def cure(self) -> str:
        """What makes such azimuths ours, in words."""
        if self.sense < 0:
            return f"{self.offset_deg:.0f} deg - Az"
        return f"Az - {self.offset_deg:.0f} deg"

    def ours(self, azimuth_deg: np.ndarray) -> np.ndarray:
        """Return azimuths (n,) deg as the simulated sets count them; equal to the bit where they do so already."""
        if not self.is_known or self.is_ours:
            return azimuth_deg
        turned = np.mod(self.sense * (np.asarray(azimuth_deg, np.float64) - self.offset_deg), 360.0)
        return turned.astype(azimuth_deg.dtype)

    def source(self) -> dict[str, Any]:
        """Return what ``source.json`` of converted events keeps, whose azimuths are :meth:`ours`; empty if unknown."""
        if not self.is_known:
            return {}
        kept = replace(self, sense=1, offset_deg=self.offset_deg if self.is_ours else 0.0).as_json()
        return {AZIMUTH: kept if self.is_ours else kept | {"turned_from": self.as_json()}}

    def as_json(self) -> dict[str, Any]:
        """Return the convention for JSON."""
        return {
            "of_north_deg": self.of_north_deg,
            "error_deg": self.offset_error_deg,
            "clockwise": self.sense < 0,
            "sigma": self.significance,
        }

    @property
    def words(self) -> str:
        """What it means."""
        evidence = f"{self.significance:.1f} standard deviations, {self.n_events:,} events"
        if not self.is_known:
            return f"no relation of Az to the arrival times is seen ({evidence})"
        sense = "anticlockwise" if self.sense > 0 else "clockwise"
        offset = f"{self.offset_deg:.1f} ± {self.offset_error_deg:.2f} deg for a shower from +x"
        return f"Az counts {sense}, {offset} ({evidence}): {'' if self.is_ours else 'not '}as in the simulated sets"


def azimuth_convention(front_deg: np.ndarray, azimuth_deg: np.ndarray, zenith_deg: np.ndarray) -> AzimuthConvention:
    """Return how the azimuths (n,) of events are counted, from those of their fronts (n,); both in deg."""
    used = np.isfinite(front_deg) & np.isfinite(azimuth_deg) & (zenith_deg > MIN_ZENITH_DEG)
    best = AzimuthConvention(int(used.sum()), 1, 0.0, 0.0)
    for sense in (1, -1):
        differences = np.radians(azimuth_deg[used] - sense * front_deg[used])
        mean = np.exp(1j * differences).mean() if used.any() else 0j
        if abs(mean) > best.agreement:
            offset = float(np.degrees(np.angle(mean)) % 360.0)
            best = AzimuthConvention(int(used.sum()), sense, 0.0 if offset > 359.95 else offset, float(abs(mean)))
    return best
