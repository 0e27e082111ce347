"""Sections that depend on the task: confusion and fraction errors, or survival; reliability and the size plane."""

from __future__ import annotations

from typing import Any

import numpy as np

from report.page import Section, paragraph, picture, pictures
from report.pictures.composition import (
    by_class_and_energy_picture,
    by_energy_picture,
    confusion_picture,
    error_by_class_picture,
    reliability_picture,
)
from report.pictures.gamma import roc_picture, scores_picture, survival_by_bin_picture
from report.pictures.plane import plane_picture
from report.pictures.style import as_svg
from report.subject import Subject
from showers.schema import SCALAR_NAMES


def thin_note(binned: dict[str, Any]) -> str:
    """Return a remark that names the bins with too few events to be drawn."""
    thin = [
        f"{name} ({row['count']:,} events)" if "count" in row else f"{name} ({row['n_gamma']:,} gammas)"
        for name, row in binned.items()
        if row.get("too_few_events")
    ]
    return paragraph(f"Too few events of some class for a number: {', '.join(thin)}.", "quiet") if thin else ""


def confusion(subject: Subject) -> Section:
    """Return confusion matrices, overall and by energy."""
    metrics, classes = subject.metrics, subject.task.classes
    overall = confusion_picture(np.array(metrics["confusion_matrix"]), classes, "all energies")
    figures = [
        picture(as_svg(overall, "confusion matrix"), "Each row sums to 100 %; events of each class at the left.")
    ]
    for name, row in metrics["energy_binned"].items():
        if row.get("too_few_events"):
            continue
        drawn = confusion_picture(np.array(row["confusion_matrix"]), classes, f"lg(E/eV) {name}")
        figures.append(picture(as_svg(drawn, f"confusion matrix, lg E {name}"), f"lg(E/eV) in {name}."))
    return Section("confusion", "Confusion matrices", pictures(figures) + thin_note(metrics["energy_binned"]))


def fraction_errors(subject: Subject) -> Section:
    """Return fraction error by class and by energy, and accuracy by energy."""
    metrics = subject.metrics
    figures = [
        picture(
            as_svg(error_by_class_picture(metrics), "fraction error by class"),
            "Mean |true − predicted fraction| of each class over the benchmark's 1001 mixtures, 95 % intervals.",
        ),
        picture(
            as_svg(by_energy_picture(metrics, "fraction error"), "fraction error by energy"),
            "By reconstructed energy, 95 % intervals; events of each bin above it.",
        ),
        picture(
            as_svg(by_class_and_energy_picture(metrics), "fraction error by class and energy"),
            "Each class in each energy bin, 95 % intervals; markers are shifted to be told apart.",
        ),
        picture(
            as_svg(by_energy_picture(metrics, "accuracy"), "accuracy by energy"),
            "Share of correct labels by reconstructed energy.",
        ),
    ]
    note = thin_note(metrics["energy_binned"])
    return Section("fractions", "Fraction error by class and energy", pictures(figures) + note)


def survival(subject: Subject) -> Section:
    """Return hadron survival against gamma efficiency, and by energy and zenith."""
    metrics = subject.metrics
    compared = {s.name: s.output for s in subject.systems if s.name in (subject.best_learner, "average")}
    compared["shipped"] = subject.output
    note = (
        "*Published points: best systems on the benchmark's own test set; this run's showers are simulated, so they "
        "are drawn for orientation only."
        if subject.simulated
        else "*Published points: best systems, some with weights chosen on the test set."
    )
    threshold = metrics["survival_rates"]["75%"]["threshold"]
    n_hadron = metrics["n_hadron"]
    roc = as_svg(roc_picture(subject.labels, compared, metrics), "hadron survival against gamma efficiency")
    figures = [
        picture(
            roc,
            "Hadrons left at each gamma efficiency, 95 % band of the shipped scores (no hadron left is drawn as half a "
            f"hadron). {note}",
        ),
        picture(
            as_svg(scores_picture(subject.labels, subject.output, threshold), "distribution of scores"),
            "Scores of gammas and hadrons; hadrons right of the dotted line survive at 75 % gamma efficiency.",
        ),
    ]
    by_energy, by_zenith = metrics["energy_binned"], metrics["zenith_binned"]
    for binned, label in (
        (by_energy, "reconstructed energy, lg(E/eV)"),
        (by_zenith, "reconstructed zenith angle, deg"),
    ):
        drawn = survival_by_bin_picture(binned, label, n_hadron)
        caption = (
            "Survival with the threshold of each bin's own gammas, 95 % intervals with the threshold's uncertainty; "
            "triangles: no hadron left, upper limit. Numbers: gammas, hadrons."
        )
        figures.append(picture(as_svg(drawn, f"survival by {label}"), caption))
    return Section("survival", "Hadron survival", pictures(figures) + thin_note({**by_energy, **by_zenith}))


def reliability(subject: Subject) -> Section:
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
        f"Posteriors of {subject.shipped_words} on the test set: a point on the dashed line means what it says; bars "
        f"are 95 % binomial intervals. Expected calibration error over 15 bins: {error / truth.size:.4f}."
    )
    return Section("reliability", "Reliability", pictures([picture(as_svg(figure, "reliability diagram"), caption)]))


def plane(subject: Subject) -> Section:
    """Return the Ne-Nmu plane coloured by the posterior."""
    scalars = np.asarray(subject.dataset.scalars, dtype=np.float32)
    n_e, n_mu = (scalars[:, SCALAR_NAMES.index(name)] for name in ("Ne", "Nmu"))
    figure = plane_picture(n_e, n_mu, subject.final, subject.task)
    caption = (
        f"Test showers by reconstructed sizes; colour is the mean posterior of {subject.shipped_words} in each cell (3 "
        "events or more)."
    )
    return Section("plane", "Electrons and muons", pictures([picture(as_svg(figure, "Ne-Nmu plane"), caption)]))
