"""A known distortion is undone; nothing is done where nothing is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from models.base.posterior import log_softmax
from stacking.meta.calibration import Calibrator, cross_fit, fit_calibrator, identity, reliability
from stacking.meta.softmax import log_loss_per_event

N = 6000


def _random(n_classes: int = 3, n: int = N) -> np.ndarray:
    return log_softmax(1.5 * np.random.default_rng(5).normal(size=(n, n_classes)))


def _labels(log_proba: np.ndarray) -> np.ndarray:
    """Draw labels from exact log-posteriors."""
    uniform = np.random.default_rng(6).random((len(log_proba), 1))
    labels = (uniform > np.cumsum(np.exp(log_proba), axis=1)).sum(axis=1)
    return np.minimum(labels, log_proba.shape[1] - 1)


def _truth(n_classes: int = 3, n: int = N) -> tuple[np.ndarray, np.ndarray]:
    """Return exact log-posteriors and labels drawn from them."""
    log_proba = _random(n_classes, n)
    return log_proba, _labels(log_proba)


CORRECTIONS = {
    "temperature": lambda z: log_softmax(0.4 * z),
    "vector": lambda z: log_softmax(z * [0.4, 1.3, 1.0] + [0.9, 0.0, -0.9]),
    "matrix": lambda z: log_softmax(z @ np.array([[0.9, 0.6, 0.0], [0.0, 0.9, 0.6], [0.6, 0.0, 0.9]])),
}


@pytest.mark.parametrize("kind", CORRECTIONS)
def test_each_kind_finds_its_own_correction(kind: str) -> None:
    wrong = _random()
    exact = CORRECTIONS[kind](wrong)
    labels = _labels(exact)
    calibrator = fit_calibrator(wrong, labels, np.arange(N) % 3)
    assert calibrator.kind == kind
    excess = (log_loss_per_event(calibrator(wrong), labels) - log_loss_per_event(exact, labels)).mean()
    assert abs(excess) < 0.003, "as good as the exact posterior"
    assert log_loss_per_event(wrong, labels).mean() - log_loss_per_event(exact, labels).mean() > 0.03


def test_a_calibrated_learner_is_left_alone() -> None:
    exact, labels = _truth()
    calibrator = fit_calibrator(exact, labels, np.arange(N) % 3)
    assert calibrator.kind == "identity"
    assert calibrator(exact) is exact


def test_two_classes_keep_the_order_of_events() -> None:
    exact, labels = _truth(2)
    distorted = log_softmax(exact * [3.0, 1.0] + [0.5, 0.0])
    calibrator = fit_calibrator(distorted, labels, np.arange(N) % 3)
    assert calibrator.kind in ("temperature", "vector")
    before, after = distorted[:, 0] - distorted[:, 1], calibrator(distorted)
    order = np.argsort(before)
    assert (np.diff((after[:, 0] - after[:, 1])[order]) >= 0).all()


def test_a_matrix_of_many_classes_helps_with_few_events() -> None:
    # Neighbours of twelve classes mixed: 156 free numbers gain on 2,000 events only where the pull grows with them.
    wrong = _random(12, 3000)
    exact = log_softmax(wrong @ (np.eye(12) + 0.3 * np.roll(np.eye(12), 1, axis=1)))
    labels = _labels(exact)
    folds = np.arange(len(labels)) % 3
    assert fit_calibrator(wrong, labels, folds).kind == "matrix"
    _, calibrated = cross_fit(wrong, labels, folds)
    before, after, best = (log_loss_per_event(z, labels).mean() for z in (wrong, calibrated, exact))
    assert before - after > 0.2 * (before - best)


def test_cross_fitting_calibrates_each_fold_without_its_labels() -> None:
    exact, labels = _truth(n=1500)
    distorted, folds = log_softmax(3 * exact), np.arange(1500) % 3
    calibrator, calibrated = cross_fit(distorted, labels, folds)
    # Other labels in fold 0 must not change what fold 0 gets.
    poisoned = labels.copy()
    poisoned[folds == 0] = (labels[folds == 0] + 1) % 3
    again, recalibrated = cross_fit(distorted, poisoned, folds)
    np.testing.assert_array_equal(calibrated[folds == 0], recalibrated[folds == 0])
    assert not np.allclose(calibrated[folds == 1], recalibrated[folds == 1])
    assert not np.allclose(calibrator.matrix, again.matrix), "what ships is fitted on all events"


def test_reliability_measures_overconfidence_and_json_round_trips() -> None:
    exact, labels = _truth()
    good, bad = reliability(exact, labels), reliability(log_softmax(3 * exact), labels)
    assert good["expected_calibration_error"] < 0.012 < 0.05 < bad["expected_calibration_error"]
    assert sum(row["entries"] for row in good["bins"]) == 3 * N
    calibrator = fit_calibrator(log_softmax(3 * exact), labels, np.arange(N) % 2)
    again = Calibrator.from_json(calibrator.as_json())
    np.testing.assert_array_equal(again(exact), calibrator(exact))
    assert identity(3)(exact) is exact
