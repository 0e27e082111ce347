"""What a task looks like on its page: boxes at the top, then sections with pictures, in the order of :data:`PAGES`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from markupsafe import Markup

from showerstack.report.pictures.style import as_svg
from showerstack.report.pictures.tasks import (
    balanced_by_energy_picture,
    by_bin_picture,
    by_class_and_energy_picture,
    by_energy_picture,
    confusion_picture,
    confusions_picture,
    error_by_class_picture,
    plane_picture,
    reliability_picture,
    residual_picture,
    roc_picture,
    scores_picture,
    survival_by_bin_picture,
)
from showerstack.report.shared.markup import Section, paragraph, picture, pictures
from showerstack.report.shared.markup import table as page_table
from showerstack.scoring.metrics.classes import BinAtThreshold, bins_at_threshold, efficiency_at_survival, q_factor
from showerstack.scoring.metrics.composition import mixture_fractions
from showerstack.scoring.metrics.level import LEVEL_TEXT, TAIL_TEXT
from showerstack.scoring.metrics.reliability import RELIABILITY_BINS, reliability
from showerstack.scoring.tasks import scoring_of
from showerstack.scoring.tasks.base import Quantity
from showerstack.scoring.tasks.composition import CompositionScoring
from showerstack.scoring.tasks.text import short
from showerstack.showers.kascade import LN_MASSES, mass_moments
from showerstack.showers.schema import COMPOSITION, GAMMA, SCALAR_NAMES, Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from showerstack.report.shared.subject import EvaluatedRun

Part: TypeAlias = "Callable[[EvaluatedRun], Section | None]"


def thin_note(binned: dict[str, Any]) -> Markup:
    """Return a remark that names the bins with too few events to be drawn."""
    thin = [
        f"{name} ({row['count']:,} events)" if "count" in row else f"{name} ({row['n_gamma']:,} gammas)"
        for name, row in binned.items()
        if row.get("too_few_events")
    ]
    return paragraph(f"Too few events of some class for a number: {', '.join(thin)}.", "quiet") if thin else Markup()


def _drawn(figure: Figure, description: str, caption: str) -> Markup:
    return picture(as_svg(figure, description), caption)


def posteriors(evaluated: EvaluatedRun, value: np.ndarray, label: str, limits: tuple[float, float]) -> Section:
    """Return the reliability diagram and the plane of sizes, coloured by a value (N,) that the posterior gives."""
    drawn = [_reliability(evaluated)]
    scalars = np.asarray(evaluated.dataset.scalars, dtype=np.float32)[evaluated.dataset.usable]
    sizes = [scalars[:, SCALAR_NAMES.index(name)] for name in ("Ne", "Nmu") if name in evaluated.dataset.quantities]
    if len(sizes) == 2 and all(np.ptp(one) > 0 for one in sizes):  # an array without muon detectors has no plane
        drawn.append(_plane(evaluated, value, label, limits))
    figures = pictures(drawn)
    return Section("reliability", "Posteriors: reliability, and where they lie", figures)


def _reliability(evaluated: EvaluatedRun) -> Markup:
    figure = reliability_picture(evaluated.labels, evaluated.final, evaluated.task.classes)
    result = reliability(evaluated.final, evaluated.labels)
    caption = (
        f"Posteriors of {evaluated.shipped_words} on the test set: on the dashed line posteriors are calibrated; bars "
        f"are {LEVEL_TEXT} binomial intervals. Expected calibration error over {RELIABILITY_BINS} bins: "
        f"{result['expected_calibration_error']:.4f}; right posteriors would show about "
        f"{result['of_perfect_posteriors']:.4f} with so many events."
    )
    return _drawn(figure, "reliability diagram", caption)


def _plane(evaluated: EvaluatedRun, value: np.ndarray, label: str, limits: tuple[float, float]) -> Markup:
    usable = evaluated.dataset.usable
    scalars, value = np.asarray(evaluated.dataset.scalars, dtype=np.float32)[usable], value[usable]
    n_e, n_mu = (scalars[:, SCALAR_NAMES.index(name)] for name in ("Ne", "Nmu"))
    figure = plane_picture(n_e, n_mu, value, label, limits)
    caption = (
        f"Test showers by reconstructed sizes; colour is the mean posterior of {evaluated.shipped_words} in each cell "
        "(3 events or more)."
    )
    return _drawn(figure, "Ne-Nmu plane", caption)


def confusion(evaluated: EvaluatedRun) -> Section:
    """Return confusion matrices, overall and by energy."""
    metrics, classes = evaluated.metrics, evaluated.task.classes
    overall = confusion_picture(np.array(metrics["confusion_matrix"]), classes, "all energies")
    figures = [_drawn(overall, "confusion matrix", "Each row sums to 100 %; events of each class at the left.")]
    binned = {
        f"lg(E/eV) {name}": np.array(row["confusion_matrix"])
        for name, row in metrics["energy_binned"].items()
        if not row.get("too_few_events")
    }
    if binned:
        caption = "By reconstructed energy: rows true, columns predicted, one scale for all."
        figures.append(_drawn(confusions_picture(binned, classes), "confusion matrices by energy", caption))
    return Section("confusion", "Confusion matrices", pictures(figures) + thin_note(metrics["energy_binned"]))


def fraction_errors(evaluated: EvaluatedRun) -> Section:
    """Return fraction error by class and by energy, and accuracy by energy."""
    metrics, n_mixtures = evaluated.metrics, len(mixture_fractions(evaluated.task.n_classes))
    by_class = _drawn(
        error_by_class_picture(metrics), "fraction error by class",
        f"Mean |true − predicted fraction| of each class over {n_mixtures:,} mixtures, {LEVEL_TEXT} intervals.",
    )  # fmt: skip
    if not metrics["energy_binned"]:  # of a set that lacks the energy
        return Section("fractions", "Fraction error by class", pictures([by_class]))
    figures = [
        by_class,
        _drawn(
            by_energy_picture(metrics), "fraction error by energy",
            f"By reconstructed energy, {LEVEL_TEXT} intervals; events of each bin above it.",
        ),
        _drawn(
            by_class_and_energy_picture(metrics), "fraction error by class and energy",
            f"Each class in each energy bin, {LEVEL_TEXT} intervals; markers are shifted so that all are seen.",
        ),
        _drawn(
            balanced_by_energy_picture(metrics), "balanced accuracy by energy",
            f"Mean over the classes of the share of correct labels, {LEVEL_TEXT} intervals: independent of how many "
            "events of each class a bin holds. Dashed: random labels.",
        ),
    ]  # fmt: skip
    note = thin_note(metrics["energy_binned"])
    return Section("fractions", "Fraction error by class and energy", pictures(figures) + note)


def mass_posteriors(evaluated: EvaluatedRun) -> Section:
    """Return the reliability diagram, and the Ne-Nmu plane coloured by the mean logarithmic mass."""
    value, limits = mass_moments(evaluated.final, evaluated.task)[0], (0.0, float(LN_MASSES[-1]))
    return posteriors(evaluated, value, "mean posterior ln A (0 proton, 4.03 iron)", limits)


def survival(evaluated: EvaluatedRun) -> Section:
    """Return hadron survival against gamma efficiency, and by energy and zenith."""
    metrics, truth = evaluated.metrics, evaluated.truth
    compared = {s.name: s.system.output for s in evaluated.systems if s.name in (evaluated.best_learner, "average")}
    compared["shipped"] = evaluated.output
    note = ""
    if evaluated.of_kascade and evaluated.simulated:
        note = " *Published points: best systems on the benchmark's own test set; this run's showers are simulated, so "
        note += "they are drawn for orientation only."
    elif evaluated.of_kascade:
        note = " *Published points: best systems, some with weights chosen on the test set."
    threshold = metrics["survival_rates"]["75%"]["threshold"]
    roc = roc_picture(evaluated.labels, compared, metrics, truth.weights, published=evaluated.of_kascade)
    figures = [
        _drawn(
            roc, "hadron survival against gamma efficiency",
            f"Hadrons left at each gamma efficiency, {LEVEL_TEXT} band of the scores in use (no hadron left is drawn "
            f"as half a hadron).{note}",
        ),
        _drawn(
            scores_picture(evaluated.labels, evaluated.output, threshold), "distribution of scores",
            "Scores of gammas and hadrons; hadrons right of the dotted line survive at 75 % gamma efficiency.",
        ),
    ]  # fmt: skip
    by_energy, by_zenith = metrics["energy_binned"], metrics["zenith_binned"]
    at_one = bins_at_threshold(
        evaluated.labels, evaluated.output, threshold, energy=truth.energy, zenith_deg=truth.zenith_deg,
        weights=truth.weights, binning=truth.binning,
    )  # fmt: skip
    tables = Markup()
    for binned, key, label in (
        (by_energy, "energy", "reconstructed energy, lg(E/eV)"),
        (by_zenith, "zenith", "reconstructed zenith angle, deg"),
    ):
        if not at_one[key]:  # of a set that lacks the quantity
            continue
        if not all(row.get("too_few_events") for row in binned.values()):
            drawn = survival_by_bin_picture(binned, label, metrics["n_hadron"], at_one[key])
            caption = (
                f"Bars: threshold of each bin's own gammas, {LEVEL_TEXT} intervals with the threshold's uncertainty; "
                "diamonds: one threshold for all, as an analysis would cut. Triangles: no hadron left, upper limit."
            )
            figures.append(_drawn(drawn, f"survival by {label}", caption))
        tables += _bins_table(label, binned, at_one[key])
    return Section("survival", "Hadron survival", pictures(figures) + tables + thin_note({**by_energy, **by_zenith}))


def _bins_table(label: str, own: dict[str, Any], at_one: list[BinAtThreshold]) -> Markup:
    """Return counts of each bin at the threshold of all events and at the bin's own."""
    rows = []
    for row in at_one:
        efficiency = f"{100 * row.n_kept / row.n_gamma:.1f}" if row.n_gamma else "–"
        kept, left = f"{row.n_kept:,} of {row.n_gamma:,}", f"{row.n_surviving:,} of {row.n_hadron:,}"
        mine, at_own, words = own.get(row.name), "too few events", ""
        if mine is not None and not mine.get("too_few_events"):
            span = mine["interval"]
            value, low, high = map(short, (mine["hadron_survival"], span["low"], span["high"]))
            at_own = f"{mine['hadron_surviving']:,} of {mine['n_hadron']:,}"
            words = f"< {high}" if span.get("is_limit") else f"{value} [{low}, {high}]"
        rows.append((row.name, kept, efficiency, left, at_own, words))
    heads = (
        label, "gammas kept, one threshold", "efficiency, %", "hadrons left, one threshold",
        "hadrons left, own threshold at 75 %", "survival, own threshold",
    )  # fmt: skip
    return page_table(heads, rows)


def gamma_posteriors(evaluated: EvaluatedRun) -> Section:
    """Return the reliability diagram, and the Ne-Nmu plane coloured by the probability of a gamma."""
    return posteriors(evaluated, np.exp(evaluated.final[:, 0]), "mean posterior probability of a gamma", (0.0, 1.0))


def against_truth(evaluated: EvaluatedRun) -> Section:
    """Return bias and resolution by true value, and the plane of residuals."""
    target = evaluated.task.target
    assert target is not None
    label = f"true {target.unit}"
    figures = [
        _drawn(
            by_bin_picture(evaluated.metrics["true_binned"], name, label),
            f"{name} by true value",
            f"{name.capitalize()} of the system in use by true value, {LEVEL_TEXT} intervals; number of events above. "
            "In bins of the truth estimates lean towards where most events are.",
        )
        for name in ("bias", "resolution")
    ]
    drawn = residual_picture(evaluated.labels, evaluated.output, target.unit)
    figures.append(_drawn(drawn, "residuals", "Estimate minus truth of every test shower."))
    return Section("truth", "Estimates against the truth", pictures(figures))


Box: TypeAlias = tuple[str, str, str]
"""At the top of the page: name, value, remark."""
FIXED_SURVIVAL = 1e-3
"""Hadron survival at which the gamma efficiency is given."""


def _box(quantity: Quantity) -> Box:
    return quantity.name, quantity.number, quantity.span


def _second_box(evaluated: EvaluatedRun) -> Box:
    counted = evaluated.truth.counted
    return _box(
        scoring_of(evaluated.task).second_metric(evaluated.labels, evaluated.final, evaluated.output, **counted)
    )


def fraction_error_boxes(evaluated: EvaluatedRun) -> list[Box]:
    """Return fraction error and accuracy."""
    span = evaluated.metrics["intervals"]["mean_fraction_error"]
    random_error = CompositionScoring(evaluated.task).random_error
    words = f"{span['low']:.4f} to {span['high']:.4f}; 0 perfect, {random_error:.3f} random"
    value = f"{evaluated.metrics['mean_fraction_error']:.4f}"
    return [("fraction error (lower is better)", value, words), _second_box(evaluated)]


def survival_boxes(evaluated: EvaluatedRun) -> list[Box]:
    """Return survival, Q-factor, efficiency at a fixed survival and area under the curve."""
    metrics, counted = evaluated.metrics, evaluated.truth.counted
    rate, name = metrics["survival_rates"]["75%"], scoring_of(GAMMA).metric_words
    interval, left = rate["interval"], f"{rate['hadron_surviving']:,} of {metrics['n_hadron']:,} hadrons"
    if "n_effective" in rate:
        left += f" simulated, worth {rate['n_effective']:,.0f} by their weights"
    if interval.get("is_limit"):
        box = name, f"< {short(interval['high'])}", f"{LEVEL_TEXT} upper limit; {left}"
    else:
        box = name, short(metrics["key_metric"]), f"{short(interval['low'])} to {short(interval['high'])}; {left}"
    result = q_factor(evaluated.labels, evaluated.output, **counted)
    gain, limit = Quantity("Q-factor at 75 % gamma efficiency", result.value, result.interval, 1), result.interval.low
    if result.interval.is_limit:
        words = gain.name, f"> {limit:.1f}", f"from the survival's {LEVEL_TEXT} upper limit"
    elif rate["hadron_surviving"]:
        words = _box(gain)
    else:
        words = gain.name, f"> {limit:.1f}", f"no hadron is left: {TAIL_TEXT} lower limit"
    kept = efficiency_at_survival(evaluated.labels, evaluated.output, FIXED_SURVIVAL, **counted)
    name = f"gamma efficiency at hadron survival {FIXED_SURVIVAL:g}"
    return [box, words, _box(Quantity(name, kept.value, kept.interval, 1, "%", 100)), _second_box(evaluated)]


def resolution_boxes(evaluated: EvaluatedRun) -> list[Box]:
    """Return resolution and bias."""
    metrics, target = evaluated.metrics, evaluated.task.target
    assert target is not None
    span = metrics["intervals"]["resolution"]
    remark = f"{span['low']:.4f} to {span['high']:.4f}"
    if "reconstruction" in metrics:
        remark += f"; reconstructed {target.reference}: {metrics['reconstruction']['resolution']:.4f}"
    box = f"resolution in {target.unit} (lower is better)", f"{metrics['resolution']:.4f}", remark
    return [box, _second_box(evaluated)]


@dataclass(frozen=True)
class TaskPage:
    """What only one task has on its page."""

    boxes: Callable[[EvaluatedRun], list[Box]]
    """At the top, but for the loss."""
    sections: tuple[Part, ...]


PAGES = {
    COMPOSITION.name: TaskPage(fraction_error_boxes, (confusion, fraction_errors, mass_posteriors)),
    GAMMA.name: TaskPage(survival_boxes, (survival, gamma_posteriors)),
}
"""By the task's name; tasks with a target all have the same."""


def page_of(task: Task) -> TaskPage:
    """Return what only this task has on its page."""
    return PAGES.get(task.name, TaskPage(resolution_boxes, (against_truth,)))
