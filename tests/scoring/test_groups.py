"""Events of one group are one observation: intervals and paired tests hold where events are not independent."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest

from showerstack.report.shared.text import table_cells
from showerstack.runtime.errors import InputError
from showerstack.scoring.metrics.classes import table_metrics
from showerstack.scoring.metrics.composition import (
    confusion_matrix,
    expected_fraction_error,
    fraction_error_interval,
    paired_fraction_error,
)  # fmt: skip
from showerstack.scoring.metrics.gamma import area_under_curve
from showerstack.scoring.metrics.intervals import clopper_pearson, grouped_error, resample_groups, share_interval
from showerstack.scoring.metrics.paired import paired_accuracy, paired_log_loss
from showerstack.scoring.metrics.survival_bootstrap import paired_survival
from showerstack.scoring.tasks import scoring_of
from showerstack.scoring.tasks.base import ERROR_RATE
from showerstack.showers.schema import COMPOSITION, ENERGY, GAMMA

N_GROUPS, IN_GROUP = 60, 50
GROUPS = np.repeat(np.arange(N_GROUPS), IN_GROUP)


def _worlds(n: int) -> Iterator[np.ndarray]:
    """Yield hits (N,) bool whose expected share is 0.7, with a share of its own in each group."""
    for seed in range(n):
        rng = np.random.default_rng(seed)
        yield rng.random(len(GROUPS)) < np.repeat(rng.beta(7, 3, N_GROUPS), IN_GROUP)


def test_intervals_of_shares_cover_where_groups_differ() -> None:
    covered = {"events": 0, "groups": 0}
    for hits in _worlds(400):
        for name, groups in (("events", None), ("groups", GROUPS)):
            result = share_interval(hits, groups)
            covered[name] += result.low < 0.7 < result.high
    assert covered["events"] / 400 < 0.75, "as if all events were independent"
    assert 0.9 < covered["groups"] / 400 < 0.995
    hits = np.ones(len(GROUPS), dtype=bool)
    assert share_interval(hits, GROUPS).low == pytest.approx(share_interval(np.ones(N_GROUPS, bool)).low)
    assert share_interval(hits, np.zeros(len(hits), int)).low == 0, "one group shows nothing"


def test_paired_tests_do_not_find_differences_that_groups_make() -> None:
    entries = {"accuracy": 0, "loss": 0}
    labels = np.zeros(len(GROUPS), dtype=int)
    for seed in range(300):
        rng = np.random.default_rng(seed)
        shift = np.repeat(rng.normal(size=N_GROUPS), IN_GROUP)
        a, b = (rng.random(len(GROUPS)) < 0.5 + sign * 0.3 * np.tanh(shift) for sign in (1, -1))
        entries["accuracy"] += paired_accuracy(labels, (~a).astype(int), (~b).astype(int), GROUPS).p_value < 0.05
        log_a = np.column_stack([-1 - 0.2 * shift, np.zeros(len(GROUPS))])
        log_b = np.full((len(GROUPS), 2), -1.0)
        entries["loss"] += paired_log_loss(labels, log_a, log_b, GROUPS).p_value < 0.05
    assert all(0.01 < count / 300 < 0.1 for count in entries.values()), entries


@pytest.mark.slow
def test_one_event_a_group_is_no_group() -> None:
    rng = np.random.default_rng(1)
    labels, each = rng.integers(0, 5, 4000), np.arange(4000)
    a, b = (np.where(rng.random(4000) < share, labels, rng.integers(0, 5, 4000)) for share in (0.5, 0.45))
    alone, grouped = fraction_error_interval(labels, a), fraction_error_interval(labels, a, each)
    assert grouped.high - grouped.low == pytest.approx(alone.high - alone.low, rel=0.15)
    first, second = paired_fraction_error(labels, a, b), paired_fraction_error(labels, a, b, each)
    assert second.standard_error == pytest.approx(first.standard_error, rel=0.1)
    is_hadron = (labels > 2).astype(int)
    scores, other = (rng.normal(size=4000) - 1.5 * is_hadron for _ in range(2))
    first, second = paired_survival(is_hadron, scores, other), paired_survival(is_hadron, scores, other, groups=each)
    assert second.standard_error == pytest.approx(first.standard_error, rel=0.15)


@pytest.mark.parametrize("task", [COMPOSITION, GAMMA, ENERGY], ids=lambda task: task.name)
def test_copies_of_events_add_nothing(task: object) -> None:
    """Ten copies of each event, as one group, are worth one event: the interval is that of the events themselves."""
    rng = np.random.default_rng(2)
    n, metric = 600, scoring_of(task).metric
    labels = rng.integers(0, 5 if task is COMPOSITION else 2, n)
    if task is COMPOSITION:
        systems = [np.where(rng.random(n) < 0.5, labels, rng.integers(0, 5, n)) for _ in range(2)]
    elif task is GAMMA:
        systems = [rng.normal(size=n) - labels for _ in range(2)]
    else:
        systems = [labels + rng.normal(size=n) for _ in range(2)]
    groups, copied = np.repeat(np.arange(n), 10), [np.repeat(x, 10) for x in (labels, *systems)]
    one, many = metric.interval(labels, systems[0]), metric.interval(*copied[:2], groups)
    assert many.high - many.low == pytest.approx(one.high - one.low, rel=0.35)
    assert metric.interval(*copied[:2]).high - metric.interval(*copied[:2]).low < 0.65 * (many.high - many.low)
    alone, together = metric.paired(labels, *systems), metric.paired(*copied, groups)
    assert together.standard_error == pytest.approx(alone.standard_error, rel=0.2)


def test_errors_need_two_groups_and_every_class_stays() -> None:
    with pytest.raises(InputError, match="all 3 events are of one group"):
        paired_log_loss(np.zeros(3, int), np.full((3, 2), -1.0), -np.ones((3, 2)), np.zeros(3, int))
    # Means 1 and 3 of two groups: their half-difference is the standard error of the mean of two.
    assert grouped_error(np.array([1.0, 1.0, 3.0, 3.0]), np.array([4, 4, 7, 7])) == (1.0, 2)
    for outcome, certain in ((True, "high"), (False, "low")):
        alike = share_interval(np.full(40, outcome), np.arange(40) // 2)
        assert getattr(alike, certain) == float(outcome)
        # Twenty groups, each one event, none of the other kind: 0.025 = (1 - p)^20.
        assert alike.high - alike.low == pytest.approx(1 - 0.025**0.05)
    # Groups that all hold one hit and one miss show no spread: each is one event, as where outcomes are alike.
    result, expected = share_interval(np.tile([True, False], 20), np.arange(40) // 2), clopper_pearson(10, 20)
    assert (result.low, result.high) == pytest.approx((expected.low, expected.high))
    labels = np.array([0, 0, 0, 1])
    _, blocks = resample_groups(labels, np.array([0, 1, 2, 3]), 50, np.random.default_rng(1))
    drawn = np.concatenate(list(blocks))
    assert drawn.sum(axis=1).tolist() == [4] * 50
    assert (drawn[:, 3] == 1).all(), "the only group of a class is always there"
    assert ERROR_RATE.interval(labels, labels * 0, np.arange(4)).high > 0.5


@pytest.mark.parametrize("weighted", [False, True])
def test_metrics_of_tables_count_groups(weighted: bool) -> None:
    """Accuracy, log-loss and AUC of rows whose groups are right or wrong together: 95 of 100 intervals hold."""
    names = ("accuracy", "log_loss", "auc")
    covered = {(kind, name): 0 for kind in ("rows", "groups") for name in names}
    weights = np.tile([0.5, 1.5], len(GROUPS) // 2) if weighted else None

    def world(n_groups: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rng, groups = np.random.default_rng(seed), np.repeat(np.arange(n_groups), IN_GROUP)
        labels = rng.integers(0, 2, len(groups))
        logit = (2 * labels - 1) * (0.8 + 1.5 * rng.normal(size=n_groups)[groups]) + rng.normal(size=len(groups))
        return labels, np.column_stack([-np.logaddexp(0, logit), -np.logaddexp(0, -logit)]), groups

    labels, log_proba, _ = world(8000, 10**6)
    truth = table_metrics(labels, log_proba, ("a", "b"))
    for seed in range(200):
        labels, log_proba, groups = world(N_GROUPS, seed)
        for kind, of in (("rows", None), ("groups", groups)):
            metrics = table_metrics(labels, log_proba, ("a", "b"), weights, of)
            for name in names:
                covered[kind, name] += metrics[name]["low"] < truth[name]["value"] < metrics[name]["high"]
    assert all(covered["rows", name] < 80 for name in names), "as if all rows were independent"
    assert all(180 < covered["groups", name] < 200 for name in names), covered


def test_one_group_determines_no_error_and_one_class_no_area() -> None:
    labels, log_proba = np.tile([0, 1], 20), np.log(np.full((40, 2), 0.5))
    metrics = table_metrics(labels, log_proba, ("a", "b"), groups=np.zeros(40))
    assert metrics["log_loss"] == {"value": pytest.approx(np.log(2)), "low": None, "high": None}
    assert metrics["auc"] == {"value": 0.5, "low": None, "high": None}
    assert (metrics["accuracy"]["low"], metrics["accuracy"]["high"]) == (0, 1)
    json.dumps(metrics, allow_nan=False)
    alone = table_metrics(np.zeros(40, int), log_proba, ("a", "b"))
    assert alone["auc"] is None
    assert alone["log_loss"]["value"] == pytest.approx(np.log(2))
    assert table_cells(alone)[2] == "–"


def test_areas_of_single_groups_are_those_of_events() -> None:
    rng = np.random.default_rng(5)
    positive, score = rng.random(800) < 0.3, rng.normal(size=800).round(1)
    area, error = area_under_curve(positive, score)
    grouped = area_under_curve(positive, score, groups=np.arange(800))
    assert grouped == pytest.approx((area, error), rel=3e-3)
    copies = np.repeat(np.arange(800), 4)
    assert area_under_curve(positive[copies], score[copies], groups=copies) == pytest.approx(grouped, rel=1e-9)


@pytest.mark.slow
def test_intervals_of_a_hundred_showers_used_ten_times_hold() -> None:
    """Of toys whose showers differ, and whose uses are alike: 95 % intervals hold in 93 to 98 of 100."""
    rng = np.random.default_rng(3)

    def toy(n_showers: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        group = np.repeat(np.arange(n_showers), 10)
        labels = group % 5
        found = labels + 0.7 * rng.standard_normal(n_showers)[group] + 0.5 * rng.standard_normal(len(group))
        return group, labels, np.clip(np.rint(found), 0, 4).astype(np.int64)

    _, labels, predicted = toy(40_000)
    accuracy, error = (labels == predicted).mean(), expected_fraction_error(confusion_matrix(labels, predicted))
    holds = []
    for _ in range(100):
        group, labels, predicted = toy(100)
        of_share = share_interval(labels == predicted, group)
        of_error = fraction_error_interval(labels, predicted, group)
        holds.append([of_share.low <= accuracy <= of_share.high, of_error.low <= error <= of_error.high])
    assert (np.mean(holds, axis=0) > 0.95 - 5 * 0.022).all(), "measured, of 200: 0.975 and 0.93"
