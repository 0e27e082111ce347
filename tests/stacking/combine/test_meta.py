"""Meta-learners recover a known mixture, ignore noise, and are chosen without believing their own fit."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from models.base.posterior import log_softmax
from stacking.meta.base import StackInputs, meta_from_json, meta_learners, meta_to_json
from stacking.meta.choice import choose_and_fit
from stacking.meta.pools import LogPool
from stacking.meta.scorers import HADRON_WEIGHT, CompositionScorer, GammaScorer, LogLossScorer
from stacking.meta.softmax import fit_pool, log_loss_per_event

N = 5000


def _problem(n_classes: int = 3, n: int = N, seed: int = 0, prior: list[float] | None = None) -> StackInputs:
    """Return two learners that each see an independent half of the evidence, and one that knows nothing.

    The exact posterior is the pool with weights (1, 1, 0).
    """
    rng = np.random.default_rng(seed)
    share = np.array(prior or [1 / n_classes] * n_classes)
    labels = rng.choice(n_classes, n, p=share)
    evidence = [
        -((rng.normal(size=(n, 1)) + 1.3 * labels[:, None] - 1.3 * np.arange(n_classes)) ** 2) / 2 for _ in range(2)
    ]
    noise = np.log(rng.dirichlet(5 * np.ones(n_classes), n))
    z = np.stack([*(log_softmax(e + 0.5 * np.log(share)) for e in evidence), noise])
    return StackInputs(("left", "right", "noise"), z, labels, np.arange(n) % 3, rng.normal(size=(n, 2)))


LEARNING = [name for name in meta_learners() if name != "average"]


@pytest.mark.parametrize("name", LEARNING)
def test_each_meta_learner_finds_the_known_pool(name: str) -> None:
    train, new = _problem(), _problem(seed=1)
    meta = meta_learners()[name](train.learners)
    meta.fit(train, LogLossScorer())
    exact = log_softmax(new.log_proba[0] + new.log_proba[1])
    loss = log_loss_per_event(meta.predict(new.log_proba, new.context), new.labels).mean()
    best = log_loss_per_event(exact, new.labels).mean()
    average = log_loss_per_event(log_softmax(new.log_proba.mean(axis=0)), new.labels).mean()
    assert loss < best + 0.012
    assert loss < average - 0.02
    shares = meta.importance()
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares["noise"] == min(shares.values())
    again = meta_from_json(json.loads(json.dumps(meta_to_json(meta))))
    np.testing.assert_array_equal(again.predict(new.log_proba, new.context), meta.predict(new.log_proba, new.context))


def test_pool_weights_are_recovered_and_never_negative() -> None:
    problem = _problem(n=40_000)
    weights, bias = fit_pool(problem.log_proba, problem.labels)
    np.testing.assert_allclose(weights, [1, 1, 0], atol=0.06)
    np.testing.assert_allclose(bias - bias.mean(), 0, atol=0.06)
    hostile = np.stack([problem.log_proba[0], -3 * problem.log_proba[0]])
    assert fit_pool(hostile, problem.labels)[0].min() >= 0


def test_learners_with_errors_of_their_own_are_worth_more_calibrated() -> None:
    # Each is right about one class and vague about the others: no single weight makes up for that.
    def spoiled(problem: StackInputs) -> StackInputs:
        blurred = np.array([[2.0, 0.3, 0.3], [0.3, 0.3, 2.0], [1.0, 1.0, 1.0]])
        return replace(
            problem, log_proba=np.stack([log_softmax(z * b) for z, b in zip(problem.log_proba, blurred, strict=True)])
        )

    train, new = spoiled(_problem(n=20_000)), spoiled(_problem(n=20_000, seed=1))
    losses = {}
    for name in ("log_pool", "calibrated_pool"):
        meta = meta_learners()[name](train.learners)
        meta.fit(train, LogLossScorer())
        losses[name] = log_loss_per_event(meta.predict(new.log_proba), new.labels)
    gain = losses["log_pool"] - losses["calibrated_pool"]
    assert gain.mean() > 5 * gain.std() / np.sqrt(len(gain))
    assert choose_and_fit(("log_pool", "calibrated_pool"), train, LogLossScorer()).meta.name == "calibrated_pool"


def test_greedy_selection_serves_the_real_metric() -> None:
    problem = _problem(n_classes=5, n=4000)
    scorer = CompositionScorer()
    greedy = meta_learners()["greedy"](problem.learners)
    greedy.fit(problem, scorer)
    errors = [scorer.metric(z, problem.labels) for z in problem.log_proba]
    assert scorer.metric(greedy.predict(problem.log_proba), problem.labels) < min(errors)
    assert greedy.importance()["noise"] < 0.15


@pytest.mark.parametrize("name", LEARNING)
def test_weighted_hadrons_do_not_shift_the_posterior(name: str) -> None:
    train, new = _problem(2, 8000, 2, [0.1, 0.9]), _problem(2, 8000, 3, [0.1, 0.9])
    scorer = GammaScorer()
    weights = scorer.weights(train.log_proba, train.labels)
    assert weights is not None
    assert set(np.unique(weights)) == {1.0, HADRON_WEIGHT}
    assert (weights[train.labels == 0] == 1).all()
    meta = meta_learners()[name](train.learners)
    meta.fit(replace(train, weights=weights), scorer)
    predicted = meta.predict(new.log_proba, new.context)
    assert np.exp(predicted[:, 0]).mean() == pytest.approx(0.1, abs=0.012)
    exact = log_softmax(new.log_proba[0] + new.log_proba[1])
    excess = log_loss_per_event(predicted, new.labels).mean() - log_loss_per_event(exact, new.labels).mean()
    assert excess < 0.02


def test_nested_prediction_of_a_fold_ignores_that_folds_labels() -> None:
    problem = _problem(n=900)
    names = ("log_pool", "greedy")
    stacked = choose_and_fit(names, problem, LogLossScorer())
    inside = problem.folds == 1
    labels = problem.labels.copy()
    labels[inside] = np.random.default_rng(5).permutation(labels[inside])
    poisoned = StackInputs(problem.learners, problem.log_proba, labels, problem.folds, problem.context)
    again = choose_and_fit(names, poisoned, LogLossScorer())
    np.testing.assert_array_equal(stacked.log_proba[inside], again.log_proba[inside])
    assert np.abs(stacked.log_proba[~inside] - again.log_proba[~inside]).max() > 1e-3
    assert len(stacked.chosen_by_fold) == 3


def test_simplest_within_an_error_is_chosen() -> None:
    stacked = choose_and_fit(tuple(meta_learners()), _problem(n=1500), LogLossScorer())
    assert stacked.meta.name == "log_pool", "the truth is a pool: nothing more is needed"
    turned = choose_and_fit(tuple(meta_learners())[::-1], _problem(n=1500), LogLossScorer())
    assert turned.meta.name == "log_pool", "by declared complexity, not by the order given"
    assert turned.chosen_by_fold == stacked.chosen_by_fold
    assert set(stacked.losses) == set(meta_learners())


def test_average_is_kept_where_nothing_can_be_learned() -> None:
    problem = _problem(n=3000)
    same = replace(problem, log_proba=np.repeat(log_softmax(problem.log_proba[:2].sum(axis=0))[None], 3, axis=0))
    assert choose_and_fit(tuple(meta_learners()), same, LogLossScorer()).meta.name == "average"


def test_log_loss_decides_where_survival_cannot() -> None:
    # Two equally good learners: their average has the right order of events, but is only half as sure as it should be.
    problem = _problem(2, 3000, 4, [0.1, 0.9])
    problem = replace(problem, learners=("left", "right"), log_proba=problem.log_proba[:2])
    stacked = choose_and_fit(("average", "log_pool"), problem, GammaScorer())
    assert abs(stacked.losses["average"] - stacked.losses["log_pool"]) < 0.05
    assert stacked.meta.name == "log_pool"


def test_many_folds_are_merged_and_two_leave_no_choice() -> None:
    problem = _problem(n=1200)
    many = StackInputs(problem.learners, problem.log_proba, problem.labels, np.arange(1200) % 12, None)
    assert len(choose_and_fit(("log_pool",), many, LogLossScorer()).chosen_by_fold) == 5
    two = StackInputs(problem.learners, problem.log_proba, problem.labels, np.arange(1200) % 2, None)
    assert choose_and_fit(("log_pool", "logistic"), two, LogLossScorer()).meta.name == LogPool.name


def test_parallel_choice_gives_the_same_bits() -> None:
    problem = _problem(n=600)
    one = choose_and_fit(("log_pool", "logistic"), problem, LogLossScorer(), workers=1)
    two = choose_and_fit(("log_pool", "logistic"), problem, LogLossScorer(), workers=2)
    np.testing.assert_array_equal(one.log_proba, two.log_proba)
