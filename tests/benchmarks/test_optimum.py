"""The bound on the fraction error: direct linear programs, exhaustive and random rules, the two ends of knowledge."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.optimize import linprog

from benchmarks.learning.optimum import GAP, expected_errors, optimal_rule
from models.base.posterior import log_softmax
from scoring.metrics.composition import expected_fraction_error, mixture_fractions
from stacking.decide.classes import Rule, class_mix, expected_confusion
from tests.stacking.decide.known import five_classes


def _discrete(n_classes: int, n_values: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return log-posteriors of a few distinct values, each repeated, and which value every event has."""
    rng = np.random.default_rng(seed)
    posteriors = log_softmax(1.2 * rng.normal(size=(n_values, n_classes)))
    value = np.repeat(np.arange(n_values), rng.integers(20, 60, n_values))
    return posteriors[value], value


def _direct(log_proba: np.ndarray, value: np.ndarray) -> float:
    """Solve min over *all* randomised rules of mean |F - F M| as one linear program: d[value, class] >= 0."""
    prior = np.exp(log_proba).mean(axis=0)
    n_values, n_classes = int(value.max()) + 1, len(prior)
    weight = np.exp(log_proba) / prior / len(log_proba)
    by_value = np.stack([weight[value == v].sum(axis=0) for v in range(n_values)])
    fractions = mixture_fractions(n_classes)
    n_rule, n_error = n_values * n_classes, fractions.size
    # (F M)[g, c] = sum_v (sum_t F[g, t] by_value[v, t]) d[v, c]
    effect = np.einsum("gt,vt->gv", fractions, by_value)
    mixed = np.einsum("gv,cd->gcvd", effect, np.eye(n_classes)).reshape(n_error, n_rule)
    a = np.block([[-mixed, -np.eye(n_error)], [mixed, -np.eye(n_error)]])
    b = np.concatenate([-fractions.ravel(), fractions.ravel()])
    equal = np.hstack([np.kron(np.eye(n_values), np.ones(n_classes)), np.zeros((n_values, n_error))])
    cost = np.concatenate([np.zeros(n_rule), np.full(n_error, 1 / n_error)])
    found = linprog(cost, A_ub=a, b_ub=b, A_eq=equal, b_eq=np.ones(n_values), method="highs")
    assert found.status == 0
    return float(found.fun)


@pytest.mark.parametrize(("n_classes", "n_values", "seed"), [(2, 6, 0), (2, 9, 1), (3, 5, 2), (3, 8, 3)])
def test_optimum_equals_the_direct_linear_program(n_classes: int, n_values: int, seed: int) -> None:
    log_proba, value = _discrete(n_classes, n_values, seed)
    found, direct = optimal_rule(log_proba), _direct(log_proba, value)
    assert found.gap < GAP
    assert found.lower_bound - 1e-9 <= direct <= found.mixed_error + 1e-9
    assert found.rule_error >= direct - 1e-9


def test_no_deterministic_rule_is_below_the_bound() -> None:
    log_proba, value = _discrete(3, 5, 4)
    found = optimal_rule(log_proba)
    errors = []
    for labels in product(range(3), repeat=5):
        confusion = expected_confusion(log_proba, np.array(labels)[value])
        errors.append(expected_fraction_error(confusion))
    assert min(errors) >= found.lower_bound - 1e-12
    assert found.rule_error == pytest.approx(
        expected_fraction_error(expected_confusion(log_proba, found.rule(log_proba))), abs=1e-12
    )


def test_rules_of_five_classes_are_above_the_bound() -> None:
    log_proba, _ = five_classes(4000)
    found = optimal_rule(log_proba)
    assert found.gap < GAP
    prior, rng = class_mix(log_proba), np.random.default_rng(1)
    for _ in range(50):
        rule = Rule("random", rng.normal(size=(5, 5)) - 3 * np.eye(5), prior)
        assert expected_fraction_error(expected_confusion(log_proba, rule(log_proba))) >= found.lower_bound
    assert found.rule_error <= min(expected_errors(log_proba).values()) + 1e-12


def test_perfect_posteriors_give_zero_and_uninformative_ones_the_best_constant() -> None:
    labels = np.random.default_rng(0).choice(5, 1000)
    perfect = log_softmax(200.0 * np.eye(5)[labels])
    assert optimal_rule(perfect).rule_error == pytest.approx(0.0, abs=1e-9)

    flat = np.full((1000, 5), np.log(0.2))
    found = optimal_rule(flat)
    constants = [expected_fraction_error(expected_confusion(flat, np.full(1000, k))) for k in range(5)]
    assert found.rule_error == pytest.approx(min(constants), abs=1e-9)
    # Mixing constants (guessing) would do better, which a single rule cannot: the bound says by how much.
    assert found.mixed_error < found.rule_error
