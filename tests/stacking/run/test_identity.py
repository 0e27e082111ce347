"""What a run is made from is in its identity: data, and the labels it is trained on."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from features.build import build_table
from models.registry import spec
from runtime import code
from showers.dataset import Dataset
from showers.schema import COMPOSITION
from showers.writer import write_dataset
from stacking.inputs.events import ShowerEvents
from stacking.run.config import StackConfig
from stacking.run.identity import fit_code_version
from stacking.run.job import Job


@pytest.fixture
def sets(tiny_composition: Path, tmp_path: Path) -> Path:
    """Folder with a training set of 60 showers, its test set, and tables of their scalars."""
    for split in ("train", "test"):
        whole = Dataset.open(tiny_composition / f"composition_{split}", COMPOSITION)
        with write_dataset(tmp_path / f"composition_{split}", 60, COMPOSITION, source=dict(whole.source)) as writer:
            assert whole.labels is not None
            writer.put(0, whole.matrices[:60], whole.scalars[:60], whole.labels[:60])
        build_table(tmp_path / f"composition_{split}", groups=("reconstruction",), workers=1)
    return tmp_path


def _identity(data: Path) -> dict[str, object]:
    config = StackConfig(task="composition", data=data, run=data / "run")
    train, test = (
        ShowerEvents(folder, folder.with_name(f"{folder.name}.features"), COMPOSITION, labelled=labelled)
        for folder, labelled in ((config.train_folder, True), (config.test_folder, False))
    )
    return Job(config, COMPOSITION, train, test, {"lightgbm": "cpu"}).identity


def test_relabelled_training_data_is_another_run(sets: Path, tmp_path: Path) -> None:
    before = _identity(sets)
    assert _identity(sets) == before
    folder = sets / "composition_train"
    (folder / "checksums.json").unlink()
    assert _identity(sets) == before, "checksums are no content"
    labels = np.load(folder / "labels_composition.npy")
    labels[3] = (labels[3] + 1) % 5
    np.save(folder / "labels_composition.npy", labels)
    after = _identity(sets)
    assert [name for name in before if after[name] != before[name]] == ["train_fingerprint"]


def test_test_labels_are_in_no_identity(sets: Path) -> None:
    before = _identity(sets)
    (sets / "composition_test" / "labels_composition.npy").write_text("poison")
    assert _identity(sets) == before
    shutil.rmtree(sets / "composition_test.features")
    build_table(sets / "composition_test", groups=("reconstruction",), workers=1)
    assert _identity(sets) == before


def test_fits_are_discarded_by_what_can_change_them_and_by_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def versions() -> dict[str, str]:
        return {name: fit_code_version(spec(name)) for name in ("lightgbm", "xgboost", "mlp", "mlp_bag", "lenet")}

    before = versions()
    assert len(set(before.values())) == len(before)
    counted = source_hash_counting(monkeypatch)
    versions()
    by_name = {spec(name).learner: files for name, files in zip(before, counted, strict=True)}
    lightgbm, mlp = by_name["models.tables.lightgbm:LightGBM"], by_name["models.networks.physics:TabularMLP"]
    assert "models/tables/lightgbm.py" in lightgbm
    assert "stacking/fit/tasks.py" in lightgbm & mlp
    assert not {"models/tables/xgboost.py", "models/networks/loop.py"} & lightgbm
    assert {"models/networks/loop.py", "models/networks/learner.py"} <= mlp
    assert not any("stacking/meta" in file or "stacking/decide" in file or "predict" in file for file in lightgbm | mlp)
    monkeypatch.undo()
    monkeypatch.setattr(code, "version_of", lambda name: "0.0" if name == "lightgbm" else "1.0")
    other = versions()
    monkeypatch.setattr(code, "version_of", lambda name: "0.1" if name == "lightgbm" else "1.0")
    changed = [name for name, version in versions().items() if version != other[name]]
    assert changed == ["lightgbm"]


def source_hash_counting(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """Return a list that gets the files of every version that is made from now on."""
    found: list[set[str]] = []

    def counting(files: list[Path], packages: tuple[str, ...]) -> str:
        found.append({"/".join(file.parts[-3:]) for file in files})
        return ""

    monkeypatch.setattr("stacking.run.identity.source_hash", counting)
    return found
