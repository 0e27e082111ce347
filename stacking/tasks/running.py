"""Fits of a run at work: in processes of this machine or on a cluster, with what is done and what is left."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

import joblib

from showers.execution.processes import in_processes
from showers.execution.progress import Progress
from showers.schema import InputError
from stacking.budget.outlook import Outlook
from stacking.tasks.causes import is_of_the_machine
from stacking.tasks.oof import CHECKPOINTS, FoldTask, do_task, watch

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
    workers: int,
    threads: int,
    scheduler: str | None = None,
    expected: Mapping[str, float] = MappingProxyType({}),
    progress: Progress | None = None,
) -> list[TaskFailure]:
    """Do all tasks that are not done yet, in parallel processes.

    Parameters
    ----------
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
        If a fit ended for a reason that is not its learner's (no memory, no space on disk, a lost worker): what is
        done is kept, and the rest is tried again at the next start.
    """
    waiting = [task for task in tasks if not task.is_done()]
    failures = []
    wanted = min(workers, max(1, len(waiting)))
    at_work = {(task.name, task.fold): f"{task.name} fold {task.fold}" for task in waiting}
    outlook = Outlook({key: expected.get(key[0], 1.0) for key in at_work}, wanted)
    with process_backend(scheduler, threads), _Report(progress, outlook) as report:
        if waiting:
            report(_running(at_work, wanted))
        outcomes = in_processes(_attempt, [(task,) for task in waiting], workers=wanted, ordered=False)
        for task_name, fold, error, of_the_machine in outcomes:
            if of_the_machine:
                raise InputError(
                    f"{task_name} fold {fold} could not be trained: {error}; finished fits are kept: "
                    "free memory or disk space and start the same command again"
                )
            at_work.pop((task_name, fold), None)
            if error:
                failures.append(TaskFailure(task_name, fold, error))
            report.finished((task_name, fold))
            failed = f"{task_name} fold {fold} FAILED, " if error else ""
            report(failed + _running(at_work, wanted))
    for run in {task.run for task in tasks}:
        shutil.rmtree(run / CHECKPOINTS, ignore_errors=True)
    return sorted(failures, key=lambda failure: (failure.learner, failure.fold))


class _Report:
    """Tells how far the tasks are, when one has ended and every few seconds."""

    def __init__(self, progress: Progress | None, outlook: Outlook) -> None:
        self._progress, self._outlook, self._note = progress, outlook, ""
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
            if self._progress:
                done, left = self._outlook.done_s(), self._outlook.left_s()
                self._progress(done, done + left, note)

    def finished(self, key: tuple[str, int]) -> None:
        """Note that a task has ended."""
        with self._lock:
            self._outlook.finished(key)

    def _tick(self) -> None:
        while not self._over.wait(REPORT_EVERY_S):
            self(self._note)


def _running(left: Mapping[tuple[str, int], str], workers: int) -> str:
    """Return what is at work: tasks begin in their order, ``workers`` at once."""
    now = list(left.values())[:workers]
    return "running " + ", ".join(now[:3]) + (f" and {len(now) - 3} more" if len(now) > 3 else "") if now else ""


@contextmanager
def process_backend(scheduler: str | None, threads: int) -> Iterator[None]:
    """Let :func:`showers.execution.processes.in_processes` work here, or on a cluster."""
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
        if task.deadline is not None:
            watch(task.deadline)(0, 1)
        do_task(task)
    except Exception as error:
        return task.name, task.fold, " ".join(f"{type(error).__name__}: {error}".split()), is_of_the_machine(error)
    return task.name, task.fold, "", False
