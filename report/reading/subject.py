"""Everything a report is about, read once: the run, the truth, the metrics, the systems, and their comparisons."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from report.pictures.learners import Point
from report.reading.run import COMBINED, Run, System, is_simulated
from scoring import Metric, metric_for, scoring_of
from scoring.reading.truth import Truth
from scoring.score import score_arrays
from scoring.uncertainty.paired import Paired, paired_mean
from showers.datasets.dataset import Dataset
from showers.schema import InputError, Task


@dataclass(frozen=True)
class Subject:
    """A run on a labelled test set; use :meth:`read`."""

    run: Run
    data: Path
    truth: Truth
    output: np.ndarray
    """Hard labels or scores (N,) of ``predictions.npz``."""
    metrics: dict[str, Any]
    """Of ``predictions.npz``, with intervals."""
    systems: list[System]

    @classmethod
    def read(cls, folder: Path, data: Path) -> Subject:
        """Read a finished run and the test set of ``data``, and score it.

        Raises
        ------
        InputError
            If one of them cannot be read, or they do not belong together.
        """
        run = Run.open(folder)
        truth = run.truth(data)
        output = run.output(truth)
        systems = list(run.systems(len(truth.labels)))
        if not systems:
            raise InputError(f"{run.folder / 'test'} holds no predictions of the learners: finish the run first")
        return cls(run, Path(data), truth, output, score_arrays(truth, output, run.task), systems)

    @property
    def task(self) -> Task:
        """The run's task."""
        return self.run.task

    @property
    def metric(self) -> Metric:
        """The number the task is judged by."""
        return metric_for(self.task)

    def losses(self, system: System) -> np.ndarray:
        """Return the loss (N,) of each event, whose mean tells systems apart more sharply than the metric."""
        return scoring_of(self.task).losses(self.labels, system.log_proba, system.output)

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

    @cached_property
    def shipped(self) -> System:
        """What ``predictions.npz`` holds: decided labels where there are any; the last system if no manifest says."""
        name = self.run.shipped if self.system(self.run.shipped or "") else self.systems[-1].name
        return [system for system in self.systems if system.name == name][-1]

    @property
    def shipped_words(self) -> str:
        """What ships, as it reads in a sentence."""
        return "the stack" if self.shipped.name == COMBINED[-1] else self.shipped.name

    @property
    def final(self) -> np.ndarray:
        """(N, C) log-probabilities of what was shipped."""
        return self.shipped.log_proba

    @property
    def best_learner(self) -> str | None:
        """The base learner that was best on held-out training showers."""
        named = self.run.manifest.get("gate", {}).get("best_learner")
        return str(named) if named else None

    def system(self, name: str, rule: str | None = None) -> System | None:
        """Return a system by name (and rule), if the run has it."""
        return next((s for s in self.systems if s.name == name and rule in (None, s.rule)), None)

    @cached_property
    def points(self) -> list[Point]:
        """The metric of every system with its interval."""
        return [
            Point(
                system.name,
                system.rule,
                self.metric.of(self.truth, system.output),
                self.metric.interval(self.labels, system.output),
            )
            for system in self.systems
        ]

    @cached_property
    def against_shipped(self) -> dict[tuple[str, str], tuple[Paired, Paired]]:
        """Paired differences to what ships, of metric and mean loss, by system and rule (the same on both sides)."""
        found = {}
        for system in self.systems:
            ours = self.system(self.shipped.name, system.rule)
            if system.name != self.shipped.name and ours is not None:
                metric = self.metric.paired(self.labels, system.output, ours.output)
                found[system.name, system.rule] = (metric, paired_mean(self.losses(system) - self.losses(ours)))
        return found
