"""Intervals cover the truth as often as they claim, on simulated truth.

Paired comparisons have the right sign, honest p-values, and are narrower than two single intervals.
"""

from __future__ import annotations

import numpy as np
import pytest

from showerstack.runtime.errors import InputError
from showerstack.scoring.metrics.classes import table_metrics
from showerstack.scoring.metrics.composition import (
    class_fraction_errors,
    confusion_intervals,
    draw_variance,
    fraction_error,
    fraction_error_interval,
    mixture_counts,
    paired_fraction_error,
)
from showerstack.scoring.metrics.gamma import hadron_survival
from showerstack.scoring.metrics.intervals import basic_interval, clopper_pearson, widened
from showerstack.scoring.metrics.paired import mcnemar, paired_accuracy
from showerstack.scoring.metrics.survival_bootstrap import paired_survival, survival_interval
from showerstack.scoring.tasks import metric_for
from showerstack.showers.schema import COMPOSITION, GAMMA, Task

P = np.array(
    [
        [0.644, 0.226, 0.105, 0.022, 0.003],
        [0.295, 0.355, 0.250, 0.079, 0.021],
        [0.053, 0.223, 0.388, 0.245, 0.091],
        [0.003, 0.038, 0.231, 0.396, 0.332],
        [0.000, 0.003, 0.042, 0.235, 0.720],
    ]
)
"""A realistic P(predicted | true)."""


def sampled_error(rng: np.random.Generator, matrix: np.ndarray) -> np.ndarray:
    """The benchmark's metric of a row-normalised matrix with fresh draws, by class (5,)."""
    counts = mixture_counts()
    tally = sum(rng.multinomial(counts[:, k], matrix[k]) for k in range(5))
    return np.abs(counts - tally).mean(axis=0) / 5000


@pytest.mark.parametrize(("per_class", "n_trials"), [(2000, 250), (60, 250)])
def test_fraction_error_interval_covers(per_class: int, n_trials: int) -> None:
    rng = np.random.default_rng(1)
    truth = np.mean([sampled_error(rng, P) for _ in range(40)], axis=0)
    covered = np.zeros(6)
    for _ in range(n_trials):
        counts = rng.multinomial(per_class, P)
        errors = sampled_error(rng, counts / per_class)
        overall, classes = confusion_intervals(counts, float(errors.mean()), errors, n_resamples=200)
        covered[0] += overall.low <= truth.mean() <= overall.high
        for k in range(5):
            covered[k + 1] += classes[k].low <= truth[k] <= classes[k].high
    # 95 % nominal; 250 trials have a standard error of 1.4 %
    assert (covered / n_trials > 0.83).all(), covered / n_trials


@pytest.mark.parametrize(("per_class", "recall"), [(20, 0.95), (50, 0.98), (50, 0.99), (500, 0.95)])
def test_intervals_of_single_classes_with_few_wrong_events_hold(per_class: int, recall: float) -> None:
    """A basic bootstrap of the classes at the ends held 77 % with 20 and 50 events."""
    matrix = recall * np.eye(5)
    for k in range(5):
        beside = [j for j in (k - 1, k + 1) if 0 <= j < 5]
        matrix[k, beside] = (1 - recall) / len(beside)
    rng, truth, held = np.random.default_rng(3), class_fraction_errors(matrix), np.zeros(5)
    for _ in range(200):
        counts = rng.multinomial(per_class, matrix)
        errors = sampled_error(rng, counts / per_class)
        _, classes = confusion_intervals(counts, float(errors.mean()), errors, n_resamples=200)
        held += [one.low <= true <= one.high for one, true in zip(classes, truth, strict=True)]
    # The ends count together: a standard error of 1.1 % at 95 %.
    assert held[[0, 4]].mean() / 200 > 0.89
    assert (held / 200 > 0.86).all(), held / 200


def test_interval_width_at_benchmark_size() -> None:
    """BENCHMARK: sampling error of the metric 0.0003 at 119,027 events, 0.0006 at 34,519."""
    for n_events, error in ((119_027, 0.0003), (34_519, 0.0006)):
        counts = np.rint(P * n_events / 5).astype(int)
        overall, _ = confusion_intervals(counts, 0.108)
        assert (overall.high - overall.low) / 3.92 == pytest.approx(error, rel=0.25)


def test_draw_variance_is_that_of_repeated_draws() -> None:
    rng = np.random.default_rng(2)
    by_class = np.array([sampled_error(rng, P) for _ in range(300)])
    values = by_class.mean(axis=1)
    sign = np.sign(mixture_counts() / 5000 @ (np.eye(5) - P))
    predicted = draw_variance(P, np.repeat(sign[:, None], 5, axis=1))
    # first order: slightly too large where a class's error is smaller than its draws
    assert np.var(values) == pytest.approx(predicted, rel=0.5)
    # With so many events nothing but the draws is left of the intervals of the classes.
    _, classes = confusion_intervals(np.rint(P * 1e13).astype(int), 0.108)
    widths = [(one.high - one.low) / (2 * 1.959964) for one in classes]
    np.testing.assert_allclose(widths, by_class.std(axis=0), rtol=0.35)


def test_perfect_labels_keep_an_honest_upper_limit() -> None:
    labels = np.repeat(np.arange(5), 30)
    result = fraction_error_interval(labels, labels)
    assert result.low == 0.0
    assert 0.0 < result.high < 0.05
    assert class_fraction_errors(np.eye(5)).sum() == 0


def test_same_input_same_interval() -> None:
    rng = np.random.default_rng(4)
    labels, guess = rng.integers(0, 5, (2, 500))
    assert fraction_error_interval(labels, guess) == fraction_error_interval(labels, guess)


def test_clopper_pearson_known_values() -> None:
    result = clopper_pearson(11, 34_237)
    assert (round(result.low, 6), round(result.high, 6)) == (0.000160, 0.000575)
    assert clopper_pearson(0, 10).low == 0.0
    assert clopper_pearson(0, 10).high == pytest.approx(1 - 0.025**0.1)
    assert clopper_pearson(10, 10).high == 1.0
    with pytest.raises(InputError, match="0 <= hits"):
        clopper_pearson(3, 2)


@pytest.mark.parametrize(("n_gamma", "n_hadron", "gap"), [(200, 3000, 2.0), (60, 1500, 3.0)])
def test_survival_interval_covers_with_the_threshold_unknown(n_gamma: int, n_hadron: int, gap: float) -> None:
    """Gaussian scores: the true survival at the true 75 % quantile is known."""
    from scipy.stats import norm

    rng = np.random.default_rng(6)
    truth = norm.sf(norm.isf(0.75) + gap)
    labels = np.repeat([0, 1], [n_gamma, n_hadron])
    n_trials, covered, covered_fixed = 300, 0, 0
    for _ in range(n_trials):
        scores = rng.normal(np.where(labels == 0, gap, 0.0), 1.0)
        result = survival_interval(labels, scores, n_resamples=500)
        covered += result.low <= truth <= result.high
        threshold = np.sort(scores[labels == 0])[::-1][int(np.ceil(0.75 * n_gamma)) - 1]
        fixed = clopper_pearson(int((scores[labels == 1] >= threshold).sum()), n_hadron)
        covered_fixed += fixed.low <= truth <= fixed.high
    assert covered / n_trials > 0.88
    # leaving the threshold's uncertainty out would be wrong here: the point of including it
    assert covered_fixed / n_trials < 0.9


def test_survival_interval_with_a_certain_threshold_is_clopper_pearson() -> None:
    labels = np.repeat([0, 1], [100, 2000])
    scores = np.where(np.arange(2100) < 110, 1.0, 0.0)  # all gammas and 10 hadrons tie
    result, exact = survival_interval(labels, scores), clopper_pearson(10, 2000)
    assert (result.low, result.high) == pytest.approx((exact.low, exact.high), rel=2e-3)


@pytest.mark.parametrize("extra", [0.0, 1.0, 8.0])
def test_widened_deviations_have_both_variances(extra: float) -> None:
    deviations = np.random.default_rng(6).normal(0.0, 1.5, 2_000)
    result = widened(deviations, extra)
    assert result.var() == pytest.approx(deviations.var() + extra)
    np.testing.assert_array_equal(np.argsort(result), np.argsort(deviations))
    still = widened(np.zeros(20_001), extra)
    assert still.std() == pytest.approx(np.sqrt(extra), rel=2e-3)


def test_basic_interval_mirrors_the_quantiles() -> None:
    result = basic_interval(10.0, np.linspace(-1.0, 3.0, 1_001), 0.9)
    assert (result.low, result.high) == (pytest.approx(7.2), pytest.approx(10.8))


def two_systems(rng: np.random.Generator, n: int, better: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels and two correlated guesses; the second is right more often by about ``better``."""
    labels = rng.integers(0, 5, n)
    base = np.clip(labels + rng.integers(-1, 2, n), 0, 4)
    a = np.where(rng.random(n) < 0.1, np.clip(labels + rng.integers(-1, 2, n), 0, 4), base)
    b = np.where(rng.random(n) < better, labels, np.where(rng.random(n) < 0.1, np.clip(labels - 1, 0, 4), base))
    return labels, a, b


def test_paired_fraction_error_sees_what_single_intervals_cannot() -> None:
    labels, a, b = two_systems(np.random.default_rng(1), 6000, 0.04)
    result = paired_fraction_error(labels, a, b)
    assert result.difference == pytest.approx(fraction_error(labels, a) - fraction_error(labels, b), abs=1e-15)
    assert result.interval.low < result.difference < result.interval.high
    single = fraction_error_interval(labels, a)
    assert result.interval.high - result.interval.low < 0.8 * (single.high - single.low)
    reverse = paired_fraction_error(labels, b, a)
    assert reverse.difference == -result.difference


def test_equal_systems_differ_by_nothing() -> None:
    labels, a, _ = two_systems(np.random.default_rng(2), 1000, 0.1)
    result = paired_fraction_error(labels, a, a)
    assert (result.difference, result.p_value, result.standard_error) == (0.0, 1.0, pytest.approx(0.0, abs=1e-12))


@pytest.mark.slow
def test_p_values_of_equally_good_systems_are_uniform_enough() -> None:
    rng = np.random.default_rng(3)
    small = 0
    for _ in range(40):
        labels = np.repeat(np.arange(5), 100)
        base = np.clip(labels + rng.integers(-1, 2, 500), 0, 4)
        a, b = (np.where(rng.random(500) < 0.3, np.clip(labels + rng.integers(-1, 2, 500), 0, 4), base) for _ in "ab")
        small += paired_fraction_error(labels, a, b, n_resamples=150).p_value < 0.05
    assert small <= 7  # 2 expected; 8 or more has probability 0.1 %


def test_an_interval_holds_the_value_though_few_replicas_differ() -> None:
    one = 1 / 764  # a hadron that survives in one replica of a hundred
    replicas = np.where(np.arange(2000) % 100 == 0, one, 0.0)
    spread = widened(replicas - replicas.mean(), one**2)
    assert spread.std() == pytest.approx(np.sqrt(replicas.var() + one**2), rel=0.01)
    interval = basic_interval(0.0, spread)
    assert interval.low < -1.9 * one < 0 < 1.9 * one < interval.high


def test_paired_survival_matches_the_metric_and_its_spread() -> None:
    rng = np.random.default_rng(4)

    def experiment() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        labels = np.repeat([0, 1], [300, 4000])
        common = rng.normal(np.where(labels == 0, 2.5, 0.0), 1.0)
        return labels, common + rng.normal(0, 0.5, 4300), common + rng.normal(0, 0.2, 4300)

    values = []
    for _ in range(150):
        labels, a, b = experiment()
        values.append(hadron_survival(labels, a).hadron_survival - hadron_survival(labels, b).hadron_survival)
    assert paired_survival(labels, a, b, n_resamples=2).difference == values[-1]
    errors = [paired_survival(*experiment(), n_resamples=100).standard_error for _ in range(8)]
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.65)


def test_no_survivors_is_not_certainty() -> None:
    labels = np.repeat([0, 1], [100, 1000])
    scores = np.where(labels == 0, 5.0, 0.0)
    result = paired_survival(labels, scores, scores * 2)
    assert result.difference == 0.0
    assert result.interval.high == pytest.approx(1.96e-3, rel=0.05)


def test_paired_accuracy() -> None:
    labels = np.array([0, 1, 0, 1])
    assert paired_accuracy(labels, labels, 1 - labels).difference == 1.0
    assert paired_accuracy(labels, labels, 1 - labels).p_value == pytest.approx(2 * 0.5**4)


def test_mcnemar_table() -> None:
    a, b = np.array([1, 1, 1, 0, 0], bool), np.array([1, 0, 0, 1, 0], bool)
    result = mcnemar(a, b)
    assert (result.both, result.only_a, result.only_b, result.neither, result.p_value) == (1, 2, 1, 1, 1.0)


def test_copies_of_events_make_mcnemar_no_surer() -> None:
    a, b = (np.repeat(kind, [90, 60, 100, 50]) for kind in ([True, False, True, False], [False, True, True, False]))
    alone = mcnemar(a, b, np.arange(300))
    copied = mcnemar(*(np.repeat(x, 20) for x in (a, b)), np.repeat(np.arange(300), 20))
    assert copied.p_value == pytest.approx(alone.p_value)
    assert copied.only_a == 20 * alone.only_a
    assert 0.3 < alone.p_value / mcnemar(a, b).p_value < 3, "without copies as the exact one, about"
    assert mcnemar(np.repeat(a, 20), np.repeat(b, 20)).p_value < 1e-4 < copied.p_value
    assert mcnemar(a, b, np.zeros(300, int)).p_value == 1.0


def test_metric_for_each_task() -> None:
    labels, a, _ = two_systems(np.random.default_rng(5), 500, 0.1)
    composition = metric_for(COMPOSITION)
    assert composition.value(labels, a) == fraction_error(labels, a)
    assert composition.interval(labels, a).low < composition.value(labels, a)
    scores = np.where(labels == 0, 1.0, 0.0) + np.linspace(0, 0.1, 500)
    gamma = metric_for(GAMMA)
    assert gamma.value(labels.clip(0, 1), scores) == hadron_survival(labels.clip(0, 1), scores).hadron_survival
    own = metric_for(Task("wine", ("red", "white", "rosé")))
    assert own.value(np.array([0, 1, 2]), np.array([0, 1, 1])) == pytest.approx(1 / 3)
    assert own.paired(labels, a, labels).difference == pytest.approx(np.mean(labels != a))


def test_accuracy_of_a_table_is_as_uncertain_as_its_weights_say() -> None:
    labels = np.arange(2_000) % 2
    predicted = np.where(np.arange(2_000) % 10 == 0, 1 - labels, labels)  # one of ten is wrong
    log_proba = np.log(np.eye(2)[predicted] * 0.8 + 0.1)
    weights = np.where(np.arange(2_000) < 20, 1.0, 1e-6)  # twenty rows count
    plain, weighted = (table_metrics(labels, log_proba, ("a", "b"), one)["accuracy"] for one in (None, weights))
    widths = [one["high"] - one["low"] for one in (plain, weighted)]
    assert widths[1] > 5 * widths[0]
