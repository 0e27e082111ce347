"""Pictures that set learners side by side: the metric with intervals, and how training went."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from report.pictures.style import INK, MARKERS, PALETTE, drawing, literal, new_figure
from scoring.uncertainty.intervals import Interval

RULES = {"argmax": "raw (argmax)"}
COLOURS = (INK, PALETTE[5])
"""Of rules: none that a class has."""


@dataclass(frozen=True)
class Point:
    """A value with its interval, of one system under one rule."""

    system: str
    rule: str
    value: float
    interval: Interval


def learners_picture(points: list[Point], label: str, *, logarithmic: bool = False) -> Figure:
    """Draw one line a system: value and 95 % interval, one marker a rule.

    Parameters
    ----------
    points
        In the order of the picture, top to bottom.
    label
        Name of the axis, with what is better.
    logarithmic
        For survivals; a value of zero is drawn as its upper limit.
    """
    systems = list(dict.fromkeys(point.system for point in points))
    rules = list(dict.fromkeys(point.rule for point in points))
    with drawing():
        figure = new_figure(0.75 + 0.27 * max(len(systems), 3))
        axes = figure.add_subplot()
        for k, rule in enumerate(rules):
            shift = 0.18 * (k - (len(rules) - 1) / 2)
            for point in (p for p in points if p.rule == rule):
                y = systems.index(point.system) + shift
                limit = logarithmic and point.value <= 0
                x = point.interval.high if limit else point.value
                low = x if limit else max(point.interval.low, 1e-7 if logarithmic else -np.inf)
                axes.plot([low, point.interval.high], [y, y], color=COLOURS[k % 2], lw=1.4, solid_capstyle="butt")
                axes.plot(
                    x, y, "<" if limit else MARKERS[k], color=COLOURS[k % 2], label=RULES.get(rule, literal(rule))
                )
        if logarithmic:
            axes.set_xscale("log")
        else:
            axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.set_yticks(range(len(systems)), [literal(system) for system in systems])
        axes.set_ylim(len(systems) - 0.5, -0.5)
        axes.grid(False, axis="y")
        axes.set_xlabel(label)
        if len(rules) > 1:
            handles, names = axes.get_legend_handles_labels()
            unique = dict(zip(names, handles, strict=True))
            figure.legend(unique.values(), unique.keys(), loc="outside upper right", ncols=len(unique))
    return figure


def training_picture(curves: dict[str, list[float]]) -> Figure:
    """Draw validation log-loss by epoch of each network (its first fold), with its best epoch marked."""
    with drawing():
        figure = new_figure(2.8)
        axes = figure.add_subplot()
        for k, (name, losses) in enumerate(curves.items()):
            epochs = np.arange(1, len(losses) + 1)
            colour = PALETTE[k % len(PALETTE)]
            axes.plot(epochs, losses, color=colour, marker=".", ms=3, label=literal(name))
            best = int(np.nanargmin(losses))
            axes.plot(epochs[best], losses[best], MARKERS[k % len(MARKERS)], color=colour, ms=6, mec=INK)
        axes.set_xlabel("epoch")
        axes.set_ylabel("validation log-loss, nats")
        axes.legend()
    return figure
