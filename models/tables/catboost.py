"""CatBoost behind the learner interface: symmetric trees, a strong regulariser on smooth problems."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from catboost import CatBoost as Booster
from catboost import CatBoostError, FeaturesData, Pool
from catboost.utils import get_gpu_device_count

from showerstack.models.base.learner import Batch
from showerstack.models.base.posterior import log_of_margins
from showerstack.models.tables.base import TableLearner, TableRows, goes_on, normalised, unfold_contributions
from showerstack.runtime.context import Progress
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import atomic_path

MODEL_FILE = "catboost.cbm"
GPU_RAM_PART = 0.9
"""Of the free memory of the first GPU, the only one to be used: the library would take all of every GPU."""
VOLATILE = ("model_guid", "train_finish_time")
"""Entries of a model's metadata that differ between two trainings of one model."""


class CatBoost(TableLearner):
    """Gradient-boosted symmetric trees of the CatBoost library.

    Settings: ``rounds``, ``patience``, ``least_gain`` (CPU only), ``native`` as for LightGBM, and CatBoost's own
    ``learning_rate``, ``depth``, ``l2_leaf_reg``, ``random_strength``, ``bagging_temperature``, ``rsm`` (CPU only),
    ``border_count``. On a GPU the library calls nobody, so that a time limit cannot end a fit there.
    """

    model_files = (MODEL_FILE,)
    defaults: ClassVar[dict[str, Any]] = {
        "rounds": 2000,
        "patience": 60,
        "least_gain": 0.0,
        "learning_rate": 0.06,
        "depth": 4,
        "l2_leaf_reg": 10.0,
        "random_strength": 1.0,
        "bagging_temperature": 1.0,
        "rsm": 0.25,
        "border_count": 254,
        "native": {},
    }

    booster_: Booster

    def _parameters(self, seed: int, device: str) -> dict[str, Any]:
        chosen = self._library_parameters()
        if device == "cuda":
            # Column sampling exists on the GPU for pairwise losses only.
            chosen.pop("rsm", None)
        return {
            "loss_function": "Logloss" if len(self.classes) == 2 else "MultiClass",
            "iterations": int(self.chosen["rounds"]),
            "early_stopping_rounds": int(self.chosen["patience"]),
            "use_best_model": True,
            "bootstrap_type": "Bayesian",
            "random_seed": seed,
            "thread_count": self.threads,
            "task_type": "GPU" if device == "cuda" else "CPU",
            "allow_writing_files": False,
            "logging_level": "Silent",
            **({"devices": "0", "gpu_ram_part": GPU_RAM_PART} if device == "cuda" else {}),
            **chosen,
        }

    @classmethod
    def gpu_obstacle(cls) -> str | None:
        return None if get_gpu_device_count() else "CatBoost finds no GPU: its driver may be missing or too old"

    def _fit(self, train: TableRows, valid: TableRows, *, seed: int, device: str, progress: Progress | None) -> None:
        if device == "cuda" and (obstacle := self.gpu_obstacle()):
            raise InputError(f"device cuda: {obstacle}")
        self.device_ = device
        booster = Booster(self._parameters(seed, device))
        callbacks: list[Any] = []
        if device == "cpu":  # the library calls nobody from a GPU
            callbacks += [_Reporter(progress, int(self.chosen["rounds"]))] if progress else []
            least = float(self.chosen["least_gain"])
            callbacks += [_Patience(int(self.chosen["patience"]), least)] if least else []
        booster.fit(self._pool(train), eval_set=self._pool(valid), callbacks=callbacks or None)
        self.losses_ = next(iter(booster.get_evals_result()["validation"].values()))
        self.booster_ = booster

    def _pool(self, events: TableRows) -> Pool:
        if self.levels_.codes:
            return Pool(self._mixed(events.table), events.labels, weight=events.weights, thread_count=self.threads)
        return Pool(
            events.table,
            events.labels,
            weight=events.weights,
            feature_names=[f"f{k}" for k in range(len(self.columns_))],
            thread_count=self.threads,
        )

    def _mixed(self, table: np.ndarray) -> FeaturesData:
        """Return quantities, then categories as the library wants them: byte strings, one for missing."""
        category_columns = self.category_positions
        names = [
            [f"f{k}" for k in range(len(self.columns_)) if (k in category_columns) == is_category]
            for is_category in (False, True)
        ]
        codes = np.nan_to_num(table[:, category_columns], nan=-1.0).astype(np.int64)
        codes_as_text = np.array([str(k).encode() for k in range(-1, int(codes.max(initial=0)) + 1)], dtype=object)
        numbers = np.ascontiguousarray(np.delete(table, category_columns, axis=1), dtype=np.float32)
        return FeaturesData(
            num_feature_data=numbers if numbers.shape[1] else None,
            num_feature_names=names[0] or None,
            cat_feature_data=codes_as_text[codes + 1],
            cat_feature_names=names[1],
        )

    def _in_table_order(self, by_column: np.ndarray) -> np.ndarray:
        """Return the last axis, one entry a column, in the order of the table."""
        category_columns = self.category_positions
        order = [k for k in range(len(self.columns_)) if k not in category_columns] + list(category_columns)
        return by_column[..., np.argsort(order)]

    def _log_proba(self, table: np.ndarray) -> np.ndarray:
        rows = self._mixed(table) if self.levels_.codes else table
        margins = self.booster_.predict(rows, prediction_type="RawFormulaVal", thread_count=self.threads)
        return log_of_margins(margins)

    def contributions(self, batch: Batch) -> np.ndarray:
        """Return each column's share of each class margin (TreeSHAP), shaped as LightGBM's."""
        self._check_fitted()
        table = self._table(batch)
        pool = Pool(self._mixed(table) if self.levels_.codes else table, thread_count=self.threads)
        flat = self.booster_.get_feature_importance(pool, type="ShapValues", thread_count=self.threads)
        by_class = unfold_contributions(np.asarray(flat).reshape(len(batch), -1), len(self.classes), len(self.columns_))
        return np.concatenate([self._in_table_order(by_class[..., :-1]), by_class[..., -1:]], axis=2)

    def importances(self) -> dict[str, float]:
        """Return the change of prediction by each column, summing to one."""
        gain = self.booster_.get_feature_importance(type="PredictionValuesChange", thread_count=self.threads)
        return normalised(self._in_table_order(np.asarray(gain, dtype=np.float64)), self.columns_)

    @property
    def n_parameters(self) -> int:
        """Number of leaf values."""
        return int(self.booster_.get_leaf_values().size)

    def _write(self, folder: Path) -> None:
        # Without the time and the random name of the training, equal models give equal bytes.
        metadata = self.booster_.get_metadata()
        for key in VOLATILE:
            metadata[key] = ""
        with atomic_path(folder / MODEL_FILE) as temporary:
            self.booster_.save_model(str(temporary), format="cbm")

    def _read(self, folder: Path, header: dict[str, Any]) -> None:
        booster = Booster()
        try:
            booster.load_model(str(folder / MODEL_FILE), format="cbm")
        except CatBoostError as error:
            raise InputError(f"{folder / MODEL_FILE} is not a CatBoost model: {str(error).splitlines()[0]}") from None
        self.booster_ = booster


class _Reporter:
    """CatBoost's callback: after each round."""

    def __init__(self, progress: Progress, rounds: int) -> None:
        self.progress, self.rounds = progress, rounds

    def after_iteration(self, info: Any) -> bool:
        loss = next(iter(info.metrics["validation"].values()))[-1]
        return goes_on(self.progress, info.iteration, self.rounds, loss)


class _Patience:
    """CatBoost's callback: after so many rounds that gained too little, training ends."""

    def __init__(self, patience: int, least_gain: float) -> None:
        self.patience, self.least_gain = patience, least_gain
        self.best, self.at = np.inf, 0

    def after_iteration(self, info: Any) -> bool:
        loss = next(iter(info.metrics["validation"].values()))[-1]
        if loss < self.best - self.least_gain:
            self.best, self.at = loss, info.iteration
        return info.iteration - self.at < self.patience
