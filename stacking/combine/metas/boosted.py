"""A small boosted tree that corrects the pool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from models.posterior import log_softmax
from stacking.combine.judges import Judge
from stacking.combine.meta import MetaLearner, StackInputs
from stacking.combine.metas.log_pool import LogPool
from stacking.combine.softmax import fit_scaling, thinned

BOOSTED_ROUNDS = 60
BOOSTED_SETTINGS: Mapping[str, Any] = {
    "objective": "multiclass",
    "learning_rate": 0.05,
    "num_leaves": 4,
    "min_data_in_leaf": 200,
    "lambda_l2": 10.0,
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,
    "verbosity": -1,
}


class Boosted(MetaLearner):
    """A small boosted tree that starts from the pool and sees log-probabilities and the event's scalars."""

    name = "boosted"
    complexity = 5
    presets = ("good", "best")

    def fit(self, inputs: StackInputs, judge: Judge) -> None:
        """Fit the pool, then trees on what it leaves; more events than the pool looks at are thinned evenly."""
        few = np.zeros(len(inputs.labels), dtype=bool)
        few[thinned(len(few))] = True
        inputs = inputs.take(few)
        self.pool_ = LogPool(self.learners)
        self.pool_.fit(inputs, judge)
        start = self.pool_.predict(inputs.log_proba)
        settings = {**BOOSTED_SETTINGS, "num_class": start.shape[1]}
        columns = self._columns(inputs.log_proba, inputs.context)
        import lightgbm  # half the time that reading a run takes, and most runs do not need it

        data = lightgbm.Dataset(columns, inputs.labels, init_score=start, weight=inputs.weights)
        self.booster_ = lightgbm.train(settings, data, num_boost_round=BOOSTED_ROUNDS)
        self.scales_, self.shift_ = np.ones(start.shape[1]), np.zeros(start.shape[1])
        if inputs.weights is not None:
            weighted = self.predict(inputs.log_proba, inputs.context)
            self.scales_, self.shift_ = fit_scaling(weighted, inputs.labels, per_class=True)

    def predict(self, log_proba: np.ndarray, context: np.ndarray | None = None) -> np.ndarray:
        """Return pool plus trees."""
        trees = self.booster_.predict(self._columns(log_proba, context), raw_score=True, num_threads=1)
        return log_softmax(log_softmax(self.pool_.predict(log_proba) + np.asarray(trees)) * self.scales_ + self.shift_)

    def _columns(self, log_proba: np.ndarray, context: np.ndarray | None) -> np.ndarray:
        columns = [*log_proba] if context is None else [*log_proba, context]
        return np.concatenate(columns, axis=1)

    def as_json(self) -> dict[str, Any]:
        """Return the pool and the trees in LightGBM's own text format."""
        return {
            "pool": self.pool_.as_json(),
            "booster": self.booster_.model_to_string(),
            "scales": self.scales_.tolist(),
            "shift": self.shift_.tolist(),
        }

    def restore(self, content: Mapping[str, Any]) -> None:
        """Take pool and trees."""
        import lightgbm

        self.pool_ = LogPool(self.learners)
        self.pool_.restore(content["pool"])
        self.booster_ = lightgbm.Booster(model_str=content["booster"])
        self.scales_, self.shift_ = np.array(content["scales"], float), np.array(content["shift"], float)
