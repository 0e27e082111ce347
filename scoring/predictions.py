"""Reading predictions, with refusals of everything that a scorer could silently misread."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scoring.reading.archive import array_names
from scoring.reading.archive import read_arrays as read_arrays
from scoring.registry import scoring_of
from showers.schema import COMPOSITION, TASKS, InputError, Task
from showers.storage.npy import Header

ORIGIN_KEYS = ("config_hash", "test_fingerprint")
"""Arrays beside what is scored that say where the predictions come from."""
MAX_WORD_BYTES = 4096
"""Length of the longest hash that is read."""


@dataclass(frozen=True)
class Origin:
    """What a predictions file says of itself; None where it does not."""

    config_hash: str | None
    """Hash of the configuration, seeds and data of the run that made it."""
    test_fingerprint: str | None
    """Fingerprint of the events it was made for, as :meth:`showers.datasets.dataset.Dataset.fingerprint` gives it."""


def task_of(file: Path) -> Task:
    """Return the first task whose array a predictions file holds; composition, as in the benchmark, for none."""
    names = array_names(file)
    return next((task for task in TASKS.values() if scoring_of(task).key in names), COMPOSITION)


def read_output(file: Path, task: Task, n_events: int) -> tuple[np.ndarray, Origin]:
    """Read what a task scores from a ``predictions.npz``.

    Parameters
    ----------
    file
        The archive; other arrays in it are ignored.
    n_events
        Number of test events.

    Returns
    -------
    (N,) int64 hard labels or (N,) float scores, and what is stored beside them about where they come from.

    Raises
    ------
    InputError
        For a missing or damaged file, a missing array, a wrong shape, type or length, labels out of range, scores
        that are not finite; names the file, the count and the first offending index.
    """
    file = Path(file)
    scoring = scoring_of(task)
    key = scoring.key
    where = f"{file}, {key}"

    def check(name: str, header: Header) -> None:
        if name != key:
            if header.shape or header.dtype.kind not in "US" or header.dtype.itemsize > MAX_WORD_BYTES:
                raise InputError(f"{file}, {name} has shape {header.shape} and type {header.dtype}, expected a word")
        elif len(header.shape) != 1:
            raise InputError(f"{where} has shape {header.shape}, expected ({n_events},): one value an event")
        elif header.shape[0] != n_events:
            raise InputError(f"{where} has {header.shape[0]} events, but the test set has {n_events}")

    found = read_arrays(file, key, *ORIGIN_KEYS, check=check)
    if key not in found:
        raise InputError(f"{file} holds no array {key!r}: task {task.name} needs it")
    origin = Origin(*(str(found[name]) if name in found else None for name in ORIGIN_KEYS))
    return scoring.checked(found[key], where), origin


def read_raw_labels(file: Path, task: Task, decided: np.ndarray) -> np.ndarray:
    """Return the most probable class (N,) of each event of a predictions file.

    Parameters
    ----------
    decided
        (N,) its labels, which are returned where the file holds no posteriors.

    Raises
    ------
    InputError
        If the posteriors have another shape or are not numbers.
    """
    found = read_arrays(Path(file), scoring_of(task).key, "log_proba").get("log_proba")
    if found is None:
        return decided
    where = f"{file}, log_proba"
    if found.shape != (len(decided), task.n_classes) or found.dtype.kind != "f":
        raise InputError(f"{where} has shape {found.shape}, expected ({len(decided)}, {task.n_classes}) numbers")
    if np.isnan(found).any():
        raise InputError(f"{where}: {int(np.isnan(found).any(axis=1).sum())} events have no number")
    return found.argmax(axis=1).astype(np.int64)
