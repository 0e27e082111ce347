"""The predictions of a run's fits, collected by learner.

Out-of-fold predictions are those of single fits. On the holdout a learner's fits are averaged in log-probability, as
for new events. Fits that start from the same weights stay so close to each other that the network with their mean
weights predicts what their averaged predictions are (M. Wortsman et al., arXiv:2203.05482), in the time of one fit:
where the holdout shows it to be as good, it takes their place.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from showerstack.models.registry import load
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import atomic_folder
from showerstack.runtime.processes import limited_threads
from showerstack.scoring.metrics.paired import Paired, paired_log_loss
from showerstack.stacking.chain import Fit
from showerstack.stacking.fits import FoldTask, TimeLimitReached, write_unseen_predictions
from showerstack.stacking.folds import Folds
from showerstack.stacking.sample import Sample
from showerstack.stacking.schedule import Attempt
from showerstack.stacking.second_level import average_of, entropy, leak_remarks
from showerstack.stacking.stated import DroppedLearner, LearnerEntry, OneNetwork
from showerstack.stacking.store import HOLDOUT, OWN_FOLD, FitFolder

MARGIN = 1e-4
"""Log-loss by which averaged weights may be worse than averaged predictions."""


@dataclass(frozen=True)
class Collected:
    """Predictions of the training events under the evaluation cuts, none by a fit that learned from it."""

    out_of_fold: Mapping[str, np.ndarray]
    """By learner, (n, C) log-probabilities of those in the folds, averaged over repetitions."""
    holdout: Mapping[str, np.ndarray] | None
    """By learner, (m, C) log-probabilities of those in the holdout, as for new events; None without a holdout."""
    learners: list[LearnerEntry]
    """What became of all learners, without scores."""
    remarks: list[str]
    """Suspected leaks, and fits that are not one network although they might be."""
    networks: tuple[str, ...] = ()
    """Learners whose fits are one network."""
    raced: tuple[DroppedLearner, ...] = ()
    """Learners that left the race, in the order in which they did."""
    first_fold: Mapping[str, np.ndarray] = field(default_factory=dict)
    """By learner that left the race, (n, C) log-probabilities of those in the folds, NaN beyond its one fold."""

    @property
    def names(self) -> tuple[str, ...]:
        """Learners with all fits."""
        return tuple(self.out_of_fold)


def collect(
    folds: Folds, tasks: list[FoldTask], failures: list[Attempt], raced: tuple[DroppedLearner, ...], ends: float | None
) -> Collected:
    """Collect the predictions, leave out failed learners, make one network where that is as good, look for leaks.

    ``raced`` are learners with one fit; ``ends`` is when the time limit ends.
    """
    task_of = {task.name: task for task in tasks}
    errors = {failure.learner: f"fold {failure.fold}: {failure.error}" for failure in reversed(failures)}
    left = {learner.name: learner for learner in raced}
    finished = [name for name in task_of if name not in errors and name not in left]
    if not finished:
        name, error = next(iter(errors.items()))
        raise InputError(f"no learner could be trained; {name}: {error}")
    for task in tasks:
        if task.name in finished or (task.name in left and task.fold == 0):
            refuse_other_fit(task)
    run, rows, n_fits = tasks[0].run, folds.out_of_fold, len({task.fold for task in tasks})
    repetitions = {name: run.read_out_of_fold(name, folds.partitions, rows)[:, rows] for name in finished}
    networks, network_remarks = _networks(ends, folds, [task for task in tasks if task.name in finished])
    holdout = None
    if folds.holdout.any():
        fits: dict[str, Iterable[Fit]] = {name: (None,) if name in networks else range(n_fits) for name in finished}
        fits |= dict.fromkeys(left, (0,))
        holdout = {name: average_of(run.read_fits(name, which, HOLDOUT)) for name, which in fits.items()}
    return Collected(
        # One repetition needs no average: normalising again would only change last bits.
        out_of_fold={name: average_of(z) if len(z) > 1 else z[0] for name, z in repetitions.items()},
        holdout=holdout,
        learners=[
            LearnerEntry(
                name=name,
                status="failed" if name in errors else "ok",
                error=errors.get(name),
                features=list(task.columns),
                needs_grid=task.spec.needs_grid,
                source=task.spec.source,
                n_parameters=None if name in errors else run.fit(name, 0).record().n_parameters,
                one_network=OneNetwork(**networks[name].as_dict()) if name in networks else None,
                fits=1 if name in left else n_fits,
                left_the_race=left.get(name),
            )
            for name, task in task_of.items()
        ],
        remarks=[
            *_early_remark(task for task in tasks if task.name in finished),
            *leak_remarks(_entropies(tasks[0], repetitions, n_fits)).values(),
            *network_remarks,
        ],
        networks=tuple(networks),
        raced=raced,
        first_fold={name: _first_fold(run.fit(name, 0), folds) for name in left},
    )


def refuse_other_fit(task: FoldTask) -> None:
    """Refuse a fit that is not the one that this run asked for, whoever put it there."""
    if task.saved.record().key != task.key:
        raise InputError(
            f"{task.saved.path} holds the fit of another run, put there meanwhile: start the same command again, and "
            "it is fitted anew"
        )


def _first_fold(saved: FitFolder, folds: Folds) -> np.ndarray:
    """Return what a learner's first fit predicted of the events in the folds, (n, C), NaN for those of other folds."""
    part = saved.read(OWN_FOLD)
    values = np.full((len(folds.labels), part.shape[1]), np.nan)
    values[(folds.partitions[0] == 0) & folds.out_of_fold] = part
    return values[folds.out_of_fold]


def _early_remark(tasks: Iterable[FoldTask]) -> list[str]:
    """Return a line on the learners whose fits the time limit ended early."""
    early = {task.name: None for task in tasks if task.saved.record().ended_early}
    return (
        [f"the time limit ended fits of {', '.join(early)} early: with more time they may learn more"] if early else []
    )


def _entropies(
    task: FoldTask, repetitions: Mapping[str, np.ndarray], n_fits: int
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return per learner the entropies of out-of-fold and of new events, single fits; nothing without new events."""
    passing = None if task.test is None else task.test.passes_evaluation_cuts()
    if passing is None or not passing.any():
        return {}
    return {
        name: (
            entropy(z).ravel(),
            entropy(task.run.read_fits(name, range(n_fits))[:, passing]).mean(axis=0),
        )
        for name, z in repetitions.items()
    }


def _networks(ends: float | None, folds: Folds, tasks: Sequence[FoldTask]) -> tuple[dict[str, Paired], list[str]]:
    """Make one network of the fits of each learner that declares it.

    Returns, by learner, its log-loss minus that of averaged predictions where that is small enough, and remarks on the
    others.
    """
    networks, remarks = {}, []
    for name in dict.fromkeys(task.name for task in tasks if task.spec.one_network):
        why = "without an outer holdout nothing shows that one network with their mean weights is as good"
        if folds.holdout.any():
            try:
                of_learner = [task for task in tasks if task.name == name]
                loss = average_weights(of_learner, folds.sample(folds.holdout), ends)
            except (InputError, TimeLimitReached) as error:
                why = str(error)
            else:
                if loss.difference <= MARGIN:
                    networks[name] = loss
                    continue
                why = f"one network with their mean weights raises the log-loss of the holdout by {loss.difference:.4f}"
        remarks.append(f"{name}: the predictions of its fits are averaged: {why}")
    return networks, remarks


def average_weights(tasks: Sequence[FoldTask], holdout: Sample, deadline: float | None) -> Paired:
    """Make one network of a learner's fits, and keep it if it is as good as their averaged predictions.

    Its folder holds the learner and its predictions of the holdout and of the test events, and is kept only if its
    log-loss on the holdout is above that of the averaged predictions by :data:`MARGIN` at most. Returns the difference.

    Raises
    ------
    InputError
        If the fits cannot be averaged.
    TimeLimitReached
        If ``deadline``, seconds of :func:`showerstack.runtime.cost.now_s`, does not leave enough for its predictions.
    """
    first = replace(tasks[0], deadline=deadline, gives_up=True)
    target = first.run.fit(first.name, None).path
    shutil.rmtree(target, ignore_errors=True)
    with atomic_folder(target) as folder, limited_threads(first.threads):
        fits = [load(task.saved.path, classes=task.classes) for task in tasks]
        learner = type(fits[0]).averaged(fits)
        learner.save(folder)
        write_unseen_predictions(first, learner, FitFolder(folder))
        FitFolder(folder).finish()
    network, averaged = (
        average_of(first.run.read_fits(first.name, fits, HOLDOUT)) for fits in ((None,), range(len(tasks)))
    )
    loss = paired_log_loss(holdout.labels, network, averaged, holdout.groups, holdout.weights)
    if loss.difference > MARGIN:
        shutil.rmtree(target)
    return loss
