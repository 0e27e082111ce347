"""Reading a finished run folder: its manifest, and what every learner said of the test events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from report.reading.belonging import MANIFEST_FILE, PREDICTIONS_FILE, check_events, check_run
from scoring.predictions import read_arrays, read_output
from scoring.reading.truth import Truth, read_truth
from showers.schema import SOURCE_FILE, InputError, Task, task_named
from showers.storage.checksums import Seal
from showers.storage.files import read_json
from stacking.procedure_registry import procedure_of
from stacking.run.sealing import open_sealed

SIMULATOR = "showers.simulation"
"""What ``source.json`` names as generator of simulated showers."""
COMBINED = ("average", "stack")
"""Names under ``test/`` that are not base learners."""
ONE_ANSWER = ("score", "estimate")
"""Rules of tasks that have no other: tables need not name them."""


def is_simulated(source: Mapping[str, Any]) -> bool:
    """Tell from a dataset's ``source.json`` whether its showers come from the embedded simulation."""
    return str(source.get("generator", "")).startswith(SIMULATOR)


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
    """What the metric judges: hard labels (N,) or gamma scores (N,)."""
    rule: str
    """How it came about: ``argmax`` or ``decided``; one of :data:`ONE_ANSWER` where there is but one."""


@dataclass(frozen=True)
class Run:
    """A run folder opened for reading; see :meth:`open`."""

    folder: Path
    manifest: dict[str, Any]
    task: Task
    sealed: Seal
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
        sealed, manifest = open_sealed(folder)
        return cls(folder, manifest, task_named(str(manifest["task"])), sealed)

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
        """What the gate shipped: ``stack``, or the name of the best learner; None where the manifest does not say."""
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
        return read_arrays(self.sealed.path(f"test/{name}.npz"), key, "log_proba").get(key)

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
        for rule, output in procedure_of(self.task).answers(log_proba, lambda key: self.array(name, key)):
            yield System(name, log_proba, output, rule)

    def truth(self, data: Path) -> Truth:
        """Read the test labels that this run is judged by.

        Raises
        ------
        InputError
            If they cannot be read, or are of other events than the run predicted.
        """
        truth = read_truth(data, self.task)
        self.check_test_set(truth.folder)
        return truth

    def check_test_set(self, folder: Path) -> None:
        """Refuse a test set whose events are not those that the run predicted."""
        fingerprint = self.manifest.get("data", {}).get("test_fingerprint")
        if not fingerprint:
            raise InputError(f"{self.folder / MANIFEST_FILE} does not say which test set the run predicted")
        check_events(str(self.folder), str(fingerprint), folder)

    def output(self, truth: Truth) -> np.ndarray:
        """Read what is judged from the run's own ``predictions.npz``: (N,) hard labels or scores.

        Raises
        ------
        InputError
            If the file cannot be read, is damaged, or was made by another run or for other events.
        """
        output, origin = read_output(self.predictions, self.task, len(truth.labels))
        check_run(self.predictions, origin, self.manifest)
        self.sealed.path(PREDICTIONS_FILE)
        return output
