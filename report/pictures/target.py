"""Pictures of estimates against the truth: bias and resolution by true value, and all events in one plane."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from report.pictures.style import INK, MAP, MARKERS, PALETTE, drawing, new_figure

SPREADS = 4.0
"""Half the height of the plane of residuals, in resolutions."""


def by_bin_picture(binned: dict[str, Any], name: str, label: str) -> Figure:
    """Draw one metric by bin of the true value with its 95 % interval; bins with too few events are left out.

    Parameters
    ----------
    binned
        ``true_binned`` of :class:`scoring.target.TargetScoring`.
    name
        ``bias`` or ``resolution``.
    label
        Of the horizontal axis.
    """
    with drawing():
        figure = new_figure(2.6)
        axes = figure.add_subplot()
        shown = {where: row for where, row in binned.items() if not row["too_few_events"]}
        for k, row in enumerate(shown.values()):
            span = row["intervals"][name]
            axes.plot([k, k], [span["low"], span["high"]], color=PALETTE[4])
            axes.plot(k, row[name], MARKERS[0], color=PALETTE[4], ms=4)
            axes.annotate(f"{row['count']:,}", (k, span["high"]), va="bottom", ha="center", fontsize=6.5)
        if name == "bias":
            axes.axhline(0.0, color=INK, lw=0.8, ls="--")
        axes.set_xticks(range(len(shown)), list(shown), rotation=30, ha="right")
        axes.set_xlabel(label)
        axes.set_ylabel(name)
    return figure


def residual_picture(truth: np.ndarray, estimate: np.ndarray, label: str) -> Figure:
    """Draw estimate minus truth against the truth, (N,) each, as numbers of events in cells."""
    residuals = estimate - truth
    middle, reach = float(np.median(residuals)), SPREADS * max(float(np.std(residuals)), 1e-6)
    with drawing():
        figure = new_figure(3.2)
        axes = figure.add_subplot()
        inside = np.abs(residuals - middle) < reach
        cells = axes.hexbin(
            truth[inside], residuals[inside], gridsize=45, mincnt=1, bins="log", cmap=MAP, linewidths=0.1
        )
        cells.set_rasterized(True)
        axes.axhline(0.0, color=INK, lw=0.8, ls="--")
        figure.colorbar(cells, ax=axes, location="top", shrink=0.8, aspect=40).set_label("events")
        axes.set_xlabel(f"true {label}")
        axes.set_ylabel("estimated - true")
    return figure
