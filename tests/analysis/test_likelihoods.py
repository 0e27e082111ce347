"""Every likelihood that is minimised by its gradient has that gradient; weights mean repeated events."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from showerstack.analysis.datacheck import weights as datacheck_weights
from showerstack.models.base.posterior import log_softmax
from showerstack.stacking.meta import softmax
from showerstack.stacking.meta.gate import standard_error
from showerstack.stacking.meta.softmax import fit_linear, fit_pool, fit_scaling

RNG = np.random.default_rng(5)
N, CLASSES = 60, 3
LABELS = RNG.integers(0, CLASSES, N)
LOG_PROBA = log_softmax(RNG.normal(size=(2, N, CLASSES)).reshape(-1, CLASSES)).reshape(2, N, CLASSES)
WEIGHTS = RNG.integers(0, 4, N).astype(float)


def _data_to_simulation() -> None:
    """Classes with enough events for three knots: with fewer nothing pulls at second differences."""
    rng = np.random.default_rng(6)
    labels = np.repeat(np.arange(CLASSES), 3 * datacheck_weights.LEAST_IN_KNOT)
    energy, data_energy = rng.uniform(15.0, 16.0, len(labels)), rng.uniform(15.0, 16.0, 40)
    assert datacheck_weights._basis(labels, energy, CLASSES)[1].shape == (3 * CLASSES, 3 * CLASSES)
    log_proba, other = (log_softmax(rng.normal(size=(n, CLASSES))) for n in (len(labels), 40))
    datacheck_weights.fit_weights(labels, energy, energy, log_proba, data_energy, other)


LIKELIHOODS: dict[str, tuple[ModuleType, Callable[[], Any]]] = {
    "pool": (softmax, lambda: fit_pool(LOG_PROBA, LABELS)),
    "weighted pool": (softmax, lambda: fit_pool(LOG_PROBA, LABELS, WEIGHTS)),
    "temperature": (softmax, lambda: fit_scaling(LOG_PROBA[0], LABELS, per_class=False)),
    "scales of classes": (softmax, lambda: fit_scaling(LOG_PROBA[0], LABELS, per_class=True)),
    "data to simulation": (datacheck_weights, _data_to_simulation),
}


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_gradient_is_that_of_central_differences(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, fit = LIKELIHOODS[name]
    minimise, visited, rng = module.minimize, [], np.random.default_rng(8)

    def checked(loss: Callable[[np.ndarray], Any], start: np.ndarray, **options: Any) -> Any:
        for at in (start, start * (1.0 + 0.2 * rng.random(len(start))) + 0.05 * rng.random(len(start))):
            _, gradient = loss(at)
            steps = 1e-5 * np.eye(len(at))
            differences = np.array([(loss(at + step)[0] - loss(at - step)[0]) / 2e-5 for step in steps])
            np.testing.assert_allclose(gradient, differences, atol=2e-6 * max(1.0, np.abs(gradient).max()))
            visited.append(np.abs(gradient).max())
        return minimise(loss, start, **options)

    monkeypatch.setattr(module, "minimize", checked)
    fit()
    assert len(visited) >= 2
    assert max(visited) > 1e-5


def test_linear_fit_ends_where_the_penalised_loss_is_flat() -> None:
    rng, l2 = np.random.default_rng(9), 0.03
    x, centre = rng.normal(size=(N, 2)), rng.normal(size=(2, CLASSES))
    result = np.vstack(fit_linear(x, LABELS, centre, WEIGHTS, l2=l2))

    def loss(theta: np.ndarray) -> float:
        log_proba = log_softmax(x @ theta[:-1] + theta[-1])
        away = theta - np.vstack([centre, np.zeros(CLASSES)])
        return float(-(WEIGHTS @ log_proba[np.arange(N), LABELS]) / WEIGHTS.sum() + 0.5 * l2 * (away**2).sum())

    for step in 1e-4 * np.eye(result.size):
        turn = step.reshape(result.shape)
        assert abs(loss(result + turn) - loss(result - turn)) / 2e-4 < 1e-4


def _linear(log_proba: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> Any:
    return fit_linear(log_proba[0], labels, np.eye(CLASSES), weights, l2=0.01)


@pytest.mark.parametrize("fit", [fit_pool, _linear])
def test_weights_are_repetitions(fit: Callable[..., tuple[np.ndarray, np.ndarray]]) -> None:
    repeated = np.repeat(np.arange(N), WEIGHTS.astype(int))
    weighted = np.concatenate([part.ravel() for part in fit(LOG_PROBA, LABELS, WEIGHTS)])
    again = np.concatenate([part.ravel() for part in fit(LOG_PROBA[:, repeated], LABELS[repeated])])
    plain = np.concatenate([part.ravel() for part in fit(LOG_PROBA, LABELS)])
    np.testing.assert_allclose(weighted, again, atol=2e-3)
    assert np.abs(plain - again).max() > 5e-3, "ignoring them would be seen"


def test_copies_of_a_shower_are_one_observation() -> None:
    rng = np.random.default_rng(10)
    values = np.repeat(rng.normal(size=500), 4)
    groups = np.repeat(np.arange(500), 4)
    order = rng.permutation(2_000)
    grouped = standard_error(values[order], groups[order])
    assert grouped == pytest.approx(values[::4].std(ddof=1) / np.sqrt(500))
    assert grouped == pytest.approx(2.0 * standard_error(values, None), rel=2e-3)
