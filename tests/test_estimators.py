"""The estimators keep scikit-learn's contract, classes and groups are the user's."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from joblib.externals.loky import get_reusable_executor
from scipy.special import expit
from sklearn import config_context
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier, StackingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Perceptron, RidgeClassifier, SGDClassifier
from sklearn.model_selection import KFold, ShuffleSplit, TimeSeriesSplit, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks

import showerstack
from showerstack import EnergyRegressor, ShowerClassifier, StackClassifier, estimators
from showerstack.api import fitted
from showerstack.runtime.errors import InputError, Remark
from showerstack.runtime.frames import frame_of
from showerstack.showers.schema import MANIFEST_FILE

pytestmark = pytest.mark.filterwarnings("ignore::showerstack.runtime.errors.Remark")
QUICK = {
    "preset": "quick", "learners": "table.logistic", "pools": "average", "folds": 2, "repeats": 1, "holdout": 0.0,
    "workers": 1, "device": "cpu",
}  # fmt: skip
EXPECTED_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": "folds are of rows: a row twice is not a row of weight 2",
    "check_fit2d_1feature": "its labels are at random and have a class of one row, of which no fold can hold one",
}


@pytest.mark.slow
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
    with pytest.raises(InputError, match="row 0, column 'colour' holds"):
        StackClassifier(**QUICK).fit(frame, y)
    model = StackClassifier(**QUICK, categories=["colour"]).fit(frame, y)
    assert model.score(frame, y) == 1
    assert model.score(frame.to_pandas(), y) == 1
    with pytest.raises(ValueError, match="now missing:\n- x"):
        model.predict(frame.drop("x"))
    with pytest.raises(InputError, match="has a column 'class' already"):
        StackClassifier(**QUICK).fit(frame.rename({"x": "class"}), y)


def _two_classes(n: int = 200, seed: int = 2) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    return rng.normal(size=(n, 2)) + 2 * y[:, None], y


@pytest.mark.slow
def test_an_estimator_survives_its_process(tmp_path: Path) -> None:
    x, y = _two_classes()
    model = StackClassifier(**QUICK)
    found = cross_validate(model, x, y, cv=2, n_jobs=2, return_estimator=True)
    get_reusable_executor().shutdown(wait=True)
    assert [one.score(x, y) > 0.8 for one in found["estimator"]] == [True, True]
    joblib.dump(found["estimator"][0], tmp_path / "model.joblib")
    assert (tmp_path / "model.joblib").stat().st_size < 2e7
    before = found["estimator"][0].predict_proba(x)
    shutil.rmtree(found["estimator"][0].run_)
    np.testing.assert_array_equal(joblib.load(tmp_path / "model.joblib").predict_proba(x), before)
    with pytest.raises(InputError, match=r"is gone, .* fit again, with run=FOLDER"):
        pickle.dumps(found["estimator"][0])


def test_a_run_in_a_folder_is_not_carried_and_a_large_one_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = _two_classes()
    model = StackClassifier(tmp_path / "run", **QUICK).fit(x, y)
    assert len(pickle.dumps(model)) < 5_000
    monkeypatch.setattr(estimators, "MAX_PICKLED_BYTES", 1_000)
    with pytest.raises(InputError, match=r"keep it in a folder, run=FOLDER"):
        pickle.dumps(StackClassifier(**QUICK).fit(x, y))


def test_a_run_and_its_estimator_belong_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative folder is the one where it was fitted, and another run in it is refused."""
    x, y = _two_classes()
    models, folders = [], [tmp_path / "one", tmp_path / "two"]
    for folder, labels in zip(folders, (y, 1 - y), strict=True):
        folder.mkdir()
        monkeypatch.chdir(folder)
        models.append(StackClassifier("run", **QUICK).fit(x, labels))
    one, two = (pickle.loads(pickle.dumps(model)) for model in models)
    assert one.run_ == folders[0] / "run"
    assert one.score(x, y) > 0.85 > 0.15 > two.score(x, y), "the working folder is that of the other"
    monkeypatch.chdir("/")
    assert two.score(x, 1 - y) > 0.85
    opened = fitted(folders[0] / "run")
    shutil.rmtree(folders[0] / "run")
    StackClassifier(folders[0] / "run", **QUICK).fit(x, 1 - y)
    for refused in (one.predict, one.predict_proba):
        with pytest.raises(InputError, match="holds another run than this estimator was fitted as"):
            refused(x)
    with pytest.raises(InputError, match="holds another run than when it was opened"):
        opened.predict(x)
    shutil.move(folders[1], tmp_path / "moved")
    monkeypatch.chdir(tmp_path / "moved")
    assert two.score(x, 1 - y) > 0.85, "project and run moved together"


def test_a_stack_of_scikit_learn_takes_it() -> None:
    x, y = _two_classes()
    members = [("ours", StackClassifier(**QUICK)), ("theirs", LogisticRegression())]
    assert StackingClassifier(members, cv=2).fit(x, y).score(x, y) > 0.8


def test_remarks_are_warnings() -> None:
    x, y = _two_classes()
    frame = pl.DataFrame({"kind": np.where(y, "b", "a"), "x": x[:, 0], "nothing": [None] * len(y)})
    model = StackClassifier(**QUICK, categories="kind")
    with pytest.warns(Remark, match="column 'nothing' is empty: it is ignored"):
        model.fit(frame, y)
    strange = frame.with_columns(kind=pl.lit("c"))
    with pytest.warns(Remark, match="column 'kind' holds 'c', which training rows do not have: 200 rows"):
        model.predict(strange)
    with pytest.raises(InputError, match="column 'kind' holds Boolean, in training it was a category"):
        model.predict(frame.with_columns(kind=y > 0))


def test_weights_of_rows_count() -> None:
    rng = np.random.default_rng(3)
    # The same x twice with either class: the odds are those of the weights.
    x, y = np.tile(rng.normal(size=(300, 2)), (2, 1)), np.repeat([0, 1], 300)
    weights = np.where(y == 1, 4.0, 1.0)
    proba = StackClassifier(**QUICK).fit(x, y, sample_weight=weights).predict_proba(x)[:, 1]
    assert abs(proba.mean() - 0.8) < 0.03
    half = np.where(x[:, 0] > 0, 1.0, 0.0)
    kept = StackClassifier(**QUICK).fit(x, y, sample_weight=half)
    plain = StackClassifier(**QUICK).fit(x[half > 0], y[half > 0])
    np.testing.assert_array_equal(kept.predict_proba(x), plain.predict_proba(x))
    with pytest.raises(ValueError, match="at least one non-zero number"):
        StackClassifier(**QUICK).fit(x, y, sample_weight=np.zeros(600))


@pytest.mark.parametrize("learner", ["table.logistic", "table.lightgbm", "table.xgboost", "table.catboost"])
def test_weights_times_a_constant_change_no_byte(learner: str) -> None:
    x, y = _two_classes(400)
    weights = np.random.default_rng(3).uniform(0.5, 2, len(y))
    options = QUICK | {"learners": learner}
    plain, *others = (
        StackClassifier(**options).fit(x, y, sample_weight=scale * weights).predict_proba(x)
        for scale in (1, 1e-12, 1e-6, 1e12)
    )
    assert all(np.array_equal(plain, other) for other in others)
    assert ((plain[:, 1] > 0.5) == (y == 1)).mean() > 0.85, "two Gaussians 2.8 standard deviations apart: .92"


BY_WEIGHT = (LogisticRegression(), LinearSVC(dual=False), RandomForestClassifier(20, random_state=0))
BY_COUNT = (
    SVC(), RidgeClassifier(), SGDClassifier(random_state=0), Perceptron(random_state=0),
    DecisionTreeClassifier(max_depth=3), HistGradientBoostingClassifier(max_iter=20),
)  # fmt: skip


@pytest.mark.parametrize("model", [*BY_WEIGHT, *BY_COUNT], ids=lambda model: type(model).__name__)
def test_what_scikit_learn_balances(model: Any) -> None:
    """As docs/estimators.md has it: what is balanced are weights in some classifiers, rows in others."""
    x, y = _two_classes(400)
    weights = np.where(y == 1, 3.0, 1.0) * np.random.default_rng(3).uniform(0.5, 2, len(y))

    def fitted(one: Any, given: np.ndarray) -> np.ndarray:
        one = clone(one).fit(x, y, sample_weight=given)
        return np.asarray(one.predict_proba(x)[:, 1] if hasattr(one, "predict_proba") else one.decision_function(x))

    balanced = fitted(clone(model).set_params(class_weight="balanced"), weights)
    summed = np.bincount(y, weights if model in BY_WEIGHT else None)
    np.testing.assert_allclose(balanced, fitted(model, weights * (summed.sum() / 2 / summed)[y]), atol=1e-6)


class Odds(ClassifierMixin, BaseEstimator):
    """Knows the log-odds: they are its only column."""

    def fit(self, x: np.ndarray, y: np.ndarray) -> Odds:
        self.classes_ = np.unique(y)
        return self

    def predict(self, x: np.ndarray) -> np.ndarray:
        return self.classes_[(x[:, 0] > 0).astype(int)]

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        return np.column_stack([expit(-x[:, 0]), expit(x[:, 0])])


class OddsAsScores(Odds):
    def decision_function(self, x: np.ndarray) -> np.ndarray:
        return x[:, 0]


def test_the_temperature_of_a_calibrated_classifier() -> None:
    """It is 2 for scikit-learn where there is a decision function: ours of tables has none."""
    rng = np.random.default_rng(5)
    x = 2.0 * rng.standard_normal((20_000, 1))
    y = (rng.random(len(x)) < expit(x[:, 0])).astype(int)
    found = []
    for model in (Odds(), OddsAsScores()):
        calibrated = CalibratedClassifierCV(FrozenEstimator(model.fit(x, y)), method="temperature").fit(x, y)
        found.append(1 / calibrated.calibrated_classifiers_[0].calibrators[0].beta_)
    assert found == pytest.approx([1.0, 2.0], rel=0.1)
    assert not hasattr(StackClassifier(), "decision_function")


def test_final_estimators_of_scikit_learn_get_weights_unasked() -> None:
    got = []

    class Told(LogisticRegression):
        def fit(self, x: np.ndarray, y: np.ndarray, sample_weight: np.ndarray | None = None) -> Told:
            got.append(sample_weight is not None)
            return super().fit(x, y, sample_weight)

    x, y = _two_classes()
    with config_context(enable_metadata_routing=True):
        member = LogisticRegression().set_fit_request(sample_weight=True)
        stack = StackingClassifier([("one", member)], final_estimator=Told().set_fit_request(sample_weight=False))
        stack.fit(x, y, sample_weight=np.ones(len(y)))
    assert got == [True]


def test_a_class_of_no_weight_is_remarked() -> None:
    x, y = _two_classes(400)
    with pytest.warns(Remark, match=r"400 rows count like 1\d\d\.\d, class '1' has 1\.\de-04 of the weight"):
        StackClassifier(**QUICK).fit(x, y, sample_weight=np.where(y == 1, 1e-4, 1.0))


def test_folds_of_ones_own(tmp_path: Path) -> None:
    x, y = _two_classes()
    options = {name: value for name, value in QUICK.items() if name not in ("folds", "repeats", "holdout")}
    cv = KFold(4, shuffle=True, random_state=0)
    StackClassifier(tmp_path / "run", **options, cv=cv).fit(x, y)
    folds = pl.read_parquet(tmp_path / "run" / "oof" / "stack.parquet")["fold"].to_numpy()
    for k, (_, test) in enumerate(cv.split(x)):
        assert (folds[test] == k).all()
    with pytest.raises(InputError, match="cv: fold 0 must train on all rows but those it tests"):
        StackClassifier(**options, cv=TimeSeriesSplit(3)).fit(x, y)
    with pytest.raises(InputError, match="cv: fold 1 must train"):
        StackClassifier(**options, cv=ShuffleSplit(2, test_size=0.5, train_size=0.5, random_state=0)).fit(x, y)


def test_frames_are_converted_exactly_or_refused_by_column() -> None:
    x = np.arange(6) / 3
    exact = frame_of(
        pd.DataFrame(
            {
                "sparse": pd.arrays.SparseArray(x),
                "big": x.astype(">f8"),
                "long": x.astype(np.longdouble),
                "gaps": pd.array([1, None, 3, 4, 5, 6], dtype="Int64"),
                "cut": pd.cut(x, 3),
                "objects": pd.Series([1, 2.5, None, 4, 5, 6], dtype=object),
                "word": pd.Series(["a", None] * 3, dtype="category"),
            }
        )
    )
    for name in ("sparse", "big", "long"):
        np.testing.assert_array_equal(exact[name], x)
    assert exact["gaps"].to_list() == [1, None, 3, 4, 5, 6]
    assert exact["objects"].to_list() == [1, 2.5, None, 4, 5, 6]
    assert exact["word"].to_list() == ["a", None] * 3
    assert [isinstance(exact[name].dtype, pl.Enum) for name in ("cut", "word")] == [True, True]
    for column, message in (
        (pd.Series([1, "a", 2.5] * 2, dtype=object), "row 1, column 's' holds 'a', others 1"),
        (pd.Series([True, 1] * 3, dtype=object), "row 1, column 's' holds 1, others True"),
        (pd.interval_range(0, 6), "column 's' holds interval"),
        (pd.period_range("2000-01", periods=6, freq="M"), r"column 's' holds period\[M\]: convert it"),
        (np.array([1 / np.longdouble(3)] * 6), "row 0, column 's' holds .* which float64 cannot"),
        (x * 1j, "column 's' holds complex128"),
        (pd.Series([{}] * 6), "column 's' holds dicts"),
        (pd.Series([2**53 + 1, 0.5] * 3, dtype=object), "row 0, column 's' holds 9007199254740993, which float64"),
        (pd.Categorical(np.array([1, "1"] * 3, dtype=object)), "several categories that are '1' as text"),
    ):
        with pytest.raises(InputError, match=message):
            frame_of(pd.DataFrame({"s": column}))
    twice = pd.DataFrame([[1, 2]] * 4, columns=["a", "a"])
    for read in (frame_of, lambda frame: StackClassifier(**QUICK).fit(frame, [0, 1, 0, 1])):
        with pytest.raises(InputError, match="2 columns 'a'"):
            read(twice)
    for column, message in (
        (pa.array([1], pa.decimal256(60, 2)), "column 's' cannot be converted"),
        (pa.array([(1, 2, 3)], pa.month_day_nano_interval()), "column 's' cannot be converted"),
    ):
        with pytest.raises(InputError, match=message):
            frame_of(pa.table({"s": column}))
    masked = np.ma.masked_array([[-9999.0], [2.0]], mask=[[True], [False]])
    assert frame_of(masked)["x0"].to_list() == [None, 2.0]


def test_labels_keep_their_type_and_none_is_missing() -> None:
    x, y = _two_classes()
    for labels in (
        pd.Series(2**53 + y, dtype="Int64"),
        pd.Series(y > 0, dtype="boolean"),
        pd.Series(2**53 + y, dtype="int64[pyarrow]"),
    ):
        model = StackClassifier(**QUICK).fit(x, labels)
        assert model.classes_.tolist() == sorted(set(labels.tolist()))
        assert model.classes_.dtype.kind == labels.dtype.kind
    for missing in (np.ma.masked_array(y, mask=y == 1), np.array([None, *y[1:]], dtype=object)):
        with pytest.raises(InputError, match=r"y: row \d has no label"):
            StackClassifier(**QUICK).fit(x, missing)


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


class Told:
    """What scikit-learn tells a callback, a line each; handed on by pipelines."""

    max_propagation_depth = None

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.losses: list[float] = []

    def setup(self, estimator: object, context: Any) -> None:
        self.lines.append("setup")

    def teardown(self, estimator: object, context: Any) -> None:
        self.lines.append("teardown")

    def on_fit_task_begin(self, estimator: object, context: Any) -> None:
        self.lines.append(f"{type(estimator).__name__} {context.task_name}")

    def on_fit_task_end(self, estimator: object, context: Any, *, metadata: dict[str, Any] | None = None) -> None:
        self.lines.append(f"end of {context.task_name}")
        if metadata and "log_loss" in metadata:
            self.losses.append(metadata["log_loss"])


def test_callbacks_of_scikit_learn_are_told_steps_and_numbers() -> None:
    pytest.importorskip("sklearn.callback")  # scikit-learn 1.9 and newer
    x, y, _ = _visits()
    told, own = Told(), []
    model = StackClassifier(**QUICK, callback=lambda *progress: own.append(progress))
    make_pipeline(StandardScaler(), model).set_callbacks(told).fit(x, y)
    first, last = told.lines.index("StackClassifier fit"), told.lines.index("end of training")
    fits = ["StackClassifier part", "end of part"] * 2
    assert told.lines[first : last + 1] == ["StackClassifier fit", "StackClassifier training", *fits, "end of training"]
    assert (told.lines[0], told.lines[-1], told.lines.count("teardown")) == ("setup", "teardown", 1)
    assert told.losses == [values["log_loss"] for *_, values in own if values]
    assert len(told.losses) == 2

    def broken(*progress: object) -> None:
        raise RuntimeError("enough")

    again = Told()
    with pytest.raises(RuntimeError, match="enough"):
        StackClassifier(**QUICK, callback=broken).set_callbacks(again).fit(x, y)
    assert again.lines[-1] == "teardown"


def test_energies_and_cores_come_with_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("lg_energy", "lg_energy_error", "core_x_m", "core_x_error_m", "core_y_m", "core_y_error_m")
    arrays = {name: np.arange(3.0) + k for k, name in enumerate(names)}
    model = EnergyRegressor()
    monkeypatch.setattr(EnergyRegressor, "_predict", lambda *_, **__: Mock(arrays=arrays))
    np.testing.assert_array_equal(model.predict("any"), arrays["lg_energy"])
    np.testing.assert_array_equal(model.predict("any", return_std=True), [arrays[name] for name in names[:2]])
    np.testing.assert_array_equal(model.predict_core("any"), np.transpose([arrays[name] for name in names[2:]]))
    del arrays["core_y_m"]
    model.run_ = Path("runs/a")
    with pytest.raises(InputError, match=r"runs/a has no learner that learned the core: train with a truth\.parquet"):
        model.predict_core("any")


@pytest.mark.parametrize("model", [ShowerClassifier(), EnergyRegressor()], ids=lambda model: type(model).__name__)
def test_showers_come_in_folders(model: ShowerClassifier | EnergyRegressor, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="X is ndarray, expected the folder"):
        model.fit(np.zeros((3, 2)))
    with pytest.raises(InputError, match="labels of showers are in the folder"):
        model.fit(tmp_path, np.zeros(3))
    with pytest.raises(InputError, match="sample_weight of showers are read from the dataset folder"):
        model.fit(tmp_path, sample_weight=np.ones(3))


@pytest.mark.slow
def test_showers_are_classified(tiny_composition: Path, tmp_path: Path) -> None:
    options = QUICK | {"holdout": None, "learners": "quadratic_logit"}
    model = ShowerClassifier(tmp_path / "run", **options).fit(tiny_composition)
    test = tiny_composition / "composition_test"
    result, truth = model.predict(test), np.load(test / "labels_composition.npy")
    assert model.classes_.tolist() == [0, 1, 2, 3, 4]
    assert model.predict_proba(test).shape == (len(truth), 5)
    assert model.score(test, truth) == pytest.approx(np.mean(result == truth))
    predicted = showerstack.predict(tmp_path / "run", test, no_table=True)
    np.testing.assert_array_equal(predicted.labels, result)
    value = showerstack.score(predicted, tiny_composition)
    assert value.low <= float(value) <= value.high
    with pytest.raises(InputError, match="has no scores"):
        model.decision_function(test)
