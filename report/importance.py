"""Which groups of features matter: gain as the boosters count it, and log-loss lost when a group is shuffled."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from features.catalogue import CATALOGUE
from features.table import FeatureTable, default_path
from models.base import Batch, Learner
from models.isolated import learners_of
from models.registry import LEARNERS
from models.saving import HEADER_FILE
from report.reading.run import Run
from report.reading.subject import Subject
from scoring.uncertainty.intervals import Paired, paired_log_loss
from showers.schema import InputError
from stacking.events import ShowerEvents
from stacking.run.sealing import learner_folder

MAX_EVENTS = 2000
"""Test events on which groups are shuffled."""
SEED = 11


@dataclass(frozen=True)
class Importance:
    """Importance of the groups for one learner."""

    learner: str
    gain: dict[str, float] | None
    """Share of the gain by group, mean over folds; None where the learner counts none."""
    shuffled: dict[str, Paired]
    """Log-loss with the group shuffled minus without, fold 0; empty where it was not measured."""
    columns: dict[str, float] = field(default_factory=dict)
    """Share of the gain by column, as ``gain``."""


def group_of(column: str) -> str:
    """Return the catalogue's group of a column."""
    return CATALOGUE[column].group if column in CATALOGUE else "other"


def importances(subject: Subject) -> list[Importance]:
    """Return the importance of feature groups for every table learner of the run; the best one is also shuffled."""
    run = subject.run
    entries = [row for row in run.manifest.get("learners", []) if row.get("status") == "ok" and row.get("features")]
    folds = {row["name"]: _folds(run, row["name"]) for row in entries}
    entries = [row for row in entries if folds[row["name"]] and row["name"] in LEARNERS]
    if not entries:
        return []
    best = min(entries, key=lambda row: row.get("log_loss") or np.inf)["name"]
    found = []
    with learners_of(trusted=False) as load:
        for row in entries:
            learners = [load(learner_folder(run.sealed, row["name"], fold)) for fold in folds[row["name"]]]
            shuffled = _shuffled(subject, learners[0], row) if row["name"] == best and not subject.task.target else {}
            columns = column_gains(learners)
            found.append(Importance(row["name"], _by_group(columns), shuffled, columns))
    return found


def _folds(run: Run, learner: str) -> list[int]:
    """Return the numbers of a learner's fits, 0 .. K - 1, that the run's checksums name."""
    return [k for k in range(len(run.sealed.files)) if f"learners/{learner}/fold-{k}/{HEADER_FILE}" in run.sealed.files]


def column_gains(learners: list[Learner]) -> dict[str, float]:
    """Return the share of the gain by column, mean over fits; empty where the learner counts none."""
    found: dict[str, float] = {}
    counted = [gain for learner in learners if (gain := learner.importances())]
    for gain in counted:
        for column, share in gain.items():
            found[column] = found.get(column, 0.0) + share / len(counted)
    return found


def _by_group(columns: dict[str, float]) -> dict[str, float] | None:
    by_group: dict[str, float] = {}
    for column, share in columns.items():
        by_group[group_of(column)] = by_group.get(group_of(column), 0.0) + share
    return by_group or None


def _shuffled(subject: Subject, learner: Learner, row: dict[str, Any]) -> dict[str, Paired]:
    folder = default_path(subject.truth.folder)
    try:
        FeatureTable.open(folder)
    except InputError:
        return {}  # the run's own feature table is gone: gains can still be shown
    events = ShowerEvents(subject.truth.folder, folder, subject.task)
    rng = np.random.default_rng(SEED)
    n_events = len(subject.labels)
    rows = np.sort(rng.choice(n_events, min(MAX_EVENTS, n_events), replace=False))
    columns = tuple(row["features"])
    batch = events.batch(rows, columns, grids=bool(row.get("needs_grid")))
    labels = subject.labels[rows].astype(np.int64)
    before = learner.predict_log_proba(batch)
    order = rng.permutation(len(rows))
    return {
        group: paired_log_loss(labels, learner.predict_log_proba(shuffle(batch, group, order)), before)
        for group in dict.fromkeys(map(group_of, columns))
    }


def shuffle(batch: Batch, group: str, order: np.ndarray) -> Batch:
    """Return the batch with all table columns of one group taken from other events, (n,) ``order``."""
    assert batch.table is not None
    table = batch.table.copy(order="F")
    for k, column in enumerate(batch.columns):
        if group_of(column) == group:
            table[:, k] = table[order, k]
    return replace(batch, table=table)
