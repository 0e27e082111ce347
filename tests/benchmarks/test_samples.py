"""Samples that benchmarks keep are taken again only for the same showers."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.shared.samples import sample, sample_name
from runtime.files import read_json
from showers.dataset import Dataset
from showers.schema import COMPOSITION, GAMMA, SOURCE_FILE

SMALL = {"n_train": 30, "n_test": 20, "seed": 1}


def test_another_seed_is_another_sample(tmp_path):
    first, second = (sample(COMPOSITION, tmp_path, **{**SMALL, "seed": seed}, workers=1) for seed in (1, 2))
    assert first != second
    grids = [np.asarray(Dataset.open(folder / "composition_test", COMPOSITION).matrices) for folder in (first, second)]
    assert not np.array_equal(*grids)
    assert [read_json(f / "composition_test" / SOURCE_FILE)["seed"] for f in (first, second)] == [1, 2]


def test_the_same_sample_is_drawn_once(tmp_path):
    folder = sample(COMPOSITION, tmp_path, **SMALL, workers=1)
    made = (folder / "composition_test" / SOURCE_FILE).stat().st_mtime_ns
    assert sample(COMPOSITION, tmp_path, **SMALL, workers=1) == folder
    assert (folder / "composition_test" / SOURCE_FILE).stat().st_mtime_ns == made


@pytest.mark.parametrize(
    "change",
    [{"n_train": 31}, {"n_test": 21}, {"seed": 2}, {"world": "harder"}, {"model": "qgs"}, {"protocol": "matched"}],
)
def test_whatever_defines_the_showers_is_in_the_name(change):
    assert sample_name(COMPOSITION, **{**SMALL, **change}) != sample_name(COMPOSITION, **SMALL)


def test_tasks_and_constants_are_in_the_name(monkeypatch):
    name = sample_name(COMPOSITION, **SMALL)
    assert sample_name(GAMMA, **SMALL) != name
    monkeypatch.setattr("benchmarks.shared.samples.source_hash", lambda *_: "other code")
    assert sample_name(COMPOSITION, **SMALL) != name
