"""Two-sample tests of data against weighted simulation: a classifier, distances of single events, honest p-values.

Boosted trees try to tell data from simulation on events that they did not learn from. Distances from the training
sample are calibrated on simulated events that did not define them: features are brought to normal scores by the
simulation's ranks (beyond its range linearly, so that impossible values stay far away), undefined values lie at the
centre, and the distance is Mahalanobis' in the leading directions. P-values allow for many tests at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.special import ndtri
from scipy.stats import betabinom, chi2, norm

from showerstack.scoring.metrics.level import LEVEL, standard_errors

TINY_P = 1e-300


def holm(p_values: np.ndarray) -> np.ndarray:
    """Return Holm's adjusted p-values: each below alpha keeps the family's false alarms below alpha (Holm 1979)."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p)
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted


def histograms_differ(counts: np.ndarray, sums: np.ndarray, squares: np.ndarray) -> tuple[float, int]:
    """Return the p-value and degrees of freedom of "counts come from the weighted histogram's distribution".

    Parameters
    ----------
    counts
        (B,) data.
    sums, squares
        (B,) sums of the simulation's weights and of their squares.
    """
    n, total = counts.sum(), sums.sum()
    if n == 0 or total == 0:
        return 1.0, 0
    share, expected = counts / n, sums / total
    weight = squares / total**2
    effective = 1.0 / weight.sum()
    pooled = (counts + expected * effective) / (n + effective)
    variance = pooled / n + np.maximum(weight, pooled / effective * 0.5)
    used = variance > 0
    freedom = int(used.sum()) - 1
    if freedom < 1:
        return 1.0, 0
    value = float(((share - expected)[used] ** 2 / variance[used]).sum())
    return max(float(chi2.sf(value, freedom)), TINY_P), freedom


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


def more_than_expected(observed: int, n: int, beyond: float, effective: float) -> float:
    """Return the probability of at least ``observed`` of ``n`` data beyond a limit that a share of simulation passes.

    Parameters
    ----------
    beyond
        Weighted share of the simulated events beyond the limit.
    effective
        Their effective number, which limits how well the share is known (beta-binomial predictive).
    """
    k = beyond * effective
    return max(float(betabinom.sf(observed - 1, n, k + 1.0, max(effective - k, 1.0))), TINY_P)


def two_sided(z: np.ndarray) -> np.ndarray:
    """Return two-sided p-values of standard normal numbers."""
    return np.maximum(2.0 * norm.sf(np.abs(z)), TINY_P)


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
class ClassifierTest:
    """What the classifier finds."""

    auc: float
    low: float
    high: float
    """Confidence interval."""
    p: float
    """That the samples are alike (one-sided)."""
    giving_away: tuple[tuple[str, float], ...]
    """Features and their share of the gain, largest first."""
    at_least: float
    """Lower limit of the share of the data that would have to be exchanged to look like the simulation."""
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
    """Train on four fifths, test on the other; events of one simulated shower stay together.

    Parameters
    ----------
    data, simulation
        (N, F) and (R, F) features.
    weights, groups
        (R,) of the simulation.
    """
    import lightgbm

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
        events = weights[fold_of_simulation == fold]
        aucs.append(weighted_auc(of_data, of_simulation, events))
        margins.append(_exchanged(of_data, of_simulation, events))
    value = float(np.mean([auc.value for auc in aucs]))
    error = float(np.sqrt(np.sum([auc.error**2 for auc in aucs])) / FOLDS)
    half = standard_errors() * error
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

    The threshold is fixed before the other part is looked at, so that the excess is unbiased; the margin is the
    one-sided one of the mean of five such folds.
    """
    above_d = float((data > 0).mean())
    above_s = float(weights[simulation > 0].sum() / weights.sum())
    variance = above_d * (1 - above_d) / len(data)
    variance += float((weights**2 * ((simulation > 0) - above_s) ** 2).sum() / weights.sum() ** 2)
    return above_d - above_s, float(norm.ppf(LEVEL) * np.sqrt(variance / FOLDS))


KNOTS = 257
"""Quantiles by which ranks are interpolated."""
FAR = 12.0
"""Normal scores are not larger than this."""
LEAST_SHARE = 1e-3
"""Directions with a smaller share of the largest variance are left out: they are numerical noise."""
EVENTS_A_DIRECTION = 20
SHARES = (0.99, 0.999)


@dataclass(frozen=True)
class Tail:
    """Data beyond one quantile of the simulation's distances."""

    quantile: float
    expected: float
    """Share of the simulation beyond it."""
    observed: float
    """Share of the data beyond it."""
    p: float
    """For at least as many, from the calibration's statistics too; not adjusted."""


@dataclass
class Distance:
    """The distance and the counts of data beyond its quantiles."""

    knots: np.ndarray
    """(F, K) values of the simulation's quantiles."""
    scores: np.ndarray
    """(K,) normal scores of the quantiles."""
    directions: np.ndarray
    """(F, D): normal scores to uncorrelated ones of unit variance."""
    centre: np.ndarray
    limits: np.ndarray
    """(2,) distances at :data:`SHARES`."""
    beyond: np.ndarray
    """(2,) weighted shares of the calibration sample beyond them."""
    effective: float
    n: int = 0
    observed: np.ndarray = field(default_factory=lambda: np.zeros(len(SHARES), dtype=np.int64))
    farthest: list[tuple[float, int, int]] = field(default_factory=list)
    """The largest distances with run and row."""

    @classmethod
    def of(cls, values: np.ndarray, weights: np.ndarray) -> Distance:
        """Define the distance by the first half of (R, F) simulated events and calibrate it by the second."""
        half = len(values) // 2
        share = np.linspace(0.5 / half, 1 - 0.5 / half, KNOTS)
        knots = np.stack([_weighted_quantiles(values[:half, f], weights[:half], share) for f in range(values.shape[1])])
        scores = ndtri(share)
        z = _normal_scores(values[:half], knots, scores)
        w = weights[:half] / weights[:half].sum()
        centre = w @ z
        covariance = (z - centre).T @ ((z - centre) * w[:, None])
        variance, vectors = np.linalg.eigh(covariance)
        n_most = max(half // EVENTS_A_DIRECTION, 1)
        used = np.flatnonzero(variance > LEAST_SHARE * variance.max())[-n_most:]
        made = cls(knots, scores, vectors[:, used] / np.sqrt(variance[used]), centre, np.zeros(2), np.zeros(2), 0.0)
        calibration, w = made.distances(values[half:]), weights[half:]
        made.limits = _weighted_quantiles(calibration, w, np.array(SHARES))
        made.beyond = np.array([w[calibration > limit].sum() / w.sum() for limit in made.limits])
        made.effective = float(w.sum() ** 2 / (w**2).sum())
        return made

    def distances(self, values: np.ndarray) -> np.ndarray:
        """Return (n,) distances of (n, F) features."""
        z = _normal_scores(values, self.knots, self.scores) - self.centre
        return np.sqrt(((z @ self.directions) ** 2).sum(axis=1))

    def add(self, run: int, rows: np.ndarray, values: np.ndarray) -> None:
        """Count a piece of the data."""
        result = self.distances(values)
        self.n += len(result)
        self.observed += (result[:, None] > self.limits).sum(axis=0)
        most = np.argsort(-result)[:20]
        together = self.farthest + [(float(result[k]), run, int(rows[k])) for k in most]
        self.farthest = sorted(together, reverse=True)[:20]

    def tails(self) -> list[Tail]:
        """Return the data's shares beyond the quantiles."""
        return [
            Tail(q, float(b), int(k) / max(self.n, 1), more_than_expected(int(k), self.n, float(b), self.effective))
            for q, b, k in zip(SHARES, self.beyond, self.observed, strict=True)
        ]


def _weighted_quantiles(values: np.ndarray, weights: np.ndarray, shares: np.ndarray) -> np.ndarray:
    good = np.isfinite(values)
    if not good.any():
        return np.zeros(len(shares))
    order = np.argsort(values[good])
    cumulated = np.cumsum(weights[good][order])
    return np.interp(
        shares, (cumulated - weights[good][order] / 2) / cumulated[-1], values[good][order].astype(np.float64)
    )


def _normal_scores(values: np.ndarray, knots: np.ndarray, scores: np.ndarray) -> np.ndarray:
    z = np.empty(values.shape)
    for f, own in enumerate(knots):
        column = values[:, f].astype(np.float64)
        distinct, first = np.unique(own, return_index=True)
        last = len(own) - 1 - np.unique(own[::-1], return_index=True)[1]
        middle = (scores[first] + scores[last]) / 2
        spread = max((own[-1] - own[0]) / (scores[-1] - scores[0]), 1e-9 * max(abs(own[0]), 1.0))
        z[:, f] = np.interp(column, distinct, middle)
        z[:, f] += np.maximum(column - own[-1], 0.0) / spread + np.minimum(column - own[0], 0.0) / spread
        z[~np.isfinite(column), f] = 0.0
    return np.clip(z, -FAR, FAR)
