"""Gamma/hadron separation: hadron survival against gamma efficiency."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from showerstack.report.pictures.style import as_svg
from showerstack.report.pictures.tasks import roc_picture, scores_picture, survival_by_bin_picture
from showerstack.report.shared.markup import Section, picture, pictures
from showerstack.report.shared.markup import table as page_table
from showerstack.report.shared.published import best_published
from showerstack.report.shared.text import mcnemar_table, short, table, with_interval
from showerstack.report.tasks.base import ClassReport, Named, Part, Quantity, plane, posteriors, thin_note
from showerstack.scoring.metrics.classes import (
    BinAtThreshold,
    Estimate,
    area,
    bins_at_threshold,
    efficiency_at_survival,
    q_factor,
)
from showerstack.scoring.metrics.gamma import GAMMA as GAMMA_LABEL
from showerstack.scoring.metrics.gamma import HADRON, hadron_survival
from showerstack.scoring.metrics.level import LEVEL_TEXT, TAIL_TEXT
from showerstack.scoring.metrics.paired import mcnemar
from showerstack.showers.schema import GAMMA

if TYPE_CHECKING:
    from showerstack.report.shared.subject import EvaluatedRun

FIXED_SURVIVAL = 1e-3
"""Hadron survival at which the gamma efficiency is given."""


class GammaReport(ClassReport):
    """Scores, higher = more gamma-like."""

    name = GAMMA.name
    title = "Gamma/hadron separation"
    metric_words = "hadron survival at 75 % gamma efficiency"
    metric_column = "survival"
    meaning = (
        "Hadron survival: the share of hadrons that pass the threshold which keeps 75 % of the gammas. 0 is perfect, "
        f"0.75 random scores; the best published is {short(best_published(GAMMA.name))} (public test sets). Q-factor: "
        "gamma efficiency over the root of the hadron survival, by which a cut raises the significance of a weak "
        "source. AUC: area under the ROC curve, 0.5 for random scores."
    )
    right_words = "right side of its threshold"

    def summary(self, metrics: dict[str, Any]) -> Iterator[RenderableType]:
        """Yield survivals by gamma efficiency, energy and zenith."""
        rates = metrics["survival_rates"]
        spans = "interval" in rates["75%"]
        yield Text.assemble(
            ("hadron survival ", "bold"),
            (_survival_words(rates["75%"]), "bold green"),
            f" at 75 % gamma efficiency, {metrics['n_gamma']:,} gammas, {metrics['n_hadron']:,} hadrons"
            f"{f', {LEVEL_TEXT} intervals in brackets' if spans else ''}",
        )
        weighted = "n_effective" in rates["75%"]
        more = ("worth by weight",) if weighted else ()
        drawn = table("by gamma efficiency", "wanted", "reached", "threshold", "hadrons left", *more, "hadron survival")
        for name, row in rates.items():
            drawn.add_row(
                name,
                f"{row['gamma_efficiency']:.4f}",
                f"{row['threshold']:.5g}",
                f"{row['hadron_surviving']:,}",
                *([f"{row['n_effective']:,.0f}"] if weighted else []),
                _survival_words(row),
            )
        yield drawn
        for title, key in (
            ("by energy, lg(E/eV), at 75 %", "energy_binned"),
            ("by zenith, deg, at 75 %", "zenith_binned"),
        ):
            drawn = table(title, "bin", "gammas", "hadrons", "hadrons left", "hadron survival")
            for name, row in metrics[key].items():
                few = row.get("too_few_events", False)
                survival = _survival_words(row)
                drawn.add_row(
                    name,
                    f"{row['n_gamma']:,}",
                    f"{row['n_hadron']:,}",
                    f"{row['hadron_surviving']:,}",
                    "too few events" if few else survival,
                )
            yield drawn

    def headline(self, metrics: dict[str, Any]) -> tuple[str, str, str]:
        """Return the survival at 75 %."""
        rate = metrics["survival_rates"]["75%"]
        interval, left = rate["interval"], f"{rate['hadron_surviving']:,} of {metrics['n_hadron']:,} hadrons"
        if "n_effective" in rate:
            left += f" thrown, worth {rate['n_effective']:,.0f} by their weights"
        if interval.get("is_limit"):
            return self.metric_words, f"< {short(interval['high'])}", f"{LEVEL_TEXT} upper limit; {left}"
        words = f"{short(interval['low'])} to {short(interval['high'])}"
        return self.metric_words, short(metrics["key_metric"]), f"{words}; {left}"

    def boxes(self, evaluated: EvaluatedRun) -> list[tuple[str, str, str]]:
        """Return survival, Q-factor, efficiency at a fixed survival and area under the curve."""
        labels, scores, weights = evaluated.labels, evaluated.output, evaluated.truth.weights
        kept = f"gamma efficiency at hadron survival {FIXED_SURVIVAL:g}"
        result = (
            _quantity(kept, efficiency_at_survival(labels, scores, FIXED_SURVIVAL, weights), 1, "%", 100),
            self.second_metric(labels, evaluated.final, scores, weights),
        )
        gain = _quantity("Q-factor at 75 % gamma efficiency", q_factor(labels, scores, weights=weights), 1)
        if gain.interval.is_limit:
            words = (gain.name, f"> {gain.interval.low:.1f}", f"from the survival's {LEVEL_TEXT} upper limit")
        elif evaluated.metrics["survival_rates"]["75%"]["hadron_surviving"]:
            words = (gain.name, gain.number, gain.span)
        else:
            words = (gain.name, f"> {gain.interval.low:.1f}", f"no hadron is left: {TAIL_TEXT} lower limit")
        return [self.headline(evaluated.metrics), words, *((one.name, one.number, one.span) for one in result)]

    def second_metric(
        self, labels: np.ndarray, log_proba: np.ndarray, output: np.ndarray, weights: np.ndarray | None = None
    ) -> Quantity:
        """Return the area under the ROC curve: accuracies say little where one class is rare."""
        return _quantity("AUC", area(labels, output, weights), 4)

    def details(self, metrics: dict[str, Any]) -> dict[str, str]:
        """Return the number of surviving hadrons."""
        left = metrics["survival_rates"]["75%"]["hadron_surviving"]
        return {"hadrons surviving at 75 % gamma efficiency": f"{left} of {metrics['n_hadron']}"}

    def right(self, labels: np.ndarray, output: np.ndarray) -> np.ndarray:
        """Return which gammas are kept and which hadrons rejected at 75 %."""
        kept = output >= hadron_survival(labels, output).threshold
        return np.asarray(kept != (labels == HADRON))

    def pair(
        self, labels: np.ndarray, a: Named, b: Named, groups: np.ndarray | None = None
    ) -> Iterator[RenderableType]:
        """Yield who keeps which gammas and rejects which hadrons."""
        first, second = self.right(labels, a[1]), self.right(labels, b[1])
        for name, label in (("gammas kept at 75 %", GAMMA_LABEL), ("hadrons rejected at 75 %", HADRON)):
            mine = labels == label
            same = None if groups is None else groups[mine]
            yield mcnemar_table(name, mcnemar(first[mine], second[mine], same), a[0], b[0])

    @property
    def sections(self) -> list[Part]:
        """Survival, reliability, the plane of sizes."""
        return [survival, gamma_posteriors]


def _survival_words(row: dict[str, Any]) -> str:
    """Return a survival with its interval, or its upper limit where weights determine no number."""
    if not row.get("quoted", True):
        row = {"interval": {"high": row["upper_limit"], "is_limit": True}} | row
    return with_interval(row["hadron_survival"], row.get("interval"), ".2e")


def _quantity(name: str, estimate: Estimate, digits: int, unit: str = "", scale: float = 1.0) -> Quantity:
    return Quantity(name, estimate.value, estimate.interval, digits, unit, scale)


def survival(evaluated: EvaluatedRun) -> Section:
    """Return hadron survival against gamma efficiency, and by energy and zenith."""
    metrics = evaluated.metrics
    compared = {s.name: s.output for s in evaluated.systems if s.name in (evaluated.best_learner, "average")}
    compared["shipped"] = evaluated.output
    note = (
        "*Published points: best systems on the benchmark's own test set; this run's showers are simulated, so they "
        "are drawn for orientation only."
        if evaluated.simulated
        else "*Published points: best systems, some with weights chosen on the test set."
    )
    threshold = metrics["survival_rates"]["75%"]["threshold"]
    n_hadron = metrics["n_hadron"]
    roc = as_svg(
        roc_picture(evaluated.labels, compared, metrics, evaluated.truth.weights),
        "hadron survival against gamma efficiency",
    )
    figures = [
        picture(
            roc,
            f"Hadrons left at each gamma efficiency, {LEVEL_TEXT} band of the shipped scores (no hadron left is drawn "
            f"as half a hadron). {note}",
        ),
        picture(
            as_svg(scores_picture(evaluated.labels, evaluated.output, threshold), "distribution of scores"),
            "Scores of gammas and hadrons; hadrons right of the dotted line survive at 75 % gamma efficiency.",
        ),
    ]
    by_energy, by_zenith = metrics["energy_binned"], metrics["zenith_binned"]
    truth = evaluated.truth
    at_one = bins_at_threshold(
        evaluated.labels,
        evaluated.output,
        threshold,
        energy=truth.energy,
        zenith_deg=truth.zenith_deg,
        weights=truth.weights,
    )
    tables = ""
    for binned, key, label in (
        (by_energy, "energy", "reconstructed energy, lg(E/eV)"),
        (by_zenith, "zenith", "reconstructed zenith angle, deg"),
    ):
        drawn = survival_by_bin_picture(binned, label, n_hadron, at_one[key])
        caption = (
            f"Bars: threshold of each bin's own gammas, {LEVEL_TEXT} intervals with the threshold's uncertainty; "
            "diamonds: one threshold for all, as an analysis would cut. Triangles: no hadron left, upper limit."
        )
        figures.append(picture(as_svg(drawn, f"survival by {label}"), caption))
        tables += _bins_table(label, binned, at_one[key])
    return Section("survival", "Hadron survival", pictures(figures) + tables + thin_note({**by_energy, **by_zenith}))


def _bins_table(label: str, own: dict[str, Any], at_one: list[BinAtThreshold]) -> str:
    """Return counts of each bin at the threshold of all events and at the bin's own."""
    rows = []
    for row in at_one:
        efficiency = f"{100 * row.n_kept / row.n_gamma:.1f}" if row.n_gamma else "–"
        cells = (row.name, f"{row.n_kept:,} of {row.n_gamma:,}", efficiency, f"{row.n_surviving:,} of {row.n_hadron:,}")
        mine = own.get(row.name)
        if mine is None or mine.get("too_few_events"):
            rows.append((*cells, "too few events", ""))
        else:
            result = (mine["hadron_survival"], mine["interval"]["low"], mine["interval"]["high"])
            value, low, high = map(short, result)
            words = f"< {high}" if mine["interval"].get("is_limit") else f"{value} [{low}, {high}]"
            rows.append((*cells, f"{mine['hadron_surviving']:,} of {mine['n_hadron']:,}", words))
    heads = (
        label,
        "gammas kept, one threshold",
        "efficiency, %",
        "hadrons left, one threshold",
        "hadrons left, own threshold at 75 %",
        "survival, own threshold",
    )
    return page_table(heads, rows)


def gamma_posteriors(evaluated: EvaluatedRun) -> Section:
    """Return the reliability diagram, and the Ne-Nmu plane coloured by the probability of a gamma."""
    label = "mean posterior probability of a gamma"
    return posteriors(evaluated, plane(evaluated, np.exp(evaluated.final[:, 0]), label, (0.0, 1.0)))


REPORT = GammaReport()
