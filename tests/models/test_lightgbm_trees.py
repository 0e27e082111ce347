"""Trees of LightGBM summed by compiled code against the library itself, to the bit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import lightgbm as lgb
import numpy as np
import pytest

from showerstack.models.registry import open_predictor
from showerstack.models.tables.lightgbm import LightGBM
from showerstack.models.tables.lightgbm_trees import (
    AT_ONCE,
    MODEL_FILE,
    LightGBMPredictor,
    LightGBMTrees,
    OtherTrees,
)
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import hash_file, read_json, write_json
from tests.models.conftest import CLASSES, gaussian_events

N_ROWS = 3 * AT_ONCE + 11


def table_of(n: int, seed: int, *, missing: bool = True) -> np.ndarray:
    """Return columns with zeros, values that count as zero, whole numbers, huge values and, if asked for, gaps."""
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(n, 12)).astype(np.float32)
    table[:, 3] = np.round(table[:, 3])
    table[:, 4] *= np.float32(1e30)
    table[rng.random(table.shape) < 0.05] = 0.0
    table[rng.random(table.shape) < 0.02] = 1e-36
    if missing:
        table[rng.random(table.shape) < 0.05] = np.nan
    return np.asfortranarray(table)


def labels_of(table: np.ndarray, n_classes: int) -> np.ndarray:
    clean = np.nan_to_num(table)
    signal = clean[:, 0] + clean[:, 1] * clean[:, 2] + 0.5 * np.isnan(table[:, 5]) + clean[:, 3]
    return np.searchsorted(np.quantile(signal, np.linspace(0, 1, n_classes + 1)[1:-1]), signal)


def model_text(n_classes: int, *, missing: bool = True, rounds: int = 30, **parameters: Any) -> str:
    table = table_of(3000, 1, missing=missing)
    objective = {"objective": "binary"} if n_classes == 2 else {"objective": "multiclass", "num_class": n_classes}
    chosen = {"verbosity": -1, "num_threads": 1, "min_data_in_leaf": 5, **objective, **parameters}
    data = lgb.Dataset(table, labels_of(table, n_classes), categorical_feature=parameters.pop("categories", []))
    chosen.pop("categories", None)
    return lgb.train(chosen, data, rounds).model_to_string()


@pytest.mark.parametrize("n_classes", [2, 5])
@pytest.mark.parametrize("missing", [True, False])
@pytest.mark.parametrize(
    "parameters", [{"num_leaves": 6, "feature_fraction": 0.25}, {"num_leaves": 32}, {"num_leaves": 2}]
)
def test_sums_are_those_of_the_library(n_classes: int, missing: bool, parameters: dict[str, Any]) -> None:
    text = model_text(n_classes, missing=missing, **parameters)
    new = np.concatenate([table_of(N_ROWS, 2), table_of(50, 1, missing=missing)])  # borders lie between values seen
    expected = lgb.Booster(model_str=text).predict(new, raw_score=True, num_threads=1)
    np.testing.assert_array_equal(LightGBMTrees.parse(text).margins(np.asfortranarray(new)), expected)


def test_trees_without_a_split_add_their_value() -> None:
    text = model_text(5, min_data_in_leaf=2000, rounds=3)
    new = table_of(20, 2)
    expected = lgb.Booster(model_str=text).predict(new, raw_score=True)
    np.testing.assert_array_equal(LightGBMTrees.parse(text).margins(new), expected)


def test_values_on_a_border_go_where_the_library_sends_them() -> None:
    text = model_text(2, missing=False, num_leaves=8)
    trees = LightGBMTrees.parse(text)
    columns, borders = trees.arrays[1], trees.arrays[2]
    rows = []
    for column, border in zip(columns, borders, strict=True):
        for value in (border, np.nextafter(border, np.float32(np.inf)), np.nextafter(border, np.float32(-np.inf))):
            row = np.zeros(12, np.float32)
            row[column] = value
            rows.append(row)
    new = np.asfortranarray(np.stack(rows))
    expected = lgb.Booster(model_str=text).predict(new, raw_score=True)
    np.testing.assert_array_equal(trees.margins(new), expected)


@pytest.mark.parametrize(
    "parameters",
    [{"linear_tree": True}, {"zero_as_missing": True}, {"num_leaves": 33}, {"categories": [3]},
     {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.5}],
)  # fmt: skip
def test_other_trees_are_left_to_the_library(parameters: dict[str, Any]) -> None:
    with pytest.raises(OtherTrees):
        LightGBMTrees.parse(model_text(2, rounds=5, **parameters))


@pytest.fixture(scope="module", params=[2, 5])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[LightGBM, Path]:
    priors = np.array([0.3, 0.7]) if request.param == 2 else None
    classes = CLASSES[: request.param]
    learner = LightGBM(classes, {"rounds": 40, "min_data_in_leaf": 5, "class_weights": "balanced"})
    learner.fit(gaussian_events(1500, 1, priors).batch, gaussian_events(300, 2, priors).batch, seed=1)
    folder = tmp_path_factory.mktemp("saved") / "lightgbm"
    learner.save(folder)
    return learner, folder


def test_a_saved_learner_predicts_the_same_bytes_without_the_library(saved: tuple[LightGBM, Path]) -> None:
    learner, folder = saved
    new = gaussian_events(N_ROWS, 3).batch
    opened = open_predictor(folder)
    assert isinstance(opened, LightGBMPredictor)
    np.testing.assert_array_equal(opened.predict_log_proba(new), learner.predict_log_proba(new))
    assert opened.predict_log_proba(new.take(np.arange(0))).shape == (0, len(learner.classes))
    program = (
        "import sys; from pathlib import Path; from showerstack.models.registry import open_predictor; "
        "open_predictor(Path(sys.argv[1])); print({'torch', 'lightgbm', 'sklearn', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "set()"


def test_linear_trees_are_opened_by_the_library(tmp_path: Path) -> None:
    learner = LightGBM(CLASSES, {"rounds": 5, "min_data_in_leaf": 5, "linear_tree": True})
    learner.fit(gaussian_events(600, 1).batch, gaussian_events(200, 2).batch, seed=1)
    learner.save(tmp_path)
    assert isinstance(open_predictor(tmp_path), LightGBM)


@pytest.mark.parametrize(
    ("old", "new"),
    [("leaf_value=", "leaf_worth="), ("num_leaves=", "num_leaves=1"), ("left_child=", "left_child=7 "),
     ("split_feature=", "split_feature=99 "), ("max_feature_idx=5", "max_feature_idx=1"),
     ("threshold=", "threshold=x")],
)  # fmt: skip
def test_a_file_that_is_no_such_model_is_refused_in_one_line(
    old: str, new: str, saved: tuple[LightGBM, Path], tmp_path: Path
) -> None:
    for file in saved[1].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    model = tmp_path / MODEL_FILE
    text = model.read_text()
    assert old in text
    model.write_text(text.replace(old, new, 1))
    header = read_json(tmp_path / "learner.json")
    header["files"][MODEL_FILE] = hash_file(model)
    write_json(tmp_path / "learner.json", header)
    with pytest.raises(InputError, match=r"lightgbm\.txt"):
        open_predictor(tmp_path)
