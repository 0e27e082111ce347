"""Every likelihood that is minimised by its gradient has that gradient; weights mean repeated events."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import scipy.optimize

from showerstack.analysis.datacheck import weights as datacheck_weights
from showerstack.models.base.posterior import log_softmax
from showerstack.stacking.sample import Sample
from showerstack.stacking.second_level import fit_scaling, fit_weights

RNG = np.random.default_rng(5)
N, CLASSES = 60, 3
LABELS = RNG.integers(0, CLASSES, N)
LOG_PROBA = log_softmax(RNG.normal(size=(2, N, CLASSES)).reshape(-1, CLASSES)).reshape(2, N, CLASSES)
_FIRST, _SECOND = LOG_PROBA[:, np.arange(N), LABELS]
WEIGHTS = np.where(_FIRST > _SECOND, 1.0, 4.0) * (1 + (LABELS == 0))
"""They favour the second learner, and the first class: without them other weights and scales are found."""
PLAIN = Sample(LABELS, np.zeros(N, int))
WEIGHTED = Sample(LABELS, np.zeros(N, int), None, WEIGHTS)


def _data_to_simulation() -> None:
    """Classes with enough events for three knots: with fewer nothing pulls at second differences."""
    rng = np.random.default_rng(6)
    labels = np.repeat(np.arange(CLASSES), 3 * datacheck_weights.LEAST_IN_KNOT)
    energy, data_energy = rng.uniform(15.0, 16.0, len(labels)), rng.uniform(15.0, 16.0, 40)
    assert datacheck_weights._basis(labels, energy, CLASSES)[1].shape == (3 * CLASSES, 3 * CLASSES)
    log_proba, other = (log_softmax(rng.normal(size=(n, CLASSES))) for n in (len(labels), 40))
    datacheck_weights.fit_weights(labels, energy, energy, log_proba, data_energy, other)


LIKELIHOODS: dict[str, tuple[ModuleType, Callable[[], Any]]] = {
    "pool": (scipy.optimize, lambda: fit_weights(LOG_PROBA, PLAIN)),
    "weighted pool": (scipy.optimize, lambda: fit_weights(LOG_PROBA, WEIGHTED)),
    "scales of classes": (scipy.optimize, lambda: fit_scaling(LOG_PROBA[0], PLAIN)),
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
    assert np.log(max(visited)) > np.log(1e-5)


def _scaling(log_proba: np.ndarray, sample: Sample) -> tuple[np.ndarray, np.ndarray]:
    return fit_scaling(log_proba[0], sample)


@pytest.mark.parametrize("fit", [fit_weights, _scaling])
def test_weights_are_repetitions(fit: Callable[..., tuple[np.ndarray, np.ndarray]]) -> None:
    repeated = np.repeat(np.arange(N), WEIGHTS.astype(int))
    weighted = np.concatenate([part.ravel() for part in fit(LOG_PROBA, WEIGHTED)])
    again = np.concatenate([part.ravel() for part in fit(LOG_PROBA[:, repeated], PLAIN.take(repeated))])
    plain = np.concatenate([part.ravel() for part in fit(LOG_PROBA, PLAIN)])
    np.testing.assert_allclose(weighted, again, atol=2e-3)
    assert np.log(np.abs(plain - again).max()) > np.log(5e-3), "ignoring them would be seen"


def test_copies_of_a_shower_are_one_observation() -> None:
    rng = np.random.default_rng(10)
    values = np.repeat(rng.normal(size=500), 4)
    groups = np.repeat(np.arange(500), 4)
    order = rng.permutation(2_000)
    shower = Sample(groups, groups, groups).take(order)
    grouped = shower.error(values[order])
    assert grouped == pytest.approx(values[::4].std(ddof=1) / np.sqrt(500))
    assert grouped == pytest.approx(2.0 * Sample(groups, groups).error(values), rel=2e-3)
