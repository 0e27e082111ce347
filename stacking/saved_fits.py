"""Predictions of all saved fits of a run, events in pieces: nothing is read twice, memory does not grow with events.

Each piece is read once for all learners that see the same columns, and goes once through a fit of which both
log-probabilities and true quantities are wanted. Fits are opened in several processes at a time
(:mod:`showerstack.models.isolated`); each keeps the fits it has opened, so that every model file is read once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import joblib
import numpy as np

from showerstack.features.device import gpu_answers
from showerstack.models.base.learner import Batch, Learner
from showerstack.models.base.saving import HEADER_FILE
from showerstack.models.isolated import learners_of
from showerstack.models.registry import predicts_on_gpu
from showerstack.runtime.context import Context, Progress
from showerstack.runtime.files import read_json
from showerstack.stacking.fit.tasks import check_log_proba, checked_log_proba
from showerstack.stacking.inputs.events import Events, pieces
from showerstack.stacking.run.chain import Piece
from showerstack.stacking.run.read import SavedFits

Open = Callable[[Path], Learner]
GPU_READERS = 2
"""Readers at most that use a GPU: each has a context of its own there, some hundred MB; one works while one reads."""
PROCESS_PREDICTIONS = 5_000
"""Predictions of single fits that are worth another process: it first has to import the learners' libraries."""


def predict_fits(events: Events, learners: Sequence[SavedFits], ctx: Context, progress: Progress) -> Iterator[Piece]:
    """Yield the raw log-probabilities of all fits, piece by piece in the order of the events.

    Parameters
    ----------
    events
        Unlabelled events.
    learners
        Which fits of which learners; each piece has (F, n, C) float64 per name, or (F, n, T, 2) of true quantities.
    ctx
        Whether models are opened in this process, in as many threads, instead of limited processes of their own; cores
        to be used at most; numerical threads of each process, as in training.
    progress
        Called with (predictions of single fits done, all of them, what was done last).

    Raises
    ------
    InputError
        If a model file cannot be used.
    """
    every_folder = {folder for learner in learners for folder in learner.folders}
    on_gpu = {folder for folder in every_folder if uses_gpu(folder)}
    n_jobs, every = len(every_folder), list(pieces(len(events)))
    with ExitStack() as stack:
        worth = -(-n_jobs * len(events) // PROCESS_PREDICTIONS)
        workers = (ctx.workers or joblib.cpu_count()) // ctx.threads
        n_openers = max(1, min(workers, n_jobs * len(every), worth))
        if on_gpu == every_folder:
            n_openers = min(n_openers, GPU_READERS)
        openers = [stack.enter_context(learners_of(trusted=ctx.trusted, threads=ctx.threads)) for _ in range(n_openers)]
        pool = stack.enter_context(ThreadPoolExecutor(n_openers))
        crew = [_Reader(opened, on_gpu=k < GPU_READERS) for k, opened in enumerate(openers)]
        tally = _Tally(n_jobs * len(events), progress)
        # Few fits leave readers idle unless they work on several pieces; the next ones are read while they do.
        at_once = -(-n_openers // n_jobs)
        under_way: tuple[list[_Work], list[Future[None]]] | None = None
        for first in range(0, len(every), at_once):
            works = [_Work.on(events, piece, learners, on_gpu) for piece in every[first : first + at_once]]
            jobs = _Jobs([job for work in works for job in work.jobs])
            finished = _finished(under_way)
            under_way = works, [pool.submit(_predict, reader, jobs, tally) for reader in crew]
            yield from finished
        yield from _finished(under_way)


def _finished(under_way: tuple[list[_Work], list[Future[None]]] | None) -> list[Piece]:
    if under_way is None:
        return []
    works, outcomes = under_way
    for outcome in outcomes:
        outcome.result()
    return [
        (
            work.piece,
            {name: np.stack([one for one in fits if one is not None]) for name, fits in work.results.items()},
        )
        for work in works
    ]


def _predict(reader: _Reader, jobs: _Jobs, tally: _Tally) -> None:
    while job := jobs.next_for(reader):
        learner = reader.learner(job.folder)
        for truth, result in _asked(learner, job).items():
            job.results[truth][job.fold] = result
        tally.add(len(job.batch), f"{job.name} fold {job.fold}")


def _asked(learner: Learner, job: _Job) -> dict[bool, np.ndarray]:
    """Return what is asked for: estimates of true quantities (true), log-probabilities (false), both in one pass."""
    if len(job.results) == 2:
        log_proba, targets = learner.predict_both(job.batch)
        return {False: check_log_proba(log_proba, learner, job.batch), True: targets}
    if True in job.results:
        return {True: learner.predict_targets(job.batch)}
    return {False: checked_log_proba(learner, job.batch)}


@dataclass(frozen=True, eq=False)
class _Job:
    """One fit's prediction of one piece."""

    name: str
    fold: int
    folder: Path
    batch: Batch
    results: dict[bool, list[np.ndarray | None]] = field(default_factory=dict)
    """What is asked for, as in :func:`_asked`: each list gets the outcome at the place of the fold."""
    on_gpu: bool = False


@dataclass(frozen=True)
class _Work:
    """One piece of the events."""

    piece: slice
    results: dict[str, list[np.ndarray | None]]
    jobs: list[_Job]

    @classmethod
    def on(cls, events: Events, piece: slice, learners: Sequence[SavedFits], on_gpu: Set[Path]) -> _Work:
        """Read a piece once for all learners that see the same columns."""
        rows = np.arange(piece.start, piece.stop)
        content: dict[str, list[np.ndarray | None]] = {one.name: [None] * len(one.folders) for one in learners}
        jobs: dict[Path, _Job] = {}
        for columns, needs_grid in dict.fromkeys((one.columns, one.needs_grid) for one in learners):
            batch = events.batch(rows, columns, grids=needs_grid)
            for one in learners:
                if (one.columns, one.needs_grid) == (columns, needs_grid):
                    for fold, path in enumerate(one.folders):
                        job = jobs.setdefault(path, _Job(one.name, fold, path, batch, on_gpu=path in on_gpu))
                        job.results[one.truth] = content[one.name]
        return cls(piece, content, list(jobs.values()))


@dataclass
class _Reader:
    """What opens saved fits in one process, and those it has opened."""

    opened: Open
    on_gpu: bool = True
    """Whether it may use a GPU."""
    open_fits: dict[Path, Learner] = field(default_factory=dict)

    def learner(self, folder: Path) -> Learner:
        if folder not in self.open_fits:
            self.open_fits[folder] = self.opened(folder)
        return self.open_fits[folder]


class _Jobs:
    """What is left to do of some pieces; a reader first gets the fits that it has opened."""

    def __init__(self, jobs: list[_Job]) -> None:
        self._jobs = jobs
        self._lock = threading.Lock()

    def next_for(self, reader: _Reader) -> _Job | None:
        with self._lock:
            left = [job for job in self._jobs if reader.on_gpu or not job.on_gpu]
            known = next((job for job in left if job.folder in reader.open_fits), None)
            job = known or next(iter(left), None)
            if job:
                self._jobs.remove(job)
            return job


def uses_gpu(folder: Path) -> bool:
    """Return whether a saved fit was trained on a GPU and predicts on one, because one answers."""
    return gpu_answers() and any(predicts_on_gpu(read_json(file)) for file in folder.rglob(HEADER_FILE))


class _Tally:
    """Progress of several threads."""

    def __init__(self, total: int, progress: Progress) -> None:
        self._done, self._total, self._progress = 0, total, progress
        self._lock = threading.Lock()

    def add(self, n_done: int, note: str) -> None:
        with self._lock:
            self._done += n_done
            self._progress(self._done, self._total, note)
