"""True quantities beside the labels: who may read them, and files that are refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from runtime.errors import InputError
from showers.dataset import Dataset
from showers.event_files import TRUTH_COLUMNS, read_truth
from showers.schema import COMPOSITION


def test_truth_needs_labels_and_is_what_was_simulated(tiny_composition: Path) -> None:
    folder = tiny_composition / "composition_train"
    data = Dataset.open(folder, COMPOSITION)
    truth = data.truth()
    assert truth.columns == list(TRUTH_COLUMNS)
    stored = pl.read_parquet(folder / "truth.parquet")
    np.testing.assert_array_equal(truth["lg_energy"], stored["lg_energy"].cast(pl.Float64))
    assert data.truth_fingerprint() is not None
    unlabelled = Dataset.open(folder, labels=False)
    for ask in (unlabelled.truth, unlabelled.truth_fingerprint):
        with pytest.raises(InputError, match="opened without labels"):
            ask()


def test_a_folder_without_truth_says_so(tiny_composition: Path, tmp_path: Path) -> None:
    names = ("matrices.npy", "features.npy", "labels_composition.npy")
    for name in names:
        shutil.copy(tiny_composition / "composition_test" / name, tmp_path / name)
    data = Dataset.open(tmp_path, COMPOSITION)
    assert data.truth_fingerprint() is None
    with pytest.raises(InputError, match=r"has no truth\.parquet"):
        data.truth()


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ({"lg_energy": [15.0, 15.0]}, "has 2 rows, but the folder has 3 events"),
        ({"energy": [15.0, 15.0, 15.0]}, "none of the columns lg_energy"),
        ({"lg_energy": ["a", "b", "c"]}, "column lg_energy holds String"),
        ({"xmax": [500.0, float("inf"), 1.0]}, "row 1, column xmax is infinite"),
    ],
)
def test_unusable_truth_is_refused(frame: dict[str, list[object]], message: str, tmp_path: Path) -> None:
    file = tmp_path / "truth.parquet"
    pl.DataFrame(frame).write_parquet(file)
    with pytest.raises(InputError, match=message):
        read_truth(file, 3)


def test_what_is_not_known_is_nan(tmp_path: Path) -> None:
    file = tmp_path / "truth.parquet"
    pl.DataFrame({"mass": [1, None, 56]}).write_parquet(file)
    found = read_truth(file, 3)
    np.testing.assert_array_equal(found["mass"], [1.0, np.nan, 56.0])
    assert found["xmax"].is_nan().all()
    file.write_bytes(b"no parquet")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        read_truth(file, 3)
