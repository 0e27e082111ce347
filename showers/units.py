"""Units of places and times, told from their size: one table for each.

A shower spreads its signals over tens of metres, at high energies and wide spacings over hundreds, and events with
times are younger than :data:`FIRST_S`. Numbers far from that are of another unit; the likely one is named.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from showerstack.showers.array import KASCADE, DetectorArray

PLACES: Mapping[str, float] = {"mm": 1e-3, "cm": 1e-2, "km": 1e3, "degrees": 1.11e5, "radians": 6.37e6}
"""Other units of places, in m."""
SPREAD_M, SPREAD_PER_DECADE, REFERENCE_LG_ENERGY = 40.0, 0.35, 15.0
"""Root mean square distance of a shower's signals from their centre of gravity at 10^15 eV, m, and how its lg rises
with lg E: 35 m in simulated showers of KASCADE at 10^15 eV, some 700 m at 10^19 eV and 1,500 m between stations [The
Pierre Auger Collaboration, Nucl. Instrum. Meth. A 798 (2015) 172]."""
FACTOR, LEAST_M = 12.0, 2.0
"""A spread so many times larger than that is no shower's, nor is one below so many m."""
PITCH_M, USUAL_PITCH_M = (0.3, 5000.0), 30.0
"""Least and largest distance of neighbouring stations, and that of an array with many of them."""
AREA_M2, CM2 = 1000.0, 1e-4
"""Detectors of a station that are larger than this are given in cm2."""
MIN_STATIONS, MIN_SHOWERS = 3, 20
"""Fewer hit stations have no spread, and fewer such showers no usual one."""
LOOKED_AT = 2_000
"""Showers whose places are looked at."""

FIRST_S, KASCADE_FIRST_S, LAST_S = 631_152_000.0, 820_454_400.0, 4_102_444_800.0
"""Seconds since 1970 of the years 1990, 1996 (KASCADE's first events) and 2100."""
KASCADE_LAST_S = 1_388_534_399.0
"""KASCADE measured to 2013."""
DAY_S, GPS_WEEKS_S = 86_400.0, 1024 * 7 * 86_400.0
"""A day, and the 1,024 weeks after which GPS counts weeks from 0 again."""
FEW_TIMES, FEW_EQUAL, MANY_TIMES = 0.01, 10, 100
"""Share of times that may be odd, of equal ones at least so many, from so many times on."""
TIMES: tuple[tuple[str, float, float], ...] = (
    ("years", 1990.0, 2100.0),
    ("days since 1970", FIRST_S / 86_400, LAST_S / 86_400),
    ("modified Julian days (MJD)", FIRST_S / 86_400 + 40_587, LAST_S / 86_400 + 40_587),
    ("Julian days (JD)", FIRST_S / 86_400 + 2_440_587.5, LAST_S / 86_400 + 2_440_587.5),
    ("seconds of GPS, since 1980", FIRST_S - 315_964_800, KASCADE_FIRST_S),
    ("ms since 1970", 1e3 * FIRST_S, 1e3 * LAST_S),
    ("microseconds since 1970", 1e6 * FIRST_S, 1e6 * LAST_S),
    ("ns since 1970", 1e9 * FIRST_S, 1e9 * LAST_S),
)
"""Other units of event times: what they are called, and between which values the years 1990 to 2100 are.
The first that fits is named. GPS looks like seconds since 1970 of ten years before, so that later years do not show."""


def pitch_remarks(name: str, array: DetectorArray) -> list[str]:
    """Return a remark on an array without showers whose stations stand so near or far that their unit is no m."""
    pitch, (least, most) = array.pitch_m, PITCH_M
    if array.n_stations < MIN_STATIONS or least < pitch < most:
        return []
    return [
        f"{name}: neighbouring stations stand {pitch:.3g} m apart: are their places in {_unit(pitch, USUAL_PITCH_M)}?"
    ]


def _unit(length: float, expected_m: float) -> str:
    """Return the unit in which a length comes nearest to what is expected."""
    return min(PLACES, key=lambda one: abs(np.log(max(length, 1e-12) * PLACES[one] / expected_m)))


def place_remarks(name: str, array: DetectorArray, grids: np.ndarray, lg_energy: np.ndarray) -> list[str]:
    """Return remarks on places and areas of stations that look like other units than m and m2.

    Parameters
    ----------
    grids
        (n, rows, columns, 2) MeV.
    lg_energy
        (n,) lg(E/eV); where it is not finite, 10^15 eV is assumed.
    """
    remarks = []
    areas = array.electron_area_m2[array.has_station]
    if np.median(areas) > AREA_M2:
        remarks.append(
            f"{name}: half of the stations have more than {np.median(areas):,.0f} m2 of e/gamma detectors: are areas "
            f"in cm2? Then these are {CM2 * np.median(areas):.3g} m2"
        )
    spread, typical = _spreads(array, grids, lg_energy)
    if spread is None or LEAST_M < spread < FACTOR * typical:
        return remarks
    unit = _unit(spread, typical)
    remarks.append(
        f"{name}: signals of a shower are spread over {spread:.3g} m, at these energies {typical:,.0f} m are usual: "
        f"are places of stations in {unit}? Then these are {spread * PLACES[unit]:,.0f} m; give m"
    )
    return remarks


def _spreads(array: DetectorArray, grids: np.ndarray, lg_energy: np.ndarray) -> tuple[float | None, float]:
    """Return the usual spread of signals, None where too few showers show it, and what is expected, m."""
    cells = array.cells
    signals = np.nan_to_num(np.asarray(grids[:LOOKED_AT], np.float64).reshape(-1, array.n_cells, 2)[:, cells, 0])
    signals = np.maximum(signals, 0.0)
    shown = (signals > 0).sum(axis=1) >= MIN_STATIONS
    if np.count_nonzero(shown) < MIN_SHOWERS:
        return None, SPREAD_M
    signals = signals[shown] / signals[shown].max(axis=1, keepdims=True)
    shares = signals / signals.sum(axis=1, keepdims=True)
    variance = np.zeros(len(shares))
    for plane in (array.x_m, array.y_m):
        place = plane.ravel()[cells]
        variance += shares @ place**2 - (shares @ place) ** 2
    energy = np.asarray(lg_energy[:LOOKED_AT], np.float64)[shown]
    decades = np.where(np.isfinite(energy), energy, REFERENCE_LG_ENERGY) - REFERENCE_LG_ENERGY
    typical = SPREAD_M * 10 ** (SPREAD_PER_DECADE * float(np.clip(np.median(decades), -2, 6)))
    return float(np.median(np.sqrt(np.maximum(variance, 0.0)))), typical


def time_unit(seconds: np.ndarray, array: DetectorArray) -> str | None:
    """Return the unit that event times (N,) look like, None where they may be seconds since 1970."""
    known = seconds[np.isfinite(seconds)]
    first = KASCADE_FIRST_S if array == KASCADE else FIRST_S
    if not known.size or first <= (middle := float(np.quantile(known, 0.5, method="higher"))) <= LAST_S:
        return None
    return next((unit for unit, low, high in TIMES if low <= middle <= high), "another unit, or another origin")


def time_remarks(name: str, seconds: np.ndarray, array: DetectorArray) -> list[str]:
    """Return remarks on event times (N,) of an array: another unit than seconds since 1970, clocks that were not set.

    Such clocks show a year in which the array did not measure, one time for many events, or times by a multiple of
    1,024 weeks earlier or later, after which GPS counts from 0 again.
    """
    known = seconds[np.isfinite(seconds)]
    unit = time_unit(seconds, array)
    if unit is not None:
        middle = float(np.median(known))
        return [
            f"{name}: half of the event times are below {middle:.6g}, which looks like {unit}: give seconds since 1970"
        ]
    remarks = []
    first, last = (KASCADE_FIRST_S, KASCADE_LAST_S) if array == KASCADE else (FIRST_S, LAST_S)
    outside = known[(known < first) | (known > last)]
    if outside.size > FEW_TIMES * known.size:
        when = f"{_year(outside.min())} to {_year(outside.max())}" if outside.size > 1 else _year(outside[0])
        measured = f"{array.name} measured from {_year(first)} to {_year(last)}" if array == KASCADE else (
            f"times from {_year(first)} to {_year(last)} are expected")  # fmt: skip
        turned = any(((moved >= first) & (moved <= last)).all() for k in (-2, -1, 1, 2)
                     for moved in [outside + k * GPS_WEEKS_S])  # fmt: skip
        doubt = "do GPS weeks begin again (1,024 weeks)?" if turned else "had its clock no date?"
        remarks.append(f"{name}: {outside.size:,} of {known.size:,} event times are of {when}, but {measured}: {doubt}")
    inside = np.sort(known[(known >= first) & (known <= last)])
    gaps = np.diff(inside)
    if gaps.size and gaps.max() > 0.5 * GPS_WEEKS_S:
        place = int(gaps.argmax())
        parts = min(1.1 * (inside[-1] - inside[0] - gaps[place]) + DAY_S, 0.1 * GPS_WEEKS_S)
        if abs(gaps[place] - max(round(gaps[place] / GPS_WEEKS_S), 1) * GPS_WEEKS_S) <= parts:
            remarks.append(
                f"{name}: event times of {_year(inside[place])} and of {_year(inside[place + 1])} lie a multiple of "
                "1,024 weeks apart: do GPS weeks begin again? Add 619,315,200 s to the earlier ones"
            )
    if known.size >= MANY_TIMES:
        values, counts = np.unique(known, return_counts=True)
        most = int(counts.argmax())
        if counts[most] > max(FEW_TIMES * known.size, FEW_EQUAL):
            remarks.append(
                f"{name}: {counts[most]:,} of {known.size:,} events have one time, "
                f"{np.datetime64(int(values[most]), 's')}: is it a clock's default?"
            )
    return remarks


def _year(seconds: float) -> str:
    return str(np.datetime64(int(seconds), "s").astype("datetime64[Y]"))
