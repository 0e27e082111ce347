"""Everything a report is about, read once: the run, the truth, the metrics, the systems, and their comparisons.

Predictions, run and test set must belong together. Equal lengths prove little; fingerprints do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from showerstack.runtime.errors import InputError
from showerstack.runtime.files import hash_file, with_checksum, write_json
from showerstack.runtime.tables import column_names, read_table
from showerstack.scoring.metrics.classes import table_metrics
from showerstack.scoring.metrics.intervals import Interval, linearised
from showerstack.scoring.metrics.paired import Paired, paired_mean
from showerstack.scoring.score import Origin, check_events, check_run, read_output, read_raw_labels, score_arrays
from showerstack.scoring.tasks import metric_for, scoring_of
from showerstack.scoring.tasks.base import Metric, Quantity
from showerstack.scoring.tasks.truth import Truth, origin_of, read_truth
from showerstack.showers.array import KASCADE
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import Task
from showerstack.showers.source import is_simulated
from showerstack.stacking.chain import COMBINED
from showerstack.stacking.prediction.run import Run, System, evaluated_rows
from showerstack.stacking.tables.columns import as_text
from showerstack.stacking.tables.data import class_positions, counted_in, read_groups, read_weights


@dataclass(frozen=True)
class ScoredSystem:
    """A system's answers to the test events, and their scores."""

    system: System
    value: float
    """Of the task's metric."""
    interval: Interval
    beside: Quantity
    """The number that stands beside the metric, such as the accuracy."""
    losses: np.ndarray
    """(N,) loss of each event, whose mean tells systems apart more sharply than the metric."""
    loss: float
    """Their mean."""
    loss_interval: Interval

    @property
    def name(self) -> str:
        """The system's."""
        return self.system.name


def score_systems(run: Run, truth: Truth) -> list[ScoredSystem]:
    """Return the scores of learners, average and stack on a test set."""
    scoring, metric = scoring_of(run.task), metric_for(run.task)
    scored = []
    for system in run.test_systems(len(truth.labels)):
        log_proba, output = system.log_proba, system.output
        beside = scoring.second_metric(truth.labels, log_proba, output, **truth.counted)
        losses = scoring.losses(truth.labels, log_proba, output)
        value, interval = metric.of(truth, output), metric.interval_of(truth, output)
        scored.append(ScoredSystem(system, value, interval, beside, losses, *mean_loss(losses, truth)))
    return scored


@dataclass(frozen=True)
class EvaluatedRun:
    """A run on a labelled test set; use :meth:`read`."""

    run: Run
    truth: Truth
    output: np.ndarray
    """Hard labels or scores (N,) of ``predictions.npz``."""
    metrics: dict[str, Any]
    """Of ``predictions.npz``, with intervals."""
    systems: list[ScoredSystem]

    @classmethod
    def read(cls, folder: Path, data: Path) -> EvaluatedRun:
        """Read a finished run and the test set of ``data``, and score it."""
        run = Run.open(folder)
        truth = read_labels(run, data)
        output = read_run_output(run, truth)
        return cls(run, truth, output, score_arrays(truth, output, run.task), score_systems(run, truth))

    @property
    def task(self) -> Task:
        """The run's task."""
        return self.run.task

    @property
    def metric(self) -> Metric:
        """The number the task is scored by."""
        return metric_for(self.task)

    @property
    def labels(self) -> np.ndarray:
        """(N,) int8 true classes."""
        return self.truth.labels

    @cached_property
    def dataset(self) -> Dataset:
        """The test folder, without labels."""
        return Dataset.open(self.truth.folder, labels=False)

    @property
    def simulated(self) -> bool:
        """Whether the test set says that it was simulated here."""
        return is_simulated(self.dataset.source)

    @property
    def of_kascade(self) -> bool:
        """Whether the showers are of the array whose results are published."""
        return self.dataset.array.is_like(KASCADE)

    @property
    def shipped(self) -> ScoredSystem:
        """What ``predictions.npz`` holds."""
        return next(one for one in self.systems if one.name == self.run.shipped)

    @property
    def shipped_words(self) -> str:
        """What ships, as it reads in a sentence."""
        return "the stack" if self.shipped.name == COMBINED[-1] else self.shipped.name

    @property
    def final(self) -> np.ndarray:
        """(N, C) log-probabilities of what was shipped."""
        return self.shipped.system.log_proba

    @property
    def best_learner(self) -> str:
        """The base learner that was best on held-out training showers."""
        return self.run.manifest.gate.best_learner

    @cached_property
    def against_shipped(self) -> dict[str, tuple[Paired, Paired]]:
        """Paired differences of every other system to what ships, of metric and mean loss, by name."""
        result, ours = {}, self.shipped
        for other in self.systems:
            if other.name != ours.name:
                more = linearised(other.losses - ours.losses, self.truth.weights)
                metric = self.metric.paired_of(self.truth, other.system.output, ours.system.output)
                result[other.name] = metric, paired_mean(more, self.truth.groups)
        return result


def read_labels(run: Run, data: Path) -> Truth:
    """Read the test labels that a run is scored by; refuse those of other events than it predicted."""
    run.require_showers("a test set of showers")
    truth = read_truth(data, run.task)
    if truth.task != run.task:
        raise InputError(
            f"{truth.folder} has showers of {', '.join(truth.task.classes)} alone, but {run.folder} tells apart "
            f"{', '.join(run.task.classes)}: score it on a test set that has all of them"
        )
    check_test_set(run, truth.folder)
    return truth


def check_test_set(run: Run, folder: Path) -> None:
    """Refuse a test set whose events are not those that the run predicted."""
    run.require_showers("a test set of showers")
    fingerprint = run.manifest.data.test_fingerprint
    if not fingerprint:
        raise InputError(f"{run.folder} does not say which test set it predicted")
    check_events(str(run.folder), fingerprint, folder)


def stated_origin(run: Run) -> Origin:
    """Return what a run's own predictions have to say of their origin."""
    return Origin(run.manifest.config_hash, run.manifest.data.test_fingerprint)


def read_run_output(run: Run, truth: Truth) -> np.ndarray:
    """Read what is scored from a run's own ``predictions.npz``: (N,) hard labels or scores.

    Of labels, the most probable class where the protocol of the test set takes no other. A file that another run made,
    or that was made for other events, is refused.
    """
    if run.task.output_array != truth.task.output_array:
        raise InputError(
            f"{truth.folder} has the mass groups {', '.join(truth.task.classes)}, but {run.folder} tells apart "
            f"{', '.join(run.task.classes)}"
        )
    output, origin = read_output(run.predictions, run.task, len(truth.labels))
    check_run(run.predictions, origin, stated_origin(run))
    run.own_predictions()
    if origin_of(truth.folder, run.task).takes_raw_labels(run.task):
        return read_raw_labels(run.predictions, run.task, output)
    return output


def labelled_test_rows(run: Run) -> tuple[np.ndarray, np.ndarray, list[str]] | None:
    """Return which rows of the test table have a known label, their classes, and remarks.

    None where there is no test table, it is no longer the one that was predicted, or has no labels; labels of which
    none is a class of the training are refused.
    """
    config, identity = run.manifest.config, run.manifest.identity
    file, label = Path(config.test_table) if config.test_table else None, str(config.label)
    if file is None or not file.is_file() or hash_file(file) != identity.test_fingerprint:
        return None
    if label not in column_names(file, config.separator):
        return None
    values = read_table(file, [label], config.separator)[label]
    position = class_positions(values, run.task.classes)
    known = position >= 0
    strange = as_text(values).filter(pl.Series(~known)).drop_nulls().unique().sort().to_list()
    remarks = []
    if strange:
        remarks.append(f"{file}: labels {', '.join(strange[:5])} are in no training row: rows not scored")
    if not known.any():
        if not strange:
            return None
        raise InputError(
            f"{file}: no label of column {label!r} is a class of the training: {_some(strange)} here, "
            f"{_some(run.task.classes)} there; the run is complete, its test table is not scored"
        )
    return np.flatnonzero(known), position[known], remarks


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:5]))


def score_test_table(run: Run) -> dict[str, Any] | None:
    """Score the test table where it has labels, and write ``metrics_table_test.json`` beside the run's files."""
    result = labelled_test_rows(run)
    if result is None:
        return None
    classes = run.task.classes
    rows, labels, remarks = result
    (weights, more), (groups, others) = (_test_column(run, name) for name in _TEST_COLUMNS)
    weights, groups = (None if values is None else values[rows] for values in (weights, groups))
    content = {
        "judged_on": f"{len(rows)} labelled rows of the test table",
        "counted": counted_in(groups),
        "shipped": run.shipped,
        "remarks": [*remarks, *more, *others],
        "systems": {
            name: table_metrics(labels, log_proba_of_test(run, name)[rows], classes, weights, groups)
            for name in run.systems
        },
    }
    metrics = with_checksum(content)
    write_json(run.table_test_scores, metrics)
    return metrics


_TEST_COLUMNS = {
    "weight": (read_weights, "its rows count alike"),
    "group": (read_groups, "every row of it is one observation"),
}
"""Columns that count in scores, by the option that names them: how they are read, what follows where there is none."""


def _test_column(run: Run, option: str) -> tuple[np.ndarray | None, list[str]]:
    """Return one of these columns of the test table, (N,), None where the run or the table has none, and remarks."""
    config, (read, without) = run.manifest.config, _TEST_COLUMNS[option]
    file, column = Path(str(config.test_table)), getattr(config, option)
    if column is None:
        return None, []
    if column not in column_names(file, config.separator):
        return None, [f"{file} has no column {column!r}: {without}"]
    return read(read_table(file, [column], config.separator), file, column), []


def log_proba_of_test(run: Run, system: str) -> np.ndarray:
    """Return a system's (N, C) log-probabilities of the test rows."""
    log_proba = run.test(system, "log_proba")
    assert log_proba is not None
    return log_proba


def groups_of_test(run: Run) -> np.ndarray | None:
    """Return the group (N,) of each row of the test table; None where there are none."""
    return _test_column(run, "group")[0]


def labelled_oof_rows(run: Run, system: str) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return true classes (n,), a system's log-probabilities (n, C), and groups, of the rows that it was judged on.

    Of a run on a table; None where the rows are of no groups.
    """
    beside = run.label_columns()
    rows = evaluated_rows(*run.oof("stack"), holdout=bool(run.manifest.data.n_holdout))
    groups = beside["group"].to_numpy()[rows] if "group" in beside.columns else None
    return beside["label"].to_numpy()[rows].astype(np.int64), run.oof(system)[0][rows], groups


def mean_loss(losses: np.ndarray, truth: Truth | None = None) -> tuple[float, Interval]:
    """Return the mean of losses (N,) of the events of a test set and its interval, groups and weights counted."""
    groups, weights = (None, None) if truth is None else (truth.groups, truth.weights)
    result = paired_mean(linearised(losses, weights), groups)
    return result.difference, result.interval
