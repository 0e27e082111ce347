"""Every number of the metrics, beside the numbers they gave before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from showerstack.scoring.metrics.classes import (
    balanced_accuracy,
    bins_at_threshold,
    efficiency_at_survival,
    q_factor,
    table_metrics,
)
from showerstack.scoring.metrics.composition import (
    confusion_intervals,
    confusion_matrix,
    fraction_error_interval,
    paired_fraction_error,
    sampled_errors,
    share_errors,
)
from showerstack.scoring.metrics.gamma import SurvivorWeights, gamma_area
from showerstack.scoring.metrics.intervals import clopper_pearson, share_interval
from showerstack.scoring.metrics.paired import mcnemar, paired_accuracy, paired_log_loss, paired_mean
from showerstack.scoring.metrics.residuals import (
    bias_interval,
    paired_resolution,
    residual_metrics,
    resolution_interval,
)
from showerstack.scoring.metrics.survival_bootstrap import paired_survival, survival_interval
from showerstack.scoring.score import score_arrays
from showerstack.scoring.tasks import scoring_of
from showerstack.scoring.tasks.truth import Truth
from showerstack.showers.schema import COMPOSITION, ENERGY, GAMMA

N = 600
Reference = Callable[..., None]


def drawn(kind: str) -> tuple[Truth, np.ndarray, np.ndarray]:
    """Return a test set and the outputs of two methods, the second the better one; a third of the events in pairs."""
    rng = np.random.default_rng(20)
    # Every fourth event lies on a border of bins, and scores tie: what is in and what is out is seen.
    fourth = np.arange(N) % 4 == 0
    energy, zenith = (
        np.where(fourth, step * np.floor(values / step), values)
        for values, step in ((rng.uniform(14.4, 17.2, N), 0.25), (rng.uniform(0, 42, N), 3.0))
    )
    groups = np.where(np.arange(N) % 3 == 0, np.arange(N) // 6, np.arange(N))
    if kind == "composition":
        labels = rng.integers(0, 5, N)
        a, b = (np.clip(labels + np.rint(rng.normal(0, s, N)), 0, 4).astype(np.int64) for s in (1.0, 0.7))
        labels = labels.astype(np.int8)
    elif kind == "gamma":
        labels = (rng.random(N) > 0.3).astype(np.int8)
        a, b = (np.round(1 / (1 + np.exp(rng.normal(0, 1, N) - s * (labels == 0))), 2) for s in (1.0, 1.6))
    else:
        labels = energy.astype(np.float32)
        a, b = (labels + rng.normal(0.02, s, N) + 0.05 * (zenith - 20) / 20 for s in (0.15, 0.1))
        energy = energy + rng.normal(0.1, 0.2, N)
    weights = np.exp(rng.normal(0, 0.7, N))
    reference = energy.astype(np.float32) if kind == "energy" else None
    columns = (energy.astype(np.float32), zenith.astype(np.float32))
    return Truth(Path("nowhere"), labels, *columns, reference=reference, groups=groups, weights=weights), a, b


def variants(truth: Truth, kind: str) -> dict[str, Truth]:
    """Return the test set without and with groups, weights (of gammas alone) and an order."""
    plain = Truth(truth.folder, truth.labels, truth.energy, truth.zenith_deg, reference=truth.reference)
    order = np.random.default_rng(3).permutation(len(truth.labels))
    changed = {"plain": {}, "groups": {"groups": truth.groups}, "order": {"order": order}}
    changed |= {"weights": {"weights": truth.weights}} if kind == "gamma" else {}
    return {name: Truth(**vars(plain) | one) for name, one in changed.items()}


@pytest.mark.parametrize("kind", ["composition", "gamma", "energy"])
def test_scores(kind: str, reference: Reference) -> None:
    task = {"composition": COMPOSITION, "gamma": GAMMA, "energy": ENERGY}[kind]
    truth, output, _ = drawn(kind)
    shown = ("plain", "weights" if kind == "gamma" else "groups")
    reference({name: score_arrays(one, output, task) for name, one in variants(truth, kind).items() if name in shown})


@pytest.mark.parametrize("kind", ["composition", "gamma", "energy"])
def test_comparisons_of_tasks(kind: str, reference: Reference) -> None:
    task = {"composition": COMPOSITION, "gamma": GAMMA, "energy": ENERGY}[kind]
    truth, a, b = drawn(kind)
    metric = scoring_of(task).metric
    reference(
        {
            name: {
                "value": metric.of(one, a),
                "interval": metric.interval_of(one, a),
                "paired": metric.paired_of(one, a, b),
            }
            for name, one in variants(truth, kind).items()
        }
    )


def test_scores_of_few_events_well_told_apart(reference: Reference) -> None:
    rng = np.random.default_rng(7)
    columns = np.full(24, 15.2, np.float32), np.repeat([0.0, 20.0], 12).astype(np.float32)
    mass = Truth(
        Path("nowhere"), np.array([*range(5), *range(1, 5), 4, 4, 4, *range(4), *range(4), *[0] * 4], np.int8), *columns
    )
    gamma = Truth(Path("nowhere"), np.array([*[0, 1] * 6, *[0] * 12], np.int8), *columns)
    parted = np.where(gamma.labels == 0, 0.5, 0.25) + rng.uniform(0, 0.2, 24)
    reference(
        {
            "composition": score_arrays(mass, np.minimum(mass.labels, 2).astype(np.int64), COMPOSITION),
            "gamma": score_arrays(gamma, parted, GAMMA),
            "weights": score_arrays(replace(gamma, weights=np.linspace(0, 2, 24)), parted[::-1].copy(), GAMMA),
            "paired": paired_survival(gamma.labels, parted, parted[::-1]),
            "quoted": [SurvivorWeights(0, n, w, 1, 2).quoted for n in (100, 101) for w in (5, 6)],
            "table": table_metrics(np.repeat([0, 1], 12), np.log(np.tile([[0.7, 0.2, 0.1]], (24, 1))), ("a", "b", "c")),
            "sure": table_metrics(np.repeat([0, 1], 12), np.log(np.eye(2)[np.repeat([0, 1], 12)] + 1e-300), ("a", "b")),
            "bins": bins_at_threshold(
                gamma.labels,
                parted,
                0.5,
                energy=gamma.energy,
                zenith_deg=gamma.zenith_deg,
                weights=np.linspace(0, 2, 24),
            ),
        }
    )


def test_intervals_and_paired_tests(reference: Reference) -> None:
    composition, a, b = drawn("composition")
    labels, groups = composition.labels, composition.groups
    gamma, scores, better = drawn("gamma")
    rng = np.random.default_rng(4)
    proba = rng.dirichlet(np.ones(5), N)
    values = rng.normal(0.1, 1, N)
    reference(
        {
            "clopper": [clopper_pearson(k, n, level) for k, n in ((0, 9), (3, 40), (40, 40)) for level in (0.68, 0.95)],
            "accuracy": clopper_pearson(int((a == labels).sum()), len(labels)),
            "shares": [
                share_interval(a == labels, g, weights=w)
                for g, w in ((None, None), (groups, None), (None, gamma.weights))
            ],
            "fraction error": [fraction_error_interval(labels, a), fraction_error_interval(labels, a, groups)],
            "confusion": confusion_intervals(confusion_matrix(labels, a), 0.1, np.linspace(0.05, 0.1, 5)),
            "survival": [
                survival_interval(gamma.labels, scores, g, w, efficiency=efficiency)
                for efficiency in (0.5, 0.9)
                for g, w in ((None, None), (groups, None), (None, gamma.weights))
            ],
            "mean": [paired_mean(values), paired_mean(values, groups)],
            "paired error": [paired_fraction_error(labels, a, b), paired_fraction_error(labels, a, b, groups)],
            "paired survival": [
                paired_survival(gamma.labels, scores, better, groups=g, weights=w)
                for g, w in ((None, None), (groups, None), (None, gamma.weights))
            ],
            "paired loss": [
                paired_log_loss(labels, np.log(proba), np.log(np.roll(proba, 1, 1)), g) for g in (None, groups)
            ],
            "paired accuracy": [paired_accuracy(labels, a, b, g) for g in (None, groups)],
            "mcnemar": [mcnemar(a == labels, b == labels, g) for g in (None, groups)],
            "share errors": share_errors(np.log(proba), labels, 500),
            "sampled": sampled_errors(labels, a, np.random.default_rng(6)),
        }
    )


def test_other_metrics(reference: Reference) -> None:
    gamma, scores, _ = drawn("gamma")
    labels, weights = gamma.labels, gamma.weights
    energy, a, b = drawn("energy")
    residuals, others = a - energy.labels, b - energy.labels
    log_proba = np.log(np.random.default_rng(5).dirichlet(np.ones(3), N))
    reference(
        {
            "table": table_metrics(np.arange(N) % 3, log_proba, ("a", "b", "c")),
            "two classes": table_metrics(labels.astype(int), np.log(np.stack([scores, 1 - scores], 1)), ("a", "b")),
            "q factor": [q_factor(labels, scores), q_factor(labels, scores, 0.5, weights)],
            "efficiency": [efficiency_at_survival(labels, scores, s, w) for s in (1e-3, 0.05) for w in (None, weights)],
            "area": [gamma_area(labels, scores), gamma_area(labels, scores, weights)],
            "bins": bins_at_threshold(labels, scores, 0.6, energy=gamma.energy, zenith_deg=gamma.zenith_deg),
            "balanced": balanced_accuracy(confusion_matrix(labels, (scores < 0.5).astype(int), 2)),
            "residuals": [residual_metrics(residuals), residual_metrics(residuals, weights)],
            "resolution": [resolution_interval(residuals), resolution_interval(residuals, energy.groups)],
            "bias": bias_interval(residuals),
            "paired resolution": [paired_resolution(residuals, others, g) for g in (None, energy.groups)],
        }
    )
