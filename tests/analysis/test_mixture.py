"""Shares of classes: the likelihood's maximum, and what simulation makes of its estimating functions."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.spectra.estimate import estimating_functions, likelihood_ratios, maximum_likelihood
from runtime.errors import InputError


def _posteriors(labels: np.ndarray, rng: np.random.Generator, prior: np.ndarray, sharper: float = 1.0) -> np.ndarray:
    x = 1.2 * labels + rng.normal(0, 1, len(labels))
    z = -0.5 * sharper * (x[:, None] - 1.2 * np.arange(len(prior))) ** 2 + np.log(prior)
    return z - np.logaddexp.reduce(z, axis=1, keepdims=True)


def test_shares_come_back_whatever_the_training_prior() -> None:
    rng = np.random.default_rng(1)
    truth, prior = np.array([0.1, 0.6, 0.3]), np.array([0.5, 0.2, 0.3])
    labels = rng.choice(3, 40_000, p=truth)
    ratios = likelihood_ratios(_posteriors(labels, rng, prior), prior)
    np.testing.assert_allclose(maximum_likelihood(ratios), truth, atol=0.015)
    wrong = maximum_likelihood(np.exp(_posteriors(labels, np.random.default_rng(2), prior)))
    assert np.abs(wrong - truth).max() > 0.05, "forgetting the prior would be seen"


def test_newton_ends_where_em_would() -> None:
    rng = np.random.default_rng(3)
    ratios = rng.gamma(0.5, size=(500, 4))
    shares = np.full(4, 0.25)
    for _ in range(20_000):
        shares = shares * (ratios / (ratios @ shares)[:, None]).mean(axis=0)
    np.testing.assert_allclose(maximum_likelihood(ratios), shares, atol=1e-5)


def test_a_class_that_is_not_there_gets_nothing() -> None:
    rng = np.random.default_rng(4)
    labels = rng.choice(2, 20_000)
    found = maximum_likelihood(likelihood_ratios(_posteriors(labels, rng, np.full(4, 0.25)), np.full(4, 0.25)))
    assert found[3] < 0.01
    assert found.min() >= 0
    assert found.sum() == pytest.approx(1)


def test_simulation_mends_posteriors_that_are_too_sharp() -> None:
    rng = np.random.default_rng(5)
    prior, truth = np.full(3, 1 / 3), np.array([0.7, 0.2, 0.1])
    known = rng.integers(0, 3, 200_000)
    labels = rng.choice(3, 100_000, p=truth)
    ours = likelihood_ratios(_posteriors(labels, rng, prior, 3.0), prior)
    theirs = likelihood_ratios(_posteriors(known, rng, prior, 3.0), prior)
    plain = maximum_likelihood(ours)
    at = np.maximum(plain, 0.02)
    g, simulated = estimating_functions(ours, at), estimating_functions(theirs, at)
    mixing = np.stack([simulated[known == k].mean(axis=0) for k in range(3)], axis=1)
    checked = np.linalg.solve(mixing, g.mean(axis=0))
    assert np.abs(plain - truth).max() > 0.02, "the posteriors alone mislead"
    np.testing.assert_allclose(checked, truth, atol=0.012)


def test_nothing_and_an_unknown_class_are_refused() -> None:
    with pytest.raises(InputError, match="no event"):
        maximum_likelihood(np.zeros((0, 5)))
    with pytest.raises(InputError, match="class 1 has no training event"):
        likelihood_ratios(np.zeros((2, 2)), np.array([1.0, 0.0]))
