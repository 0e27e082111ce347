"""Fits done side by side, in processes of this machine or by the workers of a Dask cluster."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np

from showerstack.features.device import free_gpu_memory
from showerstack.runtime.cluster import alone, connected, on_cluster, refuse_other_code, refuse_unshared
from showerstack.runtime.context import NO_VALUES, Progress
from showerstack.runtime.cost import Clock
from showerstack.runtime.errors import GPU_FAILED, Changed, InputError, remedy_of
from showerstack.runtime.logs import Caller, captured, replay
from showerstack.runtime.processes import Workers, by_device
from showerstack.runtime.resources import cores, memory_bytes
from showerstack.showers.schema import Task
from showerstack.stacking.config import RunConfig
from showerstack.stacking.events import Events
from showerstack.stacking.training.budget import TimeLimitReached
from showerstack.stacking.training.fits import Abandoned, FoldTask, do_task

LOG = logging.getLogger(__name__)


LIBRARIES_BYTES, TABLE_COPIES = 700 << 20, 3
"""Memory of a process that fits learners without events, and copies of its table that it holds at most
(``benchmarks/speed/fit_memory.py``)."""
LARGE_BYTES = 32 << 20
"""Copies of a table of so much memory are large: of 30,000 showers with the ninety features of most learners."""


@dataclass(frozen=True)
class Processes:
    """How many processes are at work at once, by what the configuration asks for and the machine has."""

    config: RunConfig
    devices: Mapping[str, str]
    """``"cpu"`` or ``"cuda"`` by learner."""
    bytes_each: int
    """Memory that a process takes at most while it fits a learner."""

    @classmethod
    def of(cls, config: RunConfig, task: Task, train: Events, devices: Mapping[str, str]) -> Self:
        """Return the processes that fit the learners of a run."""
        cells = max(
            min(len(train), config.rows_of(spec.name)) * len(train.columns_for(spec))
            for spec in config.learner_specs(task)
        )
        return cls(config, devices, LIBRARIES_BYTES + TABLE_COPIES * cells * np.dtype(np.float32).itemsize)

    @property
    def number(self) -> int:
        """As many as the configuration names, else as there are cores and memory for."""
        return self.config.workers or max(1, min(cores(), memory_bytes() // self.bytes_each))

    @property
    def by_learner(self) -> bool:
        """Whether each does the fits of one learner: a new one takes a second, but what libraries keep grows with the
        table."""
        return self.bytes_each - LIBRARIES_BYTES > LARGE_BYTES

    @property
    def by_device(self) -> dict[str, int]:
        """One trains on the GPU, the others beside it. A cluster has its own."""
        used = self.devices.values()
        if "cuda" not in used or self.config.scheduler:
            return {"cpu": self.number}
        if "cpu" in used and self.number > 1:
            return {"cuda": 1, "cpu": self.number - 1}
        return {"cuda": 1}

    def remarks(self) -> list[str]:
        """Return a remark where all processes together may take more memory than there is."""
        needed, available = self.number * self.bytes_each, memory_bytes()
        if self.config.scheduler or needed <= available:
            return []
        processes = f"{self.number} processes" if self.number > 1 else "a process"
        remedy = f"give --workers {max(1, available // self.bytes_each)}, or " if self.number > 1 else "give "
        return [
            f"{processes} may take {needed / 1e9:.1f} GB of memory, and this job was given {available / 1e9:.1f} GB: "
            f"{remedy}fewer training events a fit (rows, in a file for --config)"
        ]


class Attempt(NamedTuple):
    """A task that was done, or failed."""

    learner: str
    fold: int
    error: str
    """Empty where it was done."""
    remedy: str | None
    """Where the error is the machine's, not the learner's."""
    records: list[logging.LogRecord]
    """What was logged."""
    log_loss: float | None = None
    """Of the fold's own events, where it was fitted now."""


def run_tasks(
    tasks: Sequence[FoldTask],
    *,
    workers: Workers,
    by_learner: bool = False,
    scheduler: str | None = None,
    progress: Progress | None = None,
) -> list[Attempt]:
    """Do all tasks that are not done yet, in parallel processes.

    Parameters
    ----------
    workers
        Of this machine, each of which does the tasks of its device. Those of a device without workers go to the first.
    by_learner
        Let a process do the fits of one learner alone.
    scheduler
        Address of a Dask scheduler, whose workers do all tasks; None for processes of this machine.
    progress
        Called with fits done, all of them, those at work, and of a fit that has ended the log-loss of its fold.

    Returns
    -------
    The failed attempts: one learner cannot stop the others.

    Raises
    ------
    InputError
        If a fit ended for a reason that is not its learner's (no memory, no space on disk, a lost worker): what is
        done is kept, and the rest is tried again at the next start.
    """
    for late in {task.run.late(task.name) for task in tasks}:
        late.unlink(missing_ok=True)  # an earlier start had less time
    waiting = [task for task in tasks if not task.is_done()]
    failures: list[Attempt] = []
    left: dict[tuple[str, int], str] = {}
    try:
        with _attempts(scheduler, waiting, workers, by_learner) as (parts, at_once, attempts):
            left |= {(task.name, task.fold): device for device, part in parts.items() for task in part}

            def report(note: str = "", values: Mapping[str, float] = NO_VALUES) -> None:
                if progress:
                    notes = [one for one in (note, _running(left, at_once)) if one]
                    progress(len(tasks) - len(left), len(tasks), ", ".join(notes), values)

            report()
            for attempt in attempts:
                name = f"{attempt.learner} fold {attempt.fold}"
                replay(attempt.records)
                _refuse_changed(tasks)
                if attempt.remedy:
                    raise InputError(
                        f"{name} could not be trained: {attempt.error}; finished fits are kept: {attempt.remedy} and "
                        "start the same command again"
                    )
                left.pop((attempt.learner, attempt.fold), None)
                if attempt.error:
                    failures.append(attempt)
                if attempt.log_loss is not None:
                    report(f"{name} log-loss {attempt.log_loss:.4f}", {"log_loss": attempt.log_loss})
                else:
                    report(f"{name} FAILED" if attempt.error else "")
    except Changed:
        # Whatever was not finished when the data were last seen to be the same.
        for name, fold in left:
            shutil.rmtree(tasks[0].run.fit(name, fold).path, ignore_errors=True)
        tasks[0].run.remove_checkpoints()
        raise
    for run in {task.run for task in tasks}:
        run.remove_checkpoints()
    return sorted(failures, key=lambda failure: (failure.learner, failure.fold))


def _refuse_changed(tasks: Sequence[FoldTask]) -> None:
    for events in (tasks[0].train, tasks[0].test):
        if events is not None:
            events.refuse_changed()


def _running(left: Mapping[tuple[str, int], str], workers: Mapping[str, int]) -> str:
    """Return which tasks are at work: those of a device begin in their order, so many at once."""
    running: list[str] = []
    for device, n in workers.items():
        running += [f"{name} fold {fold}" for (name, fold), where in left.items() if where == device][:n]
    more = f" and {len(running) - 3} more" if len(running) > 3 else ""
    return f"running {', '.join(running[:3])}{more}" if running else ""


@contextmanager
def _attempts(
    scheduler: str | None, waiting: Sequence[FoldTask], workers: Workers, by_learner: bool
) -> Iterator[tuple[dict[str, list[FoldTask]], dict[str, int], Iterator[Attempt]]]:
    """Give tasks to the processes of every device, or all to a cluster.

    Yields tasks and numbers of workers by device, and the attempts as they end. Left with an error, no worker goes on
    to the next task while the error is reported.
    """
    caller = Caller.here()
    if scheduler is not None and waiting:
        with connected(scheduler) as client:
            # Workers have working directories of their own.
            absolute = [task.absolute() for task in waiting]
            events = [data for task in absolute for data in (task.train, task.test) if data is not None]
            places = {*(task.run.folder for task in absolute), *(data.location for data in events)}
            refuse_other_code(client)
            refuse_unshared(client, sorted(place for place in places if place is not None))
            at_once = min(len(client.ncores()), len(waiting))
            with closing(on_cluster(_attempt, [(task, caller, Clock.here()) for task in absolute], client)) as attempts:
                yield {"cluster": list(waiting)}, {"cluster": at_once}, attempts
        return
    given = by_device(waiting, workers.number, lambda task: task.device)
    parts = {device: part for device, part in given.items() if part}
    at_work = {device: min(workers.number[device], len(part)) for device, part in parts.items()}
    # A process that is used again stays in the folder in which it began.
    arguments = {device: [(_attempt, task.absolute(), caller) for task in part] for device, part in parts.items()}
    kind_of = (lambda one: one[1].name) if by_learner else None
    try:
        yield parts, at_work, workers.each(alone, arguments, kind_of=kind_of, spoilt=_gpu_failed)
    except BaseException:
        workers.end()
        raise


def _gpu_failed(attempt: Attempt) -> bool:
    return attempt.remedy == GPU_FAILED


def _attempt(task: FoldTask, caller: Caller, clock: Clock | None = None) -> Attempt:
    task = replace(task, time=task.time.by(clock))
    with captured(caller) as records:
        log_loss, error, remedy = _outcome_of(task)
    return Attempt(task.name, task.fold, error, remedy, records, log_loss)


def _outcome_of(task: FoldTask) -> tuple[float | None, str, str | None]:
    """Do a task; return the log-loss of its fold, its error, empty where it was done, and the remedy."""
    # An error of the learner is its failure, in manifest and report. One of the machine has a remedy, and ends the run.
    try:
        if task.is_done():  # a cluster repeats work whose result was lost with the worker
            return None, "", None
        late = task.run.late(task.name)
        if task.time.is_over(late=late.exists()):
            raise TimeLimitReached("the time limit of the run left too little for it")
        began = time.monotonic()
        try:
            log_loss = do_task(task)
        except Abandoned as error:
            return None, str(error), "give all machines the same run folder, which nobody else writes,"
        except TimeLimitReached:  # the learner's other folds need not begin
            late.parent.mkdir(parents=True, exist_ok=True)
            late.touch()
            raise
        LOG.debug("%s fold %d: fitted in %.1f s", task.name, task.fold, time.monotonic() - began)
        if task.device == "cuda":
            free_gpu_memory()
    except Exception as error:
        line = " ".join(f"{type(error).__name__}: {error}".split())
        if not isinstance(error, TimeLimitReached | Changed):
            LOG.exception("%s fold %d failed: %s", task.name, task.fold, line)
        return None, line, remedy_of(error)
    return log_loss, "", None
