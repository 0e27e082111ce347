"""Scoring a predictions file against the test labels: metrics, intervals, warnings, and the metrics file.

Predictions are refused wherever they could silently be misread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from showerstack.runtime.arrays import Header, array_names, read_arrays
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import with_checksum, write_json
from showerstack.scoring.tasks import scoring_of
from showerstack.scoring.tasks.truth import Truth, read_truth
from showerstack.showers.schema import COMPOSITION, TASKS, Task

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
    """Fingerprint of the events it was made for, as :meth:`showerstack.showers.dataset.Dataset.fingerprint` gives
    it."""


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

    result = read_arrays(file, key, *ORIGIN_KEYS, check=check)
    if key not in result:
        raise InputError(f"{file} holds no array {key!r}: task {task.name} needs it")
    origin = Origin(*(str(result[name]) if name in result else None for name in ORIGIN_KEYS))
    return scoring.checked(result[key], where), origin


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
    value = read_arrays(Path(file), scoring_of(task).key, "log_proba").get("log_proba")
    if value is None:
        return decided
    where = f"{file}, log_proba"
    if value.shape != (len(decided), task.n_classes) or value.dtype.kind != "f":
        raise InputError(f"{where} has shape {value.shape}, expected ({len(decided)}, {task.n_classes}) numbers")
    if np.isnan(value).any():
        raise InputError(f"{where}: {int(np.isnan(value).any(axis=1).sum())} events have no number")
    return value.argmax(axis=1).astype(np.int64)


def score_file(
    predictions: Path,
    data: Path,
    task: Task,
    *,
    intervals: bool = True,
    write: bool = True,
    check: Callable[[Path, Origin, Path], list[str]] | None = None,
    raw: bool = False,
    published_order: bool = False,
) -> dict[str, Any]:
    """Score ``predictions`` against the labels of ``data/{task}_test``.

    Parameters
    ----------
    predictions
        ``predictions.npz``.
    data
        Folder that holds ``{task}_test``.
    task
        One of :data:`showerstack.showers.schema.TASKS`.
    intervals
        Add confidence intervals (and ``too_few_events`` to bins that cannot carry a number).
    write
        Write ``metrics_{task}.json`` beside the predictions, atomically, after everything succeeded.
    check
        Given the predictions, what they say of their origin and the test folder, refuses what does not belong together
        or returns remarks, which go into ``warnings``.
    raw
        Score the most probable class where the file holds posteriors, whatever the decided labels are.
    published_order
        The predictions' rows are those of the published files, though the folder's were shuffled on conversion.

    Returns
    -------
    The benchmark's keys; beside them ``n_events``, ``warnings``, the intervals, a ``checksum`` of all of it, and
    ``config_hash`` and ``test_fingerprint`` where the predictions carry them.

    Raises
    ------
    InputError
        For anything that cannot be scored, and for ``published_order`` where the folder's rows were not shuffled; no
        metrics file is then written or changed.
    """
    scoring_of(task)
    truth = read_truth(data, task)
    output, origin = read_output(predictions, task, len(truth.labels))
    remarks = check(Path(predictions), origin, truth.folder) if check else []
    if raw:
        decided, output = output, read_raw_labels(predictions, task, output)
        changed = int(np.count_nonzero(decided != output))
        remarks += [f"{changed:,} decided labels were replaced by the most probable class"] if changed else []
    if published_order:
        if truth.order is None:
            raise InputError(f"{truth.folder} has its rows in the published order already: leave --published-order out")
        output = truth.ours(output)
    metrics = score_arrays(truth, output, task, intervals=intervals)
    metrics["warnings"] += remarks
    metrics |= {key: value for key, value in asdict(origin).items() if value is not None}
    metrics = with_checksum(metrics)
    if write:
        for path in (metrics_path(predictions, task), own_metrics_path(predictions, task)):
            if path is not None:
                write_json(path, metrics)
    return metrics


def metrics_path(predictions: Path, task: Task) -> Path:
    """Return where the metrics of a predictions file are written, the last ones of a folder."""
    return Path(predictions).parent / f"metrics_{task.name}.json"


def own_metrics_path(predictions: Path, task: Task) -> Path | None:
    """Return where its metrics are kept too, under its own name, where other predictions lie beside it; None else."""
    predictions = Path(predictions)
    alone = predictions.stem == "predictions" or len(list(predictions.parent.glob("*.npz"))) < 2
    return None if alone else predictions.parent / f"{predictions.stem}_metrics_{task.name}.json"


def score_arrays(truth: Truth, output: np.ndarray, task: Task, *, intervals: bool = True) -> dict[str, Any]:
    """Return the metrics of the array (N,) that :func:`showerstack.scoring.score.read_output` has checked."""
    scoring = scoring_of(task)
    # The benchmark's draws depend on the order of rows: its own order gives its own value to the last digit.
    output, truth = truth.published(output), truth.in_published_order()
    metrics = scoring.metrics(truth, output, intervals=intervals)
    return metrics | {"n_events": len(truth.labels), "warnings": scoring.warnings(truth, output)}
