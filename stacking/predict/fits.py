"""Predictions of all saved fits of a run, events in pieces: nothing is read twice, memory does not grow with events.

Each piece is read once for all learners that see the same columns. Fits are opened in several processes at a time
(:mod:`models.isolated`); each keeps the fits it has opened, so that every model file is read once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from models.base import Batch, Learner
from models.isolated import learners_of
from showers.execution.progress import Progress
from stacking.events import Events, pieces
from stacking.predict.chain import Piece
from stacking.tasks.oof import checked_log_proba

Open = Callable[[Path], Learner]


@dataclass(frozen=True)
class SavedFits:
    """All fits of one learner."""

    name: str
    folders: tuple[Path, ...]
    """One per fit."""
    columns: tuple[str, ...]
    """Table columns that it sees."""
    needs_grid: bool


def predict_fits(
    events: Events,
    learners: Sequence[SavedFits],
    *,
    trusted: bool,
    threads: int,
    workers: int,
    progress: Progress,
) -> Iterator[Piece]:
    """Yield the raw log-probabilities of all fits, piece by piece in the order of the events.

    Parameters
    ----------
    events
        Unlabelled events.
    learners
        Which fits of which learners; each piece has (F, n, C) float64 per name.
    trusted
        Open models in this process, one after the other, instead of limited processes of their own.
    threads
        Numerical threads of each process, as in training.
    workers
        Processes at a time.
    progress
        Called with (predictions of single fits done, all of them, what was done last).

    Raises
    ------
    InputError
        If a model file cannot be used.
    """
    n_jobs = sum(len(learner.folders) for learner in learners)
    with ExitStack() as stack:
        n_openers = 1 if trusted else max(1, min(workers, n_jobs))
        openers = [stack.enter_context(learners_of(trusted=trusted, threads=threads)) for _ in range(n_openers)]
        pool = stack.enter_context(ThreadPoolExecutor(n_openers))
        crew = [_Reader(opened) for opened in openers]
        tally = _Tally(n_jobs * len(events), progress)
        for piece in pieces(len(events)):
            rows = np.arange(piece.start, piece.stop)
            found: dict[str, list[np.ndarray | None]] = {one.name: [None] * len(one.folders) for one in learners}
            for columns, needs_grid in dict.fromkeys((one.columns, one.needs_grid) for one in learners):
                like = [one for one in learners if (one.columns, one.needs_grid) == (columns, needs_grid)]
                batch = events.batch(rows, columns, grids=needs_grid)
                jobs = _Jobs([(one.name, fold, path) for one in like for fold, path in enumerate(one.folders)])

                for outcome in [pool.submit(_predict, reader, jobs, batch, found, tally) for reader in crew]:
                    outcome.result()
            yield piece, {name: np.stack([one for one in fits if one is not None]) for name, fits in found.items()}


def _predict(
    reader: _Reader, jobs: _Jobs, batch: Batch, found: dict[str, list[np.ndarray | None]], tally: _Tally
) -> None:
    while job := jobs.next_for(reader):
        name, fold, folder = job
        found[name][fold] = checked_log_proba(reader.learner(folder), batch)
        tally.add(len(batch), f"{name} fold {fold}")


@dataclass
class _Reader:
    """What opens saved fits in one process, and those it has opened."""

    opened: Open
    held: dict[Path, Learner] = field(default_factory=dict)

    def learner(self, folder: Path) -> Learner:
        if folder not in self.held:
            self.held[folder] = self.opened(folder)
        return self.held[folder]


class _Jobs:
    """Predictions of one piece by fits that see the same columns; a reader first gets those that it has opened."""

    def __init__(self, jobs: list[tuple[str, int, Path]]) -> None:
        self._jobs = jobs
        self._lock = threading.Lock()

    def next_for(self, reader: _Reader) -> tuple[str, int, Path] | None:
        with self._lock:
            known = next((job for job in self._jobs if job[2] in reader.held), None)
            job = known or next(iter(self._jobs), None)
            if job:
                self._jobs.remove(job)
            return job


class _Tally:
    """Progress of several threads."""

    def __init__(self, total: int, progress: Progress) -> None:
        self._done, self._total, self._progress = 0, total, progress
        self._lock = threading.Lock()

    def add(self, n_done: int, note: str) -> None:
        with self._lock:
            self._done += n_done
            self._progress(self._done, self._total, note)
