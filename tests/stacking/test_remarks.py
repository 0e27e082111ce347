"""Remarks on data whose numbers may mislead: said of what is wrong, never of clean data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from showerstack.models.base.learner import Batch
from showerstack.stacking.remarks import weight_remarks
from showerstack.stacking.train import stack
from tests.stacking.conftest import CLASSES
from tests.stacking.fakes import Linear
from tests.stacking.test_tables import _config

SETS = range(20)
"""Seeds of clean data, of which nothing may be said."""


@pytest.mark.usefixtures("fakes")
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e9])
def test_learners_of_plug_ins_get_weights_of_mean_one(
    scale: float, two_gaussians: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[np.ndarray] = []

    def note(self: Linear, x: np.ndarray, y: np.ndarray, train: Batch) -> dict[str, np.ndarray]:
        assert train.weights is not None
        seen.append(train.weights)
        return learn(self, x, y, train)

    learn = Linear._learn
    monkeypatch.setattr(Linear, "_learn", note)
    weights = scale * np.random.default_rng(0).lognormal(size=1200)
    pl.read_parquet(two_gaussians[0]).with_columns(w=weights).write_parquet(tmp_path / "weighted.parquet")
    stack(_config(tmp_path / "run", tmp_path / "weighted.parquet", weight="w", learners=("fake_linear",)))
    assert [part.mean() for part in seen] == pytest.approx([1.0] * 3, rel=1e-6)


def test_very_unequal_weights_are_remarked_with_the_effective_number_of_rows() -> None:
    labels = np.tile([0, 1], 500)
    (said,) = weight_remarks("t.csv", np.where(labels == 1, 1e-4, 1.0), labels, CLASSES)
    assert "1,000 rows count like 500.1, class 'far' has 1.0e-04 of the weight and 0.5 of the rows" in said
    (said,) = weight_remarks("t.csv", np.where(np.arange(1000) < 2, 1e3, 1.0), labels, CLASSES)
    assert "1,000 rows count like 4.5" in said


@pytest.mark.parametrize("seed", SETS)
def test_nothing_is_said_of_usual_weights(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, 300)
    assert not weight_remarks("t.csv", rng.lognormal(0, 0.7, 300), labels, CLASSES)
    assert not weight_remarks("t.csv", np.where(labels == 1, 1e-3, 1e-2), labels, CLASSES)
    assert not weight_remarks("t.csv", None, labels, CLASSES)
