"""Pictures of feature importance by group."""

from __future__ import annotations

from matplotlib.figure import Figure

from report.pictures.style import INK, MARKERS, PALETTE, drawing, literal, new_figure
from scoring.uncertainty.intervals import Paired


def gain_picture(gains: dict[str, dict[str, float]]) -> Figure:
    """Draw the share of gain of each group, one marker a learner.

    Parameters
    ----------
    gains
        Learner to (group to share).
    """
    groups = sorted(
        {group for gain in gains.values() for group in gain},
        key=lambda group: -max(gain.get(group, 0.0) for gain in gains.values()),
    )
    with drawing():
        figure = new_figure(0.9 + 0.26 * len(groups))
        axes = figure.add_subplot()
        for k, (name, gain) in enumerate(gains.items()):
            shares = [100 * gain.get(group, 0.0) for group in groups]
            axes.plot(shares, range(len(groups)), MARKERS[k % 8], color=PALETTE[k % 8], label=literal(name))
        axes.set_yticks(range(len(groups)), [literal(group) for group in groups])
        axes.set_ylim(len(groups) - 0.5, -0.5)
        axes.set_xlim(left=0)
        axes.set_xlabel("share of the gain, %")
        figure.legend(loc="outside upper right", ncols=3)
    return figure


def shuffle_picture(shuffled: dict[str, Paired]) -> Figure:
    """Draw how much log-loss is lost when a group is shuffled, with 95 % intervals."""
    groups = sorted(shuffled, key=lambda group: -shuffled[group].difference)
    with drawing():
        figure = new_figure(0.7 + 0.26 * len(groups))
        axes = figure.add_subplot()
        for y, group in enumerate(groups):
            found = shuffled[group]
            axes.plot([found.interval.low, found.interval.high], [y, y], color=PALETTE[4])
            axes.plot(found.difference, y, "o", color=PALETTE[4])
        axes.axvline(0, color=INK, lw=0.7, ls="--")
        axes.set_yticks(range(len(groups)), [literal(group) for group in groups])
        axes.set_ylim(len(groups) - 0.5, -0.5)
        axes.set_xlabel("log-loss lost when shuffled, nats")
    return figure
