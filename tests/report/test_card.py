"""The model card of a run: complete and true to the run's files, with a header that programs read.

Task folders have an evaluation that agrees with ours, leak nothing, and refuse what cannot be scored.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from showerstack.report.card import write_card
from showerstack.report.public.scripts.evaluate_composition import fraction_error, read_submission
from showerstack.report.public.scripts.evaluate_gamma import hadron_survival
from showerstack.report.public.taskcard import CARDS, write_cards, write_variants
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import write_json
from showerstack.scoring.metrics.composition import fraction_error as our_error
from showerstack.scoring.metrics.gamma import hadron_survival as our_survival
from showerstack.scoring.score import score_file
from showerstack.showers.schema import COMPOSITION, task_named
from showerstack.showers.simulation import simulate
from showerstack.stacking.folder import RunFolder


@pytest.fixture
def world(composition_world: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """A copy of (run, data)."""
    run = Path(shutil.copytree(composition_world[0], tmp_path / "run"))
    for name in ("metrics_composition.json", "report.html"):
        (run / name).unlink(missing_ok=True)
    return run, composition_world[1]


def test_an_unscored_run_has_a_card_without_a_score(world: tuple[Path, Path]) -> None:
    text = write_card(world[0]).read_text()
    assert "model-index" not in text
    assert "Not scored on a labelled test set" in text
    assert "Used for predictions: **stack**" in text
    assert "lenet (left out)" in text


def test_a_scored_run_says_what_it_reached_with_intervals(world: tuple[Path, Path]) -> None:
    run, data = world
    metrics = score_file(run / "predictions.npz", data, COMPOSITION)
    (run / "report.html").write_text("page")
    text = write_card(run).read_text()
    value, interval = metrics["mean_fraction_error"], metrics["intervals"]["mean_fraction_error"]
    assert f"fraction error {value:.4g} [{interval['low']:.4g}, {interval['high']:.4g}]" in text
    assert "| test: composition\\_test | 3,000 | simulated (model mix, seed 1, protocol v2) |" in text
    assert "Trained on showers simulated by showerstack" in text
    assert "0.028 CPU hours, 400 MB peak memory." in text
    assert "Software and models: MIT. Data: simulated data: MIT." in text
    for place in (run, data):
        assert str(place) not in text, "a card names no folder of this machine"
    start, header, _ = text.split("---\n", 2)
    fields = {key: json.loads(value) for key, value in (line.split(": ", 1) for line in header.splitlines())}
    assert start == ""
    assert (fields["license"], fields["library_name"]) == ("mit", "showerstack")
    (model,) = fields["model-index"]
    assert {"type": "fraction_error", "value": value} in model["results"][0]["metrics"]


def test_a_score_written_by_hand_is_not_believed(world: tuple[Path, Path]) -> None:
    run, data = world
    metrics = score_file(run / "predictions.npz", data, COMPOSITION, intervals=False)
    assert "fraction error" in write_card(run).read_text().split("## Metrics")[1]
    for changed in ({**metrics, "mean_fraction_error": 1e-9}, {k: v for k, v in metrics.items() if k != "checksum"}):
        write_json(run / "metrics_composition.json", changed)
        text = write_card(run).read_text()
        assert "Not scored on a labelled test set" in text
        assert "metrics\\_composition.json is not as it was written" in text
        assert "score the run again" in text


def test_the_origin_of_data_that_are_gone_is_kept(world: tuple[Path, Path]) -> None:
    run, _ = world
    manifest = json.loads((run / "manifest.json").read_text())
    assert "| not known: the folder is gone |" in write_card(run).read_text()
    for source, origin in (
        ({"generator": "showers.simulation", "seed": 3}, "simulated (seed 3)"),
        ({}, "not simulated here"),
    ):
        manifest["data"] |= {"train": "gone/train", "train_source": source, "test": "gone/test", "test_source": source}
        write_json(run / "manifest.json", manifest)
        RunFolder(run).write_checksums()
        text = write_card(run).read_text()
        assert text.count(f"| {origin} |") == 2
        assert ("simulated by showerstack" in text) == (origin != "not simulated here")


def test_equal_runs_have_equal_cards(world: tuple[Path, Path]) -> None:
    run, _ = world
    assert write_card(run).read_bytes() == write_card(run).read_bytes()


def test_markup_in_names_stays_text(world: tuple[Path, Path], tmp_path: Path) -> None:
    run = tmp_path / "own"
    shutil.copytree(world[0], run)
    manifest = json.loads((run / "manifest.json").read_text())
    write_json(run / "manifest.json", manifest | {"task": "own", "classes": ["a|b", "<script>", "*c*\nd"]})
    known = {"value": 0.5, "low": 0.4, "high": 0.6, "level": 0.95}
    scores = {"judged_on": "rows", "shipped": "a", "systems": {"a": dict.fromkeys(("log_loss", "accuracy"), known)}}
    scores["systems"]["a"] |= {"auc": None, "auc_by_class": {}, "confusion": []}
    write_json(run / "metrics_table.json", scores)
    RunFolder(run).write_checksums()
    assert r"a\|b, \<script\>, \*c\* d" in write_card(run).read_text()


def test_an_unfinished_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a finished run"):
        write_card(tmp_path)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cards") / "data"
    for task in CARDS:
        simulate(task_named(task), folder, n_train=200, n_test=300, seed=3, workers=1)
    return folder


@pytest.mark.slow
def test_both_cards_pass_their_own_checks(data: Path, tmp_path: Path) -> None:
    result = write_cards(data, tmp_path, tuple(CARDS))
    assert [checks[1].startswith("gold 0, with rows exchanged") for checks in result.values()] == [True, True]
    for task, card in CARDS.items():
        folder = tmp_path / card.name
        names = {path.name for path in folder.iterdir()}
        assert names == {
            "metadata.yaml", "project_description.md", "prepare.py", "evaluate_prepare.py", "evaluate.py",
            "custom_labels.py",
        }  # fmt: skip
        info = json.loads((folder / "metadata.yaml").read_text())["logging_info"]
        assert (info["name"], info["shape"], info["sota"]) == (card.name, "(300,)", [])
        assert (folder / "evaluate.py").read_text() in (folder / "project_description.md").read_text()
        assert not (tmp_path / "shared" / "kascade-showers" / task / "test" / "source.json").exists()
    with pytest.raises(InputError, match="exists already"):
        write_cards(data, tmp_path, ("gamma",))


def test_mlgym_tasks_hide_labels_and_are_evaluated(data: Path, tmp_path: Path) -> None:
    write_cards(data, tmp_path / "out", ("gamma",), ("mlgym",))
    name = CARDS["gamma"].name
    folder = tmp_path / "out" / "mlgym" / name
    task = json.loads((folder / "configs" / "tasks" / f"{name}.yaml").read_text())
    dataset = json.loads((folder / "configs" / task["dataset_configs"][0]).read_text())
    assert dataset["is_local"]
    prepared = Path(dataset["data_path"])
    assert {path.relative_to(prepared).as_posix() for path in prepared.rglob("*.npy")} == {
        "train/matrices.npy", "train/features.npy", "train/labels.npy", "test/matrices.npy", "test/features.npy"
    }  # fmt: skip
    assert (folder / "data" / "evaluate.py").read_text() in task["description"].format(dataset_docs="")
    workspace = tmp_path / "workspace"
    (workspace / "data" / "test_with_labels").mkdir(parents=True)
    labels = np.load(data / "gamma_test" / "labels_gamma.npy")
    np.save(workspace / "data" / "test_with_labels" / "labels.npy", labels)
    scores = np.where(labels == 0, 1.0, 0.0)
    scores[np.flatnonzero(labels == 1)[:3]] = 1.0
    (workspace / "submission.csv").write_text("\n".join(["gamma_score", *map(str, scores)]) + "\n")
    command = [sys.executable, str(folder / "data" / "evaluate.py"), "--submission_file", "submission.csv"]
    printed = subprocess.run(command, cwd=workspace, capture_output=True, text=True, check=True).stdout
    assert json.loads(printed.split("---")[-1]) == {"HadronSurvival": pytest.approx(3 / np.sum(labels == 1))}


def test_a_task_without_a_card_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    for write in (
        lambda: write_cards(tmp_path, tmp_path / "out", ("composition", "energy")),
        lambda: write_variants(tmp_path / "out", ("energy",), ("airs",), seed=1, n_train=100, n_test=100),
    ):
        with pytest.raises(InputError, match="task 'energy' has no card: choose from composition, gamma"):
            write()
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_variant_is_of_new_showers_in_another_world(data: Path, tmp_path: Path) -> None:
    sizes = {"n_train": 200, "n_test": 300}
    names = [
        list(write_variants(tmp_path / place, ("composition",), ("airs",), seed=seed, **sizes))
        for place, seed in (("a", 8), ("b", 8), ("c", 9))
    ]
    assert names[0] == names[1] != names[2], "one seed is one variant, which its name tells"
    arrays = [
        np.load(tmp_path / place / "shared" / "kascade-showers" / "composition" / "test" / "matrices.npy")
        for place in "abc"
    ]
    np.testing.assert_array_equal(arrays[0], arrays[1])
    assert not np.array_equal(arrays[0], arrays[2])
    assert not np.array_equal(arrays[0], np.load(data / "composition_test" / "matrices.npy"))
    plain = simulate(
        task_named("composition"), tmp_path / "same", n_train=200, n_test=300, seed=8, train_cuts="test", workers=1
    )
    assert not np.array_equal(arrays[0], np.load(plain[1] / "matrices.npy")), "the world's constants are drawn too"
    for file in (tmp_path / "a").rglob("*"):
        assert file.name not in ("source.json", "truth.parquet"), "the seed and the truth stay behind"
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [names[0][0], "shared"]


def test_evaluations_agree_with_ours() -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 5, 2000)
    predicted = np.where(rng.random(2000) < 0.5, truth, rng.integers(0, 5, 2000))
    assert fraction_error(truth, predicted) == pytest.approx(our_error(truth, predicted), abs=1e-12)
    assert fraction_error(truth, truth) == 0.0
    photon, score = rng.integers(0, 2, 2000), np.round(rng.normal(size=2000), 1)
    assert hadron_survival(photon, score) == our_survival(photon, score).hadron_survival


@pytest.mark.parametrize("text", ["label\n1\n", "label\n1\n2.0\n", "label\n1\n5\n", "class\n1\n2\n", ""])
def test_a_submission_of_another_form_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text(text)
    with pytest.raises(SystemExit, match="expected"):
        read_submission(tmp_path / "s.csv", 2)


def test_showers_in_both_splits_are_refused(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "data")
    for split, n in (("train", 200), ("test", 300)):
        folder = tmp_path / "data" / f"gamma_{split}"
        (folder / "checksums.json").unlink(missing_ok=True)
        np.save(folder / "groups.npy", np.arange(n, dtype=np.int64))
    with pytest.raises(InputError, match="in training and test"):
        write_cards(tmp_path / "data", tmp_path / "out", ("gamma",))
