"""Comparison, leaderboard, submission and doctor: what people read and hand in.

The 2026 protocol takes raw labels only, in the published order of rows, and logs attempts. Predictions are scored by
the events they were made for, and a run folder holds its own; anything else is refused.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import showerstack
import verify
from showerstack.models import registry
from showerstack.report.compare import compare, differences
from showerstack.report.doctor.folders import column_quartiles, examine_datasets, folder_findings
from showerstack.report.doctor.machine import findings
from showerstack.report.doctor.soundness import check_folder
from showerstack.report.public import submission
from showerstack.report.public.leaderboard import Standing, leaderboard, march_of_nines, scores, standing, tables
from showerstack.report.public.submission import snapshot, write_submission, yaml_text
from showerstack.report.shared.subject import EvaluatedRun
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import read_json, with_checksum, write_json, write_npz
from showerstack.scoring.metrics.composition import fraction_error
from showerstack.scoring.score import (
    HEADS,
    MAX_ATTEMPTS,
    log_attempt,
    next_attempt,
    read_output,
    score_arrays,
    score_file,
)
from showerstack.scoring.tasks.published import PUBLISHED, published_for
from showerstack.scoring.tasks.truth import TEST_CLASSES, DataOrigin, origin_of, read_truth
from showerstack.showers.archives.convert import convert
from showerstack.showers.array import KASCADE
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import COMPOSITION, ENERGY, GAMMA, SUBMISSION_FILE, task_named
from showerstack.showers.simulation import simulate
from showerstack.stacking.folder import RunFolder
from showerstack.stacking.prediction.run import Run
from tests.program import call
from tests.report.conftest import make_world
from tests.showers.known import write_archives


def text(renderable: object, width: int = 100) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width).print(renderable)
    return stream.getvalue()


@pytest.fixture
def other_run(composition_world: tuple[Path, Path], tmp_path: Path) -> Path:
    """The composition run again, shipping its weakest learner."""
    run = shutil.copytree(composition_world[0], tmp_path / "weaker")
    with np.load(run / "test" / "random_forest.npz") as weakest, np.load(run / "predictions.npz") as own:
        write_npz(run / "predictions.npz", **{**own, "predictions": weakest["predictions"]})
    RunFolder(run).write_checksums()
    return run


@pytest.mark.slow
def test_predictions_of_any_origin_stand_beside_runs(composition_world: tuple[Path, Path], tmp_path: Path) -> None:
    run, data = composition_world
    truth = np.load(data / "composition_test" / "labels_composition.npy").astype(np.int64)
    mine = showerstack.save_predictions(tmp_path / "mine.npz", np.roll(truth, 1), data, task="composition")
    assert "composition against mine.npz" in text(compare([run, mine], data))
    assert score_file(mine, data, COMPOSITION, write=False)["n_events"] == len(truth)
    run = shutil.copytree(run, tmp_path / "scored")
    score_file(run / "predictions.npz", data, COMPOSITION)
    (rows,) = tables([run, mine], data).values()
    assert [row.system for row in rows if row.ours] == [Run.open(run).name, "mine"]
    assert "mine" in text(leaderboard([mine], data=data))
    with pytest.raises(InputError, match="give the folder that holds it with --data"):
        leaderboard([mine])
    for values, message in ((truth[1:], "have shape"), (truth + 0.5, "type float64"), (truth + 257, "outside 0..4")):
        with pytest.raises(InputError, match=message):
            showerstack.save_predictions(tmp_path / "no.npz", values, data, task="composition")
    with pytest.raises(InputError, match=r"name a file that ends in \.npz"):
        showerstack.save_predictions(tmp_path / "no.csv", truth, data, task="composition")
    other = shutil.copytree(data / "composition_test", tmp_path / "other" / "composition_test")
    grids = np.load(other / "matrices.npy")
    np.save(other / "matrices.npy", grids[::-1])
    (other / "checksums.json").unlink(missing_ok=True)
    with pytest.raises(InputError, match="other events"):
        compare([mine, mine], other.parent)


def test_compare_finds_the_better_run(composition_world: tuple[Path, Path], other_run: Path) -> None:
    run, data = composition_world
    shown = text(compare([run, other_run], data))
    assert "composition is better" in shown
    assert "McNemar: labels right or wrong" in shown
    for place in ("lg E 15.0-15.5", "zenith 10-20 deg", "class iron"):
        assert place in shown
    assert "no difference is shown" in text(compare([run, run.parent / "." / run.name / "predictions.npz"], data))


def test_compare_of_gamma_runs(gamma_world: tuple[Path, Path], tmp_path: Path) -> None:
    run, data = gamma_world
    other = shutil.copytree(run, tmp_path / "other")
    shown = text(compare([run, other], data))
    assert "hadrons rejected at 75 %" in shown
    assert "no difference is shown" in shown


def test_compare_refuses_what_cannot_be_compared(
    composition_world: tuple[Path, Path], gamma_world: tuple[Path, Path]
) -> None:
    with pytest.raises(InputError, match="at least two"):
        compare([composition_world[0]], composition_world[1])
    with pytest.raises(InputError, match="different tasks cannot be compared: composition, gamma"):
        compare([composition_world[0], gamma_world[0]], composition_world[1])


def test_simulated_runs_never_share_a_table_with_published_ones(composition_world: tuple[Path, Path]) -> None:
    run, data = composition_world
    score_file(run / "predictions.npz", data, COMPOSITION)
    shown = text(leaderboard([run]))
    assert "simulation of v2" in shown
    assert not any(row.system[:12] in shown for row in PUBLISHED)


def test_only_recognised_public_sets_stand_beside_published_ones(
    composition_world: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, data = composition_world
    score_file(run / "predictions.npz", data, COMPOSITION)
    real = shutil.copytree(data, tmp_path / "data")
    for name in ("source.json", "checksums.json"):
        (real / "composition_test" / name).unlink()
    shown = text(leaderboard([run], data=real))
    assert "composition, unknown origin (v2)" in shown
    assert "two CNNs" not in shown, "a set without a mark is not public for that"

    labels = np.load(real / "composition_test" / "labels_composition.npy")
    monkeypatch.setitem(TEST_CLASSES, ("composition", "v2"), tuple(np.bincount(labels).tolist()))
    shown = text(leaderboard([run], data=real))
    assert "composition, v2" in shown
    assert "two CNNs, biases *" in shown
    assert "LeNet" not in shown, "the matched protocol has its own table"
    assert "simulation of v2" in text(leaderboard([run], data=data)), "a mark counts more than the numbers of events"
    with pytest.raises(InputError, match="say where it is with --data"):
        leaderboard([run], data=tmp_path / "nowhere")


def test_public_sets_are_recognised_by_their_classes(tmp_path: Path) -> None:
    for (task, protocol), counts in TEST_CLASSES.items():
        folder = tmp_path / task / protocol
        folder.mkdir(parents=True)
        labels = np.repeat(np.arange(len(counts)), counts).astype(np.int8)
        np.save(folder / f"labels_{task}.npy", labels)
        np.save(folder / "features.npy", np.zeros((len(labels), 5), np.float16))
        assert origin_of(folder, task_named(task)) == DataOrigin(True, protocol, {})
        labels[0] = 1
        np.save(folder / f"labels_{task}.npy", labels)
        assert not origin_of(folder, task_named(task)).public
        labels[0] = 0
        np.save(folder / f"labels_{task}.npy", labels)
        np.save(folder / "features.npy", np.zeros((len(labels) - 1, 5), np.float16))
        assert not origin_of(folder, task_named(task)).public
        np.save(folder / "matrices.npy", np.zeros((len(labels), 1), np.float16))
        assert not origin_of(folder, task_named(task)).public, "one file of as many rows is not enough"
    sizes = {key: sum(counts) for key, counts in TEST_CLASSES.items()}
    assert sizes[COMPOSITION.name, "v2"] == 119_027
    assert sizes[COMPOSITION.name, "matched"] == 34_519
    assert sizes[COMPOSITION.name, "2026"] == 115_064
    assert sizes[GAMMA.name, "v2"] == 35_751


def test_leaderboard_wants_scored_runs(gamma_world: tuple[Path, Path], tmp_path: Path) -> None:
    unscored = shutil.copytree(gamma_world[0], tmp_path / "run")
    (unscored / "metrics_gamma.json").unlink(missing_ok=True)
    with pytest.raises(InputError, match="score the run first"):
        standing(unscored)


def test_leaderboard_counts_again(gamma_world: tuple[Path, Path], tmp_path: Path) -> None:
    run = shutil.copytree(gamma_world[0], tmp_path / "run")
    score_file(run / "predictions.npz", gamma_world[1], GAMMA, intervals=False)
    true = standing(run).value
    file = run / "metrics_gamma.json"
    write_json(file, json.loads(file.read_text().replace(repr(true), "1e-9")))
    assert "1e-09" in file.read_text()
    assert standing(run).value == true
    twin = shutil.copytree(run, tmp_path / "other" / run.name)
    rows = next(iter(tables([run, twin]).values()))
    assert [row.system for row in rows if row.ours] == [f"{run.parent.name}/run", "other/run"], "of one name"


def test_arrays_do_not_share_a_list(tmp_path: Path) -> None:
    one = tmp_path / "one"
    one.mkdir()
    for source, protocol in (
        (
            {"generator": "showers.simulation", "model": "qgs", "seed": 3},
            "simulation of array mine (qgs, default world, seed 3)",
        ),
        ({"generator": "lists"}, "unknown origin (array mine)"),
    ):
        write_json(one / "source.json", {**source, "array": replace(KASCADE, name="mine", pitch_m=20.0).as_json()})
        np.save(one / "labels_gamma.npy", np.array([0, 1], np.int8))
        assert origin_of(one, GAMMA).protocol == protocol


def test_march_of_nines() -> None:
    assert march_of_nines(1e-3, 1e-2, 1e-4) == 0.5
    assert march_of_nines(1e-5, 1e-2, 1e-4) == 1.5
    assert march_of_nines(0.0, 1e-2, 1e-4) is None
    assert march_of_nines(0.1, 0.1, 0.1) is None


def test_scores_run_from_weakest_valid_to_published_best() -> None:
    def row(value: float, *, ours: bool, tuned: bool = False) -> Standing:
        return Standing("gamma", "v2", "x", value, None, tuned_on_test=tuned, ours=ours, n_trials=999)

    # 0 of 999 counts as 0.5 / 1000: no survivor is no infinity
    rows = [
        row(0.0, ours=True),
        row(4.5e-3 - 5e-4, ours=False, tuned=True),
        row(0.05, ours=False),
        row(0.4, ours=False, tuned=True),
    ]
    result = scores(rows)
    assert result[1] == 1.0
    assert result[2] == 0.0
    assert result[0] is not None
    assert result[0] > 1
    assert result[3] is not None
    assert result[3] < 0
    ours = [row(0.1073, ours=True), row(0.1079, ours=True), row(0.2, ours=True)]
    assert scores(ours[:2]) == [None, None], "two that are alike are not 1 and 0"
    assert scores(ours)[2] == 0.0


def test_published_tables_are_sorted_and_carry_intervals() -> None:
    gamma = published_for(GAMMA.name, "v2")
    assert gamma[0].value == 3.2e-4
    assert (round(gamma[0].interval.low, 5), round(gamma[0].interval.high, 5)) == (1.6e-4, 5.7e-4)
    matched = published_for(COMPOSITION.name, "matched")
    assert [row.value for row in matched] == sorted(row.value for row in matched)
    assert matched[0].tuned_on_test


def test_submission_of_both_tasks(
    composition_world: tuple[Path, Path], gamma_world: tuple[Path, Path], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    for world, task in ((composition_world, COMPOSITION), (gamma_world, GAMMA)):
        shutil.copytree(world[1] / f"{task.name}_test", data / f"{task.name}_test")
    runs = [composition_world[0], gamma_world[0]]
    folder = write_submission(runs, "mine-1", data=data, out=tmp_path / "out")
    for run, task in zip(runs, (COMPOSITION, GAMMA), strict=True):
        again = score_file(folder / "predictions.npz", data, task, intervals=False, write=False)
        before = score_file(run / "predictions.npz", data, task, intervals=False, write=False)
        assert {again[key] == before[key] for key in again.keys() - {"checksum", "warnings"}} == {True}
    readme = (folder / "README.md").read_text()
    assert "Not the public test set" in readme
    assert "lenet failed: out of memory" in readme
    metadata = (folder / "metadata.yaml").read_text()
    assert '"tuned_on_test": false' in metadata
    assert str(tmp_path) not in readme + metadata
    assert (folder / "code" / "showerstack" / "scoring" / "metrics" / "composition.py").exists()
    assert not list((folder / "code").rglob("__pycache__"))
    with pytest.raises(InputError, match="exists already"):
        write_submission(runs, "mine-1", data=data, out=tmp_path / "out")


def test_a_submission_holds_learners_of_other_packages(
    composition_world: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, data = composition_world
    (tmp_path / "theirs").mkdir()
    for name in ("__init__.py", "learner.py"):
        (tmp_path / "theirs" / name).write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    name = Run.open(run).learners[0]
    monkeypatch.setitem(registry.LEARNERS, name, replace(registry.LEARNERS[name], learner="theirs.learner:Theirs"))
    folder = write_submission([run], "with-theirs", data=data, out=tmp_path / "out")
    assert (folder / "code" / "theirs" / "learner.py").exists()
    assert "`code/theirs` is another package" in (folder / "README.md").read_text()
    monkeypatch.setattr(submission, "snapshot", lambda target, learners: snapshot(target))
    with pytest.raises(InputError, match=r"code/theirs is missing"):
        write_submission([run], "without", data=data, out=tmp_path / "out")


def test_a_submission_of_predictions_alone_is_refused_with_what_it_takes(tmp_path: Path) -> None:
    (tmp_path / "mine.npz").touch()
    with pytest.raises(InputError, match=r"mine\.npz is a file: .* hand in that code with mine\.npz; .*verify\.py"):
        write_submission([tmp_path / "mine.npz"], "x", data=tmp_path, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_check_knows_a_submission(tmp_path: Path) -> None:
    for name in ("metadata.yaml", "predictions.npz"):
        (tmp_path / name).touch()
    with pytest.raises(InputError, match="is a submission, which was checked when it was written"):
        check_folder(tmp_path)


def test_doctor_lists_what_lies_in_a_folder_of_answers(tmp_path: Path) -> None:
    write_npz(tmp_path / "mine.npz", predictions=np.zeros(3, np.int8))
    write_npz(tmp_path / "other.npz", columns=np.zeros(3))
    (tmp_path / "handed-in").mkdir()
    (tmp_path / "handed-in" / SUBMISSION_FILE).touch()
    found = [(one.what, one.outcome) for one in folder_findings(tmp_path)]
    assert found == [
        ("handed-in", "submission"),
        ("next", f"{tmp_path / 'handed-in' / 'README.md'} says how it is scored and handed in"),
        ("mine.npz", "predictions of composition"),
        ("next", f"python cli.py leaderboard {tmp_path / 'mine.npz'} --data DATA"),
    ]


def test_submission_refusals_leave_nothing(composition_world: tuple[Path, Path], tmp_path: Path) -> None:
    run, data = composition_world
    for runs, name, message in (
        ([run], "../up", "use letters"),
        ([run, run], "twice", "one run of each task"),
        ([], "none", "got none"),
    ):
        with pytest.raises(InputError, match=message):
            write_submission(runs, name, data=data, out=tmp_path / "out")
    bad = shutil.copytree(run, tmp_path / "bad")
    write_npz(bad / "predictions.npz", predictions=np.zeros(3000))
    with pytest.raises(InputError, match="type float64"):
        write_submission([bad], "bad", data=data, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_yaml_of_nested_values() -> None:
    content = {"name": "a: b", "no": {"x y": [1, 2], "flag": True, "nothing": None}}
    text = yaml_text(content)
    assert json.loads(text) == content
    assert '"no": {\n    "x y": [' in text


def test_doctor_looks_at_everything(tmp_path: Path) -> None:
    entries = {finding.what: finding for finding in findings(tmp_path / "not yet there")}
    assert {"Python", "packages", "torch", "cupy", "xgboost", "lightgbm", "memory, cores", "disk"} <= set(entries)
    assert entries["Python"].state == "ok"
    assert entries["--device auto"].outcome.startswith(("would use: cpu", "would use: cuda"))
    assert "numpy" in entries["packages"].outcome


def test_manifest_without_a_task_is_refused(tmp_path: Path) -> None:
    write_json(tmp_path / "manifest.json", {"classes": []})
    RunFolder(tmp_path).write_checksums()
    with pytest.raises(InputError, match="names no task"):
        standing(tmp_path)
    assert json.loads((tmp_path / "manifest.json").read_text()) == read_json(tmp_path / "manifest.json")


def test_comparison_and_standings_for_programs(composition_world: tuple[Path, Path], other_run: Path) -> None:
    run, data = composition_world
    result = differences([run, other_run], data)
    (difference,) = result["first_minus"].values()
    assert difference["interval"]["low"] <= difference["difference"] <= difference["interval"]["high"] < 0
    assert len(result["runs"]) == 2
    score_file(run / "predictions.npz", data, COMPOSITION)
    ((task, protocol), rows) = next(iter(tables([run]).items()))
    assert task == "composition"
    assert protocol.startswith("simulation of v2")
    assert [row.ours for row in rows] == [True]


def protocol_text(renderable: object) -> str:
    stream = io.StringIO()
    Console(file=stream, width=140).print(renderable)
    return stream.getvalue()


@pytest.fixture
def world(composition_world: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """The composition run and its test set, as if the set followed the 2026 protocol and had been converted."""
    run, data = (shutil.copytree(folder, tmp_path / folder.name) for folder in composition_world)
    test = data / "composition_test"
    (test / "checksums.json").unlink()
    write_json(test / "source.json", read_json(test / "source.json") | {"protocol": "2026"})
    n = len(np.load(test / "labels_composition.npy"))
    np.save(test / "order.npy", np.random.default_rng(8).permutation(n))
    fingerprint = Dataset.open(test, labels=False).fingerprint()
    with np.load(run / "predictions.npz") as stored:
        write_npz(run / "predictions.npz", **{**stored, "test_fingerprint": np.array(fingerprint)})
    manifest = read_json(run / "manifest.json")
    manifest["data"] |= {"test_fingerprint": fingerprint, "test": str(test)}
    write_json(run / "manifest.json", manifest)
    RunFolder(run).write_checksums()
    return run, data


def _labels(run: Path) -> tuple[np.ndarray, np.ndarray]:
    with np.load(run / "predictions.npz") as stored:
        return stored["predictions"].astype(int), stored["log_proba"].argmax(axis=1)


def test_the_published_order_decides_the_benchmarks_own_draws(world: tuple[Path, Path]) -> None:
    run, data = world
    truth, (_, raw) = read_truth(data, COMPOSITION), _labels(run)
    order = np.load(data / "composition_test" / "order.npy")
    labels, predicted = np.empty_like(truth.labels), np.empty_like(raw)
    labels[order], predicted[order] = truth.labels, raw
    mean_fraction_error = score_file(run / "predictions.npz", data, COMPOSITION, intervals=False)["mean_fraction_error"]
    assert mean_fraction_error == fraction_error(labels, predicted)
    assert mean_fraction_error != fraction_error(truth.labels, raw), "else this test could not fail"


def test_2026_scores_the_most_probable_class(world: tuple[Path, Path]) -> None:
    run, data = world
    decided, raw = _labels(run)
    assert (decided != raw).any()
    truth = read_truth(data, COMPOSITION)
    result = score_file(run / "predictions.npz", data, COMPOSITION, protocol="2026", intervals=False)
    assert result["accuracy"] == np.mean(raw == truth.labels)
    assert f"{np.count_nonzero(raw != decided):,} decided labels were replaced" in result["warnings"][0]
    # The test set says that it is of 2026: nobody needs to name it, and its folder serves as well as the one above it.
    for folder in (data, data / "composition_test"):
        own = score_file(run / "predictions.npz", folder, COMPOSITION, intervals=False)
        assert own["accuracy"] == np.mean(raw == truth.labels)
    assert EvaluatedRun.read(run, data).metrics["accuracy"] == np.mean(raw == truth.labels)
    with pytest.raises(InputError, match=r"test set of simulation of 2026 .*, not of protocol matched"):
        score_file(run / "predictions.npz", data, COMPOSITION, protocol="matched")


def test_leaderboard_of_2026_takes_raw_labels(world: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    run, data = world
    score_file(run / "predictions.npz", data, COMPOSITION)
    truth, (_, raw) = read_truth(data, COMPOSITION), _labels(run)
    accuracy = f"{100 * np.mean(raw == truth.labels):.2f}"
    shown = protocol_text(leaderboard([run], data=data))
    assert "simulation of 2026" in shown
    assert accuracy in shown
    assert "five CNN" not in shown
    (data / "composition_test" / "source.json").unlink()
    counts = tuple(np.bincount(truth.labels).tolist())
    monkeypatch.setitem(TEST_CLASSES, ("composition", "2026"), counts)
    monkeypatch.setattr("showerstack.report.shared.subject.check_events", lambda *given: [])
    shown = protocol_text(leaderboard([run], data=data))
    assert accuracy in shown
    assert "five CNN + MLP networks" in shown
    assert "JINST 19 (2024) P01025" in shown
    assert "LeNet, batch norm" not in shown, "the matched protocol has its own table"


def test_submission_has_published_order_and_raw_labels(world: tuple[Path, Path], tmp_path: Path) -> None:
    run, data = world
    folder = write_submission([run], "one", data=data, out=tmp_path / "out")
    order = np.load(data / "composition_test" / "order.npy")
    _, raw = _labels(run)
    with np.load(folder / "predictions.npz") as stored:
        np.testing.assert_array_equal(stored["predictions"][order], raw)
    readme = (folder / "README.md").read_text()
    assert "--published-order" in readme
    assert "the run's own predictions follow the shuffled test folder" in readme
    again = score_file(
        folder / "predictions.npz", data, COMPOSITION, protocol="2026", intervals=False, published_order=True
    )
    first = score_file(run / "predictions.npz", data, COMPOSITION, protocol="2026", intervals=False)
    assert again["mean_fraction_error"] == first["mean_fraction_error"]
    wrong = score_file(folder / "predictions.npz", data, COMPOSITION, intervals=False)
    assert any("give --published-order" in line for line in wrong["warnings"])


def test_attempts_are_logged_only_when_asked(world: tuple[Path, Path], tmp_path: Path) -> None:
    run, data = world
    log = tmp_path / "results.tsv"
    with pytest.raises(InputError, match="--log needs --description"):
        score_file(run / "predictions.npz", data, COMPOSITION, protocol="2026", log=log)
    with pytest.raises(InputError, match="add --protocol 2026"):
        score_file(run / "predictions.npz", data, COMPOSITION, log=log, description="x")
    assert not log.exists()
    result = score_file(
        run / "predictions.npz", data, COMPOSITION, protocol="2026", log=log, description="a\tstack\n", intervals=False
    )
    lines = log.read_text().splitlines()
    assert lines[0] == HEADS["composition"]
    assert lines[1].startswith("0\t0.1073\t0.504\t")
    assert lines[2].split("\t") == [
        "1",
        f"{result['mean_fraction_error']:.4f}",
        f"{result['accuracy']:.4f}",
        str(run / "predictions.npz"),
        "a stack (not the public test set)",
    ]
    for _ in range(MAX_ATTEMPTS - 1):
        log_attempt(log, result, run / "predictions.npz", "again")
    with pytest.raises(InputError, match="holds 50 attempts"):
        log_attempt(log, result, run / "predictions.npz", "once more")
    (tmp_path / "other.tsv").write_text("a,b\n")
    with pytest.raises(InputError, match="is no list of attempts"):
        log_attempt(tmp_path / "other.tsv", result, run, "x")


def test_attempts_at_gamma_have_their_own_columns(tmp_path: Path) -> None:
    log, metrics = tmp_path / "results.tsv", {"survival_rates": {"75%": {"hadron_survival": 9 / 34_267}}}
    log_attempt(log, metrics, Path("p.npz"), "two branches", GAMMA)
    assert log.read_text().splitlines() == [
        "attempt\tsurvival_75\tpredictions\tdescription",
        "0\t1.0e-02\tbaseline/predictions.npz\trandom forest baseline (published)",
        "1\t2.6e-04\tp.npz\ttwo branches",
    ]
    with pytest.raises(InputError, match="no list of attempts at composition"):
        next_attempt(log)


def test_doctor_of_a_dataset(world: tuple[Path, Path]) -> None:
    test = world[1] / "composition_test"
    shown = protocol_text(examine_datasets([test]))
    assert "simulation of 2026" in shown
    assert "runs of equal labels" in shown
    assert "ordered by class" not in shown
    labels = np.load(test / "labels_composition.npy")
    np.save(test / "labels_composition.npy", np.sort(labels))
    assert "5 runs of equal labels" in protocol_text(examine_datasets([test]))
    assert "ordered by class" in protocol_text(examine_datasets([test]))
    (test / "labels_composition.npy").unlink()
    assert "events to be predicted" in protocol_text(examine_datasets([test]))


def test_doctor_of_true_energies(tmp_path: Path) -> None:
    for name in ("one", "other"):
        simulate(ENERGY, tmp_path / name, n_train=300, n_test=60, seed=len(name), workers=1)
    train, others = (tmp_path / name / "energy_train" for name in ("one", "other"))
    energy = np.load(train / "labels_energy.npy")
    found = {line.what: line for line in folder_findings(train)}
    assert found["true lg(E/eV)"].outcome == (
        f"{energy.min():.2f} to {energy.max():.2f}, median {np.median(energy):.2f}"
    )
    assert found["order of rows"].state == "ok"
    quartiles = column_quartiles([train, others])
    assert [row["set"] for row in quartiles] == [str(train), str(others)], "two sets of one name are two sets"
    assert quartiles[0]["events"] + quartiles[1]["events"] < 600
    order = np.argsort(energy)
    for file in train.glob("*.npy"):
        np.save(file, np.load(file)[order])
    (train / "checksums.json").unlink()
    found = {line.what: line for line in folder_findings(train)}
    assert "ordered by class or energy (primary energy of neighbouring rows" in found["order of rows"].outcome


def test_doctor_shows_measured_columns_beside_simulated_ones(tmp_path: Path) -> None:
    measured, raw = tmp_path / "measured_raw", tmp_path / "raw"
    for folder in (measured, raw):
        folder.mkdir()
    write_archives(raw, "qgs_spectra", 300, gamma=False)
    quantities = np.tile([15.0, 1, 2, 20, 100, 5, 4, 1], (40, 1))
    quantities[:, 0] += np.arange(40) / 40
    quantities[20:, 3] = 35.0  # cut away
    for run in ("004000", "004001"):
        np.savez(measured / f"{run}_features.npz", features=quantities)
        np.savez(measured / f"{run}_matrices.npz", matrices=np.ones((40, 16, 16, 3), np.float32))
    of_measured, of_simulated = column_quartiles([raw, measured])
    assert (of_measured["set"], of_measured["events"], of_measured["Ze"]) == ("measured_raw", 40, (20.0, 20.0, 20.0))
    assert of_measured["E"] == pytest.approx(np.percentile(np.tile(quantities[:20, 0], 2), (25, 50, 75)), abs=1e-4)
    columns = np.load(raw / "qgs_spectra_features.npz")["features"]
    e, ze, ne, age = columns[:, [1, 5, 7, 9]].T
    passes = (ze < 30) & (ne > 4.8) & (age > 0.2) & (age < 1.48)
    assert of_simulated["events"] == passes.sum() > 20
    assert of_simulated["E"] == pytest.approx(np.percentile(e[passes], (25, 50, 75)), abs=1e-4)
    shown = protocol_text(examine_datasets([measured, raw]))
    assert "E, lg(E/eV)" in shown
    assert "15.12 15.24 15.36" in shown
    nexts = [line.outcome for line in folder_findings(raw) if line.what == "next"]
    assert nexts[0] == f"python cli.py convert {raw} --task composition --protocol 2026 --out data"


def test_doctor_of_a_set_with_rows_of_unknown_class(tmp_path: Path) -> None:
    write_archives(tmp_path, "qgs_spectra", 2000, gamma=False)
    with np.load(tmp_path / "qgs_spectra_features.npz") as stored:
        features = stored["features"]
    features[::50, 0] = 9.0
    features[25::50, 0] = -3.0
    np.savez(tmp_path / "qgs_spectra_features.npz", features=features)
    train, _ = convert(tmp_path, tmp_path / "data", COMPOSITION, protocol="2026")
    labels = np.load(train / "labels_composition.npy")
    assert (labels.max(), labels.min()) == (8, -4), "as the public scripts make them"
    (words,) = [line.outcome for line in folder_findings(train) if line.what == "classes"]
    assert words == ", ".join(f"{name} {(labels == k).sum():,}" for k, name in enumerate(COMPOSITION.classes))


def test_doctor_knows_what_the_program_wrote_itself(world: tuple[Path, Path], tmp_path: Path) -> None:
    run, data = world
    (run_words,) = [line.outcome for line in folder_findings(run) if line.what == "kind"]
    assert run_words == "run"
    assert [line.what for line in folder_findings(run.parent)] == [run.name, "next"], "a folder of runs"
    folder = write_submission([run], "mine", data=data, out=tmp_path)
    assert next(folder_findings(folder)).outcome == "submission"
    (tmp_path / "pictures").mkdir()
    with pytest.raises(InputError, match=r"pictures holds nothing that is known: no run, .*station lists"):
        list(folder_findings(tmp_path / "pictures"))
    with pytest.raises(InputError, match="nowhere is not a folder"):
        list(folder_findings(tmp_path / "nowhere"))


def test_published_results_of_2026() -> None:
    best = min((p for p in PUBLISHED if (p.task, p.protocol) == ("gamma", "2026")), key=lambda p: p.value)
    assert f"{best.value:.2e}" == "2.63e-04"
    assert best.interval.low < 1.5e-4 < 4e-4 < best.interval.high
    assert min(p.value for p in PUBLISHED if (p.task, p.protocol) == ("composition", "2026")) == 0.1051
    assert sum(TEST_CLASSES["gamma", "2026"]) == 1_579 + 34_267


COMMANDS = ("report", "compare", "submit", "leaderboard", "verify")


@pytest.fixture(scope="module")
def other_world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Another test set of the same length, and a run on it."""
    return make_world(tmp_path_factory.mktemp("other"), COMPOSITION, 3000, seed=6)


@pytest.fixture(scope="module")
def scored(composition_world: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The composition run with its score."""
    copy = shutil.copytree(composition_world[0], tmp_path_factory.mktemp("scored") / "run")
    score_file(copy / "predictions.npz", composition_world[1], COMPOSITION, intervals=False)
    return copy


@pytest.fixture
def run(scored: Path, tmp_path: Path) -> Path:
    """A scored run of which a test may change files."""
    return shutil.copytree(scored, tmp_path / "run")


def refused(command: str, run: Path, data: Path) -> str:
    """Return the one line with which a command refuses a run."""
    arguments = {
        "report": ["report", run],
        "compare": ["compare", run, run],
        "submit": ["submit", run, "--name", "one", "--out", run.parent / "submissions"],
        "leaderboard": ["leaderboard", run],
        "verify": [run / "predictions.npz"],
    }[command]
    program = "verify.py" if command == "verify" else "cli.py"
    said = call(program, *arguments, "--data", data, code=2).stderr
    assert said.count("\n") == 1
    return said


@pytest.mark.parametrize("command", COMMANDS)
def test_another_test_set_of_the_same_length_is_refused(
    command: str, run: Path, other_world: tuple[Path, Path]
) -> None:
    before = (run / "metrics_composition.json").read_bytes()
    message = refused(command, run, other_world[1])
    assert f"was made for other events than those of {other_world[1] / 'composition_test'}" in message
    assert (run / "metrics_composition.json").read_bytes() == before


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("swapped", ["predictions of other events", "another configuration", "no origin"])
def test_predictions_of_another_run_are_refused(
    command: str,
    swapped: str,
    run: Path,
    composition_world: tuple[Path, Path],
    other_world: tuple[Path, Path],
) -> None:
    file, expected = run / "predictions.npz", "predictions.npz"
    with np.load(file) as archive:
        own = dict(archive)
    if swapped == "predictions of other events":
        shutil.copy(other_world[0] / "predictions.npz", file)
    elif swapped == "another configuration":
        write_npz(file, **{**own, "config_hash": np.array("decaf")})
    else:
        write_npz(file, predictions=own["predictions"])
    if command == "leaderboard":
        # It reads what was measured, wherever that came from.
        truth = read_truth(composition_world[1], COMPOSITION)
        output, origin = read_output(file, COMPOSITION, len(truth.labels))
        metrics = score_arrays(truth, output, COMPOSITION, intervals=False) | vars(origin)
        expected = "metrics_composition.json"
        write_json(run / expected, with_checksum(metrics))
    message = refused(command, run, composition_world[1])
    assert f"{run / expected} is not what manifest.json beside it describes" in message


def test_foreign_predictions_are_scored_with_a_remark(
    run: Path, composition_world: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with np.load(run / "predictions.npz") as archive:
        write_npz(tmp_path / "foreign.npz", predictions=archive["predictions"])
        write_npz(tmp_path / "ours.npz", **archive)
    bare = tmp_path / "data" / "composition_test"
    bare.mkdir(parents=True)
    for name in ("features.npy", "labels_composition.npy"):
        shutil.copy(composition_world[1] / "composition_test" / name, bare)
    for name, data, remark in (
        ("ours.npz", composition_world[1], []),
        ("foreign.npz", composition_world[1], ["foreign.npz does not say for which events it was made"]),
        ("ours.npz", tmp_path / "data", ["composition_test holds no matrices.npy"]),
    ):
        monkeypatch.setattr(sys, "argv", ["verify.py", "--quiet", "--data", str(data), str(tmp_path / name)])
        assert verify.main() == 0
        warnings = json.loads((tmp_path / "metrics_composition.json").read_text())["warnings"]
        assert len(warnings) == len(remark)
        assert all(text.startswith(start) for text, start in zip(warnings, remark, strict=True))
