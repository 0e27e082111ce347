"""What a meta-learner is: from the learners' out-of-fold log-probabilities to one posterior.

Each one is a class that a module of this folder names in ``META_LEARNERS``; :func:`meta_learners` finds them.
All but the average return natural posteriors, also where the fit weighted events.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np

from showerstack.runtime.code import plugins
from showerstack.stacking import meta as folder
from showerstack.stacking.meta.scorers import Scorer


@dataclass(frozen=True)
class StackInputs:
    """What a meta-learner learns from: N events under the evaluation cuts, all of them predicted out-of-fold."""

    learners: tuple[str, ...]
    log_proba: np.ndarray
    """(L, N, C) out-of-fold log-probabilities."""
    labels: np.ndarray
    """(N,) class numbers."""
    folds: np.ndarray
    """(N,) fold of each event."""
    context: np.ndarray | None = None
    """(N, K) quantities of the event that some meta-learners look at."""
    event_weights: np.ndarray | None = None
    """(N,) importance weights of the data, or None for one each: natural posteriors are those under them."""
    weights: np.ndarray | None = None
    """(N,) weights in the fit: these, times the scorer's; None for one each."""
    groups: np.ndarray | None = None
    """(N,) events of one value are one observation; None where all are independent."""

    def take(self, use: np.ndarray) -> StackInputs:
        """Return the events that ``use`` (N,) bool names."""
        return replace(
            self,
            log_proba=np.ascontiguousarray(self.log_proba[:, use]),
            labels=self.labels[use],
            folds=self.folds[use],
            context=None if self.context is None else self.context[use],
            event_weights=None if self.event_weights is None else self.event_weights[use],
            weights=None if self.weights is None else self.weights[use],
            groups=None if self.groups is None else self.groups[use],
        )

    def only(self, names: Sequence[str]) -> StackInputs:
        """Return the same events with these learners alone."""
        places = [self.learners.index(name) for name in names]
        return replace(self, learners=tuple(names), log_proba=self.log_proba[places])


class MetaLearner(ABC):
    """Maps (L, N, C) log-probabilities, and optionally (N, K) quantities of the event, to (N, C).

    Parameters
    ----------
    learners
        Names of the L learners, in the order of the first axis.
    """

    name: ClassVar[str]
    complexity: ClassVar[int]
    """Order of simplicity; of equally good meta-learners that of the least is taken."""
    presets: ClassVar[tuple[str, ...]] = ("quick", "good", "best")
    """Presets of a run that let the nested cross-validation choose it."""

    def __init__(self, learners: tuple[str, ...]) -> None:
        self.learners = tuple(learners)

    @abstractmethod
    def fit(self, inputs: StackInputs, scorer: Scorer) -> None:
        """Learn; greedy selection asks the scorer, all others minimise the log-loss."""

    @abstractmethod
    def predict(self, log_proba: np.ndarray, context: np.ndarray | None = None) -> np.ndarray:
        """Return (N, C) float64 log-posteriors."""

    @abstractmethod
    def as_json(self) -> dict[str, Any]:
        """Return what was learned as JSON content."""

    @abstractmethod
    def restore(self, content: Mapping[str, Any]) -> None:
        """Take what :meth:`as_json` returned."""

    def importance(self) -> dict[str, float]:
        """Return each learner's weight, as far as one number can say it; a learner of weight 0 is not needed."""
        return dict.fromkeys(self.learners, 1.0 / len(self.learners))


@cache
def meta_learners() -> dict[str, type[MetaLearner]]:
    """Return the meta-learners by name, the simplest first: ``META_LEARNERS`` of the modules in this folder."""
    kinds = plugins(folder, "META_LEARNERS", attrgetter("name"))
    return dict(sorted(kinds.items(), key=lambda item: item[1].complexity))


def metas_of(preset: str) -> tuple[str, ...]:
    """Return the names of the meta-learners that a preset chooses from."""
    return tuple(name for name, kind in meta_learners().items() if preset in kind.presets)


def meta_to_json(meta: MetaLearner) -> dict[str, Any]:
    """Return a meta-learner with its name and learners as JSON content."""
    return {"meta": meta.name, "learners": list(meta.learners), "learned": meta.as_json()}


def meta_from_json(content: Mapping[str, Any]) -> MetaLearner:
    """Read what :func:`meta_to_json` returned."""
    meta = meta_learners()[content["meta"]](tuple(content["learners"]))
    meta.restore(content["learned"])
    return meta
