"""Boosted trees that try to tell two samples of showers apart, tested on events that they did not learn from."""

from __future__ import annotations

from dataclasses import dataclass

import lightgbm
import numpy as np

from showerstack.scoring.metrics.level import standard_errors

FOLDS = 5
ROUNDS = 100
PARAMETERS = {
    "objective": "binary",
    "learning_rate": 0.05,
    "num_leaves": 15,
    "min_data_in_leaf": 100,
    "feature_fraction": 0.3,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "lambda_l2": 10.0,
    "deterministic": True,
    "force_col_wise": True,
    "verbose": -1,
}


@dataclass(frozen=True)
class Auc:
    """A weighted area under the ROC curve, and its standard error (DeLong et al. 1988, with weights)."""

    value: float
    error: float


def weighted_auc(data: np.ndarray, simulation: np.ndarray, weights: np.ndarray) -> Auc:
    """Return the probability that a datum scores higher than a weighted simulated event, ties counted half."""
    order = np.argsort(simulation)
    scores, w = simulation[order], weights[order] / weights.sum()
    below = np.concatenate([[0.0], np.cumsum(w)])
    left, right = np.searchsorted(scores, data, "left"), np.searchsorted(scores, data, "right")
    of_data = (below[left] + below[right]) / 2
    ordered = np.sort(data)
    above = 1.0 - (np.searchsorted(ordered, scores, "left") + np.searchsorted(ordered, scores, "right")) / 2 / len(data)
    value = float(of_data.mean())
    variance = of_data.var() / len(data) + float((w**2 * (above - value) ** 2).sum())
    return Auc(value, float(np.sqrt(max(variance, 1e-12))))


@dataclass(frozen=True)
class ClassifierTest:
    """What the classifier finds."""

    auc: float
    low: float
    high: float
    """Confidence interval."""
    giving_away: tuple[tuple[str, float], ...]
    """Features and their share of the gain, largest first."""


def classify(
    names: tuple[str, ...],
    data: np.ndarray,
    simulation: np.ndarray,
    weights: np.ndarray,
    groups: np.ndarray,
    *,
    seed: int,
    threads: int = 1,
) -> ClassifierTest:
    """Train on four fifths, test on the other; events of one simulated shower stay together.

    Parameters
    ----------
    data, simulation
        (N, F) and (R, F) features.
    weights, groups
        (R,) of the simulation.
    """
    rng = np.random.default_rng(seed)
    _, shower = np.unique(groups, return_inverse=True)
    fold_of_simulation = rng.permutation(shower.max() + 1)[shower] % FOLDS
    fold_of_data = rng.permutation(len(data)) % FOLDS
    aucs, gains = [], np.zeros(len(names))
    for fold in range(FOLDS):
        train_d, train_s = data[fold_of_data != fold], simulation[fold_of_simulation != fold]
        w = weights[fold_of_simulation != fold]
        booster = lightgbm.train(
            {**PARAMETERS, "seed": seed + fold, "num_threads": threads},
            lightgbm.Dataset(
                np.concatenate([train_d, train_s]),
                np.repeat([1, 0], [len(train_d), len(train_s)]),
                weight=np.concatenate([np.ones(len(train_d)), w * len(train_d) / w.sum()]),
            ),
            num_boost_round=ROUNDS,
        )
        gains += booster.feature_importance("gain")
        of_data = np.asarray(booster.predict(data[fold_of_data == fold], raw_score=True))
        of_simulation = np.asarray(booster.predict(simulation[fold_of_simulation == fold], raw_score=True))
        events = weights[fold_of_simulation == fold]
        aucs.append(weighted_auc(of_data, of_simulation, events))
    value = float(np.mean([auc.value for auc in aucs]))
    error = float(np.sqrt(np.sum([auc.error**2 for auc in aucs])) / FOLDS)
    half = standard_errors() * error
    order = np.argsort(-gains)[:10]
    total = gains.sum() or 1.0
    return ClassifierTest(
        auc=value,
        low=value - half,
        high=value + half,
        giving_away=tuple((names[k], float(gains[k] / total)) for k in order if gains[k] > 0),
    )
