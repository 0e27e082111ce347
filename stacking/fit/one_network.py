"""One network in place of a learner's fits: the mean of their weights, confirmed on the outer holdout.

Fits that start from the same weights stay so close to each other that the network with their mean weights predicts what
their averaged predictions are (M. Wortsman et al., arXiv:2203.05482), in the time of one fit.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from showerstack.models.base.posterior import log_softmax
from showerstack.models.registry import load
from showerstack.runtime.cost import Deadline
from showerstack.runtime.files import atomic_folder
from showerstack.runtime.processes import limited_threads
from showerstack.scoring.metrics.paired import Paired, paired_log_loss
from showerstack.stacking.fit.tasks import FoldTask, fold_folder, outer_log_proba, predict_unseen, write_task_checksums

MARGIN = 1e-4
"""Log-loss, nats, by which averaged weights may be worse than averaged predictions."""


def average_weights(
    tasks: Sequence[FoldTask],
    labels: np.ndarray,
    groups: np.ndarray | None,
    weights: np.ndarray | None,
    deadline: Deadline | None,
) -> Paired:
    """Make one network of a learner's fits, and keep it if it is as good as their averaged predictions.

    Its folder holds the learner and what it says of the outer holdout and of the test events, and is there only if its
    log-loss on the holdout is above that of the averaged predictions by :data:`MARGIN` at most.

    Parameters
    ----------
    tasks
        All finished tasks of the learner.
    labels
        (m,) int64 classes of the outer holdout, which is not empty.
    groups, weights
        (m,) of the outer holdout, or None.
    deadline
        When it gives up; None for never.

    Returns
    -------
    The network's log-loss minus that of averaged predictions, in pairs.

    Raises
    ------
    InputError
        If the fits cannot be averaged.
    TimeLimitReached
        If ``deadline`` does not leave enough for its predictions.
    """
    first = replace(tasks[0], deadline=deadline)
    target = fold_folder(first.run, first.name, None)
    shutil.rmtree(target, ignore_errors=True)
    with atomic_folder(target) as folder, limited_threads(first.threads):
        fits = [load(task.folder, classes=task.classes) for task in tasks]
        learner = type(fits[0]).averaged(fits)
        learner.save(folder)
        predict_unseen(first, learner, folder)
        write_task_checksums(folder)
    network, predictions = (
        log_softmax(outer_log_proba(first.run, first.name, those).mean(axis=0))
        for those in ((None,), range(len(tasks)))
    )
    worse = paired_log_loss(labels, network, predictions, groups, weights)
    if worse.difference > MARGIN:
        shutil.rmtree(target)
    return worse
