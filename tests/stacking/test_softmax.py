"""Fits of log-posteriors see a fair part of the events, and cost what their numbers cost."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from showerstack.models.base.posterior import log_softmax
from showerstack.stacking.fit.folds import subsampled
from showerstack.stacking.meta import softmax
from showerstack.stacking.meta.calibration import _matrix, fit_calibrator
from showerstack.stacking.meta.softmax import fit_linear, fit_scaling


def test_a_part_of_periodic_labels_has_every_class() -> None:
    labels = np.arange(400_000) % 2
    chosen = subsampled(len(labels), 200_000)
    assert isinstance(chosen, np.ndarray)
    assert len(np.unique(chosen)) == 200_000
    assert abs(labels[chosen].mean() - 0.5) < 0.01
    np.testing.assert_array_equal(chosen, subsampled(len(labels), 200_000))
    assert len(labels[subsampled(len(labels), 150_001)]) == 150_001
    assert subsampled(10, 10) == slice(None)


def test_many_numbers_are_fitted_without_their_curvature(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 4, 2000)
    x = np.eye(4)[labels] + rng.normal(size=(2000, 4))
    newton = fit_linear(x, labels, np.eye(4), l2=0.01)
    monkeypatch.setattr(softmax, "NEWTON_NUMBERS", 10)
    for result, expected in zip(fit_linear(x, labels, np.eye(4), l2=0.01), newton, strict=True):
        np.testing.assert_allclose(result, expected, atol=2e-3)


def test_a_hundred_classes_fit_into_memory_and_go_without_a_matrix() -> None:
    rng = np.random.default_rng(1)
    labels = np.arange(2000) % 100
    log_proba = log_softmax(2 * np.eye(100)[labels] + rng.normal(size=(2000, 100)))
    tracemalloc.start()
    matrix, _ = fit_linear(np.tile(log_proba, 3), labels, np.tile(np.eye(100) / 3, (3, 1)), l2=0.05)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert matrix.shape == (300, 100)
    assert peak < 2e8, "curvature alone would take 7 GB"
    assert fit_calibrator(log_proba, labels, np.arange(2000) // 100 % 5).kind != "matrix"


def test_a_matrix_is_the_minimum_of_its_penalised_loss() -> None:
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 4, 300)
    log_proba = log_softmax(np.eye(4)[labels] @ rng.normal(size=(4, 4)) + rng.normal(size=(300, 4)))
    fitted = _matrix(log_proba, labels, None)
    scales, _ = fit_scaling(log_proba, labels, per_class=False)
    missed = np.exp(fitted(log_proba)) - np.eye(4)[labels]
    distance = fitted.matrix / scales[:, None] - np.eye(4)
    l2 = 0.3 * 4 * 3 / 300
    np.testing.assert_allclose((log_proba * scales).T @ missed / 300, -l2 * distance, atol=1e-5)
    np.testing.assert_allclose(missed.mean(axis=0), -l2 * fitted.bias, atol=1e-5)
    assert np.abs(l2 * distance).max() > 1e-3
