"""Sections that several tasks have: reliability, the plane of sizes, a remark on thin bins."""

from __future__ import annotations

from typing import Any

import numpy as np

from report.page.markup import Section, paragraph, picture, pictures
from report.pictures.composition import reliability_picture
from report.pictures.plane import plane_picture
from report.pictures.style import as_svg
from report.reading.subject import Subject
from showers.schema import SCALAR_NAMES


def thin_note(binned: dict[str, Any]) -> str:
    """Return a remark that names the bins with too few events to be drawn."""
    thin = [
        f"{name} ({row['count']:,} events)" if "count" in row else f"{name} ({row['n_gamma']:,} gammas)"
        for name, row in binned.items()
        if row.get("too_few_events")
    ]
    return paragraph(f"Too few events of some class for a number: {', '.join(thin)}.", "quiet") if thin else ""


def posteriors(subject: Subject, plane_figure: str) -> Section:
    """Return the reliability diagram and the plane of sizes, side by side."""
    figures = pictures([reliability(subject), plane_figure])
    return Section("reliability", "Posteriors: reliability, and where they lie", figures)


def reliability(subject: Subject) -> str:
    """Return the reliability diagram and the calibration error of what ships on the test set."""
    figure = reliability_picture(subject.labels, subject.final, subject.task.classes)
    given = np.exp(subject.final)
    truth = subject.labels[:, None] == np.arange(given.shape[1])
    bins = np.minimum((given * 15).astype(int), 14)
    error = 0.0
    for k in range(15):
        inside = bins == k
        if inside.any():
            error += abs(given[inside].mean() - truth[inside].mean()) * inside.sum()
    caption = (
        f"Posteriors of {subject.shipped_words} on the test set: on the dashed line posteriors are calibrated; bars "
        f"are 95 % binomial intervals. Expected calibration error over 15 bins: {error / truth.size:.4f}."
    )
    return picture(as_svg(figure, "reliability diagram"), caption)


def plane(subject: Subject, value: np.ndarray, label: str, limits: tuple[float, float]) -> str:
    """Return the Ne-Nmu plane coloured by a value (N,) that the posterior gives."""
    scalars = np.asarray(subject.dataset.scalars, dtype=np.float32)
    n_e, n_mu = (scalars[:, SCALAR_NAMES.index(name)] for name in ("Ne", "Nmu"))
    figure = plane_picture(n_e, n_mu, value, label, limits)
    caption = (
        f"Test showers by reconstructed sizes; colour is the mean posterior of {subject.shipped_words} in each cell (3 "
        "events or more)."
    )
    return picture(as_svg(figure, "Ne-Nmu plane"), caption)
