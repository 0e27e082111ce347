"""One learner on one fold: every event is predicted by a fit that did not learn from it.

A task fits on the other folds, predicts the fold, the holdout and the test events, and saves all of it. Its folder
(:class:`showerstack.stacking.layout.FitFolder`) appears only when the task is complete and carries the key of all that
went into it; a run that was killed keeps the finished ones and does the rest. Tasks carry paths, not arrays, and
run in processes of this machine or on a Dask cluster.

Fits that start from the same weights stay so close to each other that the network with their mean weights predicts what
their averaged predictions are (M. Wortsman et al., arXiv:2203.05482), in the time of one fit: where the holdout shows
it to be as good, it takes their place.
"""

from __future__ import annotations

import shutil
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from showerstack.models.base.learner import Batch, Enough, Learner, Predictor
from showerstack.models.base.saving import CheckpointError
from showerstack.models.base.spec import LearnerSpec
from showerstack.models.registry import create, load, most_events
from showerstack.runtime.context import NO_VALUES
from showerstack.runtime.cost import now_s, timed
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import atomic_folder, hash_json
from showerstack.runtime.processes import limited_threads
from showerstack.scoring.metrics.paired import Paired, paired_log_loss
from showerstack.stacking.estimates import Posterior
from showerstack.stacking.events import Events, pieces
from showerstack.stacking.folder import RunFolder
from showerstack.stacking.folds import Folds, early_stopping_rows
from showerstack.stacking.layout import HOLDOUT, OWN_FOLD, TEST, FitFolder
from showerstack.stacking.sample import Sample, subsampled
from showerstack.stacking.second_level import average_of
from showerstack.stacking.stated import FitRecord, Step
from showerstack.stacking.training.budget import FitTime, TimeLimitReached

MIN_VALID = 2000
"""Events for early stopping that are kept at least where a learner gets only a part of the rows."""
WEIGHTS_SUFFIX = ".safetensors"
"""Of a setting that names a file."""


@dataclass(frozen=True)
class FoldTask:
    """One learner on one fold; everything a worker needs, as paths and numbers."""

    run: RunFolder
    spec: LearnerSpec
    fold: int
    """0 .. repeats * n_folds - 1; ``fold // n_folds`` is the repetition."""
    n_folds: int
    train: Events
    test: Events | None
    columns: tuple[str, ...]
    classes: tuple[str, ...]
    preset: str = "good"
    settings: dict[str, Any] = field(default_factory=dict)
    """They replace registered settings."""
    seed: int = 1
    device: str = "cpu"
    threads: int = 1
    valid_fraction: float = 0.1
    off_cut_weight: float = 1.0
    rows: int | None = None
    """Training events at most; None for all."""
    time: FitTime = field(default_factory=FitTime)
    context_hash: str = ""
    """Hash of the run's configuration, data and versions."""
    start: str = ""
    """Which start of the run it belongs to, see :meth:`RunFolder.started`; empty where it cannot outlive its run."""

    @property
    def name(self) -> str:
        """The learner's name."""
        return self.spec.name

    @property
    def saved(self) -> FitFolder:
        """Where the finished task is."""
        return self.run.fit(self.name, self.fold)

    @property
    def checkpoint(self) -> Path:
        """Where an unfinished fit keeps its state."""
        return self.run.checkpoint(self.name, self.fold, self.key)

    @property
    def key(self) -> str:
        """Hash of everything that decides the outcome."""
        return hash_json([self.context_hash, self.name, self.fold, list(self.columns)])

    @property
    def fit_seed(self) -> int:
        """Seed of this fit: different for every learner and fold, the same on every machine."""
        sequence = np.random.SeedSequence([self.seed, zlib.crc32(self.name.encode()), self.fold])
        return int(sequence.generate_state(1)[0] >> 1)

    @property
    def learns_truth(self) -> bool:
        """Whether the learner gets true quantities of the training events, because they have any."""
        return self.spec.uses_truth and self.train.targets_fingerprint() is not None

    def absolute(self) -> Self:
        """Return the same task with absolute paths, for a process of another working directory."""
        test = None if self.test is None else self.test.absolute()
        settings = {
            name: str(Path(value).absolute()) if str(value).endswith(WEIGHTS_SUFFIX) else value
            for name, value in self.settings.items()
        }
        run = RunFolder(self.run.folder.absolute())
        return replace(self, run=run, train=self.train.absolute(), test=test, settings=settings)

    def is_done(self) -> bool:
        """Return whether a finished folder with the same key exists, every file as it was written."""
        return self.saved.is_there and not self.saved.problem() and bool(self.saved.record().key == self.key)


SEEN_WITHIN_S = 60.0
"""When a file that one machine wrote is seen by all others at the latest, by what NFS keeps of folders by default."""


class Abandoned(Exception):
    """The run that a fit belongs to has ended, or its folder is another's."""


def refuse_abandoned(task: FoldTask, *, within_s: float = 0.0) -> None:
    """End a fit that nobody waits for any more: what it would write might fall into another run.

    ``within_s`` is how long the mark of the run is waited for.
    """
    if not task.start:
        return
    until = now_s() + within_s
    while task.run.start != task.start:
        if now_s() >= until:
            raise Abandoned(f"{task.run.folder} is no longer at work, or is another run's")
        time.sleep(1.0)


def do_task(task: FoldTask) -> float:
    """Fit one learner on one fold, predict its own and the test events, and store all of it atomically.

    Returns the log-loss of the fold's own events, which it did not learn from.
    """
    refuse_abandoned(task, within_s=SEEN_WITHIN_S)
    with atomic_folder(task.saved.path, overwrite=True) as folder, limited_threads(task.threads):
        saved = FitFolder(folder)
        with timed("train", task.name, task.fold) as cost:
            train, valid, oof = split_rows(task)
            learner, ended_early = _fit(task, _labelled_batch(task, train), _labelled_batch(task, valid))
            refuse_abandoned(task)
            learner.save(folder)
            if learner.losses_:
                saved.write_history(learner.losses_)
            of_fold = predict(task, learner, task.train, oof)
            saved.write(OWN_FOLD, of_fold)
            write_unseen_predictions(task, learner, saved)
        record = FitRecord(
            key=task.key,
            learner=task.name,
            fold=task.fold,
            columns=list(task.columns),
            n_train=len(train),
            n_valid=len(valid),
            n_parameters=learner.n_parameters,
            precision=learner.precision,
            importances=learner.importances(),
            cost=Step.of(cost),
            ended_early=ended_early,
        )
        saved.finish(record)
        refuse_abandoned(task)
    shutil.rmtree(task.checkpoint, ignore_errors=True)
    return _log_loss(of_fold, task.train.known().labels[oof])


def _log_loss(posterior: Posterior, labels: np.ndarray) -> float:
    assert posterior.log_proba is not None
    return -float(posterior.log_proba[np.arange(len(labels)), labels].mean()) if len(labels) else float("nan")


def write_unseen_predictions(task: FoldTask, learner: Learner, saved: FitFolder) -> None:
    """Write a learner's predictions of the holdout and of the test events, as far as there are any."""
    holdout = holdout_rows(task)
    if len(holdout):
        saved.write(HOLDOUT, predict(task, learner, task.train, holdout))
    if task.test is not None:
        saved.write(TEST, predict(task, learner, task.test, np.arange(len(task.test))))


LOOK_EVERY_S = 0.2
"""How often a fit looks whether its run is still at work."""


class WhileWanted:
    """A learner's progress, called while it learns.

    It ends the fit at a time, with the best so far, or without a result where nobody waits for it any more.
    """

    def __init__(self, task: FoldTask) -> None:
        self.task, self.reached, self.looked = task, False, now_s()
        self.ends = task.time.learns_until(self.looked)

    def __call__(self, done: float, total: float, note: str = "", values: Mapping[str, float] = NO_VALUES) -> None:
        """Raise :class:`Enough` when the time has come, :class:`Abandoned` when the run has ended."""
        now = now_s()
        if now - self.looked >= LOOK_EVERY_S:
            refuse_abandoned(self.task)
            self.looked = now
        if self.ends is not None and now >= self.ends:
            self.reached = True
            raise Enough


def _fit(task: FoldTask, train: Batch, valid: Batch) -> tuple[Learner, bool]:
    """Fit from where a killed fit of the same task stopped, or from the start if that state cannot be used.

    Returns the learner, and whether the time limit ended its fit.
    """
    watch = WhileWanted(task) if task.time.deadline is not None or task.start else None
    for _ in range(2):
        learner = create(
            task.spec,
            task.classes,
            threads=task.threads,
            overrides=task.settings,
            preset=task.preset,
            n_rows=len(train),
        )
        learner.checkpoint = task.checkpoint
        try:
            learner = learner.fit(train, valid, seed=task.fit_seed, device=task.device, progress=watch)
            return learner, watch is not None and watch.reached
        except CheckpointError as error:
            refused = error
            shutil.rmtree(task.checkpoint, ignore_errors=True)
    raise refused


def split_rows(task: FoldTask) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows to learn from, to stop early by, and to predict.

    Predicted and early-stopping rows are of the kind that predictions are scored on; training rows also of others,
    unless their weight is 0. Where a learner gets only a part of the rows, or takes a part of what it gets, those of
    the kind come first.
    """
    folds, in_evaluation = task.run.partitions[task.fold // task.n_folds], task.run.in_evaluation
    own_fold = folds == task.fold % task.n_folds
    oof = np.flatnonzero(own_fold & in_evaluation)
    others = np.flatnonzero(~own_fold & (folds >= 0) & (in_evaluation if task.off_cut_weight == 0 else True))
    known = task.train.known()
    for_stopping = early_stopping_rows(
        others,
        known.labels,
        task.valid_fraction,
        seed=task.fit_seed,
        energy=known.energy,
        groups=known.groups,
    )
    train, valid = others[~for_stopping], others[for_stopping]
    scored = valid[in_evaluation[valid]]
    if len(np.unique(known.labels[scored])) == len(task.classes):
        valid = scored
    if task.rows is not None and len(train) > task.rows:
        train = _most_useful(train, in_evaluation, task.rows, task.fit_seed)
        valid = valid[subsampled(len(valid), max(MIN_VALID, round(task.rows * task.valid_fraction)))]
    most = most_events(create(task.spec, task.classes, overrides=task.settings, preset=task.preset))
    if most is not None and len(train) > most:
        # A learner draws evenly from what it gets: it shall not fill its cap with events that are not scored.
        train = _most_useful(train, in_evaluation, max(most, int(in_evaluation[train].sum())), task.fit_seed)
    return train, valid, oof


def _most_useful(rows: np.ndarray, in_evaluation: np.ndarray, n: int, seed: int) -> np.ndarray:
    """Return n of the rows in ascending order, at random those under the evaluation cuts first, then others."""
    shuffled = np.random.default_rng(seed).permutation(rows)
    return np.sort(shuffled[np.argsort(~in_evaluation[shuffled], kind="stable")][:n])


def holdout_rows(task: FoldTask) -> np.ndarray:
    """Return the rows of the holdout that are scored, (n,): no fit of any fold learns from them."""
    return np.flatnonzero((task.run.partitions[0] < 0) & task.run.in_evaluation)


def _labelled_batch(task: FoldTask, rows: np.ndarray) -> Batch:
    batch = task.train.batch(rows, task.columns, grids=task.spec.needs_grid)
    known = task.train.known()
    weights = None if known.weights is None else known.weights[rows]
    if task.off_cut_weight < 1.0:
        in_evaluation = task.run.in_evaluation[rows]
        by_cuts = np.where(in_evaluation, 1.0, task.off_cut_weight)
        weights = by_cuts if weights is None else by_cuts * weights
    targets = task.train.targets(rows) if task.learns_truth else None
    groups = None if known.groups is None else known.groups[rows]
    return replace(batch, labels=known.labels[rows], weights=weights, targets=targets, groups=groups)


def predict(task: FoldTask, learner: Learner, events: Events, rows: np.ndarray) -> Posterior:
    """Return what a fit says of some events, in pieces of bounded memory; one that is given up ends at its deadline."""
    log_proba, estimates = np.empty((len(rows), len(learner.classes))), []
    for piece in pieces(len(rows)):
        if task.time.is_over():
            raise TimeLimitReached("the time limit of the run was reached")
        batch = events.batch(rows[piece], task.columns, grids=task.spec.needs_grid)
        if task.learns_truth:
            of_piece, estimated = learner.predict_both(batch)
            estimates.append(estimated)
        else:
            of_piece = learner.predict_log_proba(batch)
        log_proba[piece] = check_log_proba(of_piece, learner, batch)
    return Posterior(log_proba, np.concatenate(estimates) if estimates else None)


def check_log_proba(log_proba: np.ndarray, learner: Predictor, batch: Batch) -> np.ndarray:
    """Return a learner's log-probabilities as (n, C) float64; a ValueError if they are not, or not finite."""
    checked = np.asarray(log_proba, dtype=np.float64)
    if checked.shape != (len(batch), len(learner.classes)):
        raise ValueError(f"{len(batch)} events got log-probabilities of shape {checked.shape}")
    if not np.isfinite(checked).all():
        first = int(np.argwhere(~np.isfinite(checked))[0, 0])
        event = int(batch.index[first])
        raise ValueError(f"log-probability of event {event} is {checked[first].tolist()}, expected finite")
    return checked


def refuse_other_fit(task: FoldTask) -> None:
    """Refuse a fit that is not the one that this run asked for, whoever put it there."""
    if task.saved.record().key != task.key:
        raise InputError(
            f"{task.saved.path} holds the fit of another run, put there meanwhile: start the same command again, and "
            "it is fitted anew"
        )


MARGIN = 1e-4
"""Log-loss by which averaged weights may be worse than averaged predictions."""


def one_networks(ends: float | None, folds: Folds, tasks: Sequence[FoldTask]) -> tuple[dict[str, Paired], list[str]]:
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
    first = replace(tasks[0], time=FitTime(deadline))
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
