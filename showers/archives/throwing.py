"""Showers of particles thrown onto an array, each at several places: signals and times of its stations.

A **thinned** particle of weight w stands for w particles about it. A station then takes what falls in a sector about
it, 0.2 wide in ln r and 0.3 in azimuth in the shower plane, near the axis as much wider as it takes to hold the
detector, each particle as often as a Poisson number with mean w times the share of the detector in the sector says (P.
Billoir, Astropart. Phys. 30 (2008) 270). Its delay behind the plane front through the core counts as r^2, as that of a
curved front does.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import numpy as np

from showerstack.runtime.errors import InputError
from showerstack.showers.archives.particle_file import Ground
from showerstack.showers.array import DetectorArray
from showerstack.showers.front import LIGHT_M_PER_NS, FrontModel, fit_front
from showerstack.showers.particles import ELECTRONS, DetectorResponse, electron_deposits, muon_deposits, readings

TRIGGER_STATIONS = 4
"""Hit stations below which a shower is not seen."""
CORE_SHARE = 0.875
"""Usual radius of the disc of cores over half the side of the array: KASCADE's 91 m of 104 m."""
SECTOR_LN_R, SECTOR_RAD = 0.2, 0.3
"""Width of the sectors from which stations take thinned particles."""
WIDER_LN_R, WIDER_RAD = 1.03, 1.15
"""Factors by which a sector grows until it holds its detector."""
MOST_PARTICLES = 3e7
"""No detector sees more particles of one shower: a weight that asks for more is damage."""


@dataclass(frozen=True)
class Axis:
    """Direction of a shower's origin."""

    zenith_rad: float
    azimuth_rad: float
    """From +x towards +y."""

    @classmethod
    def of(cls, header: Any) -> Axis:
        """Turn the direction of flight, from an event header, around."""
        return cls(float(header["zenith"]), (float(header["azimuth"]) + np.pi) % (2 * np.pi))

    @property
    def horizontal(self) -> tuple[float, float]:
        """Horizontal part of the unit vector."""
        sine = np.sin(self.zenith_rad)
        return float(sine * np.cos(self.azimuth_rad)), float(sine * np.sin(self.azimuth_rad))

    def polar(self, x_m: np.ndarray, y_m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return distance from the axis (m) and azimuth in the shower plane (rad) of places about the core."""
        cosine, sine = np.cos(self.azimuth_rad), np.sin(self.azimuth_rad)
        along, across = (x_m * cosine + y_m * sine) * np.cos(self.zenith_rad), y_m * cosine - x_m * sine
        return np.hypot(along, across), np.arctan2(across, along)


@dataclass(frozen=True)
class ThrownShower:
    """One shower at several places."""

    core_m: np.ndarray
    """(U, 2) true cores of the uses that are seen."""
    direction_deg: np.ndarray
    """(U, 2) zenith and azimuth of the fitted fronts."""
    signals_mev: np.ndarray
    """(U, S, 2) float32 by station."""
    times_ns: np.ndarray
    """(U, S) float32, NaN where the e/gamma detectors (of an array without any, the muon detectors) have no signal."""

    def __len__(self) -> int:
        return len(self.core_m)


def throw(
    ground: Ground, axis: Axis, array: DetectorArray, uses: int, rng: np.random.Generator, radius_m: float | None = None
) -> ThrownShower:
    """Throw a shower onto an array; cores are uniform in a disc, usually of 0.875 of half the array's side.

    Uses with fewer than four hit stations, or whose times no direction fits, are not seen.
    """
    cells = array.cells
    station_x, station_y = array.x_m.ravel()[cells], array.y_m.ravel()[cells]
    areas = [plane.ravel()[cells] for plane in (array.electron_area_m2, array.muon_area_m2)]
    response, model = DetectorResponse.of(array), FrontModel(**array.card.times)
    radius = (radius_m or usual_radius_m(array)) * np.sqrt(rng.random(uses))
    angle = 2 * np.pi * rng.random(uses)
    cores = np.column_stack([radius * np.cos(angle), radius * np.sin(angle)])
    find = _Sectors(ground, axis) if (ground.weight > 1).any() else _Squares(ground)
    timing = 0 if array.has_electron.any() else 1
    signals = np.zeros((uses, len(cells), 2))
    times = np.full((uses, len(cells)), np.inf)
    electrons = np.zeros((uses, len(cells)))
    for use, core in enumerate(cores):
        places = np.column_stack([station_x, station_y]) - core
        for channel, deposits_of in enumerate((electron_deposits, muon_deposits)):
            found = [
                find(place[0], place[1], area, rng) if area else NOTHING
                for place, area in zip(places, areas[channel], strict=True)
            ]
            station = np.repeat(np.arange(len(cells)), [len(rows) for rows, _ in found])
            rows, time = (np.concatenate(one) for one in zip(*found, strict=True))
            deposits = deposits_of(ground.ids[rows], ground.momentum_gev[rows], ground.secant[rows], response, rng)
            np.add.at(signals[use, :, channel], station, deposits)
            if channel == 1:
                np.add.at(electrons[use], station, np.isin(ground.ids[rows], ELECTRONS))
            if channel == timing:
                np.minimum.at(times[use], station, np.where(deposits > 0, time, np.inf))
    hit = signals[..., 0] >= response.threshold_mev, signals[..., 1] >= response.muon_threshold_mev
    triggers = ((hit[0] & (signals[..., 0] > 0)) | (hit[1] & (signals[..., 1] > 0))).sum(axis=1) >= TRIGGER_STATIONS
    away = np.stack([axis.polar(station_x - x, station_y - y)[0] for x, y in cores])
    signals += beside_particles(electrons, away, array, areas, rng)
    signals[..., 0] = readings(signals[..., 0], response.threshold_mev, response.saturation_mev)
    signals[..., 1] = readings(signals[..., 1], response.muon_threshold_mev, response.muon_saturation_mev)
    u, v = axis.horizontal
    ahead_ns = (u * station_x + v * station_y) / LIGHT_M_PER_NS
    known = np.isfinite(times)
    at_core_ns = [np.median(row[of]) if of.any() else 0.0 for row, of in zip(times + ahead_ns, known, strict=True)]
    # What no particle made comes with the others' front.
    times = np.where(known, times, np.array(at_core_ns)[:, None] - ahead_ns)
    times += model.resolution_ns * rng.standard_normal(times.shape)
    times = np.where(signals[..., timing] > 0, times, np.nan)
    mip = (response.electron_deposit_mev, response.muon_deposit_mev)[timing]
    front = fit_front(times, signals[..., timing] / mip, station_x, station_y, model=model)
    direction = np.column_stack(front.zenith_azimuth_deg())
    seen = triggers & np.isfinite(direction).all(axis=1)
    return ThrownShower(
        cores[seen], direction[seen], signals[seen].astype(np.float32), times[seen].astype(np.float32)
    )  # fmt: skip


def beside_particles(
    electrons: np.ndarray, r_m: np.ndarray, array: DetectorArray, areas: list[np.ndarray], rng: np.random.Generator
) -> np.ndarray:
    """Return what strays leave, and electrons that punch through to muon detectors, (U, S, 2) MeV, as the fits have it.

    Parameters
    ----------
    electrons
        (U, S) electrons above the muon detectors.
    r_m
        (U, S) distances of the stations from the axis.
    areas
        (S,) of both channels.
    """
    r, result = array.response, np.zeros((*electrons.shape, 2))
    deposits, strays = (r.electron_deposit_mev, r.muon_deposit_mev), (r.electron_strays, r.muon_strays)
    for channel, (deposit, mean) in enumerate(zip(deposits, strays, strict=True)):
        result[..., channel] = deposit * rng.poisson(mean * (areas[channel] > 0), electrons.shape)
    # Exponential deposits, whose variance over mean is twice their mean.
    each = 0.5 * r.punch_through_dispersion
    punched = rng.poisson(electrons * r.punch_through / each * np.exp(-r_m / r.punch_through_scale_m))
    result[..., 1] += r.muon_deposit_mev * each * rng.standard_gamma(np.maximum(punched, 1e-9)) * (punched > 0)
    return result


SLICES = 64
SLICE_RAD, ROUNDING_RAD = 2 * np.pi / SLICES, 1e-5
"""Slices of the azimuth, and what float32 may move an azimuth by."""
NOTHING = (np.empty(0, np.int64), np.empty(0))
"""Rows and times of no particles."""


def between(ascending: np.ndarray, low: float, high: float) -> tuple[int, int]:
    """Return which of ascending values (n,), first and one past the last, are at least ``low`` and below ``high``.

    NumPy's searchsorted (2.4) would make float64 of all particles at each call: a millisecond for three million.
    """
    first, last = (bisect_left(ascending, np.float64(edge)) for edge in (low, high))
    return first, last


class _Squares:
    """Particles that cross a detector, a square of its area."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground

    def __call__(
        self, x_m: float, y_m: float, area_m2: float, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        half = 0.5 * np.sqrt(area_m2)
        first, last = between(self.ground.x_m, x_m - half, x_m + half)
        rows = first + np.flatnonzero(np.abs(self.ground.y_m[first:last] - y_m) <= half)
        return rows, self.ground.time_ns[rows]


class _Sectors:
    """Particles for which those of a thinned shower in a sector about a detector stand."""

    def __init__(self, ground: Ground, axis: Axis) -> None:
        r_m, phi = axis.polar(ground.x_m, ground.y_m)
        self.order = np.argsort(r_m, kind="stable")
        self.r_m, self.phi, self.axis = r_m[self.order], phi[self.order], axis
        u, v = axis.horizontal
        # Behind the plane front through the core.
        self.late_ns = (ground.time_ns.astype(np.float64) + (u * ground.x_m + v * ground.y_m) / LIGHT_M_PER_NS)[
            self.order
        ]
        self.weight = ground.weight[self.order]
        # A sector looks at the particles of a few slices of the azimuth only: their rows, ascending, slice by slice.
        number = np.clip((self.phi + np.pi) / SLICE_RAD, 0, SLICES - 1).astype(np.int16)
        by_slice = np.argsort(number, kind="stable").astype(np.int32)
        self.slices = np.split(by_slice, np.searchsorted(number[by_slice], np.arange(1, SLICES, dtype=np.int16)))
        # Of the plane front itself: the earliest particle of the innermost hundredth.
        self.early_ns = float(self.late_ns[: max(len(self.late_ns) // 100, 1)].min(initial=np.inf))

    def __call__(
        self, x_m: float, y_m: float, area_m2: float, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        r_m, phi = self.axis.polar(np.array([x_m]), np.array([y_m]))
        r = max(float(r_m[0]), 1.0)
        width, turn, area = SECTOR_LN_R, SECTOR_RAD, area_m2 * np.cos(self.axis.zenith_rad)
        while turn * r * r * np.sinh(width) < area:
            width, turn = WIDER_LN_R * width, min(WIDER_RAD * turn, 2 * np.pi)
        low, high = r * np.exp(-width / 2), r * np.exp(width / 2)
        near = self._near(*between(self.r_m, low, high), float(phi[0]), turn / 2)
        turned = np.abs((self.phi[near] - phi[0] + np.pi) % (2 * np.pi) - np.pi)
        rows = near[turned <= turn / 2]
        expected = self.weight[rows] * (area / (0.5 * turn * (high**2 - low**2)))
        if expected.sum() > MOST_PARTICLES:
            raise InputError(
                f"a detector of {area_m2:g} m2 at {r:.0f} m would see {expected.sum():.2g} particles, the largest "
                f"weight is {self.weight[rows].max():.3g}: is the file damaged?"
            )
        rows = np.repeat(rows, rng.poisson(expected))
        u, v = self.axis.horizontal
        late = (self.late_ns[rows] - self.early_ns) * (r / np.maximum(self.r_m[rows], 1.0)) ** 2
        return self.order[rows], self.early_ns + late - (u * x_m + v * y_m) / LIGHT_M_PER_NS

    def _near(self, first: int, last: int, phi: float, half: float) -> np.ndarray:
        """Return the rows from ``first`` to ``last``, ascending, of all slices that a sector touches."""
        low, high = (int((phi + np.pi + side * (half + ROUNDING_RAD)) // SLICE_RAD) for side in (-1, 1))
        numbers = range(SLICES) if high - low >= SLICES else [k % SLICES for k in range(low, high + 1)]
        parts = [self.slices[number] for number in numbers]
        return np.sort(np.concatenate([part[slice(*between(part, first, last))] for part in parts]))


def usual_radius_m(array: DetectorArray) -> float:
    """Return the radius, m, of the disc in which cores are uniform unless another is asked for."""
    return CORE_SHARE * array.half_side_m
