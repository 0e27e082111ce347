"""The student: one small network on the feature table that imitates what ships, for ``predict --fast``.

It learns from the shipped system's out-of-fold posteriors instead of labels (G. Hinton et al., arXiv:1503.02531): they
tell how sure the system is of an event that none of its fits has learned from. It is calibrated and scored like every
system, on events that neither it nor what it imitates has learned from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from showerstack.models.base.learner import Batch, Learner
from showerstack.models.registry import create, device_for, learner_class, spec
from showerstack.runtime.cost import reached
from showerstack.scoring.metrics.paired import paired_log_loss
from showerstack.stacking.fit.folds import early_stopping_rows, subsampled
from showerstack.stacking.fit.plan import FIXED_S, STUDENT_SETTINGS, student_epochs
from showerstack.stacking.fit.tasks import TimeLimitReached, predict, watch
from showerstack.stacking.levels import ON_HOLDOUT, EvaluationSample
from showerstack.stacking.meta.calibration import Calibrator, cross_fit
from showerstack.stacking.meta.scorers import Scorer
from showerstack.stacking.run.job import Folds, Job

IMITATES_WITH = "mlp"
"""Learner of the registry that it is."""
VALID_SHARE = 0.1
"""Share of the events for early stopping."""


@dataclass(frozen=True)
class Student:
    """A trained student, and how it compares with what ships."""

    learner: Learner
    calibrator: Calibrator
    log_proba: np.ndarray
    """(n, C) of the sample for scoring, by students that have not learned from it, calibrated without own labels."""
    record: dict[str, Any]
    """The manifest's entry."""


def train_student(
    job: Job, folds: Folds, sample: EvaluationSample, teacher: np.ndarray, shipped: np.ndarray, scorer: Scorer
) -> Student:
    """Train the student, on all events with out-of-fold posteriors.

    Without an outer holdout it is scored by two networks more, each trained on one half and asked about the other. They
    learn from labels: what ships says of an event in one half was learned from labels in the other, which would come
    back to them. By as much as soft labels are better than labels, the student is better than is said.

    Parameters
    ----------
    teacher
        (inner, C) out-of-fold log-posteriors of what ships, of the events under the evaluation cuts inside the folds.
    shipped
        (n, C) log-posteriors of what ships on the sample for scoring, calibrated.

    Raises
    ------
    InputError
        If nothing can be learned from these events' columns.
    TimeLimitReached
        If the run's time limit does not leave enough for it.
    """
    if reached(job.deadline_before(FIXED_S)):  # before its library is imported, which takes a second or two
        raise TimeLimitReached("the time limit of the run was reached")
    trainer = _StudentTrainer(job, folds, teacher)
    everyone = np.arange(len(teacher))
    learner = trainer.fit(everyone)
    if sample.where == ON_HOLDOUT:
        raw = trainer.predict(learner, np.flatnonzero(sample.rows))
    else:
        raw = np.empty_like(teacher)
        first = trainer.part(everyone, 0.5)
        for half in (first, ~first):
            raw[half] = trainer.predict(trainer.fit(everyone[~half], soft=False), trainer.rows[half])
    calibrator, log_proba = cross_fit(raw, sample.labels, sample.folds, sample.groups, sample.weights)
    worse, error = scorer.difference(log_proba, shipped, sample.labels, sample.groups, sample.weights)
    record = {
        "learner": trainer.imitates.name,
        "columns": list(trainer.columns),
        "parameters": learner.n_parameters,
        "learned_from": len(trainer.subsampled(everyone)),
        "judged_on": sample.where,
        "judged_events": len(sample.labels),
        "log_loss": paired_log_loss(sample.labels, log_proba, shipped, sample.groups, sample.weights).as_dict(),
        "judge": {"name": scorer.name, "difference": worse, "standard_error": error},
    }
    return Student(learner, calibrator, log_proba, record)


class _StudentTrainer:
    """Events inside the folds, and what ships says of them."""

    def __init__(self, job: Job, folds: Folds, teacher: np.ndarray) -> None:
        self.job, self.labels, self.weights, self.teacher = job, folds.labels, folds.weights, teacher
        self.rows = np.flatnonzero(folds.inner)
        """(inner,) positions among the training events."""
        self.energy, self.groups = job.train.energy(), job.train.groups()
        self.imitates = spec(job.config.serving(IMITATES_WITH) or IMITATES_WITH)
        self.columns = job.train.columns_for(self.imitates)
        # Beside a learner on the GPU: where its own library can use that too.
        self.device = device_for(learner_class(self.imitates.learner), "auto" if job.device == "cuda" else "cpu")

    def fit(self, places: np.ndarray, *, soft: bool = True) -> Learner:
        """Return a network of the events at these places (n,) of ``rows``, which learned what ships says or labels."""
        config = self.job.config
        places = self.subsampled(places)
        stop = self.part(places, VALID_SHARE)
        settings = STUDENT_SETTINGS | {"epochs": student_epochs(config.preset)}
        learner = create(self.imitates, self.job.task.classes, threads=config.threads, overrides=settings)
        train, valid = (self._batch(part, soft=soft) for part in (places[~stop], places[stop]))
        deadline = self.job.deadline_before(FIXED_S)
        progress = None if deadline is None else watch(deadline)
        return learner.fit(train, valid, seed=config.seed, device=self.device, progress=progress)

    def part(self, places: np.ndarray, share: float) -> np.ndarray:
        """Return a share of these places, (n,) bool, by class and energy, groups kept together."""
        return early_stopping_rows(
            self.rows[places], self.labels, share, seed=self.job.config.seed, energy=self.energy, groups=self.groups
        )

    def subsampled(self, places: np.ndarray) -> np.ndarray:
        """Return at most as many of them as the configuration allows, chosen at random."""
        return places[subsampled(len(places), self.job.config.student_events)]

    def predict(self, learner: Learner, rows: np.ndarray) -> np.ndarray:
        """Return (n, C) log-probabilities of training events."""
        return predict(learner, self.job.train, rows, self.columns, grids=False)

    def _batch(self, places: np.ndarray, *, soft: bool) -> Batch:
        rows = self.rows[places]
        batch = self.job.train.batch(rows, self.columns, grids=False)
        weights = None if self.weights is None else self.weights[rows]
        soft_labels = np.exp(self.teacher[places]) if soft else None
        return replace(batch, labels=self.labels[rows], weights=weights, soft_labels=soft_labels)


def student_line(record: dict[str, Any]) -> str:
    """Return in a line what predictions with the student cost."""
    cost, scorer = record["log_loss"], record["judge"]
    low, high = cost["interval"]["low"], cost["interval"]["high"]
    more = ""
    if scorer["name"] != "log_loss":
        more = f", {scorer['name'].replace('_', ' ')} by {scorer['difference']:+z.3f} ± {scorer['standard_error']:.3f}"
    return (
        f"predict --fast, a network of {record['parameters']:,} weights that imitates what ships, changes the log-loss "
        f"by {cost['difference']:+z.4f} [{low:+z.4f}, {high:+z.4f}] nats{more} ({record['judged_events']:,} events, "
        f"{record['judged_on']})"
    )
