"""LightGBM behind the learner interface; with ``linear_tree`` its leaves hold linear models.

Slow and shallow by default: on smooth, oblique class borders, such as those between primary masses, deep trees fit
noise.
"""

from __future__ import annotations

import logging
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar

import lightgbm as lgb
import numpy as np

from showerstack.features.device import gpu_answers
from showerstack.models.base.learner import Batch
from showerstack.models.base.posterior import log_of_margins
from showerstack.models.tables.base import (
    TableLearner,
    TableRows,
    goes_on,
    native_names,
    normalised,
    unfold_contributions,
)
from showerstack.models.tables.lightgbm_trees import MODEL_FILE, LightGBMTrees, OtherTrees
from showerstack.runtime.context import Progress
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import atomic_path
from showerstack.runtime.processes import in_silent_process

LOG = logging.getLogger(__name__)


class LightGBM(TableLearner):
    """Gradient-boosted trees of the LightGBM library.

    Settings: ``rounds`` (most trees per class), ``patience`` (rounds without a better validation log-loss),
    ``least_gain`` (log-loss by which it has to be better to count),
    ``native`` (parameters of LightGBM that have no name here), and LightGBM's own ``learning_rate``, ``num_leaves``,
    ``min_data_in_leaf``, ``feature_fraction``, ``bagging_fraction``, ``lambda_l2``, ``max_bin``, ``linear_tree``,
    ``linear_lambda``.
    """

    model_files = (MODEL_FILE,)
    defaults: ClassVar[dict[str, Any]] = {
        "rounds": 2000,
        "patience": 60,
        "least_gain": 0.0,
        "learning_rate": 0.05,
        "num_leaves": 6,
        "min_data_in_leaf": 60,
        "feature_fraction": 0.25,
        "bagging_fraction": 0.7,
        "lambda_l2": 30.0,
        "max_bin": 255,
        "linear_tree": False,
        "linear_lambda": 1.0,
        "native": {},
    }

    booster_: lgb.Booster

    def _parameters(self, seed: int, device: str) -> dict[str, Any]:
        n_classes = len(self.classes)
        parameters: dict[str, Any] = {
            "objective": "binary" if n_classes == 2 else "multiclass",
            "metric": "binary_logloss" if n_classes == 2 else "multi_logloss",
            "bagging_freq": 1,
            "seed": seed,
            "deterministic": True,
            "force_col_wise": device == "cpu",
            "num_threads": self.threads,
            "device_type": device,
            "verbosity": -1,
            **self._library_parameters(),
        }
        if n_classes > 2:
            parameters["num_class"] = n_classes
        return parameters

    @classmethod
    def gpu_obstacle(cls) -> str | None:
        """Return why LightGBM has no GPU here; None if it trains on one."""
        if not trains_on_cuda():
            return "this LightGBM is built without CUDA, as that of the package index is: it trains on the CPU"
        return None

    def _fit(self, train: TableRows, valid: TableRows, *, seed: int, device: str, progress: Progress | None) -> None:
        if device == "cuda" and not gpu_answers():
            LOG.warning("no GPU answers: LightGBM trains on the CPU")
            device = "cpu"
        self.device_ = device
        parameters = self._parameters(seed, device)
        # Binned once into one byte a value; the table itself is not copied, and not kept (linear leaves need it).
        train_data = self._dataset(train, parameters)
        valid_data = self._dataset(valid, parameters, reference=train_data)
        rounds = int(self.chosen["rounds"])
        callbacks: list[Any] = [
            lgb.early_stopping(int(self.chosen["patience"]), verbose=False, min_delta=float(self.chosen["least_gain"]))
        ]
        evaluated: dict[str, dict[str, list[float]]] = {}
        callbacks.append(lgb.record_evaluation(evaluated))
        if progress:
            callbacks.append(_reporter(progress))
        booster = lgb.train(
            parameters, train_data, num_boost_round=rounds, valid_sets=[valid_data], callbacks=callbacks
        )
        self.losses_ = next(iter(evaluated["valid_0"].values()))
        # Through its text form at once: what predicts now is exactly what a saved learner will be.
        best = booster.best_iteration if booster.best_iteration > 0 else rounds
        self.booster_ = lgb.Booster(model_str=booster.model_to_string(num_iteration=best))
        vars(self).pop("_trees", None)

    def _dataset(
        self, events: TableRows, parameters: dict[str, Any], reference: lgb.Dataset | None = None
    ) -> lgb.Dataset:
        return lgb.Dataset(
            events.table,
            events.labels,
            weight=events.weights,
            reference=reference,
            feature_name=native_names(self.columns_),
            categorical_feature=list(events.categories),
            params=parameters,
            free_raw_data=not self.chosen["linear_tree"],
        )

    @cached_property
    def _trees(self) -> LightGBMTrees | None:
        """The trees for predictions without the library; None where they are not plain."""
        try:
            return LightGBMTrees.parse(self.booster_.model_to_string())
        except OtherTrees:
            return None

    def _log_proba(self, table: np.ndarray) -> np.ndarray:
        if self._trees is not None:
            return log_of_margins(self._trees.margins(table))
        return log_of_margins(np.asarray(self.booster_.predict(table, raw_score=True, num_threads=self.threads)))

    def contributions(self, batch: Batch) -> np.ndarray:
        """Return each column's share of each class margin (TreeSHAP).

        Returns
        -------
        numpy.ndarray
            (n, C, F + 1) float64; the last entry is the mean margin, the sum over the last axis is the raw margin.
            With two classes the first class has margin zero.
        """
        self._check_fitted()
        if self.chosen["linear_tree"]:
            raise InputError("LightGBM gives no contributions for linear trees")
        table = self._table(batch)
        flat = np.asarray(self.booster_.predict(table, pred_contrib=True, num_threads=self.threads))
        return unfold_contributions(flat, len(self.classes), len(self.columns_))

    def importances(self) -> dict[str, float]:
        """Return the gain of each column, summing to one."""
        return normalised(np.asarray(self.booster_.feature_importance("gain"), dtype=np.float64), self.columns_)

    @property
    def n_parameters(self) -> int:
        """Number of leaves."""
        text = self.booster_.model_to_string()  # as JSON, all splits would be written and read for it
        return sum(int(line.partition("=")[2]) for line in text.splitlines() if line.startswith("num_leaves="))

    def _write(self, folder: Path) -> None:
        with atomic_path(folder / MODEL_FILE) as temporary:
            temporary.write_text(self.booster_.model_to_string(), encoding="utf-8")

    def _read(self, folder: Path, header: dict[str, Any]) -> None:
        try:
            self.booster_ = lgb.Booster(model_str=(folder / MODEL_FILE).read_text(encoding="utf-8"))
        except lgb.basic.LightGBMError as error:
            raise InputError(f"{folder / MODEL_FILE} is not a LightGBM model: {error}") from None


@cache
def trains_on_cuda() -> bool:
    """Return whether this build of LightGBM trains on a GPU here, tried in a process of its own.

    Builds for OpenCL are never chosen, since nobody has found them faster; ``native={"device_type": "gpu"}`` does.
    """
    if not gpu_answers():
        return False
    try:
        return bool(in_silent_process(_try_cuda))
    except (InputError, RuntimeError):
        return False


def _try_cuda() -> bool:
    table = np.random.default_rng(0).normal(size=(200, 2))
    data = lgb.Dataset(table, (table[:, 0] > 0).astype(int), params={"verbosity": -1})
    try:
        lgb.train({"objective": "binary", "device_type": "cuda", "verbosity": -1}, data, num_boost_round=1)
    except lgb.basic.LightGBMError:
        return False
    return True


def _reporter(progress: Progress) -> Any:
    best = (np.inf, 0)

    def report(environment: Any) -> None:
        nonlocal best
        loss = environment.evaluation_result_list[0][2]
        best = min(best, (loss, environment.iteration))
        if not goes_on(progress, environment.iteration + 1, environment.end_iteration, loss):
            raise lgb.callback.EarlyStopException(best[1], environment.evaluation_result_list)

    report.order = 25  # type: ignore[attr-defined]  # after the losses are recorded, before early stopping
    return report
