"""Two-sample test by a classifier: can boosted trees tell data from weighted simulation, on events they did not see?"""

from __future__ import annotations

from dataclasses import dataclass

import lightgbm
import numpy as np
from scipy.stats import norm

from analysis.datacheck.statistics import TINY_P, weighted_auc

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
LEVEL = 0.95


@dataclass(frozen=True)
class ClassifierTest:
    """What the classifier finds."""

    auc: float
    low: float
    high: float
    """95 % interval."""
    p: float
    """That the samples are alike (one-sided)."""
    giving_away: tuple[tuple[str, float], ...]
    """Features and their share of the gain, largest first."""
    at_least: float
    """Lower limit (95 %) of the share of the data that would have to be exchanged to look like the simulation."""
    n_data: int
    n_simulation: int


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
    """Train on four fifths, judge on the other; events of one simulated shower stay together.

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
    aucs, gains, margins = [], np.zeros(len(names)), []
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
        held = weights[fold_of_simulation == fold]
        aucs.append(weighted_auc(of_data, of_simulation, held))
        margins.append(_exchanged(of_data, of_simulation, held))
    value = float(np.mean([auc.value for auc in aucs]))
    error = float(np.sqrt(np.sum([auc.error**2 for auc in aucs])) / FOLDS)
    half = norm.ppf(0.5 + LEVEL / 2) * error
    order = np.argsort(-gains)[:10]
    total = gains.sum() or 1.0
    return ClassifierTest(
        auc=value,
        low=value - half,
        high=value + half,
        p=max(float(norm.sf((value - 0.5) / error)), TINY_P),
        giving_away=tuple((names[k], float(gains[k] / total)) for k in order if gains[k] > 0),
        at_least=max(0.0, float(np.mean([m for m, _ in margins])) - float(np.mean([e for _, e in margins]))),
        n_data=len(data),
        n_simulation=len(simulation),
    )


def _exchanged(data: np.ndarray, simulation: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Return the excess of data above zero score, a lower limit of the total variation distance, and its margin.

    The threshold is fixed before the held-out events are looked at, so that the excess is unbiased; the margin is the
    one-sided 95 % one of the mean of five such folds.
    """
    above_d = float((data > 0).mean())
    above_s = float(weights[simulation > 0].sum() / weights.sum())
    variance = above_d * (1 - above_d) / len(data)
    variance += float((weights**2 * ((simulation > 0) - above_s) ** 2).sum() / weights.sum() ** 2)
    return above_d - above_s, float(norm.ppf(LEVEL) * np.sqrt(variance / FOLDS))
