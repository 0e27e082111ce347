"""The plane of reconstructed electron and muon numbers, coloured by the posterior of what ships."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from report.pictures.style import MAP, drawing, new_figure

MIN_EVENTS = 3
"""Cells with fewer events stay empty."""


def plane_picture(
    n_e: np.ndarray, n_mu: np.ndarray, value: np.ndarray, label: str, limits: tuple[float, float]
) -> Figure:
    """Draw the mean of a value in cells of the lg Ne - lg Nmu plane.

    Parameters
    ----------
    n_e, n_mu
        (N,) lg of the reconstructed sizes.
    value
        (N,) what colours the plane.
    label, limits
        Of the colour scale.
    """
    with drawing():
        figure = new_figure(3.4)
        axes = figure.add_subplot()
        cells = axes.hexbin(
            n_e,
            n_mu,
            C=value,
            gridsize=45,
            mincnt=MIN_EVENTS if len(value) > 500 else 1,
            cmap=MAP,
            vmin=limits[0],
            vmax=limits[1],
            linewidths=0.1,
        )
        cells.set_rasterized(True)
        for values, limit in ((n_e, axes.set_xlim), (n_mu, axes.set_ylim)):
            low, high = np.quantile(values, [0.001, 0.999])
            limit(float(low) - 0.1, float(high) + 0.1)
        bar = figure.colorbar(cells, ax=axes, location="top", shrink=0.8, aspect=40)
        bar.set_label(label)
        axes.set_xlabel("electron number, lg $N_e$")
        axes.set_ylabel(r"muon number, lg $N_\mu$")
    return figure
