"""The student of ``predict --fast``: close to what ships, honest about its cost, streamed, stored without pickle."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import stacking
import stacking.inputs.events
from models.base.learner import Batch
from models.networks.physics import TabularMLP
from runtime.arrays import write_frames, write_pieces
from runtime.checksums import CHECKSUMS_FILE
from runtime.errors import InputError
from scoring.metrics.paired import paired_log_loss
from stacking.inputs.events import TableEvents
from stacking.predict import predict_table, predict_to_file
from stacking.run.chain import STUDENT
from stacking.run.config import TableConfig
from stacking.train import StackResult, stack_table
from tests.stacking.conftest import CLASSES, bayes_log_proba, gaussians

SMALL: dict[str, dict[str, object]] = {"lightgbm": {"rounds": 30}, "quadratic_logit": {}}


def _run(folder: Path, n_train: int, **options: object) -> StackResult:
    folder.mkdir(exist_ok=True)
    points, labels = gaussians(n_train, 5)
    frame = pl.DataFrame({"x": points[:, 0], "y": points[:, 1], "kind": [CLASSES[k] for k in labels]})
    frame.write_parquet(folder / "train.parquet")
    standard = {
        "run": folder / "run", "table": folder / "train.parquet", "label": "kind", "preset": "quick", "folds": 3,
        "workers": 1, "learners": tuple(SMALL), "settings": SMALL, "metas": ("log_pool",), "device": "cpu",
        "repeats": 1, "holdout": 0.1,
    }  # fmt: skip
    return stack_table(TableConfig(**(standard | options)))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> StackResult:
    """A run with an outer holdout."""
    return _run(tmp_path_factory.mktemp("fast"), 6000)


@pytest.fixture
def new_rows(tmp_path: Path) -> tuple[Path, np.ndarray, np.ndarray]:
    """Rows to be predicted, their classes as the run numbers them, and the exact posterior."""
    points, labels = gaussians(20_000, 6)
    pl.DataFrame({"x": points[:, 0], "y": points[:, 1]}).write_parquet(tmp_path / "new.parquet")
    return tmp_path / "new.parquet", 1 - labels, bayes_log_proba(points)[:, ::-1]


def test_stated_cost_is_that_on_new_rows(finished: StackResult, new_rows: tuple[Path, np.ndarray, np.ndarray]) -> None:
    file, labels, exact = new_rows
    record = finished.manifest["fast"]
    assert record["judged_on"] == "outer holdout"
    assert record["judged_events"] == 600
    bundle = stacking.load(finished.run, trusted=True)
    whole, fast = (predict_table(bundle, file, fast=fast)[0] for fast in (False, True))
    true = paired_log_loss(labels, fast.log_proba, whole.log_proba)
    stated = record["log_loss"]
    assert abs(true.difference - stated["difference"]) < 3 * np.hypot(true.standard_error, stated["standard_error"])
    assert paired_log_loss(labels, fast.log_proba, exact).difference < 0.02, "it has learned the known posterior"
    assert f"{stated['difference']:+.4f}" in fast.remarks[0]
    assert whole.remarks == ()
    assert fast.config_hash != whole.config_hash, "nobody takes its predictions for those that the run was judged by"


def test_without_a_holdout_it_is_judged_by_students_that_have_not_seen_the_events(tmp_path: Path) -> None:
    record = _run(tmp_path, 900, holdout=0.0, learners=("quadratic_logit",), settings={}).manifest["fast"]
    assert (record["judged_on"], record["judged_events"], record["learned_from"]) == ("out-of-fold", 900, 900)
    assert -0.05 < record["log_loss"]["difference"] < 0.1


def test_no_student_unless_wanted_and_none_is_told(
    tmp_path: Path, new_rows: tuple[Path, np.ndarray, np.ndarray]
) -> None:
    result = _run(tmp_path / "run", 900, learners=("quadratic_logit",), settings={}, fast=False)
    assert result.manifest["fast"] is None
    assert not (result.run / STUDENT).exists()
    with pytest.raises(InputError, match="has no student for --fast"):
        predict_to_file(result.run, new_rows[0], tmp_path / "new.csv", fast=True)


def test_pieces_and_processes_change_no_bit(
    finished: StackResult, new_rows: tuple[Path, np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    points, _ = gaussians(20_000, 6)
    bundle = stacking.load(finished.run)
    events = TableEvents(new_rows[0], ("x", "y"), "hash")
    whole = bundle.predict_events(events, fast=True, workers=1)
    monkeypatch.setattr(stacking.inputs.events, "PIECE_EVENTS", 4096)
    in_pieces = bundle.predict_events(events, fast=True, workers=2)
    np.testing.assert_array_equal(in_pieces.log_proba, whole.log_proba)
    assert len(points) == len(in_pieces.log_proba)


def test_its_files_are_sealed_and_hold_no_pickle(finished: StackResult) -> None:
    files = {path.name for path in (finished.run / STUDENT).iterdir()}
    assert files == {"learner.json", "inner"}
    listed = json.loads((finished.run / CHECKSUMS_FILE).read_text())
    assert any("fast/inner/network.safetensors" in str(entry) for entry in listed.get("files", listed))
    file = finished.run / STUDENT / "inner" / "network.safetensors"
    content = file.read_bytes()
    try:
        file.write_bytes(content[:-1] + b"x")
        points, _ = gaussians(10, 6)
        bundle = stacking.load(finished.run, trusted=True)
        with pytest.raises(InputError, match=r"network\.safetensors"):
            bundle.stream_events(TableEvents(finished.run / "table" / "train.parquet", ("x", "y"), "hash"), fast=True)
        assert len(points) == 10
    finally:
        file.write_bytes(content)


def test_networks_learn_from_soft_labels() -> None:
    # Hard labels say the opposite of the soft ones, and only judge: what is learned is what the soft ones say.
    rng = np.random.default_rng(0)
    table = np.asfortranarray(rng.normal(size=(4000, 2)), dtype=np.float32)
    share = 1 / (1 + np.exp(-2.0 * table[:, 0].astype(float)))
    soft = np.column_stack([1 - share, share])
    events = Batch(np.arange(4000), table, ("a", "b"), labels=rng.integers(0, 2, 4000), soft_labels=soft)
    settings = {"epochs": 12, "patience": 12, "weight_decay": 0.0, "dropout": 0.0, "ema": 0.0}
    learner = TabularMLP(("x", "y"), settings).fit(events, events.take(np.arange(500)), seed=1)
    # Judged by meaningless labels it keeps an early epoch, which is still far from ignorance of the soft ones.
    found = np.exp(learner.predict_log_proba(events))
    assert np.corrcoef(found[:, 1], share)[0, 1] > 0.97


def test_streamed_archives_and_tables_hold_what_whole_ones_would(tmp_path: Path) -> None:
    from runtime.files import write_npz

    whole = {"labels": np.arange(10, dtype=np.int8), "z": np.arange(20.0).reshape(10, 2), "hash": np.array("c0ffee")}
    write_npz(tmp_path / "whole.npz", **whole)
    parts = [{name: a[k : k + 4] if a.ndim else a for name, a in whole.items()} for k in (0, 4, 8)]
    write_pieces(tmp_path / "parts.npz", 10, iter(parts))
    assert (tmp_path / "parts.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()
    frames = [pl.DataFrame({"event": [0, 1]}), pl.DataFrame({"event": [2]})]
    for suffix, read in ((".csv", pl.read_csv), (".parquet", pl.read_parquet)):
        write_frames(tmp_path / f"table{suffix}", iter(frames))
        assert read(tmp_path / f"table{suffix}")["event"].to_list() == [0, 1, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parts.npz", "table.csv", "table.parquet", "whole.npz"]
