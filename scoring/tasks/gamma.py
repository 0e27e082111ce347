"""Gamma/hadron separation: scores, measured by the benchmark's hadron survival."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from showerstack.runtime.errors import InputError
from showerstack.scoring.metrics.bins import energy_bins, energy_zenith_grid, zenith_bins
from showerstack.scoring.metrics.gamma import (
    EFFICIENCIES,
    GAMMA_CLASS,
    HADRON,
    KEY_EFFICIENCY,
    area_under_curve,
    efficiency_name,
    gamma_area,
    gamma_metrics,
    hadron_survival,
)
from showerstack.scoring.metrics.intervals import MIN_CLASS_EVENTS, clopper_pearson, share_interval
from showerstack.scoring.metrics.level import LEVEL_TEXT
from showerstack.scoring.metrics.paired import mcnemar
from showerstack.scoring.metrics.survival_bootstrap import paired_survival, survival_interval
from showerstack.scoring.tasks.base import Metric, Named, Quantity, TaskScoring
from showerstack.scoring.tasks.text import TOO_FEW, mcnemar_table, short, table, with_interval
from showerstack.scoring.tasks.truth import Truth, check_finite
from showerstack.showers.schema import GAMMA


def _survival(labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None) -> float:
    return hadron_survival(labels, scores, weights=weights).hadron_survival


SURVIVAL = Metric(
    "hadron survival", "share at 75 % gamma efficiency", _survival, survival_interval, paired_survival,
    logarithmic=True,
)  # fmt: skip
SENSE_SIGMA = 5.0
"""Standard errors by which the area under the curve must lie below one half for scores to have the other sense."""
EXACT = 2**53
"""Whole numbers below this are distinct in float64."""


class GammaScoring(TaskScoring):
    """Numbers, higher = more gamma-like."""

    task = GAMMA
    dtype = np.float64
    metric = SURVIVAL
    headline_key = "key_metric"
    title = "Gamma/hadron separation"
    metric_words = "hadron survival at 75 % gamma efficiency"
    metric_column = "survival"
    meaning = (
        "Hadron survival: the share of hadrons that pass the threshold which keeps 75 % of the gammas. 0 is perfect, "
        "0.75 random scores. Q-factor: gamma efficiency over the root of the hadron survival, by which a cut raises "
        "the significance of a weak source. AUC: area under the ROC curve, 0.5 for random scores."
    )
    right_words = "right side of its threshold"

    @property
    def published(self) -> str:
        """The best published hadron survival."""
        from showerstack.scoring.tasks.published import best_published  # of pages alone

        return f"The best published hadron survival is {short(best_published(GAMMA.name))} (public test sets)."

    def check_output(self, output: np.ndarray, where: str) -> np.ndarray:
        """Return (N,) float64."""
        if output.dtype.kind not in "fiu":
            raise InputError(f"{where} has type {output.dtype}, expected real numbers, higher = more gamma-like")
        check_finite(output, where)
        scores = output.astype(np.float64)
        inexact = np.abs(scores) >= EXACT if output.dtype.kind in "iu" else scores != output
        if inexact.any():
            row = int(np.flatnonzero(inexact)[0])
            why = "which float64 may not tell from its neighbours: scale the scores"
            raise InputError(f"{where}: row {row} holds {output[row]}, {why}")
        return scores

    def metrics(self, truth: Truth, output: np.ndarray, *, intervals: bool) -> dict[str, Any]:
        """Return the benchmark's keys."""
        metrics = gamma_metrics(truth.labels, output, truth.energy, truth.zenith_deg, truth.weights, truth.binning)
        if intervals:
            add_gamma_intervals(metrics, truth, output)
        return metrics

    def warnings(self, truth: Truth, output: np.ndarray) -> list[str]:
        """Return what ties cost, and whether the scores have the other sense."""
        return [*sense_warnings(truth, output), *tie_warnings(truth.labels, output, truth.weights)]

    def summary(self, metrics: dict[str, Any]) -> Iterator[RenderableType]:
        """Yield survivals by gamma efficiency, energy and zenith."""
        rates = metrics["survival_rates"]
        key = rates[efficiency_name(KEY_EFFICIENCY)]
        yield Text.assemble(
            ("hadron survival ", "bold"),
            (_survival_text(key), "bold green"),
            f" at 75 % gamma efficiency, {metrics['n_gamma']:,} gammas, {metrics['n_hadron']:,} hadrons"
            f"{f', {LEVEL_TEXT} intervals in brackets' if 'interval' in key else ''}",
        )
        is_weighted = "n_effective" in key
        worth = ("worth by weight",) if is_weighted else ()
        heads = ("wanted", "reached", "threshold", "hadrons left", *worth, "hadron survival")
        by_efficiency = table("by gamma efficiency", *heads)
        for name, row in rates.items():
            by_efficiency.add_row(
                name,
                f"{row['gamma_efficiency']:.4f}",
                f"{row['threshold']:.5g}",
                f"{row['hadron_surviving']:,}",
                *([f"{row['n_effective']:,.0f}"] if is_weighted else []),
                _survival_text(row),
            )
        yield by_efficiency
        for title, binned in (
            ("by energy, lg(E/eV), at 75 %", metrics["energy_binned"]),
            ("by zenith, deg, at 75 %", metrics["zenith_binned"]),
        ):
            by_bin = table(title, "bin", "gammas", "hadrons", "hadrons left", "hadron survival")
            for name, row in binned.items():
                counts = (f"{row[count]:,}" for count in ("n_gamma", "n_hadron", "hadron_surviving"))
                by_bin.add_row(name, *counts, TOO_FEW if row.get("too_few_events") else _survival_text(row))
            yield by_bin

    def second_metric(
        self,
        labels: np.ndarray,
        log_proba: np.ndarray,
        output: np.ndarray,
        weights: np.ndarray | None = None,
        groups: np.ndarray | None = None,
    ) -> Quantity:
        """Return the area under the ROC curve: an accuracy means little where one class is rare."""
        area = gamma_area(labels, output, weights, groups)
        return Quantity("AUC", area.value, area.interval, 4)

    def details(self, metrics: dict[str, Any]) -> dict[str, str]:
        """Return the number of surviving hadrons."""
        n_surviving = metrics["survival_rates"]["75%"]["hadron_surviving"]
        return {"hadrons surviving at 75 % gamma efficiency": f"{n_surviving} of {metrics['n_hadron']}"}

    def is_right(self, labels: np.ndarray, output: np.ndarray) -> np.ndarray:
        """Return which gammas are kept and which hadrons rejected at 75 %."""
        kept = output >= hadron_survival(labels, output).threshold
        return np.asarray(kept != (labels == HADRON))

    def compare(
        self, labels: np.ndarray, a: Named, b: Named, groups: np.ndarray | None = None
    ) -> Iterator[RenderableType]:
        """Yield which system keeps which gammas and rejects which hadrons."""
        right_a, right_b = self.is_right(labels, a[1]), self.is_right(labels, b[1])
        for what, label in (("gammas kept at 75 %", GAMMA_CLASS), ("hadrons rejected at 75 %", HADRON)):
            of_class = labels == label
            groups_of_class = None if groups is None else groups[of_class]
            yield mcnemar_table(what, mcnemar(right_a[of_class], right_b[of_class], groups_of_class), a[0], b[0])


def _survival_text(row: dict[str, Any]) -> str:
    """Return a survival with its interval, or its upper limit where weights determine no number."""
    interval = row.get("interval")
    if interval is None and not row.get("quoted", True):
        interval = {"high": row["upper_limit"], "is_limit": True}
    return with_interval(row["hadron_survival"], interval, ".2e")


def add_gamma_intervals(metrics: dict[str, Any], truth: Truth, scores: np.ndarray) -> None:
    """Add confidence intervals to the metrics of :func:`showerstack.scoring.metrics.gamma.gamma_metrics`, in place.

    ``interval`` includes the uncertainty of the threshold, ``interval_at_threshold`` (Clopper-Pearson) does not; in its
    place weighted hadrons have ``error`` and ``upper_limit``.
    """
    for efficiency in EFFICIENCIES:
        rate = metrics["survival_rates"][efficiency_name(efficiency)]
        _add_survival_intervals(rate, truth, scores, efficiency)
        rate["n_tied_hadrons"] = hadron_survival(truth.labels, scores, efficiency, truth.weights).n_tied_hadrons
    hits = (scores >= 0.5) == (truth.labels == GAMMA_CLASS)
    metrics["intervals"] = {
        "key_metric": metrics["survival_rates"][efficiency_name(KEY_EFFICIENCY)]["interval"],
        "accuracy_at_0.5": share_interval(hits, truth.groups, weights=truth.weights).as_dict(),
    }
    energy, zenith_deg, bins = truth.energy, truth.zenith_deg, truth.binning
    binned = [(metrics["energy_binned"].get(name), mask) for name, mask in energy_bins(energy, bins)]
    binned += [(metrics["zenith_binned"].get(name), mask) for name, mask in zenith_bins(zenith_deg, bins)]
    binned += [
        (metrics["energy_zenith_grid"].get(zenith_name, {}).get(energy_name), mask)
        for zenith_name, energy_name, mask in energy_zenith_grid(energy, zenith_deg, bins)
    ]
    for row, mask in binned:
        if row is not None:
            _add_survival_intervals(row, truth.take(mask), scores[mask], KEY_EFFICIENCY)
            row["too_few_events"] = min(row["n_gamma"], row["n_hadron"]) < MIN_CLASS_EVENTS


def _add_survival_intervals(row: dict[str, Any], truth: Truth, scores: np.ndarray, efficiency: float) -> None:
    """Add its intervals to a survival, in place."""
    interval = survival_interval(truth.labels, scores, truth.groups, truth.weights, efficiency=efficiency)
    row["interval"] = interval.as_dict()
    if truth.weights is None:
        n_hadron = int(np.count_nonzero(truth.labels == HADRON))
        row["interval_at_threshold"] = clopper_pearson(row["hadron_surviving"], n_hadron).as_dict()


def sense_warnings(truth: Truth, scores: np.ndarray) -> list[str]:
    """Return a warning where gammas have the lower scores, by more errors than chance can give."""
    area, error = area_under_curve(truth.labels == GAMMA_CLASS, scores, truth.weights, truth.groups)
    if not area < 0.5 - SENSE_SIGMA * error:
        return []
    return [
        f"gammas have lower scores than hadrons (AUC {area:.3f} ± {error:.3f}): a higher score must mean "
        "more gamma-like; if they mean the reverse, give them with the other sign"
    ]


def tie_warnings(labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None) -> list[str]:
    """Return what tied scores at a threshold cost: hadrons survive that no smaller score separates from gammas."""
    warnings, hadron = [], labels == HADRON
    for efficiency in EFFICIENCIES:
        survival = hadron_survival(labels, scores, efficiency, weights)
        if survival.n_tied_hadrons and survival.n_tied_hadrons + survival.n_tied_gammas > 2:
            above = scores[hadron] > survival.threshold
            without_ties = float(np.average(above, weights=None if weights is None else weights[hadron]))
            warnings.append(
                f"at {efficiency_name(efficiency)} gamma efficiency {survival.n_tied_gammas} gammas and "
                f"{survival.n_tied_hadrons} hadrons share the score at the threshold ({survival.threshold:.9g}): "
                f"survival is {survival.hadron_survival:.3g}, gamma efficiency {survival.gamma_efficiency:.4f}; "
                f"without the tied hadrons it would be {without_ties:.3g}. Save scores as float64 logits."
            )
    return warnings
