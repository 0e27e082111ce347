"""The out-of-fold engine: every learner predicts every event from a fit that has not seen it.

One task is one learner on one fold: fit on the other folds, predict the fold and the test events, save. A task's
folder ``learners/<name>/fold-<k>/`` appears only when the task is complete and carries the key of everything that
went into it; a run that was killed finds the finished ones and does the rest. Tasks carry paths, not arrays, and
run in processes of this machine or on a Dask cluster.
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from threadpoolctl import threadpool_limits

from models.base import Batch, Learner
from models.registry import LearnerSpec, create
from models.saving import CheckpointError
from showers.execution.processes import in_processes
from showers.execution.progress import Progress
from showers.schema import InputError
from showers.storage.files import atomic_folder, hash_json, open_npy, write_json, write_npz
from stacking.events import Events, pieces
from stacking.tasks.causes import is_of_the_machine
from stacking.tasks.finished import HELD_OUT_FILE, OUTER_FILE, TASK_FILE, TEST_FILE, fold_folder, key_of, seal_task
from stacking.tasks.folds import early_stopping_rows
from stacking.tasks.resources import Cost, measured

CHECKPOINTS = "checkpoints"
"""Folder of a run with the state of unfinished fits; gone when all are done."""
FOLDS_FILE = "folds.npy"
JUDGED_FILE = "judged.npy"


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

    def is_done(self) -> bool:
        """Return whether a finished folder with the same key exists, every file as it was written."""
        return key_of(self.folder) == self.key


@dataclass(frozen=True)
class TaskFailure:
    """A task that raised: the learner is left out and the run goes on."""

    learner: str
    fold: int
    error: str


def run_tasks(
    tasks: Sequence[FoldTask],
    *,
    workers: int,
    threads: int,
    scheduler: str | None = None,
    progress: Progress | None = None,
) -> list[TaskFailure]:
    """Do all tasks that are not done yet, in parallel processes.

    Returns
    -------
    Failures, one per failed task; the errors themselves are text, so that one learner cannot stop the others.

    Raises
    ------
    InputError
        If a fit ended for a reason that is not its learner's (no memory, no space on disk, a lost worker): what is
        done is kept, and the rest is tried again at the next start.
    """
    waiting = [task for task in tasks if not task.is_done()]
    done, failures = len(tasks) - len(waiting), []
    wanted = min(workers, max(1, len(waiting)))
    at_work = {(task.name, task.fold): f"{task.name} fold {task.fold}" for task in waiting}
    if progress and waiting:
        progress(done, len(tasks), _running(at_work, wanted))
    with _backend(scheduler, threads):
        outcomes = in_processes(_attempt, [(task,) for task in waiting], workers=wanted, ordered=False)
        for task_name, fold, error, of_the_machine in outcomes:
            if of_the_machine:
                raise InputError(
                    f"{task_name} fold {fold} could not be trained: {error}; finished fits are kept: "
                    "free memory or disk space and start the same command again"
                )
            done += 1
            at_work.pop((task_name, fold), None)
            if error:
                failures.append(TaskFailure(task_name, fold, error))
            if progress:
                failed = f"{task_name} fold {fold} FAILED, " if error else ""
                progress(done, len(tasks), failed + _running(at_work, wanted))
    for run in {task.run for task in tasks}:
        shutil.rmtree(run / CHECKPOINTS, ignore_errors=True)
    return sorted(failures, key=lambda failure: (failure.learner, failure.fold))


def _running(left: Mapping[tuple[str, int], str], workers: int) -> str:
    """Return what is at work: tasks begin in their order, ``workers`` at once."""
    now = list(left.values())[:workers]
    return "running " + ", ".join(now[:3]) + (f" and {len(now) - 3} more" if len(now) > 3 else "") if now else ""


@contextmanager
def _backend(scheduler: str | None, threads: int) -> Iterator[None]:
    if scheduler is None:
        with joblib.parallel_config(backend="loky", inner_max_num_threads=threads):
            yield
        return
    try:
        from distributed import Client
    except ImportError:
        raise InputError(
            "option scheduler needs the package 'distributed': pip install 'showerstack[cluster]'"
        ) from None
    try:
        client = Client(scheduler, timeout=5)
    except (OSError, TimeoutError, ValueError) as error:
        raise InputError(f"option scheduler: no Dask scheduler answers at {scheduler}: {error}") from None
    with client, joblib.parallel_config(backend="dask", client=client):
        yield


def _attempt(task: FoldTask) -> tuple[str, int, str, bool]:
    # A learner's error is this learner's failure: it goes into the manifest and the report. One of the machine is not.
    try:
        do_task(task)
    except Exception as error:
        return task.name, task.fold, " ".join(f"{type(error).__name__}: {error}".split()), is_of_the_machine(error)
    return task.name, task.fold, "", False


def do_task(task: FoldTask) -> None:
    """Fit one learner on one fold, predict its held-out and test events, and store all of it atomically."""
    with atomic_folder(task.folder, overwrite=True) as folder, threadpool_limits(task.threads):
        with measured("train", task.name, task.fold) as cost:
            train, valid, held_out = split_rows(task)
            learner = _fitted(task, _labelled(task, train), _labelled(task, valid))
            learner.save(folder)
            held_out_log_proba = predict(learner, task.train, held_out, task.columns, grids=task.spec.needs_grid)
            write_npz(folder / HELD_OUT_FILE, log_proba=held_out_log_proba)
            outer = outer_rows(task)
            if len(outer):
                apart = predict(learner, task.train, outer, task.columns, grids=task.spec.needs_grid)
                write_npz(folder / OUTER_FILE, log_proba=apart)
            if task.test is not None:
                every = np.arange(len(task.test))
                test = predict(learner, task.test, every, task.columns, grids=task.spec.needs_grid)
                write_npz(folder / TEST_FILE, log_proba=test)
        write_json(folder / TASK_FILE, _task_record(task, learner, cost, len(train), len(valid)))
        seal_task(folder)
    shutil.rmtree(task.checkpoint, ignore_errors=True)


def _fitted(task: FoldTask, train: Batch, valid: Batch) -> Learner:
    """Fit from where a killed fit of the same task stopped, or from the start if that state cannot be used."""
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
            return learner.fit(train, valid, seed=task.fit_seed, device=task.device)
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
        "cost": cost.as_json(),
    }


def split_rows(task: FoldTask) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows to learn from, to stop early by, and to predict (held out).

    Held-out and early-stopping rows are of the kind that predictions are judged on; training rows also of others,
    unless their weight is 0.
    """
    folds = open_npy(task.run / FOLDS_FILE)[task.fold // task.n_folds]
    judged = np.asarray(open_npy(task.run / JUDGED_FILE))
    held_out = np.flatnonzero((folds == task.fold % task.n_folds) & judged)
    outside = (folds != task.fold % task.n_folds) & (folds >= 0)
    usable = np.flatnonzero(outside & (judged if task.off_cut_weight == 0 else True))
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
    of_kind = valid[judged[valid]]
    n_classes = len(task.classes)
    if len(np.unique(labels[of_kind])) == n_classes:
        valid = of_kind
    return train, valid, held_out


def outer_rows(task: FoldTask) -> np.ndarray:
    """Return the rows of the outer holdout that are judged, (n,): no fit of any fold learns from them."""
    folds = open_npy(task.run / FOLDS_FILE)[0]
    return np.flatnonzero((folds < 0) & np.asarray(open_npy(task.run / JUDGED_FILE)))


def _labelled(task: FoldTask, rows: np.ndarray) -> Batch:
    batch = task.train.batch(rows, task.columns, grids=task.spec.needs_grid)
    weights = None
    if task.off_cut_weight < 1.0:
        judged = np.asarray(open_npy(task.run / JUDGED_FILE))[rows]
        weights = np.where(judged, 1.0, task.off_cut_weight)
    return replace(batch, labels=task.train.labels()[rows], weights=weights)


def predict(learner: Learner, events: Events, rows: np.ndarray, columns: tuple[str, ...], *, grids: bool) -> np.ndarray:
    """Return a learner's (n, C) float64 log-probabilities of some events, in pieces of bounded memory.

    Raises
    ------
    ValueError
        If the learner returns something else than finite log-probabilities.
    """
    result = np.empty((len(rows), len(learner.classes)))
    for piece in pieces(len(rows)):
        result[piece] = checked_log_proba(learner, events.batch(rows[piece], columns, grids=grids))
    return result


def checked_log_proba(learner: Learner, batch: Batch) -> np.ndarray:
    """Return a learner's (n, C) float64 log-probabilities.

    Raises
    ------
    ValueError
        If it returns something else than finite log-probabilities.
    """
    result = np.asarray(learner.predict_log_proba(batch), dtype=np.float64)
    if result.shape != (len(batch), len(learner.classes)):
        raise ValueError(f"{len(batch)} events got log-probabilities of shape {result.shape}")
    if not np.isfinite(result).all():
        first = int(np.argwhere(~np.isfinite(result))[0, 0])
        event = int(batch.index[first])
        raise ValueError(f"log-probability of event {event} is {result[first].tolist()}, expected finite")
    return result
