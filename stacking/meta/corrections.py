"""Meta-learners that correct: multinomial logistic regression with l2, and a small boosted tree on top of the pool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from showerstack.models.base.posterior import log_softmax
from showerstack.stacking.fit.folds import subsampled
from showerstack.stacking.meta.base import MetaLearner, StackInputs
from showerstack.stacking.meta.pools import LogPool
from showerstack.stacking.meta.scorers import Scorer
from showerstack.stacking.meta.softmax import fit_linear, fit_scaling

LOGISTIC_L2_EVENTS = 100.0
"""Pull of the logistic weights towards the plain average of the learners, in events: it fades as 1/N."""


class Logistic(MetaLearner):
    """Multinomial logistic regression on all log-probabilities, pulled towards their plain average."""

    name = "logistic"
    complexity = 4

    def fit(self, inputs: StackInputs, scorer: Scorer) -> None:
        """Learn the matrix and the biases."""
        n_learners, _, n_classes = inputs.log_proba.shape
        self._take_scale(inputs.context)
        centre = np.tile(np.eye(n_classes) / n_learners, (n_learners, 1))
        columns = self._columns(inputs.log_proba, inputs.context)
        centre = np.vstack([centre, np.zeros((columns.shape[1] - len(centre), n_classes))])
        l2 = LOGISTIC_L2_EVENTS / len(inputs.labels)
        self.matrix_, self.bias_ = fit_linear(columns, inputs.labels, centre, inputs.weights, l2=l2)
        self.scales_ = np.ones(n_classes)
        self.shift_ = np.zeros(n_classes)
        if inputs.weights is not None:
            weighted = log_softmax(columns @ self.matrix_ + self.bias_)
            self.scales_, self.shift_ = fit_scaling(weighted, inputs.labels, inputs.event_weights, per_class=True)

    def predict(self, log_proba: np.ndarray, context: np.ndarray | None = None) -> np.ndarray:
        """Return the regression's log-posteriors."""
        raw = log_softmax(self._columns(log_proba, context) @ self.matrix_ + self.bias_)
        return log_softmax(raw * self.scales_ + self.shift_)

    def _take_scale(self, context: np.ndarray | None) -> None:
        self.centre_ = np.zeros(0) if context is None else context.mean(axis=0)
        self.spread_ = np.ones(0) if context is None else np.maximum(context.std(axis=0), 1e-9)

    def _columns(self, log_proba: np.ndarray, context: np.ndarray | None) -> np.ndarray:
        stacked = np.concatenate(list(log_proba), axis=1)
        if not len(self.centre_):
            return stacked
        assert context is not None
        return np.concatenate([stacked, (context - self.centre_) / self.spread_], axis=1)

    def as_json(self) -> dict[str, Any]:
        """Return all arrays."""
        return {key: getattr(self, f"{key}_").tolist() for key in self._ARRAYS}

    def restore(self, content: Mapping[str, Any]) -> None:
        """Take all arrays."""
        for key in self._ARRAYS:
            setattr(self, f"{key}_", np.array(content[key], float))

    _ARRAYS: ClassVar[tuple[str, ...]] = ("matrix", "bias", "scales", "shift", "centre", "spread")

    def importance(self) -> dict[str, float]:
        """Return the sum of each learner's absolute weights, as a share of all of them."""
        n_classes = len(self.bias_)
        blocks = self.matrix_[: n_classes * len(self.learners)].reshape(len(self.learners), n_classes, n_classes)
        size = np.array([np.abs(block).sum() for block in blocks])
        return dict(zip(self.learners, (size / size.sum()).tolist(), strict=True))


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

    def fit(self, inputs: StackInputs, scorer: Scorer) -> None:
        """Fit the pool, then trees on what it leaves; it sees the events that the pool looks at."""
        few = np.zeros(len(inputs.labels), dtype=bool)
        few[subsampled(len(few))] = True
        inputs = inputs.take(few)
        self.pool_ = LogPool(self.learners)
        self.pool_.fit(inputs, scorer)
        start = self.pool_.predict(inputs.log_proba)
        settings = {**BOOSTED_SETTINGS, "num_class": start.shape[1]}
        columns = self._columns(inputs.log_proba, inputs.context)
        import lightgbm  # half the time that reading a run takes, and most runs do not need it

        data = lightgbm.Dataset(columns, inputs.labels, init_score=start, weight=inputs.weights)
        self.booster_ = lightgbm.train(settings, data, num_boost_round=BOOSTED_ROUNDS)
        self.scales_, self.shift_ = np.ones(start.shape[1]), np.zeros(start.shape[1])
        if inputs.weights is not None:
            weighted = self.predict(inputs.log_proba, inputs.context)
            self.scales_, self.shift_ = fit_scaling(weighted, inputs.labels, inputs.event_weights, per_class=True)

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


META_LEARNERS = (Logistic, Boosted)
