"""Every picture renders on tiny and on degenerate data: one class missing, one event, all scores equal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from report.pictures.learners import gain_picture, learners_picture, shuffle_picture, training_picture
from report.pictures.style import as_svg
from report.pictures.tasks import (
    balanced_by_energy_picture,
    by_class_and_energy_picture,
    by_energy_picture,
    confusion_picture,
    confusions_picture,
    error_by_class_picture,
    plane_picture,
    reliability_picture,
    roc_picture,
    scores_picture,
    survival_by_bin_picture,
    survival_curve,
)
from report.shared.subject import Point
from scoring.metrics.intervals import Interval
from scoring.metrics.paired import paired_mean
from scoring.score import score_arrays
from scoring.tasks.truth import Truth
from showers.schema import COMPOSITION, GAMMA

CLASSES = COMPOSITION.classes


def truth(labels: np.ndarray) -> Truth:
    energy = np.full(len(labels), 15.2, np.float32)
    return Truth(Path("nowhere"), labels.astype(np.int8), energy, np.full(len(labels), 12.0, np.float32))


def check(figure: Figure, name: str) -> str:
    svg = as_svg(figure, name)
    assert svg.startswith("<svg")
    assert f'aria-label="{name}"' in svg
    assert "width=" not in svg[: svg.index(">")], "size comes from the page"
    return svg


@pytest.mark.parametrize("n", [5, 400])
def test_composition_pictures(n: int) -> None:
    labels = np.arange(n) % 5
    metrics = score_arrays(truth(labels), (labels + 1) % 5, COMPOSITION)
    check(confusion_picture(np.array(metrics["confusion_matrix"]), CLASSES), "confusion")
    check(error_by_class_picture(metrics), "by class")
    check(by_class_and_energy_picture(metrics), "by class and energy")
    check(by_energy_picture(metrics), "by energy")
    check(balanced_by_energy_picture(metrics), "balanced accuracy by energy")
    matrices = {f"bin {k}": (k + 1) * np.array(metrics["confusion_matrix"]) for k in range(4)}
    svg = check(confusions_picture(matrices, CLASSES), "small multiples")
    assert all(f"bin {k}" in svg for k in range(4))
    assert svg.count("predicted, % of the true class") == 1, "one scale for all"


def test_confusion_with_a_class_missing_leaves_its_row_empty() -> None:
    matrix = np.diag([4, 0, 3, 2, 1])
    svg = check(confusion_picture(matrix, CLASSES), "missing")
    assert svg.count(">100.0<") == 4
    assert svg.count(">0.0<") == 16


@pytest.mark.parametrize("n", [1, 200])
def test_reliability_and_plane_with_few_events(n: int) -> None:
    labels = np.zeros(n, int)
    certain = np.log(np.array([[1 - 4e-9, 1e-9, 1e-9, 1e-9, 1e-9]] * n))
    check(reliability_picture(labels, certain, CLASSES), "reliability")
    check(plane_picture(np.full(n, 5.0), np.full(n, 4.0), certain[:, 0], "probability", (0.0, 1.0)), "plane")


@pytest.mark.parametrize(
    "scores", [np.zeros(60), np.r_[np.ones(2), np.zeros(58)], np.linspace(3, -3, 60)], ids=["equal", "perfect", "mixed"]
)
def test_gamma_pictures(scores: np.ndarray) -> None:
    labels = np.r_[np.zeros(2, int), np.ones(58, int)]
    metrics = score_arrays(truth(labels), scores, GAMMA)
    check(roc_picture(labels, {"a": -scores, "shipped": scores}, metrics), "roc")
    check(scores_picture(labels, scores, metrics["survival_rates"]["75%"]["threshold"]), "scores")
    check(survival_by_bin_picture(metrics["energy_binned"], "energy", 58), "by energy")
    check(survival_by_bin_picture({}, "zenith", 58), "by zenith")


def test_survival_curve_agrees_with_the_metric() -> None:
    rng = np.random.default_rng(1)
    labels = (rng.random(500) > 0.2).astype(int)
    scores = rng.normal(1.0 - labels, 1.0)
    efficiency, surviving = survival_curve(labels, scores, n_points=10_000)
    metrics = score_arrays(truth(labels), scores, GAMMA)["survival_rates"]["75%"]
    k = int(np.searchsorted(efficiency, 0.75))
    assert surviving[k] == metrics["hadron_surviving"]


def test_learner_pictures() -> None:
    points = [Point("a", "score", 0.0, Interval(0.0, 1e-4)), Point("b", "score", 3e-4, Interval(1e-4, 6e-4))]
    check(learners_picture(points, "survival", logarithmic=True), "survival of learners")
    both = [Point("a", rule, 0.1, Interval(0.09, 0.11)) for rule in ("argmax", "decided")]
    assert "raw (argmax)" in check(learners_picture(both, "fraction error"), "learners")
    check(training_picture({"mlp": [1.2, 1.1, 1.15], "lenet": [1.3, 1.2]}), "training")


def test_importance_pictures() -> None:
    check(gain_picture({"lightgbm": {"scalars": 0.7, "fits": 0.3}, "xgboost": {"fits": 1.0}}), "gain")
    check(shuffle_picture({"scalars": paired_mean(np.array([0.1, 0.2])), "fits": paired_mean(np.zeros(3))}), "shuffled")
