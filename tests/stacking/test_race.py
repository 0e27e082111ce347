"""Learners that the second level would leave out have one fit; what ships is the same to the byte."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from showerstack.runtime.files import read_json
from showerstack.stacking.config import TableConfig
from showerstack.stacking.prediction.predict import predict
from showerstack.stacking.prediction.run import load
from showerstack.stacking.second_level import MIN_RACED
from showerstack.stacking.training.train import stack
from tests.stacking.conftest import CLASSES, gaussians

LEARNERS = ("fake_linear", "fake_useless")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("race")
    points, labels = gaussians(3000, 1)
    frame = pl.DataFrame({"x": points[:, 0], "y": points[:, 1], "kind": [CLASSES[k] for k in labels]})
    frame.write_parquet(folder / "train.parquet")
    new, _ = gaussians(300, 2)
    pl.DataFrame({"x": new[:, 0], "y": new[:, 1]}).write_parquet(folder / "test.parquet")
    return folder


def config(run: Path, table: Path, **options: Any) -> TableConfig:
    standard = {
        "preset": "quick", "folds": 3, "repeats": 1, "holdout": 0.2, "workers": 1, "device": "cpu",
        "learners": LEARNERS, "test_table": table / "test.parquet",
    }  # fmt: skip
    return TableConfig(run=run, table=table / "train.parquet", label="kind", **{**standard, **options})


def folds_of(run: Path, learner: str) -> list[str]:
    return sorted(folder.name for folder in (run / "learners" / learner).iterdir())


def shipped(run: Path) -> bytes:
    return (run / "predictions.parquet").read_bytes()


@pytest.mark.usefixtures("fakes")
def test_a_useless_learner_leaves_after_one_fold_and_nothing_that_ships_changes(table: Path, tmp_path: Path) -> None:
    raced = stack(config(tmp_path / "raced", table))
    full = stack(config(tmp_path / "full", table, race="off"))
    assert folds_of(raced.run, "fake_useless") == ["fold-0"]
    assert folds_of(full.run, "fake_useless") == ["fold-0", "fold-1", "fold-2"]
    assert folds_of(raced.run, "fake_linear") == folds_of(full.run, "fake_linear") == ["fold-0", "fold-1", "fold-2"]
    assert raced.manifest.pool.weights == full.manifest.pool.weights
    # With one learner the stack is that learner: normalised once more, its last bits may differ.
    assert_frame_equal(*(pl.read_parquet(run / "predictions.parquet") for run in (raced.run, full.run)), abs_tol=1e-14)
    rows = {row.name: row for row in raced.manifest.learners}
    assert rows["fake_useless"].fits == 1
    assert rows["fake_useless"].left_the_race.name == "fake_useless"
    assert rows["fake_linear"].left_the_race is None
    # Chance is what it knows, on the holdout and on its fold.
    assert rows["fake_useless"].log_loss == pytest.approx(np.log(2), abs=0.02)
    assert rows["fake_useless"].single_fit_log_loss == pytest.approx(np.log(2), abs=0.02)
    assert any("left out after one fold: " in line and "fake_useless" in line for line in raced.manifest.remarks)
    assert not any("one fold" in line for line in full.manifest.remarks)
    log_proba, folds = load(raced.run).oof("fake_useless")
    known = ~np.isnan(log_proba[:, 0])
    np.testing.assert_array_equal(known, (folds == 0) | (folds < 0))


@pytest.mark.usefixtures("fakes")
def test_without_a_holdout_a_learner_that_leaves_is_scored_on_its_one_fold(table: Path, tmp_path: Path) -> None:
    raced = stack(config(tmp_path / "raced", table, holdout=0.0))
    full = stack(config(tmp_path / "full", table, holdout=0.0, race="off"))
    assert folds_of(raced.run, "fake_useless") == ["fold-0"]
    assert_frame_equal(*(pl.read_parquet(run / "predictions.parquet") for run in (raced.run, full.run)), abs_tol=1e-14)
    (remark,) = (line for line in raced.manifest.remarks if line.startswith("left out after one fold: fake_useless"))
    assert "they are scored on it alone" in remark
    opened = load(raced.run)
    log_proba, folds = opened.oof("fake_useless")
    np.testing.assert_array_equal(~np.isnan(log_proba[:, 0]), folds == 0)
    kinds = pl.read_parquet(table / "train.parquet")["kind"].to_list()
    labels = np.array([opened.task.classes.index(kind) for kind in kinds])[folds == 0]
    entry = next(row for row in raced.manifest.learners if row.name == "fake_useless")
    assert entry.log_loss == pytest.approx(-log_proba[folds == 0][np.arange(len(labels)), labels].mean(), rel=1e-12)
    assert entry.accuracy == pytest.approx((log_proba[folds == 0].argmax(axis=1) == labels).mean(), rel=1e-12)
    scores = opened.held_out_scores()["systems"]
    assert scores["fake_useless"]["log_loss"]["value"] == pytest.approx(entry.log_loss, rel=1e-12)
    reliability = raced.manifest.reliability
    counted = {name: sum(one.entries for one in diagram.calibrated.bins) for name, diagram in reliability.items()}
    assert counted["fake_useless"] == 2 * (folds == 0).sum(), "a probability of each class"
    assert counted["fake_linear"] == counted["stack"] == 2 * len(folds)
    everything = next(iter(predict(opened, table / "test.parquet", everything=True).pieces))
    np.testing.assert_array_equal(everything.by_name["fake_useless"], opened.test("fake_useless", "log_proba"))


@pytest.mark.usefixtures("fakes")
def test_an_ended_run_repeats_the_decision(table: Path, tmp_path: Path) -> None:
    options = config(tmp_path / "run", table)
    first = stack(options)
    expected, manifest = shipped(first.run), first.manifest
    for ended_at in ("fake_linear/fold-1", "fake_linear/fold-0", "fake_useless/fold-0"):
        shutil.rmtree(first.run / "learners" / ended_at, ignore_errors=True)
        (first.run / "checksums.json").unlink()
        again = stack(options)
        assert shipped(again.run) == expected
        assert folds_of(again.run, "fake_useless") == ["fold-0"]
        assert again.manifest.pool == manifest.pool


@pytest.mark.usefixtures("fakes")
def test_switched_off_later_the_other_fits_follow(table: Path, tmp_path: Path) -> None:
    run = stack(config(tmp_path / "run", table)).run
    kept = (run / "learners" / "fake_linear" / "fold-1" / "task.json").read_bytes()
    stack(config(run, table, race="off"))
    assert folds_of(run, "fake_useless") == ["fold-0", "fold-1", "fold-2"]
    assert (run / "learners" / "fake_linear" / "fold-1" / "task.json").read_bytes() == kept


@pytest.mark.usefixtures("fakes")
@pytest.mark.parametrize("options", [{"prune": 0.0}, {"race": "off"}, {"learners": ("fake_useless",)}])
def test_where_there_is_no_race_all_fits_are_done(options: dict[str, Any], table: Path, tmp_path: Path) -> None:
    run = stack(config(tmp_path / "run", table, **options)).run
    assert folds_of(run, "fake_useless") == ["fold-0", "fold-1", "fold-2"]


@pytest.mark.usefixtures("fakes")
@pytest.mark.parametrize(("groups_a_class", "left"), [(3 * MIN_RACED, True), (3 * MIN_RACED - 3, False), (6, False)])
def test_groups_decide_whether_there_is_a_race(groups_a_class: int, left: bool, table: Path, tmp_path: Path) -> None:
    frame = pl.read_parquet(table / "train.parquet").with_columns(
        pl.concat_str("kind", pl.int_range(pl.len()).over("kind") % groups_a_class).alias("shower")
    )
    frame.write_parquet(tmp_path / "train.parquet")
    options = config(tmp_path / "run", table, holdout=0.0, group="shower")
    stack(options.model_copy(update={"table": tmp_path / "train.parquet"}))
    assert folds_of(tmp_path / "run", "fake_useless") == [f"fold-{k}" for k in range(1 if left else 3)]


@pytest.mark.usefixtures("fakes")
def test_new_rows_are_predicted_by_every_system(table: Path, tmp_path: Path) -> None:
    run = stack(config(tmp_path / "run", table)).run
    opened = load(run)
    everything = next(iter(predict(opened, table / "test.parquet", everything=True).pieces))
    for name in (*LEARNERS, "stack"):
        stored = opened.test(name, "log_proba")
        np.testing.assert_array_equal(everything.by_name[name], stored)


@pytest.mark.usefixtures("fakes")
def test_a_learner_that_fails_in_its_first_fold_stays_a_failure(table: Path, tmp_path: Path) -> None:
    result = stack(config(tmp_path / "run", table, learners=(*LEARNERS, "fake_failing")))
    status = {row.name: row.status for row in result.manifest.learners}
    assert status == {**dict.fromkeys(LEARNERS, "ok"), "fake_failing": "failed"}
    assert read_json(result.run / "meta" / "stack.json")["raced"]
