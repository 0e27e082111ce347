"""What is judged is what ships: the average of fits, on events that no learner was trained on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from models.base.spec import LearnerSpec
from stacking.fit.folds import outer_holdout
from stacking.fit.tasks import FoldTask, outer_rows, split_rows
from stacking.inputs.events import TableEvents
from stacking.meta.gate import mean_and_error, standard_error
from stacking.meta.softmax import log_loss_per_event
from stacking.run.config import TableConfig
from stacking.train import StackResult, stack_table
from tests.stacking.conftest import CLASSES, gaussians
from tests.stacking.fakes import FAKES


def _table(file: Path, points: np.ndarray, labels: np.ndarray, **more: np.ndarray) -> Path:
    kinds = [CLASSES[k] for k in labels]
    pl.DataFrame({"x": points[:, 0], "y": points[:, 1], "kind": kinds, **more}).write_parquet(file)
    return file


def _stacked(folder: Path, n_train: int, learners: tuple[str, ...], **options: Any) -> tuple[StackResult, np.ndarray]:
    """Return a run on two Gaussians, and the classes of its 30,000 test rows as the run numbers them."""
    points, labels = gaussians(30_000, 22)
    test = _table(folder / "test.parquet", points, labels)
    train = _table(folder / "train.parquet", *gaussians(n_train, 21))
    config = TableConfig(
        run=folder / "run", table=train, label="kind", test_table=test, preset="quick", workers=1, device="cpu",
        fast=False, learners=learners, **({"repeats": 1, "holdout": 0.1} | options),
    )  # fmt: skip
    return stack_table(config), 1 - labels


@pytest.mark.usefixtures("fakes")
def test_the_stated_gain_is_the_shipped_gain(tmp_path: Path) -> None:
    # Two equally good learners whose fits scatter: a stack of single fits gains by averaging two of them, but what
    # ships are averages of five fits, which leave a fifth of that.
    learners = ("fake_noisy", "fake_noisy_twin")
    result, labels = _stacked(tmp_path, 40_000, learners, folds=5, metas=("average", "log_pool"))
    gate = result.manifest["gate"]
    test = {}
    for name in (gate["best_learner"], "stack"):
        with np.load(result.run / "test" / f"{name}.npz", allow_pickle=False) as stored:
            test[name] = log_loss_per_event(stored["log_proba"], labels)
    shipped = test[gate["best_learner"]] - test["stack"]
    error = standard_error(shipped, None)
    assert abs(gate["gain"] - shipped.mean()) < 3 * np.hypot(error, gate["standard_error"])
    assert abs(gate["holdout_gain"] - shipped.mean()) < 3 * np.hypot(error, gate["holdout_standard_error"])
    assert gate["standard_error"] < gate["holdout_standard_error"], "single fits out-of-fold sharpen the answer"
    assert gate["single_fit_gain"] > 2.5 * shipped.mean(), "which single fits would have overstated"
    assert gate["best_learner"] == "average", "of two that are alike nothing more than the average is needed"
    assert result.manifest["judged"] == {"on": "outer holdout", "events": 4000, "fits": 5}
    assert result.manifest["data"]["n_holdout"] == 4000
    rows = {row["name"]: row for row in result.manifest["learners"]}
    assert rows["fake_noisy"]["single_fit_log_loss"] > rows["fake_noisy"]["log_loss"] + 0.02


@pytest.mark.usefixtures("fakes")
def test_few_events_fall_back_to_single_fits_with_a_remark(tmp_path: Path) -> None:
    result, _ = _stacked(tmp_path, 300, ("fake_linear", "fake_useless"), folds=3)
    assert result.manifest["judged"] == {"on": "out-of-fold", "events": 300, "fits": 1}
    assert result.manifest["gate"]["single_fit_gain"] is None
    assert "too few events for an outer holdout" in result.manifest["remarks"][0]


@pytest.mark.usefixtures("fakes")
def test_no_fit_sees_the_holdout_and_its_groups_stay_whole(tmp_path: Path) -> None:
    result, _ = _stacked(tmp_path, 6000, ("fake_linear",), folds=3, holdout=0.2, repeats=2)
    events = TableEvents(result.run / "table" / "train.parquet", ("x", "y"), "")
    task = FoldTask(result.run, FAKES["fake_linear"], 0, 3, events, None, events.columns, CLASSES)
    outer = outer_rows(task)
    assert len(outer) == 1200
    for fold in range(6):
        part = replace(task, fold=fold)
        assert not np.isin(np.concatenate(split_rows(part)), outer).any()
    stack = pl.read_parquet(result.run / "oof" / "stack.parquet")
    np.testing.assert_array_equal(np.flatnonzero(stack["fold"].to_numpy() == -1), outer)
    assert stack["logp_far"].is_finite().all(), "the holdout is predicted too"


@pytest.mark.usefixtures("fakes")
def test_a_part_of_the_rows_is_first_of_those_that_are_judged(tmp_path: Path) -> None:
    result, _ = _stacked(tmp_path, 6000, ("fake_linear",), folds=3, holdout=0.2)
    events = TableEvents(result.run / "table" / "train.parquet", ("x", "y"), "")
    judged = np.random.default_rng(4).random(6000) < 0.25
    np.save(result.run / "judged.npy", judged)
    task = FoldTask(result.run, FAKES["fake_linear"], 0, 3, events, None, events.columns, CLASSES)
    everyone, valid, _ = split_rows(task)
    assert judged[valid].all()
    few = split_rows(replace(task, rows=500))[0]
    assert len(few) == 500
    assert judged[few].all(), "there are enough of the kind"
    many = split_rows(replace(task, rows=2000))[0]
    assert len(many) == 2000
    assert np.isin(everyone[judged[everyone]], many).all(), "all of the kind, others fill up"
    assert np.isin(many, everyone).all()


@pytest.mark.usefixtures("fakes")
@pytest.mark.parametrize(
    "spec", [LearnerSpec("logit", "models.tables.logit:QuadraticLogit", "", "all"),
             LearnerSpec("forest", "models.tables.sklearn:RandomForest", "", "all")],
    ids=["logit", "forest"],
)  # fmt: skip
def test_a_learner_with_a_cap_on_events_is_given_those_that_are_judged(tmp_path: Path, spec: LearnerSpec) -> None:
    result, _ = _stacked(tmp_path, 6000, ("fake_linear",), folds=3, holdout=0.2)
    events = TableEvents(result.run / "table" / "train.parquet", ("x", "y"), "")
    judged = np.random.default_rng(4).random(6000) < 0.25
    np.save(result.run / "judged.npy", judged)
    task = FoldTask(result.run, spec, 0, 3, events, None, events.columns, CLASSES)
    everyone, valid, held_out = split_rows(replace(task, settings={"max_events": 6000}))
    for most in (300, 1500):
        train, same_valid, same_held_out = split_rows(replace(task, settings={"max_events": most}))
        of_kind = int(judged[everyone].sum())
        assert len(train) == max(most, of_kind), "the cap is filled with others, or drawn from those of the kind"
        assert judged[train].sum() == of_kind
        np.testing.assert_array_equal(valid, same_valid)
        np.testing.assert_array_equal(held_out, same_held_out)


def test_holdout_is_stratified_and_takes_whole_groups_of_judged_events() -> None:
    rng = np.random.default_rng(0)
    labels, energy, judged = rng.integers(0, 3, 9000), rng.uniform(14.5, 17, 9000), rng.random(9000) < 0.6
    outer, remark = outer_holdout(judged, labels, 0.15, seed=3, energy=energy)
    assert not remark
    assert not outer[~judged].any()
    assert outer.sum() == pytest.approx(0.15 * judged.sum(), abs=1)
    for k in range(3):
        for low in (14.5, 15.0, 15.5, 16.0, 16.5):
            cell = judged & (labels == k) & (energy >= low) & (energy < low + 0.5)
            assert outer[cell].sum() == pytest.approx(0.15 * cell.sum(), abs=1.01)
    groups = np.arange(9000) // 3
    together, _ = outer_holdout(judged, labels, 0.15, seed=3, energy=energy, groups=groups)
    assert set(np.bincount(groups[together]).tolist()) == {0, 3}
    assert outer_holdout(judged, labels, 0.0, seed=3)[0].sum() == 0
    assert "without an outer holdout" in outer_holdout(judged, labels, 0.0, seed=3)[1]
    assert "too few events" in outer_holdout(judged, labels, 0.05, seed=3)[1]


def test_control_is_unbiased_and_its_error_covers() -> None:
    rng = np.random.default_rng(1)
    pulls, errors, plain = [], [], []
    for _ in range(300):
        common, inner = rng.normal(size=400), rng.normal(size=4000)
        values = 0.2 + common + 0.3 * rng.normal(size=400)
        mean, error = mean_and_error(values, None, (2 * common, 2 * inner))
        pulls.append((mean - 0.2) / error)
        errors.append(error)
        plain.append(standard_error(values, None))
    assert abs(np.mean(pulls)) < 0.2
    assert 0.9 < np.std(pulls) < 1.1
    assert np.mean(errors) < 0.5 * np.mean(plain)
