"""A whole run: its folder, killing and continuing, refusing, leaving out what fails."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np
import polars as pl
import pytest

import stacking
from models.registry import spec
from runtime.errors import InputError
from showers.dataset import Dataset
from showers.schema import COMPOSITION, GAMMA
from stacking.fit.folds import judged_events
from stacking.inputs.events import TableEvents
from stacking.predict import predict_to_file
from stacking.run.config import StackConfig, TableConfig
from stacking.train import stack, stack_table

QUICK = {"preset": "quick", "folds": 3, "device": "cpu", "workers": 1, "fast": False}
SMALL_LEARNERS = {"lightgbm": {"rounds": 30}, "random_forest": {"trees": 20}}


def _run(data: Path, run: Path, task: str = "composition", **options: object) -> stacking.run.engine.StackResult:
    standard: dict[str, object] = {**QUICK, "learners": tuple(SMALL_LEARNERS), "settings": SMALL_LEARNERS}
    return stack(StackConfig(task=task, data=data, run=run, **{**standard, **options}))


@pytest.fixture(scope="module")
def finished(tiny_composition: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted composition run."""
    run = tmp_path_factory.mktemp("finished") / "run"
    _run(tiny_composition, run)
    return run


def test_run_folder_holds_what_it_promises(finished: Path, tiny_composition: Path) -> None:
    manifest = json.loads((finished / "manifest.json").read_text())
    assert manifest["classes"] == list(COMPOSITION.classes)
    assert {row["name"]: row["status"] for row in manifest["learners"]} == dict.fromkeys(SMALL_LEARNERS, "ok")
    steps = {(step["step"], step["learner"], step["fold"]) for step in manifest["steps"]}
    assert {("train", name, fold) for name in SMALL_LEARNERS for fold in range(3)} <= steps
    assert all(step["wall_s"] >= 0 and step["peak_mb"] > 10 for step in manifest["steps"])

    labels = np.asarray(Dataset.open(tiny_composition / "composition_train", COMPOSITION).labels)
    for name in (*SMALL_LEARNERS, "stack", "average"):
        frame = pl.read_parquet(finished / "oof" / f"{name}.parquet")
        assert frame.schema["event"] == pl.UInt32
        assert frame.schema["fold"] == pl.Int8
        log_proba = frame.select(f"logp_{c}" for c in COMPOSITION.classes).to_numpy()
        # An event or two at the edge of the cuts leaves them when its scalars are rounded to float16: never judged.
        judged = np.isfinite(log_proba).all(axis=1)
        assert judged.mean() > 0.99
        np.testing.assert_allclose(np.exp(log_proba[judged]).sum(axis=1), 1.0, atol=1e-9)
        assert np.mean(np.argmax(log_proba[judged], axis=1) == labels[judged]) > 0.35
        with np.load(finished / "test" / f"{name}.npz", allow_pickle=False) as test:
            assert test["log_proba"].shape == (1000, 5)
            assert test["argmax"].dtype == test["decided"].dtype == np.int8
    with np.load(finished / "predictions.npz", allow_pickle=False) as predictions:
        assert predictions["predictions"].dtype == np.int8
        assert str(predictions["config_hash"]) == manifest["config_hash"]
    assert not list(finished.rglob("*.pkl")) + list(finished.rglob("*.joblib"))
    assert not list(finished.rglob(".partial-*"))


def test_bundle_predicts_the_same_bits_from_python_and_to_a_file(
    finished: Path, tiny_composition: Path, tmp_path: Path
) -> None:
    test = tiny_composition / "composition_test"
    predictions = stacking.load(finished, trusted=True).predict(test)  # models in this process; below, in others
    predict_to_file(finished, test, tmp_path / "new.npz")
    with np.load(finished / "predictions.npz") as ours:
        np.testing.assert_array_equal(ours["log_proba"], predictions.log_proba)
        np.testing.assert_array_equal(ours["predictions"], predictions.labels)
    assert (tmp_path / "new.npz").read_bytes() == (finished / "predictions.npz").read_bytes()
    with pytest.raises(InputError, match="not a finished run folder"):
        stacking.load(tmp_path)


def test_predictions_say_for_which_events_they_were_made(finished: Path, tiny_composition: Path) -> None:
    expected = Dataset.open(tiny_composition / "composition_test", labels=False).fingerprint()
    manifest = json.loads((finished / "manifest.json").read_text())
    assert manifest["data"]["test_fingerprint"] == expected
    with np.load(finished / "predictions.npz", allow_pickle=False) as stored:
        assert str(stored["test_fingerprint"]) == expected
    new = stacking.load(finished, trusted=True).predict(tiny_composition / "composition_train")
    assert new.test_fingerprint == Dataset.open(tiny_composition / "composition_train", labels=False).fingerprint()
    assert new.remarks == ()


def test_a_run_on_features_of_other_code_predicts_only_when_told_to(finished: Path, tiny_composition: Path) -> None:
    test, bundle = tiny_composition / "composition_test", stacking.load(finished, trusted=True)
    with (
        patch("stacking.predict.feature_code_version", lambda: "0" * 64),
        patch("stacking.predict.stacking_code_version", lambda: "1" * 16),
    ):
        with pytest.raises(InputError, match=r"features of other code.*train again \(python cli.py stack") as caught:
            bundle.predict(test)
        assert "\n" not in str(caught.value)
        found = bundle.predict(test, anyway=True)
    assert ["features of other code" in found.remarks[0], "another version" in found.remarks[1]] == [True, True]
    np.testing.assert_array_equal(found.log_proba, bundle.predict(test).log_proba)


def test_another_configuration_is_refused_and_named(finished: Path, tiny_composition: Path, tmp_path: Path) -> None:
    before = (finished / "manifest.json").read_bytes()
    with pytest.raises(InputError, match=r"another configuration \(different: seed\)"):
        _run(tiny_composition, finished, seed=2)
    assert (finished / "manifest.json").read_bytes() == before
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(InputError, match="holds other files"):
        _run(tiny_composition, tmp_path)


def test_a_finished_run_is_not_done_again(finished: Path, tiny_composition: Path) -> None:
    stamp = (finished / "predictions.npz").stat().st_mtime_ns
    assert _run(tiny_composition, finished).predictions is None
    assert (finished / "predictions.npz").stat().st_mtime_ns == stamp


CHILD = """
import sys
from pathlib import Path
from stacking.train import stack
from stacking.run.config import StackConfig
if __name__ == "__main__":
    stack(StackConfig(task="composition", data=Path(sys.argv[1]), run=Path(sys.argv[2]), preset="quick", folds=3,
                      device="cpu", workers=2, fast=False, learners=("lightgbm", "random_forest"),
                      settings={"lightgbm": {"rounds": 30}, "random_forest": {"trees": 20}}))
"""


def test_killed_and_continued_ends_with_the_same_bytes(finished: Path, tiny_composition: Path, tmp_path: Path) -> None:
    script, run = tmp_path / "child.py", tmp_path / "run"
    script.write_text(CHILD)
    root = str(Path(stacking.__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": root}
    child = subprocess.Popen(
        [sys.executable, str(script), str(tiny_composition), str(run)], env=environment, start_new_session=True
    )
    deadline = time.monotonic() + 120
    while not list(run.glob("learners/*/fold-*/task.json")):
        assert child.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    assert not (run / "predictions.npz").exists()
    survivors = {file: file.stat().st_mtime_ns for file in run.glob("learners/*/fold-*/task.json")}
    (run / "learners" / ".partial-1-left").mkdir()

    _run(tiny_composition, run)
    assert (run / "predictions.npz").read_bytes() == (finished / "predictions.npz").read_bytes()
    assert all(file.stat().st_mtime_ns == stamp for file, stamp in survivors.items()), "finished tasks are kept"
    assert not list(run.rglob(".partial-*"))


@pytest.mark.usefixtures("fakes")
def test_failing_learners_are_reported_and_left_out(tiny_composition: Path, tmp_path: Path) -> None:
    learners = ("fake_linear", "fake_failing", "fake_notanumber")
    result = _run(tiny_composition, tmp_path / "run", learners=learners, settings={})
    rows = {row["name"]: row for row in result.manifest["learners"]}
    assert rows["fake_linear"]["status"] == "ok"
    assert rows["fake_failing"]["error"] == "fold 0: RuntimeError: this learner always fails"
    assert "expected finite" in rows["fake_notanumber"]["error"]
    assert not result.manifest["gate"]["shipped"]
    assert result.manifest["gate"]["best_learner"] == "fake_linear"
    with pytest.raises(InputError, match=r"no learner could be trained; fake_failing: .*always fails"):
        _run(tiny_composition, tmp_path / "none", learners=("fake_failing",), settings={})


@pytest.mark.usefixtures("fakes")
def test_repeats_off_cut_weight_and_gamma(tiny_gamma: Path, tmp_path: Path) -> None:
    result = _run(tiny_gamma, tmp_path / "run", "gamma", learners=("fake_linear",), settings={}, repeats=2,
                  off_cut_weight=0.0)  # fmt: skip
    assert np.load(tmp_path / "run" / "folds.npy").shape == (2, 2000)
    assert len(list((tmp_path / "run" / "learners" / "fake_linear").iterdir())) == 6
    assert result.predictions.scores is not None
    with np.load(tmp_path / "run" / "predictions.npz") as stored:
        np.testing.assert_array_equal(stored["gamma_scores"], result.predictions.scores)
    assert [row["efficiency"] for row in result.manifest["decision"]["thresholds"]][3] == 0.75
    bundle = stacking.load(tmp_path / "run", trusted=True)  # no other process knows the fakes
    np.testing.assert_array_equal(bundle.predict(tiny_gamma / "gamma_test").scores, result.predictions.scores)
    (row,) = bundle.thresholds((0.8,), (1e-3,))
    assert 0.8 <= row["gamma_efficiency"] < 0.85
    assert list(row["purity"]) == ["0.001"]
    with pytest.raises(InputError, match="outside"):
        bundle.thresholds((1.2,))


@pytest.mark.usefixtures("fakes")
def test_events_outside_the_cuts_are_never_judged(two_gaussians: tuple[Path, Path], tmp_path: Path) -> None:
    config = TableConfig(repeats=1, holdout=0.1,
        run=tmp_path / "run", table=two_gaussians[0], label="kind", **QUICK, learners=("fake_linear",)
    )  # fmt: skip
    with patch.object(TableEvents, "passes_evaluation_cuts", lambda events: np.arange(len(events)) % 2 == 1):
        result = stack_table(config)
    assert result.manifest["data"]["n_judged"] == 600
    for name in ("fake_linear", "stack"):
        log_proba = pl.read_parquet(tmp_path / "run" / "oof" / f"{name}.parquet")["logp_far"].to_numpy()
        assert np.isnan(log_proba[::2]).all()
        assert np.isfinite(log_proba[1::2]).all()


def test_all_events_are_judged_where_too_few_pass() -> None:
    labels = np.repeat([0, 1], 500)
    few = np.arange(1000) % 500 < 99
    judged, remark = judged_events(few, labels, 2)
    assert judged.all()
    assert "only 99 events of one class pass" in remark
    enough = np.arange(1000) % 500 < 100
    judged, remark = judged_events(enough, labels, 2)
    np.testing.assert_array_equal(judged, enough)
    assert not remark


def test_two_processes_do_not_write_one_run(tiny_composition: Path, tmp_path: Path) -> None:
    import fcntl

    run = tmp_path / "run"
    run.mkdir()
    with (run / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="being written by another process"):
            _run(tiny_composition, run)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learners": ("oracle",)}, "unknown learner 'oracle': choose from lightgbm"),
        ({"folds": 1000}, "option folds"),
        ({"device": "cuda"}, "cuda"),
        ({"data": Path("nowhere")}, "nowhere"),
        ({"learners": ("lightgbm", "lightgbm")}, "different names"),
        ({"scheduler": "tcp://127.0.0.1:9"}, "no Dask scheduler answers"),
        ({"task": "spectrum"}, "unknown task 'spectrum'"),
    ],
)
def test_bad_options_are_refused_in_one_line(
    tiny_gamma: Path, tmp_path: Path, options: dict[str, object], message: str
) -> None:
    standard = {"task": GAMMA.name, "data": tiny_gamma, "run": tmp_path / "run", **QUICK, "learners": ("lightgbm",)}
    with pytest.raises(InputError, match=message) as caught:
        stack(StackConfig(**{**standard, **options}))
    assert "\n" not in str(caught.value)


def test_a_class_with_fewer_events_than_folds_is_refused_before_any_work(tiny_gamma: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    for split in ("train", "test"):
        shutil.copytree(tiny_gamma / f"gamma_{split}", data / f"gamma_{split}")
    labels = np.ones(2000, dtype=np.int8)
    labels[:2] = 0
    np.save(data / "gamma_train" / "labels_gamma.npy", labels)
    (data / "gamma_train" / "checksums.json").unlink()
    with pytest.raises(InputError, match="class 'gamma' has 2 events, fewer than the 3 folds"):
        _run(data, tmp_path / "run", "gamma")
    assert not (data / "gamma_train.features").exists()


def test_presets_name_registered_learners() -> None:
    for preset in ("quick", "good", "best"):
        specs = StackConfig(task="gamma", data=Path("d"), run=Path("r"), preset=preset).learner_specs(GAMMA)
        assert len(specs) >= 6
        assert all(spec(one.name) is one for one in specs)
