"""How well boosted trees tell two samples apart: the area under the ROC curve of events held out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import StratifiedKFold
from threadpoolctl import threadpool_limits

from scoring.metrics.roc import area_under_curve
from scoring.uncertainty.resampling import LEVEL, Interval

FOLDS = 4


@dataclass(frozen=True)
class TwoSample:
    """An area under the ROC curve; 0.5 where nothing tells the samples apart."""

    area: float
    interval: Interval


def two_sample(a: np.ndarray, b: np.ndarray, *, seed: int = 0) -> TwoSample:
    """Train trees to tell two samples apart and return the area that held-out events reach.

    Parameters
    ----------
    a, b
        (n, columns) and (m, columns).
    seed
        Seed of the folds.

    Returns
    -------
    TwoSample
        Mean area of the folds, with a normal interval from the folds' errors; scores of different folds need not be
        comparable.
    """
    x = np.concatenate([a, b]).astype(np.float32)
    second = np.repeat([False, True], [len(a), len(b)])
    found = []
    # Where others use the processors too, threads of one fit wait for each other more than they help.
    with threadpool_limits(1, user_api="openmp"):
        for train, test in StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(x, second):
            trees = HistGradientBoostingClassifier(
                max_iter=150, learning_rate=0.06, max_leaf_nodes=15, min_samples_leaf=50, l2_regularization=1.0,
                early_stopping=False, random_state=seed,
            ).fit(x[train], second[train])  # fmt: skip
            found.append(area_under_curve(second[test], trees.predict_proba(x[test])[:, 1]))
    areas, errors = np.array(found).T
    area, error = float(areas.mean()), float(np.sqrt(np.square(errors).sum())) / FOLDS
    width = float(ndtri(0.5 + LEVEL / 2)) * error
    return TwoSample(area, Interval(area - width, area + width, LEVEL))
