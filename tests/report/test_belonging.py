"""Predictions are judged by the events they were made for, and a run folder holds its own; or nobody goes on."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import cli
import verify
from runtime.files import write_npz
from scoring.score import score_file
from showers.schema import COMPOSITION
from tests.report.conftest import make_world

COMMANDS = ("report", "compare", "submit", "leaderboard", "verify")


@pytest.fixture(scope="module")
def other_world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Another test set of the same length, and a run on it."""
    return make_world(tmp_path_factory.mktemp("other"), COMPOSITION, 3000, seed=6)


@pytest.fixture
def run(composition_world: tuple[Path, Path], tmp_path: Path) -> Path:
    """A scored run of which a test may change files."""
    copy = shutil.copytree(composition_world[0], tmp_path / "run")
    score_file(copy / "predictions.npz", composition_world[1], COMPOSITION, intervals=False)
    return copy


def refused(
    command: str, run: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """Return the one line with which a command refuses a run."""
    arguments = {
        "report": ["report", run],
        "compare": ["compare", run, run],
        "submit": ["submit", run, "--name", "one", "--out", run.parent / "submissions"],
        "leaderboard": ["leaderboard", run],
        "verify": [run / "predictions.npz"],
    }[command]
    monkeypatch.setattr(sys, "argv", ["program", *map(str, arguments), "--data", str(data)])
    if command == "verify":
        code = verify.main()
    else:
        with pytest.raises(SystemExit) as ended:
            cli.main()
        code = int(ended.value.code or 0)
    printed = capsys.readouterr().err
    assert (code, printed.count("\n")) == (2, 1)
    return printed


@pytest.mark.parametrize("command", COMMANDS)
def test_another_test_set_of_the_same_length_is_refused(
    command: str,
    run: Path,
    other_world: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = (run / "metrics_composition.json").read_bytes()
    message = refused(command, run, other_world[1], monkeypatch, capsys)
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
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
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
        score_file(file, composition_world[1], COMPOSITION, intervals=False)
        expected = "metrics_composition.json"
    message = refused(command, run, composition_world[1], monkeypatch, capsys)
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
