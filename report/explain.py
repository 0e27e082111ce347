"""Why a run prefers one class to another for one event: a line each in a terminal, and one figure."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from showerstack.features.catalogue import GROUPS
from showerstack.report.display import Shower, draw_maps, read_showers
from showerstack.report.pictures.style import INK, PALETTE, drawing, literal, name_rows, new_figure, save_figure
from showerstack.runtime.context import Context
from showerstack.runtime.files import check_target
from showerstack.showers.dataset import Dataset
from showerstack.stacking.prediction.explain import STATIONS, Explanation, explain
from showerstack.stacking.prediction.run import Run, load

NAMED = 5
"""Groups that are shown, the largest."""
MEANINGS = GROUPS | {STATIONS: "the deposits themselves, station by station"}


def explain_event(run: Path, data: Path, event: int, out: Path, ctx: Context = Context()) -> Explanation:
    """Explain one event of a dataset folder or table, and draw it into a file (``.png``, ``.svg`` or ``.pdf``)."""
    check_target(out, (".png", ".svg", ".pdf"))
    explanation, figure = drawn_explanation(run, data, event, ctx)
    save_figure(figure, out)
    return explanation


def drawn_explanation(run: Path, data: Path, event: int, ctx: Context = Context()) -> tuple[Explanation, Figure]:
    """Explain one event, and draw it."""
    opened = load(run)
    explanation = explain(opened, data, event, ctx)
    return explanation, explain_picture(explanation, _shower(opened, data, event))


def _shower(run: Run, data: Path, event: int) -> Shower | None:
    return read_showers(Dataset.open(data, labels=False), [event])[0] if not run.of_table else None


def explain_lines(explanation: Explanation) -> list[str]:
    """Return in lines what was predicted, what moved it, and what each learner said."""
    first, second = explanation.classes
    lines = [
        f"event {explanation.event}: {first} {explanation.probability:.3g}; "
        f"ln p({first})/p({second}) = {explanation.score:+.2f}, "
        f"of which {explanation.base:+.2f} without the event's features"
    ]
    for group, value in list(explanation.groups.items())[:NAMED]:
        lines.append(f"  {value:+.2f}  {group}" + (f": {MEANINGS[group]}" if group in MEANINGS else ""))
    rest = list(explanation.groups.values())[NAMED:]
    lines += [f"  {sum(rest):+.2f}  all other groups"] if rest else []
    lines += [
        f"  {name} says {first} {one.probability:.3g} ({one.score:+.2f})" for name, one in explanation.learners.items()
    ]
    return lines


def explain_line(explanation: Explanation) -> str:
    """Return in one line what moved the score most."""
    first, second = explanation.classes
    moved = ", ".join(f"{group} {value:+.2f}" for group, value in list(explanation.groups.items())[:NAMED])
    return f"ln p({first})/p({second}) is {explanation.score:+.2f}, moved by {moved}."


def explain_picture(explanation: Explanation, shower: Shower | None = None) -> Figure:
    """Draw the shower, the groups that moved its score most, and what each learner said."""
    first, second = explanation.classes
    groups = list(explanation.groups.items())[:NAMED]
    maps_in, lines = (2.55 if shower else 0.0), len(groups) + len(explanation.learners)
    height = maps_in + 0.19 * lines + 1.5
    with drawing():
        figure = new_figure(height, placed=True)
        if shower is not None:
            draw_maps(figure, shower, height)
        learners_in = 0.19 * len(explanation.learners)
        learners = figure.add_axes((0.32, 0.42 / height, 0.64, learners_in / height))
        bars = figure.add_axes((0.32, (learners_in + 0.98) / height, 0.64, 0.19 * len(groups) / height))
        values = [value for _, value in groups]
        colours = [PALETTE[4] if value >= 0 else PALETTE[0] for value in values]
        bars.barh(range(len(groups)), values, color=colours, height=0.6)
        bars.set_title(f"what moved ln p({literal(first)})/p({literal(second)})", pad=3)
        said = explanation.learners
        learners.plot([one.score for one in said.values()], range(len(said)), "o", color=PALETTE[4], ms=4)
        learners.axvline(explanation.score, color=INK, linestyle="--", lw=0.8)
        learners.set_title("what each learner said; dashed: the prediction", pad=3)
        names = [f"{name} {one.probability:.2g}" for name, one in said.items()]
        for axes, rows in ((bars, [name for name, _ in groups]), (learners, names)):
            axes.axvline(0.0, color=INK, lw=0.6)
            name_rows(axes, rows)
            axes.margins(x=0.08)
        facts = f"event {explanation.event}: {first} {explanation.probability:.3g}"
        figure.suptitle(literal(facts), fontsize=7.5, x=0.02, y=0.995, ha="left", va="top")
    return figure
