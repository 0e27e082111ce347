"""Pictures of elemental spectra in the field's manner: flux times E^2.7 against energy, and shares of the groups."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from report.pictures.style import INK, MARKERS, PALETTE, drawing, new_figure

POWER = 2.7
LABEL = r"$J\,E^{2.7}$, m$^{-2}$ sr$^{-1}$ s$^{-1}$ eV$^{1.7}$"


def flux_picture(
    energy_ev: np.ndarray,
    flux: np.ndarray,
    statistical: np.ndarray,
    total: np.ndarray,
    names: tuple[str, ...],
    title: str = "",
) -> Figure:
    """Draw one or more spectra on one pair of axes: thick bars statistical, thin ones total errors.

    Parameters
    ----------
    energy_ev
        (B,) middles of the bins.
    flux, statistical, total
        (B, C) in m^-2 sr^-1 s^-1 eV^-1; NaN is left out.
    names
        C names; a single one has the colour of :data:`PALETTE`'s first entry unless drawn by :func:`panel_pictures`.
    """
    return _drawn(energy_ev, flux, statistical, total, names, range(len(names)), title)


def panel_pictures(
    energy_ev: np.ndarray, flux: np.ndarray, statistical: np.ndarray, total: np.ndarray, names: tuple[str, ...]
) -> list[Figure]:
    """Draw one picture for each group; arguments as for :func:`flux_picture`."""
    return [
        _drawn(energy_ev, flux[:, k : k + 1], statistical[:, k : k + 1], total[:, k : k + 1], (name,), [k], name)
        for k, name in enumerate(names)
    ]


def _drawn(
    energy_ev: np.ndarray,
    flux: np.ndarray,
    statistical: np.ndarray,
    total: np.ndarray,
    names: tuple[str, ...],
    styles: range | list[int],
    title: str,
) -> Figure:
    scale = energy_ev[:, None] ** POWER
    with drawing():
        figure = new_figure(3.2)
        axes = figure.add_subplot()
        for k, style in enumerate(styles):
            colour = PALETTE[style] if len(PALETTE) > style else INK
            x = energy_ev * (1 + 0.02 * (k - (len(names) - 1) / 2))
            y = flux[:, k] * scale[:, 0]
            good = np.isfinite(y)
            for errors, width in ((total[:, k], 0.8), (statistical[:, k], 2.2)):
                axes.errorbar(
                    x[good], y[good], (errors * scale[:, 0])[good], fmt="none", ecolor=colour, elinewidth=width
                )
            axes.plot(x[good], y[good], MARKERS[style], color=colour, label=names[k])
        axes.axhline(0, color=INK, lw=0.6)
        axes.set_xscale("log")
        axes.set_xlabel("energy, eV")
        axes.set_ylabel(LABEL)
        axes.set_title(title)
        if len(names) > 1:
            figure.legend(loc="outside upper center", ncols=len(names), columnspacing=0.8, handletextpad=0.2)
    return figure
