"""Sections that look inside: feature importance, and a gallery of single showers."""

from __future__ import annotations

import numpy as np

from features.catalogue import CATALOGUE
from report.display import event_picture, read_showers
from report.importance import Importance, importances
from report.page.markup import Section, paragraph, picture, pictures, table
from report.pictures.importance import gain_picture, shuffle_picture
from report.pictures.style import as_svg
from report.reading.subject import Subject

EACH = 2
"""Showers of each kind in the gallery."""
RANKED = 20
"""Features in the ranking."""


def importance(subject: Subject) -> Section | None:
    """Return gain and permutation importance by group of features."""
    found = importances(subject)
    gains = {entry.learner: entry.gain for entry in found if entry.gain}
    figures = []
    if gains:
        caption = (
            "Share of the splitting gain by group of features, mean over folds. Gain favours groups of many columns."
        )
        figures.append(picture(as_svg(gain_picture(gains), "gain by feature group"), caption))
    for entry in found:
        if entry.shuffled:
            caption = (
                f"{entry.learner}, fold 0, up to 2,000 test showers: log-loss lost when all columns of a group are "
                "taken from other showers, 95 % intervals. Correlated groups share the loss: a small "
                "value does not mean that a group is useless."
            )
            figures.append(picture(as_svg(shuffle_picture(entry.shuffled), "permutation importance"), caption))
    if not figures:
        return None
    return Section("importance", "What the learners look at", pictures(figures) + _ranking(found))


def _ranking(found: list[Importance]) -> str:
    """Return the features of the largest gain, mean over learners, with their unit and meaning."""
    by_learner = {entry.learner: entry.columns for entry in found if entry.columns}
    if not by_learner:
        return ""
    columns = {column for gain in by_learner.values() for column in gain}
    mean = {c: float(np.mean([gain.get(c, 0.0) for gain in by_learner.values()])) for c in columns}
    rows = []
    for name in sorted(columns, key=lambda c: (-mean[c], c))[:RANKED]:
        known = CATALOGUE.get(name)
        shares = [100 * gain.get(name, 0.0) for gain in by_learner.values()]
        words = (known.unit, known.meaning) if known else ("", "")
        rows.append((name, f"{100 * mean[name]:.1f}", f"{min(shares):.1f} to {max(shares):.1f}", *words))
    note = paragraph("Correlated features share their gain.", "quiet")
    heads = ("feature", "gain, %", "by learner", "unit", "meaning")
    return f"<h3>The {len(rows)} features of the largest gain</h3>" + table(heads, rows) + note


def chosen_events(labels: np.ndarray, log_proba: np.ndarray) -> dict[str, list[int]]:
    """Return which showers the gallery shows: most confident (of different predictions), most wrong, most ambiguous.

    Parameters
    ----------
    labels
        (N,) true classes.
    log_proba
        (N, C) natural logarithms of posteriors.
    """
    guessed, top = log_proba.argmax(axis=1), log_proba.max(axis=1)
    confident: list[int] = []
    for event in np.argsort(-top, kind="stable"):
        if guessed[event] not in guessed[confident]:
            confident.append(int(event))
        if len(confident) == EACH:
            break
    true = log_proba[np.arange(len(labels)), labels]
    wrong = [int(event) for event in np.argsort(true, kind="stable")[:EACH]]
    entropy = -(np.exp(log_proba) * log_proba).sum(axis=1)
    ambiguous = [int(event) for event in np.argsort(-entropy, kind="stable")[:EACH]]
    return {"most confident": confident, "most wrong": wrong, "most ambiguous": ambiguous}


def gallery(subject: Subject) -> Section:
    """Return event displays of telling showers."""
    classes = subject.task.classes
    chosen = chosen_events(subject.labels, subject.final)
    figures = []
    named = [(kind, event) for kind, events in chosen.items() for event in events]
    showers = read_showers(subject.dataset, [event for _, event in named])
    for (kind, event), shower in zip(named, showers, strict=True):
        posterior = np.exp(subject.final[event])
        said = classes[int(posterior.argmax())]
        # tiny probabilities must not read as zero
        own = f"{posterior[subject.labels[event]]:.3g}"
        title = f"{kind}: true {classes[subject.labels[event]]}, given {own}; said {said} {posterior.max():.3g}"
        drawn = as_svg(event_picture(shower, title), f"event {event}, {kind}")
        figures.append(picture(drawn, f"Event {event} of the test set."))
    note = paragraph(
        "Maps: deposits of the stations, open circles silent ones; cross: fitted core, with a line toward the azimuth. "
        "Below: densities in the shower plane. Markers are means over rings with standard errors (silent stations "
        "count as zero), dots single stations. The e/gamma detectors see electrons and muons (full line); near the "
        "axis electrons punch through to the muon detectors (shaded).",
        "quiet",
    )
    return Section("gallery", "Single showers", pictures(figures) + note)
