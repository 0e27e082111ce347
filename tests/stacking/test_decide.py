"""Gamma scores never saturate, thresholds keep what they claim, and errors of survivals are those of a bootstrap."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtri

from showerstack.models.base.posterior import log_sigmoid_pair
from showerstack.scoring.metrics.classes import gamma_scores, threshold_table
from showerstack.scoring.metrics.gamma import hadron_survival
from showerstack.scoring.metrics.intervals import clopper_pearson
from showerstack.scoring.metrics.log_survival import log_survivals, mean_log_survival, paired_log_survival
from showerstack.stacking.answers import TaskStacking


def _events(n: int = 20_000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = (rng.random(n) > 0.1).astype(int)
    return labels, rng.normal(size=n) - 2.0 * labels


def test_score_is_strictly_monotone_where_probabilities_have_long_saturated() -> None:
    logit_hadron = np.linspace(-300.0, 300.0, 601)
    scores = gamma_scores(log_sigmoid_pair(logit_hadron))
    assert (np.diff(scores) < 0).all()
    assert scores[300] == 0.5, "p = 0.5 scores 0.5"
    np.testing.assert_allclose(scores, 0.5 - logit_hadron, rtol=1e-12)


def test_log_survivals_agree_with_the_benchmark_definition_and_stay_finite() -> None:
    labels, scores = _events()
    n = hadron_survival(labels, scores, 0.75)
    assert log_survivals(labels, scores)[2] == pytest.approx(np.log((n.n_surviving + 0.5) / (n.n_hadron + 1)))
    assert np.isfinite(mean_log_survival(labels, -1e6 * labels.astype(float)))


@pytest.mark.slow
def test_paired_error_covers_repeated_experiments() -> None:
    differences, errors = [], []
    for seed in range(200):
        labels, a = _events(2000, seed)
        b = a + 0.6 * np.random.default_rng(seed + 1000).normal(size=len(a))
        difference, error = paired_log_survival(labels, a, b, n_samples=100)
        differences.append(difference)
        errors.append(error)
    assert np.mean(differences) < -3 * np.std(differences) / np.sqrt(200), "noise makes it worse"
    assert 0.7 < np.mean(errors) / np.std(differences) < 1.5


def test_threshold_table_holds_on_new_events() -> None:
    labels, scores = _events(60_000)
    new_labels, new_scores = _events(100_000, seed=9)
    table = threshold_table(labels, scores)
    assert [row["efficiency"] for row in table] == [0.25, 0.5, 0.6, 0.75, 0.9, 0.95, 0.99]
    for row in table:
        low, high = row["hadron_survival_interval"]
        assert low <= row["hadron_survival"] <= high
        for c, name in enumerate(("gamma_efficiency_interval", "hadron_survival_interval")):
            above = scores[labels == c] >= row["threshold"]
            exact = clopper_pearson(int(above.sum()), len(above))
            assert row[name] == pytest.approx([exact.low, exact.high])
        kept = np.mean(new_scores[new_labels == 0] >= row["threshold"])
        assert kept == pytest.approx(row["efficiency"], abs=0.05)
        purity = row["purity"]["0.0001"]
        expected = 1e-4 * row["gamma_efficiency"] / (1e-4 * row["gamma_efficiency"] + row["hadron_survival"])
        assert purity["purity"] == pytest.approx(expected)
        assert purity["interval"][0] <= purity["purity"] <= purity["interval"][1]


def test_copies_of_events_narrow_no_interval_of_thresholds() -> None:
    labels, scores = _events()
    numbers = np.arange(len(labels))
    pairs = zip(
        threshold_table(labels, scores, groups=numbers),
        threshold_table(*(np.repeat(x, 10) for x in (labels, scores)), groups=np.repeat(numbers, 10)),
        strict=True,
    )
    for alone, copied in pairs:
        assert copied["threshold"] == alone["threshold"]
        for name in ("gamma_efficiency_interval", "hadron_survival_interval"):
            np.testing.assert_allclose(copied[name], alone[name], rtol=1e-6)


def test_paired_error_is_the_plain_bootstraps_with_few_gammas() -> None:
    rng = np.random.default_rng(3)
    labels = np.repeat([0, 1], [30, 400])
    gammas = ndtri((np.arange(30) + 0.5) / 30)
    # Hadrons among the lowest fifth of the gammas: they survive only where the resampled gammas are low.
    a = np.concatenate([gammas, np.linspace(gammas[0], gammas[5], 400)])
    b = np.concatenate([gammas, np.full(400, -30.0)])
    _, error = paired_log_survival(labels, a, b, n_samples=1_000)
    plain = []
    for _ in range(1_000):
        rows = np.concatenate([rng.integers(0, 30, 30), rng.integers(30, 430, 400)])
        plain.append(mean_log_survival(labels[rows], a[rows]) - mean_log_survival(labels[rows], b[rows]))
    assert error == pytest.approx(np.std(plain), rel=0.25)


def test_errors_of_survivals_do_not_depend_on_the_scales_of_scores() -> None:
    rng = np.random.default_rng(5)
    labels = np.repeat([0, 1], [100, 400])
    a, b = rng.normal(np.where(labels == 0, 1.5, 0.0), 1.0, (2, 500))
    expected = paired_log_survival(labels, a, b)
    for first, second in ((a + 100.0, b), (a, b + 100.0), (3.0 * a, np.exp(b))):
        assert paired_log_survival(labels, first, second) == expected


def test_the_most_probable_class_is_the_label() -> None:
    labels = TaskStacking().arrays(None, np.log([[0.2, 0.5, 0.3], [0.7, 0.2, 0.1], [0.1, 0.1, 0.8]]), None)[
        "predictions"
    ]
    assert labels.tolist() == [1, 0, 2]


def test_survivals_of_twenty_gammas_by_hand() -> None:
    # Gammas score 20 .. 1. 65, 70, 75, 80 and 85 % of them are 13 .. 17: thresholds 8 .. 4, which a hadron at 6 passes.
    labels = np.repeat([0, 1], [20, 4])
    scores = np.concatenate([np.arange(20.0, 0.0, -1.0), [30.0, 6.0, 4.5, 1.0]])
    np.testing.assert_allclose(log_survivals(labels, scores), np.log((np.array([1, 1, 2, 2, 3]) + 0.5) / 5.0))
    perfect = np.where(labels == 0, scores, -1.0)
    expected = mean_log_survival(labels, scores) - np.log(0.1)
    for groups in (None, np.arange(24)):
        assert paired_log_survival(labels, scores, perfect, groups)[0] == pytest.approx(expected)


def test_grouped_error_is_that_of_whole_groups_drawn_anew() -> None:
    labels, a = _events(600)
    b = a + 0.5 * np.random.default_rng(4).normal(size=600)
    alone = paired_log_survival(labels, a, b, np.arange(600), n_samples=400)[1]
    assert alone == pytest.approx(paired_log_survival(labels, a, b, n_samples=400)[1], rel=0.25)
    assert paired_log_survival(labels, a, a, np.arange(600))[1] == 0.0
    twice = [np.repeat(one, 2) for one in (labels, a, b, np.arange(600))]
    assert paired_log_survival(*twice, n_samples=400)[1] == pytest.approx(alone, rel=0.25)


def test_weighted_log_survivals_are_those_of_a_natural_sample() -> None:
    """Rare hadrons with weights say what twenty times as many natural ones say, and pairs share their luck."""
    rng = np.random.default_rng(6)

    def sample(n: int, share: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x = rng.normal(np.where(rng.random(n) < share, 3.0, 0.0), 1.0)
        weights = 1.0 / (1.0 - share + share * np.exp(3.0 * x - 4.5))
        labels, gammas = np.repeat([0, 1], [3000, n]), 3.7 + ndtri((np.arange(3000) + 0.5) / 3000)
        return labels, np.concatenate([gammas, x]), np.concatenate([np.ones(3000), weights])

    labels, scores, _ = sample(1_000_000, 0.0)
    natural = log_survivals(labels, scores)
    rare_labels, rare_scores, weights = sample(10_000, 0.5)
    np.testing.assert_allclose(log_survivals(rare_labels, rare_scores, weights), natural, atol=0.25)
    worse = rare_scores - 0.3 * (rare_labels == 0)
    gap, error = paired_log_survival(rare_labels, worse, rare_scores, None, weights)
    assert gap == pytest.approx(np.mean(log_survivals(labels, scores - 0.3 * (labels == 0)) - natural), abs=0.25)
    assert 0 < error < 0.2
    assert paired_log_survival(rare_labels, rare_scores, rare_scores, None, weights) == (0.0, 0.0)
    table = threshold_table(rare_labels, rare_scores, (0.99, 0.75), weights=weights)
    assert [row["quoted"] for row in table] == [True, False]
    assert (
        table[0]["hadron_survival_interval"][0] < table[0]["hadron_survival"] < table[0]["hadron_survival_interval"][1]
    )
    assert table[1]["hadron_survival_interval"] == [0.0, table[1]["upper_limit"]]
