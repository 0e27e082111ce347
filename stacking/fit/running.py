"""Fits of a run at work: in processes of this machine or on a cluster, with what is done and what is left.

How long the rest will take is corrected by what finished tasks really took.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Self

import joblib
import numpy as np

from showerstack.features.device import free_gpu_memory
from showerstack.runtime.context import Progress
from showerstack.runtime.cost import reached
from showerstack.runtime.errors import GPU_FAILED, InputError, remedy_of
from showerstack.runtime.processes import by_device, in_devices
from showerstack.stacking.fit.cluster import connected, on_cluster, refuse_unshared
from showerstack.stacking.fit.tasks import CHECKPOINTS, FoldTask, TimeLimitReached, do_task
from showerstack.stacking.inputs.events import Events

TRUST = 3.0
"""Weight of what was expected of a learner against what others took, in fits of its own."""
Key = tuple[str, int]
"""Learner and fold."""


class RemainingTime:
    """The tasks of a run that begin in their order, ``workers`` at once.

    Parameters
    ----------
    expected
        Seconds of every task, in the order in which they begin; equal numbers where nothing is known.
    workers
        Tasks at once.
    clock
        Seconds.
    """

    def __init__(
        self, expected: Mapping[Key, float], workers: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._expected, self._workers, self._clock = dict(expected), max(1, workers), clock
        self._begun = dict.fromkeys(list(self._expected)[: self._workers], clock())
        self._took: dict[Key, float] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._expected

    def finished(self, key: Key) -> None:
        """Note that a task has ended: the next one begins."""
        now = self._clock()
        self._took[key] = now - self._begun.pop(key, now)
        following = next((k for k in self._expected if k not in self._took and k not in self._begun), None)
        if following is not None:
            self._begun[following] = now

    def left_s(self) -> float:
        """Return the seconds until the last task ends."""
        now = self._clock()
        free = [max(0.1 * self._guess(key), self._guess(key) - (now - begun)) for key, begun in self._begun.items()]
        free += [0.0] * (self._workers - len(free))
        # In their order, each by whoever is free first: the last task may run alone.
        for key in self._expected:
            if key not in self._took and key not in self._begun:
                free[free.index(min(free))] += self._guess(key)
        return max(free)

    def done_s(self) -> float:
        """Return the seconds of work behind us, in units of which :meth:`left_s` counts."""
        now = self._clock()
        return (sum(self._took.values()) + sum(now - begun for begun in self._begun.values())) / self._workers

    def _guess(self, key: Key) -> float:
        same = [took for (learner, _), took in self._took.items() if learner == key[0]]
        if same:
            return float(np.mean(same))
        if self._took:
            # What other learners took says the less of this one the smaller they are.
            own = self._expected[key]
            known = sum(self._expected[done] for done in self._took)
            return own * (sum(self._took.values()) + TRUST * own) / (known + TRUST * own)
        now = self._clock()
        slower = max((now - begun) / self._expected[running] for running, begun in self._begun.items())
        return self._expected[key] * max(1.0, slower)


REPORT_EVERY_S = 5.0


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
    expected: Mapping[str, float] = MappingProxyType({}),
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
    expected
        By learner, the seconds that one of its tasks is expected to take, where that is known.
    progress
        Called with seconds of work behind us, these and what is left, and what is at work; also between tasks.

    Returns
    -------
    Failures, one per failed task; the errors themselves are text, so that one learner cannot stop the others.

    Raises
    ------
    InputError
        If a fit ended for a reason that is not its learner's (no memory, no space on disk, a lost worker, a GPU that
        failed it twice, the second time in a new process): what is done is kept, and the rest is tried again at the
        next start.
    """
    waiting = [task for task in tasks if not task.is_done()]
    failures = []
    with _workers(scheduler, waiting, pools, threads) as (parts, at_once, outcomes):
        left = {(task.name, task.fold): device for device, part in parts.items() for task in part}
        outlooks = [
            RemainingTime({(task.name, task.fold): expected.get(task.name, 1.0) for task in part}, at_once[device])
            for device, part in parts.items()
        ]
        with _Report(progress, outlooks) as report:
            if waiting:
                report(_running(left, at_once))
            for task_name, fold, error, remedy in outcomes:
                if remedy:
                    raise InputError(
                        f"{task_name} fold {fold} could not be trained: {error}; finished fits are kept: "
                        f"{remedy} and start the same command again"
                    )
                left.pop((task_name, fold), None)
                if error:
                    failures.append(TaskFailure(task_name, fold, error))
                report.finished((task_name, fold))
                failed = f"{task_name} fold {fold} FAILED, " if error else ""
                report(failed + _running(left, at_once))
    for run in {task.run for task in tasks}:
        shutil.rmtree(run / CHECKPOINTS, ignore_errors=True)
    return sorted(failures, key=lambda failure: (failure.learner, failure.fold))


class _Report:
    """Tells how far the tasks are, when one has ended and every few seconds: those of the device that ends last."""

    def __init__(self, progress: Progress | None, outlooks: Sequence[RemainingTime]) -> None:
        self._progress, self._outlooks, self._note = progress, outlooks, ""
        self._lock, self._over = threading.Lock(), threading.Event()

    def __enter__(self) -> Self:
        if self._progress:
            threading.Thread(target=self._tick, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()

    def __call__(self, note: str) -> None:
        """Tell what is at work now."""
        with self._lock:
            self._note = note
            if self._progress and self._outlooks:
                last = max(self._outlooks, key=RemainingTime.left_s)
                done, left = last.done_s(), last.left_s()
                self._progress(done, done + left, note)

    def finished(self, key: tuple[str, int]) -> None:
        """Note that a task has ended."""
        with self._lock:
            for outlook in self._outlooks:
                if key in outlook:
                    outlook.finished(key)

    def _tick(self) -> None:
        while not self._over.wait(REPORT_EVERY_S):
            self(self._note)


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
        if reached(task.deadline, task.expected_s):
            raise TimeLimitReached("the time limit of the run left too little for it")
        do_task(task)
        if task.device == "cuda":
            free_gpu_memory()
    except Exception as error:
        return task.name, task.fold, " ".join(f"{type(error).__name__}: {error}".split()), remedy_of(error)
    return task.name, task.fold, "", None
