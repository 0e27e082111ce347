"""Estimators of scikit-learn: stacks on tables, on showers, and the energy of showers.

They train and predict through :func:`showerstack.fit` and :func:`showerstack.predict`; a finished run folder is behind
each.
"""

from __future__ import annotations

import atexit
import inspect
import io
import logging
import os
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from pydantic_core import PydanticUndefined
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.model_selection import check_cv
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

from showerstack.api import LABEL, Fitted, Place, Predicted, fit, fitted, predict
from showerstack.runtime.context import Callback
from showerstack.runtime.errors import InputError, Remark, most_similar
from showerstack.runtime.frames import frame_of, is_frame
from showerstack.runtime.logs import logging_to
from showerstack.stacking.config import RunConfig, StackConfig, TableConfig
from showerstack.stacking.export.exported import open_run

try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ModuleNotFoundError:  # scikit-learn 1.8 has none

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """No ``set_callbacks``."""

    def with_callbacks(method: Any) -> Any:
        """Return the method."""
        return method


GROUP, WEIGHT, FOLD = "group", "weight", "fold"
COLUMN_OPTIONS = {"group": GROUP, "weight": WEIGHT, "split": FOLD}
"""Names of the columns beside those of a user, by the options of a run that name them."""
MAX_PICKLED_BYTES = 100_000_000
"""Bytes of a run that a pickle carries."""
NOT_PICKLED = ("oof", "test")
"""Folders of a run that predictions do not need."""


Class = TypeVar("Class", bound=type)


def _with_options(config: type[RunConfig], **own: Any) -> Callable[[Class], Class]:
    """Give an estimator the parameters ``run``, its own, and the options that runs of a configuration have."""
    names = [name for name in config.model_fields if name in RunConfig.model_fields and name != "run"]
    of_runs = {name: config.model_fields[name].get_default() for name in names}
    defaults = {"run": None} | own | {"verbose": False, "callback": None} | of_runs
    defaults |= {name: None for name, default in defaults.items() if default is PydanticUndefined}

    def add_options(estimator: Class) -> Class:
        def __init__(self: Any, run: Place | None = None, **options: Any) -> None:
            if unknown := options.keys() - defaults:
                near = most_similar(min(unknown), list(defaults))
                raise TypeError(f"unknown option {min(unknown)}" + (f": did you mean {near}?" if near else ""))
            vars(self).update(defaults | options, run=run)

        positional, keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
        parameters = [inspect.Parameter("self", positional)]
        parameters += [
            inspect.Parameter(name, positional if name == "run" else keyword, default=default)
            for name, default in defaults.items()
        ]
        __init__.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        estimator.__init__ = __init__  # type: ignore[misc]
        return estimator

    return add_options


class _Stack(CallbackSupportMixin, BaseEstimator):
    """What all estimators share: the options of a run, the run, and callbacks of scikit-learn 1.9 and newer."""

    run: Place | None
    workers: int | None
    device: str
    verbose: bool
    callback: Callback | None

    def _fit(self, data: Any, **more: Any) -> Fitted:
        names = RunConfig.model_fields.keys() - {"run"}
        options = {name: value for name in names if (value := getattr(self, name)) is not None}
        self.run_ = Path(self.run).expanduser().absolute() if self.run is not None else _temporary() / "run"
        # A remark becomes a warning, and is not printed as well.
        with logging_to(logging.NullHandler()), self._told() as callback:
            run = fit(data, run=self.run_, verbose=self.verbose, callback=callback, **options, **more)
        self.run_hash_ = run.config_hash
        _warn(run.remarks)
        return run

    @contextmanager
    def _told(self) -> Iterator[Callback | None]:
        """Yield what calls the estimator's own callback and those of scikit-learn.

        To them a step is a task, and a part of it that has numbers is a task of it, with these as ``metadata``.
        """
        if not getattr(self, "_skl_callbacks", None):
            yield self.callback
            return
        root = self._init_callback_context(max_subtasks=None)
        root.call_on_fit_task_begin(estimator=self)
        steps: list[tuple[str, Any]] = []  # the one at work

        def end() -> None:
            while steps:
                steps.pop()[1].call_on_fit_task_end(estimator=self)

        def call(step: str, done: float, total: float, note: str, values: Mapping[str, float]) -> None:
            if self.callback is not None:
                self.callback(step, done, total, note, values)
            if not steps or steps[0][0] != step:
                end()
                steps.append((step, root.subcontext(task_name=step, max_subtasks=None)))
                steps[0][1].call_on_fit_task_begin(estimator=self)
            if values:
                told = {"note": note, "done": done, "total": total, **values}
                part = steps[0][1].subcontext(task_name="part").call_on_fit_task_begin(estimator=self)
                part.call_on_fit_task_end(estimator=self, metadata=told)

        yield call
        end()
        root.call_on_fit_task_end(estimator=self)

    def _fitted(self) -> Fitted:
        """Open the run; refuse one that is not what this estimator was fitted as.

        A run in a folder of the working folder is found where both were moved together.
        """
        check_is_fitted(self, "run_")
        moved = None if self.run is None or self.run_.is_dir() else Path(self.run).expanduser().absolute()
        run = fitted(moved if moved is not None and moved.is_dir() else self.run_)
        if run.config_hash != self.run_hash_:
            raise InputError(
                f"{run.folder} holds another run than this estimator was fitted as: another was fitted there; fit "
                "again, each in a folder of its own"
            )
        return run

    def _predict(self, data: Any, **more: Any) -> Predicted:
        run = self._fitted()
        with logging_to(logging.NullHandler()):
            predicted = predict(run, data, workers=self.workers, verbose=self.verbose, callback=self.callback, **more)
        _warn(predicted.remarks)
        return predicted

    def __getstate__(self) -> dict[str, Any]:
        """Return the parameters and what was learned, with a run in a temporary folder, which ends with its program."""
        state = dict(super().__getstate__())
        if self.run is None and "run_" in state:
            if not self.run_.is_dir():
                raise InputError(f"{self.run_} is gone, and with it what was learned: fit again, with run=FOLDER")
            state["packed_run"] = _pack(self.run_)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the state, a run that it carries into a new temporary folder."""
        packed = state.pop("packed_run", None)
        super().__setstate__(state)
        if packed is not None:
            self.run_ = _temporary() / "run"
            with zipfile.ZipFile(io.BytesIO(packed)) as files:
                files.extractall(self.run_)


@_with_options(TableConfig, cv=None, categories=None, columns=None)
class StackClassifier(ClassifierMixin, _Stack):
    """Classes of the rows of a table, by a stack of learners made for tables.

    Remarks on data and run are warnings, :class:`showerstack.runtime.errors.Remark`.

    Parameters
    ----------
    run
        Run folder; a run that was interrupted is continued. None: a temporary folder, removed at the end of the
        program, for each fit a new one; ``pickle`` and ``joblib`` carry it along.
    cv
        Folds of your own: a number, a splitter of scikit-learn, or pairs of row numbers, each row tested once.
    categories
        Columns of a data frame that are categories although their type does not say so.
    columns
        Columns to learn from; None: all.
    verbose, callback
        Progress of fits and predictions, as for :func:`showerstack.fit`.
    **options
        Those of :class:`showerstack.stacking.options.RunOptions` and :class:`showerstack.stacking.config.RunConfig`.

    Attributes
    ----------
    classes_
        (C,) the values of ``y``, sorted.
    run_
        The run folder, absolute: report, learners, what was measured. Predictions come from this very run: a folder in
        which another one was fitted since is refused.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from showerstack import StackClassifier
    >>> X, y = load_wine(return_X_y=True)
    >>> options = {"preset": "quick", "learners": ["table.logistic"], "folds": 2, "repeats": 1}
    >>> model = StackClassifier(**options).fit(X[::2], y[::2])
    >>> model.predict_proba(X[1::2]).shape
    (89, 3)
    >>> bool(model.score(X[1::2], y[1::2]) > 0.9)
    True
    """

    @with_callbacks
    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> Self:
        """Train.

        Parameters
        ----------
        X
            (N, F) numbers, NaN where missing, or a data frame of polars or pandas, also with categories.
        y
            (N,) numbers or words.
        groups
            (N,) or None: rows of one value are never in two folds, and one observation in every error.
        sample_weight
            (N,) what a row counts in training and scoring, or None; rows of weight 0 are left out.

        Raises
        ------
        ValueError
            For data that cannot be used; a :class:`showerstack.InputError` names row, column and remedy.
        """

        if y is None:
            raise ValueError("requires y to be passed, but the target y is None")
        y = _as_they_are(y)
        assert_all_finite(y, input_name="y")
        check_classification_targets(y)
        X = frame_of(self._checked(X, y))
        beside = {GROUP: None if groups is None else column_or_1d(groups), FOLD: self._own_folds(X, y, groups)}
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
            if not weights.any():
                raise ValueError("Sample weights must contain at least one non-zero number.")
            beside[WEIGHT] = weights if np.ptp(weights) > 0 else None
            X, y = X.filter(weights > 0), y[weights > 0]
            beside = {name: None if values is None else values[weights > 0] for name, values in beside.items()}
        self.classes_ = np.unique(y)
        # A run holds the text of classes where that distinguishes them, else their numbers.
        is_text_unique = len({str(value) for value in self.classes_.tolist()}) == len(self.classes_)
        columns = {LABEL: y if is_text_unique else np.searchsorted(self.classes_, y)}
        columns |= {name: values for name, values in beside.items() if values is not None}
        more = {option: name for option, name in COLUMN_OPTIONS.items() if name in columns}
        more |= {name: value for name in ("categories", "columns") if (value := getattr(self, name)) is not None}
        self._fit(frame_of(X, columns), label=LABEL, **more)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return (N, C) float64 probabilities, in the order of ``classes_``."""
        check_is_fitted(self, "run_")
        return self._predict(self._checked(X)).probabilities[:, self._class_order()]

    def predict(self, X: Any) -> np.ndarray:
        """Return (N,) values of ``classes_``: the most probable class."""
        most_probable = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[most_probable])

    def _own_folds(self, X: Any, y: np.ndarray, groups: Any) -> np.ndarray | None:
        """Return which fold of ``cv`` each row is tested in, (N,) int64."""
        if self.cv is None:
            return None
        folds = np.full(len(y), -1)
        for k, (train, test) in enumerate(check_cv(self.cv, y, classifier=True).split(X, y, groups)):
            if (folds[test] >= 0).any() or len(np.union1d(train, test)) < len(y) or np.intersect1d(train, test).size:
                raise InputError(f"cv: fold {k} must train on all rows but those it tests, and test each row once")
            folds[test] = k
        if (folds < 0).any():
            raise InputError(f"cv: row {np.flatnonzero(folds < 0)[0]} is tested in no fold: every row has to be")
        return folds

    def _class_order(self) -> np.ndarray:
        """Return where each of ``classes_`` stands in the run, whose order is that of the values."""
        in_run = list(map(str, self._fitted().classes))
        names = [str(value) for value in self.classes_.tolist()]
        return np.array([in_run.index(name) for name in names]) if set(in_run) == set(names) else np.arange(len(in_run))

    def _checked(self, X: Any, y: Any = None) -> Any:
        """Return numbers (N, F) or the data frame, its columns compared with those of the training."""
        reset = y is not None
        if isinstance(X, np.ma.MaskedArray):
            X = np.ma.filled(X.astype(np.float64), np.nan)
        if is_frame(X):
            X = frame_of(X)
            _check_feature_names(self, X, reset=reset)
            _check_n_features(self, X, reset=reset)
            return X
        if reset:
            return validate_data(self, X, y, dtype="numeric", ensure_all_finite="allow-nan", ensure_min_samples=2)[0]
        return validate_data(self, X, reset=False, dtype="numeric", ensure_all_finite="allow-nan")

    def __sklearn_tags__(self) -> Tags:
        """Return the tags of scikit-learn: missing values are taken."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


class _ShowerStack(_Stack):
    """On dataset folders instead of arrays."""

    def _fit_showers(self, X: Any, y: Any, task: str) -> Fitted:
        if not isinstance(X, str | os.PathLike):
            raise InputError(f"X is {type(X).__name__}, expected the folder that holds {task}_train and {task}_test")
        if y is not None:
            raise InputError(f"labels of showers are in the folder {task}_train: fit(folder), without y")
        return self._fit(X, task=task)

    def __sklearn_tags__(self) -> Tags:
        """Return the tags of scikit-learn: arrays are not taken."""
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.target_tags.required, tags.no_validation = False, False, True
        return tags


@_with_options(StackConfig, task="composition")
class ShowerClassifier(ClassifierMixin, _ShowerStack):
    """Mass composition or gamma/hadron separation of showers in dataset folders.

    Parameters
    ----------
    run, **options
        As of :class:`StackClassifier`.
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
    >>> options = {"preset": "quick", "learners": ("quadratic_logit",), "folds": 2, "device": "cpu"}
    >>> model = ShowerClassifier("runs/composition", **options).fit("data")
    >>> model.predict("data/composition_test").shape
    (1000,)
    >>> model.predict_proba("data/composition_test").shape
    (1000, 5)
    """

    @with_callbacks
    def fit(self, X: Place, y: None = None, groups: None = None, sample_weight: None = None) -> Self:
        """Train on ``X/{task}_train``; its labels, groups and weights are in the folder, none are given here.

        Raises
        ------
        showerstack.InputError
            If they are given, or the folder cannot be used.
        """
        _refuse_given(groups=groups, sample_weight=sample_weight)
        self.names_ = self._fit_showers(X, y, self.task).classes
        self.classes_ = np.array(open_run(self.run_, whole=False).task.labels)
        return self

    def predict(self, X: Place) -> np.ndarray:
        """Return (N,) labels of a dataset folder's events, values of ``classes_``: the most probable class."""
        return np.asarray(self._predict(X, device=self.device).labels)

    def predict_proba(self, X: Place) -> np.ndarray:
        """Return (N, C) float64 probabilities of a dataset folder's events."""
        return self._predict(X, device=self.device).probabilities

    def decision_function(self, X: Place) -> np.ndarray:
        """Return (N,) float64 gamma scores, higher = more gamma-like."""
        scores = self._predict(X, device=self.device).scores
        if scores is None:
            raise InputError(f"task {self.task} has no scores: use predict_proba")
        return scores


@_with_options(StackConfig)
class EnergyRegressor(RegressorMixin, _ShowerStack):
    """Energy of showers in dataset folders, lg(E/eV).

    Parameters
    ----------
    run, **options
        As of :class:`StackClassifier`.

    Examples
    --------
    Showers in ``data/energy_train`` and ``data/energy_test``:

    >>> import numpy as np
    >>> from showerstack import EnergyRegressor
    >>> options = {"preset": "quick", "learners": ("quadratic_logit",), "folds": 2, "device": "cpu"}
    >>> model = EnergyRegressor("runs/energy", **options).fit("data")
    >>> lg_energy, error = model.predict("data/energy_test", return_std=True)
    >>> bool(np.all((lg_energy > 13) & (lg_energy < 19) & (error > 0)))
    True
    """

    @with_callbacks
    def fit(self, X: Place, y: None = None, groups: None = None, sample_weight: None = None) -> Self:
        """Train on ``X/energy_train``, whose true energies are in the folder.

        Raises
        ------
        showerstack.InputError
            If targets, groups or weights are given, or the folder cannot be used.
        """
        _refuse_given(groups=groups, sample_weight=sample_weight)
        self._fit_showers(X, y, "energy")
        return self

    def predict(self, X: Place, return_std: bool = False) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Return (N,) lg(E/eV) of a dataset folder's events, with ``return_std`` also its error."""
        arrays = self._predict(X, device=self.device).arrays
        return (arrays["lg_energy"], arrays["lg_energy_error"]) if return_std else arrays["lg_energy"]

    def predict_core(self, X: Place) -> np.ndarray:
        """Return (N, 4) core x, its error, core y, its error: m.

        Raises
        ------
        showerstack.InputError
            If no learner of the run learned the core.
        """
        arrays = self._predict(X, device=self.device).arrays
        names = ("core_x_m", "core_x_error_m", "core_y_m", "core_y_error_m")
        if not set(names) <= set(arrays):
            raise InputError(f"{self.run_} has no learner that learned the core: train with a truth.parquet")
        return np.column_stack([arrays[name] for name in names])


def _as_they_are(y: Any) -> np.ndarray:
    """Return labels (N,) in their own type; refuse those that are missing or masked."""
    dtype: Any = getattr(y, "dtype", None)
    if hasattr(dtype, "numpy_dtype") and dtype.kind in "iub" and not y.isna().any():  # pandas' integers and booleans
        y = y.to_numpy(dtype.numpy_dtype)
    masked = np.ma.getmaskarray(y).ravel() if isinstance(y, np.ma.MaskedArray) else None
    y = column_or_1d(y, warn=True)
    missing = np.array([value is None for value in y.tolist()], dtype=bool) if masked is None else masked
    if missing.any():
        raise InputError(f"y: row {int(missing.argmax())} has no label: every row needs one")
    return y


def _temporary() -> Path:
    folder = tempfile.mkdtemp(prefix="showerstack-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _pack(run: Path) -> bytes:
    """Return the files of a run that predictions need, as a ZIP archive."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as files:
        for file in sorted(run.rglob("*")):
            name = file.relative_to(run)
            if file.is_file() and name.parts[0] not in NOT_PICKLED:
                files.write(file, name)
    if content.tell() > MAX_PICKLED_BYTES:
        megabytes = content.tell() / 1e6
        raise InputError(f"the run has {megabytes:,.0f} MB, too many for a pickle: keep it in a folder, run=FOLDER")
    return content.getvalue()


def _warn(remarks: Iterable[str]) -> None:
    for remark in remarks:
        warnings.warn(remark, Remark, stacklevel=4)


def _refuse_given(**values: Any) -> None:
    for name, value in values.items():
        if value is not None:
            raise InputError(f"{name} of showers are read from the dataset folder: leave the argument out")
