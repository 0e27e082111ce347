"""How far each event lies from the training sample, calibrated on simulated events that did not define the distance.

Features are brought to normal scores by the simulation's ranks (beyond its range linearly, so that impossible values
stay far away), undefined values lie at the centre, and the distance is Mahalanobis' in the leading directions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.special import ndtri

from analysis.datacheck.statistics import more_than_expected

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
    seen: float
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
    seen: np.ndarray = field(default_factory=lambda: np.zeros(len(SHARES), dtype=np.int64))
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
        found = self.distances(values)
        self.n += len(found)
        self.seen += (found[:, None] > self.limits).sum(axis=0)
        most = np.argsort(-found)[:20]
        together = self.farthest + [(float(found[k]), run, int(rows[k])) for k in most]
        self.farthest = sorted(together, reverse=True)[:20]

    def tails(self) -> list[Tail]:
        """Return the data's shares beyond the quantiles."""
        return [
            Tail(q, float(b), int(k) / max(self.n, 1), more_than_expected(int(k), self.n, float(b), self.effective))
            for q, b, k in zip(SHARES, self.beyond, self.seen, strict=True)
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
