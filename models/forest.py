"""Random forest and extremely randomised trees (scikit-learn), with smoothed leaves.

A plain forest averages leaf frequencies, many of which are exactly 0 or 1: posteriors saturate, and scores tie. Here
each leaf holds ``(n_k + a pi_k) / (n + a)``, its counts plus ``a`` events of the training mix ``pi``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import skops.io
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier

from models.posterior import log_softmax
from models.table import TableEvents, TableLearner, normalised
from showers.files import atomic_path
from showers.progress import Progress
from showers.schema import InputError

MODEL_FILE = "forest.skops"
TRUSTED_TYPES = ["sklearn.tree._tree.Tree"]
"""What a forest's file may hold beyond the types skops trusts by itself."""
TREES_AT_ONCE = 25
"""Trees grown between two progress reports."""


class RandomForest(TableLearner):
    """Forest of ``trees`` trees on bootstrap samples.

    Settings: ``trees``, ``min_samples_leaf``, ``max_features``, ``max_depth``, ``max_samples`` as in scikit-learn, and
    ``smoothing``, the events ``a`` that each leaf gets of the training mix. There is nothing to stop early.
    """

    model_files = (MODEL_FILE,)
    defaults: ClassVar[dict[str, Any]] = {
        "trees": 500,
        "min_samples_leaf": 8,
        "max_features": "sqrt",
        "max_depth": None,
        "max_samples": None,
        "smoothing": 2.0,
    }
    bootstrap = True
    kind: type[Any] = RandomForestClassifier

    forest_: Any

    def _fit(
        self, train: TableEvents, valid: TableEvents, *, seed: int, device: str, progress: Progress | None
    ) -> None:
        trees = int(self.chosen["trees"])
        forest = self.kind(
            n_estimators=trees,
            criterion="gini",
            min_samples_leaf=self.chosen["min_samples_leaf"],
            max_features=self.chosen["max_features"],
            max_depth=self.chosen["max_depth"],
            max_samples=self.chosen["max_samples"] if self.bootstrap else None,
            bootstrap=self.bootstrap,
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
            smooth_leaves(tree.tree_, mass / mass.sum(), float(self.chosen["smoothing"]) * scale)
        self.forest_ = forest

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
        with atomic_path(folder / MODEL_FILE) as temporary:
            skops.io.dump(self.forest_, temporary)

    def _read(self, folder: Path, header: dict[str, Any]) -> None:
        file = folder / MODEL_FILE
        unknown = sorted(set(skops.io.get_untrusted_types(file=file)) - set(TRUSTED_TYPES))
        if unknown:
            raise InputError(f"{file} holds types that no forest needs: {', '.join(unknown)}")
        forest = skops.io.load(file, trusted=TRUSTED_TYPES)
        if type(forest) is not self.kind:
            raise InputError(f"{file} holds a {type(forest).__name__}, expected a {self.kind.__name__}")
        self.forest_ = forest


class ExtraTrees(RandomForest):
    """Forest whose splits are drawn at random, each tree on all events; settings as :class:`RandomForest`."""

    bootstrap = False
    kind = ExtraTreesClassifier


def smooth_leaves(tree: Any, prior: np.ndarray, events: float) -> None:
    """Mix the training prior into every node of a scikit-learn tree, in place.

    Parameters
    ----------
    tree
        ``estimator.tree_``; its values are class frequencies, (nodes, 1, C).
    prior
        (C,) float64, summing to one.
    events
        Weight of the prior, in (weighted) events.
    """
    mass = tree.weighted_n_node_samples[:, None]
    tree.value[:, 0, :] = (tree.value[:, 0, :] * mass + events * prior) / (mass + events)
