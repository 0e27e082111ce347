"""Statistics on toys whose answer is known in closed form."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy.special import binom
from scipy.stats import norm
from scipy.stats import t as student

from showerstack.runtime.errors import InputError
from showerstack.scoring.metrics.bins import GRID_ENERGY_BINS, Bin, MetricBins, energy_bins, energy_zenith_grid
from showerstack.scoring.metrics.classes import (
    bins_at_threshold,
    efficiency_at_survival,
    q_factor,
    table_metrics,
)
from showerstack.scoring.metrics.composition import (
    composition_metrics,
    confusion_matrix,
    expected_fraction_error,
    fraction_error,
    fraction_error_interval,
    paired_fraction_error,
    row_normalised,
)
from showerstack.scoring.metrics.gamma import (
    GAMMA_CLASS,
    HADRON,
    area_under_curve,
    gamma_area,
    gamma_metrics,
    hadron_survival,
    weighted_threshold,
)
from showerstack.scoring.metrics.intervals import clopper_pearson
from showerstack.scoring.metrics.paired import mcnemar, paired_log_loss, paired_mean
from showerstack.scoring.metrics.survival_bootstrap import paired_survival, survival_interval
from showerstack.scoring.tasks import scoring_of
from showerstack.scoring.tasks.truth import Truth, _read_groups, check_labels
from showerstack.showers.schema import COMPOSITION, ENERGY, GAMMA

TOYS = 2_000


def _binomial_error(share: float) -> float:
    return float(np.sqrt(share * (1.0 - share) / TOYS))


def test_normal_intervals_and_p_values_cover_as_students_t_says() -> None:
    n, truth = 12, 0.7
    entries = [paired_mean(values) for values in np.random.default_rng(1).normal(truth, 2.0, (TOYS, n))]
    low, high = np.array([(one.interval.low, one.interval.high) for one in entries]).T
    expected = 1.0 - 2.0 * student.sf(1.959964, n - 1)
    assert np.mean((low <= truth) & (truth <= high)) == pytest.approx(expected, abs=9 * _binomial_error(expected))
    # The p-value is below 5 % exactly where the interval leaves out 0.
    outside = (low > 0.0) | (high < 0.0)
    np.testing.assert_array_equal(outside, [one.p_value < 0.05 for one in entries])


@pytest.mark.parametrize("efficiency", [0.5, 0.75, 0.9])
def test_survival_of_equal_scores_is_that_of_order_statistics(efficiency: float) -> None:
    # Scores of both kinds from one distribution: a hadron is above the k-th largest of n gammas with k / (n + 1).
    n_gamma, n_hadron = 19, 10
    labels = np.repeat([GAMMA_CLASS, HADRON], [n_gamma, n_hadron])
    scores = np.random.default_rng(2).random((TOYS, n_gamma + n_hadron))
    entries = [hadron_survival(labels, row, efficiency) for row in scores]
    k = int(np.ceil(efficiency * n_gamma))
    share = k / (n_gamma + 1)
    # Beta-binomial: the threshold is common to the hadrons of a toy.
    variance = share * (1 - share) / n_hadron * (1 + (n_hadron - 1) / (n_gamma + 2))
    mean = np.mean([one.hadron_survival for one in entries])
    assert mean == pytest.approx(share, abs=6 * np.sqrt(variance / TOYS))
    assert np.var([one.hadron_survival for one in entries]) == pytest.approx(variance, rel=0.3)
    assert {one.gamma_efficiency for one in entries} == {k / n_gamma}


def test_survival_intervals_cover_however_few() -> None:
    labels = np.repeat([GAMMA_CLASS, HADRON], [40, 30])
    threshold_share = 0.25
    scores = np.random.default_rng(3).random((400, 70))
    inside = 0
    for row in scores:
        result = survival_interval(labels, row, n_resamples=200)
        inside += result.low <= 1.0 - threshold_share <= result.high
    assert inside / 400 > 0.95 - 6 * np.sqrt(0.95 * 0.05 / 400)


def test_paired_survivals_spread_as_repeated_experiments() -> None:
    rng = np.random.default_rng(4)
    labels = np.repeat([GAMMA_CLASS, HADRON], [60, 60])
    differences, errors, covered = [], [], 0
    for _ in range(100):
        common = rng.normal(size=120) - 1.0 * labels
        a, b = (common + 0.7 * rng.normal(size=120) for _ in range(2))
        result = paired_survival(labels, a, b, n_resamples=100)
        differences.append(result.difference)
        errors.append(result.standard_error)
        covered += result.interval.low <= 0.0 <= result.interval.high
    assert np.mean(errors) / np.std(differences) == pytest.approx(1.0, abs=0.5)
    assert covered / 100 > 0.8


@pytest.mark.parametrize(("only_a", "only_b"), [(0, 1), (0, 6), (2, 7), (5, 5), (9, 3)])
def test_mcnemar_is_the_sum_of_equally_unlikely_splits(only_a: int, only_b: int) -> None:
    n = only_a + only_b
    splits = binom(n, np.arange(n + 1)) / 2.0**n
    expected = splits[splits <= splits[only_a] * (1 + 1e-9)].sum()
    yes_a = np.repeat([True, False, True, False], [only_a, only_b, 4, 3])
    yes_b = np.repeat([False, True, True, False], [only_a, only_b, 4, 3])
    result = mcnemar(yes_a, yes_b)
    assert (result.both, result.only_a, result.only_b, result.neither) == (4, only_a, only_b, 3)
    assert result.p_value == pytest.approx(expected)


def test_clopper_pearson_covers_for_every_share() -> None:
    n = 15
    intervals = [clopper_pearson(k, n, 0.9) for k in range(n + 1)]
    for share in np.linspace(0.01, 0.99, 99):
        chance = binom(n, np.arange(n + 1)) * share ** np.arange(n + 1) * (1 - share) ** np.arange(n, -1, -1)
        outside_low = sum(c for c, one in zip(chance, intervals, strict=True) if one.low > share)
        outside_high = sum(c for c, one in zip(chance, intervals, strict=True) if one.high < share)
        assert outside_low <= 0.05 + 1e-9
        assert outside_high <= 0.05 + 1e-9


def test_log_losses_differ_by_hand() -> None:
    labels = np.array([0, 1, 1, 0])
    a, b = np.log([[0.5, 0.5], [0.2, 0.8], [0.6, 0.4], [0.9, 0.1]]), np.log(np.full((4, 2), 0.5))
    gaps = np.log(0.5) - np.log([0.5, 0.8, 0.4, 0.9])
    result = paired_log_loss(labels, a, b)
    assert result.difference == pytest.approx(gaps.mean())
    assert result.standard_error == pytest.approx(gaps.std(ddof=1) / 2.0)


def test_losses_of_events_by_hand() -> None:
    log_proba, labels = np.log([[0.5, 0.5], [0.8, 0.2], [0.8, 0.2]]), np.array([0, 0, 1])
    for task in (COMPOSITION, GAMMA):
        losses = scoring_of(task).losses(labels, log_proba, np.zeros(3))
        np.testing.assert_allclose(losses, [np.log(2), -np.log(0.8), np.log(5)])
    estimates = scoring_of(ENERGY).losses(np.array([15.0, 16.0]), np.zeros((2, 1)), np.array([15.25, 15.5]))
    np.testing.assert_array_equal(estimates, [0.25, 0.5])


def test_the_paired_interval_of_fraction_errors_lies_around_the_difference() -> None:
    rng = np.random.default_rng(9)
    labels = np.repeat(np.arange(5), 400)
    a, b = (np.clip(labels + rng.integers(-reach, reach + 1, 2_000), 0, 4) for reach in (1, 2))
    result = paired_fraction_error(labels, a, b, n_resamples=400)
    middle = 0.5 * (result.interval.low + result.interval.high)
    assert abs(middle - result.difference) < 0.5 * result.standard_error


@pytest.mark.parametrize("n_classes", [2, 3])
def test_metrics_of_a_table_by_hand(n_classes: int) -> None:
    rng = np.random.default_rng(9)
    labels, proba = rng.integers(0, n_classes, 60), rng.dirichlet(np.ones(n_classes), 60)
    metrics = table_metrics(labels, np.log(proba), ("a", "b", "c")[:n_classes])
    columns = [1] if n_classes == 2 else [0, 1, 2]
    pairs = {k: proba[labels == k, k][:, None] > proba[labels != k, k] for k in columns}
    assert {name: one["value"] for name, one in metrics["auc_by_class"].items()} == pytest.approx(
        {"abc"[k]: float(larger.mean()) for k, larger in pairs.items()}
    )
    assert metrics["auc"]["value"] == pytest.approx(np.mean([larger.mean() for larger in pairs.values()]))
    loss = -np.log(proba[np.arange(60), labels])
    factor = np.exp(1.959964 * loss.std() / 60**0.5 / loss.mean())
    assert metrics["log_loss"] == pytest.approx(
        {"value": loss.mean(), "low": loss.mean() / factor, "high": loss.mean() * factor}, rel=1e-6
    )
    predicted = proba.argmax(axis=1)
    assert metrics["accuracy"]["value"] == np.mean(predicted == labels)
    table = [[int(np.sum((labels == i) & (predicted == j))) for j in range(n_classes)] for i in range(n_classes)]
    assert metrics["confusion"] == table


def test_intervals_of_log_losses_hold_the_truth_and_nothing_negative() -> None:
    rng = np.random.default_rng(2)
    shape, n, covered, lowest = 0.15, 71, 0, np.inf
    for _ in range(1000):  # most rows are sure and right, a few are costly, as in small tables that are easy
        loss = rng.gamma(shape, size=n)
        log_proba = np.stack([-loss, np.log(-np.expm1(-np.maximum(loss, 1e-300)))], axis=1)
        entry = table_metrics(np.zeros(n, int), log_proba, ("a", "b"))["log_loss"]
        covered += entry["low"] <= shape <= entry["high"]
        lowest = min(lowest, entry["low"])
    assert lowest > 0
    assert covered > 900, "of 1,000; the normal law covers 883 and goes below zero"


def test_areas_stay_between_0_and_1() -> None:
    labels = np.arange(8) % 2
    log_proba = np.log(np.where(np.eye(2)[[0, 1, 0, 1, 0, 1, 1, 1]] > 0, 0.9, 0.1))  # one row of eight is wrong
    metrics = table_metrics(labels, log_proba, ("a", "b"))
    area = metrics["auc"]
    assert metrics["auc_by_class"] == {"b": area}
    assert area["value"] == 0.875
    assert area["high"] == 1.0
    assert 0.0 < area["low"] < 0.875


def test_bins_of_energy_hold_their_events_alone() -> None:
    labels = np.tile(np.arange(5), 6)
    energy = np.repeat([15.25, 16.25, 16.75], 10)
    predicted = np.where(energy > 16.5, (labels + 1) % 5, labels)
    binned = composition_metrics(labels, predicted, energy)["energy_binned"]
    masks = {name: mask for name, mask in energy_bins(energy) if mask.any()}
    assert 1 < len(masks) < len(labels)
    assert set(binned) == set(masks)
    for name, mask in masks.items():
        assert binned[name]["count"] == mask.sum()
        assert binned[name]["accuracy"] == np.mean(labels[mask] == predicted[mask])


def test_bins_of_another_array_cover_its_events() -> None:
    energy = np.concatenate([np.linspace(18.4, 20.1, 2000), [25.0, np.nan]])
    binning = MetricBins.of(energy, np.linspace(0.0, 59.9, 2000))
    assert [one.name for one in binning.energy] == ["18.0-18.5", "18.5-19.0", "19.0-19.5", "19.5-20.0", "20.0-20.5"]
    assert [one.name for one in binning.zenith] == ["0-10", "10-20", "20-30", "30-40", "40-50", "50-60"]
    assert Bin.named("18.5-19.0") == binning.energy[1]
    assert Bin.named("10-20") == binning.zenith[1]
    labels = np.arange(2002) % 5
    binned = composition_metrics(labels, labels, energy, binning=binning)["energy_binned"]
    assert sum(row["count"] for row in binned.values()) == 2000
    assert not composition_metrics(labels, labels, energy)["energy_binned"]
    assert MetricBins.of(np.full(9, np.nan), np.full(9, 5.0)).energy == ()
    grid = energy_zenith_grid(energy[:2000], np.full(2000, 55.0), binning)
    assert {(zenith, name) for zenith, name, mask in grid if mask.any()} == {("50-60", e.name) for e in binning.energy}


def test_bins_of_the_grid_are_half_a_decade_each() -> None:
    borders = [14.0, 14.5, 15.0, 15.5, 16.0, 16.5, 17.0, 17.5, 18.0]
    assert [(one.low, one.high) for one in GRID_ENERGY_BINS] == list(pairwise(borders))


def test_every_empty_row_of_a_confusion_is_named() -> None:
    confusion = np.eye(5)
    confusion[[1, 3]] = 0.0
    with pytest.raises(InputError, match=r"none of class \[1, 3\]"):
        row_normalised(confusion)
    with pytest.raises(InputError, match=r"none of class \[1, 3\]"):
        row_normalised(np.stack([np.eye(5), confusion]))


def test_two_values_have_an_error_and_one_has_none() -> None:
    two = paired_mean(np.array([1.0, 3.0]))
    assert (two.difference, two.standard_error) == (2.0, pytest.approx(1.0))
    assert paired_mean(np.array([1.0])).standard_error == np.inf


def test_paired_survivals_do_not_depend_on_the_scale_of_a_score() -> None:
    rng = np.random.default_rng(10)
    labels = np.repeat([GAMMA_CLASS, HADRON], [50, 300])
    a, b = rng.normal(np.where(labels == GAMMA_CLASS, 1.5, 0.0), 1.0, (2, 350))
    first = paired_survival(labels, a, b, n_resamples=200)
    for scaled in ((a + 100.0, b), (a, b + 100.0), (np.exp(a), 3.0 * b)):
        assert paired_survival(labels, *scaled, n_resamples=200) == first


@pytest.mark.parametrize("way", ["events", "groups", "weights"])
def test_intervals_of_paired_survivals_lie_around_the_difference(way: str) -> None:
    rng = np.random.default_rng(11)
    labels = np.repeat([GAMMA_CLASS, HADRON], [300, 900])
    a, b = (rng.normal(np.where(labels == GAMMA_CLASS, shift, 0.0), 1.0) for shift in (3.0, 0.5))
    groups = np.arange(1200) // 2 if way == "groups" else None
    weights = rng.uniform(0.5, 1.5, 1200) if way == "weights" else None
    pair = paired_survival(labels, a, b, groups, weights, n_resamples=300)
    # 75 % of the gammas lie above their mean minus 0.674.
    assert pair.difference == pytest.approx(norm.sf(3.0 - 0.674) - norm.sf(0.5 - 0.674), abs=0.25)
    middle, width = (pair.interval.low + pair.interval.high) / 2, pair.interval.high - pair.interval.low
    assert middle == pytest.approx(pair.difference, abs=0.05)
    assert 0.01 < width < 0.4


def test_survivals_of_groups_stay_between_0_and_1() -> None:
    labels = np.repeat([GAMMA_CLASS, HADRON], [20, 24])
    groups = np.concatenate([np.arange(20), 100 + np.repeat(np.arange(4), 6)])
    scores = np.where((labels == HADRON) & (groups == 100), -1.0, 1.0)  # three groups of four survive
    result = survival_interval(labels, scores, groups, n_resamples=200)
    assert 0.0 <= result.low < 0.75 < result.high <= 1.0


def _weighted_classes(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return labels, two predictions right in 70 and 50 %, and weights of whole numbers."""
    labels = rng.integers(0, 5, n)
    pair = [np.where(rng.random(n) < right, labels, rng.integers(0, 5, n)) for right in (0.625, 0.375)]
    return labels, *pair, rng.integers(0, 4, n).astype(np.float64)


@pytest.mark.slow
def test_a_weight_of_a_class_counts_as_so_many_copies() -> None:
    labels, a, b, weights = _weighted_classes(4000, np.random.default_rng(5))
    many, energy = np.repeat(np.arange(4000), weights.astype(int)), np.full(4000, 15.2, np.float32)
    weighted = composition_metrics(labels, a, energy, weights)
    copied = composition_metrics(labels[many], a[many], energy[many])
    for key in ("accuracy", "macro_f1", "weighted_f1"):
        assert weighted[key] == pytest.approx(copied[key], rel=1e-12)
    # The benchmark's draws move its value by some 1e-4.
    closed = expected_fraction_error(confusion_matrix(labels[many], a[many]))
    assert weighted["mean_fraction_error"] == pytest.approx(closed, rel=1e-12)
    assert weighted["mean_fraction_error"] == pytest.approx(copied["mean_fraction_error"], abs=1e-3)
    in_bin = weighted["energy_binned"]["15.0-15.5"]
    assert in_bin["fraction_error"]["mean_fraction_error"] == pytest.approx(closed, rel=1e-12)
    assert (in_bin["count"], np.sum(weighted["confusion_matrix"])) == (4000, 4000)
    assert fraction_error(labels, a, weights) == pytest.approx(closed, rel=1e-12)
    assert fraction_error(labels, a, np.ones(4000)) == pytest.approx(fraction_error(labels, a), abs=1e-3)
    truth = Truth(Path(), labels, energy, np.full(4000, 12.0, np.float32), weights=weights)
    whole = scoring_of(COMPOSITION).metrics(truth, a, intervals=True)
    for row in (whole["intervals"], whole["energy_binned"]["15.0-15.5"]["intervals"]):
        assert row["mean_fraction_error"]["low"] < closed < row["mean_fraction_error"]["high"]
        assert row["accuracy"]["low"] < weighted["accuracy"] < row["accuracy"]["high"]
    paired = scoring_of(COMPOSITION).metric.paired_of(truth, a, b)
    assert paired.interval.low < paired.difference < paired.interval.high < 0


@pytest.mark.slow
def test_intervals_of_weighted_fraction_errors_cover() -> None:
    """Weights 0 to 3 leave events the error of sum(w)^2 / sum(w^2) = 0.643 as many."""
    rng, widths, inside = np.random.default_rng(6), [], 0
    for _ in range(16):
        labels, a, _, weights = _weighted_classes(1000, rng)
        interval = fraction_error_interval(labels, a, weights=weights)
        # A share 0.375 is spread over all five classes: P = 0.625 I + 0.075.
        truth = expected_fraction_error(0.625 * np.eye(5) + 0.075)
        inside += interval.low <= truth <= interval.high
        plain = fraction_error_interval(labels, a)
        widths.append((interval.high - interval.low) / (plain.high - plain.low))
    assert inside >= 10, "95 % of 16 minus five standard deviations"
    assert np.mean(widths) == pytest.approx(np.sqrt(1 / 0.643), rel=0.08)


def _weighted(n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return labels, scores and whole-numbered weights, which are those of copies of the events."""
    rng = np.random.default_rng(seed)
    labels = (rng.random(n) < 0.8).astype(int)
    return labels, rng.normal(0.0, 1.0, n) - 1.5 * labels, rng.integers(0, 4, n).astype(np.float64)


def test_a_weight_counts_as_so_many_copies() -> None:
    labels, scores, weights = _weighted(3000, 1)
    many = np.repeat(np.arange(3000), weights.astype(int))
    energy, zenith = np.full(3000, 15.2, np.float32), np.full(3000, 12.0, np.float32)
    weighted = gamma_metrics(labels, scores, energy, zenith, weights)
    copied = gamma_metrics(labels[many], scores[many], energy[many], zenith[many])
    for name, row in copied["survival_rates"].items():
        for key in ("threshold", "gamma_efficiency", "hadron_survival"):
            assert weighted["survival_rates"][name][key] == pytest.approx(row[key], rel=1e-12)
    assert weighted["key_metric"] == pytest.approx(copied["key_metric"])
    assert weighted["accuracy_at_0.5"] == pytest.approx(copied["accuracy_at_0.5"])
    assert weighted["energy_binned"]["15.0-15.5"]["hadron_survival"] == pytest.approx(copied["key_metric"])
    for ours, theirs in (
        (gamma_area(labels, scores, weights), gamma_area(labels[many], scores[many])),
        (efficiency_at_survival(labels, scores, 0.1, weights), efficiency_at_survival(labels[many], scores[many], 0.1)),
        (q_factor(labels, scores, weights=weights), q_factor(labels[many], scores[many])),
    ):
        assert ours.value == pytest.approx(theirs.value, rel=1e-12)
        assert ours.interval.low < ours.value < ours.interval.high
    place = {"energy": energy, "zenith_deg": zenith}
    in_bin = bins_at_threshold(labels, scores, 0.5, **place, weights=weights)["energy"][0]
    assert in_bin.survival == pytest.approx(np.mean(scores[many][labels[many] == 1] >= 0.5))


def test_a_weighted_threshold_by_hand() -> None:
    scores, weights = np.array([2.0, 4.0, 1.0, 3.0]), np.array([1.0, 2.0, 4.0, 3.0])  # 2, 5, 6 and 10 from the top
    for efficiency, threshold in ((0.1, 4.0), (0.2, 4.0), (0.21, 3.0), (0.5, 3.0), (0.6, 2.0), (0.61, 1.0), (1.0, 1.0)):
        assert weighted_threshold(scores, weights, efficiency) == threshold


def test_the_weighted_area_has_the_error_of_repeated_samples() -> None:
    areas = []
    for seed in range(200):
        labels, scores, weights = _weighted(400, seed)
        areas.append(area_under_curve(labels == GAMMA_CLASS, scores, weights))
    values, errors = np.array(areas).T
    assert errors.mean() == pytest.approx(values.std(), rel=0.35)


@pytest.mark.parametrize("scale", [1e-3, 50.0])
def test_only_the_ratios_of_weights_count(scale: float) -> None:
    labels, scores, weights = _weighted(400, 5)
    one, other = (hadron_survival(labels, scores, 0.75, some) for some in (weights, scale * weights))
    assert (one.threshold, one.n_surviving) == (other.threshold, other.n_surviving)
    assert other.hadron_survival == pytest.approx(one.hadron_survival)
    ours, theirs = (area_under_curve(labels == GAMMA_CLASS, scores, some) for some in (weights, scale * weights))
    assert theirs == pytest.approx(ours), "area and its error"


def test_weights_of_one_change_no_value() -> None:
    labels, scores, _ = _weighted(2000, 2)
    plain, ones = (hadron_survival(labels, scores, 0.9, w) for w in (None, np.ones(2000)))
    assert ones.hadron_survival == pytest.approx(plain.hadron_survival)
    assert (ones.threshold, ones.n_surviving) == (plain.threshold, plain.n_surviving)
    left, total = plain.n_surviving, plain.n_hadron
    assert plain.weights is None
    assert ones.weights is not None
    assert ones.weights.n_effective == pytest.approx(left)
    assert ones.weights.largest == pytest.approx(1 / (left + 1))
    assert ones.weights.error == pytest.approx(np.sqrt(left / total * (1 - left / total) / total))


def test_a_survival_is_quoted_only_where_weights_allow_it() -> None:
    """A hundred light survivors make no number beside a heavy hadron, whether it survives or not."""
    labels, scores = np.repeat([0, 1], [1000, 5000]), np.concatenate([np.linspace(1, 2, 1000), np.zeros(5000)])
    scores[1000:1101] = 3.0
    even = np.ones(6000)
    heavy = even.copy()
    heavy[1000] = 6.0
    few = hadron_survival(labels, np.where(np.arange(6000) == 1000, 0.0, scores), 0.75, even).weights
    one, lost, enough = (hadron_survival(labels, scores, 0.75, w).weights for w in (heavy, heavy[::-1], even))
    assert few is not None
    assert one is not None
    assert lost is not None
    assert enough is not None
    assert enough.quoted
    assert not few.quoted
    assert not one.quoted
    assert not lost.quoted
    assert (one.largest, lost.largest) == pytest.approx((6 / 112, 6 / 107))
    interval = survival_interval(labels, scores, weights=heavy)
    assert interval.is_limit
    assert interval.high == pytest.approx(one.limit(), rel=0.02), "the threshold is certain"
    none = hadron_survival(labels, np.where(labels == 1, -1.0, scores), 0.75, even).weights
    assert none is not None
    assert none.limit() == pytest.approx(-np.log(0.05) / 5000), "three events at 95 %"


@pytest.mark.slow
def test_intervals_of_weighted_survivals_cover_the_truth() -> None:
    """Hadrons from a proposal: the score's tail is drawn often, and its weights give back the natural share."""
    truth, inside, widths, spread = float(norm.sf(2.0)), 0, [], []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        share = rng.random(3000) < 0.5
        x = rng.normal(np.where(share, 2.0, 0.0), 1.0)
        weights = norm.pdf(x) / (0.5 * norm.pdf(x) + 0.5 * norm.pdf(x - 2.0))
        labels, scores = np.repeat([0, 1], [4000, 3000]), np.concatenate([rng.normal(2.6745, 1.0, 4000), x])
        every = np.concatenate([np.ones(4000), weights])
        result = hadron_survival(labels, scores, 0.75, every)
        assert result.weights is not None
        assert result.weights.quoted
        interval = survival_interval(labels, scores, weights=every, n_resamples=200)
        inside += interval.low <= truth <= interval.high
        widths.append((interval.high - interval.low) / 3.92)
        spread.append(result.hadron_survival)
    assert np.mean(spread) == pytest.approx(truth, rel=0.1)
    assert inside >= 30, "38 of 40 expected"
    assert np.std(spread) * 0.6 < np.mean(widths) < np.std(spread) * 1.9


@pytest.mark.parametrize("efficiency", [0.5, 0.99])
def test_equal_weights_and_single_events_as_groups_give_the_plain_interval(efficiency: float) -> None:
    labels, scores, _ = _weighted(4000, 3)
    plain = survival_interval(labels, scores, efficiency=efficiency)
    for groups, weights in ((np.arange(4000), None), (None, np.full(4000, 0.2)), (np.arange(4000), np.ones(4000))):
        result = survival_interval(labels, scores, groups, weights, efficiency=efficiency)
        assert (result.low, result.high) == pytest.approx((plain.low, plain.high), abs=0.5 * (plain.high - plain.low))


def test_weighted_pairs_share_their_events() -> None:
    labels, scores, weights = _weighted(4000, 3)
    other = scores + np.random.default_rng(4).normal(0.0, 0.05, 4000)
    pair = paired_survival(labels, scores, other, weights=weights)
    alone = survival_interval(labels, scores, weights=weights)
    assert abs(pair.difference) < 6 * pair.standard_error
    assert pair.standard_error < 0.8 * (alone.high - alone.low) / 3.92
    assert paired_survival(labels, scores, scores, weights=weights).difference == 0.0


def test_groups_of_one_event_each_are_none(tmp_path: Path) -> None:
    np.save(tmp_path / "groups.npy", np.array([3, 1, 3], dtype=np.int64))
    groups = _read_groups(tmp_path / "groups.npy", 3)
    assert groups is not None
    assert groups.tolist() == [3, 1, 3]
    np.save(tmp_path / "groups.npy", np.array([3, 1, 2], dtype=np.int64))
    assert _read_groups(tmp_path / "groups.npy", 3) is None


def test_labels_may_be_the_first_and_the_last_class_and_none_beyond() -> None:
    check_labels(np.array([0, 4]), COMPOSITION, "labels.npy")
    for wrong in (-1, 5):
        with pytest.raises(InputError, match=rf"1 of 3 labels are outside 0..4, the first at index 2 \({wrong}\)"):
            check_labels(np.array([0, 4, wrong]), COMPOSITION, "labels.npy")


def test_no_interval_of_an_area_goes_beyond_one() -> None:
    labels = np.repeat([GAMMA_CLASS, HADRON], [8, 8])
    scores = np.linspace(1.0, 0.0, 16)
    scores[[7, 8]] = scores[[8, 7]]
    result = gamma_area(labels, scores)
    assert 0.9 < result.value < 1.0 == result.interval.high
