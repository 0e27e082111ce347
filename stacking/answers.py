"""What a task makes of posteriors: the most probable class; scores of gammas and estimates of targets are beside it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import polars as pl

from showerstack.showers.schema import Task
from showerstack.stacking.events import Binned
from showerstack.stacking.sample import Sample


class SavedRule(Protocol):
    """What is needed beside one system's posteriors; kept in ``meta/decision.json``."""

    def as_json(self) -> dict[str, Any]:
        """Return JSON content."""


@dataclass(frozen=True)
class DecisionSample:
    """Labelled events that no fit has learned from, and what every system says of them, as it ships."""

    systems: Mapping[str, np.ndarray]
    """Per learner, ``average`` and ``stack``: (n, C) log-posteriors."""
    shipped: str
    """The one that ships."""
    sample: Sample
    """The n events."""
    offsets: np.ndarray | None = None
    """(n,) true value minus reference, where the task has a target."""
    training: Binned | None = None
    """The same of all training events of the kind that predictions are scored on."""
    own: np.ndarray | None = None
    """(2, n) estimate of the target minus reference, and its error, by the learner of true quantities, if there is."""
    asked: tuple[str, ...] = ()
    """Learners that what ships asks anyway."""


class TaskStacking(ABC):
    """Arrays of one task; see :func:`stacking_of`."""

    survival: ClassVar[bool] = False
    """Whether learners stay, and the gate closes, where more hadrons survive without or with the stack."""

    @abstractmethod
    def decide(self, held_out: DecisionSample, run: Path) -> tuple[dict[str, Any], Mapping[str, SavedRule]]:
        """Learn from out-of-fold or holdout predictions; write what the run keeps of it below ``meta/``.

        Returns
        -------
        The manifest's entry, and by system what was learned (nothing where there is nothing to learn).
        """

    def rule_from_json(self, content: Mapping[str, Any]) -> SavedRule:
        """Read what a rule's ``as_json`` returned."""
        raise NotImplementedError("such a task learns nothing")

    @abstractmethod
    def arrays(
        self, rule: SavedRule | None, log_proba: np.ndarray, context: np.ndarray | None
    ) -> dict[str, np.ndarray]:
        """Return what ``predictions.npz`` holds for its readers, first of all what is scored.

        Parameters
        ----------
        rule
            Of the system whose posteriors these are.
        log_proba
            (N, C) log-posteriors.
        context
            (N, K) quantities of the events, as :meth:`showerstack.stacking.events.Events.context` returns them.
        """

    def pooled(
        self,
        rules: Mapping[str, SavedRule],
        posteriors: Mapping[str, np.ndarray],
        own: Mapping[str, np.ndarray],
        context: np.ndarray | None,
    ) -> dict[str, np.ndarray]:
        """Return what takes the place of :meth:`arrays` where true quantities are estimated as well; nothing here.

        Parameters
        ----------
        rules
            By system, those that :meth:`decide` returned.
        posteriors
            (N, C) log-posteriors, by system.
        own
            Estimates of true quantities and their errors, (N,) each.
        context
            As above.
        """
        return {}

    def test_arrays(
        self, rule: SavedRule | None, log_proba: np.ndarray, context: np.ndarray | None
    ) -> dict[str, np.ndarray]:
        """Return what ``test/<system>.npz`` holds beside the posteriors."""
        return self.arrays(rule, log_proba, context)

    @abstractmethod
    def answers(
        self, log_proba: np.ndarray, stored: Callable[[str], np.ndarray | None]
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Yield what is scored of a system by each of its rules: the rule's name and (N,) values.

        Parameters
        ----------
        log_proba
            (N, C) posteriors of a system.
        stored
            Returns one of :meth:`test_arrays` from its file, or None where the file has none of that name.
        """

    @abstractmethod
    def columns(self, arrays: Mapping[str, np.ndarray], task: Task) -> list[pl.Series]:
        """Return the columns that a table of predictions holds for :meth:`arrays`."""


class ClassesStacking(TaskStacking):
    """Class numbers."""

    def decide(self, held_out: DecisionSample, run: Path) -> tuple[dict[str, Any], Mapping[str, SavedRule]]:
        """Take the most probable class: nothing to learn."""
        return {"chosen": "argmax"}, {}

    def arrays(
        self, rule: SavedRule | None, log_proba: np.ndarray, context: np.ndarray | None
    ) -> dict[str, np.ndarray]:
        """Return ``predictions``: (N,) int8, the most probable class."""
        return {"predictions": np.argmax(log_proba, axis=1).astype(np.int8)}

    def answers(
        self, log_proba: np.ndarray, stored: Callable[[str], np.ndarray | None]
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the most probable class as rule ``argmax``: (N,) int64."""
        yield "argmax", log_proba.argmax(axis=1)

    def columns(self, arrays: Mapping[str, np.ndarray], task: Task) -> list[pl.Series]:
        """Return nothing: the most probable class stands in every table."""
        return []
