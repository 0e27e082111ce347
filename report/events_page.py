"""The events of a run's test set with the highest scores, on one page that is turned by the arrow keys."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from markupsafe import Markup

from showerstack.features.table import FeatureTable, default_path
from showerstack.models.registry import LEARNERS
from showerstack.report.display import event_picture, read_showers
from showerstack.report.explain import NAMED
from showerstack.report.pictures.style import as_svg
from showerstack.report.shared.markup import (
    Section,
    heading,
    joined,
    paragraph,
    picture,
    side_by_side,
    table,
    write_page,
)
from showerstack.report.shared.subject import check_test_set
from showerstack.runtime.arrays import read_arrays
from showerstack.runtime.context import Bars, silent
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import check_target
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import GAMMA
from showerstack.stacking.events import ShowerEvents
from showerstack.stacking.prediction.explain import Explanation, explain_events
from showerstack.stacking.prediction.run import Run

TURNED = "Arrow keys turn the pages, and so do the buttons. Test labels are not looked at."


def write_events(run: Path, out: Path, *, top: int, data: Path | None = None, bars: Bars = silent) -> Path:
    """Write the displays of the events that a run scored highest as one self-contained HTML file.

    Highest are gamma scores; of composition, the probabilities of the most probable class.

    Parameters
    ----------
    run
        Finished run of gamma or composition with a predicted test set.
    top
        How many events, 1 or more; all where there are fewer.
    data
        Folder with ``{task}_test``, if that is no longer where it was.

    Raises
    ------
    InputError
        If the run has no classes or no test set, or that is no longer the one that was predicted.
    """
    check_target(out, (".html",))
    opened = Run.open(run)
    opened.require_showers("a page of events")
    if opened.task.target:
        raise InputError(f"{run} estimates {opened.task.target.name}: a page of events is of gamma or composition")
    place = opened.manifest.data.test if data is None else data / f"{opened.task.name}_test"
    if place is None:
        raise InputError(f"{run} predicted no test set: there are no events to show")
    folder = Path(place)
    check_test_set(opened, folder)
    score, probability = _scores(opened)
    dataset = Dataset.open(folder, labels=False)
    usable = np.flatnonzero(dataset.usable)
    events = usable[np.argsort(-score[usable], kind="stable")[:top]].tolist()
    reasons = _explained(opened, folder, events)
    sections = []
    with bars("events", "pictures") as progress:
        for rank, (event, shower) in enumerate(zip(events, read_showers(dataset, events), strict=True), start=1):
            title = f"{rank}: event {event}, score {score[event]:.4g}"
            drawn = as_svg(event_picture(shower, f"event {event} of {folder.name}"), title)
            rows = [(name, f"{p:.3g}") for name, p in zip(opened.task.classes, probability[event], strict=True)]
            words = [heading("Probabilities"), table(("class", "probability"), rows, kind="narrow")]
            words += _reason(reasons[event]) if event in reasons else []
            body = side_by_side(picture(drawn, f"Event {event}."), joined(words))
            sections.append(Section(f"event{rank}", title, body))
            progress(rank, len(events), f"event {event}")
    what = "gamma score" if opened.task == GAMMA else "probability of the most probable class"
    lead = [paragraph(f"The {len(events)} events of {len(score):,} with the highest {what}, by {opened.shipped}.")]
    lead.append(paragraph(TURNED, "quiet"))
    title = f"{opened.name}: {len(events)} events with the highest scores"
    return write_page(out, title, joined(lead), sections, template="events.html")


def _scores(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Return what the events are ordered by (N,), and their probabilities (N, C)."""
    file = run.own_predictions()
    arrays = read_arrays(file, "log_proba", run.task.output_array)
    if "log_proba" not in arrays:
        raise InputError(f"{file} holds no probabilities")
    probability = np.exp(arrays["log_proba"])
    return (arrays[run.task.output_array] if run.task == GAMMA else probability.max(axis=1)), probability


def _explained(run: Run, folder: Path, events: list[int]) -> dict[int, Explanation]:
    """Return what moved the scores; nothing where the feature table or a learner is gone, or one event is all."""
    features = default_path(folder)
    try:
        FeatureTable.open(features)
    except InputError:
        return {}
    if not set(run.chain.needed) <= set(LEARNERS):
        return {}
    explained = explain_events(run, ShowerEvents(folder, features, run.task), events)
    return dict(zip(events, explained, strict=True))


def _reason(one: Explanation) -> list[Markup]:
    first, second = one.classes
    rows = [(group, f"{value:+.2f}") for group, value in list(one.groups.items())[:NAMED]]
    head = f"What moved ln p({first})/p({second}) = {one.score:+.2f}"
    return [heading(head), table(("features", "by"), rows, kind="narrow")]
