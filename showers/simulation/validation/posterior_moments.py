"""Smooth targets for a fit: what a published network's posteriors are on average in each class of real events."""

from __future__ import annotations

import numpy as np

from showers.schema import COMPOSITION
from showers.simulation.validation.published_network import Published

FLOOR = 0.003
"""Posteriors below this are not told apart."""
SHARPNESS = 6.0
"""Posteriors to this power, normalised, are nearly the decision for the largest, yet smooth."""
RIDGE = 0.03
"""Added to the correlations of the moments before they are inverted."""
CELL = 0.01
"""Deviation of a cell of the confusion matrix that counts as one unit."""
EFFECTIVE_EVENTS = 200.0
"""The moments' deviations are in units of the mean's error with so many events of each class. They stand for what a
simple simulation may be expected to reach; the real sample would tell deviations six times smaller."""


def log_odds(said: np.ndarray) -> np.ndarray:
    """Return log-odds of neighbouring classes, (n, 4), of posteriors (n, 5)."""
    logs = np.log(said.astype(np.float64) + FLOOR)
    return np.diff(logs, axis=1)


def decisions(said: np.ndarray) -> np.ndarray:
    """Return smooth decisions, (n, 5), of posteriors (n, 5)."""
    power = (said.astype(np.float64) + 1e-6) ** SHARPNESS
    return np.asarray(power / power.sum(axis=1, keepdims=True))


def _features(said: np.ndarray) -> np.ndarray:
    """Return log-odds and their products, (n, 14)."""
    odds = log_odds(said)
    i, j = np.triu_indices(odds.shape[1])
    return np.concatenate([odds, odds[:, i] * odds[:, j]], axis=1)


class PosteriorTarget:
    """Means of one network's posteriors, class by class, on the real test events."""

    def __init__(self, published: Published) -> None:
        self.classes = []
        for k in range(COMPOSITION.n_classes):
            said = published.posteriors[published.labels == k]
            features = _features(said)
            sd = features.std(axis=0)
            correlation = np.corrcoef(features.T) + RIDGE * np.eye(len(sd))
            whitening = np.linalg.inv(np.linalg.cholesky(correlation)) / sd
            self.classes.append((features.mean(axis=0), whitening, decisions(said).mean(axis=0)))

    def deviations(self, labels: np.ndarray, said: np.ndarray) -> np.ndarray:
        """Return how posteriors (n, 5) of simulated events differ, (5 x 19,), in units of what is tolerable.

        For each class the means of log-odds and of their products, uncorrelated in the real events, and the row of
        the (smooth) confusion matrix.
        """
        parts = []
        for k, (mean, whitening, row) in enumerate(self.classes):
            own = said[labels == k]
            parts += [
                np.sqrt(EFFECTIVE_EVENTS) * whitening @ (_features(own).mean(axis=0) - mean),
                (decisions(own).mean(axis=0) - row) / CELL,
            ]
        return np.concatenate(parts)
