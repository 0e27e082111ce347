"""Decision rules: what biases gain, invariances, the two ends of knowledge, and which kind ships."""

from __future__ import annotations

import numpy as np

from models.base.posterior import log_softmax
from scoring.metrics.composition import expected_fraction_error
from stacking.decide.classes import (
    RULES,
    Rule,
    argmax_rule,
    bias_rule,
    choose_rule,
    class_mix,
    expected_confusion,
    likelihood_rule,
)
from tests.stacking.decide.known import five_classes


def test_biases_improve_on_rules_without_them() -> None:
    log_proba, _ = five_classes(4000)
    prior = class_mix(log_proba)
    simple = [argmax_rule(prior), likelihood_rule(prior), bias_rule(log_proba)]
    errors = [expected_fraction_error(expected_confusion(log_proba, rule(log_proba))) for rule in simple]
    assert errors[2] <= min(errors) + 1e-12
    assert errors[2] < errors[0] - 1e-4


def test_rule_is_invariant_under_scale_and_row_shifts() -> None:
    log_proba, _ = five_classes(2000)
    rule = bias_rule(log_proba)
    shifted = Rule("shifted", 3.7 * rule.cost + np.array([5.0, -2.0, 0.3, 1.0, -9.0])[:, None], rule.prior)
    # Rounding may turn exact ties, of which there are at most a few.
    assert (rule(log_proba) != shifted(log_proba)).mean() < 1e-3
    np.testing.assert_array_equal(Rule.from_json(rule.as_json())(log_proba), rule(log_proba))


def test_perfect_posteriors_give_zero_by_every_rule() -> None:
    labels = np.random.default_rng(0).choice(5, 1000)
    perfect = log_softmax(200.0 * np.eye(5)[labels])
    for make in RULES.values():
        np.testing.assert_array_equal(make(perfect)(perfect), labels)


def test_simplest_rule_within_an_error_of_the_best_is_chosen_on_labels() -> None:
    log_proba, labels = five_classes(4000)
    decision = choose_rule(log_proba, labels, np.arange(4000) % 3)
    worse, error = decision.differences[decision.chosen]
    assert worse <= error
    simpler = list(decision.errors)[: list(decision.errors).index(decision.chosen)]
    assert all(decision.differences[name][0] > decision.differences[name][1] for name in simpler)
    assert list(RULES) == ["argmax", "likelihood", "biases"], "the optimum over all rules is a bound, and never ships"
    assert list(decision.errors) == list(RULES)
    np.testing.assert_array_equal(decision.rule(log_proba), RULES[decision.chosen](log_proba)(log_proba))
