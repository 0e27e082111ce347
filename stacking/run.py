"""A finished run folder, opened for reading: what it says of itself, what it predicted, and what predicts with it.

Every file is compared with its checksum before it is used. Labels are not read here:
:mod:`showerstack.report.shared.subject` holds a run against them.

>>> run = load("runs/composition")  # doctest: +SKIP
>>> run.shipped, run.learners      # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl

from showerstack.models.base.saving import HEADER_FILE
from showerstack.runtime.arrays import read_arrays
from showerstack.runtime.checksums import CHECKSUMS_FILE, Checksums
from showerstack.runtime.errors import InputError, did_you_mean
from showerstack.runtime.files import check_name, read_json
from showerstack.runtime.versions import FEATURES_VERSION, STACKING_VERSION
from showerstack.scoring.metrics.classes import REAL_RATIOS, TABLE_EFFICIENCIES, threshold_table
from showerstack.showers.schema import TASKS, Task, task_named
from showerstack.stacking.answers import SCORES_FILE, stacking_of
from showerstack.stacking.chain import CALIBRATION_FILE, DECISION_FILE, META_FILE, Chain, load_chain
from showerstack.stacking.fits import HELD_OUT_FILE, HISTORY_FILE, OUTER_FILE, TASK_FILE, TEST_FILE, Fit, fold_folder
from showerstack.stacking.folder import MANIFEST_FILE, PREDICTIONS_FILE, has_checksums

COMBINED = ("average", "stack")
"""Systems of a run that are not base learners."""
ONE_ANSWER = ("score", "estimate")
"""Rules of tasks that have no other: tables need not name them."""
NOT_OF_THE_LEARNER = (HELD_OUT_FILE, OUTER_FILE, TEST_FILE, TASK_FILE, HISTORY_FILE, CHECKSUMS_FILE)
"""Files in the folder of a fit that its learner does not read: its predictions, and how it came about."""


def finished_learners(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the base learners that finished, in the manifest's order."""
    return tuple(str(row["name"]) for row in manifest.get("learners", ()) if row.get("status", "ok") == "ok")


def shipped_system(manifest: Mapping[str, Any]) -> str:
    """Return what predicts new events: ``stack``, or the best learner where the gate is closed.

    ``stack`` where the manifest does not say.
    """
    gate = manifest.get("gate", {})
    return "stack" if gate.get("shipped", True) is True else str(gate.get("best_learner"))


def read_oof(file: Path, classes: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Read an out-of-fold file.

    Returns
    -------
    log_proba
        (N, C) float64 of all training events; NaN where a row was never predicted.
    folds
        (N,) int8: which fold an event is in; negative in the outer holdout.
    """
    frame = pl.read_parquet(file, glob=False)
    return frame.select(f"logp_{name}" for name in classes).to_numpy(), frame["fold"].to_numpy()


def evaluated_rows(stack: np.ndarray, folds: np.ndarray, *, holdout: bool) -> np.ndarray:
    """Return which training events what ships was evaluated on, (N,) bool: the outer holdout, or all predicted ones.

    Parameters
    ----------
    stack, folds
        What :func:`read_oof` returns of the stack.
    holdout
        Whether there is an outer holdout.
    """
    rows: np.ndarray = ~np.isnan(stack[:, -1]) & ((folds < 0) | (not holdout))
    return rows


@dataclass(frozen=True)
class System:
    """One column of answers for the test events: a learner, the plain average, or the stack."""

    name: str
    log_proba: np.ndarray
    """(N, C) float64 natural logarithms."""
    output: np.ndarray
    """What the metric scores: hard labels (N,) or gamma scores (N,)."""
    rule: str
    """How it came about: ``argmax``, or one of :data:`ONE_ANSWER`."""


@dataclass(frozen=True)
class SavedFits:
    """All fits of one learner, ready to be opened."""

    name: str
    folders: tuple[Path, ...]
    """One per fit."""
    columns: tuple[str, ...]
    """Table columns that it sees."""
    needs_grid: bool
    truth: bool = False
    """Ask for its estimates of true quantities, (n, T, 2) a fit, instead of log-probabilities."""


@dataclass(frozen=True)
class Run:
    """A finished run folder, of showers or of a table; see :meth:`open`. :mod:`showerstack.stacking.predict` predicts
    with it."""

    needs: ClassVar[str] = "train"
    """Extra whose libraries predict."""
    folder: Path
    manifest: Mapping[str, Any]
    checksums: Checksums
    """Checksums by which every file is compared before it is used."""

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
        if not has_checksums(folder):
            raise InputError(_why_without_checksums(folder, read_json(file)))
        checksums = Checksums.open(folder, required=(MANIFEST_FILE,))
        manifest = read_json(checksums.path(MANIFEST_FILE))
        if not isinstance(manifest, dict) or "task" not in manifest:
            raise InputError(f"{file} names no task: expected the manifest of a stacking run")
        for row in manifest.get("learners", []):
            check_name(row["name"], file)
        return cls(folder, manifest, checksums)

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.folder.resolve().name

    @cached_property
    def task(self) -> Task:
        """What is predicted; classes of a run on a table are those of its labels, as text."""
        name = str(self.manifest["task"])
        if not self.has_grids and "classes" in self.manifest:
            return Task(name, tuple(self.manifest["classes"]))
        return task_named(name)

    @property
    def has_grids(self) -> bool:
        """Whether its events are showers with detector grids, not rows of a table alone."""
        return str(self.manifest["task"]) in TASKS

    def require_showers(self, what: str) -> None:
        """Refuse a run on a table, which ``what`` (such as ``a data check``) can do nothing with.

        Raises
        ------
        InputError
            If it was trained on a table.
        """
        if not self.has_grids:
            raise InputError(f"{self.folder} was trained on a table: {what} needs a run trained on showers")

    def refuse_other_versions(self) -> None:
        """Refuse a run that was made by another version of stacking or features.

        Raises
        ------
        InputError
            One line that says to train again.
        """
        here = {"stacking": STACKING_VERSION} | ({"features": FEATURES_VERSION} if self.has_grids else {})
        for what, now in here.items():
            made_by = self.manifest.get(f"{what}_version", 0)
            if made_by != now:
                raise InputError(
                    f"{self.folder} was made by version {made_by} of the {what}, which is now {now}: train again "
                    f"(python cli.py stack --task {self.manifest['task']} --data DATA --run NEW_RUN)"
                )

    @property
    def class_values(self) -> tuple[Any, ...]:
        """Classes as the training labels had them: ``bool``, ``int``, ``float`` or ``str``."""
        as_value: dict[str, Callable[[str], Any]] = {"bool": "True".__eq__, "int": int, "float": float}
        return tuple(map(as_value.get(self.manifest.get("label_type", "str"), str), self.task.classes))

    @property
    def shipped(self) -> str:
        """What predicts new events; see :func:`shipped_system`."""
        return shipped_system(self.manifest)

    @property
    def learners(self) -> tuple[str, ...]:
        """Base learners that finished; see :func:`finished_learners`."""
        return finished_learners(self.manifest)

    @property
    def systems(self) -> tuple[str, ...]:
        """Learners that finished, average and stack."""
        return (*self.learners, *COMBINED)

    @property
    def required_files(self) -> list[str]:
        """Names of the files that such a run cannot do without."""
        identity = self.manifest["identity"]
        n_fits = int(identity["folds"]) * int(identity["repeats"])
        names = [MANIFEST_FILE, *(f"meta/{name}" for name in (CALIBRATION_FILE, META_FILE, DECISION_FILE))]
        networks = {row["name"] for row in self.manifest["learners"] if row.get("one_network")}
        for name in self.learners:
            fits: list[Fit] = [*range(n_fits), *([None] if name in networks else [])]
            names += [(fold_folder(Path(), name, fold) / HEADER_FILE).as_posix() for fold in fits]
        names += [f"oof/{name}.parquet" for name in self.systems]
        if self.manifest["data"]["n_test"]:
            names += [PREDICTIONS_FILE, *(f"test/{name}.npz" for name in self.systems)]
        return names

    @cached_property
    def chain(self) -> Chain:
        """What follows the base learners.

        Raises
        ------
        InputError
            If a file under ``meta/`` is not the one that was written, or not what such a run holds.
        """
        return load_chain(self.checksums, self.task, self.systems, str(self.manifest["config_hash"]))

    @property
    def predictions(self) -> Path:
        """The file of predictions of the test events."""
        return self.folder / PREDICTIONS_FILE

    def oof(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return a system's out-of-fold log-probabilities and the folds; see :func:`read_oof`."""
        return read_oof(self.checksums.path(f"oof/{name}.parquet"), self.task.classes)

    def test(self, name: str, key: str) -> np.ndarray | None:
        """Return one array of what a system says of the test events, such as ``log_proba`` (N, C).

        None if there is no such array.

        Raises
        ------
        InputError
            If ``test/<name>.npz`` is missing, damaged or replaced.
        """
        return read_arrays(self.checksums.path(f"test/{name}.npz"), key, "log_proba").get(key)

    def test_systems(self, n_events: int) -> Iterator[System]:
        """Yield learners, average and stack.

        Parameters
        ----------
        n_events
            Number of test events that each must have predicted.
        """
        for name in self.systems:
            log_proba = self.test(name, "log_proba")
            if log_proba is None:
                continue
            if len(log_proba) != n_events:
                file = self.folder / "test" / f"{name}.npz"
                raise InputError(f"{file} has {len(log_proba)} events, but the test set has {n_events}")
            for rule, output in stacking_of(self.task).answers(log_proba, lambda key, name=name: self.test(name, key)):  # type: ignore[misc]
                yield System(name, log_proba, output, rule)

    def fits(self, name: str) -> SavedFits:
        """Return where the fits of a learner are; each file is compared with its checksum.

        Raises
        ------
        InputError
            If a file is missing or not the one that was written.
        """
        record = next(row for row in self.manifest["learners"] if row["name"] == name)
        folders = tuple(self.fit_folder(name, fold) for fold in self.chain.fits(name))
        return SavedFits(name, folders, tuple(record["features"]), bool(record["needs_grid"]))

    def fit_folder(self, name: str, fold: Fit) -> Path:
        """Return the folder of one fit after comparing all files that its learner reads; see :meth:`fits`."""
        return self._compared(fold_folder(self.folder, name, fold))

    def _compared(self, folder: Path) -> Path:
        inside = f"{folder.relative_to(self.folder).as_posix()}/"
        self.checksums.path(inside + HEADER_FILE)
        for name in self.checksums.files:
            if name.startswith(inside) and name.removeprefix(inside) not in NOT_OF_THE_LEARNER:
                self.checksums.path(name)
        return folder

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
        if f"meta/{SCORES_FILE}" not in self.checksums.files:
            raise InputError(f"{self.folder} has no thresholds: it was trained for {self.task.name}")
        with np.load(self.checksums.path(f"meta/{SCORES_FILE}"), allow_pickle=False) as stored:
            beside = {name: stored[name] for name in ("groups", "weights") if name in stored.files}
            return threshold_table(stored["labels"], stored["scores"], efficiencies, ratios, **beside)


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
