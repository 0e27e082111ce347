"""Everything a fit compares of one published network: posteriors, batch norms, and what posteriors are good for.

The targets are smooth: a network's posteriors on average in each class of real events.
"""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.world.moments import discriminant_accuracy
from benchmarks.world.networks import Moments, NormDeviation, Published, norm_deviations, posteriors
from showerstack.showers.schema import COMPOSITION

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


POSTERIORS = 95
"""Deviations of the posteriors; :data:`SCORES` of what they are good for follow, then those of the batch norms."""
SCORES = 3
"""Accuracy after recalibration, accuracy, log-loss."""
NORM_UNIT = 0.06
"""Rms deviation of a layer's means (real standard deviations) or ln widths that counts as one unit per effective
number."""
NORM_NUMBER = 4.0
"""Effective number of independent deviations in a layer: channels are far from independent."""
ACCURACY_UNIT = 0.004
"""Deviation of an accuracy that counts as one unit."""
LOG_LOSS_UNIT = 0.006
"""Deviation of the log-loss that counts as one unit, nats."""


class NetworkTarget:
    """One network, and how far what it sees of simulated events is from what it saw of the real ones."""

    def __init__(self, published: Published) -> None:
        self.published = published
        self.posteriors = PosteriorTarget(published)
        self.scores = scores(published.labels, published.posteriors)
        self.shift: np.ndarray | None = None

    def calibrate(self, plain: np.ndarray, cells: torch.Tensor, scalars: torch.Tensor) -> None:
        """Take from these events what augmentation and dropout add to the ``plain`` moments of the same world.

        The running moments were learnt with both, which costs several times a plain pass: the difference is
        measured once, where a fit starts, and added ever after.
        """
        self.shift = norm_vector(norm_deviations(self.published.network, cells, scalars)) - plain

    def deviations(self, labels: np.ndarray, said: np.ndarray, norms: np.ndarray) -> np.ndarray:
        """Return deviations in units of what is tolerable: 95 of the posteriors, three of what they are good for, and
        those of the batch norms' inputs."""
        units = (ACCURACY_UNIT, ACCURACY_UNIT, LOG_LOSS_UNIT)
        good_for = (scores(labels, said) - self.scores) / units
        moved = norms if self.shift is None else norms + self.shift
        return np.concatenate([self.posteriors.deviations(labels, said), good_for, moved])


def scores(labels: np.ndarray, said: np.ndarray) -> np.ndarray:
    """Return accuracy after recalibration, accuracy and log-loss (nats) of posteriors, (3,)."""
    own = np.maximum(said[np.arange(len(labels)), labels].astype(np.float64), np.finfo(np.float16).smallest_subnormal)
    accuracy = float((said.argmax(axis=1) == labels).mean())
    return np.array([recalibrated_accuracy(labels, said), accuracy, float(-np.log(own).mean())])


def recalibrated_accuracy(labels: np.ndarray, said: np.ndarray) -> float:
    """Return the accuracy that a discriminant reaches on a network's log-odds: what they are good for where labels are
    at hand, whatever the network itself makes of them.

    A world whose classes are easier to tell than the real ones shows it here even where the network, which learnt
    the real world's rules, is no better in it.
    """
    return discriminant_accuracy(tuple(log_odds(said).T), labels)


def norm_vector(norms: dict[str, NormDeviation]) -> np.ndarray:
    """Return deviations of all batch norms' inputs, each layer's means and widths scaled to its effective number."""
    scaled = [
        part * np.sqrt(NORM_NUMBER / len(part)) / NORM_UNIT
        for name, norm in norms.items()
        for part in (norm.mean, norm.ln_width)
    ]
    return np.concatenate(scaled)


class Look:
    """One network's view of one sample, gathered portion by portion."""

    def __init__(self, target: NetworkTarget) -> None:
        self.target = target
        self.moments = Moments(target.published.network)
        self.said: list[np.ndarray] = []

    def add(self, cells: torch.Tensor, scalars: torch.Tensor) -> None:
        """Look at more events."""
        with self.moments.gathering():
            self.said.append(posteriors(self.target.published.network, cells, scalars))

    def norms(self) -> np.ndarray:
        """Return the plain moments' deviations."""
        return norm_vector(self.moments.deviations())

    def deviations(self, labels: np.ndarray) -> np.ndarray:
        """Return the network's deviations (:meth:`NetworkTarget.deviations`)."""
        return self.target.deviations(labels, np.concatenate(self.said), self.norms())
