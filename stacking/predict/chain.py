"""The chain from base learners' log-probabilities to a prediction; training and the saved bundle share it.

New events pass through each fit's own calibrator, the fits are averaged in log-probability, then come meta-learner
and decision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from models.posterior import log_softmax
from showers.schema import GAMMA, Task
from stacking.combine.calibration import Calibrator
from stacking.combine.meta import MetaLearner
from stacking.decide.decision import Rule
from stacking.decide.gamma_scores import gamma_scores

PIECE_EVENTS = 100_000
"""Events taken through the chain at once: bounds the memory of a prediction."""


@dataclass(frozen=True)
class Predictions:
    """What a run says of events."""

    log_proba: np.ndarray
    """(N, C) float64 log-posteriors of what ships: the stack, or the best learner where the gate is closed."""
    labels: np.ndarray
    """(N,) int8 hard labels by the decision rule (gamma and tables: the most probable class)."""
    scores: np.ndarray | None
    """(N,) float64 gamma scores, higher = more gamma-like; None for other tasks."""
    config_hash: str
    test_fingerprint: str | None
    """Of the events, so that nobody judges the predictions by others; None where they have none."""
    by_name: Mapping[str, np.ndarray]
    """Per learner, ``average`` and ``stack``: (N, C) log-probabilities, as far as they were needed."""
    remarks: tuple[str, ...] = ()
    """What whoever uses them should know."""


def average_of(log_proba: np.ndarray) -> np.ndarray:
    """Return the normalised mean in log-probability over the first axis of (L, N, C)."""
    return log_softmax(log_proba.mean(axis=0))


def calibrated_average(log_proba: np.ndarray, calibrators: Sequence[Calibrator]) -> np.ndarray:
    """Return one learner's prediction of new events, (N, C), from its F fits (F, N, C), each with its calibrator."""
    return average_of(np.stack([fit(z) for fit, z in zip(calibrators, log_proba, strict=True)]))


@dataclass(frozen=True)
class Chain:
    """Everything behind the base learners that a prediction needs."""

    task: Task
    calibrators: Mapping[str, Sequence[Calibrator]]
    """Per learner, one per fit."""
    meta: MetaLearner
    rules: Mapping[str, Rule]
    """Decision rules per learner, ``average`` and ``stack``; empty for gamma and tables."""
    shipped: str
    """``stack`` or the name of the learner that ships instead."""
    config_hash: str

    @property
    def needed(self) -> tuple[str, ...]:
        """Learners without which the shipped prediction cannot be made."""
        if self.shipped != "stack":
            return (self.shipped,)
        weights = self.meta.importance()
        return tuple(name for name in self.meta.learners if weights[name] > 0)

    def posteriors(self, fits: Mapping[str, np.ndarray], context: np.ndarray | None) -> dict[str, np.ndarray]:
        """Return (N, C) log-posteriors of every learner given and, where enough are given, of average and stack.

        Parameters
        ----------
        fits
            Per learner, (F, N, C) raw log-probabilities of its fits.
        context
            (N, K) quantities that the meta-learner may look at.
        """
        found = {name: calibrated_average(z, self.calibrators[name]) for name, z in fits.items()}
        if all(name in found for name in self.meta.learners):
            found["average"] = average_of(np.stack([found[name] for name in self.meta.learners]))
        if self.shipped == "stack" or "average" in found:
            like = next(iter(found.values()))
            # A learner of weight zero need not be loaded; any finite numbers stand for it.
            inputs = np.stack([found.get(name, np.zeros_like(like)) for name in self.meta.learners])
            found["stack"] = self.meta.predict(inputs, context)
        return found

    def decide(self, name: str, log_proba: np.ndarray) -> np.ndarray:
        """Return (N,) int8 hard labels of the named system."""
        rule = self.rules.get(name)
        return (rule(log_proba) if rule else np.argmax(log_proba, axis=1)).astype(np.int8)

    def predictions(self, posteriors: Mapping[str, np.ndarray], test_fingerprint: str | None) -> Predictions:
        """Return what ships."""
        log_proba = posteriors[self.shipped]
        scores = gamma_scores(log_proba) if self.task.name == GAMMA.name else None
        labels = self.decide(self.shipped, log_proba)
        return Predictions(log_proba, labels, scores, self.config_hash, test_fingerprint, posteriors)

    def finish(
        self, fits: Mapping[str, np.ndarray], context: np.ndarray | None, test_fingerprint: str | None
    ) -> Predictions:
        """Take raw log-probabilities of all fits to the shipped prediction, piece by piece.

        One numerical thread, so that training and bundle give the same last bits anywhere.
        """
        n_events = next(iter(fits.values())).shape[1]
        pieces = []
        with threadpool_limits(1):
            for start in range(0, n_events, PIECE_EVENTS):
                piece = slice(start, start + PIECE_EVENTS)
                part = {name: z[:, piece] for name, z in fits.items()}
                pieces.append(self.posteriors(part, None if context is None else context[piece]))
        joined = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]} if pieces else {}
        return self.predictions(joined, test_fingerprint)
