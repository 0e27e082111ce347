"""Scikit-learn's histogram gradient boosting behind the learner interface."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from threadpoolctl import threadpool_limits

from models.posterior import log_of_margins
from models.tables.base import TableLearner, TableRows
from models.tables.skops_file import read_skops, write_skops
from showers.execution.progress import Progress

MODEL_FILE = "hist_boosting.skops"
_ROOM = "sklearn.ensemble._hist_gradient_boosting"
TRUSTED_TYPES = [
    f"{_ROOM}.binning._BinMapper",
    f"{_ROOM}.predictor.TreePredictor",
    "sklearn._loss.link.HalfLogitLink",
    "sklearn._loss.link.Interval",
    "sklearn._loss.link.LogitLink",
    "sklearn._loss.link.MultinomialLogit",
    "sklearn._loss.loss.HalfBinomialLoss",
    "sklearn._loss.loss.HalfMultinomialLoss",
    "sklearn.preprocessing._label.LabelEncoder",
]
"""What this model's file may hold beyond the types skops trusts by itself."""


class HistBoosting(TableLearner):
    """Gradient-boosted trees of scikit-learn.

    Settings: ``rounds``, ``patience``, ``learning_rate``, ``max_leaf_nodes``, ``min_samples_leaf``, ``l2``,
    ``column_share`` (columns tried per split), ``max_bins``.
    """

    model_files = (MODEL_FILE,)
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
        with threadpool_limits(self.threads, user_api="openmp"):
            model.fit(
                train.table,
                train.labels,
                sample_weight=train.weights,
                X_val=valid.table,
                y_val=valid.labels,
                sample_weight_val=valid.weights,
            )
        if progress:
            progress(model.n_iter_, model.n_iter_)
        self.model_ = model

    def _log_proba(self, table: np.ndarray) -> np.ndarray:
        with threadpool_limits(self.threads, user_api="openmp"):
            margins = self.model_.decision_function(table)
        return log_of_margins(margins)

    @property
    def n_parameters(self) -> int:
        """Number of leaves."""
        return sum(tree.get_n_leaf_nodes() for trees in self.model_._predictors for tree in trees)

    def _write(self, folder: Path) -> None:
        write_skops(folder / MODEL_FILE, self.model_)

    def _read(self, folder: Path, header: dict[str, Any]) -> None:
        self.model_ = read_skops(folder / MODEL_FILE, HistGradientBoostingClassifier, TRUSTED_TYPES)
