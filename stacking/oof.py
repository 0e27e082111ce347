"""What the fits of a run say of training events that none of them learned from, collected by learner.

Out-of-fold predictions are those of single fits. Of the outer holdout a learner's fits are averaged in log-probability,
as for new events. Fits that start from the same weights stay so close to each other that the network with their mean
weights predicts what their averaged predictions are (M. Wortsman et al., arXiv:2203.05482), in the time of one fit:
where the holdout shows it to be as good, it takes their place.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from showerstack.models.base.posterior import log_softmax
from showerstack.models.registry import load
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import atomic_folder, read_json
from showerstack.runtime.processes import limited_threads
from showerstack.scoring.metrics.paired import Paired, paired_log_loss
from showerstack.stacking.chain import average_of
from showerstack.stacking.fits import (
    TASK_FILE,
    FoldTask,
    TimeLimitReached,
    fold_folder,
    held_out_log_proba,
    outer_log_proba,
    predict_unseen,
    test_log_proba,
    write_task_checksums,
)
from showerstack.stacking.folds import Folds
from showerstack.stacking.gate import entropy, leak_remarks
from showerstack.stacking.job import Job
from showerstack.stacking.sample import Sample
from showerstack.stacking.schedule import TaskFailure

MARGIN = 1e-4
"""Log-loss by which averaged weights may be worse than averaged predictions."""


@dataclass(frozen=True)
class OutOfFold:
    """Predictions of the training events under the evaluation cuts, none by a fit that learned from it."""

    inner: Mapping[str, np.ndarray]
    """By learner, (n, C) log-probabilities of those events inside the folds, averaged over repetitions."""
    holdout: Mapping[str, np.ndarray] | None
    """By learner, (m, C) log-probabilities of the outer holdout, as they ship; None without a holdout."""
    records: list[dict[str, Any]]
    """Manifest entries of all learners."""
    remarks: list[str]
    """Suspected leaks, and fits that are not one network although they might be."""
    networks: tuple[str, ...] = ()
    """Learners whose fits are one network."""

    @property
    def names(self) -> tuple[str, ...]:
        """Learners that finished."""
        return tuple(self.inner)


def collected(job: Job, folds: Folds, tasks: list[FoldTask], failures: list[TaskFailure]) -> OutOfFold:
    """Collect the predictions, leave out failed learners, make one network where that is as good, look for leaks."""
    one_task = {task.name: task for task in tasks}
    errors = {f.learner: f"fold {f.fold}: {f.error}" for f in reversed(failures)}
    sound = [name for name in one_task if name not in errors]
    if not sound:
        name, error = next(iter(errors.items()))
        raise InputError(f"no learner could be trained; {name}: {error}")
    run, n_fits = job.config.run, job.config.n_folds * job.config.repeats
    single = {name: held_out_log_proba(run, name, folds.partitions, folds.inner)[:, folds.inner] for name in sound}
    networks, kept_apart = _networks(job, folds, [task for task in tasks if task.name not in errors])
    holdout = None
    if folds.outer.any():
        fits = {name: (None,) if name in networks else range(n_fits) for name in sound}
        holdout = {name: average_of(outer_log_proba(run, name, which)) for name, which in fits.items()}
    return OutOfFold(
        # One repetition needs no average: normalising again would only change last bits.
        inner={name: average_of(z) if len(z) > 1 else z[0] for name, z in single.items()},
        holdout=holdout,
        records=[
            _record(task, errors.get(name)) | {"one_network": networks[name].as_dict() if name in networks else None}
            for name, task in one_task.items()
        ],
        remarks=[
            *_early_remark(task for task in tasks if task.name in sound),
            *leak_remarks(_entropies(job, single, n_fits)).values(),
            *kept_apart,
        ],
        networks=tuple(networks),
    )


def _record(task: FoldTask, error: str | None) -> dict[str, Any]:
    parameters = None if error else read_json(fold_folder(task.run, task.name, 0) / TASK_FILE)["n_parameters"]
    return {
        "name": task.name,
        "status": "failed" if error else "ok",
        "error": error,
        "features": list(task.columns),
        "needs_grid": task.spec.needs_grid,
        "source": task.spec.source,
        "n_parameters": parameters,
    }


def _early_remark(tasks: Iterable[FoldTask]) -> list[str]:
    """Return a line on the learners that the time limit ended before they had learned all they could."""
    early = {task.name: None for task in tasks if read_json(task.folder / TASK_FILE).get("ended_early")}
    return (
        [f"the time limit ended fits of {', '.join(early)} early: with more time they may learn more"] if early else []
    )


def _entropies(job: Job, single: Mapping[str, np.ndarray], n_fits: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return per learner the entropies of out-of-fold and of new events, single fits; nothing without new events."""
    passing = None if job.test is None else job.test.passes_evaluation_cuts()
    if passing is None or not passing.any():
        return {}
    return {
        name: (
            entropy(z).ravel(),
            entropy(test_log_proba(job.config.run, name, range(n_fits))[:, passing]).mean(axis=0),
        )
        for name, z in single.items()
    }


def _networks(job: Job, folds: Folds, tasks: Sequence[FoldTask]) -> tuple[dict[str, Paired], list[str]]:
    """Make one network of the fits of each learner that declares it.

    Returns
    -------
    dict
        By learner, its log-loss minus that of averaged predictions, where that is small enough.
    list
        What the run says of the others.
    """
    networks, remarks = {}, []
    for name in dict.fromkeys(task.name for task in tasks if task.spec.one_network):
        why = "without an outer holdout nothing shows that one network with their mean weights is as good"
        if folds.outer.any():
            try:
                own = [task for task in tasks if task.name == name]
                worse = average_weights(own, folds.sample(folds.outer), job.ends)
            except (InputError, TimeLimitReached) as error:
                why = str(error)
            else:
                if worse.difference <= MARGIN:
                    networks[name] = worse
                    continue
                why = (
                    f"one network with their mean weights raises the log-loss of the holdout by {worse.difference:.4f}"
                )
        remarks.append(f"{name}: the predictions of its fits are averaged: {why}")
    return networks, remarks


def average_weights(tasks: Sequence[FoldTask], holdout: Sample, deadline: float | None) -> Paired:
    """Make one network of a learner's fits, and keep it if it is as good as their averaged predictions.

    Its folder holds the learner and what it says of the outer holdout and of the test events, and is there only if its
    log-loss on the holdout is above that of the averaged predictions by :data:`MARGIN` at most.

    Parameters
    ----------
    tasks
        All finished tasks of the learner.
    holdout
        The outer holdout, which is not empty.
    deadline
        When it gives up, seconds since 1970; None for never.

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
    first = replace(tasks[0], deadline=deadline, gives_up=True)
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
    worse = paired_log_loss(holdout.labels, network, predictions, holdout.groups, holdout.weights)
    if worse.difference > MARGIN:
        shutil.rmtree(target)
    return worse
