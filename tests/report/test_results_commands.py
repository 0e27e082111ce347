"""Comparison, leaderboard, submission and doctor: what people read and hand in."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from report.compare import compare, differences
from report.doctor import findings
from report.public.leaderboard import Standing, leaderboard, march_of_nines, scores, standing, tables
from report.public.submission import write_submission, yaml_lines
from report.shared.published import PUBLISHED, TEST_CLASSES, DataOrigin, origin_of, published_for
from runtime.errors import InputError
from runtime.files import read_json, write_json, write_npz
from scoring.score import score_file
from showers.schema import COMPOSITION, GAMMA, task_named
from stacking.run.folder import write_run_checksums


def text(renderable: object, width: int = 100) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width).print(renderable)
    return stream.getvalue()


@pytest.fixture
def other_run(composition_world: tuple[Path, Path], tmp_path: Path) -> Path:
    """The composition run again, shipping its weakest learner."""
    run = shutil.copytree(composition_world[0], tmp_path / "weaker")
    with np.load(run / "test" / "random_forest.npz") as weakest, np.load(run / "predictions.npz") as own:
        write_npz(run / "predictions.npz", **{**own, "predictions": weakest["argmax"]})
    write_run_checksums(run)
    return run


def test_compare_finds_the_better_run(composition_world: tuple[Path, Path], other_run: Path) -> None:
    run, data = composition_world
    shown = text(compare([run, other_run], data))
    assert "composition is better" in shown
    assert "McNemar: labels right or wrong" in shown
    for place in ("lg E 15.0-15.5", "zenith 10-20 deg", "class iron"):
        assert place in shown
    assert "no difference is shown" in text(
        compare([run, run.parent / "." / run.name / "predictions.npz"], data, task=COMPOSITION)
    )


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


def test_march_of_nines() -> None:
    assert march_of_nines(1e-3, 1e-2, 1e-4) == 0.5
    assert march_of_nines(1e-5, 1e-2, 1e-4) == 1.5
    assert march_of_nines(0.0, 1e-2, 1e-4) is None
    assert march_of_nines(0.1, 0.1, 0.1) is None


def test_scores_run_from_weakest_valid_to_published_best() -> None:
    def row(value: float, *, ours: bool, tuned: bool = False) -> Standing:
        return Standing("gamma", "v2", "x", value, None, None, None, tuned, (), ours, 999)

    # 0 of 999 counts as 0.5 / 1000: no survivor is no infinity
    rows = [
        row(0.0, ours=True),
        row(4.5e-3 - 5e-4, ours=False, tuned=True),
        row(0.05, ours=False),
        row(0.4, ours=False, tuned=True),
    ]
    found = scores(rows)
    assert found[1] == 1.0
    assert found[2] == 0.0
    assert found[0] is not None
    assert found[0] > 1
    assert found[3] is not None
    assert found[3] < 0


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
        assert again == before | {"config_hash": again.get("config_hash")} or all(
            again[key] == before[key] for key in again
        )
    readme = (folder / "README.md").read_text()
    assert "Not the public test set" in readme
    assert "lenet failed: out of memory" in readme
    metadata = (folder / "metadata.yaml").read_text()
    assert "tuned_on_test: false" in metadata
    assert str(tmp_path) not in readme + metadata
    assert (folder / "code" / "scoring" / "metrics" / "composition.py").exists()
    assert not list((folder / "code").rglob("__pycache__"))
    with pytest.raises(InputError, match="exists already"):
        write_submission(runs, "mine-1", data=data, out=tmp_path / "out")


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
    lines = "\n".join(yaml_lines({"name": "a: b", "no": {"x y": [1, 2], "flag": True, "nothing": None}}))
    assert lines == 'name: "a: b"\n"no":\n  "x y": [1, 2]\n  flag: true\n  nothing: null'


def test_doctor_looks_at_everything(tmp_path: Path) -> None:
    found = {finding.what: finding for finding in findings(tmp_path / "not yet there")}
    assert {"Python", "packages", "torch", "cupy", "xgboost", "lightgbm", "memory", "cores", "disk"} <= set(found)
    assert found["Python"].state == "ok"
    assert found["--device auto"].found.endswith(("cpu", "cuda"))
    assert "numpy" in found["packages"].found


def test_manifest_without_a_task_is_refused(tmp_path: Path) -> None:
    write_json(tmp_path / "manifest.json", {"classes": []})
    write_run_checksums(tmp_path)
    with pytest.raises(InputError, match="names no task"):
        standing(tmp_path)
    assert json.loads((tmp_path / "manifest.json").read_text()) == read_json(tmp_path / "manifest.json")


def test_comparison_and_standings_for_programs(composition_world: tuple[Path, Path], other_run: Path) -> None:
    run, data = composition_world
    found = differences([run, other_run], data)
    (difference,) = found["first_minus"].values()
    assert difference["interval"]["low"] <= difference["difference"] <= difference["interval"]["high"] < 0
    assert len(found["runs"]) == 2
    score_file(run / "predictions.npz", data, COMPOSITION)
    ((task, protocol), rows) = next(iter(tables([run]).items()))
    assert task == "composition"
    assert protocol.startswith("simulation of v2")
    assert [row.ours for row in rows] == [True]
