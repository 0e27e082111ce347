"""XGBoost behind the learner interface, through its memory-lean quantile matrix."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import xgboost as xgb

from showerstack.features.device import cupy_obstacle, gpu_answers
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
from showerstack.runtime.context import Progress
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import atomic_path

MODEL_FILE = "xgboost.ubj"


class XGBoost(TableLearner):
    """Gradient-boosted trees of the XGBoost library.

    Settings: ``rounds``, ``patience``, ``least_gain``, ``native`` as for LightGBM, and XGBoost's own
    ``learning_rate``, ``max_depth``, ``min_child_weight``, ``subsample``, ``colsample_bytree``, ``reg_lambda``,
    ``max_bin``.
    """

    model_files = (MODEL_FILE,)
    defaults: ClassVar[dict[str, Any]] = {
        "rounds": 2000,
        "patience": 60,
        "least_gain": 0.0,
        "learning_rate": 0.05,
        "max_depth": 3,
        "min_child_weight": 20.0,
        "subsample": 0.7,
        "colsample_bytree": 0.5,
        "reg_lambda": 10.0,
        "max_bin": 256,
        "native": {},
    }

    booster_: xgb.Booster

    def _parameters(self, seed: int, device: str) -> dict[str, Any]:
        n_classes = len(self.classes)
        parameters: dict[str, Any] = {
            "objective": "binary:logistic" if n_classes == 2 else "multi:softprob",
            "eval_metric": "logloss" if n_classes == 2 else "mlogloss",
            "tree_method": "hist",
            "device": device,
            "seed": seed,
            "nthread": self.threads,
            **self._library_parameters(),
        }
        if n_classes > 2:
            parameters["num_class"] = n_classes
        return parameters

    @classmethod
    def gpu_obstacle(cls) -> str | None:
        """Return why XGBoost has no GPU here, where it would silently take the CPU; None if it has one."""
        if not xgb.build_info().get("USE_CUDA", False):
            return "this XGBoost is built without CUDA: install the standard Linux wheel"
        obstacle = cupy_obstacle()
        return None if obstacle is None else f"tables reach XGBoost through CuPy, and {obstacle}"

    def _fit(self, train: TableRows, valid: TableRows, *, seed: int, device: str, progress: Progress | None) -> None:
        if device == "cuda" and not gpu_answers():
            raise InputError("device cuda: no NVIDIA driver and GPU answer")
        self.device_ = device
        train_data = self._matrix(train, device)
        valid_data = self._matrix(valid, device, reference=train_data)
        rounds = int(self.chosen["rounds"])
        callbacks: list[Any] = [
            xgb.callback.EarlyStopping(
                rounds=int(self.chosen["patience"]), save_best=True, min_delta=float(self.chosen["least_gain"])
            )
        ]
        if progress:
            callbacks.append(_Reporter(progress, rounds))
        evaluated: dict[str, Any] = {}
        booster = xgb.train(
            self._parameters(seed, device),
            train_data,
            num_boost_round=rounds,
            evals=[(valid_data, "valid")],
            callbacks=callbacks,
            evals_result=evaluated,
            verbose_eval=False,
        )
        self.losses_ = list(next(iter(evaluated["valid"].values())))
        if device == "cuda":
            check_ran_on_cuda(booster)
        self.booster_ = xgb.Booster({"nthread": self.threads}, model_file=booster.save_raw("ubj"))

    def _matrix(
        self, events: TableRows, device: str, reference: xgb.QuantileDMatrix | None = None
    ) -> xgb.QuantileDMatrix:
        table: Any = events.table
        if device == "cuda":
            # From device memory XGBoost sketches quantiles on the GPU and keeps no copy on the host.
            import cupy

            table = cupy.asarray(table)
        return xgb.QuantileDMatrix(
            table,
            events.labels,
            weight=events.weights,
            **self._names(),
            nthread=self.threads,
            max_bin=int(self.chosen["max_bin"]),
            ref=reference,
        )

    def _log_proba(self, table: np.ndarray) -> np.ndarray:
        margins = self.booster_.predict(self._plain_matrix(table), output_margin=True)
        return log_of_margins(margins)

    def _plain_matrix(self, table: np.ndarray) -> xgb.DMatrix:
        return xgb.DMatrix(table, **self._names(), nthread=self.threads)

    def _names(self) -> dict[str, Any]:
        options: dict[str, Any] = {"feature_names": native_names(self.columns_)}
        if self.levels_.codes:
            kinds = ["c" if name in self.levels_.codes else "q" for name in self.columns_]
            options |= {"feature_types": kinds, "enable_categorical": True}
        return options

    def contributions(self, batch: Batch) -> np.ndarray:
        """Return each column's share of each class margin (TreeSHAP), shaped as LightGBM's.

        Computed in float32 by the library.
        """
        self._check_fitted()
        flat = self.booster_.predict(self._plain_matrix(self._table(batch)), pred_contribs=True)
        return unfold_contributions(flat.reshape(len(batch), -1), len(self.classes), len(self.columns_))

    def importances(self) -> dict[str, float]:
        """Return the total gain of each column, summing to one."""
        gain = self.booster_.get_score(importance_type="total_gain")
        values = np.array([float(np.sum(gain.get(name, 0.0))) for name in native_names(self.columns_)])
        return normalised(values, self.columns_)

    @property
    def n_parameters(self) -> int:
        """Number of leaves."""
        return sum(tree.count("leaf=") for tree in self.booster_.get_dump())

    def _write(self, folder: Path) -> None:
        with atomic_path(folder / MODEL_FILE) as temporary:
            temporary.write_bytes(bytes(self.booster_.save_raw("ubj")))

    def _read(self, folder: Path, header: dict[str, Any]) -> None:
        raw = bytearray((folder / MODEL_FILE).read_bytes())
        written_by, installed = version_of_model(raw), tuple(map(int, xgb.__version__.split(".")[:2]))
        if written_by is not None and written_by[:2] > installed:
            newer = ".".join(map(str, written_by))
            raise InputError(
                f"{folder / MODEL_FILE} was written with XGBoost {newer}; XGBoost {xgb.__version__}, installed here, "
                f"would read it and predict wrongly: install XGBoost {newer} or newer"
            )
        try:
            self.booster_ = xgb.Booster({"nthread": self.threads}, model_file=raw)
        except xgb.core.XGBoostError as error:
            raise InputError(f"{folder / MODEL_FILE} is not an XGBoost model: {str(error).splitlines()[0]}") from None


_VERSION_AT_END = re.compile(rb"L.{7}\x07version\[#L.{7}\x03i(.)i(.)i(.)}", re.DOTALL)
"""Three small whole numbers in UBJSON, the last entry of a model's outermost object."""


def version_of_model(stored: bytes | bytearray) -> tuple[int, ...] | None:
    """Return the version of XGBoost that wrote a model in its binary format, from its last bytes; None if not there.

    The library does not compare it with its own: 3.0 reads what 3.1 and later write, whose base score has become a
    list of one number a class, and predicts other probabilities, without a word.
    """
    found = _VERSION_AT_END.search(stored[-64:])
    return None if found is None else tuple(number[0] for number in found.groups())


def check_ran_on_cuda(booster: xgb.Booster) -> None:
    """Refuse a booster that XGBoost trained on the CPU although CUDA was asked for (it only warns)."""
    used = json.loads(booster.save_config())["learner"]["generic_param"]["device"]
    if not used.startswith("cuda"):
        raise InputError(
            f"device cuda: XGBoost trained on {used!r} instead; no GPU answered (is the driver installed?)"
        )


class _Reporter(xgb.callback.TrainingCallback):
    def __init__(self, progress: Progress, rounds: int) -> None:
        self.progress, self.rounds = progress, rounds

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        loss = next(iter(evals_log["valid"].values()))[-1]
        return not goes_on(self.progress, epoch + 1, self.rounds, loss)
