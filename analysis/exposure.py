"""The exposure: area times solid angle times live time, in m2 sr s; given, or of the runs' own live time.

KASCADE: pi (91 m)^2 times pi (cos^2 a - cos^2 b) for zenith angles a to b times the live time. The whole data taking
lasted 4.64e8 s, of which the 1,308 public runs count as .185: at most 6.7e11 m2 sr s below 18 degrees and 1.75e12 below
30, dead time not subtracted. The 7.925e8 s that the runs' authors give for all data are 25 years, longer than data were
taken; fluxes and limits by them are too low by 1.7. One's own live time is the better basis.

What gaps between events cannot show: the dead time after each event (live time is too large by rate times dead time, by
15 % for 3 Hz and 50 ms), which is subtracted where it is given; interruptions shorter than some ten mean gaps (5 % for
pieces of 30 s at .3 Hz); and a rate that falls far below the rest of the run (16 % too small for a tenth in half of
it). Therefore every exposure has a relative error, common to all energies, groups and limits.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from showerstack.analysis.options import EXPOSURE_ERROR
from showerstack.runtime.errors import InputError
from showerstack.showers.event_files import EventFiles
from showerstack.showers.kascade import CORE_RADIUS_M
from showerstack.showers.schema import TIMES_FILE

UNITS = {"m2 sr s": 1.0, "km2 sr yr": 1e6 * 3.15576e7, "m2 sr yr": 3.15576e7, "cm2 sr s": 1e-4}
NUMBER = re.compile(r"\s*([0-9.eE+-]+)\s*([A-Za-z].*)?$")
INTERRUPTION_CHANCE = 1e-3
"""A gap between events is an interruption where it is so improbable for the run's rate, among all gaps."""
OVERLAP = 0.01
"""Folders of one time are remarked upon where their live times add up to so much more."""
ALL_PARTICLES = 2.4e-21
"""m^-2 sr^-1 s^-1 eV^-1 at 1 PeV, E^-2.7 below the knee: the published all-particle flux, to some ten per cent
(KASCADE, Astropart. Phys. 24 (2005) 1)."""
SUSPICIOUS_ERRORS = 3.0
"""A difference of fewer standard errors says nothing about the exposure."""
SUSPICIOUS, IMPOSSIBLE = 1.3, 30.0
"""Ratios from which an exposure is remarked upon, and refused."""


@dataclass(frozen=True)
class Exposure:
    """An exposure and where it comes from."""

    m2_sr_s: float
    live_time_s: float | None
    """Of all runs, from the gaps between their events; None where one of them has no event times."""
    given: bool
    """By the user, instead of taken from the live time."""
    remarks: tuple[str, ...] = ()
    relative_error: float = 0.0
    """One standard deviation, common to all fluxes."""
    dead_time_s: float = 0.0
    """After each event, subtracted from the live time."""

    def as_json(self, zenith_max_deg: float) -> dict[str, float | str | None]:
        """Return what provenance keeps."""
        of_live_time = None if self.live_time_s is None else per_second(zenith_max_deg) * self.live_time_s
        return {
            "exposure_m2_sr_s": self.m2_sr_s,
            "exposure_from": "option" if self.given else "live time of the runs",
            "live_time_s": self.live_time_s,
            "exposure_of_live_time_m2_sr_s": of_live_time,
            "exposure_relative_error": self.relative_error,
            "dead_time_s": self.dead_time_s,
        }


def per_second(zenith_max_deg: float) -> float:
    """Return area times solid angle of zenith angles from 0, m2 sr."""
    return float(np.pi * CORE_RADIUS_M**2 * np.pi * np.sin(np.radians(zenith_max_deg)) ** 2)


def live_time(seconds: np.ndarray, name: str = "event times", dead_time_s: float = 0.0) -> float:
    """Return the live time of one run from its events' times (N,), in s: gaps that are interruptions left out.

    After each event the dead time is not live.

    The rate is that of the median gap. Before the first and after the last event of each uninterrupted part a mean gap
    is added.
    """
    known = seconds[np.isfinite(seconds)]
    times = np.unique(known)
    if len(times) < 10:
        raise InputError(f"{name}: fewer than ten different ones, too few for a live time: give --exposure")
    gaps = np.diff(times)
    mean = float(np.median(gaps)) / np.log(2)
    live = gaps[gaps <= mean * np.log(len(gaps) / INTERRUPTION_CHANCE)]
    total_s, dead_s = float(live.sum() + 2 * (len(gaps) - len(live) + 1) * live.mean()), dead_time_s * len(known)
    if dead_s >= total_s:
        raise InputError(
            f"{name}: {len(known):,} times --dead-time {dead_time_s:g} s are more than all {total_s:.0f} s"
        )
    return total_s - dead_s


def live_time_of(folders: Sequence[Path], dead_time_s: float = 0.0) -> tuple[float, tuple[str, ...]]:
    """Return the live time of folders, s, and a remark where some were taken at the same time: it counts once.

    Folders whose times overlap are one run that was written in several files.
    """
    runs = list[tuple[str, np.ndarray]]()
    for folder in folders:
        files = EventFiles.open(folder)
        if not files.has(TIMES_FILE):
            raise InputError(
                f"{folder} has no event times ({TIMES_FILE}) to take the live time from: give --exposure, or convert "
                "the measured runs with --times"
            )
        runs.append((str(files.path(TIMES_FILE)), files.times()))
    alone = {name: live_time(seconds, name, dead_time_s) for name, seconds in runs}
    total, remarks = 0.0, list[str]()
    for together in _overlapping(runs):
        names = [name for name, _ in together]
        if len(together) == 1:
            total += alone[names[0]]
            continue
        merged = live_time(np.concatenate([seconds for _, seconds in together]), " and ".join(names), dead_time_s)
        each = sum(alone[name] for name in names)
        total += merged
        if each > (1.0 + OVERLAP) * merged:
            remarks.append(
                f"{names[0]} and {len(names) - 1} more were taken at the same time: their {merged:,.0f} s count once "
                f"(one by one {each:,.0f} s)"
            )
    return total, tuple(remarks)


def _overlapping(runs: Sequence[tuple[str, np.ndarray]]) -> list[list[tuple[str, np.ndarray]]]:
    """Return runs in groups whose times, from the first to the last event, overlap; in their order."""
    spans = {name: (float(np.nanmin(seconds)), float(np.nanmax(seconds))) for name, seconds in runs}
    groups: list[list[tuple[str, np.ndarray]]] = []
    end = -np.inf
    for run in sorted(runs, key=lambda one: spans[one[0]][0]):
        first, last = spans[run[0]]
        if first < end:
            groups[-1].append(run)
        else:
            groups.append([run])
        end = max(end, last)
    place = {name: k for k, (name, _) in enumerate(runs)}
    return sorted(groups, key=lambda group: place[group[0][0]])


def exposure_of(
    text: str | None,
    folders: Sequence[Path],
    zenith_max_deg: float,
    dead_time_s: float = 0.0,
    relative_error: float = EXPOSURE_ERROR,
) -> Exposure:
    """Return the exposure that was given, or that of the runs' own live time.

    Parameters
    ----------
    text
        A number with or without a unit; None: from the event times.
    dead_time_s
        After each event, for the live time.
    relative_error
        Of the exposure, one standard deviation.
    """
    given = None if text is None else parse_exposure(text)
    overlap: tuple[str, ...] = ()
    total: float | None
    try:
        total, overlap = live_time_of(folders, dead_time_s)
    except InputError:
        if given is None:
            raise
        total = None
    if given is None:
        assert total is not None
        value = per_second(zenith_max_deg) * total
        line = (
            f"exposure {value:.3g} m2 sr s: {total:,.0f} s live time of the runs' own events (their gaps), a disc of "
            f"{CORE_RADIUS_M:g} m, zenith angles below {zenith_max_deg:g} deg; "
        ) + (f"{dead_time_s:g} s dead time an event subtracted" if dead_time_s else "dead time not subtracted")
        return Exposure(value, total, False, (line, *overlap), relative_error, dead_time_s)
    if total is None:
        return Exposure(given, None, True, (), relative_error, dead_time_s)
    ratio = given / (per_second(zenith_max_deg) * total)
    remark = (
        f"--exposure is {ratio:.3g} times what the runs' own live time gives ({total:,.0f} s below {zenith_max_deg:g} "
        f"deg: {given / ratio:.3g} m2 sr s)"
    )
    remarks = (*overlap, remark) if max(ratio, 1 / ratio) > SUSPICIOUS else overlap
    return Exposure(given, total, True, remarks, relative_error, dead_time_s)


def parse_exposure(text: str) -> float:
    """Return an exposure in m2 sr s from a number with or without its unit, such as ``6.7e11`` or ``2 km2 sr yr``."""
    match = NUMBER.fullmatch(text.replace("_", " ").replace("*", " "))
    try:
        value = float(match[1]) if match else float("nan")
    except ValueError:
        value = float("nan")
    if not match or not np.isfinite(value) or value <= 0:
        raise InputError(f"--exposure {text!r}: give a positive number of m2 sr s, such as 6.7e11")
    unit = " ".join((match[2] or "m2 sr s").split())
    if unit not in UNITS:
        raise InputError(f"--exposure {text!r}: unknown unit {unit!r}, choose one of {', '.join(UNITS)}")
    return value * UNITS[unit]


def check_flux_of_exposure(
    flux: np.ndarray, centres_ev: np.ndarray, errors: np.ndarray | None = None, *, simulated: bool, given: bool = True
) -> list[str]:
    """Return a remark if fluxes of all particles are far from the published ones.

    Parameters
    ----------
    flux
        (B,) of all groups, m^-2 sr^-1 s^-1 eV^-1.
    centres_ev
        (B,) energies.
    errors
        (B,) standard errors of the flux; None: not known.
    simulated
        Whether the data were simulated: then their exposure is a matter of taste.
    given
        Whether the user stated the exposure; otherwise it is that of the runs' own live time.
    """
    good = np.isfinite(flux) & (flux > 0)
    if not good.any():
        return []
    first = int(np.flatnonzero(good)[0])
    ratio = float(flux[first] / (ALL_PARTICLES * (centres_ev[first] / 1e15) ** -2.7))
    worst = max(ratio, 1 / ratio)
    expected = flux[first] / ratio
    covered = errors is not None and abs(flux[first] - expected) < SUSPICIOUS_ERRORS * errors[first]
    if worst < SUSPICIOUS or (covered and worst < IMPOSSIBLE):
        return []
    doubt = "is it in m2 sr s, and of these events?" if given else "are these all events of the runs' live time?"
    text = (
        f"with this exposure the flux of all particles is {ratio:.2g} times the published one at lg(E/eV) "
        f"{np.log10(centres_ev[first]):.2f}: {doubt}"
    )
    if worst > IMPOSSIBLE and not simulated:
        raise InputError(f"--exposure: {text}")
    return [text]
