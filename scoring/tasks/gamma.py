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
    HADRON,
    efficiency_name,
    gamma_metrics,
    hadron_survival,
)
from showerstack.scoring.metrics.gamma import GAMMA as PHOTON
from showerstack.scoring.metrics.intervals import (
    MIN_CLASS_EVENTS,
    Interval,
    area,
    clopper_pearson,
    share_interval,
    survival_interval,
)
from showerstack.scoring.metrics.level import LEVEL_TEXT
from showerstack.scoring.metrics.paired import Paired, mcnemar, paired_survival
from showerstack.scoring.tasks.base import ClassScoring, Metric, Named, Quantity
from showerstack.scoring.tasks.published import best_published
from showerstack.scoring.tasks.text import mcnemar_table, short, table, with_interval
from showerstack.scoring.tasks.truth import Truth, check_finite
from showerstack.showers.schema import GAMMA


def _survival(labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None) -> float:
    return hadron_survival(labels, scores, weights=weights).hadron_survival


def _interval(
    labels: np.ndarray, scores: np.ndarray, groups: np.ndarray | None = None, weights: np.ndarray | None = None
) -> Interval:
    return survival_interval(labels, scores, groups=groups, weights=weights)


def _paired(
    labels: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    groups: np.ndarray | None = None,
    weights: np.ndarray | None = None,
) -> Paired:
    return paired_survival(labels, a, b, groups=groups, weights=weights)


SURVIVAL = Metric(
    "hadron survival", "share at 75 % gamma efficiency", _survival, _interval, _paired, logarithmic=True,
)  # fmt: skip


EXACT = 2**53
"""float64 tells all whole numbers below this apart."""


class GammaScoring(ClassScoring):
    """Numbers, higher = more gamma-like."""

    task = GAMMA
    key = "gamma_scores"
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
    published = f"The best published hadron survival is {short(best_published(GAMMA.name))} (public test sets)."
    right_words = "right side of its threshold"

    def checked(self, output: np.ndarray, where: str) -> np.ndarray:
        """Return (N,) float64."""
        if output.dtype.kind not in "fiu":
            raise InputError(f"{where} has type {output.dtype}, expected real numbers, higher = more gamma-like")
        check_finite(output, where)
        result = output.astype(np.float64)
        inexact = np.abs(result) >= EXACT if output.dtype.kind in "iu" else result != output
        if inexact.any():
            row = int(np.flatnonzero(inexact)[0])
            why = "which float64 may not tell from its neighbours: scale the scores"
            raise InputError(f"{where}: row {row} holds {output[row]}, {why}")
        return result

    def metrics(self, truth: Truth, output: np.ndarray, *, intervals: bool) -> dict[str, Any]:
        """Return the benchmark's keys."""
        metrics = gamma_metrics(truth.labels, output, truth.energy, truth.zenith_deg, truth.weights)
        if intervals:
            add_gamma_intervals(metrics, truth, output)
        return metrics

    def warnings(self, truth: Truth, output: np.ndarray) -> list[str]:
        """Say what ties cost."""
        return tie_warnings(truth.labels, output, truth.weights)

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

    def second_metric(
        self, labels: np.ndarray, log_proba: np.ndarray, output: np.ndarray, weights: np.ndarray | None = None
    ) -> Quantity:
        """Return the area under the ROC curve: accuracies say little where one class is rare."""
        result = area(labels, output, weights)
        return Quantity("AUC", result.value, result.interval, 4)

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
        for name, label in (("gammas kept at 75 %", PHOTON), ("hadrons rejected at 75 %", HADRON)):
            mine = labels == label
            same = None if groups is None else groups[mine]
            yield mcnemar_table(name, mcnemar(first[mine], second[mine], same), a[0], b[0])


def _survival_words(row: dict[str, Any]) -> str:
    """Return a survival with its interval, or its upper limit where weights determine no number."""
    if not row.get("quoted", True):
        row = {"interval": {"high": row["upper_limit"], "is_limit": True}} | row
    return with_interval(row["hadron_survival"], row.get("interval"), ".2e")


def add_gamma_intervals(metrics: dict[str, Any], truth: Truth, scores: np.ndarray) -> None:
    """Add confidence intervals to the metrics of :func:`showerstack.scoring.metrics.gamma.gamma_metrics`, in place.

    ``interval`` includes the uncertainty of the threshold, ``interval_at_threshold`` (Clopper-Pearson) does not; in its
    place weighted hadrons have ``error`` and ``upper_limit``.
    """
    everything = np.ones(len(scores), dtype=bool)
    for share in EFFICIENCIES:
        result = metrics["survival_rates"][efficiency_name(share)]
        _survival_part(result, truth, scores, everything, share)
        result["n_tied_hadrons"] = hadron_survival(truth.labels, scores, share, truth.weights).n_tied_hadrons
    hits = (scores >= 0.5) == (truth.labels == 0)
    metrics["intervals"] = {
        "key_metric": metrics["survival_rates"]["75%"]["interval"],
        "accuracy_at_0.5": share_interval(hits, truth.groups, weights=truth.weights).as_dict(),
    }
    binned = [(metrics["energy_binned"].get(name), mask) for name, mask in energy_bins(truth.energy)]
    binned += [(metrics["zenith_binned"].get(name), mask) for name, mask in zenith_bins(truth.zenith_deg)]
    binned += [
        (metrics["energy_zenith_grid"].get(row, {}).get(name), mask)
        for row, name, mask in energy_zenith_grid(truth.energy, truth.zenith_deg)
    ]
    for result, mask in binned:
        if result is not None:
            _survival_part(result, truth, scores, mask)
            result["too_few_events"] = min(result["n_gamma"], result["n_hadron"]) < MIN_CLASS_EVENTS


def _survival_part(
    content: dict[str, Any], truth: Truth, scores: np.ndarray, mask: np.ndarray, efficiency: float = 0.75
) -> None:
    labels, scores = truth.labels[mask], scores[mask]
    groups, weights = (None if part is None else part[mask] for part in (truth.groups, truth.weights))
    content["interval"] = survival_interval(labels, scores, efficiency, groups, weights).as_dict()
    if weights is not None:
        return
    n_hadron = int(np.count_nonzero(labels == 1))
    content["interval_at_threshold"] = clopper_pearson(content["hadron_surviving"], n_hadron).as_dict()


def tie_warnings(labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None) -> list[str]:
    """Say what tied scores at a threshold cost: hadrons survive that no smaller score separates from gammas."""
    notes = []
    for share in EFFICIENCIES:
        result = hadron_survival(labels, scores, share, weights)
        if result.n_tied_hadrons and result.n_tied_hadrons + result.n_tied_gammas > 2:
            hadron = labels == HADRON
            above = scores[hadron] > result.threshold
            without = float(np.average(above, weights=None if weights is None else weights[hadron]))
            notes.append(
                f"at {efficiency_name(share)} gamma efficiency {result.n_tied_gammas} gammas and "
                f"{result.n_tied_hadrons} hadrons share the score at the threshold ({result.threshold:.9g}): survival "
                f"is {result.hadron_survival:.3g}, gamma efficiency {result.gamma_efficiency:.4f}; without the tied "
                f"hadrons it would be {without:.3g}. Save scores as float64 logits."
            )
    return notes
