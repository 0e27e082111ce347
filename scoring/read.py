"""Reading predictions and test labels, with refusals of everything that a scorer could silently misread."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scoring.archive import array_names
from scoring.archive import read_arrays as read_arrays
from showers.execution.suggestions import did_you_mean
from showers.schema import COMPOSITION, GAMMA, SCALAR_NAMES, SCALARS_FILE, InputError, Task
from showers.storage.files import open_npy
from showers.storage.npy import Header

OUTPUT_KEYS = {COMPOSITION.name: "predictions", GAMMA.name: "gamma_scores"}
"""Which array of ``predictions.npz`` each task scores."""
ORIGIN_KEYS = ("config_hash", "test_fingerprint")
"""Arrays beside it that say where the predictions come from."""
MAX_WORD_BYTES = 4096
"""Length of the longest hash that is read."""


@dataclass(frozen=True)
class Origin:
    """What a predictions file says of itself; None where it does not."""

    config_hash: str | None
    """Hash of the configuration, seeds and data of the run that made it."""
    test_fingerprint: str | None
    """Fingerprint of the events it was made for, as :meth:`showers.datasets.dataset.Dataset.fingerprint` gives it."""


@dataclass(frozen=True)
class Truth:
    """Labels of a test set, and the reconstructed scalars by which it is binned."""

    folder: Path
    labels: np.ndarray
    """(N,) int8."""
    energy: np.ndarray
    """(N,) float32, lg(E/eV)."""
    zenith_deg: np.ndarray
    """(N,) float32."""


def read_truth(data: Path, task: Task) -> Truth:
    """Read the test labels of ``data/{task}_test``; neither grids nor anything else there is needed.

    Raises
    ------
    InputError
        For a missing folder or file, wrong shapes or types, labels out of range, a class without events, or an
        energy or zenith that is not finite; names the file, the count and the first offending row.
    """
    folder = Path(data) / f"{task.name}_test"
    if not folder.is_dir():
        raise InputError(
            f"{folder} does not exist{did_you_mean(folder)}: --data must be the folder that holds {task.name}_test"
        )
    label_file, scalar_file = folder / str(task.label_file), folder / SCALARS_FILE
    labels = np.asarray(open_npy(label_file))
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise InputError(f"{label_file} has shape {labels.shape} and type {labels.dtype}, expected (N,) int8")
    check_range(labels, task.n_classes, str(label_file))
    missing = [name for k, name in enumerate(task.classes) if not (labels == k).any()]
    if missing:
        raise InputError(f"{label_file} holds no event of class {', '.join(missing)} among {len(labels)}: all needed")
    scalars = open_npy(scalar_file)
    if scalars.ndim != 2 or scalars.shape[1] != len(SCALAR_NAMES) or scalars.dtype.kind != "f":
        raise InputError(f"{scalar_file} has shape {scalars.shape} and type {scalars.dtype}, expected (N, 5) float16")
    if len(scalars) != len(labels):
        raise InputError(f"{scalar_file} has {len(scalars)} rows, but {label_file.name} beside it has {len(labels)}")
    columns = []
    for name in ("E", "Ze"):
        values = np.asarray(scalars[:, SCALAR_NAMES.index(name)], dtype=np.float32)
        check_finite(values, f"{scalar_file}, column {name}")
        columns.append(values)
    return Truth(folder, labels.astype(np.int8), *columns)


def task_of(file: Path) -> Task:
    """Return the task whose array a predictions file holds; composition for both, as in the benchmark, or neither."""
    names = array_names(file)
    only_gamma = OUTPUT_KEYS[GAMMA.name] in names and OUTPUT_KEYS[COMPOSITION.name] not in names
    return GAMMA if only_gamma else COMPOSITION


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
    key = OUTPUT_KEYS[task.name]
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
    output = found[key]
    origin = Origin(*(str(found[name]) if name in found else None for name in ORIGIN_KEYS))
    return (_labels if task.name == COMPOSITION.name else _scores)(output, task, where), origin


def _labels(output: np.ndarray, task: Task, where: str) -> np.ndarray:
    if output.dtype.kind not in "iu":
        raise InputError(f"{where} has type {output.dtype}, expected integers 0..{task.n_classes - 1}, one an event")
    check_range(output, task.n_classes, where)
    return output.astype(np.int64)


def _scores(output: np.ndarray, task: Task, where: str) -> np.ndarray:
    if output.dtype.kind not in "fiu":
        raise InputError(f"{where} has type {output.dtype}, expected real numbers, higher = more gamma-like")
    check_finite(output, where)
    return output.astype(np.float64)


def check_range(labels: np.ndarray, n_classes: int, where: str) -> None:
    """Refuse labels (N,) outside ``0..n_classes - 1``."""
    bad = np.flatnonzero((labels < 0) | (labels >= n_classes))
    if bad.size:
        raise InputError(
            f"{where}: {bad.size} of {len(labels)} labels are outside 0..{n_classes - 1}, "
            f"the first at index {bad[0]} ({labels[bad[0]]})"
        )


def check_finite(values: np.ndarray, where: str) -> None:
    """Refuse NaN and infinite values (N,)."""
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise InputError(
            f"{where}: {bad.size} of {len(values)} values are NaN or infinite, "
            f"the first at index {bad[0]} ({values[bad[0]]})"
        )
