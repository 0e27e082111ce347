"""The run folder: written by one process at a time, then opened for reading.

Every file of a finished run has a checksum, which is compared when the file is used. This shows damage and mix-ups, not
forgery: whoever can replace a file can replace its checksum too. Labels are not read here:
:mod:`showerstack.report.shared.subject` holds a run against them.

>>> run = load("runs/composition")  # doctest: +SKIP
>>> run.shipped, run.learners      # doctest: +SKIP
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl

from showerstack.models.base.saving import HEADER_FILE, check_threads
from showerstack.runtime.arrays import read_arrays
from showerstack.runtime.checksums import CHECKSUMS_FILE, Checksums, write_checksums
from showerstack.runtime.errors import InputError, did_you_mean
from showerstack.runtime.files import (
    LOCK_FILE,
    atomic_path,
    check_name,
    locked,
    read_json,
    remove_all_leftovers,
)
from showerstack.runtime.stated import Entries, check_stated
from showerstack.runtime.versions import FEATURES_VERSION, STACKING_VERSION
from showerstack.scoring.metrics.classes import REAL_RATIOS, TABLE_EFFICIENCIES, threshold_table
from showerstack.showers.schema import LOG_FILE, MANIFEST_FILE, PREDICTIONS_FILE, TASKS, Task, task_named
from showerstack.stacking.answers import SCORES_FILE, stacking_of
from showerstack.stacking.chain import CALIBRATION_FILE, DECISION_FILE, META_FILE, Chain, load_chain
from showerstack.stacking.config import SECOND_LEVEL
from showerstack.stacking.fits import HISTORY_FILE, HOLDOUT_FILE, OOF_FILE, TASK_FILE, TEST_FILE, Fit, fold_folder
from showerstack.stacking.stated import Manifest

SCHEMA_FILE = "columns.json"
"""In the folder ``table`` of a run on a table: what each column is."""
PREDICTIONS_TABLE = "predictions.parquet"
"""Predictions of a run on a table."""
METRICS_FILE = "metrics_table.json"
"""Scores of a run on a table."""
TABLE_TEST_FILE = "metrics_table_test.json"
"""Its scores on a test table with labels."""
MADE_LATER = ("report.html", "model_card.md", TABLE_TEST_FILE, *(f"metrics_{task}.json" for task in TASKS))
"""Files that scoring and reporting write into a finished run, as often as one likes."""
SECOND_LEVEL_FOLDERS = ("meta", "oof", "test")
COMBINED = ("average", "stack")
"""Systems of a run that are not base learners."""
ONE_ANSWER = ("score", "estimate")
"""Rules of tasks that have no other: reports need not name them."""
NOT_OF_THE_LEARNER = (OOF_FILE, HOLDOUT_FILE, TEST_FILE, TASK_FILE, HISTORY_FILE, CHECKSUMS_FILE)
"""Files in the folder of a fit that its learner does not read: its predictions, and how it came about."""


@contextmanager
def opened_for_writing(run: Path) -> Iterator[None]:
    """Hold the run folder for this process alone; refuse one that holds something else, or is in use."""
    if run.exists() and not run.is_dir():
        raise InputError(f"{run} is a file: expected a run folder")
    if run.is_dir() and (links := [entry for entry in run.iterdir() if entry.is_symlink() and entry.is_dir()]):
        raise InputError(f"{links[0]} is a link: a run is one folder with all its parts; move and link all of it")
    if run.is_dir() and any(run.iterdir()) and not (run / MANIFEST_FILE).exists() and not (run / LOCK_FILE).exists():
        raise InputError(f"{run} holds other files: choose an empty or new folder for the run")
    was_there = run.is_dir()
    was_empty = not was_there or not any(run.iterdir())
    with locked(run):
        _remove_leftovers(run)
        try:
            yield
        except InputError:
            if was_empty and not (run / MANIFEST_FILE).exists():
                _empty(run, keep=was_there)  # so that the name stays free
            raise
        finally:
            # Workers that were stopped half-way left theirs.
            if run.is_dir():
                _remove_leftovers(run)


def _empty(run: Path, *, keep: bool) -> None:
    for entry in run.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    if not keep:
        run.rmdir()


def _remove_leftovers(run: Path) -> None:
    """Remove what a killed run left half-written."""
    for folder in (run, *run.glob("[!.]*/"), *run.glob("[!.]*/[!.]*/")):
        remove_all_leftovers(folder)


def refuse_other_configuration(run: Path, requested: Mapping[str, Any]) -> None:
    """Refuse a folder whose fits are of another configuration; ``requested`` holds what can change a fit."""
    file = run / MANIFEST_FILE
    if not file.exists():
        return
    before = read_json(file).get("identity", {})
    names = [name for name in {**before, **requested} if name not in SECOND_LEVEL]
    changed = [name for name in names if before.get(name) != requested.get(name)]
    if changed:
        raise InputError(
            f"{run} belongs to another configuration (different: {', '.join(changed) if before else 'everything'}): "
            "choose another run folder or remove this one"
        )


def remove_second_level(run: Path) -> None:
    """Remove what follows the fits, and ``checksums.json``: all of it is about to be made anew."""
    (run / CHECKSUMS_FILE).unlink(missing_ok=True)
    for folder in SECOND_LEVEL_FOLDERS:
        shutil.rmtree(run / folder, ignore_errors=True)
    for name in (PREDICTIONS_FILE, PREDICTIONS_TABLE, METRICS_FILE, *MADE_LATER):
        (run / name).unlink(missing_ok=True)


def write_run_checksums(run: Path) -> Checksums:
    """Write ``checksums.json`` over the files of a finished run: of a fit its own list, not the log nor
    :data:`MADE_LATER`."""
    files = [path.relative_to(run) for path in run.rglob("*") if path.is_file()]
    fits = {file.parent for file in files if file.name == CHECKSUMS_FILE}
    listed = [file for file in files if file.name == CHECKSUMS_FILE or not fits.intersection(file.parents[:-1])]
    names = (file.as_posix() for file in listed if not any(part.startswith(".") for part in file.parts))
    return write_checksums(run, [name for name in names if name not in (*MADE_LATER, LOG_FILE, CHECKSUMS_FILE)])


def write_oof(file: Path, log_proba: np.ndarray, folds: np.ndarray, classes: tuple[str, ...]) -> None:
    """Write out-of-fold log-probabilities: event, fold, ``logp_<class>``; NaN where a row was never predicted."""
    frame = pl.DataFrame(
        {
            "event": np.arange(len(folds), dtype=np.uint32),
            "fold": folds.astype(np.int8),
            **{f"logp_{name}": np.ascontiguousarray(log_proba[:, k]) for k, name in enumerate(classes)},
        }
    )
    with atomic_path(file) as temporary:
        frame.write_parquet(temporary)


def read_oof(file: Path, classes: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Read an out-of-fold file.

    Returns
    -------
    log_proba
        (N, C) float64 of all training events; NaN where a row was never predicted.
    folds
        (N,) int8: the fold of an event; negative in the holdout.
    """
    frame = pl.read_parquet(file, glob=False)
    return frame.select(f"logp_{name}" for name in classes).to_numpy(), frame["fold"].to_numpy()


def evaluated_rows(stack: np.ndarray, folds: np.ndarray, *, holdout: bool) -> np.ndarray:
    """Return the training events that systems were evaluated on, (N,) bool: the holdout, or all predicted ones.

    ``stack`` and ``folds`` are what :func:`read_oof` returns of the stack.
    """
    rows: np.ndarray = ~np.isnan(stack[:, -1]) & ((folds < 0) | (not holdout))
    return rows


def finished_learners(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the base learners that finished, in the manifest's order."""
    return tuple(str(row["name"]) for row in manifest.get("learners", ()) if row.get("status", "ok") == "ok")


def shipped_system(manifest: Mapping[str, Any]) -> str:
    """Return the system that predicts new events: ``stack``, or the best learner where the gate is closed.

    A manifest without a gate means ``stack``.
    """
    gate = manifest.get("gate", {})
    return "stack" if gate.get("shipped", True) is True else str(gate.get("best_learner"))


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
class SavedFits:
    """Where the fits of one learner are."""

    name: str
    folders: tuple[Path, ...]
    """One per fit."""
    columns: tuple[str, ...]
    """Table columns that it gets."""
    needs_grid: bool
    truth: bool = False
    """Whether its estimates of true quantities, (n, T, 2) a fit, are needed instead of its log-probabilities."""


@dataclass(frozen=True)
class Run:
    """A finished run folder, of showers or of a table; see :meth:`open`. :mod:`showerstack.stacking.predict` predicts
    with it."""

    needs: ClassVar[str] = "train"
    """Extra whose libraries predict."""
    folder: Path
    manifest: Mapping[str, Any]
    checksums: Checksums
    """Every file is compared with its checksum before it is used."""

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
        manifest = read_json(checksums.path(MANIFEST_FILE))
        if not isinstance(manifest, dict) or "task" not in manifest:
            raise InputError(f"{file} names no task: expected the manifest of a stacking run")
        check_stated(manifest, Manifest, file)
        for row in manifest.get("learners", []):
            check_name(row["name"], file)
        return cls(folder, Entries.of(manifest, file), checksums)

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.folder.resolve().name

    @cached_property
    def task(self) -> Task:
        """The task; classes of a run on a table are those of its labels, as text."""
        name = str(self.manifest["task"])
        if not self.has_grids and "classes" in self.manifest:
            return Task(name, tuple(self.manifest["classes"]))
        return task_named(name)

    @property
    def has_grids(self) -> bool:
        """Whether its events are showers with detector grids, not rows of a table alone."""
        return str(self.manifest["task"]) in TASKS

    def require_showers(self, what: str) -> None:
        """Refuse a run on a table, with which ``what`` (such as ``a data check``) cannot work.

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
            If it was; the line asks for another training.
        """
        current = {"stacking": STACKING_VERSION} | ({"features": FEATURES_VERSION} if self.has_grids else {})
        for what, version in current.items():
            made_by = self.manifest.get(f"{what}_version", 0)
            if made_by != version:
                raise InputError(
                    f"{self.folder} was made by version {made_by} of the {what}, which is now {version}: train again "
                    f"(python cli.py stack --task {self.manifest['task']} --data DATA --run NEW_RUN)"
                )

    @property
    def threads(self) -> int:
        """Numerical threads of a process, in training and prediction alike."""
        config = self.manifest["config"]
        return check_threads(config.get("threads") if isinstance(config, dict) else None, self.folder / MANIFEST_FILE)

    @property
    def class_values(self) -> tuple[Any, ...]:
        """Classes as the training labels had them: ``bool``, ``int``, ``float`` or ``str``."""
        as_value: dict[str, Callable[[str], Any]] = {"bool": "True".__eq__, "int": int, "float": float}
        return tuple(map(as_value.get(self.manifest.get("label_type", "str"), str), self.task.classes))

    @property
    def shipped(self) -> str:
        """The system that predicts new events; see :func:`shipped_system`."""
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
        fits_of = {row["name"]: int(row.get("fits", n_fits)) for row in self.manifest["learners"]}
        for name in self.learners:
            fits: list[Fit] = [*range(fits_of[name]), *([None] if name in networks else [])]
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
        """Return an array of a system's predictions of the test events, such as ``log_proba`` (N, C).

        None if there is no such array.

        Raises
        ------
        InputError
            If ``test/<name>.npz`` is missing, damaged or replaced.
        """
        return read_arrays(self.checksums.path(f"test/{name}.npz"), key, "log_proba").get(key)

    def test_systems(self, n_events: int) -> Iterator[System]:
        """Yield the answers of learners, average and stack; refuse those for another number of test events."""
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
        folders = tuple(self.fit_folder(name, fit) for fit in self.chain.fits(name))
        return SavedFits(name, folders, tuple(record["features"]), bool(record["needs_grid"]))

    def fit_folder(self, name: str, fit: Fit) -> Path:
        """Return the folder of one fit after comparing all files that its learner reads; see :meth:`fits`."""
        folder = fold_folder(self.folder, name, fit)
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
        stored = read_arrays(self.checksums.path(f"meta/{SCORES_FILE}"), "labels", "scores", "groups", "weights")
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
