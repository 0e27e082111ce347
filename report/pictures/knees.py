"""Pictures of fitted knees: spectra with the broken power laws, and the profiles of the knees' positions."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatterSciNotation, LogLocator

from report.pictures.spectra import LABEL, POWER
from report.pictures.style import INK, MARKERS, PALETTE, drawing, new_figure

LEVELS = (1.0, 3.84)
HIGHEST = 9.0
"""Difference of chi-square up to which profiles are drawn."""


def knee_picture(
    energy_ev: np.ndarray, flux: np.ndarray, errors: np.ndarray, fitted: np.ndarray, names: tuple[str, ...]
) -> Figure:
    """Draw fluxes with statistical errors and the fitted ones as lines; (B, C) in m^-2 sr^-1 s^-1 eV^-1."""
    scale = energy_ev[:, None] ** POWER
    with drawing():
        figure = new_figure(3.2)
        axes = figure.add_subplot()
        for k, name in enumerate(names):
            axes.errorbar(
                energy_ev, (flux * scale)[:, k], (errors * scale)[:, k], fmt=MARKERS[k], color=PALETTE[k], label=name,
                elinewidth=1.2,
            )  # fmt: skip
            axes.plot(energy_ev, (fitted * scale)[:, k], color=PALETTE[k], lw=1.0)
        axes.axhline(0, color=INK, lw=0.6)
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(LogLocator(subs=(2, 5)))
        axes.xaxis.set_minor_formatter(LogFormatterSciNotation(minor_thresholds=(np.inf, np.inf)))
        axes.set_xlabel("energy, eV")
        axes.set_ylabel(LABEL)
        figure.legend(loc="outside upper center", ncols=len(names), columnspacing=0.8, handletextpad=0.2)
    return figure


def profile_picture(profiles: list[tuple[str, np.ndarray, np.ndarray]]) -> Figure:
    """Draw chi-square above its minimum against the position: (name, lg E, difference); the last one is common."""
    with drawing():
        figure = new_figure(3.0)
        axes = figure.add_subplot()
        for k, (name, grid, difference) in enumerate(profiles):
            common = k == len(profiles) - 1
            colour, style = (INK, ":") if common else (PALETTE[k], "-")
            axes.plot(grid, difference, style, color=colour, lw=1.8 if common else 1.2, label=name)
        for level in LEVELS:
            axes.axhline(level, color=INK, lw=0.6, ls="--")
        axes.set_ylim(0, HIGHEST)
        axes.set_xlabel("position of the knee, lg(E/eV); common: lg(R/V)")
        axes.set_ylabel("chi-square above minimum")
        figure.legend(loc="outside upper center", ncols=3, columnspacing=0.8, handletextpad=0.4)
    return figure
