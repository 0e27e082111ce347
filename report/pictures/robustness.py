"""A matrix of numbers: trained in the row's place, tested in the column's."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from report.pictures.style import MAP, drawing, literal, new_figure


def matrix_picture(values: np.ndarray, names: list[str], label: str, form: str) -> Figure:
    """Draw (P, P) numbers as a coloured table."""
    with drawing():
        figure = new_figure(3.4)
        axes = figure.add_subplot()
        low, high = float(values.min()), float(values.max())
        axes.imshow(values, cmap=MAP, vmin=low, vmax=max(high, low + 1e-9), aspect="auto")
        middle = (low + high) / 2
        for (row, column), value in np.ndenumerate(values):
            colour = "black" if value > middle else "white"
            axes.text(column, row, form.format(value), ha="center", va="center", color=colour, fontsize=7)
        shown = [literal(name).replace("/", "\n") for name in names]
        axes.set_xticks(range(len(names)), shown)
        axes.set_yticks(range(len(names)), shown)
        axes.set_xlabel("tested on")
        axes.set_ylabel("trained on")
        axes.set_title(label)
        axes.grid(False)
    return figure
