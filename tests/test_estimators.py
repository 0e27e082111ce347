"""The estimators keep scikit-learn's contract, classes and groups are the user's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import showerstack
from showerstack import EnergyRegressor, ShowerClassifier, StackClassifier
from showerstack.api import fitted
from showerstack.runtime.errors import InputError
from showerstack.stacking.meta import calibration
from showerstack.stacking.run.folder import MANIFEST_FILE

QUICK = {
    "preset": "quick", "learners": "quadratic_logit", "metas": "average", "folds": 2, "repeats": 1, "holdout": 0.0,
    "fast": False, "workers": 1, "device": "cpu", "trusted": True,
}  # fmt: skip
NO_WEIGHTS = "weights that differ between rows are refused"
EXPECTED_FAILURES = {
    "check_sample_weights_not_overwritten": NO_WEIGHTS,
    "check_sample_weight_equivalence_on_dense_data": NO_WEIGHTS,
    "check_classifiers_one_label_sample_weights": NO_WEIGHTS,
    "check_fit2d_1feature": "its labels are at random and have a class of one row, of which no fold can hold one",
}


@pytest.fixture
def one_calibrator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calibration by a temperature alone: what the contract is about does not depend on it."""
    for kind in ("vector", "matrix"):
        monkeypatch.delitem(calibration.KINDS, kind)


@pytest.mark.usefixtures("one_calibrator")
@parametrize_with_checks([StackClassifier(**QUICK)], expected_failed_checks=lambda _: EXPECTED_FAILURES)
def test_scikit_learns_contract(estimator: StackClassifier, check: object) -> None:
    check(estimator)  # type: ignore[operator]


def _visits(n_patients: int = 60, seed: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return x, labels and groups of five visits each: a patient's number is told by x, not the illness."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(n_patients), 5)
    ill = rng.integers(0, 2, n_patients)
    x = np.repeat(rng.normal(size=(n_patients, 2)), 5, axis=0) + 0.01 * rng.normal(size=(5 * n_patients, 2))
    return x, np.where(ill[groups], "ill", "healthy"), groups


def test_groups_reach_the_folds_and_frames_keep_their_words(tmp_path: Path) -> None:
    x, y, groups = _visits()
    model = StackClassifier(tmp_path / "run", **QUICK).fit(x, y, groups=groups)
    folds = pl.read_parquet(tmp_path / "run" / "oof" / "stack.parquet")["fold"].to_numpy()
    assert all(len(np.unique(folds[groups == g])) == 1 for g in np.unique(groups))
    assert model.classes_.tolist() == ["healthy", "ill"]
    np.testing.assert_allclose(model.predict_proba(x).sum(axis=1), 1)
    frame = pl.DataFrame({"colour": np.where(y == "ill", "red", "blue"), "x": x[:, 0]})
    model = StackClassifier(**QUICK).fit(frame, y)
    assert model.score(frame, y) == 1
    assert model.score(frame.to_pandas(), y) == 1
    with pytest.raises(ValueError, match="now missing:\n- x"):
        model.predict(frame.drop("x"))
    with pytest.raises(InputError, match="X has a column 'class'"):
        StackClassifier(**QUICK).fit(frame.rename({"x": "class"}), y)


def test_options_reach_the_run_and_models_are_cloned(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    y = rng.integers(0, 2, 200) + 10
    x = rng.normal(size=(200, 2)) + 2 * (y[:, None] - 10)
    model = clone(StackClassifier(tmp_path / "run", **QUICK | {"seed": 7}))
    assert model.get_params()["seed"] == 7
    model.fit(x, y)
    assert set(np.unique(model.predict(x))) == {10, 11}
    assert pl.read_json(tmp_path / "run" / MANIFEST_FILE)["seed"].item() == 7
    assert fitted(tmp_path / "run").classes == (10, 11)
    scaled = make_pipeline(StandardScaler(), StackClassifier(**QUICK))
    assert cross_val_score(scaled, x, y, cv=2).mean() > 0.8


@pytest.mark.parametrize("model", [ShowerClassifier(), EnergyRegressor()], ids=lambda model: type(model).__name__)
def test_showers_come_in_folders(model: ShowerClassifier | EnergyRegressor, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="X is ndarray, expected the folder"):
        model.fit(np.zeros((3, 2)))
    with pytest.raises(InputError, match="labels of showers are in the folder"):
        model.fit(tmp_path, np.zeros(3))
    with pytest.raises(InputError, match="sample_weight of showers are read from the dataset folder"):
        model.fit(tmp_path, sample_weight=np.ones(3))


def test_showers_are_classified(tiny_composition: Path, tmp_path: Path) -> None:
    model = ShowerClassifier(tmp_path / "run", **QUICK | {"holdout": None}).fit(tiny_composition)
    test = tiny_composition / "composition_test"
    result, truth = model.predict(test), np.load(test / "labels_composition.npy")
    assert model.classes_.tolist() == [0, 1, 2, 3, 4]
    assert model.predict_proba(test).shape == (len(truth), 5)
    assert model.score(test, truth) == pytest.approx(np.mean(result == truth))
    predicted = showerstack.predict(tmp_path / "run", test, no_table=True, trusted=True)
    np.testing.assert_array_equal(predicted.labels, result)
    value = showerstack.score(predicted, tiny_composition)
    assert value.low <= float(value) <= value.high
    with pytest.raises(InputError, match="has no scores"):
        model.decision_function(test)
