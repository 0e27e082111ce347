"""A sound dataset has no problems; each kind of damage is one line that names the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from showers.dataset import Dataset
from showers.schema import GAMMA
from showers.writer import is_dataset, problems, write_dataset


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with write_dataset(tmp_path / "gamma_test", 4, GAMMA, source={}) as writer:
        writer.put(0, np.ones((4, 16, 16, 2)), np.ones((4, 5)), np.array([0, 1, 0, 1]))
    return tmp_path / "gamma_test"


def test_sound(folder: Path) -> None:
    assert is_dataset(folder)
    assert problems(folder) == []
    (folder / "checksums.json").unlink()
    assert problems(folder) == []
    assert not is_dataset(folder.parent)


@pytest.mark.parametrize("name", ["matrices.npy", "features.npy", "labels_gamma.npy", "source.json", "checksums.json"])
@pytest.mark.parametrize("damage", ["lost", "cut", "changed"])
def test_damage_is_named(folder: Path, name: str, damage: str) -> None:
    if (name, damage) == ("checksums.json", "lost"):
        return
    content = (folder / name).read_bytes()
    changed = {"cut": content[:-1], "changed": content[:-2] + b"\x7f" + content[-1:]}
    if damage == "lost":
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(changed[damage].rstrip(b"\n}") if name == "checksums.json" else changed[damage])
    found = problems(folder)
    assert len(found) == 1
    assert name in found[0]


def test_bad_cells_are_found_without_checksums(folder: Path) -> None:
    (folder / "checksums.json").unlink()
    grids = np.load(folder / "matrices.npy")
    grids[2, 3, 4, 1] = np.nan
    np.save(folder / "matrices.npy", grids)
    assert "matrices.npy: row 2, cell (3, 4), channel 1 holds nan" in problems(folder)[0]


def test_reading_for_a_fingerprint_says_what_is_read(folder: Path) -> None:
    told: list[tuple[float, float, str]] = []
    data = Dataset.open(folder)

    def heard(done: float, total: float, note: str = "") -> None:
        told.append((done, total, note))

    assert data.fingerprint(heard) == data.fingerprint()
    assert told[0] == (0, 2, "matrices.npy, 0.00 GB")
