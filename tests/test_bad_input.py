"""What a user can get wrong in a dataset is told in one line naming file and row, with exit code 2."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import cli
from runtime.errors import InputError
from showers.dataset import Dataset

N = 60
Arrays = dict[str, np.ndarray]
Spoil = Callable[[Arrays], None]


def _cell(value: float) -> Spoil:
    def spoil(arrays: Arrays) -> None:
        arrays["matrices.npy"][5, 1, 2, 0] = value

    return spoil


def _replace(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Spoil:
    def spoil(arrays: Arrays) -> None:
        arrays[name] = change(arrays[name])

    return spoil


def _one_iron(arrays: Arrays) -> None:
    labels = arrays["labels_composition.npy"]
    labels[labels == 4] = 3
    labels[0] = 4


def _label_nine(arrays: Arrays) -> None:
    arrays["labels_composition.npy"][17] = 9


def _no_size(arrays: Arrays) -> None:
    arrays["features.npy"][5, 3] = np.nan


CASES: dict[str, tuple[Spoil, str]] = {
    "shape": (_replace("matrices.npy", lambda m: m[:, :, :15]), "matrices.npy has shape (60, 16, 15, 2)"),
    "type": (_replace("matrices.npy", lambda m: m.astype(np.float64)), "matrices.npy has type float64"),
    "length": (_replace("features.npy", lambda f: f[:-1]), "features.npy has 59 rows"),
    "label": (_label_nine, "row 17 holds label 9"),
    "nan": (_cell(np.nan), "event 5, cell (1, 2), channel 0 holds nan"),
    "infinite": (_cell(np.inf), "event 5, cell (1, 2), channel 0 holds inf"),
    "negative": (_cell(-1.0), "event 5, cell (1, 2), channel 0 holds -1"),
    "scalar": (_no_size, "row 5, column Ne holds nan"),
    "few": (_one_iron, "iron"),
    "objects": (_replace("features.npy", lambda f: f.astype(object)), "features.npy"),
}


def _refused(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(sys, "argv", ["cli.py", *arguments])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    return lines[0]


def _write_sets(tiny: Path, folder: Path, spoil: Spoil) -> None:
    for split in ("train", "test"):
        source = tiny / f"composition_{split}"
        arrays = {
            name: np.load(source / name)[:N].copy()
            for name in ("matrices.npy", "features.npy", "labels_composition.npy")
        }
        if split == "train":
            spoil(arrays)
        (folder / f"composition_{split}").mkdir(parents=True)
        for name, array in arrays.items():
            np.save(folder / f"composition_{split}" / name, array)


@pytest.mark.parametrize("case", CASES)
def test_spoilt_training_set(
    case: str,
    tiny_composition: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spoil, expected = CASES[case]
    _write_sets(tiny_composition, tmp_path / "data", spoil)
    arguments = [
        "stack", "--data", str(tmp_path / "data"), "--run", str(tmp_path / "run"),
        "--learners", "lightgbm", "--preset", "quick", "--workers", "1", "--device", "cpu",
    ]  # fmt: skip
    assert expected in _refused(arguments, monkeypatch, capsys)
    assert not (tmp_path / "run" / "predictions.npz").exists()


def test_truncated_file(
    tiny_composition: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _write_sets(tiny_composition, tmp_path, lambda arrays: None)
    file = tmp_path / "composition_train" / "matrices.npy"
    file.write_bytes(file.read_bytes()[:20_000])
    message = _refused(["features", str(tmp_path / "composition_train")], monkeypatch, capsys)
    assert "matrices.npy cannot be read" in message
    assert not (tmp_path / "composition_train.features" / "catalogue.json").exists()


def test_missing_file(
    tiny_composition: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _write_sets(tiny_composition, tmp_path, lambda arrays: None)
    (tmp_path / "composition_train" / "features.npy").unlink()
    message = _refused(["features", str(tmp_path / "composition_train")], monkeypatch, capsys)
    assert "features.npy does not exist" in message


@pytest.mark.parametrize("entry", ["cli.py", "verify.py"])
def test_libraries_that_are_not_installed_are_told_with_what_to_do(entry: str) -> None:
    # -S -E: Python without the environment's libraries, as when it was not activated.
    said = subprocess.run(
        [sys.executable, "-S", "-E", entry], cwd=Path(cli.__file__).parent, capture_output=True, text=True
    )
    assert said.returncode == 2
    assert re.fullmatch(r"error: \S+ has no library '\w+': activate the environment .*\n", said.stderr), said.stderr


def test_the_folder_above_a_dataset_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "data" / "gamma_test").mkdir(parents=True)
    (tmp_path / "data" / "gamma_test" / "matrices.npy").touch()
    with pytest.raises(InputError, match=r"data is no dataset folder, but holds some: did you mean .*/gamma_test\?"):
        Dataset.open(tmp_path / "data")
