"""Exposure: area times solid angle times live time, in m2 sr s, and whether it can be right.

KASCADE: pi (91 m)^2 times pi (cos^2 a - cos^2 b) for zenith angles a to b times the live time; 7.925e8 s for all data.
"""

from __future__ import annotations

import re

import numpy as np

from showers.schema import InputError

UNITS = {"m2 sr s": 1.0, "km2 sr yr": 1e6 * 3.15576e7, "m2 sr yr": 3.15576e7, "cm2 sr s": 1e-4}
NUMBER = re.compile(r"\s*([0-9.eE+-]+)\s*([A-Za-z].*)?$")
ALL_PARTICLES = 2.4e-21
"""m^-2 sr^-1 s^-1 eV^-1 at 1 PeV, E^-2.7 below the knee: the published all-particle flux, to some ten per cent
(KASCADE, Astropart. Phys. 24 (2005) 1)."""
SUSPICIOUS, IMPOSSIBLE = 3.0, 30.0
"""Ratios to the published flux from which an exposure is remarked upon, and refused."""


def parse_exposure(text: str) -> float:
    """Return an exposure in m2 sr s from a number with or without its unit, such as ``6.2e12`` or ``2 km2 sr yr``.

    Raises
    ------
    InputError
        If it is no positive number, or the unit is unknown.
    """
    found = NUMBER.fullmatch(text.replace("_", " ").replace("*", " "))
    try:
        value = float(found[1]) if found else float("nan")
    except ValueError:
        value = float("nan")
    if not found or not np.isfinite(value) or value <= 0:
        raise InputError(f"--exposure {text!r}: give a positive number of m2 sr s, such as 6.2e12")
    unit = " ".join((found[2] or "m2 sr s").split())
    if unit not in UNITS:
        raise InputError(f"--exposure {text!r}: unknown unit {unit!r}, choose one of {', '.join(UNITS)}")
    return value * UNITS[unit]


def judge_exposure(flux: np.ndarray, centres_ev: np.ndarray, *, simulated: bool) -> list[str]:
    """Return a remark if fluxes of all particles are far from the published ones.

    Parameters
    ----------
    flux
        (B,) of all groups, m^-2 sr^-1 s^-1 eV^-1.
    centres_ev
        (B,) energies.
    simulated
        Whether the data were simulated: then their exposure is a matter of taste.

    Raises
    ------
    InputError
        If measured fluxes are impossible: the exposure is in other units, or not that of these events.
    """
    good = np.isfinite(flux) & (flux > 0)
    if not good.any():
        return []
    first = int(np.flatnonzero(good)[0])
    ratio = float(flux[first] / (ALL_PARTICLES * (centres_ev[first] / 1e15) ** -2.7))
    worst = max(ratio, 1 / ratio)
    if worst < SUSPICIOUS:
        return []
    text = (
        f"with this exposure the flux of all particles is {ratio:.2g} times the published one: is it in m2 sr s, and "
        "of these events?"
    )
    if worst > IMPOSSIBLE and not simulated:
        raise InputError(f"--exposure: {text}")
    return [text]
