"""Paired comparisons: right sign, honest p-values, and narrower than two single intervals."""

from __future__ import annotations

import numpy as np
import pytest

from scoring import metric_for
from scoring.metrics.composition import fraction_error
from scoring.metrics.gamma import hadron_survival
from scoring.metrics.intervals import fraction_error_interval
from scoring.metrics.paired import mcnemar, paired_accuracy, paired_fraction_error, paired_log_loss, paired_survival
from showers.schema import COMPOSITION, GAMMA, Task


def two_systems(rng: np.random.Generator, n: int, better: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels and two correlated guesses; the second is right more often by about ``better``."""
    labels = rng.integers(0, 5, n)
    base = np.clip(labels + rng.integers(-1, 2, n), 0, 4)
    a = np.where(rng.random(n) < 0.1, np.clip(labels + rng.integers(-1, 2, n), 0, 4), base)
    b = np.where(rng.random(n) < better, labels, np.where(rng.random(n) < 0.1, np.clip(labels - 1, 0, 4), base))
    return labels, a, b


def test_paired_fraction_error_sees_what_single_intervals_cannot() -> None:
    labels, a, b = two_systems(np.random.default_rng(1), 6000, 0.04)
    found = paired_fraction_error(labels, a, b)
    assert found.difference == pytest.approx(fraction_error(labels, a) - fraction_error(labels, b), abs=1e-15)
    assert found.interval.low < found.difference < found.interval.high
    single = fraction_error_interval(labels, a)
    assert found.interval.high - found.interval.low < 0.8 * (single.high - single.low)
    reverse = paired_fraction_error(labels, b, a)
    assert reverse.difference == -found.difference


def test_equal_systems_differ_by_nothing() -> None:
    labels, a, _ = two_systems(np.random.default_rng(2), 1000, 0.1)
    found = paired_fraction_error(labels, a, a)
    assert (found.difference, found.p_value, found.standard_error) == (0.0, 1.0, pytest.approx(0.0, abs=1e-12))


def test_p_values_of_equally_good_systems_are_uniform_enough() -> None:
    rng = np.random.default_rng(3)
    small = 0
    for _ in range(40):
        labels = np.repeat(np.arange(5), 100)
        base = np.clip(labels + rng.integers(-1, 2, 500), 0, 4)
        a, b = (np.where(rng.random(500) < 0.3, np.clip(labels + rng.integers(-1, 2, 500), 0, 4), base) for _ in "ab")
        small += paired_fraction_error(labels, a, b, n_resamples=300).p_value < 0.05
    assert small <= 7  # 2 expected; 8 or more has probability 0.1 %


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
    found = paired_survival(labels, a, b, n_resamples=800)
    assert found.difference == values[-1]
    assert found.standard_error == pytest.approx(np.std(values), rel=0.35)


def test_no_survivors_is_not_certainty() -> None:
    labels = np.repeat([0, 1], [100, 1000])
    scores = np.where(labels == 0, 5.0, 0.0)
    found = paired_survival(labels, scores, scores * 2)
    assert found.difference == 0.0
    assert found.interval.high == pytest.approx(1.96e-3, rel=0.05)


def test_paired_log_loss_and_accuracy() -> None:
    labels = np.array([0, 1, 0, 1])
    right = np.log(np.where(np.eye(2)[labels] > 0, 0.9, 0.1))
    half = np.log(np.full((4, 2), 0.5))
    found = paired_log_loss(labels, right, half)
    assert found.difference == pytest.approx(np.log(0.5) - np.log(0.9))
    assert paired_accuracy(labels, labels, 1 - labels).difference == 1.0
    assert paired_accuracy(labels, labels, 1 - labels).p_value == pytest.approx(2 * 0.5**4)


def test_mcnemar_table() -> None:
    a, b = np.array([1, 1, 1, 0, 0], bool), np.array([1, 0, 0, 1, 0], bool)
    found = mcnemar(a, b)
    assert (found.both, found.only_a, found.only_b, found.neither, found.p_value) == (1, 2, 1, 1, 1.0)


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
