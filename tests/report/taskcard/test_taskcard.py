"""Task folders: their own evaluation agrees with ours, leaks nothing, and refuses what cannot be scored."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from report.public.scripts.evaluate_composition import fraction_error, read_submission
from report.public.scripts.evaluate_gamma import hadron_survival
from report.public.taskcard import CARDS, write_cards
from runtime.errors import InputError
from scoring.metrics.composition import fraction_error as our_error
from scoring.metrics.gamma import hadron_survival as our_survival
from showers.schema import task_named
from showers.simulation import simulate
from tests.report.card.test_card import check_crate


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cards") / "data"
    for task in CARDS:
        simulate(task_named(task), folder, n_train=200, n_test=300, seed=3, workers=1)
    return folder


def test_both_cards_pass_their_own_checks(data: Path, tmp_path: Path) -> None:
    found = write_cards(data, tmp_path, tuple(CARDS))
    assert [checks[1].startswith("gold 0, with rows exchanged") for checks in found.values()] == [True, True]
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
        described = json.loads((tmp_path / "shared" / "kascade-showers" / task / "croissant.json").read_text())
        for entry in described["distribution"]:
            file = tmp_path / "shared" / "kascade-showers" / task / entry["contentUrl"]
            assert entry["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
        crate = json.loads((tmp_path / "shared" / "kascade-showers" / task / "ro-crate-metadata.json").read_text())
        check_crate(crate, tmp_path / "shared" / "kascade-showers" / task)
    with pytest.raises(InputError, match="exists already"):
        write_cards(data, tmp_path, ("gamma",))


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
