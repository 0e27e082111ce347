"""A finished run, opened for reading: its scores, predictions, fits and chain.

Labels are not read here: :mod:`showerstack.report.shared.subject` holds a run against them.

>>> run = load("runs/composition")  # doctest: +SKIP
>>> run.shipped, run.learners      # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl

from showerstack.models.base.saving import HEADER_FILE
from showerstack.runtime.arrays import read_arrays
from showerstack.runtime.checksums import CHECKSUMS_FILE, Checksums
from showerstack.runtime.code import versions
from showerstack.runtime.errors import InputError, did_you_mean
from showerstack.runtime.files import check_name, read_json
from showerstack.runtime.stated import stated_as
from showerstack.runtime.versions import STACKING_VERSION
from showerstack.scoring.metrics.classes import REAL_RATIOS, TABLE_EFFICIENCIES, threshold_table
from showerstack.showers.schema import MANIFEST_FILE, PREDICTIONS_FILE
from showerstack.stacking.answers import stacking_of
from showerstack.stacking.chain import Fit
from showerstack.stacking.layout import (
    CARD_FILE,
    CHAIN_FILES,
    HISTORY_FILE,
    LABELS_TABLE,
    METRICS_FILE,
    NOT_OF_THE_LEARNER,
    OOF,
    PREDICTIONS_TABLE,
    REPORT_FILE,
    SCORES_FILE,
    TABLE_TEST_FILE,
    TASK_FILE,
    TEST,
    fit_path,
)
from showerstack.stacking.prediction.predictable import Predictable, SavedFit, SavedFits, refuse_other_version
from showerstack.stacking.stated import FitHistory, FitRecord, Manifest, TableMetrics

S = TypeVar("S", FitRecord, FitHistory)

ONE_ANSWER = ("score", "estimate")
"""Rules of tasks that have no other: reports need not name them."""


def evaluated_rows(stack: np.ndarray, folds: np.ndarray, *, holdout: bool) -> np.ndarray:
    """Return the training events that systems were evaluated on, (N,) bool: the holdout, or all predicted ones.

    ``stack`` and ``folds`` are what :meth:`Run.oof` returns of the stack.
    """
    rows: np.ndarray = ~np.isnan(stack[:, -1]) & ((folds < 0) | (not holdout))
    return rows


@dataclass(frozen=True)
class System:
    """The answers of a learner, of the plain average or of the stack for the test events."""

    name: str
    log_proba: np.ndarray
    """(N, C) float64 natural logarithms."""
    output: np.ndarray
    """(N,) what the metric scores: class numbers, gamma scores or estimates."""
    rule: str
    """How posteriors became answers: ``argmax``, or one of :data:`ONE_ANSWER`."""


@dataclass(frozen=True)
class Run(Predictable):
    """A finished run folder, of showers or of a table; see :meth:`open`."""

    trained: Manifest

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        """Open a run folder; nothing in it is executed, and only its manifest is read.

        Raises
        ------
        InputError
            If the folder is no finished run, has no checksums, or its manifest is not the one that was written.
        """
        folder = Path(folder)
        file = folder / MANIFEST_FILE
        if not file.exists():
            raise InputError(f"{folder} is not a finished run folder{did_you_mean(folder)}: it has no {MANIFEST_FILE}")
        if not (folder / CHECKSUMS_FILE).exists():
            raise InputError(_why_without_checksums(folder, read_json(file)))
        checksums = Checksums.open(folder, required=(MANIFEST_FILE,))
        content = read_json(checksums.path(MANIFEST_FILE))
        if not isinstance(content, dict) or "task" not in content:
            raise InputError(f"{file} names no task: expected the manifest of a stacking run")
        try:
            manifest = stated_as(Manifest, content, file)
        except InputError:
            made_by = content.get("stacking_version", 0)
            refuse_other_version(folder, str(content["task"]), "stacking", made_by, STACKING_VERSION)
            raise
        for row in manifest.learners:
            check_name(row.name, file)
        return cls(folder, manifest, checksums)

    @property
    def manifest(self) -> Manifest:
        """Content of ``manifest.json``."""
        return self.trained

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.folder.resolve().name

    @property
    def predictions(self) -> Path:
        """Predictions of the test events of a run on showers."""
        return self.folder / PREDICTIONS_FILE

    @property
    def predictions_table(self) -> Path:
        """Predictions of a run on a table."""
        return self.folder / PREDICTIONS_TABLE

    @property
    def report(self) -> Path:
        """The run's page."""
        return self.folder / REPORT_FILE

    @property
    def card(self) -> Path:
        """The run's model card."""
        return self.folder / CARD_FILE

    @property
    def table_test_scores(self) -> Path:
        """Scores of a run on a table on its test table, where that has labels."""
        return self.folder / TABLE_TEST_FILE

    @property
    def library_remarks(self) -> tuple[str, ...]:
        """A remark on the libraries that have changed since the training."""
        installed, recorded = versions(), self.trained.versions
        changed = [
            f"{name} {recorded[name]} (now {installed[name]})"
            for name in installed.keys() & recorded.keys() - {"python", "polars", "showerstack"}
            if recorded[name] != installed[name]
        ]
        if not changed:
            return ()
        return (f"{self.folder} was trained with {', '.join(sorted(changed))}: last digits of predictions may differ",)

    @property
    def shipped(self) -> str:
        """The system that predicts new events."""
        return self.manifest.shipped

    @property
    def learners(self) -> tuple[str, ...]:
        """Base learners that finished."""
        return self.manifest.finished

    @property
    def remarks(self) -> tuple[str, ...]:
        """What was remarked on its data and fits."""
        return tuple(self.manifest.remarks)

    @property
    def required_files(self) -> list[str]:
        """Names of the files that such a run cannot do without."""
        identity, names = self.manifest.identity, [MANIFEST_FILE, *CHAIN_FILES]
        for row in (row for row in self.manifest.learners if row.name in self.learners):
            n_fits = row.fits or identity.folds * identity.repeats
            fits: list[Fit] = [*range(n_fits), *([None] if row.one_network else [])]
            names += [f"{fit_path(row.name, fit)}/{HEADER_FILE}" for fit in fits]
        names += [f"{OOF}/{name}.parquet" for name in self.systems]
        if self.manifest.data.n_test:
            names += [PREDICTIONS_FILE, *(f"{TEST}/{name}.npz" for name in self.systems)]
        return names

    def own_predictions(self) -> Path:
        """Return the file of predictions of the test events after comparing it with its checksum."""
        return self.checksums.path(PREDICTIONS_FILE)

    def label_columns(self) -> pl.DataFrame:
        """Return the columns label, group, weight and fold of a training table, as far as the run has them."""
        return pl.read_parquet(self.checksums.path(LABELS_TABLE), glob=False)

    def held_out_scores(self) -> dict[str, Any]:
        """Return the scores of a run on a table on held-out rows of the training table."""
        file = self.checksums.path(METRICS_FILE)
        content: dict[str, Any] = read_json(file)
        stated_as(TableMetrics, content, file)
        return content

    def oof(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return a system's out-of-fold log-probabilities, (N, C) float64, NaN where a row was never predicted, and the
        folds, (N,) int8, negative in the holdout."""
        file = self.checksums.path(f"{OOF}/{name}.parquet")
        frame, columns = pl.read_parquet(file, glob=False), [f"logp_{one}" for one in self.task.classes]
        if missing := [column for column in (*columns, "fold") if column not in frame.columns]:
            raise InputError(f"{file} has no column {missing[0]!r}, which the run's manifest asks for")
        return frame.select(columns).to_numpy(), frame["fold"].to_numpy()

    def test(self, name: str, key: str) -> np.ndarray | None:
        """Return an array of a system's predictions of the test events, such as ``log_proba`` (N, C).

        None if there is no such array.
        """
        return read_arrays(self.checksums.path(f"{TEST}/{name}.npz"), key, "log_proba").get(key)

    def test_systems(self, n_events: int) -> Iterator[System]:
        """Yield the answers of learners, average and stack; refuse those for another number of test events."""
        for name in self.systems:
            log_proba = self.test(name, "log_proba")
            if log_proba is None:
                continue
            if len(log_proba) != n_events:
                file = self.folder / TEST / f"{name}.npz"
                raise InputError(f"{file} has {len(log_proba)} events, but the test set has {n_events}")
            for rule, output in stacking_of(self.task).answers(log_proba, lambda key, name=name: self.test(name, key)):  # type: ignore[misc]
                yield System(name, log_proba, output, rule)

    def fits(self, name: str) -> SavedFits:
        """Return where the fits of a learner are; each file is compared with its checksum."""
        row = next(row for row in self.manifest.learners if row.name == name)
        fits = tuple(SavedFit(self.fit_folder(name, fit)) for fit in self.chain.fits(name))
        return SavedFits(name, fits, tuple(row.features or ()), row.needs_grid)

    def records(self, learner: str) -> Iterator[FitRecord]:
        """Yield how a learner's fits came about, fold by fold."""
        return self._of_fits(learner, TASK_FILE, FitRecord)

    def histories(self, learner: str) -> Iterator[FitHistory]:
        """Yield the validation log-losses of a learner's fits, fold by fold; nothing where they keep none."""
        return self._of_fits(learner, HISTORY_FILE, FitHistory)

    def _of_fits(self, learner: str, name: str, shape: type[S]) -> Iterator[S]:
        for fold in count():
            file = f"{fit_path(learner, fold)}/{name}"
            if file not in self.checksums.files:
                return
            yield stated_as(shape, read_json(self.checksums.path(file)), self.folder / file)

    def fit_folder(self, name: str, fit: Fit) -> Path:
        """Return the folder of one fit after comparing all files that its learner reads; see :meth:`fits`."""
        inside = f"{fit_path(name, fit)}/"
        self.checksums.path(inside + HEADER_FILE)
        for name in self.checksums.files:
            if name.startswith(inside) and name.removeprefix(inside) not in NOT_OF_THE_LEARNER:
                self.checksums.path(name)
        return self.folder / inside

    def thresholds(
        self,
        efficiencies: tuple[float, ...] = TABLE_EFFICIENCIES,
        ratios: tuple[float, ...] = REAL_RATIOS,
    ) -> list[dict[str, Any]]:
        """Return thresholds on gamma scores for your own efficiencies and gamma-to-hadron ratios.

        See :func:`showerstack.scoring.metrics.classes.threshold_table`; made from the scores of the holdout, without
        one from out-of-fold scores of the training events.

        Raises
        ------
        InputError
            If this is no gamma run, or an efficiency is outside (0, 1].
        """
        if SCORES_FILE not in self.checksums.files:
            raise InputError(f"{self.folder} has no thresholds: it was trained for {self.task.name}")
        stored = read_arrays(self.checksums.path(SCORES_FILE), "labels", "scores", "groups", "weights")
        return threshold_table(stored.pop("labels"), stored.pop("scores"), efficiencies, ratios, **stored)


def _why_without_checksums(folder: Path, manifest: Any) -> str:
    if isinstance(manifest, dict) and manifest.get("complete"):
        return (
            f"{folder} has no {CHECKSUMS_FILE}, so that damage could not be noticed (made by an earlier version?): "
            "start the same command again, or train into a new folder"
        )
    return f"{folder} is not finished: start the same command again to continue it"


def load(folder: str | Path) -> Run:
    """Open a finished run folder for predictions: like :meth:`Run.open`, and nothing that it needs is missing.

    Raises
    ------
    InputError
        If it is not a run folder, not finished, of another version, a file that such a run has is not listed in its
        checksums, or its chain cannot be read.
    """
    run = Run.open(folder)
    run.refuse_other_versions()
    Checksums.open(run.folder, required=run.required_files)
    _ = run.chain  # read now: damage is noticed before any event is
    return run
