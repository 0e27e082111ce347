"""Estimators of scikit-learn: stacks on tables, on showers, and the energy of showers.

They train and predict through :func:`showerstack.fit` and :func:`showerstack.predict`; a finished run folder is behind
each.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_feature_names,
    _check_n_features,
    _check_sample_weight,
    assert_all_finite,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from showerstack.api import GROUP, LABEL, Fitted, Place, Predicted, fit, fitted, frame_of, is_frame, predict


class _Stack(BaseEstimator):
    """What all have in common: the options of a run, and the run.

    Parameters
    ----------
    run
        Run folder; a run that was interrupted is continued. None: a temporary folder, removed at the end of the
        program, for each fit a new one.
    preset, learners, metas, folds, repeats, holdout, seed, device, workers, time_limit
        As in :class:`showerstack.stacking.run.config.EngineConfig`; None takes the preset's.
    fast
        Train the student of predictions with ``student=True``; None: unless a table has fewer than 5,000 rows.
    student
        Let the student predict instead of what ships.
    trusted
        Open the learners in this process when predicting, instead of a limited one of their own: faster.
    """

    def __init__(
        self,
        run: Place | None = None,
        *,
        preset: str = "good",
        learners: Any = None,
        metas: Any = None,
        folds: int | None = None,
        repeats: int | None = None,
        holdout: float | None = None,
        seed: int = 1,
        device: str = "auto",
        workers: int | None = None,
        time_limit: str | None = None,
        fast: bool | None = None,
        student: bool = False,
        trusted: bool = False,
    ) -> None:
        self.run = run
        self.preset = preset
        self.learners = learners
        self.metas = metas
        self.folds = folds
        self.repeats = repeats
        self.holdout = holdout
        self.seed = seed
        self.device = device
        self.workers = workers
        self.time_limit = time_limit
        self.fast = fast
        self.student = student
        self.trusted = trusted

    def _fit(self, data: Any, **more: Any) -> Fitted:
        names = (
            "preset", "learners", "metas", "folds", "repeats", "holdout", "seed", "device", "workers", "time_limit",
            "fast",
        )  # fmt: skip
        options = {name: value for name in names if (value := getattr(self, name)) is not None}
        self.run_ = Path(self.run).expanduser() if self.run is not None else _temporary() / "run"
        return fit(data, run=self.run_, **options, **more)

    def _predicted(self, data: Any, **more: Any) -> Predicted:
        check_is_fitted(self, "run_")
        return predict(fitted(self.run_), data, workers=self.workers, fast=self.student, trusted=self.trusted, **more)


class StackClassifier(ClassifierMixin, _Stack):
    """Classes of the rows of a table, by a stack of learners made for tables.

    Attributes
    ----------
    classes_
        (C,) the values of ``y``, sorted.
    run_
        The run folder: report, learners, what was measured.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from showerstack import StackClassifier
    >>> X, y = load_wine(return_X_y=True)
    >>> options = {"preset": "quick", "learners": ["table.logistic"], "folds": 2, "repeats": 1, "fast": False}
    >>> model = StackClassifier(**options).fit(X[::2], y[::2])
    >>> model.predict_proba(X[1::2]).shape
    (89, 3)
    >>> bool(model.score(X[1::2], y[1::2]) > 0.9)
    True
    """

    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> Self:
        """Train.

        Parameters
        ----------
        X
            (N, F) numbers, NaN where missing, or a data frame of polars or pandas, also with text.
        y
            (N,) numbers or words.
        groups
            (N,) or None: rows of one value are never in two folds, and one observation in every error.
        sample_weight
            None, or equal weights: learners of tables take no others.

        Raises
        ------
        ValueError
            For data that cannot be used; a :class:`showerstack.showers.schema.InputError` names row, column and remedy.
        """
        from showerstack.runtime.errors import InputError

        if y is None:
            raise ValueError("requires y to be passed, but the target y is None")
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, X, ensure_non_negative=True)
            if not weights.any():
                raise InputError("sample_weight is zero in all rows: nothing is left to learn from")
            if np.ptp(weights) > 0:
                raise InputError("sample_weight differs: learners of tables take equal weights; leave it out")
        y = column_or_1d(y, warn=True)
        assert_all_finite(y, input_name="y")
        check_classification_targets(y)
        X = self._checked(X, y)
        self.classes_ = np.unique(y)
        table = frame_of(X)
        columns = {LABEL: np.searchsorted(self.classes_, y)}
        # The run knows classes by their text where that tells them apart, else by number.
        if len({str(value) for value in self.classes_.tolist()}) == len(self.classes_):
            columns[LABEL] = y
        more = {} if groups is None else {"group": GROUP}
        if groups is not None:
            columns[GROUP] = column_or_1d(groups)
        _refuse_names(table.columns, columns)
        for name, values in columns.items():
            table = table.with_columns(_series(name, values, len(table)))
        self._fit(table, label=LABEL, **more)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return (N, C) float64 probabilities, in the order of ``classes_``."""
        check_is_fitted(self, "run_")
        return self._predicted(self._checked(X)).probabilities[:, self._order()]

    def predict(self, X: Any) -> np.ndarray:
        """Return (N,) values of ``classes_``: the most probable class."""
        most_probable = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[most_probable])

    def _order(self) -> np.ndarray:
        """Return where each of ``classes_`` stands in the run, whose order is that of the values."""
        names = list(map(str, fitted(self.run_).classes))
        wanted = [str(value) for value in self.classes_.tolist()]
        return np.array([names.index(name) for name in wanted]) if set(names) == set(wanted) else np.arange(len(names))

    def _checked(self, X: Any, y: Any = None) -> Any:
        """Return numbers (N, F) or the data frame, its columns compared with those of the training."""
        reset = y is not None
        if is_frame(X):
            _check_feature_names(self, X, reset=reset)
            _check_n_features(self, X, reset=reset)
            return X
        if reset:
            return validate_data(self, X, y, dtype="numeric", ensure_all_finite="allow-nan", ensure_min_samples=2)[0]
        return validate_data(self, X, reset=False, dtype="numeric", ensure_all_finite="allow-nan")

    def __sklearn_tags__(self) -> Tags:
        """Say that missing values are taken."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


class _ShowerStack(_Stack):
    """On dataset folders instead of arrays."""

    def _fit_showers(self, X: Any, y: Any, task: str) -> Fitted:
        from showerstack.runtime.errors import InputError

        if not isinstance(X, str | os.PathLike):
            raise InputError(f"X is {type(X).__name__}, expected the folder that holds {task}_train and {task}_test")
        if y is not None:
            raise InputError(f"labels of showers are in the folder {task}_train: fit(folder), without y")
        return self._fit(X, task=task)

    def __sklearn_tags__(self) -> Tags:
        """Say that arrays are not taken."""
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.target_tags.required, tags.no_validation = False, False, True
        return tags


class ShowerClassifier(ClassifierMixin, _ShowerStack):
    """Mass composition or gamma/hadron separation of showers in dataset folders.

    Parameters
    ----------
    task
        ``composition`` or ``gamma``.

    Attributes
    ----------
    classes_
        (C,) the numbers of the label file.
    names_
        Their names.

    Examples
    --------
    Showers in ``data/composition_train`` and ``data/composition_test``:

    >>> from showerstack import ShowerClassifier
    >>> options = {"preset": "quick", "learners": ("quadratic_logit",), "folds": 2, "fast": False, "device": "cpu"}
    >>> model = ShowerClassifier("runs/composition", **options).fit("data")
    >>> model.predict("data/composition_test").shape
    (1000,)
    >>> model.predict_proba("data/composition_test").shape
    (1000, 5)
    """

    def __init__(
        self,
        run: Place | None = None,
        *,
        task: str = "composition",
        preset: str = "good",
        learners: Any = None,
        metas: Any = None,
        folds: int | None = None,
        repeats: int | None = None,
        holdout: float | None = None,
        seed: int = 1,
        device: str = "auto",
        workers: int | None = None,
        time_limit: str | None = None,
        fast: bool | None = None,
        student: bool = False,
        trusted: bool = False,
    ) -> None:
        super().__init__(
            run, preset=preset, learners=learners, metas=metas, folds=folds, repeats=repeats, holdout=holdout,
            seed=seed, device=device, workers=workers, time_limit=time_limit, fast=fast, student=student,
            trusted=trusted,
        )  # fmt: skip
        self.task = task

    def fit(self, X: Place, y: None = None, groups: None = None, sample_weight: None = None) -> Self:
        """Train on ``X/{task}_train``; its labels, groups and weights are in the folder, none are given here.

        Raises
        ------
        showers.schema.InputError
            If they are given, or the folder cannot be used.
        """
        _refuse_given(groups=groups, sample_weight=sample_weight)
        self.names_ = self._fit_showers(X, y, self.task).classes
        self.classes_ = np.arange(len(self.names_))
        return self

    def predict(self, X: Place) -> np.ndarray:
        """Return (N,) class numbers of a dataset folder's events, by the run's decision rule."""
        return np.asarray(self._predicted(X, device=self.device).labels)

    def predict_proba(self, X: Place) -> np.ndarray:
        """Return (N, C) float64 probabilities of a dataset folder's events."""
        return self._predicted(X, device=self.device).probabilities

    def decision_function(self, X: Place) -> np.ndarray:
        """Return (N,) float64 gamma scores, higher = more gamma-like."""
        from showerstack.runtime.errors import InputError

        scores = self._predicted(X, device=self.device).scores
        if scores is None:
            raise InputError(f"task {self.task} has no scores: use predict_proba")
        return scores


class EnergyRegressor(RegressorMixin, _ShowerStack):
    """Energy of showers in dataset folders, lg(E/eV).

    Examples
    --------
    Showers in ``data/energy_train`` and ``data/energy_test``:

    >>> import numpy as np
    >>> from showerstack import EnergyRegressor
    >>> options = {"preset": "quick", "learners": ("quadratic_logit",), "folds": 2, "fast": False, "device": "cpu"}
    >>> model = EnergyRegressor("runs/energy", **options).fit("data")
    >>> lg_energy, error = model.predict("data/energy_test", return_std=True)
    >>> bool(np.all((lg_energy > 13) & (lg_energy < 19) & (error > 0)))
    True
    """

    def fit(self, X: Place, y: None = None, groups: None = None, sample_weight: None = None) -> Self:
        """Train on ``X/energy_train``, whose true energies are in the folder.

        Raises
        ------
        showers.schema.InputError
            If targets, groups or weights are given, or the folder cannot be used.
        """
        _refuse_given(groups=groups, sample_weight=sample_weight)
        self._fit_showers(X, y, "energy")
        return self

    def predict(self, X: Place, return_std: bool = False) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Return (N,) lg(E/eV) of a dataset folder's events, with ``return_std`` also its error."""
        arrays = self._predicted(X, device=self.device).arrays
        return (arrays["lg_energy"], arrays["lg_energy_error"]) if return_std else arrays["lg_energy"]

    def predict_core(self, X: Place) -> np.ndarray:
        """Return (N, 4) core x, its error, core y, its error: m.

        Raises
        ------
        showers.schema.InputError
            If no learner of the run learned the core.
        """
        from showerstack.runtime.errors import InputError

        arrays = self._predicted(X, device=self.device).arrays
        names = ("core_x_m", "core_x_error_m", "core_y_m", "core_y_error_m")
        if not set(names) <= set(arrays):
            raise InputError(f"{self.run_} has no learner that was taught the core: train with a truth.parquet")
        return np.column_stack([arrays[name] for name in names])


def _temporary() -> Path:
    folder = tempfile.mkdtemp(prefix="showerstack-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _refuse_given(**values: Any) -> None:
    from showerstack.runtime.errors import InputError

    for name, value in values.items():
        if value is not None:
            raise InputError(f"{name} of showers are read from the dataset folder: leave the argument out")


def _refuse_names(present: list[str], added: Any) -> None:
    from showerstack.runtime.errors import InputError

    for name in added:
        if name in present:
            raise InputError(f"X has a column {name!r}, the name under which y or groups are kept: rename it")


def _series(name: str, values: np.ndarray, n_rows: int) -> Any:
    import polars as pl

    from showerstack.runtime.errors import InputError

    if len(values) != n_rows:
        raise InputError(f"X has {n_rows} rows, {name} {len(values)}")
    return pl.Series(name, values.tolist())
