"""The folder of a run: every path, file, checksum, array and manifest entry of it.

:class:`RunFolder` is written by one process at a time; :class:`Run` is a finished one, opened for reading. Every file
of a finished run has a checksum, which is compared when the file is used. This shows damage and mix-ups, not forgery:
whoever can replace a file can replace its checksum too. Labels are not read here:
:mod:`showerstack.report.shared.subject` holds a run against them.

>>> run = load("runs/composition")  # doctest: +SKIP
>>> run.shipped, run.learners      # doctest: +SKIP
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import polars as pl

from showerstack.models.base.learner import Predictor
from showerstack.models.base.saving import HEADER_FILE, check_threads, read_header
from showerstack.models.registry import open_predictor, predicts_alone
from showerstack.runtime.arrays import array_names, open_npy, read_arrays
from showerstack.runtime.checksums import CHECKSUMS_FILE, Checksums, write_checksums
from showerstack.runtime.code import versions
from showerstack.runtime.errors import InputError, did_you_mean
from showerstack.runtime.files import (
    LOCK_FILE,
    atomic_path,
    check_name,
    locked,
    read_json,
    remove_all_leftovers,
    write_json,
    write_npz,
)
from showerstack.runtime.logs import LogFile
from showerstack.runtime.stated import stated_as, understood
from showerstack.runtime.versions import FEATURES_VERSION, STACKING_VERSION
from showerstack.scoring.metrics.classes import REAL_RATIOS, TABLE_EFFICIENCIES, threshold_table
from showerstack.showers.nuclei import GROUPS, composition_of
from showerstack.showers.schema import LOG_FILE, MANIFEST_FILE, PREDICTIONS_FILE, TASKS, Task, task_named
from showerstack.stacking.chain import COMBINED, Chain, Fit, Predictions
from showerstack.stacking.config import SECOND_LEVEL, write_config
from showerstack.stacking.estimates import Posterior, TargetCalibration, rule_from_json, stacking_of
from showerstack.stacking.second_level import Pool
from showerstack.stacking.stated import Begun, FitHistory, FitRecord, Manifest, TableMetrics, Trained

S = TypeVar("S", FitRecord, FitHistory)

LOG_PROBA, ESTIMATES = "log_proba", "truth"
"""Arrays of a fit's predictions: log-probabilities, and estimates of true quantities where the learner gives any."""
OWN_FOLD, HOLDOUT, TEST = "held_out", "outer", "test"
"""What a fit predicts: its own fold, the holdout, the test events. Each is a file ``<name>.npz``."""
TASK_FILE = "task.json"
HISTORY_FILE = "history.json"
"""Validation log-loss by epoch or round, of learners that have such a thing."""
NOT_OF_THE_LEARNER = (*(f"{part}.npz" for part in (OWN_FOLD, HOLDOUT, TEST)), TASK_FILE, HISTORY_FILE, CHECKSUMS_FILE)
"""Files in the folder of a fit that its learner does not read: its predictions, and how it came about."""
AVERAGE = "average"
"""Folder of the network with the mean weights of a learner's fits, beside those of the fits."""
LEARNERS, META, OOF = "learners", "meta", "oof"
TABLE_FOLDER = "table"
"""Folder of a run with the tables that its fits read."""
SCALES_FILE, POOL_FILE, RULES_FILE, ESTIMATES_FILE = (
    f"{META}/{name}.json" for name in ("calibration", "stack", "decision", "estimates")
)
"""The chain: temperatures; pool, shipped system, fits; rules of answers; errors of estimates where there are any."""
CHAIN_FILES = (SCALES_FILE, POOL_FILE, RULES_FILE)
"""Files of the chain that every run has."""
SCORES_FILE = f"{META}/held_out_scores.npz"
"""Of a gamma run: labels, scores and, where there are any, groups and importance weights of the judged events."""
LABELS_TABLE = f"{TABLE_FOLDER}/train-labels.parquet"
COLUMNS_FILE = f"{TABLE_FOLDER}/columns.json"
"""Of a run on a table: what each column is."""
PREDICTIONS_TABLE = "predictions.parquet"
"""Predictions of a run on a table."""
METRICS_FILE = "metrics_table.json"
"""Scores of a run on a table."""
TABLE_TEST_FILE = "metrics_table_test.json"
"""Its scores on a test table with labels."""
REPORT_FILE, CARD_FILE = "report.html", "model_card.md"
MADE_LATER = (REPORT_FILE, CARD_FILE, TABLE_TEST_FILE, *(f"metrics_{task}.json" for task in TASKS))
"""Files that scoring and reporting write into a finished run, as often as one likes."""
ONE_ANSWER = ("score", "estimate")
"""Rules of tasks that have no other: reports need not name them."""
CHECKPOINTS = "checkpoints"
"""Folder with the state of unfinished fits; gone when all are done."""
START_FILE = ".start"
"""In a folder that is at work: a number that no other start of any run has."""


@dataclass(frozen=True)
class FitFolder:
    """The folder of one of a learner's fits. It has checksums of its own: until the run is finished, they show what was
    damaged or exchanged between a kill and the next start."""

    path: Path

    def problem(self) -> str | None:
        """Return what is wrong with a finished fit; None if nothing is, or if it is not there."""
        if not self.path.exists():
            return None
        try:
            problems = Checksums.open(self.path, required=(TASK_FILE, f"{OWN_FOLD}.npz")).problems()
        except InputError as error:
            return str(error)
        return problems[0] if problems else None

    @property
    def is_there(self) -> bool:
        """Whether the fit has ever been finished."""
        return (self.path / TASK_FILE).exists()

    def record(self) -> FitRecord:
        """Return how the fit came about."""
        file = Checksums.open(self.path).path(TASK_FILE)
        return stated_as(FitRecord, read_json(file), file)

    def read(self, part: str, *, estimates: bool = False) -> np.ndarray:
        """Read the (n, C) log-probabilities of :data:`OWN_FOLD` or another part, or the (n, T, 2) estimates."""
        array = ESTIMATES if estimates else LOG_PROBA
        return read_arrays(Checksums.open(self.path).path(f"{part}.npz"), array)[array]

    def has_estimates(self) -> bool:
        """Return whether the fit has estimated true quantities."""
        return ESTIMATES in array_names(Checksums.open(self.path).path(f"{OWN_FOLD}.npz"))

    def write(self, part: str, posterior: Posterior) -> None:
        """Write what :meth:`read` reads."""
        arrays = {LOG_PROBA: posterior.log_proba, ESTIMATES: posterior.estimates}
        write_npz(self.path / f"{part}.npz", **{name: z for name, z in arrays.items() if z is not None})

    def write_history(self, losses: list[float]) -> None:
        """Write the validation log-loss by epoch or round."""
        write_json(self.path / HISTORY_FILE, FitHistory(valid_log_loss=losses).as_json())

    def finish(self, record: FitRecord | None = None) -> None:
        """Write how the fit came about, and the checksums of all that is there."""
        if record is not None:
            write_json(self.path / TASK_FILE, record.as_json())
        write_checksums(self.path)


def fit_path(learner: str, fit: Fit) -> str:
    """Return where one of a learner's fits is in a run; refuse a name that leads out of it."""
    return f"{LEARNERS}/{check_name(learner, Path(LEARNERS))}/{AVERAGE if fit is None else f'fold-{fit}'}"


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run, finished or not."""

    folder: Path

    def fit(self, learner: str, fit: Fit) -> FitFolder:
        """Return the folder of one of a learner's fits."""
        return FitFolder(self.folder / fit_path(learner, fit))

    def checkpoint(self, learner: str, fold: int, key: str) -> Path:
        """Return where an unfinished fit keeps its state; that of another configuration or code has another name."""
        return self.folder / CHECKPOINTS / learner / f"fold-{fold}-{key[:16]}"

    def late(self, learner: str) -> Path:
        """Return the mark that a fit of a learner was given up for want of time: the others need not begin."""
        return self.folder / CHECKPOINTS / learner / "late"

    def remove_checkpoints(self) -> None:
        """Remove the state of all unfinished fits."""
        shutil.rmtree(self.folder / CHECKPOINTS, ignore_errors=True)

    @property
    def train_table(self) -> Path:
        """The training table of a run on a table, as learners get it."""
        return self.folder / TABLE_FOLDER / "train.parquet"

    @property
    def test_table(self) -> Path:
        """The test table of such a run."""
        return self.folder / TABLE_FOLDER / "test.parquet"

    @property
    def labels_table(self) -> Path:
        """Labels, groups, weights and folds of the training table."""
        return self.folder / LABELS_TABLE

    @property
    def predictions(self) -> Path:
        """Predictions of the test events of a run on showers."""
        return self.folder / PREDICTIONS_FILE

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
    def predictions_table(self) -> Path:
        """Predictions of such a run."""
        return self.folder / PREDICTIONS_TABLE

    @property
    def log(self) -> LogFile:
        """What is logged while the run is at work."""
        return LogFile(self.folder / LOG_FILE)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder for this process alone; refuse one that holds something else, or is in use."""
        run = self.folder
        if run.exists() and not run.is_dir():
            raise InputError(f"{run} is a file: expected a run folder")
        if run.is_dir() and (links := [entry for entry in run.iterdir() if entry.is_symlink() and entry.is_dir()]):
            raise InputError(f"{links[0]} is a link: a run is one folder with all its parts; move and link all of it")
        is_run = (run / MANIFEST_FILE).exists() or (run / LOCK_FILE).exists()
        if run.is_dir() and any(run.iterdir()) and not is_run:
            raise InputError(f"{run} holds other files: choose an empty or new folder for the run")
        was_there = run.is_dir()
        was_empty = not was_there or not any(run.iterdir())
        with locked(run):
            self._remove_leftovers()
            try:
                yield
            except InputError:
                if was_empty and not (run / MANIFEST_FILE).exists():
                    self._empty(keep=was_there)  # so that the name stays free
                raise
            finally:
                # Workers that were stopped half-way left theirs.
                if run.is_dir():
                    self._remove_leftovers()

    def _empty(self, *, keep: bool) -> None:
        for entry in self.folder.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        if not keep:
            self.folder.rmdir()

    def _remove_leftovers(self) -> None:
        """Remove what a killed run left half-written."""
        for folder in (self.folder, *self.folder.glob("[!.]*/"), *self.folder.glob("[!.]*/[!.]*/")):
            remove_all_leftovers(folder)

    @contextmanager
    def started(self) -> Iterator[str]:
        """Mark the folder, which this process holds, as at work; yield the number of this start."""
        number = secrets.token_hex(16)
        with atomic_path(self.folder / START_FILE) as temporary:
            temporary.write_text(number)
        try:
            yield number
        finally:
            (self.folder / START_FILE).unlink(missing_ok=True)

    @property
    def start(self) -> str:
        """Number of the start that is at work here; empty where none is."""
        try:
            return (self.folder / START_FILE).read_text()
        except FileNotFoundError:
            return ""

    def refuse_other_configuration(self, requested: Mapping[str, Any]) -> None:
        """Refuse a folder whose fits are of another configuration; ``requested`` holds what can change a fit."""
        file = self.folder / MANIFEST_FILE
        if not file.exists():
            return
        before = read_json(file).get("identity", {})
        names = [name for name in {**before, **requested} if name not in SECOND_LEVEL]
        changed = [name for name in names if before.get(name) != requested.get(name)]
        if changed:
            raise InputError(
                f"{self.folder} belongs to another configuration (different: "
                f"{', '.join(changed) if before else 'everything'}): choose another run folder or remove this one"
            )

    def finished_as(self, expected: Mapping[str, Any]) -> Manifest | None:
        """Return the manifest of a finished run that has all of these entries; None where there is no such run."""
        if not all((self.folder / name).exists() for name in (MANIFEST_FILE, CHECKSUMS_FILE)):
            return None
        content = read_json(file := self.folder / MANIFEST_FILE)
        is_it = all(content.get(name) == value for name, value in {"complete": True, **expected}.items())
        return stated_as(Manifest, content, file) if is_it else None

    def remove_second_level(self) -> None:
        """Remove what follows the fits, and ``checksums.json``: all of it is about to be made anew."""
        (self.folder / CHECKSUMS_FILE).unlink(missing_ok=True)
        for name in (META, OOF, TEST):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        for name in (PREDICTIONS_FILE, PREDICTIONS_TABLE, METRICS_FILE, *MADE_LATER):
            (self.folder / name).unlink(missing_ok=True)

    def write_manifest(self, manifest: Begun) -> None:
        """Write ``manifest.json``, and the configuration in it as TOML beside it."""
        write_config(self.folder / "config.toml", manifest.config.as_json())
        write_json(self.folder / MANIFEST_FILE, manifest.as_json())

    def write_folds(self, partitions: np.ndarray, in_evaluation: np.ndarray) -> None:
        """Write what :attr:`partitions` and :attr:`in_evaluation` read."""
        for name, array in (("folds.npy", partitions), ("in_evaluation.npy", in_evaluation)):
            with atomic_path(self.folder / name) as temporary, temporary.open("wb") as file:
                np.save(file, array, allow_pickle=False)

    @property
    def partitions(self) -> np.ndarray:
        """(R, N) int8 fold of every training event, a row for each repetition; -1 in the holdout."""
        return open_npy(self.folder / "folds.npy")

    @property
    def in_evaluation(self) -> np.ndarray:
        """(N,) bool: training events of the kind that predictions are scored on."""
        return np.asarray(open_npy(self.folder / "in_evaluation.npy"))

    def write_columns(self, schema: Mapping[str, Any]) -> None:
        """Write what the columns of the training table are."""
        write_json(self.folder / COLUMNS_FILE, schema)

    def write_chain(self, chain: Chain) -> None:
        """Write what follows the learners."""
        write_json(self.folder / SCALES_FILE, dict(chain.scales))
        pool = {**chain.pool.as_json(), "shipped": chain.shipped, "n_fits": chain.n_fits}
        optional = {"prior": chain.prior, "networks": chain.networks, "raced": chain.raced}
        write_json(self.folder / POOL_FILE, pool | {name: list(values) for name, values in optional.items() if values})
        if chain.target_calibration:
            write_json(self.folder / ESTIMATES_FILE, chain.target_calibration.as_json())
        write_json(self.folder / RULES_FILE, {name: rule.as_json() for name, rule in chain.rules.items()})

    def write_scores(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Write what :meth:`Run.thresholds` is made from."""
        write_npz(self.folder / SCORES_FILE, **arrays)

    def write_scores_of_table(self, scores: Mapping[str, Any]) -> None:
        """Write the scores of a run on a table."""
        write_json(self.folder / METRICS_FILE, scores)

    def write_oof(self, system: str, log_proba: np.ndarray, folds: np.ndarray, classes: tuple[str, ...]) -> None:
        """Write log-probabilities of training events: event, fold, ``logp_<class>``; NaN where never predicted."""
        frame = pl.DataFrame(
            {
                "event": np.arange(len(folds), dtype=np.uint32),
                "fold": folds.astype(np.int8),
                **{f"logp_{name}": np.ascontiguousarray(log_proba[:, k]) for k, name in enumerate(classes)},
            }
        )
        with atomic_path(self.folder / OOF / f"{system}.parquet") as temporary:
            frame.write_parquet(temporary)

    def write_test(self, system: str, **arrays: np.ndarray) -> None:
        """Write a system's predictions of the test events."""
        write_npz(self.folder / TEST / f"{system}.npz", **arrays)

    def write_predictions(self, predictions: Predictions) -> None:
        """Write ``predictions.npz``."""
        write_npz(self.folder / PREDICTIONS_FILE, **predictions.stored_arrays())

    def read_fits(self, learner: str, fits: Iterable[Fit], part: str = TEST, *, estimates: bool = False) -> np.ndarray:
        """Read the log-probabilities of each of a learner's fits, (F, n, C), or the estimates, (F, n, T, 2)."""
        return np.stack([self.fit(learner, fit).read(part, estimates=estimates) for fit in fits])

    def read_out_of_fold(
        self, learner: str, partitions: np.ndarray, predicted: np.ndarray, *, estimates: bool = False
    ) -> np.ndarray:
        """Read what a learner's fits predicted out-of-fold: (R, N, ...) float64, NaN where a row was never predicted.

        ``partitions`` are (R, N) int8, the folds of each repetition, -1 in the holdout; ``predicted`` (N,) bool.
        """
        n_folds, shape = int(partitions.max()) + 1, partitions.shape
        every = range(len(partitions) * n_folds)
        parts = [self.fit(learner, fit).read(OWN_FOLD, estimates=estimates) for fit in every]
        values = np.full((*shape, *parts[0].shape[1:]), np.nan)
        for fit, part in enumerate(parts):
            repeat, fold = divmod(fit, n_folds)
            values[repeat, (partitions[repeat] == fold) & predicted] = part
        return values

    def write_checksums(self) -> Checksums:
        """Write ``checksums.json`` over the files of a finished run: of a fit its own list, not the log nor
        :data:`MADE_LATER`."""
        files = [path.relative_to(self.folder) for path in self.folder.rglob("*") if path.is_file()]
        fits = {file.parent for file in files if file.name == CHECKSUMS_FILE}
        listed = [file for file in files if file.name == CHECKSUMS_FILE or not fits.intersection(file.parents[:-1])]
        names = (file.as_posix() for file in listed if not any(part.startswith(".") for part in file.parts))
        unlisted = (*MADE_LATER, LOG_FILE, CHECKSUMS_FILE)
        return write_checksums(self.folder, [name for name in names if name not in unlisted])


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
class SavedFit:
    """One fit of a learner, to be opened for predictions."""

    place: Path
    """Its folder."""

    @property
    def header(self) -> Path:
        """The file that says what it is."""
        return self.place / HEADER_FILE

    @property
    def needs(self) -> tuple[str, ...]:
        """The extra whose libraries predict; none where the core does."""
        return () if predicts_alone(read_header(self.place)) else ("train",)

    def absolute(self) -> Self:
        """Return the same for programs with another working directory."""
        return replace(self, place=self.place.absolute())

    def open(self) -> Predictor:
        """Return what predicts as the fit does."""
        return open_predictor(self.place)


@dataclass(frozen=True)
class SavedFits:
    """The fits of one learner."""

    name: str
    fits: tuple[SavedFit, ...]
    columns: tuple[str, ...]
    """Table columns that it gets."""
    needs_grid: bool
    log_proba: bool = True
    """Whether its log-probabilities are wanted."""
    estimates: bool = False
    """Whether its estimates of true quantities are."""


def read_chain(checksums: Checksums, task: Task, systems: Collection[str], config_hash: str) -> Chain:
    """Read what a run's folder holds of ``systems``, each file compared with its checksum."""
    with _meta(checksums, POOL_FILE) as stack:
        pool, shipped, n_fits = Pool.from_json(stack), str(stack["shipped"]), int(stack["n_fits"])
        prior = tuple(float(share) for share in stack["prior"]) if "prior" in stack else None
        networks, raced = (tuple(map(str, stack.get(name, ()))) for name in ("networks", "raced"))
        if shipped not in systems or not set(systems).issuperset((*pool.learners, *networks, *raced)):
            raise KeyError(shipped)
        if n_fits < 1:
            raise ValueError("at least one fit")
    with _meta(checksums, SCALES_FILE) as content:
        scales = {name: float(content[name]) for name in systems}
    with _meta(checksums, RULES_FILE) as content:
        rules = {name: rule_from_json(rule) for name, rule in content.items()}
    target_calibration = None
    if ESTIMATES_FILE in checksums.files:
        with _meta(checksums, ESTIMATES_FILE) as content:
            target_calibration = TargetCalibration.from_json(content)
    return Chain(task, scales, pool, rules, shipped, config_hash, n_fits, target_calibration, networks, prior, raced)


@contextmanager
def _meta(checksums: Checksums, name: str) -> Iterator[Any]:
    """Yield the content of a file; content that cannot be used is an error with the file's name."""
    file = checksums.path(name)
    with understood(file, "what such a run holds"):
        yield read_json(file)


@dataclass(frozen=True)
class Run(RunFolder):
    """A finished run folder, of showers or of a table; see :meth:`open`. :mod:`showerstack.stacking.predict` predicts
    with it."""

    is_export: ClassVar[bool] = False
    trained: Trained
    """What it says of how it was made."""
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
        content = read_json(checksums.path(MANIFEST_FILE))
        if not isinstance(content, dict) or "task" not in content:
            raise InputError(f"{file} names no task: expected the manifest of a stacking run")
        try:
            manifest = stated_as(Manifest, content, file)
        except InputError:
            made_by = content.get("stacking_version", 0)
            _refuse_other_version(folder, str(content["task"]), "stacking", made_by, STACKING_VERSION)
            raise
        for row in manifest.learners:
            check_name(row.name, file)
        return cls(folder, manifest, checksums)

    @property
    def manifest(self) -> Manifest:
        """Content of ``manifest.json``."""
        assert isinstance(self.trained, Manifest)
        return self.trained

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.folder.resolve().name

    @cached_property
    def task(self) -> Task:
        """The task; classes of a run on a table are those of its labels, as text."""
        name, classes = self.trained.task, tuple(self.trained.classes)
        try:
            if self.of_table:
                return Task(name, classes)
            groups = self.trained.groups
            return (composition_of(groups, GROUPS) if groups else task_named(name)).with_classes(classes)
        except InputError as error:
            raise InputError(f"{self.folder / MANIFEST_FILE}: {error}") from None

    @property
    def of_table(self) -> bool:
        """Whether its events are rows of a table alone, not showers with detector grids."""
        return self.trained.task not in TASKS

    def require_showers(self, what: str) -> None:
        """Refuse a run on a table, with which ``what`` (such as ``a data check``) cannot work."""
        if self.of_table:
            raise InputError(f"{self.folder} was trained on a table: {what} needs a run trained on showers")

    def refuse_other_versions(self) -> None:
        """Refuse a run that was made by another version of stacking or features."""
        made_by = self.trained
        _refuse_other_version(self.folder, made_by.task, "stacking", made_by.stacking_version, STACKING_VERSION)
        if not self.of_table:
            _refuse_other_version(self.folder, made_by.task, "features", made_by.features_version, FEATURES_VERSION)

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
    def threads(self) -> int:
        """Numerical threads of a process, in training and prediction alike."""
        return check_threads(self.trained.config.threads, self.folder / MANIFEST_FILE)

    @property
    def class_values(self) -> tuple[Any, ...]:
        """Classes as the training labels had them: ``bool``, ``int``, ``float`` or ``str``."""
        as_value: dict[str, Callable[[str], Any]] = {"bool": "True".__eq__, "int": int, "float": float}
        return tuple(map(as_value.get(self.trained.label_type, str), self.task.classes))

    @property
    def shipped(self) -> str:
        """The system that predicts new events."""
        return self.manifest.shipped

    @property
    def learners(self) -> tuple[str, ...]:
        """Base learners that finished."""
        return self.manifest.finished

    @property
    def systems(self) -> tuple[str, ...]:
        """Learners that finished, average and stack."""
        return (*self.learners, *COMBINED)

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

    @cached_property
    def chain(self) -> Chain:
        """What follows the base learners; its files are compared with their checksums."""
        return read_chain(self.checksums, self.task, self.systems, self.trained.config_hash)

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


def _refuse_other_version(folder: Path, task: str, what: str, made_by: Any, version: int) -> None:
    if made_by != version:
        raise InputError(
            f"{folder} was made by version {made_by} of the {what}, which is now {version}: train again "
            f"(python cli.py stack --task {task} --data DATA --run NEW_RUN)"
        )


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
