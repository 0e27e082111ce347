"""Remarks on data whose numbers may mislead: said of what is wrong, never of clean data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from showerstack.models.base.learner import Batch
from showerstack.runtime.context import Context
from showerstack.showers.schema import COMPOSITION
from showerstack.showers.simulation import simulate
from showerstack.stacking.config import StackConfig, TableConfig
from showerstack.stacking.events import open_showers
from showerstack.stacking.remarks import heap_remarks, telling_remarks, weight_remarks
from showerstack.stacking.tables.data import open_table
from showerstack.stacking.training.train import stack
from tests.stacking.conftest import CLASSES
from tests.stacking.fakes import Linear
from tests.stacking.test_tables import _config

QUICK = {"preset": "quick", "folds": 2, "repeats": 1, "workers": 1, "device": "cpu"}
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
    assert [part.mean() for part in seen] == pytest.approx([1.0] * 3, rel=0.15), "one is the mean of all folds"


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


def _heaps(n_groups: int, in_group: int, dimensions: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
    rng, groups = np.random.default_rng(1), np.repeat(np.arange(n_groups), in_group)
    around = rng.normal(size=(n_groups, dimensions))[groups]
    return around + noise * rng.normal(size=around.shape), rng.integers(0, 2, n_groups)[groups]


@pytest.mark.parametrize(
    ("n_groups", "in_group", "dimensions", "noise"), [(120, 5, 2, 0.01), (200, 3, 5, 0.05), (60, 10, 10, 0.3)]
)
def test_rows_in_heaps_are_remarked(n_groups: int, in_group: int, dimensions: int, noise: float) -> None:
    (said,) = heap_remarks("t.csv", *_heaps(n_groups, in_group, dimensions, noise), "name them with --group")
    assert "of the rows lie in small heaps" in said


def test_no_heaps_are_seen_where_there_are_no_quantities() -> None:
    labels = np.tile([0, 1], 100)
    for columns in (np.zeros((0, 0)), np.ones((200, 1)), np.full((200, 3), np.nan), np.ones((200, 3))):
        assert heap_remarks("t.csv", columns, labels[: len(columns)], "") == []


def test_heaps_are_said_of_a_run_without_groups_alone(tmp_path: Path) -> None:
    x, labels = _heaps(60, 5, 3, 0.02)
    frame = pl.DataFrame(x, schema=["a", "b", "c"]).with_columns(kind=labels, box=np.arange(300) // 5)
    frame.write_csv(tmp_path / "t.csv")
    options = {"learners": ("table.logistic",), "table": tmp_path / "t.csv", "label": "kind"}
    config = TableConfig(run=tmp_path / "a", columns=("a", "b", "c"), **QUICK, **options)
    assert any("small heaps" in line for line in open_table(config, Context(), strict=False).remarks)
    grouped = config.model_copy(update={"group": "box"})
    assert not any("small heaps" in line for line in open_table(grouped, Context(), strict=False).remarks)


@pytest.mark.parametrize("seed", SETS)
def test_no_heaps_are_seen_in_independent_rows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(120, 3000)), int(rng.integers(2, 12))
    labels, mixed = rng.integers(0, 3, n), rng.normal(size=(d, d))
    for x in (rng.normal(size=(n, d)) @ mixed, rng.standard_t(2, size=(n, d)) + labels[:, None], rng.random((n, d))):
        assert heap_remarks("t.csv", x, labels, "") == []
        assert heap_remarks("t.csv", x.astype(np.float16).astype(float), labels, "") == []


def test_a_column_that_is_the_label_is_named() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 300)
    told = {
        "recoded": np.array([7.0, 2.0, 5.0])[labels],
        "several codes": labels + 3.0 * rng.integers(0, 4, 300),
        "threshold": labels + rng.random(300),
        "missing": np.where(labels == 1, np.nan, labels),
    }
    others = {"noisy": labels + rng.normal(size=300), "mostly": np.where(np.arange(300) == 9, (labels + 1) % 3, labels),
              "unique": rng.permutation(300).astype(float)}  # fmt: skip
    said = telling_remarks("t.csv", told | others, labels)
    assert [line.split("'")[1] for line in said] == list(told)


@pytest.mark.parametrize("seed", SETS)
def test_no_column_of_overlapping_classes_is_called_the_label(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, 200)
    columns = {"x": labels + rng.normal(size=200), "few": rng.integers(0, 3, 200).astype(float), "same": np.zeros(200)}
    assert telling_remarks("t.csv", columns, labels) == []


@pytest.mark.parametrize(("n", "reuse"), [(1_499, 1), (1_500, 1), (1_600, 5)])
def test_presets_of_few_showers_train_what_starts_from_weights(tmp_path: Path, n: int, reuse: int) -> None:
    """320 showers that are used five times each are few."""
    simulate(COMPOSITION, tmp_path, n_train=n, n_test=20, train_cuts="test", workers=1, reuse=reuse)
    config = StackConfig(task="composition", data=tmp_path, run=tmp_path / "run", preset="quick", workers=1)
    data = open_showers(config, Context(), strict=False)
    is_few = (n, reuse) != (1_500, 1)
    assert (data.config.learners == ("pretrained",)) == is_few
    assert any("pretrained alone is trained" in one for one in data.remarks) == is_few
    told = config.model_copy(update={"learners": ("lightgbm",)})
    assert open_showers(told, Context(), strict=False).config.learners == ("lightgbm",)
