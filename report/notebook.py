"""What a notebook draws of predictions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from showerstack.report.pictures.style import INK, PALETTE, make_logarithmic, name_rows, one_plot

BINS = 50


def scores_of_events(scores: np.ndarray) -> Figure:
    """Draw the distribution of gamma scores (N,)."""
    with one_plot(2.7) as (figure, axes):
        axes.hist(scores, bins=BINS, histtype="step", color=PALETTE[0])
        make_logarithmic(axes, "y", nonpositive="clip")
        axes.set_xlabel("gamma score")
        axes.set_ylabel(f"events of {len(scores):,}")
    return figure


def estimates_of_events(values: np.ndarray, label: str) -> Figure:
    """Draw the distribution of estimates (N,) of a quantity."""
    with one_plot(2.7) as (figure, axes):
        axes.hist(values[np.isfinite(values)], bins=BINS, histtype="step", color=PALETTE[0])
        axes.set_xlabel(label)
        axes.set_ylabel(f"events of {len(values):,}")
    return figure


def shares_of_classes(classes: Sequence[object], decided: np.ndarray, probability: np.ndarray) -> Figure:
    """Draw, for each class, the share of events that were decided for it (C,) and its mean probability (C,)."""
    rows = np.arange(len(classes))
    with one_plot(0.9 + 0.28 * len(classes)) as (figure, axes):
        axes.barh(rows, 100 * decided, height=0.6, color=PALETTE[4], label="decided")
        axes.plot(100 * probability, rows, "o", color=INK, ms=4, label="mean probability")
        name_rows(axes, [str(name) for name in classes])
        axes.set_xlabel("share of the events, %")
        figure.legend(loc="outside upper center", ncols=2)
    return figure
