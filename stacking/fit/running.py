"""Fits of a run at work: in processes of this machine or on a cluster."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import joblib

from showerstack.features.device import free_gpu_memory
from showerstack.runtime.context import Progress
from showerstack.runtime.errors import GPU_FAILED, InputError, remedy_of
from showerstack.runtime.processes import by_device, in_devices
from showerstack.stacking.fit.cluster import connected, on_cluster, refuse_unshared
from showerstack.stacking.fit.tasks import CHECKPOINTS, LATE_FILE, FoldTask, TimeLimitReached, do_task
from showerstack.stacking.inputs.events import Events


@dataclass(frozen=True)
class TaskFailure:
    """A task that raised: the learner is left out and the run goes on."""

    learner: str
    fold: int
    error: str


def run_tasks(
    tasks: Sequence[FoldTask],
    *,
    pools: Mapping[str, int],
    threads: int,
    scheduler: str | None = None,
    progress: Progress | None = None,
) -> list[TaskFailure]:
    """Do all tasks that are not done yet, in parallel processes.

    Parameters
    ----------
    pools
        Processes at once by device: with more than one, each does the tasks of its device, side by side. A device
        without processes of its own is served by the first.
    scheduler
        Address of a Dask scheduler, whose workers do all tasks; None for processes of this machine.
    progress
        Called with fits done, all of them, and what is at work.

    Returns
    -------
    Failures, one per failed task; the errors themselves are text, so that one learner cannot stop the others.

    Raises
    ------
    InputError
        If a fit ended for a reason that is not its learner's (no memory, no space on disk, a lost worker): what is
        done is kept, and the rest is tried again at the next start.
    """
    for late in {task.run / CHECKPOINTS / task.name / LATE_FILE for task in tasks}:
        late.unlink(missing_ok=True)  # an earlier start had less time
    waiting = [task for task in tasks if not task.is_done()]
    failures: list[TaskFailure] = []
    with _workers(scheduler, waiting, pools, threads) as (parts, at_once, outcomes):
        left = {(task.name, task.fold): device for device, part in parts.items() for task in part}

        def report(note: str = "") -> None:
            if progress:
                progress(len(tasks) - len(left), len(tasks), note + _running(left, at_once))

        report()
        for task_name, fold, error, remedy in outcomes:
            if remedy:
                raise InputError(
                    f"{task_name} fold {fold} could not be trained: {error}; finished fits are kept: "
                    f"{remedy} and start the same command again"
                )
            left.pop((task_name, fold), None)
            if error:
                failures.append(TaskFailure(task_name, fold, error))
            report(f"{task_name} fold {fold} FAILED, " if error else "")
    for run in {task.run for task in tasks}:
        shutil.rmtree(run / CHECKPOINTS, ignore_errors=True)
    return sorted(failures, key=lambda failure: (failure.learner, failure.fold))


def _running(left: Mapping[tuple[str, int], str], workers: Mapping[str, int]) -> str:
    """Return what is at work: the tasks of a device begin in their order, so many at once."""
    now: list[str] = []
    for device, n in workers.items():
        now += [f"{name} fold {fold}" for (name, fold), where in left.items() if where == device][:n]
    return "running " + ", ".join(now[:3]) + (f" and {len(now) - 3} more" if len(now) > 3 else "") if now else ""


Parts = dict[str, list[FoldTask]]
"""Tasks by device."""
Attempted = tuple[str, int, str, str | None]
"""Learner, fold, the error of a failed task, and what to do where that says nothing about the learner."""


@contextmanager
def _workers(
    scheduler: str | None, waiting: Sequence[FoldTask], pools: Mapping[str, int], threads: int
) -> Iterator[tuple[Parts, dict[str, int], Iterator[Attempted]]]:
    """Give tasks to the processes of every device, or all to a cluster; yields both by device, and outcomes.

    Left with an error, no worker goes on to the next task while the error is told.
    """
    if scheduler is not None and waiting:
        with connected(scheduler) as client:
            # Workers have working directories of their own.
            there = [task.absolute() for task in waiting]
            places = (place for task in there for place in (task.run, task.train.location, _location(task.test)))
            refuse_unshared(client, sorted({place for place in places if place is not None}))
            at_once = min(len(client.ncores()), len(waiting))
            with closing(on_cluster(_attempt, [(task,) for task in there], client)) as outcomes:
                yield {"cluster": list(waiting)}, {"cluster": at_once}, outcomes
        return
    parts = {device: part for device, part in by_device(waiting, pools, lambda task: task.device).items() if part}
    processes = {device: min(pools[device], len(part)) for device, part in parts.items()}
    # Processes that are used again stay in the folder in which they began.
    attempts = {device: [(task.absolute(),) for task in part] for device, part in parts.items()}
    work = in_devices(_attempt, attempts, processes, threads=threads, spoilt=_gpu_failed)
    with local_processes(threads), closing(work) as outcomes:
        yield parts, processes, outcomes


def _location(events: Events | None) -> Path | None:
    return None if events is None else events.location


@contextmanager
def local_processes(threads: int) -> Iterator[None]:
    """Let :func:`showerstack.runtime.processes.in_processes` work in processes of this machine with so many threads
    each."""
    with joblib.parallel_config(backend="loky", inner_max_num_threads=threads):
        yield


def _gpu_failed(outcome: Attempted) -> bool:
    return outcome[3] == GPU_FAILED


def _attempt(task: FoldTask) -> Attempted:
    # A learner's error is this learner's failure: it goes into the manifest and the report. One of the machine is not.
    try:
        if task.is_done():  # a cluster repeats work whose result was lost with the worker
            return task.name, task.fold, "", None
        late = task.run / CHECKPOINTS / task.name / LATE_FILE
        if task.gives_up and task.deadline is not None and (late.exists() or time.time() >= task.deadline):
            raise TimeLimitReached("the time limit of the run left too little for it")
        try:
            do_task(task)
        except TimeLimitReached:  # the learner's other folds need not begin
            late.parent.mkdir(parents=True, exist_ok=True)
            late.touch()
            raise
        if task.device == "cuda":
            free_gpu_memory()
    except Exception as error:
        return task.name, task.fold, " ".join(f"{type(error).__name__}: {error}".split()), remedy_of(error)
    return task.name, task.fold, "", None
