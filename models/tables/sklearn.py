"""Learners of scikit-learn: forests with smoothed leaves, extremely randomised trees, histogram gradient boosting.

A plain forest averages leaf frequencies, many of which are exactly 0 or 1: posteriors saturate, and scores tie. Here
each leaf holds ``(n_k + a pi_k) / (n + a)``, its counts plus ``a`` events of the training mix ``pi``. Models are saved
as skops files: equal models give equal bytes, and reading one runs nothing.
"""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import numpy as np
from sklearn import __version__ as sklearn_version
from sklearn.ensemble import (
    ExtraTreesClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    RandomForestRegressor,
)

from showerstack.models.base.learner import Enough
from showerstack.models.base.posterior import log_of_margins, log_softmax
from showerstack.models.tables.base import TableLearner, TableRows, normalised
from showerstack.runtime.context import Progress
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import atomic_path
from showerstack.runtime.processes import limited_threads

SKOPS_SCHEMA = "schema.json"


def write_skops(file: Path, model: Any) -> None:
    """Write a scikit-learn model, atomically.

    The library names the parts of a model by their addresses in memory or at random, and stamps the time on each; here
    they are numbered in the order in which the model's description names them.
    """
    import skops.io  # it imports all of scikit-learn: only whoever writes or reads a forest waits for it

    numbers: dict[int, int] = {}
    names: dict[str, str] = {}

    def renumber(node: Any) -> Any:
        if isinstance(node, list):
            return [renumber(part) for part in node]
        if not isinstance(node, dict):
            return node
        copy = {key: renumber(part) for key, part in node.items()}
        if isinstance(node.get("__id__"), int):
            # Counted from 1: the library takes 0 for no number at all.
            copy["__id__"] = numbers.setdefault(node["__id__"], len(numbers) + 1)
        if node.get("file") in members:
            suffix = PurePosixPath(node["file"]).suffix
            copy["file"] = names.setdefault(node["file"], f"{len(names)}{suffix}")
        return copy

    with zipfile.ZipFile(io.BytesIO(skops.io.dumps(model))) as source:
        members = set(source.namelist()) - {SKOPS_SCHEMA}
        schema = renumber(json.loads(source.read(SKOPS_SCHEMA)))
        with atomic_path(file) as temporary, zipfile.ZipFile(temporary, "w") as target:
            for old, new in names.items():
                target.writestr(zipfile.ZipInfo(new), source.read(old))
            target.writestr(zipfile.ZipInfo(SKOPS_SCHEMA), json.dumps(schema))


def read_skops(file: Path, kind: type[Any], trusted: list[str]) -> Any:
    """Return the one scikit-learn model in a file."""
    import skops.io

    unknown = sorted(set(skops.io.get_untrusted_types(file=file)) - set(trusted))
    written_by = _sklearn_of(file)
    if unknown and written_by not in (None, sklearn_version):
        raise InputError(
            f"{file} was written with scikit-learn {written_by}, and scikit-learn {sklearn_version}, installed here, "
            f"cannot read it ({', '.join(unknown)}): install scikit-learn {written_by}, or train again"
        )
    if unknown:
        raise InputError(f"{file} holds types that a {kind.__name__} does not need: {', '.join(unknown)}")
    model = skops.io.load(file, trusted=trusted)
    if type(model) is not kind:
        raise InputError(f"{file} holds a {type(model).__name__}, expected a {kind.__name__}")
    return model


def _sklearn_of(file: Path) -> str | None:
    """Return the version of scikit-learn that a model in a file says it was made with; None if it says none."""
    with zipfile.ZipFile(file) as stored:
        parts = [json.loads(stored.read(SKOPS_SCHEMA))]
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            version = part.get("_sklearn_version")
            if isinstance(version, dict) and isinstance(version.get("content"), str):
                return version["content"].strip('"')
        parts += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return None


MODEL_FILE = "forest.skops"
TRUSTED_TYPES = ["sklearn.tree._tree.Tree"]
"""What a forest's file may hold beyond the types skops trusts by itself."""
TREES_AT_ONCE = 25
"""Trees grown between two progress reports."""


class RandomForest(TableLearner):
    """Forest of ``trees`` trees on bootstrap samples.

    Settings: ``trees``, ``min_samples_leaf``, ``max_features``, ``max_depth`` as in scikit-learn; ``max_events``, most
    events per tree, which bounds the forest's size; ``smoothing``, the events ``a`` that each leaf gets of the training
    mix. There is nothing to stop early.
    """

    model_files = (MODEL_FILE,)
    defaults: ClassVar[dict[str, Any]] = {
        "trees": 500,
        "min_samples_leaf": 8,
        "max_features": "sqrt",
        "max_depth": None,
        "max_events": 300_000,
        "smoothing": 2.0,
    }
    bootstrap = True
    kind: type[Any] = RandomForestClassifier

    forest_: Any

    def _fit(self, train: TableRows, valid: TableRows, *, seed: int, device: str, progress: Progress | None) -> None:
        trees, most = int(self.chosen["trees"]), int(self.chosen["max_events"])
        is_capped = len(train.labels) > most
        forest = self.kind(
            n_estimators=trees,
            min_samples_leaf=self.chosen["min_samples_leaf"],
            max_features=self.chosen["max_features"],
            max_depth=self.chosen["max_depth"],
            max_samples=most if is_capped else None,
            bootstrap=self.bootstrap or is_capped,
            random_state=seed,
            n_jobs=self.threads,
            warm_start=True,
        )
        for grown in [*range(TREES_AT_ONCE, trees, TREES_AT_ONCE), trees]:
            forest.n_estimators = grown
            forest.fit(train.table, train.labels, sample_weight=train.weights)
            try:
                if progress:
                    progress(grown, trees)
            except Enough:
                break
        mass = np.bincount(train.labels, weights=train.weights, minlength=len(self.classes))
        draws = min(most, len(train.labels))
        for tree in forest.estimators_:
            # Trees of a forest that draws by weight (scikit-learn 1.9) count draws, all others sum weights.
            weight_of_event = float(tree.tree_.weighted_n_node_samples[0]) / draws
            smooth_leaves(tree.tree_, self._prior(mass), float(self.chosen["smoothing"]) * weight_of_event)
        self.forest_ = forest

    def _prior(self, mass: np.ndarray) -> np.ndarray:
        """Return what every leaf is mixed with, from the training mass of each class."""
        return mass / mass.sum()

    def _log_proba(self, table: np.ndarray) -> np.ndarray:
        self.forest_.n_jobs = self.threads
        probability = self.forest_.predict_proba(np.asarray(table, dtype=np.float32))
        return log_softmax(np.log(probability))

    def importances(self) -> dict[str, float]:
        """Return the mean decrease of impurity by each column, summing to one."""
        return normalised(np.asarray(self.forest_.feature_importances_, dtype=np.float64), self.columns_)

    @property
    def n_parameters(self) -> int:
        """Number of leaves."""
        return sum(int(tree.tree_.n_leaves) for tree in self.forest_.estimators_)

    def _write(self, folder: Path) -> None:
        write_skops(folder / MODEL_FILE, self.forest_)

    def _read(self, folder: Path, header: dict[str, Any]) -> None:
        self.forest_ = read_skops(folder / MODEL_FILE, self.kind, TRUSTED_TYPES)


class ExtraTrees(RandomForest):
    """Forest whose splits are drawn at random, each tree on all events; settings as :class:`RandomForest`."""

    # Splits drawn at random among few columns would mostly fall on those that say nothing: all are tried.
    defaults: ClassVar[dict[str, Any]] = {**RandomForest.defaults, "max_features": 1.0}
    bootstrap = False
    kind = ExtraTreesClassifier


class RegressionForest(RandomForest):
    """Forest that regresses the label of two classes by least squares; settings as :class:`RandomForest`."""

    kind = RandomForestRegressor

    def _fit(self, train: TableRows, valid: TableRows, *, seed: int, device: str, progress: Progress | None) -> None:
        if len(self.classes) != 2:
            raise InputError(f"a regression forest needs 2 classes, got {len(self.classes)}")
        super()._fit(train, valid, seed=seed, device=device, progress=progress)

    def _prior(self, mass: np.ndarray) -> np.ndarray:
        return mass[1:] / mass.sum()

    def _log_proba(self, table: np.ndarray) -> np.ndarray:
        self.forest_.n_jobs = self.threads
        second = self.forest_.predict(np.asarray(table, dtype=np.float32))
        return log_softmax(np.log(np.column_stack([1.0 - second, second])))


def smooth_leaves(tree: Any, prior: np.ndarray, events: float) -> None:
    """Mix the training prior into every node of a scikit-learn tree, in place.

    Parameters
    ----------
    tree
        ``estimator.tree_``; its values are class frequencies, (nodes, 1, C), or means, (nodes, 1, 1).
    prior
        (C,) float64 class frequencies (for a regression: the one mean value).
    events
        Weight of the prior, in (weighted) events.
    """
    mass = tree.weighted_n_node_samples[:, None]
    tree.value[:, 0, :] = (tree.value[:, 0, :] * mass + events * prior) / (mass + events)


HIST_MODEL_FILE = "hist_boosting.skops"
_HIST_PACKAGE = "sklearn.ensemble._hist_gradient_boosting"
HIST_TRUSTED_TYPES = [
    "functools.partial",  # with categories: a partial of check_array; the function in it must be trusted as well
    f"{_HIST_PACKAGE}.binning._BinMapper",
    f"{_HIST_PACKAGE}.predictor.TreePredictor",
    "sklearn._loss.link.HalfLogitLink",
    "sklearn._loss.link.Interval",
    "sklearn._loss.link.LogitLink",
    "sklearn._loss.link.MultinomialLogit",
    "sklearn._loss.loss.HalfBinomialLoss",
    "sklearn._loss.loss.HalfMultinomialLoss",
    "sklearn.preprocessing._label.LabelEncoder",
    "sklearn.utils.validation.check_array",
]
"""What this model's file may hold beyond the types skops trusts by itself."""


class HistBoosting(TableLearner):
    """Gradient-boosted trees of scikit-learn.

    Settings: ``rounds``, ``patience``, ``learning_rate``, ``max_leaf_nodes``, ``min_samples_leaf``, ``l2``,
    ``column_share`` (columns tried per split), ``max_bins``.
    """

    model_files = (HIST_MODEL_FILE,)
    most_levels = 250
    defaults: ClassVar[dict[str, Any]] = {
        "rounds": 800,
        "patience": 25,
        "learning_rate": 0.05,
        "max_leaf_nodes": 8,
        "min_samples_leaf": 60,
        "l2": 30.0,
        "column_share": 0.25,
        "max_bins": 255,
    }

    model_: HistGradientBoostingClassifier

    def _fit(self, train: TableRows, valid: TableRows, *, seed: int, device: str, progress: Progress | None) -> None:
        chosen = self.chosen
        model = HistGradientBoostingClassifier(
            max_iter=chosen["rounds"],
            n_iter_no_change=chosen["patience"],
            learning_rate=chosen["learning_rate"],
            max_leaf_nodes=chosen["max_leaf_nodes"],
            min_samples_leaf=chosen["min_samples_leaf"],
            l2_regularization=chosen["l2"],
            max_features=chosen["column_share"],
            max_bins=chosen["max_bins"],
            categorical_features=list(train.categories) or None,
            early_stopping=True,
            scoring="loss",
            random_state=seed,
        )
        with limited_threads(self.threads, user_api="openmp"):
            model.fit(
                train.table,
                train.labels,
                sample_weight=train.weights,
                X_val=valid.table,
                y_val=valid.labels,
                sample_weight_val=valid.weights,
            )
        self.model_ = model

    def _log_proba(self, table: np.ndarray) -> np.ndarray:
        with limited_threads(self.threads, user_api="openmp"):
            margins = self.model_.decision_function(table)
        return log_of_margins(margins)

    @property
    def n_parameters(self) -> int:
        """Number of leaves."""
        return sum(tree.get_n_leaf_nodes() for trees in self.model_._predictors for tree in trees)

    def _write(self, folder: Path) -> None:
        write_skops(folder / HIST_MODEL_FILE, self.model_)

    def _read(self, folder: Path, header: dict[str, Any]) -> None:
        self.model_ = read_skops(folder / HIST_MODEL_FILE, HistGradientBoostingClassifier, HIST_TRUSTED_TYPES)
