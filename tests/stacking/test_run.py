"""A whole run: its folder, killing and continuing, refusing, leaving out what fails.

What a run is made from is in its identity: data, and the labels it is trained on. What is scored is what ships: the
average of fits, on events that no learner was trained on.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import polars as pl
import pytest

from showerstack import stacking
from showerstack.features.build import build_table
from showerstack.models.base.posterior import log_softmax
from showerstack.models.base.spec import LearnerSpec
from showerstack.models.registry import LEARNERS, spec
from showerstack.report.card import write_card
from showerstack.report.outcome import _notes
from showerstack.runtime.checksums import Checksums
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import LOCK_FILE
from showerstack.runtime.versions import FEATURES_VERSION, STACKING_VERSION
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import COMPOSITION, GAMMA
from showerstack.showers.simulation import simulate
from showerstack.showers.simulation.cascade import RARE
from showerstack.showers.writer import write_dataset
from showerstack.stacking.config import StackConfig, TableConfig
from showerstack.stacking.events import Data, ShowerEvents
from showerstack.stacking.folder import RunFolder
from showerstack.stacking.folds import choose_holdout, evaluation_events
from showerstack.stacking.prediction.predict import predict
from showerstack.stacking.prediction.run import Run, evaluated_rows, load
from showerstack.stacking.second_level import scaled
from showerstack.stacking.stated import Manifest
from showerstack.stacking.tables.data import TableEvents
from showerstack.stacking.training.fits import FoldTask, _labelled_batch, holdout_rows, split_rows
from showerstack.stacking.training.plan import identity_of
from showerstack.stacking.training.train import StackResult, stack
from tests.manifests import manifest
from tests.stacking.conftest import CLASSES, gaussians
from tests.stacking.fakes import FAKES

QUICK = {"preset": "quick", "folds": 3, "device": "cpu", "workers": 1}
SMALL_LEARNERS = {"lightgbm": {"rounds": 30}, "random_forest": {"trees": 20}}


def _run(data: Path, run: Path, task: str = "composition", **options: object) -> StackResult:
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
    files = [finished / "learners" / "lightgbm" / f"fold-{fold}" / "history.json" for fold in range(3)]
    rounds = [json.loads(file.read_text())["valid_log_loss"] for file in files]
    assert all(10 <= len(losses) <= 30 and losses[-1] < losses[0] for losses in rounds)
    assert not (finished / "learners/random_forest/fold-0/history.json").exists(), "a forest has no rounds"

    labels = np.asarray(Dataset.open(tiny_composition / "composition_train", COMPOSITION).labels)
    for name in (*SMALL_LEARNERS, "stack", "average"):
        frame = pl.read_parquet(finished / "oof" / f"{name}.parquet")
        assert frame.schema["event"] == pl.UInt32
        assert frame.schema["fold"] == pl.Int8
        log_proba = frame.select(f"logp_{c}" for c in COMPOSITION.classes).to_numpy()
        # An event or two at the edge of the cuts leaves them when its scalars are rounded to float16: never judged.
        in_evaluation = np.isfinite(log_proba).all(axis=1)
        assert in_evaluation.mean() > 0.99
        np.testing.assert_allclose(np.exp(log_proba[in_evaluation]).sum(axis=1), 1.0, atol=1e-9)
        assert np.mean(np.argmax(log_proba[in_evaluation], axis=1) == labels[in_evaluation]) > 0.35
        with np.load(finished / "test" / f"{name}.npz", allow_pickle=False) as test:
            assert test["log_proba"].shape == (1000, 5)
            assert test["predictions"].dtype == np.int8
    with np.load(finished / "predictions.npz", allow_pickle=False) as predictions:
        assert predictions["predictions"].dtype == np.int8
        assert str(predictions["config_hash"]) == manifest["config_hash"]
    assert not list(finished.rglob("*.pkl")) + list(finished.rglob("*.joblib"))
    assert not list(finished.rglob(".partial-*"))


def test_a_run_predicts_the_same_bits_from_python_and_to_a_file(
    finished: Path, tiny_composition: Path, tmp_path: Path
) -> None:
    test = tiny_composition / "composition_test"
    # Models in this process; below, in others.
    predictions = predict(load(finished), test, Context()).concatenated()
    predict(load(finished), test).write(tmp_path / "new.npz")
    with np.load(finished / "predictions.npz") as ours:
        np.testing.assert_array_equal(ours["log_proba"], predictions.log_proba)
        np.testing.assert_array_equal(ours["predictions"], predictions.labels)
    assert (tmp_path / "new.npz").read_bytes() == (finished / "predictions.npz").read_bytes()
    with pytest.raises(InputError, match="not a finished run folder"):
        load(tmp_path)


def test_predictions_say_for_which_events_they_were_made(finished: Path, tiny_composition: Path) -> None:
    expected = Dataset.open(tiny_composition / "composition_test", labels=False).fingerprint()
    manifest = json.loads((finished / "manifest.json").read_text())
    assert manifest["data"]["test_fingerprint"] == expected
    with np.load(finished / "predictions.npz", allow_pickle=False) as stored:
        assert str(stored["test_fingerprint"]) == expected
    new = predict(load(finished), tiny_composition / "composition_train", Context()).concatenated()
    assert new.test_fingerprint == Dataset.open(tiny_composition / "composition_train", labels=False).fingerprint()
    assert new.remarks == ()


def test_one_reader_says_what_a_run_holds(finished: Path, tiny_composition: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy, ignore=shutil.ignore_patterns(LOCK_FILE))
    shutil.rmtree(copy / "learners")
    run = Run.open(copy)  # only what is asked for is read
    assert (run.name, run.task.name, run.of_table) == ("copy", "composition", False)
    assert run.learners == ("lightgbm", "random_forest")
    assert run.systems == ("lightgbm", "random_forest", "average", "stack")
    assert run.shipped == run.chain.shipped
    log_proba, folds = run.oof("stack")
    known = np.isfinite(log_proba).all(axis=1)
    assert known.mean() > 0.99
    np.testing.assert_array_equal(folds, pl.read_parquet(finished / "oof" / "stack.parquet")["fold"])
    np.testing.assert_array_equal(evaluated_rows(log_proba, folds, holdout=True), known & (folds < 0))
    np.testing.assert_array_equal(evaluated_rows(log_proba, folds, holdout=False), known)
    with np.load(finished / "test" / "stack.npz") as stored:
        np.testing.assert_array_equal(run.test("stack", "log_proba"), stored["log_proba"])
    assert run.test("stack", "no_such_array") is None
    assert {system.name for system in run.test_systems(len(run.test("stack", "log_proba")))} == set(run.systems)
    with pytest.raises(InputError, match=r"fold-0/checksums\.json does not exist"):
        run.fits("lightgbm")
    fits = Run.open(finished).fits("lightgbm")
    assert [fit.place.name for fit in fits.fits] == ["fold-0", "fold-1", "fold-2"]
    assert not fits.needs_grid
    with pytest.raises(InputError, match="has no thresholds: it was trained for composition"):
        run.thresholds()


@pytest.mark.parametrize(
    ("gate", "shipped"),
    [
        ({"shipped": True, "best_learner": "mlp"}, "stack"),
        ({"shipped": False, "best_learner": "mlp"}, "mlp"),
        ({}, "stack"),
    ],
)
def test_what_ships_and_who_finished_is_read_off_the_manifest(gate: dict[str, Any], shipped: str) -> None:
    rows = [{"name": "a", "status": "ok"}, {"name": "b", "status": "failed"}, {"name": "c", "status": "ok"}]
    trained = Manifest(**manifest("table", classes=["1", "2"], label_type="int", gate=gate, learners=rows))
    run = Run(Path("run"), trained, Checksums(Path("run"), {}))
    assert (run.shipped, run.learners) == (shipped, ("a", "c"))
    assert (run.of_table, run.task.classes, run.class_values) == (True, ("1", "2"), (1, 2))


def test_other_libraries_are_remarked_on_and_other_versions_refused(
    finished: Path, tiny_composition: Path, tmp_path: Path
) -> None:
    """A run predicts the same bytes with another SciPy; with other features, or another stack, it says to train."""
    test, run = tiny_composition / "composition_test", tmp_path / "run"
    shutil.copytree(finished, run)
    before = predict(load(run), test).concatenated()
    assert not any("trained with" in remark for remark in before.remarks)
    manifest = json.loads((run / "manifest.json").read_text())
    assert (manifest["stacking_version"], manifest["features_version"]) == (STACKING_VERSION, FEATURES_VERSION)
    manifest["versions"]["scipy"] = "0.1"
    (run / "manifest.json").write_text(json.dumps(manifest))
    RunFolder(run).write_checksums()
    after = predict(load(run), test).concatenated()
    assert "was trained with scipy 0.1 (now " in after.remarks[0]
    np.testing.assert_array_equal(after.log_proba, before.log_proba)
    for name in ("features", "stacking"):
        with (
            patch(f"showerstack.stacking.prediction.predictable.{name.upper()}_VERSION", 99),
            pytest.raises(InputError, match=rf"made by version \d+ of the {name}, which is now 99: train again \(pyth"),
        ):
            predict(load(run), test)


def test_a_run_of_an_earlier_version_says_to_train_again(finished: Path, tmp_path: Path) -> None:
    """Before versions were counted, a run had none, and other files below ``meta``."""
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    manifest = json.loads((run / "manifest.json").read_text())
    del manifest["stacking_version"], manifest["features_version"], manifest["pool"]
    (run / "manifest.json").write_text(json.dumps(manifest))
    (run / "meta" / "stack.json").write_text('{"meta": "log_pool", "learners": [], "learned": {}, "shipped": "stack"}')
    RunFolder(run).write_checksums()
    for read in (load, write_card):
        with pytest.raises(InputError, match=r"made by version 0 of the stacking, which is now \d+: train") as caught:
            read(run)
        assert "\n" not in str(caught.value)


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
from showerstack.stacking.training.train import stack
from showerstack.stacking.folder import RunFolder
from showerstack.stacking.config import StackConfig
if __name__ == "__main__":
    stack(StackConfig(task="composition", data=Path(sys.argv[1]), run=Path(sys.argv[2]), preset="quick", folds=3,
                      device="cpu", workers=2, learners=("lightgbm", "random_forest"),
                      settings={"lightgbm": {"rounds": 30}, "random_forest": {"trees": 20}}))
"""


@pytest.mark.faults
def test_killed_and_continued_ends_with_the_same_bytes(finished: Path, tiny_composition: Path, tmp_path: Path) -> None:
    script, run = tmp_path / "child.py", tmp_path / "run"
    script.write_text(CHILD)
    root = str(Path(stacking.__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": root}
    child = subprocess.Popen(
        [sys.executable, str(script), str(tiny_composition), str(run)], env=environment, start_new_session=True
    )
    deadline = time.monotonic() + 1800
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
    rows = {row.name: row for row in result.manifest.learners}
    assert rows["fake_linear"].status == "ok"
    assert rows["fake_failing"].error == "fold 0: RuntimeError: this learner always fails"
    assert "expected finite" in rows["fake_notanumber"].error
    assert result.manifest.gate.best_learner == "fake_linear"
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
    assert [row.efficiency for row in result.manifest.decision.thresholds][3] == 0.75
    run = load(tmp_path / "run")
    # No other process knows the fakes.
    again = predict(run, tiny_gamma / "gamma_test", Context()).concatenated()
    np.testing.assert_array_equal(again.scores, result.predictions.scores)
    (row,) = run.thresholds((0.8,), (1e-3,))
    assert 0.8 <= row["gamma_efficiency"] < 0.9
    assert list(row["purity"]) == ["0.001"]
    with pytest.raises(InputError, match="outside"):
        run.thresholds((1.2,))


@pytest.mark.usefixtures("fakes")
def test_events_outside_the_cuts_are_never_judged(two_gaussians: tuple[Path, Path], tmp_path: Path) -> None:
    config = TableConfig(repeats=1, holdout=0.1,
        run=tmp_path / "run", table=two_gaussians[0], label="kind", **QUICK, learners=("fake_linear",)
    )  # fmt: skip
    with patch.object(TableEvents, "passes_evaluation_cuts", lambda events: np.arange(len(events)) % 2 == 1):
        result = stack(config)
    assert result.manifest.data.n_judged == 600
    for name in ("fake_linear", "stack"):
        log_proba = pl.read_parquet(tmp_path / "run" / "oof" / f"{name}.parquet")["logp_far"].to_numpy()
        assert np.isnan(log_proba[::2]).all()
        assert np.isfinite(log_proba[1::2]).all()


def test_all_events_are_judged_where_too_few_pass() -> None:
    labels = np.repeat([0, 1], 500)
    few = np.arange(1000) % 500 < 99
    in_evaluation, remark = evaluation_events(few, labels, 2)
    assert in_evaluation.all()
    assert "only 99 events of one class pass" in remark
    enough = np.arange(1000) % 500 < 100
    in_evaluation, remark = evaluation_events(enough, labels, 2)
    np.testing.assert_array_equal(in_evaluation, enough)
    assert not remark


@pytest.mark.parametrize(("passing", "judged"), [([1, 60, 60], 121), ([1, 60, 30], 300), ([0, 60, 60], 300)])
def test_bins_of_a_quantity_need_enough_together(passing: list[int], judged: int) -> None:
    """Calibrated on all showers, energies of those under the cuts were .026 in lg E too large."""
    passes = np.concatenate([np.arange(100) < n for n in passing])
    in_evaluation, remark = evaluation_events(passes, np.repeat([0, 1, 2], 100), 3, of_bins=True)
    assert in_evaluation.sum() == judged
    words = "0 events of one class pass" if not passing[0] else "91 showers pass"
    assert (words in remark) if judged == 300 else not remark
    uses = np.arange(300) // 10
    in_evaluation, _ = evaluation_events(passes, np.repeat([0, 1, 2], 100), 3, of_bins=True, groups=uses)
    assert in_evaluation.all(), "ten uses of a shower are one"


def test_two_processes_do_not_write_one_run(tiny_composition: Path, tmp_path: Path) -> None:
    import fcntl

    run = tmp_path / "run"
    run.mkdir()
    with (run / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="being written by another process"):
            _run(tiny_composition, run)


@pytest.mark.slow
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


@pytest.mark.parametrize("preset", ["quick", "good", "best"])
def test_presets_hold_the_learners_that_the_page_names(preset: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "methods" / "learners.md").read_text(encoding="utf-8")
    (line,) = re.findall(rf"^\| `{preset}` \| \d+ \| (.*) \|$", page, re.MULTILINE)
    named = set(re.findall(r"`(\w+)`", line))
    if preset == "best":  # what it adds to those of good
        named |= {entry.name for entry in StackConfig(**_PLAIN, preset="good").learner_specs(GAMMA)}
    specs = StackConfig(**_PLAIN, preset=preset).learner_specs(GAMMA)
    assert {one.name for one in specs} == named
    assert all(spec(one.name) is one for one in specs)
    assert {"lightgbm", "xgboost", "catboost", "pretrained"} <= named
    assert any(one.needs_grid for one in specs), "a network on the grids"
    assert named.isdisjoint({"physics", "hybrid", "random_forest"}) == (preset != "best"), "dear, and nothing is missed"


_PLAIN = {"task": "gamma", "data": Path("d"), "run": Path("r")}


@pytest.fixture
def sets(tiny_composition: Path, tmp_path: Path) -> Path:
    """Folder with a training set of 60 showers, its test set, and tables of their scalars."""
    for split in ("train", "test"):
        whole = Dataset.open(tiny_composition / f"composition_{split}", COMPOSITION)
        with write_dataset(tmp_path / f"composition_{split}", 60, COMPOSITION, source=dict(whole.source)) as writer:
            assert whole.labels is not None
            writer.put(0, whole.matrices[:60], whole.scalars[:60], whole.labels[:60])
        build_table(tmp_path / f"composition_{split}", groups=("reconstruction",), ctx=Context(workers=1))
    return tmp_path


def _identity(data: Path) -> dict[str, object]:
    config = StackConfig(task="composition", data=data, run=data / "run")
    train, test = (
        ShowerEvents(folder, folder.with_name(f"{folder.name}.features"), COMPOSITION, labelled=labelled)
        for folder, labelled in ((config.train_folder, True), (config.test_folder, False))
    )
    return identity_of(Data(config, COMPOSITION, train, test), {"lightgbm": "cpu"})


def test_relabelled_training_data_is_another_run(sets: Path, tmp_path: Path) -> None:
    before = _identity(sets)
    assert _identity(sets) == before
    folder = sets / "composition_train"
    (folder / "checksums.json").unlink()
    assert _identity(sets) == before, "checksums are no content"
    labels = np.load(folder / "labels_composition.npy")
    labels[3] = (labels[3] + 1) % 5
    np.save(folder / "labels_composition.npy", labels)
    after = _identity(sets)
    assert [name for name in before if after[name] != before[name]] == ["train_fingerprint"]


def test_test_labels_are_in_no_identity(sets: Path) -> None:
    before = _identity(sets)
    (sets / "composition_test" / "labels_composition.npy").write_text("poison")
    assert _identity(sets) == before
    shutil.rmtree(sets / "composition_test.features")
    build_table(sets / "composition_test", groups=("reconstruction",), ctx=Context(workers=1))
    assert _identity(sets) == before


@pytest.mark.usefixtures("fakes")
def test_another_second_level_keeps_the_fits(two_gaussians: tuple[Path, Path], tmp_path: Path) -> None:
    def run(name: str, **options: object) -> StackResult:
        return stack(TableConfig(
            run=tmp_path / name, table=two_gaussians[0], label="kind", test_table=two_gaussians[1], preset="quick",
            folds=3, repeats=1, holdout=0.2, workers=1, device="cpu", learners=("fake_linear", "fake_noisy"),
            race="off", **options,
        ))  # fmt: skip

    def fits() -> dict[str, int]:
        return {str(file): file.stat().st_mtime_ns for file in (tmp_path / "run/learners").rglob("*")}

    other = {"prune": 0.0, "pools": ("average",)}
    run("run", prune=0.5, pools=("log_pool",))
    before = fits()
    again, new = run("run", **other), run("new", **other)
    assert fits() == before
    assert (again.run / "predictions.npz").read_bytes() == (new.run / "predictions.npz").read_bytes()
    for name in ("pool", "gate", "config_hash"):
        assert getattr(again.manifest, name) == getattr(new.manifest, name)
    with pytest.raises(InputError, match=r"another configuration \(different: seed\)"):
        run("run", **other, seed=2)


@pytest.mark.usefixtures("fakes")
def test_a_raised_version_makes_its_fits_again_and_no_other(
    two_gaussians: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fitted() -> dict[str, int]:
        stack(TableConfig(
            run=tmp_path / "run", table=two_gaussians[0], label="kind", preset="quick", folds=3, repeats=1, holdout=0.2,
            workers=1, device="cpu", learners=("fake_linear", "fake_noisy"),
        ))  # fmt: skip
        return {str(file): file.stat().st_mtime_ns for file in (tmp_path / "run/learners").glob("*/*/learner.json")}

    first = fitted()
    assert fitted() == first
    monkeypatch.setitem(LEARNERS, "fake_linear", replace(LEARNERS["fake_linear"], version=2))
    second = fitted()
    assert {Path(file).parts[-3] for file in first if second[file] != first[file]} == {"fake_linear"}
    monkeypatch.setattr("showerstack.stacking.training.plan.STACKING_VERSION", 99)
    assert all(time != second[file] for file, time in fitted().items())


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
        learners=learners, **({"repeats": 1, "holdout": 0.1} | options),
    )  # fmt: skip
    return stack(config), 1 - labels


@pytest.mark.usefixtures("fakes")
def test_the_stated_gain_is_the_shipped_gain(tmp_path: Path) -> None:
    # Two equally good learners whose fits scatter: a stack of single fits gains by averaging two of them, but what
    # ships are averages of five fits, which leave a fifth of that.
    learners = ("fake_noisy", "fake_noisy_twin")
    result, labels = _stacked(tmp_path, 40_000, learners, folds=5, pools=("average", "log_pool"))
    gate = result.manifest.gate
    assert gate.shipped
    test = {}
    for name in (gate.best_learner, "stack"):
        with np.load(result.run / "test" / f"{name}.npz", allow_pickle=False) as stored:
            test[name] = -stored["log_proba"][np.arange(len(labels)), labels]
    shipped = test[gate.best_learner] - test["stack"]
    error = shipped.std() / np.sqrt(len(shipped))
    assert abs(gate.gain - shipped.mean()) < 6 * np.hypot(error, gate.standard_error)
    assert result.manifest.judged.as_json() == {"on": "outer holdout", "events": 4000, "fits": 5}
    assert result.manifest.data.n_holdout == 4000
    rows = {row.name: row for row in result.manifest.learners}
    assert rows["fake_noisy"].single_fit_log_loss > rows["fake_noisy"].log_loss + 0.02


@pytest.mark.usefixtures("fakes")
def test_fits_of_one_start_ship_as_one_network(tmp_path: Path) -> None:
    learners = ("fake_onestart", "fake_noisy")
    result, _ = _stacked(tmp_path, 6000, learners, folds=3, pools=("log_pool",), race="off")
    rows = {row.name: row for row in result.manifest.learners}
    assert abs(rows["fake_onestart"].one_network.difference) < 1e-4
    assert rows["fake_noisy"].one_network is None
    assert "fake_onestart is one network with the mean weights of its fits: log-loss " in "".join(
        line.plain for line in _notes(result.manifest)
    )
    folders = [result.run / "learners" / "fake_onestart" / name for name in ("fold-0", "fold-1", "fold-2", "average")]
    means = [_arrays(folder / "fitted.npz")["means"] for folder in folders]
    np.testing.assert_allclose(means[3], np.mean(means[:3], axis=0))
    # The network's answers take the place of the averaged ones, in the pool as well.
    noisy = [_arrays(result.run / "learners" / "fake_noisy" / f"fold-{k}" / "test.npz")["log_proba"] for k in range(3)]
    network = _arrays(folders[3] / "test.npz")["log_proba"]
    bundle = load(result.run)
    given = [log_softmax(network), log_softmax(np.mean(noisy, axis=0))]
    by_name = dict(zip(learners, given, strict=True))
    pooled = bundle.chain.pool(by_name)
    for name, raw in (("fake_onestart", given[0]), ("stack", pooled)):
        stored = _arrays(result.run / "test" / f"{name}.npz")["log_proba"]
        np.testing.assert_allclose(stored, scaled(raw, bundle.chain.scales[name]), atol=1e-12)
    # Out-of-fold predictions stay those of single fits.
    frame = pl.read_parquet(result.run / "oof" / "fake_onestart.parquet").filter(pl.col("fold") == 1)
    single = _arrays(folders[1] / "held_out.npz")["log_proba"]
    np.testing.assert_array_equal(frame.select(pl.selectors.starts_with("logp_")).to_numpy(), single)
    assert result.predictions is not None
    values = predict(bundle, tmp_path / "test.parquet").concatenated()
    np.testing.assert_array_equal(values.log_proba, result.predictions.log_proba)
    (folders[3] / "fitted.npz").unlink()
    with pytest.raises(InputError, match=r"average.fitted\.npz"):
        predict(bundle, tmp_path / "test.parquet").concatenated()


@pytest.mark.usefixtures("fakes")
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "one network with their mean weights raises the log-loss of the holdout by "),
        ({"holdout": 0.0}, "without an outer holdout"),
    ],
)
def test_fits_stay_where_one_network_is_worse_or_nothing_shows_that_it_is_not(
    options: dict[str, Any], why: str, tmp_path: Path
) -> None:
    result, _ = _stacked(tmp_path, 6000, ("fake_farapart",), folds=3, pools=("log_pool",), **options)
    (remark,) = (line for line in result.manifest.remarks if line.startswith("fake_farapart"))
    assert remark.startswith("fake_farapart: the predictions of its fits are averaged: " + why)
    assert result.manifest.learners[0].one_network is None
    assert not (result.run / "learners" / "fake_farapart" / "average").exists()
    bundle = load(result.run)
    assert len(bundle.fits("fake_farapart").fits) == 3
    assert result.predictions is not None
    values = predict(bundle, tmp_path / "test.parquet").concatenated()
    np.testing.assert_array_equal(values.log_proba, result.predictions.log_proba)


def _arrays(file: Path) -> dict[str, np.ndarray]:
    with np.load(file, allow_pickle=False) as stored:
        return dict(stored)


@pytest.mark.usefixtures("fakes")
def test_few_events_fall_back_to_single_fits_with_a_remark(tmp_path: Path) -> None:
    result, _ = _stacked(tmp_path, 300, ("fake_linear", "fake_useless"), folds=3)
    assert result.manifest.judged.as_json() == {"on": "out-of-fold", "events": 300, "fits": 1}
    assert "too few events for an outer holdout" in result.manifest.remarks[0]


@pytest.mark.usefixtures("fakes")
def test_no_fit_sees_the_holdout_and_its_groups_stay_whole(tmp_path: Path) -> None:
    result, _ = _stacked(tmp_path, 6000, ("fake_linear",), folds=3, holdout=0.2, repeats=2)
    events = TableEvents(result.run / "table" / "train.parquet", ("x", "y"), "")
    task = FoldTask(RunFolder(result.run), FAKES["fake_linear"], 0, 3, events, None, events.columns, CLASSES)
    outer = holdout_rows(task)
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
    in_evaluation = np.random.default_rng(4).random(6000) < 0.25
    np.save(result.run / "in_evaluation.npy", in_evaluation)
    task = FoldTask(RunFolder(result.run), FAKES["fake_linear"], 0, 3, events, None, events.columns, CLASSES)
    everyone, valid, _ = split_rows(task)
    assert in_evaluation[valid].all()
    few = split_rows(replace(task, rows=500))[0]
    assert len(few) == 500
    assert in_evaluation[few].all(), "there are enough of the kind"
    many = split_rows(replace(task, rows=2000))[0]
    assert len(many) == 2000
    assert np.isin(everyone[in_evaluation[everyone]], many).all(), "all of the kind, others fill up"
    assert np.isin(many, everyone).all()


@pytest.mark.usefixtures("fakes")
@pytest.mark.parametrize(
    "spec", [LearnerSpec("logit", "showerstack.models.tables.logit:QuadraticLogit", "", "all"),
             LearnerSpec("forest", "showerstack.models.tables.sklearn:RandomForest", "", "all")],
    ids=["logit", "forest"],
)  # fmt: skip
def test_a_learner_with_a_cap_on_events_is_given_those_that_are_judged(tmp_path: Path, spec: LearnerSpec) -> None:
    result, _ = _stacked(tmp_path, 6000, ("fake_linear",), folds=3, holdout=0.2)
    events = TableEvents(result.run / "table" / "train.parquet", ("x", "y"), "")
    in_evaluation = np.random.default_rng(4).random(6000) < 0.25
    np.save(result.run / "in_evaluation.npy", in_evaluation)
    task = FoldTask(RunFolder(result.run), spec, 0, 3, events, None, events.columns, CLASSES)
    everyone, valid, held_out = split_rows(replace(task, settings={"max_events": 6000}))
    for most in (300, 1500):
        train, same_valid, same_held_out = split_rows(replace(task, settings={"max_events": most}))
        of_kind = int(in_evaluation[everyone].sum())
        assert len(train) == max(most, of_kind), "the cap is filled with others, or drawn from those of the kind"
        assert in_evaluation[train].sum() == of_kind
        np.testing.assert_array_equal(valid, same_valid)
        np.testing.assert_array_equal(held_out, same_held_out)


def test_holdout_is_stratified_and_takes_whole_groups_of_judged_events() -> None:
    rng = np.random.default_rng(0)
    labels, energy, in_evaluation = rng.integers(0, 3, 9000), rng.uniform(14.5, 17, 9000), rng.random(9000) < 0.6
    outer, remark = choose_holdout(in_evaluation, labels, 0.15, seed=3, energy=energy)
    assert not remark
    assert not outer[~in_evaluation].any()
    assert outer.sum() == pytest.approx(0.15 * in_evaluation.sum(), abs=1)
    for k in range(3):
        for low in (14.5, 15.0, 15.5, 16.0, 16.5):
            cell = in_evaluation & (labels == k) & (energy >= low) & (energy < low + 0.5)
            assert outer[cell].sum() == pytest.approx(0.15 * cell.sum(), abs=1.01)
    groups = np.arange(9000) // 3
    together, _ = choose_holdout(in_evaluation, labels, 0.15, seed=3, energy=energy, groups=groups)
    assert set(np.bincount(groups[together]).tolist()) == {0, 3}
    assert choose_holdout(in_evaluation, labels, 0.0, seed=3)[0].sum() == 0
    assert "without an outer holdout" in choose_holdout(in_evaluation, labels, 0.0, seed=3)[1]
    assert "too few events" in choose_holdout(in_evaluation, labels, 0.05, seed=3)[1]


@pytest.mark.slow
def test_rare_hadrons_carry_their_weights_through_a_run(tmp_path: Path) -> None:
    """Training, calibration, choice and thresholds go by weights; events to be predicted show none to anybody."""
    wanted = {"n_train": 2_500, "n_test": 400, "train_cuts": "test", "seed": 4}
    train, test = simulate(GAMMA, tmp_path / "data", **wanted, proposal=RARE)
    result = _run(tmp_path / "data", tmp_path / "run", "gamma", holdout=0.3)
    data = Dataset.open(train)
    assert data.weights is not None
    events = ShowerEvents(train, Path(f"{train}.features"), GAMMA, labelled=True)
    rows = np.arange(0, 2_500, 7)
    task = FoldTask(RunFolder(tmp_path / "run"), spec("lightgbm"), 0, 3, events, None, ("E", "Nmu"), GAMMA.classes)
    np.testing.assert_array_equal(_labelled_batch(task, rows).weights, data.weights[rows])
    stored = np.load(tmp_path / "run" / "meta" / "held_out_scores.npz")
    weights, labels = stored["weights"], stored["labels"]
    assert np.isin(weights, data.weights).all()
    row = result.manifest.decision.thresholds[0].as_json()
    kept = stored["scores"] >= row["threshold"]
    hadron = labels == 1
    assert row["hadron_survival"] == pytest.approx(weights[hadron & kept].sum() / weights[hadron].sum())
    assert {"error", "n_effective", "largest_weight", "quoted", "upper_limit"} <= set(row)
    prior = Run.open(tmp_path / "run").chain.prior
    assert prior is not None
    inside = RunFolder(tmp_path / "run").in_evaluation
    assert prior[0] == pytest.approx(np.average(data.labels[inside] == 0, weights=data.weights[inside]))
    expected = predict(load(tmp_path / "run"), test, Context()).concatenated()
    np.save(test / "weight.npy", np.full(400, np.nan, np.float32))
    poisoned = predict(load(tmp_path / "run"), test, Context()).concatenated()
    np.testing.assert_array_equal(poisoned.log_proba, expected.log_proba)
