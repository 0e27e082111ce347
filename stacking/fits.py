"""The out-of-fold engine: every learner predicts every event from a fit that did not learn from it.

One task is one learner on one fold: fit on the other folds, predict the fold and the test events, save. A task's folder
``learners/<name>/fold-<k>/`` appears only when the task is complete and carries the key of everything that went into
it; a run that was killed takes the finished ones and does the rest. Each folder has checksums of its own: until the run
is finished, they show what was damaged or exchanged between a kill and the next start. Tasks carry paths, not arrays,
and run in processes of this machine or on a Dask cluster.
"""

from __future__ import annotations

import shutil
import time
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from showerstack.models.base.learner import Batch, Enough, Learner
from showerstack.models.base.saving import CheckpointError
from showerstack.models.base.spec import LearnerSpec
from showerstack.models.registry import create, most_events
from showerstack.runtime.arrays import open_npy
from showerstack.runtime.checksums import Checksums, write_checksums
from showerstack.runtime.cost import Cost, timed
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import atomic_folder, check_name, hash_json, read_json, write_json, write_npz
from showerstack.runtime.processes import limited_threads
from showerstack.stacking.events import Events, pieces
from showerstack.stacking.folds import FOLDS_FILE, IN_EVALUATION_FILE, early_stopping_rows
from showerstack.stacking.sample import subsampled

TASK_FILE = "task.json"
HISTORY_FILE = "history.json"
"""Validation log-loss by epoch or round, of learners that have such a thing."""
HELD_OUT_FILE = "held_out.npz"
OUTER_FILE = "outer.npz"
"""A fit's predictions of the outer holdout."""
TEST_FILE = "test.npz"
TRUTH = "truth"
"""Array of a fit's estimates of true quantities in these files, beside ``log_proba``."""


Fit = int | None
"""Number of one of a learner's fits; None for the network with the mean of their weights."""
AVERAGE = "average"
"""Folder of that network, beside those of the fits."""


def fold_folder(run: Path, learner: str, fold: Fit) -> Path:
    """Return where one learner's fit on one fold is kept; a name that leads out of the run is refused."""
    return run / "learners" / check_name(learner, run) / (AVERAGE if fold is None else f"fold-{fold}")


def write_task_checksums(folder: Path) -> None:
    """Write ``checksums.json`` over all files of a task's folder."""
    write_checksums(folder, [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()])


def checksum_problem(folder: Path) -> str | None:
    """Return what is wrong with the folder of a finished task; None if nothing is, or if it is not there."""
    if not folder.exists():
        return None
    try:
        problems = Checksums.open(folder, required=(TASK_FILE, HELD_OUT_FILE)).problems()
    except InputError as error:
        return str(error)
    return problems[0] if problems else None


def key_of(folder: Path) -> str | None:
    """Return the key of everything that decided a finished task; None without one, or if a file was damaged."""
    if not folder.exists() or checksum_problem(folder):
        return None
    key: str = read_json(folder / TASK_FILE)["key"]
    return key


def held_out_log_proba(run: Path, learner: str, folds: np.ndarray, in_evaluation: np.ndarray) -> np.ndarray:
    """Collect a learner's out-of-fold log-probabilities.

    Parameters
    ----------
    folds
        (R, N) int8, one partition per repetition; -1 in the outer holdout.
    in_evaluation
        (N,) bool: rows that were predicted.

    Returns
    -------
    (R, N, C) float64; NaN where a row was never predicted.
    """
    repeats, n_events = folds.shape
    n_folds = int(folds.max()) + 1
    parts = {}
    for fold in range(repeats * n_folds):
        parts[fold] = _stored(fold_folder(run, learner, fold), HELD_OUT_FILE, "log_proba")
    result = np.full((repeats, n_events, parts[0].shape[1]), np.nan)
    for fold, part in parts.items():
        repeat, k = divmod(fold, n_folds)
        result[repeat, (folds[repeat] == k) & in_evaluation] = part
    return result


def test_log_proba(run: Path, learner: str, fits: Iterable[Fit]) -> np.ndarray:
    """Collect a learner's test log-probabilities, one set per fit: (F, M, C) float64."""
    return _of_every_fit(run, learner, fits, TEST_FILE, "log_proba")


def outer_log_proba(run: Path, learner: str, fits: Iterable[Fit]) -> np.ndarray:
    """Collect a learner's log-probabilities of the outer holdout, one set per fit: (F, M, C) float64."""
    return _of_every_fit(run, learner, fits, OUTER_FILE, "log_proba")


def has_truth(run: Path, learner: str) -> bool:
    """Return whether a learner's fits have estimated true quantities."""
    with np.load(Checksums.open(fold_folder(run, learner, 0)).path(HELD_OUT_FILE), allow_pickle=False) as stored:
        return TRUTH in stored.files


def held_out_truth(run: Path, learner: str, partition: np.ndarray, in_evaluation: np.ndarray) -> np.ndarray:
    """Collect a learner's out-of-fold estimates, (N, T, 2), of one partition (N,); NaN where there is none."""
    parts = [_stored(fold_folder(run, learner, k), HELD_OUT_FILE, TRUTH) for k in range(int(partition.max()) + 1)]
    result = np.full((len(partition), *parts[0].shape[1:]), np.nan)
    for k, part in enumerate(parts):
        result[(partition == k) & in_evaluation] = part
    return result


def outer_truth(run: Path, learner: str, fits: Iterable[Fit]) -> np.ndarray:
    """Collect a learner's estimates of the outer holdout, one set per fit: (F, M, T, 2) float64."""
    return _of_every_fit(run, learner, fits, OUTER_FILE, TRUTH)


def test_truth(run: Path, learner: str, fits: Iterable[Fit]) -> np.ndarray:
    """Collect a learner's estimates of the test events, one set per fit: (F, M, T, 2) float64."""
    return _of_every_fit(run, learner, fits, TEST_FILE, TRUTH)


def _of_every_fit(run: Path, learner: str, fits: Iterable[Fit], name: str, key: str) -> np.ndarray:
    return np.stack([_stored(fold_folder(run, learner, fit), name, key) for fit in fits])


def _stored(folder: Path, name: str, key: str) -> np.ndarray:
    with np.load(Checksums.open(folder).path(name), allow_pickle=False) as stored:
        result: np.ndarray = stored[key]
    return result


MIN_VALID = 2000
"""Events for early stopping that are left where a learner is given only a part of the rows."""
WEIGHTS_SUFFIX = ".safetensors"
"""Of a setting that names a file."""
CHECKPOINTS = "checkpoints"
"""Folder of a run with the state of unfinished fits; gone when all are done."""
LATE_FILE = "late"
"""There, below a learner's name: a fit of it was given up for want of time, so that its others need not begin."""


@dataclass(frozen=True)
class FoldTask:
    """One learner on one fold; everything a worker needs, as paths and numbers."""

    run: Path
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
    """What replaces the registered settings."""
    seed: int = 1
    device: str = "cpu"
    threads: int = 1
    valid_fraction: float = 0.1
    off_cut_weight: float = 1.0
    rows: int | None = None
    """Training events at most; None for all."""
    deadline: float | None = None
    """When the fits have to be done, seconds since 1970; None without a limit."""
    share: float = 1.0
    """Of the time that is left until then when it begins, what it may learn for."""
    gives_up: bool = True
    """Whether it is given up at the deadline: one learner is not, so that a late run ships."""
    context_hash: str = ""
    """Hash of the run's configuration, data and code."""

    @property
    def name(self) -> str:
        """The learner's name."""
        return self.spec.name

    @property
    def folder(self) -> Path:
        """Where the finished task is."""
        return fold_folder(self.run, self.name, self.fold)

    @property
    def checkpoint(self) -> Path:
        """Where an unfinished fit keeps its state; that of another configuration or code has another name."""
        return self.run / CHECKPOINTS / self.name / f"fold-{self.fold}-{self.key[:16]}"

    @property
    def key(self) -> str:
        """Hash of everything that decides the outcome."""
        parts = [self.context_hash, self.name, self.fold, list(self.columns)]
        return hash_json(parts)

    @property
    def fit_seed(self) -> int:
        """Seed of this fit: different for every learner and fold, the same on every machine."""
        sequence = np.random.SeedSequence([self.seed, zlib.crc32(self.name.encode()), self.fold])
        return int(sequence.generate_state(1)[0] >> 1)

    @property
    def teaches_truth(self) -> bool:
        """Whether the learner is given true quantities of the training events, because there are any."""
        return self.spec.uses_truth and self.train.targets_fingerprint() is not None

    def absolute(self) -> Self:
        """Return the same task with absolute paths, for a process of another working directory."""
        test = None if self.test is None else self.test.absolute()
        settings = {
            name: str(Path(value).absolute()) if str(value).endswith(WEIGHTS_SUFFIX) else value
            for name, value in self.settings.items()
        }
        return replace(self, run=self.run.absolute(), train=self.train.absolute(), test=test, settings=settings)

    def is_done(self) -> bool:
        """Return whether a finished folder with the same key exists, every file as it was written."""
        return key_of(self.folder) == self.key


def do_task(task: FoldTask) -> None:
    """Fit one learner on one fold, predict its own and the test events, and store all of it atomically."""
    with atomic_folder(task.folder, overwrite=True) as folder, limited_threads(task.threads):
        with timed("train", task.name, task.fold) as cost:
            train, valid, held_out = split_rows(task)
            learner, ended_early = _fitted(task, _labelled(task, train), _labelled(task, valid))
            learner.save(folder)
            if learner.losses_:
                write_json(folder / HISTORY_FILE, {"valid_log_loss": learner.losses_})
            truth = task.teaches_truth
            write_npz(folder / HELD_OUT_FILE, **_predicted(task, learner, task.train, held_out, truth=truth))
            predict_unseen(task, learner, folder)
        record = _task_record(task, learner, cost, len(train), len(valid)) | {"ended_early": ended_early}
        write_json(folder / TASK_FILE, record)
        write_task_checksums(folder)
    shutil.rmtree(task.checkpoint, ignore_errors=True)


def predict_unseen(task: FoldTask, learner: Learner, folder: Path) -> None:
    """Write what a learner says of the outer holdout and of the test events, as far as there are any."""
    outer = outer_rows(task)
    if len(outer):
        write_npz(folder / OUTER_FILE, **_predicted(task, learner, task.train, outer, truth=task.teaches_truth))
    if task.test is not None:
        every = np.arange(len(task.test))
        write_npz(folder / TEST_FILE, **_predicted(task, learner, task.test, every, truth=task.teaches_truth))


class TimeLimitReached(Exception):
    """The run's time limit was reached before a fit was finished."""


class LearningTime:
    """What a learner calls while it learns, and what ends it at that time with the best so far."""

    def __init__(self, when: float) -> None:
        self.when, self.reached = when, False

    def __call__(self, done: float, total: float, note: str = "") -> None:
        """Raise :class:`Enough` when the time has come."""
        if time.time() >= self.when:
            self.reached = True
            raise Enough


def _fitted(task: FoldTask, train: Batch, valid: Batch) -> tuple[Learner, bool]:
    """Fit from where a killed fit of the same task stopped, or from the start if that state cannot be used.

    Returns
    -------
    The learner, and whether the time limit ended its fit.
    """
    now = time.time()
    ends = None if task.deadline is None else LearningTime(now + task.share * max(0.0, task.deadline - now))
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
            learner = learner.fit(train, valid, seed=task.fit_seed, device=task.device, progress=ends)
            return learner, ends is not None and ends.reached
        except CheckpointError as error:
            refused = error
            shutil.rmtree(task.checkpoint, ignore_errors=True)
    raise refused


def _task_record(task: FoldTask, learner: Learner, cost: Cost, n_train: int, n_valid: int) -> dict[str, Any]:
    return {
        "key": task.key,
        "learner": task.name,
        "fold": task.fold,
        "columns": list(task.columns),
        "n_train": n_train,
        "n_valid": n_valid,
        "n_parameters": learner.n_parameters,
        "importances": learner.importances(),
        "cost": cost.as_json(),
    }


def split_rows(task: FoldTask) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows to learn from, to stop early by, and to predict.

    Predicted and early-stopping rows are of the kind that predictions are scored on; training rows also of others,
    unless their weight is 0. Where a learner is given only a part of the rows, or looks at a part only, those of the
    kind come first.
    """
    folds = open_npy(task.run / FOLDS_FILE)[task.fold // task.n_folds]
    in_evaluation = np.asarray(open_npy(task.run / IN_EVALUATION_FILE))
    held_out = np.flatnonzero((folds == task.fold % task.n_folds) & in_evaluation)
    outside = (folds != task.fold % task.n_folds) & (folds >= 0)
    usable = np.flatnonzero(outside & (in_evaluation if task.off_cut_weight == 0 else True))
    labels = task.train.labels()
    stop = early_stopping_rows(
        usable,
        labels,
        task.valid_fraction,
        seed=task.fit_seed,
        energy=task.train.energy(),
        groups=task.train.groups(),
    )
    train, valid = usable[~stop], usable[stop]
    of_kind = valid[in_evaluation[valid]]
    if len(np.unique(labels[of_kind])) == len(task.classes):
        valid = of_kind
    if task.rows is not None and len(train) > task.rows:
        train = _most_useful(train, in_evaluation, task.rows, task.fit_seed)
        valid = valid[subsampled(len(valid), max(MIN_VALID, round(task.rows * task.valid_fraction)))]
    most = most_events(create(task.spec, task.classes, overrides=task.settings, preset=task.preset))
    if most is not None and len(train) > most:
        # A learner draws evenly from what it is given: it shall not fill its cap with events that do not count.
        train = _most_useful(train, in_evaluation, max(most, int(in_evaluation[train].sum())), task.fit_seed)
    return train, valid, held_out


def _most_useful(rows: np.ndarray, in_evaluation: np.ndarray, n: int, seed: int) -> np.ndarray:
    """Return n of the rows, in their order: a random choice of those under the evaluation cuts, then of the others."""
    mixed = np.random.default_rng(seed).permutation(rows)
    return np.sort(mixed[np.argsort(~in_evaluation[mixed], kind="stable")][:n])


def outer_rows(task: FoldTask) -> np.ndarray:
    """Return the rows of the outer holdout that are scored, (n,): no fit of any fold learns from them."""
    folds = open_npy(task.run / FOLDS_FILE)[0]
    return np.flatnonzero((folds < 0) & np.asarray(open_npy(task.run / IN_EVALUATION_FILE)))


def _predicted(
    task: FoldTask, learner: Learner, events: Events, rows: np.ndarray, *, truth: bool
) -> dict[str, np.ndarray]:
    """Return what a fit's file holds of some events: posteriors, and estimates of true quantities if it has any."""
    grids, deadline = task.spec.needs_grid, task.deadline if task.gives_up else None
    result = {"log_proba": predict(learner, events, rows, task.columns, grids=grids, deadline=deadline)}
    if truth:
        result[TRUTH] = estimate(learner, events, rows, task.columns)
    return result


def _labelled(task: FoldTask, rows: np.ndarray) -> Batch:
    batch = task.train.batch(rows, task.columns, grids=task.spec.needs_grid)
    every = task.train.weights()
    weights = None if every is None else every[rows]
    if task.off_cut_weight < 1.0:
        in_evaluation = np.asarray(open_npy(task.run / IN_EVALUATION_FILE))[rows]
        share = np.where(in_evaluation, 1.0, task.off_cut_weight)
        weights = share if weights is None else share * weights
    targets = task.train.targets(rows) if task.teaches_truth else None
    return replace(batch, labels=task.train.labels()[rows], weights=weights, targets=targets)


def predict(
    learner: Learner,
    events: Events,
    rows: np.ndarray,
    columns: tuple[str, ...],
    *,
    grids: bool,
    deadline: float | None = None,
) -> np.ndarray:
    """Return a learner's (n, C) float64 log-probabilities of some events, in pieces of bounded memory.

    Raises
    ------
    TimeLimitReached
        If ``deadline`` is reached before a piece.
    ValueError
        If the learner returns something else than finite log-probabilities.
    """
    result = np.empty((len(rows), len(learner.classes)))
    for piece in pieces(len(rows)):
        if deadline is not None and time.time() >= deadline:
            raise TimeLimitReached("the time limit of the run was reached")
        result[piece] = checked_log_proba(learner, events.batch(rows[piece], columns, grids=grids))
    return result


def estimate(learner: Learner, events: Events, rows: np.ndarray, columns: tuple[str, ...]) -> np.ndarray:
    """Return a learner's (n, T, 2) estimates of true quantities and their errors, in pieces of bounded memory."""
    entries = [learner.predict_targets(events.batch(rows[piece], columns, grids=False)) for piece in pieces(len(rows))]
    return np.concatenate(entries) if entries else learner.predict_targets(events.batch(rows, columns, grids=False))


def checked_log_proba(learner: Learner, batch: Batch) -> np.ndarray:
    """Return a learner's (n, C) float64 log-probabilities, as :func:`check_log_proba` lets them pass."""
    return check_log_proba(learner.predict_log_proba(batch), learner, batch)


def check_log_proba(log_proba: np.ndarray, learner: Learner, batch: Batch) -> np.ndarray:
    """Return a learner's log-probabilities as (n, C) float64.

    Raises
    ------
    ValueError
        If they are something else than finite log-probabilities.
    """
    result = np.asarray(log_proba, dtype=np.float64)
    if result.shape != (len(batch), len(learner.classes)):
        raise ValueError(f"{len(batch)} events got log-probabilities of shape {result.shape}")
    if not np.isfinite(result).all():
        first = int(np.argwhere(~np.isfinite(result))[0, 0])
        event = int(batch.index[first])
        raise ValueError(f"log-probability of event {event} is {result[first].tolist()}, expected finite")
    return result
