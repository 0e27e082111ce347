"""The chain from base learners' log-probabilities to a prediction; training and finished runs share it.

The fits of a learner are averaged in log-probability, or are one network already; the pool combines the averages, one
temperature follows (each learner has one of its own for the case that it ships alone), then the task's answers.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from showerstack.runtime.processes import limited_threads
from showerstack.showers.schema import Task
from showerstack.stacking.answers import TaskStacking, stacking_of
from showerstack.stacking.estimates import Posterior, Rule, TargetCalibration
from showerstack.stacking.events import Events
from showerstack.stacking.second_level import Pool, average_of, combined, scaled

Fit = int | None
"""Number of one of a learner's fits; None for the network with the mean of their weights."""
COMBINED = ("average", "stack")
"""Systems that are not base learners."""
Piece = tuple[slice, Mapping[str, Posterior]]
"""Which events, and per learner what its fits say of them."""


@dataclass(frozen=True)
class Predictions:
    """A run's predictions of N events."""

    log_proba: np.ndarray
    """(N, C) float64 log-posteriors of the shipped system: the stack, or the best learner where the gate is closed."""
    arrays: Mapping[str, np.ndarray]
    """The task's arrays in ``predictions.npz``: (N,) ``predictions``, ``gamma_scores``..., first what is scored."""
    config_hash: str
    test_fingerprint: str | None
    """Of the events, so that labels of other events are refused; None where they have none."""
    by_name: Mapping[str, np.ndarray]
    """Per learner, ``average`` and ``stack``: (N, C) log-probabilities, as far as they were needed."""
    remarks: tuple[str, ...] = ()
    """What their user should know."""

    @property
    def labels(self) -> np.ndarray:
        """(N,) int8 most probable class."""
        return np.argmax(self.log_proba, axis=1).astype(np.int8)

    @property
    def scores(self) -> np.ndarray | None:
        """(N,) float64 gamma scores, higher = more gamma-like; None for other tasks."""
        return self.arrays.get("gamma_scores")

    def stored_arrays(self) -> dict[str, np.ndarray]:
        """Return the content of ``predictions.npz``: what scoring and the public benchmark read, posteriors, origin."""
        stored = {**self.arrays, "log_proba": self.log_proba, "config_hash": np.array(self.config_hash)}
        if self.test_fingerprint is not None:
            stored["test_fingerprint"] = np.array(self.test_fingerprint)
        return stored


@dataclass(frozen=True)
class Chain:
    """All that a prediction needs after the base learners."""

    task: Task
    scales: Mapping[str, float]
    """Inverse temperatures of every learner, ``average`` and ``stack``."""
    pool: Pool
    rules: Mapping[str, Rule]
    """By system, what the task learned beside its posteriors; empty where there is nothing to learn."""
    shipped: str
    """``stack``, or the name of the learner that ships instead."""
    config_hash: str
    n_fits: int
    """Fits of each learner that are averaged, but of those that left the race."""
    target_calibration: TargetCalibration | None = None
    """Of energy and core, where a learner learned true quantities."""
    networks: tuple[str, ...] = ()
    """Learners whose fits are one network, with the mean of their weights."""
    prior: tuple[float, ...] | None = None
    """Each class's share of the training events under the evaluation cuts: the posterior of unusable events."""
    raced: tuple[str, ...] = ()
    """Learners that left the race: they have their first fit alone."""

    def fits(self, learner: str) -> Sequence[Fit]:
        """Return the fits of a learner that predict new events."""
        return (None,) if learner in self.networks else range(1 if learner in self.raced else self.n_fits)

    @property
    def learners(self) -> tuple[str, ...]:
        """All learners, those that the stack does without among them."""
        return tuple(name for name in self.scales if name not in COMBINED)

    @property
    def needed(self) -> tuple[str, ...]:
        """Learners without which the shipped prediction cannot be made."""
        return self.pool.needed if self.shipped == "stack" else (self.shipped,)

    def posteriors(self, fits: Mapping[str, Posterior]) -> dict[str, np.ndarray]:
        """Return (N, C) log-posteriors of learners and, where there are enough, of average and stack."""
        averages = {name: average_of(of.log_proba) for name, of in fits.items() if of.log_proba is not None}
        return {name: scaled(z, self.scales[name]) for name, z in combined(averages, self.pool).items()}

    @property
    def procedure(self) -> TaskStacking:
        """How the task's answers are made."""
        return stacking_of(self.task)

    def predictions(
        self, posteriors: Mapping[str, np.ndarray], context: np.ndarray | None, test_fingerprint: str | None
    ) -> Predictions:
        """Return the predictions of the shipped system."""
        log_proba = posteriors[self.shipped]
        arrays = self.procedure.arrays(self.rules.get(self.shipped), log_proba, context)
        return Predictions(log_proba, arrays, self.config_hash, test_fingerprint, posteriors)

    def stream(self, pieces: Iterable[Piece], events: Events) -> Generator[Predictions, None, None]:
        """Yield predictions from what all fits say, by pieces.

        One numerical thread, so that training and prediction give the same last bits anywhere.
        """
        fingerprint = events.events_fingerprint()
        for piece, fits in pieces:
            context, usable = events.context(piece), events.usable(piece)
            estimating = fits.get(self.target_calibration.learner) if self.target_calibration else None
            with limited_threads(1):
                posteriors = self._with_prior(self.posteriors(fits), usable)
                predictions = self.predictions(posteriors, context, fingerprint)
                if self.target_calibration and estimating and estimating.estimates is not None:
                    # What a task estimates itself, such as the energy, is pooled with these.
                    arrays = self.target_calibration.arrays(estimating.estimates, events.fitted_core(piece))
                    pooled = self.procedure.pooled(self.rules, posteriors, arrays, context)
                    if usable is not None:
                        arrays = {name: np.where(usable, values, np.nan) for name, values in arrays.items()}
                        pooled = {name: np.where(usable, v, predictions.arrays[name]) for name, v in pooled.items()}
                    others = {name: values for name, values in arrays.items() if name not in predictions.arrays}
                    predictions = replace(predictions, arrays={**predictions.arrays, **pooled, **others})
            yield predictions

    def _with_prior(self, posteriors: Mapping[str, np.ndarray], usable: np.ndarray | None) -> Mapping[str, np.ndarray]:
        """Return posteriors with the training prior for events that cannot be used."""
        if usable is None or usable.all():
            return posteriors
        shares = np.ones(self.task.n_classes) if self.prior is None else np.asarray(self.prior)
        prior = np.log(np.maximum(shares / shares.sum(), 1e-12))
        return {name: np.where(usable[:, None], values, prior) for name, values in posteriors.items()}


def concatenated(parts: Sequence[Predictions]) -> Predictions:
    """Return the predictions of all pieces, at least one, as those of one set of events."""
    first = parts[0]

    def joined(mappings: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
        return {name: np.concatenate([mapping[name] for mapping in mappings]) for name in mappings[0]}

    return replace(
        first,
        log_proba=np.concatenate([part.log_proba for part in parts]),
        arrays=joined([part.arrays for part in parts]),
        by_name=joined([part.by_name for part in parts]),
    )
