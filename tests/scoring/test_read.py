"""Damaged archives are refused or read rightly: never misread, never another error."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from runtime.arrays import read_arrays
from runtime.checksums import write_checksums as write_checksums
from runtime.errors import InputError
from scoring.score import Origin, read_output
from scoring.tasks.truth import read_truth
from showers.schema import COMPOSITION, GAMMA
from tests.faults.rounds import rounds

LABELS = np.arange(200) % 5


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed], ids=["stored", "compressed"])
@rounds(100, 300)
def test_damage_is_never_misread(n: int, save: object, tmp_path: Path, survived: Counter[str]) -> None:
    file = tmp_path / "p.npz"
    save(file, predictions=LABELS, config_hash=np.array("abc"))  # type: ignore[operator]
    whole = file.read_bytes()
    rng = np.random.default_rng(1)
    refused = 0
    for k in range(n):
        damaged = bytearray(whole)
        for place in rng.integers(0, len(whole), size=1 + k % 3):
            damaged[place] = int(rng.integers(0, 256))
        if k % 5 == 0:
            damaged = damaged[: int(rng.integers(0, len(whole)))]
        file.write_bytes(damaged)
        try:
            found, _ = read_output(file, COMPOSITION, len(LABELS))
        except InputError:
            refused += 1
        else:
            assert (found == LABELS).all()
    assert refused > n / 2
    survived["damages"] += n


def test_types_of_numbers_that_are_accepted(tmp_path: Path) -> None:
    file = tmp_path / "p.npz"
    for kind in (np.int8, np.uint8, np.int64, np.uint64):
        np.savez(file, predictions=LABELS.astype(kind))
        found, origin = read_output(file, COMPOSITION, 200)
        assert (found == LABELS).all()
        assert origin == Origin(None, None)
    for kind in (np.float16, np.float32, np.float64, np.int32):
        np.savez(file, gamma_scores=LABELS.astype(kind), config_hash=np.array("abc"))
        scores, origin = read_output(file, GAMMA, 200)
        assert scores.dtype == np.float64
        assert origin == Origin("abc", None)


def test_an_archive_with_nothing_wanted_names_what_it_holds(tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", scores=LABELS)
    with pytest.raises(InputError, match=r"no array 'predictions' .it holds scores."):
        read_arrays(tmp_path / "p.npz", "predictions")


def test_labels_that_are_not_those_that_were_written_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "composition_test"
    folder.mkdir()
    np.save(folder / "labels_composition.npy", LABELS.astype(np.int8))
    np.save(folder / "features.npy", np.full((200, 5), 15, np.float16))
    write_checksums(folder, ("labels_composition.npy", "features.npy"))
    assert (read_truth(tmp_path, COMPOSITION).labels == LABELS).all()
    np.save(folder / "labels_composition.npy", LABELS[::-1].astype(np.int8))
    with pytest.raises(InputError, match=r"labels_composition\.npy is not the file that was written"):
        read_truth(tmp_path, COMPOSITION)
