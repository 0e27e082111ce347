"""Gamma/hadron separation: scores, measured by the benchmark's hadron survival."""

from __future__ import annotations

from typing import Any

import numpy as np

from showerstack.runtime.errors import InputError
from showerstack.scoring.metrics.composition import energy_bins
from showerstack.scoring.metrics.gamma import (
    EFFICIENCIES,
    HADRON,
    efficiency_name,
    energy_zenith_grid,
    gamma_metrics,
    hadron_survival,
    zenith_bins,
)
from showerstack.scoring.metrics.intervals import (
    MIN_CLASS_EVENTS,
    Interval,
    clopper_pearson,
    share_interval,
    survival_interval,
)
from showerstack.scoring.metrics.paired import Paired, paired_survival
from showerstack.scoring.tasks.base import Metric, TaskScoring
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


class GammaScoring(TaskScoring):
    """Numbers, higher = more gamma-like."""

    task = GAMMA
    key = "gamma_scores"
    dtype = np.float64
    metric = SURVIVAL
    headline_key = "key_metric"

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


SCORING = GammaScoring()


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
