"""What docs/extending.md shows works as it stands there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from features import catalogue as features_catalogue
from features import compute, groups
from features.device import namespace
from models import catalogue, registry
from models.base import Batch
from showers.array import DetectorArray
from showers.kascade import KASCADE

TEXT = (Path(__file__).parent.parent / "docs" / "extending.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)


def file_of(tmp_path: Path, number: int, package: str) -> None:
    """Write a block under the name in its first line, where its package is then also looked for."""
    name, _, code = BLOCKS[number].partition("\n")
    assert name.removeprefix("# ").startswith(package.replace(".", "/"))
    (tmp_path / Path(name.removeprefix("# ")).name).write_text(code)


def test_no_example_is_long() -> None:
    for block in BLOCKS:
        assert len([line for line in block.splitlines() if line.strip()]) <= 30


def test_a_feature_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file_of(tmp_path, 0, "features.groups")
    monkeypatch.setattr(groups, "__path__", [*groups.__path__, str(tmp_path)])
    module = groups.modules()[-1]
    assert module.GROUPS[0].name == "trigger"
    monkeypatch.setattr(compute, "MODULES", (*features_catalogue.MODULES, module))
    monkeypatch.setitem(features_catalogue.CATALOGUE, "trigger_share", module.FEATURES[0])
    grids = np.zeros((2, *KASCADE.grid_shape), np.float32)
    grids[1, :4, :4, 0] = 10.0
    columns = compute.compute_chunk(namespace("cpu"), grids, np.zeros((2, 5), np.float32), frozenset({"trigger"}))
    np.testing.assert_allclose(columns["trigger_share"], [0.0, 16 / 252], rtol=1e-6)
    sys.modules.pop("features.groups.trigger")


def test_a_learner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file_of(tmp_path, 1, "models.catalogue")
    monkeypatch.setattr(catalogue, "__path__", [*catalogue.__path__, str(tmp_path)])
    monkeypatch.setattr(registry, "LEARNERS", registry._declared())
    labels = np.repeat([0, 1], [30, 10])
    events = Batch(index=np.arange(40), table=np.arange(40, dtype=np.float32)[:, None], columns=("x",), labels=labels)
    learner = registry.create(registry.spec("frequencies"), ("gamma", "hadron"))
    learner.fit(events, events, seed=1).save(tmp_path / "saved")
    np.testing.assert_allclose(np.exp(registry.load(tmp_path / "saved").predict_log_proba(events)[0]), [0.75, 0.25])
    sys.modules.pop("models.catalogue.frequencies")


def test_an_array() -> None:
    made: dict[str, DetectorArray] = {}
    exec(BLOCKS[2], made)
    assert made["ARRAY"].n_stations == made["ARRAY"].n_muon_detectors == 144
