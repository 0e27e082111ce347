"""A time limit: learners by their worth, each told when to stop, the best so far kept; and memory is bounded."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl
import pytest
import torch

import showerstack.stacking.config
import showerstack.stacking.tables.data
from showerstack.models.base.learner import Batch, Enough
from showerstack.models.networks.data import EventTensors, GridSource
from showerstack.models.networks.loop import BLOCK_EVENTS, BLOCKS_AT_ONCE, _epoch_orders, shuffled_in_blocks
from showerstack.models.registry import create, spec
from showerstack.models.tables.logit import QuadraticLogit
from showerstack.runtime.context import Context, Progress
from showerstack.runtime.cost import in_words, now_s, seconds_of
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import read_json
from showerstack.stacking.config import TableConfig
from showerstack.stacking.folder import RunFolder
from showerstack.stacking.tables.data import ROW_GROUP, TableEvents, write_table
from showerstack.stacking.training import fits as tasks
from showerstack.stacking.training.budget import (
    FIT_SHARE,
    LEARNER_SHARE,
    FitTime,
    TimeLimitReached,
    kept_late,
    order_in_limit,
    share_of_time,
)  # fmt: skip
from showerstack.stacking.training.train import stack
from tests.stacking.conftest import CLASSES, gaussians
from tests.stacking.fakes import FAKES, Linear


def test_lengths_of_time() -> None:
    assert [seconds_of(text) for text in ("4h", "30m", "90s", "1h30m", "1d", "0.5h")] == [
        14400, 1800, 90, 5400, 86400, 1800,
    ]  # fmt: skip
    for wrong in ("", "4", "h", "4 hours", "-1h", "0s"):
        with pytest.raises(InputError, match="write it like 4h"):
            seconds_of(wrong)
    with pytest.raises(InputError, match="at most 1000d"):
        seconds_of("99999999999999999999d")
    assert [in_words(s) for s in (5, 600, 9000, 360_000)] == ["5 s", "10 min", "2.5 h", "100 h"]


def test_one_learner_of_those_that_stay_is_never_given_up() -> None:
    names = ("pretrained", "mlp", "lightgbm", "quadratic_logit")
    assert kept_late([spec(name) for name in names]) == "quadratic_logit"
    assert kept_late([spec(name) for name in ("lightgbm", "lenet")]) == "lightgbm"
    assert kept_late([spec("lenet")]) == "lenet"


@pytest.mark.parametrize("name", ["lightgbm", "xgboost", "catboost", "hist_boosting", "mlp"])
def test_a_learner_that_is_told_to_end_before_its_first_round_has_a_result(name: str) -> None:
    points, labels = gaussians(600, 1)
    events = Batch(np.arange(600), np.asfortranarray(points), ("x", "y"), labels=labels.astype(np.int64))

    def enough(*values: object) -> None:
        raise Enough

    learner = create(spec(name), CLASSES, overrides={})
    learner.fit(events.take(np.arange(400)), events.take(np.arange(400, 600)), seed=1, progress=enough)
    assert np.isfinite(learner.predict_log_proba(events)).all()


def test_learners_go_by_their_worth() -> None:
    names = ("lightgbm", "lenet", "table.catboost", "quadratic_logit", "pretrained", "mlp")
    ordered = sorted(map(spec, names), key=order_in_limit)
    assert [one.name for one in ordered] == [
        "pretrained", "mlp", "table.catboost", "lightgbm", "quadratic_logit", "lenet",
    ]  # fmt: skip


@pytest.mark.parametrize(("workers", "rounds"), [(1, [0, 1, 2]), (2, [0, 0, 1]), (3, [0, 0, 0]), (4, [0, 0, 0])])
def test_fits_of_a_learner_share_its_time_by_rounds(workers: int, rounds: list[int]) -> None:
    """Each round that uses its share to the full leaves as much to the next: together they take the learner's share."""
    left, used = 1.0, []
    for k in range(max(rounds) + 1):
        fold = rounds.index(k)
        part = share_of_time(fold, 3, workers, last=False) / FIT_SHARE / LEARNER_SHARE
        used.append(part * left)
        left -= part * left
    assert sum(used) == pytest.approx(1.0)
    assert used == pytest.approx([1 / len(used)] * len(used))
    assert share_of_time(2, 3, 1, last=True) == FIT_SHARE


SETTINGS: dict[str, dict[str, Any]] = {
    "lightgbm": {"rounds": 400}, "xgboost": {"rounds": 400}, "catboost": {"rounds": 400},
    "random_forest": {"trees": 400}, "mlp": {"epochs": 50}, "quadratic_logit": {},
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
def test_a_learner_that_is_told_to_end_keeps_its_best(name: str) -> None:
    points, labels = gaussians(1_500, 1)
    events = Batch(np.arange(1_500), np.asfortranarray(points), ("x", "y"), labels=labels.astype(np.int64))
    train, valid = events.take(np.arange(1_200)), events.take(np.arange(1_200, 1_500))
    calls: list[float] = []

    def enough(done: float, total: float, note: str = "") -> None:
        calls.append(done)
        if len(calls) >= (2 if name == "quadratic_logit" else 12):
            raise Enough

    learner = create(spec(name), CLASSES, overrides=SETTINGS[name]).fit(train, valid, seed=1, progress=enough)
    assert len(calls) <= 14
    log_proba = learner.predict_log_proba(valid)
    right = np.mean(log_proba.argmax(axis=1) == valid.labels)
    assert right > 0.6, "0.77 is the best that can be"


def _table(folder: Path, n: int) -> Path:
    points, labels = gaussians(n, 5)
    frame = pl.DataFrame({"x": points[:, 0], "y": points[:, 1], "kind": [CLASSES[k] for k in labels]})
    frame.write_parquet(folder / "train.parquet")
    return folder / "train.parquet"


def _config(folder: Path, n: int = 2400, **options: object) -> TableConfig:
    standard = {
        "run": folder / "run", "table": _table(folder, n), "label": "kind", "preset": "quick", "folds": 3,
        "workers": 1, "learners": ("lightgbm", "random_forest"), "pools": ("log_pool",), "device": "cpu",
        "repeats": 1, "holdout": 0.1, "settings": {"lightgbm": {"rounds": 40}, "random_forest": {"trees": 20}},
    }  # fmt: skip
    return TableConfig(**(standard | options))


class Endless(Linear):
    """Learns until it is told that it is enough."""

    def fit(
        self, train: Batch, valid: Batch, *, seed: int, device: str = "cpu", progress: Progress | None = None
    ) -> Self:
        assert progress is not None
        try:
            while True:
                time.sleep(0.02)
                progress(1, 2)
        except Enough:
            return super().fit(train, valid, seed=seed)


@pytest.mark.slow
def test_a_run_under_a_limit_ends_in_time_with_the_best_so_far(
    tmp_path: Path, fakes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = FAKES["fake_linear"].__class__("fake_endless", f"{__name__}:Endless", "", "scalars")
    monkeypatch.setitem(showerstack.models.registry.LEARNERS, "fake_endless", endless)
    learners = ("fake_endless", "fake_useless")
    began = now_s()
    config = _config(tmp_path, n=600, learners=learners, settings={}, time_limit="20s", folds=5, repeats=2)
    result = stack(config, Context(began=began))
    assert now_s() - began < 40, "twice the limit: the machine may be busy"
    assert {row.name: row.status for row in result.manifest.learners} == dict.fromkeys(learners, "ok")
    assert (result.manifest.config.folds, result.manifest.identity.repeats) == (3, 1)
    took = [step.wall_s for step in result.manifest.steps if step.learner == "fake_endless"]
    assert len(took) == 3
    assert 2.5 < sum(took) < 20
    assert [line for line in result.manifest.remarks if "ended fits of fake_endless early" in line]


def test_what_is_late_is_left_out_and_one_learner_ships(tmp_path: Path, fakes: dict[str, Any]) -> None:
    """A limit that is over before the fits begin: one learner is finished all the same, the others are not begun."""
    config = _config(tmp_path, n=600, learners=("fake_linear", "fake_useless"), settings={}, time_limit="1s")
    result = stack(config, Context(began=now_s() - 100))
    status = {row.name: row.status for row in result.manifest.learners}
    assert sorted(status.values()) == ["failed", "ok"]
    error = next(row.error for row in result.manifest.learners if row.status == "failed")
    assert "the time limit of the run left too little for it" in error
    # With a new limit the same command trains what was late.
    (tmp_path / "run" / "checksums.json").unlink()
    again = stack(config, Context(began=now_s() + 100))
    assert [row.status for row in again.manifest.learners] == ["ok", "ok"]


def test_predictions_obey_the_deadline(tmp_path: Path) -> None:
    events = TableEvents(_table(tmp_path, 100), ("x", "y"), "hash")
    entry, rows = FAKES["fake_linear"], np.arange(50)
    task = tasks.FoldTask(RunFolder(tmp_path), entry, 0, 2, events, None, events.columns, CLASSES)
    batch = replace(events.batch(rows, events.columns, grids=False), labels=rows % 2)
    learner = create(entry, CLASSES).fit(batch, batch, seed=1)
    with pytest.raises(TimeLimitReached, match="time limit"):
        tasks.predict(replace(task, time=FitTime(now_s() - 1)), learner, events, rows)
    never = tasks.predict(replace(task, time=FitTime(now_s() - 1, gives_up=False)), learner, events, rows)
    assert never.log_proba is not None
    assert never.log_proba.shape == (50, 2)


def test_rows_are_limited_where_asked_and_where_there_are_very_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(showerstack.stacking.config, "MOST_ROWS", 1000)
    result = stack(_config(tmp_path, rows={"lightgbm": 400}))
    counts = {
        name: read_json(result.run / "learners" / f"table.{name}" / "fold-0" / "task.json")["n_train"]
        for name in ("lightgbm", "random_forest")
    }
    assert counts == {"lightgbm": 400, "random_forest": 1000}


def test_each_row_group_is_read_once_and_only_where_it_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = 3 * ROW_GROUP + 1000
    frame = pl.DataFrame({"a": np.arange(n, dtype=np.float32), "b": np.arange(n, dtype=np.float32) % 7})
    write_table(tmp_path / "t.parquet", frame)
    read: list[int] = []
    real = showerstack.stacking.tables.data.read_row_group

    def counting(file: Path, number: int, columns: tuple[str, ...]) -> pl.DataFrame:
        read.append(number)
        result = real(file, number, columns)
        assert len(result) <= ROW_GROUP
        return result

    monkeypatch.setattr(showerstack.stacking.tables.data, "read_row_group", counting)
    events = TableEvents(tmp_path / "t.parquet", ("a", "b"), "hash")
    rng = np.random.default_rng(0)
    for rows, groups in (
        (np.arange(10), [0]),
        (np.array([3 * ROW_GROUP + 5, 2, ROW_GROUP - 1]), [0, 3]),
        (rng.permutation(n), [0, 1, 2, 3]),
    ):
        read.clear()
        batch = events.batch(rows, ("b", "a"), grids=False)
        assert read == groups
        assert batch.table is not None
        np.testing.assert_array_equal(batch.table, np.column_stack([rows % 7, rows]).astype(np.float32))


def test_the_quadratic_logit_validates_on_few_and_predicts_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    table = np.asfortranarray(rng.normal(size=(40_000, 3)), dtype=np.float32)
    events = Batch(np.arange(40_000), table, ("a", "b", "c"), labels=(table[:, 0] * table[:, 1] > 0).astype(np.int64))
    visited: list[int] = []
    real = QuadraticLogit._terms

    def counting(self: QuadraticLogit, part: np.ndarray) -> np.ndarray:
        visited.append(len(part))
        return real(self, part)

    monkeypatch.setattr(QuadraticLogit, "_terms", counting)
    learner = QuadraticLogit(("x", "y"), {"max_events": 8000}).fit(events, events, seed=1)
    assert max(visited) <= 8000
    assert visited[1] <= 2000
    log_proba = learner.predict_log_proba(events)
    assert max(visited) <= 1 << 14
    assert np.mean(np.argmax(log_proba, axis=1) == events.labels) > 0.95


def test_grids_beyond_memory_are_visited_block_by_block_all_of_them_once() -> None:
    n = (2 * BLOCKS_AT_ONCE + 5) * BLOCK_EVENTS + 17
    order = shuffled_in_blocks(n, np.random.default_rng(1))
    np.testing.assert_array_equal(np.sort(order), np.arange(n))
    first = order[: BLOCK_EVENTS * (BLOCKS_AT_ONCE - 1)]
    assert len(np.unique(first // BLOCK_EVENTS)) <= BLOCKS_AT_ONCE
    assert abs(np.corrcoef(np.arange(len(first)), first)[0, 1]) < 0.02, "mixed inside"
    grids = np.zeros((10_000, 4, 4, 2), dtype=np.float16)
    inputs = torch.zeros(10_000, 1)

    def spread(resident: bool) -> int:
        source = GridSource(grids, np.arange(10_000), torch.device("cpu"), resident=resident)
        batch = _epoch_orders(EventTensors(inputs, source), 40, seed=1, epoch=0)[0]
        return len(np.unique(batch // BLOCK_EVENTS))

    assert spread(True) == spread(False) == 3, "few events are all in one group of blocks"
