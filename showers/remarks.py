"""What the first events of an array of one's own say of its files: units, dead detectors, and how directions count.

The same is said where events are converted, and wherever their folder is used.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from showerstack.showers.array import DetectorArray
from showerstack.showers.azimuth import azimuth_convention
from showerstack.showers.calibration import signal_remarks
from showerstack.showers.front import LIGHT_M_PER_NS, front_of
from showerstack.showers.units import LOOKED_AT, place_remarks

FRONTS = 500
"""Events of which a front is fitted."""
MANY_TIMES = 5
"""Times of an event, and events, from which times are looked at."""
FEW_EVENTS = 20
"""Directions of fewer events say nothing of a sky."""
SLOWEST = 200.0
"""How far times may be from what light takes across the array: vertical fronts are some nanoseconds thick."""
USUAL_MIDDLE = 0.35
"""Median time after the first station over what light takes across half the array, of an ordinary sky."""
TIME_UNITS: Mapping[str, float] = {
    "seconds": 1e9, "milliseconds": 1e6, "microseconds": 1e3, "picoseconds": 1e-3
}  # fmt: skip
"""Other units of arrival times, in ns."""
UNIT_FACTOR = 20.0
"""Times that are further from the usual than this are not of that unit either."""
NARROW_SKY_DEG = 6.0
"""Median zenith angle below which no array sees the sky: uniform in sin^2 up to 8.5 degrees, where 20 are usual."""
SAME_SINE = (0.6, 1.6)
"""Ratios of sines of stated zenith angles to those by arrival times that errors alone can make."""
NEIGHBOURS, NEAR_PITCHES = 4, 2.5
"""Nearest working detectors, and their largest distance in pitches, by which a silent one is judged."""
DEAD_CHANCE = 1e-6
"""A detector without any hit is dead where a working one would have none with a smaller probability than this."""
NAMED = 8
"""So many dead detectors are named one by one."""


def event_remarks(
    name: str,
    array: DetectorArray,
    grids: np.ndarray,
    scalars: Mapping[str, np.ndarray],
    times_ns: np.ndarray | None = None,
    *,
    narrow_sky: bool = False,
) -> list[str]:
    """Return remarks on the first events of an array; none where everything can be what it is said to be.

    Parameters
    ----------
    grids
        (n, rows, columns, 2) MeV.
    scalars
        (n,) each, those of E, Ze and Az that are there.
    times_ns
        (n, rows, columns), NaN where a station has none.
    narrow_sky
        Whether showers were simulated, and may all come from near the zenith.
    """
    grids = np.asarray(grids[:LOOKED_AT])
    known = {column: np.asarray(values[:LOOKED_AT], np.float64) for column, values in scalars.items()}
    missing = np.full(len(grids), np.nan)
    remarks = place_remarks(name, array, grids, known.get("E", missing))
    places_are_right = not remarks
    remarks += signal_remarks(name, array, grids)
    remarks += dead_remarks(name, array, grids)
    # Times that do not fit the places may be right where these are not.
    if times_ns is None or not places_are_right:
        return remarks
    times = np.asarray(times_ns[:FRONTS], np.float32)
    units = arrival_remarks(name, times, array.half_side_m)
    if units:
        return remarks + units
    stated = (known.get("Ze", missing)[:FRONTS], known.get("Az", missing)[:FRONTS])
    return remarks + direction_remarks(name, array, grids[:FRONTS], times, *stated, narrow_sky=narrow_sky)


def arrival_remarks(name: str, times_ns: np.ndarray, half_side_m: float) -> list[str]:
    """Return a remark on arrival times (n, ...) that light cannot have over an array; none where they can be.

    The median over events of the median time after the first station is compared with what light takes across half of
    the array's side.
    """
    times = np.where(np.isfinite(times_ns), times_ns, np.nan).reshape(len(times_ns), -1).astype(np.float64)
    times = times[np.isfinite(times).sum(axis=1) >= MANY_TIMES]
    if len(times) < MANY_TIMES:
        return []
    middle = float(np.median(np.nanmedian(times - np.nanmin(times, axis=1, keepdims=True), axis=1)))
    across = half_side_m / LIGHT_M_PER_NS
    if across / SLOWEST <= middle <= SLOWEST * across:
        return []
    far = {unit: abs(np.log(max(middle, 1e-12) * ns / (USUAL_MIDDLE * across))) for unit, ns in TIME_UNITS.items()}
    unit = min(far, key=far.__getitem__)
    doubt = f"are times in {unit}?" if far[unit] < np.log(UNIT_FACTOR) else "have all stations one clock, and its unit?"
    return [
        f"{name}: half of an event's stations are hit within {middle:.3g} ns of the first, but light takes "
        f"{across:.3g} ns across half of the array: {doubt}"
    ]


def direction_remarks(
    name: str,
    array: DetectorArray,
    grids: np.ndarray,
    times_ns: np.ndarray,
    zenith_deg: np.ndarray,
    azimuth_deg: np.ndarray,
    *,
    narrow_sky: bool = False,
) -> list[str]:
    """Return remarks on directions that no sky has, or that arrival times contradict.

    Stated zenith angles and azimuths, (n,) deg each, are NaN where there are none.
    """
    zenith, azimuth = front_of(array, grids, times_ns).zenith_azimuth_deg()
    seen = np.isfinite(zenith)
    if np.count_nonzero(seen) < FEW_EVENTS:
        return []
    stated = seen & np.isfinite(zenith_deg)
    middle = float(np.median(zenith[seen]))
    if np.count_nonzero(stated) >= FEW_EVENTS:
        given, found = zenith_deg[stated], zenith[stated]
        ratio = float(np.median(np.sin(np.radians(given))) / np.median(np.sin(np.radians(found))))
        # Near the zenith angles by arrival times are mostly their errors.
        if np.median(given) > NARROW_SKY_DEG and not SAME_SINE[0] < ratio < SAME_SINE[1]:
            is_elevation = np.median(np.abs(90.0 - given - found)) < np.median(np.abs(given - found))
            doubt = "is Ze the elevation?" if is_elevation else f"are times in ticks of {ratio:.2g} ns?"
            return [
                f"{name}: arrival times give a median zenith angle of {np.median(found):.1f} deg, but column Ze has "
                f"{np.median(given):.1f}: {doubt}"
            ]
    if middle < NARROW_SKY_DEG and not narrow_sky:
        return [
            f"{name}: by their arrival times half of the showers come from within {middle:.1f} deg of the zenith, "
            "where a sky has some 20: are times in ticks of a clock instead of ns?"
        ]
    convention = azimuth_convention(azimuth, azimuth_deg, np.where(np.isfinite(zenith_deg), zenith_deg, zenith))
    if not convention.is_known or convention.is_ours:
        return []
    return [f"{name}: {convention.words}; give {convention.cure}"]


def dead_remarks(name: str, array: DetectorArray, grids: np.ndarray) -> list[str]:
    """Return remarks on stations, and on detectors of one kind at others, that never have a signal."""
    hits = (np.asarray(grids) > 0).sum(axis=0)
    electron, muon = (_silent(array, hits[..., k], area) for k, area in enumerate(
        (array.electron_area_m2, array.muon_area_m2)))  # fmt: skip
    whole = (electron | ~array.has_electron) & (muon | ~array.has_muon) & array.has_station
    kinds = (
        ("stations", whole, array.has_station),
        ("e/gamma detectors", electron & ~whole, array.has_electron),
        ("muon detectors", muon & ~whole, array.has_muon),
    )
    remarks = []
    for kind, dead, there in kinds:
        cells = np.flatnonzero(dead)
        if not cells.size:
            continue
        x, y = (plane.ravel().round(1) + 0.0 for plane in (array.x_m, array.y_m))
        places = [f"({x[cell]:g}, {y[cell]:g})" for cell in cells[:NAMED]]
        more = f" and {cells.size - NAMED} more" if cells.size > NAMED else ""
        remarks.append(
            f"{name}: {cells.size} of {int(there.sum())} {kind} have no signal in {len(grids):,} events, though their "
            f"neighbours have: at x, y of {', '.join(places)}{more} m: dead, or switched off? Fits and scores take "
            "their silence for particles that were not there"
        )
    return remarks


def _silent(array: DetectorArray, hits: np.ndarray, area_m2: np.ndarray) -> np.ndarray:
    """Return which detectors (R, C) of a channel have no hits where working ones would have some.

    A working one is expected to have at least half as many as the least of its four nearest ones that have any, and in
    proportion where it is smaller.
    """
    there, n = (area_m2 > 0).ravel(), hits.ravel()
    silent = np.zeros(n.size, dtype=bool)
    working = np.flatnonzero(there & (n > 0))
    if working.size < NEIGHBOURS:
        return silent.reshape(hits.shape)
    x, y, area = array.x_m.ravel(), array.y_m.ravel(), area_m2.ravel()
    for cell in np.flatnonzero(there & (n == 0)):
        distance = np.hypot(x[working] - x[cell], y[working] - y[cell])
        nearest = np.argsort(distance, kind="stable")[:NEIGHBOURS]
        around = working[nearest]
        expected = 0.5 * (n[around] * np.minimum(area[cell] / area[around], 1.0)).min()
        silent[cell] = expected > -np.log(DEAD_CHANCE) and distance[nearest[0]] < NEAR_PITCHES * array.pitch_m
    return silent.reshape(hits.shape)
