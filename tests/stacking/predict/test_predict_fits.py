"""Predictions of saved fits, in pieces and by several processes: the bits of training, each file opened once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stacking
import stacking.inputs.events
from models import isolated
from models.base.learner import Batch
from models.isolated import Isolated
from models.tables.lightgbm import LightGBM
from stacking import saved_fits
from stacking.predict import predict_table
from stacking.run.config import TableConfig
from stacking.train import stack_table


def _counted(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[Any]:
    """Return a list that grows by the first argument with every call of a method."""
    seen: list[Any] = []
    real = getattr(owner, name)

    def counting(self: Any, *arguments: Any, **options: Any) -> Any:
        seen.append(arguments[0])
        return real(self, *arguments, **options)

    monkeypatch.setattr(owner, name, counting)
    return seen


def test_pieces_and_processes_change_no_bit_and_open_each_file_once(
    two_gaussians: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, test = two_gaussians
    small = {"lightgbm": {"rounds": 5}, "quadratic_logit": {}}
    config = TableConfig(repeats=1, holdout=0.1,
        run=tmp_path / "run", table=train, test_table=test, label="kind", learners=tuple(small), settings=small,
        folds=2, metas=("average",), preset="quick", workers=1, fast=False,
    )  # fmt: skip
    expected = stack_table(config).predictions
    assert expected is not None
    bundle = stacking.load(tmp_path / "run")
    opened = _counted(monkeypatch, Isolated, "load")
    monkeypatch.setattr(stacking.inputs.events, "PIECE_EVENTS", 300)  # 800 rows: three pieces
    found, _ = predict_table(bundle, test)
    np.testing.assert_array_equal(found.log_proba, expected.log_proba)
    assert len(opened) == len(set(opened)) == 2 * len(bundle.chain.needed), "few events: one process opens each file"
    opened.clear()
    monkeypatch.setattr("stacking.saved_fits.PROCESS_PREDICTIONS", 100)
    found, _ = predict_table(bundle, test)
    np.testing.assert_array_equal(found.log_proba, expected.log_proba)
    assert len(opened) >= len(set(opened)) == 2 * len(bundle.chain.needed)
    opened.clear()
    working = set()
    real = saved_fits._predict

    def predict(reader: Any, *rest: Any) -> None:
        working.add(id(reader))
        real(reader, *rest)

    monkeypatch.setattr(saved_fits, "_predict", predict)
    bundle = stacking.load(tmp_path / "run", trusted=True)
    for workers in (1, 3):
        working.clear()
        monkeypatch.setattr("joblib.cpu_count", lambda workers=workers: workers)
        found, _ = predict_table(bundle, test)
        np.testing.assert_array_equal(found.log_proba, expected.log_proba)
        assert len(working) == workers, "trusted fits are asked by as many threads as there would be processes"
    assert not opened, "none in another process"


def test_a_process_closes_learners_that_memory_has_no_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    table = np.asfortranarray(rng.normal(size=(400, 3)), dtype=np.float32)
    events = Batch(np.arange(400), table, ("a", "b", "c"), labels=np.arange(400) % 2)
    folders = [tmp_path / name for name in "xyz"]
    learners = [LightGBM(("near", "far"), {"rounds": 3}).fit(events, events, seed=seed) for seed in range(3)]
    for learner, folder in zip(learners, folders, strict=True):
        learner.save(folder)
    largest = max(sum(file.stat().st_size for file in folder.iterdir()) for folder in folders)
    monkeypatch.setattr(isolated, "HELD_BYTES", int(2.5 * largest))
    with Isolated() as reader:
        asked: list[str] = []
        real = reader._exchange

        def exchange(folder: Path, request: dict[str, Any], *rest: Any) -> Any:
            asked.append(f"{request['do']} {Path(request['folder']).name}")
            return real(folder, request, *rest)

        monkeypatch.setattr(reader, "_exchange", exchange)
        for learner, folder in zip([*learners, learners[0]], [*folders, folders[0]], strict=True):
            answer = reader.predict(folder, events, 2)
            np.testing.assert_array_equal(answer, learner.predict_log_proba(events))
    assert [one for one in asked if not one.startswith("predict")] == [
        "load x", "load y", "close x", "load z", "close y", "load x",
    ]  # fmt: skip
