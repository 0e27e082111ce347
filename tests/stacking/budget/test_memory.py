"""Memory: estimated before a run begins, bounded where a learner does not need the whole table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

import stacking.inputs.events
from models.base.learner import Batch
from models.networks.data import EventTensors, GridSource
from models.networks.loop import BLOCK_EVENTS, BLOCKS_AT_ONCE, _epoch_orders, shuffled_in_blocks
from models.registry import spec
from models.tables.logit import QuadraticLogit
from stacking.budget import LIBRARIES, available_bytes, estimated
from stacking.inputs.events import ROW_GROUP, TableEvents
from stacking.inputs.tables import write_table

GB = 1_000_000_000


def test_each_row_group_is_read_once_and_only_where_it_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = 3 * ROW_GROUP + 1000
    frame = pl.DataFrame({"a": np.arange(n, dtype=np.float32), "b": np.arange(n, dtype=np.float32) % 7})
    write_table(tmp_path / "t.parquet", frame)
    read: list[int] = []
    real = stacking.inputs.events.read_row_group

    def counting(file: Path, number: int, columns: tuple[str, ...]) -> pl.DataFrame:
        read.append(number)
        found = real(file, number, columns)
        assert len(found) <= ROW_GROUP
        return found

    monkeypatch.setattr(stacking.inputs.events, "read_row_group", counting)
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


def test_what_does_not_fit_is_said_with_the_smallest_change_that_does() -> None:
    specs = [(spec(name), 60) for name in ("lightgbm", "catboost", "mlp")]
    need = estimated(specs, 5_000_000, 5)
    assert need.task["catboost"] == LIBRARIES + 5_000_000 * 60 * 24
    assert need.remark(2, 40 * GB) is None
    assert need.remark(2, None) is None
    assert "--workers 1 fits" in str(need.remark(2, 12 * GB))
    short = str(need.remark(2, 6 * GB))
    assert "catboost" in short
    assert "--workers 1 --learners lightgbm,mlp fits" in short
    assert "give fewer events" in str(need.remark(2, GB))
    small = estimated(specs, 5_000_000, 5, rows={"catboost": 100_000})
    assert small.task["catboost"] < GB
    found = available_bytes()
    assert found is None or found > 10_000_000


def test_the_quadratic_logit_validates_on_few_and_predicts_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    table = np.asfortranarray(rng.normal(size=(40_000, 3)), dtype=np.float32)
    events = Batch(np.arange(40_000), table, ("a", "b", "c"), labels=(table[:, 0] * table[:, 1] > 0).astype(np.int64))
    seen: list[int] = []
    real = QuadraticLogit._terms

    def counting(self: QuadraticLogit, part: np.ndarray) -> np.ndarray:
        seen.append(len(part))
        return real(self, part)

    monkeypatch.setattr(QuadraticLogit, "_terms", counting)
    learner = QuadraticLogit(("x", "y"), {"max_events": 8000}).fit(events, events, seed=1)
    assert max(seen) <= 8000
    assert seen[1] <= 2000
    log_proba = learner.predict_log_proba(events)
    assert max(seen) <= 1 << 14
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
