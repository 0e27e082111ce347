"""What the network estimates beside the class: true quantities of a shower, standardised."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl


@dataclass(frozen=True)
class Target:
    """A true quantity; the network's targets are ``(value - centre) / width``."""

    name: str
    unit: str
    meaning: str
    centre: float
    width: float


TARGETS: tuple[Target, ...] = (
    Target("lg_energy", "lg(E/eV)", "primary energy", 15.4, 0.4),
    Target("lg_ne", "lg", "electron number", 5.1, 0.5),
    Target("lg_nmu", "lg", "muon number", 4.4, 0.5),
    Target("xmax", "g/cm2", "depth of maximum", 550.0, 60.0),
    Target("age", "1", "lateral age", 1.0, 0.12),
    Target("lg_mass", "1", "lg of the mass number; hadrons only", 0.9, 0.65),
    Target("core_outward_m", "m", "core minus fitted core, away from the array's centre", 0.0, 2.0),
    Target("core_sideways_m", "m", "core minus fitted core, to the left of that direction", 0.0, 2.0),
)
"""In the order of the network's outputs."""
CLIP = 6.0
"""Standardised targets are cut here: a fit that went astray teaches nothing."""


def targets_of(truth: pl.DataFrame, fit_x_m: np.ndarray, fit_y_m: np.ndarray) -> np.ndarray:
    """Return (n, T) float32 standardised targets, NaN where a quantity has no meaning.

    Parameters
    ----------
    truth
        What really happened: :attr:`showers.simulation.blocks.SimulatedEvents.truth`.
    fit_x_m, fit_y_m
        (n,) core of the lateral fit.
    """
    mass = truth["mass"].to_numpy().astype(np.float64)
    dx_m = truth["core_x_m"].to_numpy() - fit_x_m
    dy_m = truth["core_y_m"].to_numpy() - fit_y_m
    r_m = np.maximum(np.hypot(fit_x_m, fit_y_m), 1e-3)
    values = {
        "lg_mass": np.where(mass > 0, np.log10(np.maximum(mass, 1.0)), np.nan),
        "core_outward_m": (dx_m * fit_x_m + dy_m * fit_y_m) / r_m,
        "core_sideways_m": (dy_m * fit_x_m - dx_m * fit_y_m) / r_m,
    }
    columns = [values[t.name] if t.name in values else truth[t.name].to_numpy().astype(np.float64) for t in TARGETS]
    scaled = [np.clip((c - t.centre) / t.width, -CLIP, CLIP) for c, t in zip(columns, TARGETS, strict=True)]
    return np.column_stack(scaled).astype(np.float32)
