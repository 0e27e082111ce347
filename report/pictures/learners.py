"""Pictures of learners side by side: the metric with intervals, how training went, importance of feature groups."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator

from showerstack.report.pictures.style import INK, MARKERS, PALETTE, literal, make_logarithmic, name_rows, one_plot
from showerstack.report.shared.subject import ScoredSystem
from showerstack.scoring.metrics.paired import Paired


def learners_picture(systems: Sequence[ScoredSystem], label: str, *, logarithmic: bool = False) -> Figure:
    """Draw one line a system, top to bottom: value and confidence interval.

    On a logarithmic axis, of survivals, a value of zero is drawn as its upper limit.
    """
    with one_plot(0.75 + 0.27 * max(len(systems), 3)) as (figure, axes):
        for y, one in enumerate(systems):
            limit = logarithmic and one.value <= 0
            x = one.interval.high if limit else one.value
            low = x if limit else max(one.interval.low, 1e-7 if logarithmic else -np.inf)
            axes.plot([low, one.interval.high], [y, y], color=INK, lw=1.4, solid_capstyle="butt")
            axes.plot(x, y, "<" if limit else MARKERS[0], color=INK)
        if logarithmic:
            make_logarithmic(axes, "x")
            # A decade at least, and labels at 2 and 5 alone: they stay apart.
            low, high = np.log10(axes.get_xlim())
            missing = max(0.0, 1.0 - (high - low)) / 2
            axes.set_xlim(10 ** (low - missing), 10 ** (high + missing))
            axes.xaxis.set_minor_locator(LogLocator(subs=(2.0, 5.0)))
        else:
            axes.xaxis.set_major_locator(MaxNLocator(5))
        name_rows(axes, [one.name for one in systems])
        axes.grid(False, axis="y")
        axes.set_xlabel(label)
    return figure


def training_picture(curves: dict[str, list[float]]) -> Figure:
    """Draw validation log-loss by epoch or round of each learner (its first fold), with the best one marked."""
    with one_plot(2.8) as (figure, axes):
        for k, (name, losses) in enumerate(curves.items()):
            epochs = np.arange(1, len(losses) + 1)
            colour = PALETTE[k % len(PALETTE)]
            axes.plot(epochs, losses, color=colour, lw=1.2, label=literal(name))
            best = int(np.nanargmin(losses))
            axes.plot(epochs[best], losses[best], MARKERS[k % len(MARKERS)], color=colour, ms=6, mec=INK)
        make_logarithmic(axes, "x")  # tens of epochs, hundreds of rounds
        axes.set_xlabel("epoch or round")
        axes.set_ylabel("validation log-loss")
        axes.legend()
    return figure


def gain_picture(gains: dict[str, dict[str, float]]) -> Figure:
    """Draw the share of gain of each group, one marker a learner."""
    groups = sorted(
        {group for gain in gains.values() for group in gain},
        key=lambda group: -max(gain.get(group, 0.0) for gain in gains.values()),
    )
    with one_plot(0.9 + 0.26 * len(groups)) as (figure, axes):
        for k, (name, gain) in enumerate(gains.items()):
            shares = [100 * gain.get(group, 0.0) for group in groups]
            axes.plot(shares, range(len(groups)), MARKERS[k % 8], color=PALETTE[k % 8], label=literal(name))
        name_rows(axes, groups)
        axes.set_xlim(left=0)
        axes.set_xlabel("share of the gain, %")
        figure.legend(loc="outside upper right", ncols=3)
    return figure


def shuffle_picture(shuffled: dict[str, Paired]) -> Figure:
    """Draw how much log-loss is lost when a group is shuffled, with confidence intervals."""
    groups = sorted(shuffled, key=lambda group: -shuffled[group].difference)
    with one_plot(0.7 + 0.26 * len(groups)) as (figure, axes):
        for y, group in enumerate(groups):
            result = shuffled[group]
            axes.plot([result.interval.low, result.interval.high], [y, y], color=PALETTE[4])
            axes.plot(result.difference, y, "o", color=PALETTE[4])
        axes.axvline(0, color=INK, lw=0.7, ls="--")
        name_rows(axes, groups)
        axes.set_xlabel("rise of the log-loss when shuffled")
    return figure
