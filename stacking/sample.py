"""A labelled sample: the events that every choice of the second level is made on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from showerstack.runtime.rows import Rows
from showerstack.scoring.metrics.intervals import grouped_error, linearised
from showerstack.scoring.metrics.losses import error_of_mean, event_losses

MAX_EVENTS = 200_000
"""Events that a fit takes at most, chosen at random."""


def subsampled(n_events: int, limit: int = MAX_EVENTS) -> slice | np.ndarray:
    """Return which events a fit takes: all, or ``limit`` of them chosen at random, (limit,) int64 in ascending order.

    The choice depends on the two numbers alone. A regular stride would take one class only where labels have its
    period.
    """
    if n_events <= limit:
        return slice(None)
    return np.sort(np.random.default_rng([n_events, limit]).choice(n_events, limit, replace=False, shuffle=False))


@dataclass(frozen=True)
class MeanAndError:
    """The mean of a quantity of events, and its standard error."""

    mean: float
    error: float


@dataclass(frozen=True)
class Sample(Rows):
    """N labelled events, predicted by fits that did not learn from them."""

    labels: np.ndarray
    """(N,) int64 class numbers."""
    folds: np.ndarray
    """(N,) folds for cross-validation."""
    groups: np.ndarray | None = None
    """(N,) events of one value are one observation; None where all are independent."""
    weights: np.ndarray | None = None
    """(N,) importance weights; None where all events count alike."""

    def __len__(self) -> int:
        return len(self.labels)

    def shares(self, n_classes: int) -> tuple[float, ...]:
        """Return each class's share of the events, by weight."""
        sums = np.bincount(self.labels, self.weights, minlength=n_classes)
        return tuple((sums / sums.sum()).tolist())

    def subsample(self, n: int = MAX_EVENTS) -> np.ndarray:
        """Return the positions of n events chosen at random, in ascending order; of all where there are no more."""
        return np.arange(len(self))[subsampled(len(self), n)]

    def losses(self, log_proba: np.ndarray) -> np.ndarray:
        """Return ``-log p`` of the true class, (N,) float64, for (N, C) log-probabilities.

        With importance weights the plain mean of what is returned is the weighted mean, and its spread gives the error
        of that (:func:`showerstack.scoring.metrics.intervals.linearised`). The same holds for differences of systems.
        """
        return linearised(event_losses(log_proba, self.labels), self.weights)

    def error(self, values: np.ndarray) -> float:
        """Return the standard error of the mean of (N,) values; those of one group are one observation."""
        if self.groups is None:
            return error_of_mean(values)
        return grouped_error(values, self.groups)[0]

    def mean_of(self, values: np.ndarray) -> MeanAndError:
        """Return mean and standard error of (N,) values."""
        return MeanAndError(float(values.mean()), self.error(values))


@dataclass(frozen=True)
class Labelled:
    """What is known of N training events beside what learners are given."""

    labels: np.ndarray
    """(N,) int64 class numbers, 0 for events that cannot be used."""
    passing: np.ndarray
    """(N,) bool: events of the kind that predictions are scored on."""
    usable: np.ndarray | None = None
    """(N,) bool: events that learners can use; None where they can use all."""
    energy: np.ndarray | None = None
    """(N,) lg(E/eV) for stratified folds; None where there are no energies."""
    groups: np.ndarray | None = None
    """(N,) int64 group numbers; None where all events are independent."""
    weights: np.ndarray | None = None
    """(N,) importance weights; None where all count alike."""
    folds: np.ndarray | None = None
    """(N,) the fold of each that the user gives; None where folds are drawn."""
    offsets: np.ndarray | None = None
    """(N,) float64 true values minus their reference, of a task with a target."""


def cross_fitted(folds: np.ndarray, like: np.ndarray, of: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
    """Return what ``of(outside, inside)`` says of the events of each fold after a fit to those of all other folds.

    Its arguments are masks (N,); the answer (N, ...) has shape and type of ``like``.
    """
    found = np.empty_like(like)
    for fold in np.unique(folds):
        inside = folds == fold
        found[inside] = of(~inside, inside)
    return found
