"""Measured runs straight to predictions: the bytes of conversion and prediction, killed and continued, refused."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cli
from runtime.errors import InputError
from showers.archives.measured import convert_measured, run_list
from showers.simulation.measured import simulate_measured
from stacking.measured import UNFINISHED, predict_measured
from stacking.predict import predict_to_file
from stacking.run.config import StackConfig
from stacking.train import stack

KILLED_IN_THE_SECOND_RUN = """
import os, signal, sys
from pathlib import Path
from stacking import measured

raw, run, out = (Path(name) for name in sys.argv[1:])
whole, begun = measured.write_pieces, []

def killed(file, n_events, pieces):
    begun.append(file)
    if len(begun) == 2:
        file.write_bytes(b"half a file")
        os.kill(os.getpid(), signal.SIGKILL)
    whole(file, n_events, pieces)

measured.write_pieces = killed
measured.predict_measured(raw, out, run, trusted=True, workers=1, device="cpu")
"""


@pytest.fixture(scope="module")
def run(tiny_composition: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "composition"
    options = {"preset": "quick", "learners": ("quadratic_logit",), "folds": 2, "workers": 1, "device": "cpu"}
    options["fast"] = False
    stack(StackConfig(task="composition", data=tiny_composition, run=folder, **options))
    return folder


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Archives of three short runs, the last one damaged."""
    folder = tmp_path_factory.mktemp("measured")
    (folder / "sky.toml").write_text("runs = 3\nlive_time_h = 0.1\n")
    simulate_measured(folder / "sky.toml", folder / "raw", seed=5, workers=1)
    (sorted(folder.glob("raw/*_matrices.npz"))[2]).write_bytes(b"no archive")
    return folder / "raw"


@pytest.fixture(scope="module")
def expected(raw: Path, run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the predictions of the two good runs, made in two steps."""
    out = tmp_path_factory.mktemp("steps")
    found = {}
    for folder in convert_measured(raw, out / "measured").folders:
        file = out / f"{folder.name}.npz"
        predict_to_file(run, folder, file, workers=1, device="cpu", trusted=True)
        found[folder.name] = file.read_bytes()
    assert len(found) == 2
    return found


def _predictions(out: Path) -> dict[str, bytes]:
    return {file.parent.name: file.read_bytes() for file in sorted(out.glob("[!.]*/predictions.npz"))}


def _said(command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what the command line prints; it must end well."""
    monkeypatch.setattr(sys, "argv", ["cli.py", *command])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    printed = capsys.readouterr()
    assert not ended.value.code, printed.err
    return printed.out


def test_the_bytes_of_two_steps_and_no_grids(
    raw: Path, run: Path, expected: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    archives = shutil.copytree(raw, tmp_path / "raw")
    options = ["--out", str(tmp_path / "out"), "--predict", str(run), "--trusted", "--workers", "1", "--times"]
    command = ["convert", "--measured", str(archives), *options, "--delete-raw"]
    output = _said(command, monkeypatch, capsys)
    out = tmp_path / "out" / "predicted" / "composition"
    assert _predictions(out) == expected
    assert not list(tmp_path.glob("out/**/matrices.npy"))
    assert not list(tmp_path.glob("out/**/*.features"))
    assert "left out" in output
    for name in expected:
        times, energies = np.load(out / name / "times.npy"), np.load(out / name / "features.npy")
        assert len(times) == len(energies)
        assert np.isfinite(times).all()
        assert not (archives / f"{name}_matrices.npz").exists()
    assert run_list([out / name for name in expected])["events"].min() > 0
    # Given again, finished runs count without their grids, and nothing is done twice.
    written = {file: file.stat().st_mtime_ns for file in out.glob("[!.]*/predictions.npz")}
    assert "wrote predictions of 2 runs" in _said(command, monkeypatch, capsys)
    assert {file: file.stat().st_mtime_ns for file in out.glob("[!.]*/predictions.npz")} == written


def test_killed_it_goes_on(raw: Path, run: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-P", "-c", KILLED_IN_THE_SECOND_RUN, str(raw), str(run), str(out)]
    root = Path(__file__).parents[2]
    ended = subprocess.run(command, cwd=root, env=_environment(root), capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    first, second = sorted(expected)
    assert _predictions(out).keys() == {first}
    left = {path.name for path in (out / UNFINISHED).glob("*/*") if not path.name.startswith(".")}
    assert left == {second}, "no features"
    found = predict_measured(raw, out, run, trusted=True, workers=1, device="cpu")
    assert [folder.name for folder in found.folders] == [first, second]
    assert _predictions(out) == expected
    assert not (out / UNFINISHED).exists()


def _environment(root: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(root)}


def test_what_an_interruption_left_is_not_taken_for_another_protocol(
    raw: Path, run: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    first = min(expected)
    convert_measured(raw, tmp_path / UNFINISHED, runs=[first], protocol="matched")
    predict_measured(raw, tmp_path, run, runs=[first], trusted=True, workers=1, device="cpu")
    assert _predictions(tmp_path) == {first: expected[first]}


def test_other_predictions_are_never_overwritten(
    raw: Path, run: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    first = min(expected)
    options = {"runs": [first], "trusted": True, "workers": 1, "device": "cpu"}
    predict_measured(raw, tmp_path, run, **options)
    with pytest.raises(InputError, match="differs in times_asked_for"):
        predict_measured(raw, tmp_path, run, **options, times=True)
    with (tmp_path / first / "predictions.npz").open("ab") as file:
        file.write(b"more")
    with pytest.raises(InputError, match="is not the file that was written"):
        predict_measured(raw, tmp_path, run, **options)
    (tmp_path / first / "predicted.json").unlink()
    with pytest.raises(InputError, match="exists already: choose another folder"):
        predict_measured(raw, tmp_path, run, **options)
    with pytest.raises(InputError, match="unknown protocol 'v3'"):
        predict_measured(raw, tmp_path / "other", run, protocol="v3")
