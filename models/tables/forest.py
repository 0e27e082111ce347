"""Random forest and extremely randomised trees (scikit-learn), with smoothed leaves.

A plain forest averages leaf frequencies, many of which are exactly 0 or 1: posteriors saturate, and scores tie. Here
each leaf holds ``(n_k + a pi_k) / (n + a)``, its counts plus ``a`` events of the training mix ``pi``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier, RandomForestRegressor

from models.posterior import log_softmax
from models.tables.base import TableLearner, TableRows, normalised
from models.tables.skops_file import read_skops, write_skops
from showers.execution.progress import Progress
from showers.schema import InputError

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
        many = len(train.labels) > most
        forest = self.kind(
            n_estimators=trees,
            min_samples_leaf=self.chosen["min_samples_leaf"],
            max_features=self.chosen["max_features"],
            max_depth=self.chosen["max_depth"],
            max_samples=most if many else None,
            bootstrap=self.bootstrap or many,
            random_state=seed,
            n_jobs=self.threads,
            warm_start=True,
        )
        for grown in [*range(TREES_AT_ONCE, trees, TREES_AT_ONCE), trees]:
            forest.n_estimators = grown
            forest.fit(train.table, train.labels, sample_weight=train.weights)
            if progress:
                progress(grown, trees)
        mass = np.bincount(train.labels, weights=train.weights, minlength=len(self.classes))
        scale = 1.0 if train.weights is None else float(train.weights.mean())
        for tree in forest.estimators_:
            smooth_leaves(tree.tree_, self._prior(mass), float(self.chosen["smoothing"]) * scale)
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
