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
from stacking.predict import predict_to_file

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
    "type": (_replace("matrices.npy", lambda m: m.astype(np.complex128)), "matrices.npy has type complex128"),
    "length": (_replace("features.npy", lambda f: f[:-1]), "features.npy has 59 rows"),
    "label": (_label_nine, "row 17 holds label 9"),
    "nan": (_cell(np.nan), "matrices.npy: row 5, cell (1, 2), channel 0 holds nan"),
    "infinite": (_cell(np.inf), "matrices.npy: row 5, cell (1, 2), channel 0 holds inf"),
    "negative": (_cell(-1.0), "matrices.npy: row 5, cell (1, 2), channel 0 holds -1"),
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
        "--learners", "lightgbm", "--preset", "quick", "--workers", "1", "--device", "cpu", "--strict",
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


def test_bad_rows_are_not_trained_on_and_get_the_training_prior(
    tiny_composition: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What an odd row holds changes nothing but its own posterior, in a run and in later predictions."""
    n, runs = 200, {}
    rows = {"train": [7, 11, 30], "test": [3, 50]}
    for value in (np.nan, -1.0):
        data = tmp_path / f"data{value}"
        for split in ("train", "test"):
            source, folder = tiny_composition / f"composition_{split}", data / f"composition_{split}"
            folder.mkdir(parents=True)
            for name in ("matrices.npy", "features.npy", "labels_composition.npy"):
                array = np.load(source / name)[:n].copy()
                if name == "matrices.npy":
                    array[rows[split], 1, 2, 0] = value
                if name == "features.npy":
                    array[rows[split][0], 3] = np.inf if value == -1.0 else np.nan
                np.save(folder / name, array)
        run = tmp_path / f"run{value}"
        arguments = [
            "stack", "--data", str(data), "--run", str(run), "--learners", "quadratic_logit", "--preset", "quick",
            "--workers", "1", "--device", "cpu", "--folds", "2",
        ]  # fmt: skip
        monkeypatch.setattr(sys, "argv", ["cli.py", *arguments])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        assert not stopped.value.code
        said = " ".join(capsys.readouterr().out.split())
        assert "3 of 200 rows of composition_train cannot be used (3 cells, 1 column Ne): nothing is trained" in said
        assert (
            "2 of 200 rows of composition_test cannot be used (2 cells, 1 column Ne): they get the training prior"
            in said
        )
        with np.load(run / "predictions.npz") as stored:
            runs[value] = stored["log_proba"]
        again = predict_to_file(run, data / "composition_test", tmp_path / f"{value}.npz", workers=1, no_table=True)
        assert any("training prior" in remark for remark in again.remarks)
        with np.load(tmp_path / f"{value}.npz") as stored:
            np.testing.assert_array_equal(stored["log_proba"], runs[value])
    np.testing.assert_array_equal(runs[np.nan], runs[-1.0])
    judged = np.load(tmp_path / "runnan" / "judged.npy")
    assert not judged[rows["train"]].any()
    assert (np.load(tmp_path / "runnan" / "folds.npy")[:, rows["train"]] == -1).all()
    all_labels = np.load(tiny_composition / "composition_train" / "labels_composition.npy")[:n]
    prior = np.bincount(all_labels[judged], minlength=5) / judged.sum()
    np.testing.assert_allclose(np.exp(runs[np.nan][rows["test"]]), np.tile(prior, (2, 1)))
