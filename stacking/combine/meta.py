"""Meta-learners: from the learners' out-of-fold log-probabilities to one posterior.

In order of complexity, which each class declares: plain average, non-negative log-linear pooling (the one to trust),
greedy ensemble selection on the real metric (R. Caruana et al., ICML 2004), regularised multinomial logistic
regression, and a small boosted tree that corrects the pool. All but the average return natural posteriors, also where
the fit weighted events.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import lightgbm
import numpy as np

from models.posterior import log_softmax
from stacking.combine.judges import Judge
from stacking.combine.softmax import fit_linear, fit_pool, fit_scaling, pooled

GREEDY_ROUNDS = 25
LOGISTIC_PULL_EVENTS = 100.0
"""Pull of the logistic weights towards the plain average of the learners, in events: it fades as 1/N."""
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


@dataclass(frozen=True)
class StackInputs:
    """What a meta-learner learns from: N judged events, all of them predicted out-of-fold."""

    learners: tuple[str, ...]
    log_proba: np.ndarray
    """(L, N, C) out-of-fold log-probabilities."""
    labels: np.ndarray
    """(N,) class numbers."""
    folds: np.ndarray
    """(N,) fold of each event."""
    context: np.ndarray | None = None
    """(N, K) quantities of the event that some meta-learners look at."""
    weights: np.ndarray | None = None
    """(N,) event weights, or None for one each."""

    def take(self, use: np.ndarray) -> StackInputs:
        """Return the events that ``use`` (N,) bool names."""
        return replace(
            self,
            log_proba=np.ascontiguousarray(self.log_proba[:, use]),
            labels=self.labels[use],
            folds=self.folds[use],
            context=None if self.context is None else self.context[use],
            weights=None if self.weights is None else self.weights[use],
        )


class MetaLearner(ABC):
    """Maps (L, N, C) log-probabilities, and optionally (N, K) quantities of the event, to (N, C).

    Parameters
    ----------
    learners
        Names of the L learners, in the order of the first axis.
    """

    name: ClassVar[str]
    complexity: ClassVar[int]
    """Order of simplicity; of equally good meta-learners that of the least is taken."""

    def __init__(self, learners: tuple[str, ...]) -> None:
        self.learners = tuple(learners)

    @abstractmethod
    def fit(self, inputs: StackInputs, judge: Judge) -> None:
        """Learn; greedy selection asks the judge, all others minimise the log-loss."""

    @abstractmethod
    def predict(self, log_proba: np.ndarray, context: np.ndarray | None = None) -> np.ndarray:
        """Return (N, C) float64 log-posteriors."""

    @abstractmethod
    def as_json(self) -> dict[str, Any]:
        """Return what was learned as JSON content."""

    @abstractmethod
    def restore(self, content: Mapping[str, Any]) -> None:
        """Take what :meth:`as_json` returned."""

    def importance(self) -> dict[str, float]:
        """Return each learner's weight, as far as one number can say it; a learner of weight 0 is not needed."""
        return dict.fromkeys(self.learners, 1.0 / len(self.learners))


class LogPool(MetaLearner):
    """``log_softmax(sum_l w_l z_l + b)`` with w >= 0, by log-loss."""

    name = "log_pool"
    complexity = 1

    def fit(self, inputs: StackInputs, judge: Judge) -> None:
        """Learn weights and biases."""
        self.weights_, self.bias_ = fit_pool(inputs.log_proba, inputs.labels, inputs.weights)
        if inputs.weights is not None:
            self.weights_, self.bias_ = _back_to_natural(inputs, self.weights_, self.bias_)

    def predict(self, log_proba: np.ndarray, context: np.ndarray | None = None) -> np.ndarray:
        """Return the pool."""
        return pooled(log_proba, self.weights_, self.bias_)

    def as_json(self) -> dict[str, Any]:
        """Return weights and biases."""
        return {"weights": self.weights_.tolist(), "bias": self.bias_.tolist()}

    def restore(self, content: Mapping[str, Any]) -> None:
        """Take weights and biases."""
        self.weights_, self.bias_ = np.array(content["weights"], float), np.array(content["bias"], float)

    def importance(self) -> dict[str, float]:
        """Return the weights, summing to one."""
        total = self.weights_.sum() or 1.0
        return dict(zip(self.learners, (self.weights_ / total).tolist(), strict=True))


class Average(LogPool):
    """The plain average in log-probability: nothing to learn, hard to beat where events are few."""

    name = "average"
    complexity = 0

    def fit(self, inputs: StackInputs, judge: Judge) -> None:
        """Give every learner the same weight."""
        n_learners, _, n_classes = inputs.log_proba.shape
        self.weights_, self.bias_ = np.full(n_learners, 1.0 / n_learners), np.zeros(n_classes)


class Greedy(LogPool):
    """Greedy selection with replacement on the judge's metric; a log-linear pool with weights count / total."""

    name = "greedy"
    complexity = 2

    def fit(self, inputs: StackInputs, judge: Judge) -> None:
        """Add, round after round, the learner that lowers the metric most; keep the best round."""
        log_proba, labels = inputs.log_proba, inputs.labels
        counts = np.zeros(len(log_proba))
        best_counts, best_metric = counts.copy(), np.inf
        total = np.zeros_like(log_proba[0])
        for size in range(1, GREEDY_ROUNDS + 1):
            metrics = [judge.metric(log_softmax((total + z) / size), labels) for z in log_proba]
            chosen = int(np.argmin(metrics))
            counts[chosen] += 1
            total += log_proba[chosen]
            if metrics[chosen] < best_metric:
                best_counts, best_metric = counts.copy(), metrics[chosen]
        weights, bias = best_counts / best_counts.sum(), np.zeros(log_proba.shape[2])
        self.weights_, self.bias_ = _back_to_natural(inputs, weights, bias)


class Logistic(MetaLearner):
    """Multinomial logistic regression on all log-probabilities, pulled towards their plain average."""

    name = "logistic"
    complexity = 3

    def fit(self, inputs: StackInputs, judge: Judge) -> None:
        """Learn the matrix and the biases."""
        n_learners, _, n_classes = inputs.log_proba.shape
        self._take_scale(inputs.context)
        centre = np.tile(np.eye(n_classes) / n_learners, (n_learners, 1))
        columns = self._columns(inputs.log_proba, inputs.context)
        centre = np.vstack([centre, np.zeros((columns.shape[1] - len(centre), n_classes))])
        pull = LOGISTIC_PULL_EVENTS / len(inputs.labels)
        self.matrix_, self.bias_ = fit_linear(columns, inputs.labels, centre, inputs.weights, pull=pull)
        self.scales_ = np.ones(n_classes)
        self.shift_ = np.zeros(n_classes)
        if inputs.weights is not None:
            weighted = log_softmax(columns @ self.matrix_ + self.bias_)
            self.scales_, self.shift_ = fit_scaling(weighted, inputs.labels, per_class=True)

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
        """Return each learner's mean diagonal weight, as a share of all absolute ones."""
        n_classes = len(self.bias_)
        blocks = self.matrix_[: n_classes * len(self.learners)].reshape(len(self.learners), n_classes, n_classes)
        size = np.array([np.abs(block).sum() for block in blocks])
        return dict(zip(self.learners, (size / size.sum()).tolist(), strict=True))


class Boosted(MetaLearner):
    """A small boosted tree that starts from the pool and sees log-probabilities and the event's scalars."""

    name = "boosted"
    complexity = 4

    def fit(self, inputs: StackInputs, judge: Judge) -> None:
        """Fit the pool, then trees on what it leaves."""
        self.pool_ = LogPool(self.learners)
        self.pool_.fit(inputs, judge)
        start = self.pool_.predict(inputs.log_proba)
        settings = {**BOOSTED_SETTINGS, "num_class": start.shape[1]}
        columns = self._columns(inputs.log_proba, inputs.context)
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
        self.pool_ = LogPool(self.learners)
        self.pool_.restore(content["pool"])
        self.booster_ = lightgbm.Booster(model_str=content["booster"])
        self.scales_, self.shift_ = np.array(content["scales"], float), np.array(content["shift"], float)


def _back_to_natural(inputs: StackInputs, weights: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Give a pool natural priors and the right sharpness again: one scale, one bias per class, fitted unweighted."""
    weighted = np.tensordot(weights, inputs.log_proba, axes=1) + bias
    (scale,), shift = fit_pool(weighted[None], inputs.labels)
    return weights * scale, bias * scale + shift


META_LEARNERS: dict[str, type[MetaLearner]] = {cls.name: cls for cls in (Average, LogPool, Greedy, Logistic, Boosted)}
"""By name."""


def meta_to_json(meta: MetaLearner) -> dict[str, Any]:
    """Return a meta-learner with its name and learners as JSON content."""
    return {"meta": meta.name, "learners": list(meta.learners), "learned": meta.as_json()}


def meta_from_json(content: Mapping[str, Any]) -> MetaLearner:
    """Read what :func:`meta_to_json` returned."""
    meta = META_LEARNERS[content["meta"]](tuple(content["learners"]))
    meta.restore(content["learned"])
    return meta
