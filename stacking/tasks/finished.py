"""The folder of a finished task: a learner's model and predictions, sealed when written and compared when read.

A run has its own checksums once it is finished; until then those of its tasks show what was damaged or exchanged
between a kill and the next start.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from showers.schema import InputError
from showers.storage.checksums import Seal, seal
from showers.storage.files import check_name, read_json

TASK_FILE = "task.json"
HELD_OUT_FILE = "held_out.npz"
OUTER_FILE = "outer.npz"
"""A fit's predictions of the outer holdout."""
TEST_FILE = "test.npz"
TRUTH = "truth"
"""Array of a fit's estimates of true quantities in these files, beside ``log_proba``."""


def fold_folder(run: Path, learner: str, fold: int) -> Path:
    """Return where one learner's fit on one fold is kept; a name that leads out of the run is refused."""
    return run / "learners" / check_name(learner, run) / f"fold-{fold}"


def seal_task(folder: Path) -> None:
    """Write ``checksums.json`` over all files of a task's folder."""
    seal(folder, [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()])


def damage(folder: Path) -> str | None:
    """Return what is wrong with the folder of a finished task; None if nothing is, or if it is not there."""
    if not folder.exists():
        return None
    try:
        problems = Seal.open(folder, required=(TASK_FILE, HELD_OUT_FILE)).problems()
    except InputError as error:
        return str(error)
    return problems[0] if problems else None


def key_of(folder: Path) -> str | None:
    """Return the key of everything that decided a finished task; None without one, or if a file was damaged."""
    if not folder.exists() or damage(folder):
        return None
    key: str = read_json(folder / TASK_FILE)["key"]
    return key


def held_out_log_proba(run: Path, learner: str, folds: np.ndarray, judged: np.ndarray) -> np.ndarray:
    """Collect a learner's out-of-fold log-probabilities.

    Parameters
    ----------
    folds
        (R, N) int8, one partition per repetition; -1 in the outer holdout.
    judged
        (N,) bool: rows that were predicted.

    Returns
    -------
    (R, N, C) float64; NaN where a row was never predicted.
    """
    repeats, n_events = folds.shape
    n_folds = int(folds.max()) + 1
    parts = {}
    for fold in range(repeats * n_folds):
        parts[fold] = _log_proba(fold_folder(run, learner, fold), HELD_OUT_FILE)
    result = np.full((repeats, n_events, parts[0].shape[1]), np.nan)
    for fold, part in parts.items():
        repeat, k = divmod(fold, n_folds)
        result[repeat, (folds[repeat] == k) & judged] = part
    return result


def test_log_proba(run: Path, learner: str, n_fits: int) -> np.ndarray:
    """Collect a learner's test log-probabilities, one set per fit: (R * K, M, C) float64."""
    return _of_every_fit(run, learner, n_fits, TEST_FILE)


def outer_log_proba(run: Path, learner: str, n_fits: int) -> np.ndarray:
    """Collect a learner's log-probabilities of the outer holdout, one set per fit: (R * K, M, C) float64."""
    return _of_every_fit(run, learner, n_fits, OUTER_FILE)


def has_truth(run: Path, learner: str) -> bool:
    """Return whether a learner's fits have estimated true quantities."""
    with np.load(Seal.open(fold_folder(run, learner, 0)).path(HELD_OUT_FILE), allow_pickle=False) as stored:
        return TRUTH in stored.files


def held_out_truth(run: Path, learner: str, partition: np.ndarray, judged: np.ndarray) -> np.ndarray:
    """Collect a learner's out-of-fold estimates, (N, T, 2), of one partition (N,); NaN where there is none."""
    parts = [_stored(fold_folder(run, learner, k), HELD_OUT_FILE, TRUTH) for k in range(int(partition.max()) + 1)]
    result = np.full((len(partition), *parts[0].shape[1:]), np.nan)
    for k, part in enumerate(parts):
        result[(partition == k) & judged] = part
    return result


def outer_truth(run: Path, learner: str, n_fits: int) -> np.ndarray:
    """Collect a learner's estimates of the outer holdout, one set per fit: (R * K, M, T, 2) float64."""
    return np.stack([_stored(fold_folder(run, learner, fold), OUTER_FILE, TRUTH) for fold in range(n_fits)])


def test_truth(run: Path, learner: str, n_fits: int) -> np.ndarray:
    """Collect a learner's estimates of the test events, one set per fit: (R * K, M, T, 2) float64."""
    return np.stack([_stored(fold_folder(run, learner, fold), TEST_FILE, TRUTH) for fold in range(n_fits)])


def _of_every_fit(run: Path, learner: str, n_fits: int, name: str) -> np.ndarray:
    return np.stack([_log_proba(fold_folder(run, learner, fold), name) for fold in range(n_fits)])


def _log_proba(folder: Path, name: str) -> np.ndarray:
    return _stored(folder, name, "log_proba")


def _stored(folder: Path, name: str, key: str) -> np.ndarray:
    with np.load(Seal.open(folder).path(name), allow_pickle=False) as stored:
        found: np.ndarray = stored[key]
    return found
