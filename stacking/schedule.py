"""Which fits are done in which order and time, in processes of this machine or on the workers of a Dask cluster.

A cluster's workers see this machine's files under the same paths. They are not reached through joblib's backend: there,
a task whose worker has ended never ends.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from showerstack.features.device import free_gpu_memory
from showerstack.models.base.spec import LearnerSpec
from showerstack.runtime.context import Progress
from showerstack.runtime.cost import seconds_of
from showerstack.runtime.errors import GPU_FAILED, InputError, need, remedy_of
from showerstack.runtime.files import atomic_path, hash_json
from showerstack.runtime.logs import LOG as ALL_LOGS
from showerstack.runtime.logs import captured, replay
from showerstack.runtime.processes import by_device, in_devices
from showerstack.runtime.versions import STACKING_VERSION
from showerstack.stacking.events import Events
from showerstack.stacking.fits import CHECKPOINTS, LATE_FILE, FoldTask, TimeLimitReached, do_task
from showerstack.stacking.folds import (
    FOLDS_FILE,
    IN_EVALUATION_FILE,
    Folds,
    assign_folds,
    evaluation_events,
    outer_holdout,
)
from showerstack.stacking.job import Job

LOG = logging.getLogger(__name__)


def make_folds(job: Job) -> Folds:
    """Set the outer holdout apart, assign folds to the others, and write both where the tasks read them.

    Events that cannot be used are in no fold and not scored, so nothing is trained or measured on them.
    """
    labels, energy, groups = job.train.labels(), job.train.energy(), job.train.groups()
    usable = job.train.usable()
    passes = job.train.passes_evaluation_cuts()
    in_evaluation, remark = evaluation_events(passes, labels, job.task.n_classes, usable)
    config = job.config
    outer, no_holdout = outer_holdout(
        in_evaluation,
        labels,
        config.holdout,
        seed=config.seed,
        energy=energy,
        groups=groups,
        least=config.least_held_out,
    )
    rest = np.flatnonzero(~outer if usable is None else ~outer & usable)
    own = job.train.folds()
    partitions = np.full((config.repeats, len(labels)), -1, dtype=np.int8)
    if own is not None:
        partitions[:] = own
    for repeat in range(0 if own is not None else config.repeats):
        partitions[repeat, rest] = assign_folds(
            labels[rest],
            config.n_folds,
            seed=config.seed + 1_000_003 * repeat,
            energy=None if energy is None else energy[rest],
            groups=None if groups is None else groups[rest],
            classes=job.task.classes,
        )
    for name, array in ((FOLDS_FILE, partitions), (IN_EVALUATION_FILE, in_evaluation)):
        with atomic_path(job.config.run / name) as temporary, temporary.open("wb") as file:
            np.save(file, array, allow_pickle=False)
    remarks = tuple(filter(None, (remark, no_holdout)))
    return Folds(partitions, in_evaluation, labels, job.train.weights(), groups, remarks)


def fold_tasks(job: Job) -> list[FoldTask]:
    """Return every (learner, fold) of the run."""
    config = job.config
    # A fit does not depend on how often the folds are repeated: more repetitions keep those that are there.
    fits_hash = hash_json({name: value for name, value in job.fits_identity.items() if name != "repeats"})
    # Networks on grids take longest: they go first, so that no worker is left alone with one at the end.
    specs = sorted(config.learner_specs(job.task), key=worth if job.ends else lambda spec: not spec.needs_grid)
    n_fits = config.n_folds * config.repeats
    deadline = None if job.ends is None else job.ends - FOLLOWS_SHARE * seconds_of(config.time_limit or "")
    ships = next((spec.name for spec in reversed(specs) if not spec.needs_grid), specs[-1].name)
    return [
        FoldTask(
            run=config.run,
            spec=spec,
            fold=fold,
            n_folds=config.n_folds,
            train=job.train,
            test=job.test,
            columns=job.train.columns_for(spec),
            classes=job.task.classes,
            preset=config.preset,
            settings=config.settings_of(spec.name),
            seed=config.seed,
            device=job.devices[spec.name],
            threads=config.threads,
            valid_fraction=config.valid_fraction,
            off_cut_weight=config.off_cut_weight,
            rows=config.rows_of(spec.name),
            deadline=deadline,
            share=share_of_time(fold, n_fits, sum(job.pools.values()), last=spec is specs[-1]),
            gives_up=spec.name != ships,
            context_hash=hash_json([fits_hash, STACKING_VERSION, _as_registered(spec, config.preset)]),
        )
        for spec in specs
        for fold in range(n_fits)
    ]


WORTH = ("pretrained", "mlp", "catboost", "xgboost", "lightgbm")
"""Learners in the order in which a time limit begins them; others follow, networks on grids last."""
LIMITED_FOLDS = 3
"""Folds at most under a time limit."""
FOLLOWS_SHARE = 0.2
"""Share of a time limit that is kept for what follows the fits: pool, calibration, predictions, scores, report."""
LEARNER_SHARE, FIT_SHARE = 0.5, 0.75
"""Share of the time left that a learner may take, except the last; and of it the share for learning, not predicting."""


def worth(spec: LearnerSpec) -> tuple[int, bool]:
    """Return what orders learners under a time limit."""
    name = spec.name.rpartition(".")[2]
    return (WORTH.index(name) if name in WORTH else len(WORTH), spec.needs_grid)


def share_of_time(fold: int, n_fits: int, workers: int, *, last: bool) -> float:
    """Return the share of the time left, when a fit begins, that it may learn for.

    A learner's fits go in rounds of as many as there are workers; a round leaves the same time to each that follows.
    """
    rounds_left = -(-n_fits // workers) - fold // workers
    return FIT_SHARE * (1.0 if last else LEARNER_SHARE) / max(1, rounds_left)


def _as_registered(spec: LearnerSpec, preset: str) -> list[Any]:
    return [spec.learner, spec.version, spec.features, spec.settings_for(preset)]


ATTEMPTS = 3
"""How often work is given out whose worker ends; each time Dask tries as often as its ``allowed-failures`` allows."""
_ONE_AT_A_TIME = threading.Lock()


@contextmanager
def connected(scheduler: str) -> Iterator[Any]:
    """Connect to the scheduler at an address (``tcp://host:port``); yields Dask's client.

    Raises
    ------
    InputError
        If Dask is not installed, no scheduler answers, or it has no workers.
    """
    need("cluster", what="option scheduler")
    from distributed import Client

    try:
        client = Client(scheduler, timeout=5)
    except (OSError, TimeoutError, ValueError) as error:
        raise InputError(f"option scheduler: no Dask scheduler answers at {scheduler}: {error}") from None
    with client:
        if not client.ncores():
            raise InputError(f"option scheduler: {scheduler} has no workers: start some (dask worker {scheduler})")
        yield client


def refuse_unshared(client: Any, paths: Iterable[Path]) -> None:
    """Refuse a cluster that does not share the file system.

    Raises
    ------
    InputError
        If a worker does not see one of the paths; both are named.
    """
    for worker, missing in sorted(client.run(_missing, [str(path) for path in paths]).items()):
        if missing:
            raise InputError(
                f"option scheduler: the worker {worker} does not see {missing[0]}: "
                "a cluster must have the same files under the same paths on all its machines"
            )


def _missing(paths: list[str]) -> list[str]:
    return [path for path in paths if not Path(path).exists()]


def on_cluster(
    function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], client: Any
) -> Generator[Any, None, None]:
    """Yield ``function(*one)`` of each tuple as they finish; what was given out first is begun first.

    A worker process does one at a time, whatever number of threads it has: libraries keep random states and numbers of
    threads for the whole process, and fits side by side in it would not repeat.

    Raises
    ------
    InputError
        If the workers that get the same tuple end :data:`ATTEMPTS` times, or the scheduler is lost.
    """
    from distributed import KilledWorker, as_completed

    at_work = {client.submit(_alone, function, *one, pure=False): (one, 1) for one in arguments}
    ended = as_completed(list(at_work))
    try:
        for future in ended:
            one, attempt = at_work.pop(future)
            try:
                result = future.result()
            except KilledWorker as error:
                if attempt == ATTEMPTS:
                    raise InputError(
                        f"the cluster's workers ended {attempt} times at the same fit, the last at "
                        f"{getattr(error.last_worker, 'address', 'an unknown address')} (killed, or out of memory): "
                        "finished fits are kept; start the same command again, with more memory a worker if it is short"
                    ) from None
                again = client.submit(_alone, function, *one, pure=False)
                at_work[again] = (one, attempt + 1)
                ended.add(again)
                continue
            yield result
    finally:
        client.cancel(list(at_work))


def _alone(function: Callable[..., Any], *arguments: Any) -> Any:
    with _ONE_AT_A_TIME:
        return function(*arguments)


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
        for task_name, fold, error, remedy, records in outcomes:
            replay(records)
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
Attempted = tuple[str, int, str, str | None, list[logging.LogRecord]]
"""Learner, fold, the error of a failed task, what to do where that says nothing about the learner, what was logged."""


@contextmanager
def _workers(
    scheduler: str | None, waiting: Sequence[FoldTask], pools: Mapping[str, int], threads: int
) -> Iterator[tuple[Parts, dict[str, int], Iterator[Attempted]]]:
    """Give tasks to the processes of every device, or all to a cluster; yields both by device, and outcomes.

    Left with an error, no worker goes on to the next task while the error is told.
    """
    level = ALL_LOGS.getEffectiveLevel()
    if scheduler is not None and waiting:
        with connected(scheduler) as client:
            # Workers have working directories of their own.
            there = [task.absolute() for task in waiting]
            places = (place for task in there for place in (task.run, task.train.location, _location(task.test)))
            refuse_unshared(client, sorted({place for place in places if place is not None}))
            at_once = min(len(client.ncores()), len(waiting))
            with closing(on_cluster(_attempt, [(task, level) for task in there], client)) as outcomes:
                yield {"cluster": list(waiting)}, {"cluster": at_once}, outcomes
        return
    parts = {device: part for device, part in by_device(waiting, pools, lambda task: task.device).items() if part}
    processes = {device: min(pools[device], len(part)) for device, part in parts.items()}
    # Processes that are used again stay in the folder in which they began.
    attempts = {device: [(task.absolute(), level) for task in part] for device, part in parts.items()}
    work = in_devices(_attempt, attempts, processes, threads=threads, spoilt=_gpu_failed)
    with local_processes(threads), closing(work) as outcomes:
        yield parts, processes, outcomes


def _location(events: Events | None) -> Path | None:
    return None if events is None else events.location


@contextmanager
def local_processes(threads: int) -> Iterator[None]:
    """Let :func:`showerstack.runtime.processes.in_processes` work in processes of this machine with so many threads
    each."""
    import joblib

    with joblib.parallel_config(backend="loky", inner_max_num_threads=threads):
        yield


def _gpu_failed(outcome: Attempted) -> bool:
    return outcome[3] == GPU_FAILED


def _attempt(task: FoldTask, level: int) -> Attempted:
    with captured(level) as records:
        error, remedy = _error_of(task)
    return task.name, task.fold, error, remedy, records


def _error_of(task: FoldTask) -> tuple[str, str | None]:
    # A learner's error is this learner's failure: it goes into the manifest and the report. One of the machine is not.
    try:
        if task.is_done():  # a cluster repeats work whose result was lost with the worker
            return "", None
        late = task.run / CHECKPOINTS / task.name / LATE_FILE
        if task.gives_up and task.deadline is not None and (late.exists() or time.time() >= task.deadline):
            raise TimeLimitReached("the time limit of the run left too little for it")
        began = time.monotonic()
        try:
            do_task(task)
        except TimeLimitReached:  # the learner's other folds need not begin
            late.parent.mkdir(parents=True, exist_ok=True)
            late.touch()
            raise
        LOG.debug("%s fold %d: fitted in %.1f s", task.name, task.fold, time.monotonic() - began)
        if task.device == "cuda":
            free_gpu_memory()
    except Exception as error:
        line = " ".join(f"{type(error).__name__}: {error}".split())
        if not isinstance(error, TimeLimitReached):
            LOG.exception("%s fold %d failed: %s", task.name, task.fold, line)
        return line, remedy_of(error)
    return "", None
