"""Coefficients of the closed form of showers by hadronic model and atmospheric depth, from a cascade Monte Carlo.

``cascade_{model}.json`` hold them at several depths and say how they were made (``benchmarks/world/cascade``); between
these depths they are interpolated. At KASCADE's depth Sibyll-2.3d has the coefficients that the worlds are fitted with.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

import numpy as np

from showerstack.runtime.errors import InputError

CASCADES = {
    "sibyll21": "Sibyll 2.1",
    "sibyll23d": "Sibyll 2.3d",
    "sibyll23e": "Sibyll 2.3e",
    "sibyll23dstar": "Sibyll* (2.3d, mixed)",
}
"""Titles of the hadronic models that the Monte Carlo was run with, few muons to many."""
FITTED = "sibyll23d"
"""The one that the worlds are fitted with."""
GROUND_DEPTH = 1023.0
"""Vertical atmospheric depth of KASCADE, g/cm2 [p]."""
DEPTHS = (550.0, 1040.0)
"""Grounds that showers can be simulated at, g/cm2."""
WIDE_MASSES = frozenset({0, 1, 56})
"""Photons, protons and iron: simulated over more energies than other nuclei."""
MEANS = frozenset({"mX", "mM", "n0", "s0", "hM", "lN0", "lK"})
"""Quantities that are extrapolated linearly beyond the Monte Carlo's energies; all others are held constant."""
WIDTHS = {"tX": 0.0, "sX": 0.0, "tM": 0.0, "sM": 0.0, "tR": 0.0, "sR": 0.01, "ss": 0.0}
"""Exponential and Gaussian widths with their lower limits [m]."""
WIDE_RANGE = (-1.5, 2.0)
"""Energies (lg E - 15.5) covered by the Monte Carlo for photons, protons and iron [m]."""
NARROW_RANGE = (-1.2, 1.2)
"""The same for helium, carbon and silicon, widened by 0.2 [m]."""
MAX_INCLINATION = 0.45
"""Widths and shapes are held constant beyond this sec(zenith) - 1; the Monte Carlo ends at 0.35 [g]."""
CURVED_INCLINATION = 0.35
"""Means go on linearly from here where they are curved in sec(zenith) - 1."""


@dataclass(frozen=True, eq=False)
class Coefficients:
    """Of one hadronic model at one depth."""

    cascade: str
    """A name in :data:`CASCADES`."""
    depth_g_cm2: float
    rows: Mapping[str, Mapping[int, np.ndarray]]
    """By quantity and mass number (0: photons), (6,): a, b, c, d, f, g."""

    def at(self, name: str, mass: int, e: np.ndarray, s: np.ndarray) -> np.ndarray:
        """Evaluate one quantity of the closed form, P = a + b e + c e^2 + d S + f e S + g S^2.

        Parameters
        ----------
        name
            Key of the table, such as ``mX``.
        mass
            Mass number, 0 for photons.
        e
            lg(E/eV) - 15.5.
        s
            S = sec(zenith) - 1.
        """
        a, b, c, d, f, g = self.rows[name][mass]
        low, high = WIDE_RANGE if mass in WIDE_MASSES else NARROW_RANGE
        inside = np.clip(e, low, high)
        if name not in MEANS:
            s = np.minimum(s, MAX_INCLINATION)
        value = a + b * inside + c * inside**2 + (d + f * inside) * s
        if name in MEANS:
            value = value + (b + 2.0 * c * inside + f * s) * (e - inside)
        if g:
            curved = np.minimum(s, CURVED_INCLINATION)
            value = value + g * curved * (2.0 * s - curved)
        return np.maximum(value, WIDTHS[name]) if name in WIDTHS else value


@functools.cache
def coefficients(cascade: str, depth_g_cm2: float) -> Coefficients:
    """Return the coefficients of a hadronic model at a vertical depth, g/cm2.

    Raises
    ------
    InputError
        For an unknown model, or a depth that the Monte Carlo does not cover.
    """
    check_cascade(cascade)
    check_depth(depth_g_cm2)
    depths, tables = _stored(cascade)
    known = np.flatnonzero(depths == depth_g_cm2)

    def here(rows: np.ndarray) -> np.ndarray:
        if known.size:
            return np.asarray(rows[known[0]])
        from scipy.interpolate import CubicSpline  # KASCADE's own depth is in the tables

        return np.asarray(CubicSpline(depths, rows)(depth_g_cm2))

    return Coefficients(
        cascade, depth_g_cm2, {name: {mass: here(rows) for mass, rows in each.items()} for name, each in tables.items()}
    )


@functools.cache
def _stored(cascade: str) -> tuple[np.ndarray, dict[str, dict[int, np.ndarray]]]:
    text = resources.files(__package__).joinpath(f"cascade_{cascade}.json").read_text(encoding="utf-8")
    content = json.loads(text)
    tables = {
        name: {int(mass): np.asarray(rows, dtype=np.float64) for mass, rows in each.items()}
        for name, each in content["parameters"].items()
    }
    return np.asarray(content["depths"], dtype=np.float64), tables


def check_cascade(name: str) -> None:
    """Refuse a hadronic model that the Monte Carlo was not run with."""
    if name not in CASCADES:
        raise InputError(f"unknown hadronic model {name!r}: the cascade Monte Carlo has {', '.join(CASCADES)}")


def check_depth(depth_g_cm2: float) -> None:
    """Refuse a vertical depth, g/cm2, at which showers cannot be simulated."""
    low, high = DEPTHS
    if not low <= depth_g_cm2 <= high:
        raise InputError(
            f"depth is {depth_g_cm2:g} g/cm2, but showers can be simulated from {low:g} to {high:g} g/cm2 alone: the "
            "cascade Monte Carlo was run there"
        )


AT_KASCADE = coefficients(FITTED, GROUND_DEPTH)
"""What the worlds are fitted with."""
