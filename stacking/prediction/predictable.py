"""What predicts new events: a finished run, or an export of one.

Both are folders with a chain and fits, each file of which is compared with its checksum when it is used. This shows
damage and mix-ups, not forgery: whoever can replace a file can replace its checksum too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from showerstack.models.base.learner import Predictor
from showerstack.models.base.saving import HEADER_FILE, check_threads, read_header
from showerstack.models.registry import open_predictor, predicts_alone
from showerstack.runtime.checksums import Checksums
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import read_json
from showerstack.runtime.stated import understood
from showerstack.runtime.versions import FEATURES_VERSION, STACKING_VERSION
from showerstack.showers.nuclei import GROUPS, composition_of
from showerstack.showers.schema import MANIFEST_FILE, TASKS, Task, task_named
from showerstack.stacking.chain import COMBINED, Chain
from showerstack.stacking.estimates import TargetCalibration, rule_from_json
from showerstack.stacking.layout import ESTIMATES_FILE, POOL_FILE, RULES_FILE, SCALES_FILE
from showerstack.stacking.second_level import Pool
from showerstack.stacking.stated import Trained


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


@dataclass(frozen=True)
class Predictable(ABC):
    """A folder that predicts new events; :mod:`showerstack.stacking.prediction.predict` predicts with it."""

    folder: Path
    trained: Trained
    """What it says of how it was made."""
    checksums: Checksums
    """Every file is compared with its checksum before it is used."""

    @property
    @abstractmethod
    def shipped(self) -> str:
        """The system that predicts new events."""

    @property
    @abstractmethod
    def learners(self) -> tuple[str, ...]:
        """Base learners whose fits it holds."""

    @property
    def systems(self) -> tuple[str, ...]:
        """Learners, average and stack."""
        return (*self.learners, *COMBINED)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What was remarked on the data and fits of a run; an export repeats none of it."""
        return ()

    @property
    @abstractmethod
    def library_remarks(self) -> tuple[str, ...]:
        """A remark on the libraries that have changed since the training."""

    @abstractmethod
    def fits(self, name: str) -> SavedFits:
        """Return where the fits of a learner are; each file is compared with its checksum."""

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
        refuse_other_version(self.folder, made_by.task, "stacking", made_by.stacking_version, STACKING_VERSION)
        if not self.of_table:
            refuse_other_version(self.folder, made_by.task, "features", made_by.features_version, FEATURES_VERSION)

    @property
    def threads(self) -> int:
        """Numerical threads of a process, in training and prediction alike."""
        return check_threads(self.trained.config.threads, self.folder / MANIFEST_FILE)

    @property
    def class_values(self) -> tuple[Any, ...]:
        """Classes as the training labels had them: ``bool``, ``int``, ``float`` or ``str``."""
        as_value: dict[str, Callable[[str], Any]] = {"bool": "True".__eq__, "int": int, "float": float}
        return tuple(map(as_value.get(self.trained.label_type, str), self.task.classes))

    @cached_property
    def chain(self) -> Chain:
        """What follows the base learners; its files are compared with their checksums."""
        return read_chain(self.checksums, self.task, self.systems, self.trained.config_hash)


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


def refuse_other_version(folder: Path, task: str, what: str, made_by: Any, version: int) -> None:
    """Refuse what was made by another ``version`` of ``what``: stacking or features."""
    if made_by != version:
        raise InputError(
            f"{folder} was made by version {made_by} of the {what}, which is now {version}: train again "
            f"(python cli.py stack --task {task} --data DATA --run NEW_RUN)"
        )
