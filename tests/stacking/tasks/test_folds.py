"""Folds are balanced, seeded, and never split a shower."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.errors import InputError
from stacking.fit.folds import LG_ENERGY_EDGES, assign_folds, early_stopping_rows, outer_holdout


def _events(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.choice(3, n, p=[0.7, 0.2, 0.1]), rng.uniform(14.5, 17.5, n)


@given(seed=st.integers(0, 10_000), n_folds=st.integers(2, 8))
@settings(max_examples=25, deadline=None)
def test_classes_and_energy_bins_are_dealt_evenly(seed: int, n_folds: int) -> None:
    labels, energy = _events(600, seed)
    folds = assign_folds(labels, n_folds, seed=seed, energy=energy)
    bins = np.digitize(energy, LG_ENERGY_EDGES)
    for k in np.unique(labels):
        assert np.ptp(np.bincount(folds[labels == k], minlength=n_folds)) <= 1
        for b in np.unique(bins[labels == k]):
            cell = np.bincount(folds[(labels == k) & (bins == b)], minlength=n_folds)
            assert np.ptp(cell) <= 1
    np.testing.assert_array_equal(folds, assign_folds(labels, n_folds, seed=seed, energy=energy))


def test_another_seed_deals_differently() -> None:
    labels, energy = _events(600, 0)
    assert (
        assign_folds(labels, 3, seed=1, energy=energy) != assign_folds(labels, 3, seed=2, energy=energy)
    ).mean() > 0.4


@given(seed=st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_a_shower_never_spans_folds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    showers, _ = _events(200, seed)
    groups = np.repeat(np.arange(200) * 17, rng.integers(1, 6, 200))
    order = rng.permutation(len(groups))
    labels = np.repeat(showers, np.bincount(groups // 17))[order]
    groups = groups[order]
    folds = assign_folds(labels, 4, seed=seed, groups=groups)
    for group in np.unique(groups):
        assert len(np.unique(folds[groups == group])) == 1
    training = np.flatnonzero(folds != 0)
    stop = early_stopping_rows(training, labels, 0.1, seed=seed, groups=groups)
    assert not set(groups[training[stop]]) & set(groups[training[~stop]])
    assert 0.03 < stop.mean() < 0.25


def test_too_few_events_of_a_class_are_refused_by_name() -> None:
    labels = np.array([0] * 10 + [1] * 2)
    with pytest.raises(InputError, match="'iron' has 2 events, fewer than the 3 folds"):
        assign_folds(labels, 3, seed=1, classes=("proton", "iron"))
    with pytest.raises(InputError, match="'iron' has 0 events"):
        assign_folds(labels[:10], 3, seed=1, classes=("proton", "iron"))


def test_groups_count_as_one_event_each() -> None:
    labels = np.repeat([0, 1], 10)
    groups = np.concatenate([np.arange(10), np.repeat([100, 101], 5)])
    with pytest.raises(InputError, match="2 groups of events"):
        assign_folds(labels, 3, seed=1, groups=groups)


def test_a_class_of_one_shower_is_learned_and_does_not_stop() -> None:
    labels = np.repeat([0, 1, 2], [300, 300, 6])
    groups = np.concatenate([np.arange(600), np.full(6, 1_000)])
    for seed in range(20):
        stop = early_stopping_rows(np.arange(606), labels, 0.5, seed=seed, groups=groups)
        assert not stop[labels == 2].any()
        assert 0.4 < stop[labels < 2].mean() < 0.6


@pytest.mark.parametrize("fraction", [0.001, 0.1, 0.3, 0.4, 0.499])
def test_any_share_of_the_rows_stops_training(fraction: float) -> None:
    labels = np.arange(20_000) % 2
    stop = early_stopping_rows(np.arange(20_000), labels, fraction, seed=1)
    assert stop.mean() == pytest.approx(fraction, abs=1e-4)


def test_a_group_of_several_classes_counts_for_the_rarest() -> None:
    # 300 patients of three visits, healthy at the first; every tenth is ill at the last
    groups = np.repeat(np.arange(300), 3)
    labels = np.where((groups % 10 == 0) & (np.arange(900) % 3 == 2), 1, 0)
    folds = assign_folds(labels, 5, seed=1, groups=groups, classes=("healthy", "ill"))
    assert np.bincount(folds[labels == 1]).tolist() == [6] * 5
    assert all(len(np.unique(folds[groups == g])) == 1 for g in range(300))
    with pytest.raises(InputError, match="class 'ill' has 30 groups of events, fewer than the 31 folds"):
        assign_folds(labels, 31, seed=1, groups=groups, classes=("healthy", "ill"))


def test_too_few_groups_leave_no_holdout_instead_of_failing_after_training() -> None:
    groups, labels = np.arange(6000) // 100, np.arange(6000) // 3000
    outer, remark = outer_holdout(np.ones(6000, bool), labels, 0.1, seed=1, groups=groups)
    assert not outer.any()
    assert "too few groups for an outer holdout (3 of one class, fewer than 5)" in remark
