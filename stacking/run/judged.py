"""The events that what ships is judged on, and what every system says of them, exactly as it would ship.

With an outer holdout: the average of all fits of each learner, as for new events, and the meta-learner on top. Without
one (few events): out-of-fold predictions of single fits, and nested ones of the stack.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from showers.execution.processes import in_processes
from stacking.combine.calibration import Calibrator, cross_fit
from stacking.combine.control import SingleFits
from stacking.combine.nested import Stacked
from stacking.combine.softmax import log_loss_per_event
from stacking.predict.chain import average_of, combined
from stacking.run.first_level import Level
from stacking.run.job import Folds, Job
from stacking.tasks.folds import assign_folds

JUDGED_FOLDS = 5
"""Folds of the outer holdout, where something is both fitted and judged there."""
ON_HOLDOUT, OUT_OF_FOLD = "outer holdout", "out-of-fold"


@dataclass(frozen=True)
class Judged:
    """Labelled events and what every system (learners, ``average``, ``stack``) says of them."""

    where: str
    """:data:`ON_HOLDOUT` or :data:`OUT_OF_FOLD`."""
    rows: np.ndarray
    """(N,) bool among the training events; n of them."""
    labels: np.ndarray
    """(n,) int64."""
    folds: np.ndarray
    """(n,) for cross-fitting."""
    groups: np.ndarray | None
    """(n,) or None."""
    raw: Mapping[str, np.ndarray]
    """By system, (n, C) log-probabilities before calibration."""
    single: SingleFits | None
    """Losses of single fits; None out-of-fold, where nothing else is judged."""

    def calibrate(self, *, workers: int = 1) -> Iterator[tuple[str, Calibrator, np.ndarray]]:
        """Yield each system's name, the calibrator that ships, and (n, C) cross-fitted calibrated log-probabilities."""
        arguments = [(log_proba, self.labels, self.folds) for log_proba in self.raw.values()]
        for name, found in zip(self.raw, in_processes(_cross_fit, arguments, workers=workers), strict=True):
            yield (name, *found)


def _cross_fit(log_proba: np.ndarray, labels: np.ndarray, folds: np.ndarray) -> tuple[Calibrator, np.ndarray]:
    with threadpool_limits(1):  # the same last bits in any process
        return cross_fit(log_proba, labels, folds)


def judged(job: Job, folds: Folds, level: Level, stacked: Stacked) -> Judged:
    """Return what is judged, on the outer holdout if there is one."""
    learners = dict(zip(level.names, level.out_of_fold, strict=True))
    inner = {**learners, "average": average_of(level.out_of(stacked.meta.learners)), "stack": stacked.log_proba}
    groups = job.train.groups()
    inner_groups = None if groups is None else groups[folds.inner]
    if level.outer is None:
        fold_numbers, labels = folds.partitions[0][folds.inner], folds.labels[folds.inner]
        return Judged(OUT_OF_FOLD, folds.inner, labels, fold_numbers, inner_groups, inner, None)
    labels, context, energy = folds.labels[folds.outer], job.train.context(), job.train.energy()
    context = None if context is None else context[folds.outer]
    averages = level.averages()
    outer_groups = None if groups is None else groups[folds.outer]
    return Judged(
        where=ON_HOLDOUT,
        rows=folds.outer,
        labels=labels,
        folds=assign_folds(
            labels,
            JUDGED_FOLDS,
            seed=job.config.seed,
            energy=None if energy is None else energy[folds.outer],
            groups=outer_groups,
        ),
        groups=outer_groups,
        raw=combined(averages, stacked.meta, context),
        single=SingleFits(
            outer=_single_fit_losses(level, folds.n_folds, stacked, context, labels),
            inner={name: log_loss_per_event(z, folds.labels[folds.inner]) for name, z in inner.items()},
            inner_groups=inner_groups,
        ),
    )


def _single_fit_losses(
    level: Level, n_folds: int, stacked: Stacked, context: np.ndarray | None, labels: np.ndarray
) -> dict[str, np.ndarray]:
    """Return by system the log-losses (m,) on the outer holdout of what out-of-fold predictions are made of."""
    assert level.outer is not None
    _, n_fits, n_events, n_classes = level.outer.shape
    # Out-of-fold predictions are averaged over repetitions, not over folds.
    by_fold = level.outer.reshape(len(level.names), n_fits // n_folds, n_folds, n_events, n_classes)
    total: dict[str, np.ndarray] = {}
    for k in range(n_folds):
        learners = {name: average_of(z[:, k]) for name, z in zip(level.names, by_fold, strict=True)}
        for name, log_proba in combined(learners, stacked.meta, context).items():
            total[name] = total.get(name, 0.0) + log_loss_per_event(log_proba, labels) / n_folds
    return total
