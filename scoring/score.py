"""Scoring a predictions file against the test labels: metrics, intervals, warnings, and the metrics file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from scoring.predictions import Origin, read_output, read_raw_labels
from scoring.reading.truth import Truth, read_truth
from scoring.registry import scoring_of
from showers.schema import Task
from showers.storage.files import write_json


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
        One of :data:`showers.schema.TASKS`.
    intervals
        Add 95 % intervals (and ``too_few_events`` to bins that cannot carry a number).
    write
        Write ``metrics_{task}.json`` beside the predictions, atomically, after everything succeeded.
    check
        Given the predictions, what they say of their origin and the test folder, refuses what does not belong together
        or returns remarks, which go into ``warnings``.
    raw
        Judge the most probable class where the file holds posteriors, whatever the decided labels are.
    published_order
        The predictions' rows are those of the published files, though the folder's were shuffled on conversion.

    Returns
    -------
    The benchmark's keys; beside them ``n_events``, ``warnings``, the intervals, and ``config_hash`` and
    ``test_fingerprint`` where the predictions carry them.

    Raises
    ------
    InputError
        For anything that cannot be scored; no metrics file is then written or changed.
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
        output = truth.ours(output)
    metrics = score_arrays(truth, output, task, intervals=intervals)
    metrics["warnings"] += remarks
    metrics |= {key: value for key, value in asdict(origin).items() if value is not None}
    if write:
        write_json(metrics_path(predictions, task), metrics)
    return metrics


def metrics_path(predictions: Path, task: Task) -> Path:
    """Return where the metrics of a predictions file are written."""
    return Path(predictions).parent / f"metrics_{task.name}.json"


def score_arrays(truth: Truth, output: np.ndarray, task: Task, *, intervals: bool = True) -> dict[str, Any]:
    """Return the metrics of the array (N,) that :func:`scoring.predictions.read_output` has checked."""
    scoring = scoring_of(task)
    # The benchmark's draws depend on the order of rows: its own order gives its own value to the last digit.
    output, truth = truth.published(output), truth.in_published_order()
    metrics = scoring.metrics(truth, output, intervals=intervals)
    return metrics | {"n_events": len(truth.labels), "warnings": scoring.warnings(truth, output)}
