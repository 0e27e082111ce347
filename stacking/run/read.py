"""A finished run folder, opened for reading: its manifest, and every learner's predictions of the test events.

Test labels are not read here: :mod:`report.shared.subject` compares a run with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from runtime.arrays import read_arrays
from runtime.checksums import Checksums
from runtime.errors import InputError
from runtime.files import read_json
from showers.schema import SIMULATION, SOURCE_FILE, TASKS, Task, task_named
from stacking.decide.classes import stacking_of
from stacking.run.folder import METRICS_FILE, PREDICTIONS_FILE, open_finished

COMBINED = ("average", "stack")
"""Names under ``test/`` that are not base learners."""
ONE_ANSWER = ("score", "estimate")
"""Rules of tasks that have no other: tables need not name them."""


def is_simulated(source: Mapping[str, Any]) -> bool:
    """Tell from a dataset's ``source.json`` whether its showers come from the embedded simulation."""
    return str(source.get("generator", "")).startswith(SIMULATION)


def read_source(folder: Path) -> dict[str, Any]:
    """Return ``source.json`` of a dataset folder, empty where there is none."""
    file = folder / SOURCE_FILE
    return dict(read_json(file)) if file.exists() else {}


@dataclass(frozen=True)
class System:
    """One column of answers for the test events: a learner, the plain average, or the stack."""

    name: str
    log_proba: np.ndarray
    """(N, C) float64 natural logarithms."""
    output: np.ndarray
    """What the metric scores: hard labels (N,) or gamma scores (N,)."""
    rule: str
    """How it came about: ``argmax`` or ``decided``; one of :data:`ONE_ANSWER` where there is but one."""


@dataclass(frozen=True)
class Run:
    """A run folder opened for reading; see :meth:`open`."""

    folder: Path
    manifest: dict[str, Any]
    task: Task
    checksums: Checksums
    """Checksums by which every file is compared before it is used."""

    @classmethod
    def open(cls, folder: Path) -> Run:
        """Open a run folder of one of the benchmark's tasks.

        Raises
        ------
        InputError
            If it is no finished run folder, was made for a table of another origin, or its manifest is damaged.
        """
        folder = Path(folder)
        checksums, manifest = open_finished(folder)
        return cls(folder, manifest, task_named(str(manifest["task"])), checksums)

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.folder.resolve().name

    @property
    def predictions(self) -> Path:
        """The scored file of this run."""
        return self.folder / PREDICTIONS_FILE

    @property
    def shipped(self) -> str | None:
        """What ships: ``stack``, ``average`` or the name of the best learner; None where the manifest does not say."""
        gate = self.manifest.get("gate", {})
        if "shipped" not in gate:
            return None
        return "stack" if gate["shipped"] is True else str(gate.get("best_learner"))

    @cached_property
    def learner_names(self) -> list[str]:
        """Base learners that finished, in the manifest's order."""
        return [str(row["name"]) for row in self.manifest.get("learners", []) if row.get("status", "ok") == "ok"]

    def array(self, name: str, key: str) -> np.ndarray | None:
        """Return one array of ``test/<name>.npz``, or None if the array is not there.

        Raises
        ------
        InputError
            If the file is missing, damaged or replaced.
        """
        return read_arrays(self.checksums.path(f"test/{name}.npz"), key, "log_proba").get(key)

    def systems(self, n_events: int) -> Iterator[System]:
        """Yield learners, average and stack; for composition argmax first, then decided labels where they differ.

        Parameters
        ----------
        n_events
            Number of test events that every answer must have.
        """
        for name in (*self.learner_names, *COMBINED):
            log_proba = self.array(name, "log_proba")
            if log_proba is None:
                continue
            if len(log_proba) != n_events:
                file = self.folder / "test" / f"{name}.npz"
                raise InputError(f"{file} has {len(log_proba)} events, but the test set has {n_events}")
            yield from self._answers(name, log_proba)

    def _answers(self, name: str, log_proba: np.ndarray) -> Iterator[System]:
        for rule, output in stacking_of(self.task).answers(log_proba, lambda key: self.array(name, key)):
            yield System(name, log_proba, output, rule)


@dataclass(frozen=True)
class TableRun:
    """A finished run on a table; see :meth:`open`."""

    folder: Path
    manifest: Mapping[str, Any]
    checksums: Checksums

    @classmethod
    def open(cls, folder: Path) -> TableRun:
        """Open a run.

        Raises
        ------
        InputError
            If it is not finished, damaged, or was trained on showers.
        """
        checksums, manifest = open_finished(Path(folder))
        if manifest["task"] in TASKS:
            raise InputError(f"{folder} was trained on showers, not on a table")
        return cls(Path(folder), manifest, checksums)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names in label order."""
        return tuple(self.manifest["classes"])

    @property
    def shipped(self) -> str:
        """What predicts new rows: ``stack`` or the best learner."""
        gate = self.manifest["gate"]
        return "stack" if gate["shipped"] else str(gate["best_learner"])

    @cached_property
    def systems(self) -> list[str]:
        """Learners that finished, average and stack."""
        learners = [str(row["name"]) for row in self.manifest["learners"] if row["status"] == "ok"]
        return [*learners, "average", "stack"]

    @cached_property
    def held_out(self) -> dict[str, Any]:
        """Metrics on rows of the training table that no fit learned from."""
        content: dict[str, Any] = read_json(self.checksums.path(METRICS_FILE))
        return content

    def out_of_fold(self, system: str) -> tuple[np.ndarray, np.ndarray]:
        """Return true classes and log-probabilities of the rows on which what ships was scored."""
        frame = pl.read_parquet(self.checksums.path(f"oof/{system}.parquet"), glob=False)
        stack = pl.read_parquet(self.checksums.path("oof/stack.parquet"), glob=False)
        labels = pl.read_parquet(self.checksums.path("table/train-labels.parquet"), glob=False)["label"].to_numpy()
        judged = stack[:, -1].is_not_nan() & ((stack["fold"] < 0) | (not self.manifest["data"]["n_holdout"]))
        rows = judged.to_numpy()
        return labels[rows].astype(np.int64), frame.select(f"logp_{c}" for c in self.classes).to_numpy()[rows]

    def test_log_proba(self, system: str) -> np.ndarray:
        """Return a system's (N, C) log-probabilities of the test rows."""
        with np.load(self.checksums.path(f"test/{system}.npz"), allow_pickle=False) as stored:
            return np.asarray(stored["log_proba"])
