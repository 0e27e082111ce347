"""Racing: after the first fold of every learner, a run goes on with those that its stack would keep.

Most of a run's time goes into fits of learners that the second level then leaves out. The rule that leaves them out
(:func:`showerstack.stacking.pools.left_out`) is applied to the predictions of the first fold; a learner that it leaves
out there is recorded with that one fit, which has predicted the holdout and the test events as well. The decision
depends on the first folds' files alone: a run that was ended repeats it when it goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from showerstack.stacking.answers import stacking_of
from showerstack.stacking.config import RunConfig
from showerstack.stacking.fits import FoldTask
from showerstack.stacking.folds import EVALUATION_FOLDS, Folds, assign_folds
from showerstack.stacking.job import Job
from showerstack.stacking.pools import DroppedLearner, left_out
from showerstack.stacking.store import OWN_FOLD

FIRST_FOLD = 0
MIN_RACED = 20
"""Events of each class in the first fold without which nothing is left out after it."""


def is_raced(config: RunConfig, folds: Folds, tasks: Sequence[FoldTask]) -> bool:
    """Return whether a run goes on with some learners only.

    Not without a holdout, on which the one fit of a learner that leaves is judged, nor where all learners are to be
    kept.
    """
    learners, fits = {task.name for task in tasks}, {task.fold for task in tasks}
    wanted = config.race == "on" and config.prune > 0 and len(learners) > 1 and len(fits) > 1
    return wanted and bool(folds.holdout.any())


def leaving(job: Job, folds: Folds, names: Sequence[str]) -> tuple[DroppedLearner, ...]:
    """Return which learners leave the race by their first fold, in the order in which they were left out."""
    sample = folds.sample(folds.out_of_fold & (folds.partitions[0] == FIRST_FOLD))
    classes = job.task.n_classes
    if len(names) < 2 or min((int((sample.labels == k).sum()) for k in range(classes)), default=0) < MIN_RACED:
        return ()
    parts = assign_folds(sample.labels, EVALUATION_FOLDS, seed=job.config.seed, groups=sample.groups)
    first = {name: job.run.fit(name, FIRST_FOLD).read(OWN_FOLD) for name in names}
    rule = partial(left_out, survival=stacking_of(job.task).survival)
    return rule(first, replace(sample, folds=parts), job.config.prune)


def race_remark(raced: Sequence[DroppedLearner]) -> str | None:
    """Return a remark on the learners that left the race; None where all went on."""
    if not raced:
        return None
    last, names = raced[-1], ", ".join(learner.name for learner in raced)
    return (
        f"left out after one fold: {names}; without them the stack's log-loss on that fold is {abs(last.cost):.5f} ± "
        f"{last.standard_error:.5f} {'higher' if last.cost > 0 else 'lower'} (--race off fits them in full)"
    )
