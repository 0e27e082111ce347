"""Estimates and errors of a target: those of posteriors over bins, and of pools with known errors and correlations."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import softmax

from showerstack.scoring.metrics.residuals import residual_metrics
from showerstack.showers.schema import ENERGY
from showerstack.stacking.answers import DecisionSample, stacking_of
from showerstack.stacking.estimates import OWN, POOL, EstimatePool, PosteriorMean, rule_from_json
from showerstack.stacking.events import Binned
from showerstack.stacking.sample import Sample


def test_mean_and_width_are_those_of_the_mixture() -> None:
    values, bins = np.array([0.0, 2.0, 10.0, 14.0]), np.array([0, 0, 1, 1])
    rule = PosteriorMean.of(values, bins, 2)
    estimate, error = rule(np.log([[0.5, 0.5], [1.0, 1e-300]]))
    np.testing.assert_allclose(estimate, [values.mean(), 1.0])
    np.testing.assert_allclose(error, [values.std(), 1.0])
    again = PosteriorMean.from_json(json.loads(json.dumps(rule.as_json())))
    np.testing.assert_array_equal(again(np.log([[0.3, 0.7]])), rule(np.log([[0.3, 0.7]])))


def test_a_pool_by_hand() -> None:
    # Strength over error squared: 2 / 1 and 0.5 / 4, so 16 / 17 and 1 / 17.
    pool = EstimatePool(
        ("a", "b"), np.array([2.0, 0.5]), np.array([0.5, -1.0]), np.array([[1.0, 0.5], [0.5, 1.0]]), 3.0
    )
    errors = np.array([[1.0], [2.0]])
    assert pool.shares(errors) == pytest.approx({"a": 16 / 17, "b": 1 / 17})
    estimate, error = pool(np.array([[2.5], [18.0]]), errors)
    np.testing.assert_allclose(estimate, (16 * 2.0 + 19.0) / 17)
    np.testing.assert_allclose(error, 3.0 * np.sqrt(16**2 + 16 * 2 + 2**2) / 17)


def _two_estimates(n: int, errors: np.ndarray, correlation: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return estimates (2, n), biased by .05 and -.02, of (n,) true values, and those."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(0, 0.3, n)
    noise = rng.multivariate_normal([0, 0], [[1, correlation], [correlation, 1]], n).T
    return truth + np.array([[0.05], [-0.02]]) + errors * noise, truth


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.7])
def test_a_pool_of_two_estimates_reaches_the_theoretical_error(correlation: float) -> None:
    first, second = 0.1, 0.08
    errors = np.array([[first], [second]]) * np.ones(60_000)
    pool = EstimatePool.of(("a", "b"), *_inputs(errors, correlation, 1))
    again = EstimatePool.from_json(json.loads(json.dumps(pool.as_json())))
    values, truth = _two_estimates(60_000, errors, correlation, 2)
    estimate, error = again(values, errors)
    least = (first * second) ** 2 * (1 - correlation**2) / (first**2 + second**2 - 2 * correlation * first * second)
    assert np.sqrt(np.mean((estimate - truth) ** 2)) == pytest.approx(np.sqrt(least), rel=0.025)
    assert np.std((estimate - truth) / error) == pytest.approx(1.0, abs=0.04)
    assert abs(np.mean(estimate - truth)) < 0.005
    assert sum(pool.shares(errors).values()) == pytest.approx(1.0)


def _inputs(errors: np.ndarray, correlation: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    values, truth = _two_estimates(errors.shape[1], errors, correlation, seed)
    return values, errors, truth


def test_a_pool_learns_from_showers_by_their_weight() -> None:
    """Half of the showers weigh nearly nothing; there the first estimate is far better, elsewhere the second."""
    errors = np.full((2, 60_000), 0.1)
    light = np.arange(60_000) % 2 == 0
    scatter = np.where(light, [[0.02], [0.5]], [[0.5], [0.02]])
    values, truth = _two_estimates(60_000, scatter, 0.0, 5)
    weights = np.where(light, 1e-6, 1.0)
    pool = EstimatePool.of(("a", "b"), values, errors, truth, weights)
    estimate, error = pool(values, errors)
    assert np.std((estimate - truth)[~light]) == pytest.approx(0.02, rel=0.05)
    assert np.std(((estimate - truth) / error)[~light]) == pytest.approx(1.0, abs=0.05)
    unweighted, _ = EstimatePool.of(("a", "b"), values, errors, truth)(values, errors)
    assert np.std((unweighted - truth)[~light]) > 0.1


def test_an_estimate_gives_way_in_showers_of_which_it_knows_little() -> None:
    errors = np.full((2, 60_000), 0.1)
    errors[0, ::5] = 1.0  # as in an open bin
    values, _, truth = _inputs(errors, 0.0, 3)
    pool = EstimatePool.of(("bins", OWN), values, errors, truth)
    values, truth = _two_estimates(60_000, errors, 0.0, 4)
    estimate, error = pool(values, errors)
    known = np.arange(60_000) % 5 != 0
    for rows, expected in ((known, 0.1 / np.sqrt(2)), (~known, 0.1 / np.sqrt(1.01))):
        assert np.std((estimate - truth)[rows]) == pytest.approx(expected, rel=0.04)
        assert np.std(((estimate - truth) / error)[rows]) == pytest.approx(1.0, abs=0.05)
    constant = min(np.std(w * values[0] + (1 - w) * values[1] - truth) for w in np.linspace(0, 1, 101))
    assert np.std(estimate - truth) < 0.9 * constant


def test_an_energy_run_ships_the_pool_with_the_learners_own_estimate() -> None:
    procedure, rng = stacking_of(ENERGY), np.random.default_rng(6)
    offsets = np.where(rng.random(6000) < 0.9, rng.normal(0, 0.1, 6000), rng.normal(0, 0.5, 6000))
    blurred = offsets + rng.normal(0, 0.05, 6000)
    labels = np.argsort(np.argsort(offsets)) * ENERGY.n_classes // len(offsets)
    centres = np.array([offsets[labels == k].mean() for k in range(ENERGY.n_classes)])
    log_proba = np.log(softmax(-((blurred[:, None] - centres) ** 2) / 0.01, axis=1))
    own = np.stack([offsets + rng.normal(0, 0.05, 6000), np.full(6000, 0.05)])
    held_out = DecisionSample(
        {"stack": log_proba}, "stack", Sample(labels, np.arange(6000) % 5), offsets=offsets,
        training=Binned(offsets, labels), own=own,
    )  # fmt: skip
    decision = procedure.decide(held_out)
    record, rules = decision.record, decision.rules
    assert record["chosen"] == POOL
    assert record["held_out"]["rms"] < 0.06 < record["posterior_mean"]["rms"], "open bins know no distance"
    assert record["held_out"]["rms"] < np.std(own[0] - offsets)
    assert record["held_out_in_errors"]["resolution"] == pytest.approx(1.0, abs=0.03)
    plain = PosteriorMean.of(offsets, labels, ENERGY.n_classes)(log_proba)
    assert record["held_out_in_widths"] == residual_metrics((plain[0] - offsets) / plain[1])
    assert record["posterior_mean"] == residual_metrics(plain[0] - offsets)
    context = np.column_stack([np.linspace(14, 16, 6000), np.zeros((6000, 3))])
    stored = {name: rule_from_json(json.loads(json.dumps(rule.as_json()))) for name, rule in rules.items()}
    estimates = {"lg_energy": own[0] + context[:, 0], "lg_energy_error": own[1]}
    arrays = procedure.pooled(stored, {"stack": log_proba}, estimates, context)
    missed = arrays["lg_energy"] - context[:, 0] - offsets
    assert np.sqrt(np.mean(missed**2)) == pytest.approx(record["held_out"]["rms"], rel=0.02)
    assert np.mean(np.abs(missed) < arrays["lg_energy_error"]) == pytest.approx(0.683, abs=0.02)
    assert procedure.pooled(stored, {"stack": log_proba}, {}, context) == {}
    without = replace(held_out, own=None)
    assert set(procedure.decide(without).rules) == {"stack"}


def test_estimates_start_from_the_reconstructed_energy() -> None:
    procedure = stacking_of(ENERGY)
    offsets = np.random.default_rng(1).normal(0, 0.1, 6000)
    labels = np.argsort(np.argsort(offsets)) * ENERGY.n_classes // len(offsets)
    sharp = np.where(labels[:, None] == np.arange(ENERGY.n_classes), 0.0, -40.0)
    held_out = DecisionSample(
        {"stack": sharp}, "stack", Sample(labels, labels % 2), offsets=offsets, training=Binned(offsets, labels)
    )
    decision = procedure.decide(held_out)
    record, rules = decision.record, decision.rules
    assert record["held_out"]["resolution"] < 0.02
    assert record["held_out_in_widths"]["rms"] == pytest.approx(1.0, abs=0.05)
    context = np.column_stack([np.linspace(14, 16, 6000), np.zeros((6000, 3))])
    result = procedure.arrays(rules["stack"], sharp, context)
    assert list(result) == ["lg_energy", "lg_energy_error"]
    missed = result["lg_energy"] - context[:, 0] - offsets
    assert np.std(missed) < 0.03
    assert np.mean(np.abs(missed) < result["lg_energy_error"]) == pytest.approx(0.683, abs=0.02)
    assert [column.name for column in procedure.columns(result)] == list(result)
