"""The configuration of a stacking run: validated options, their presets, what of them is hashed, and their TOML file.

The hash covers everything that can change a prediction (task, learners, folds, seeds, settings, data fingerprints) and
nothing that cannot (paths, number of worker processes, cluster address). The TOML file is what ``stack --config``
reads, and what every run writes beside its manifest.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from showerstack.models.base.saving import MOST_THREADS
from showerstack.models.base.spec import LearnerSpec
from showerstack.models.registry import LEARNERS, register, spec
from showerstack.runtime.cost import seconds_of
from showerstack.runtime.errors import InputError, most_similar
from showerstack.runtime.files import atomic_path, hash_file
from showerstack.runtime.packages import listed
from showerstack.runtime.stated import problem_of
from showerstack.showers.array import KASCADE, DetectorArray
from showerstack.showers.schema import TASKS, Task, task_named
from showerstack.stacking.folds import MIN_PER_CLASS, class_counts
from showerstack.stacking.options import RunOptions, ShowerOptions, TableOptions
from showerstack.stacking.second_level import POOLS, pool_specs

if TYPE_CHECKING:
    from showerstack.models.pretraining.weights import Pretrained

T = TypeVar("T")

WHERE_IT_RUNS = ("run", "data", "features", "weights", "table", "test_table", "workers", "scheduler")
"""Options that say where a run happens, not what it computes; the hash leaves them out."""
SECOND_LEVEL = ("prune", "pools", "race")
"""Options that no fit of a learner depends on: when they alone change, the fits that are there stay."""

MOST_ROWS = 400_000
"""Training events of a fit at most, those under the evaluation cuts first: a stack of millions of events then takes
little longer than one of half a million (docs/benchmarks/scale.md)."""

FOLDS: dict[str, int] = {"quick": 3, "good": 5, "best": 8}
"""Folds of each preset; a learner's registration names the presets that it takes part in."""
TABLE_FOLDS: dict[str, int] = {"quick": 5, "good": 8, "best": 10}
"""The same on tables: they have fewer rows than showers, and each costs less."""
TABLE_MIN_HOLDOUT = 20
"""Rows of each class without which a table has no holdout: calibration needs fewer than a decision."""
MORE_SHOWERS = "three to five times as many showers lower the log-loss by 0.005 to 0.012 (docs/methods/few_showers.md)"
"""Measured in the mean over seven arrays: 0.012 from 100 to 300 showers, 0.008 to 1,000, 0.005 to 5,000."""
FEW_SHOWERS = 1_500
"""Training showers below which learners without pretrained weights are left out of presets: with 1,000 of them an MLP
is worse than the weights without any (``benchmarks/results/few_showers.md``)."""
FEW_ROWS = 3_000
TABLE_PREFIX = "table."
"""Begins the names of learners that are tuned for tables."""


class RunConfig(BaseModel, RunOptions):
    """Options that every stacking run has, whatever its events are.

    Raises
    ------
    InputError
        If an option cannot be used; the message names it and what is allowed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    for_tables: ClassVar[bool] = False
    """Whether events are rows of a table, which have no detector grids."""
    preset_folds: ClassVar[Mapping[str, int]] = FOLDS
    """Folds of each preset."""
    min_holdout: ClassVar[int] = MIN_PER_CLASS
    """Events of each class without which there is no holdout."""

    repeats: int = Field(1, ge=1, le=20)
    """Independent partitions into folds, averaged."""
    threads: int = Field(1, ge=1, le=MOST_THREADS)
    """Numerical threads per process, fixed because they can change the last bits of a learner."""
    pools: tuple[str, ...] = POOLS
    """Pools that the cross-validation may choose from."""
    off_cut_weight: float = Field(1.0, ge=0.0, le=1.0)
    """Weight in base-learner training of events that fail the evaluation cuts; 0 leaves them out."""
    valid_fraction: float = Field(0.1, gt=0.0, lt=0.5)
    """Share of each training part that serves early stopping."""
    holdout: float = Field(0.1, ge=0.0, le=0.5)
    """Share of the training events passing the cuts that no learner is trained on: gate and calibration use them,
    on the average of fits that ships. 0: on out-of-fold predictions of single fits."""
    rows: dict[str, int] = Field(default_factory=dict)
    """Per learner, training events of each fit at most; :data:`MOST_ROWS` for the others."""
    settings: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Per learner, settings that replace the registered ones."""

    def resolve_learner(self, name: str) -> str | None:
        """Return the learner that a run trains under this name; None where it trains none."""
        return name

    def settings_of(self, learner: str) -> dict[str, Any]:
        """Return what replaces a learner's registered settings."""
        float32 = spec(learner).float32_settings() if self.precision == "float32" else {}
        return {**float32, **(self._value_for(learner, self.settings) or {})}

    def rows_of(self, learner: str) -> int:
        """Return how many training events each fit of a learner gets at most."""
        return self._value_for(learner, self.rows) or MOST_ROWS

    def _value_for(self, learner: str, by_name: Mapping[str, T]) -> T | None:
        """Return a learner's value, under its own name before others that mean it."""
        names = [learner, *(name for name in by_name if self.resolve_learner(name) == learner)]
        return next((by_name[name] for name in names if name in by_name), None)

    def __init__(self, **options: Any) -> None:
        try:
            super().__init__(**options)
        except ValidationError as error:
            raise InputError(_in_one_line(error, type(self).model_fields)) from None

    @field_validator("learners", "pools", mode="before")
    @classmethod
    def _split_at_commas(cls, names: Any) -> Any:
        return tuple(name.strip() for name in names.split(",")) if isinstance(names, str) else names

    @field_validator("learners", mode="before")
    @classmethod
    def _known_by_name(cls, learners: Any) -> Any:
        return tuple(map(register, learners)) if isinstance(learners, list | tuple) else learners

    @field_validator("learners", "pools")
    @classmethod
    def _names_differ(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if names is not None and (not names or len(set(names)) != len(names)):
            raise ValueError("expected a list of different names, at least one")
        return names

    @field_validator("time_limit")
    @classmethod
    def _is_a_duration(cls, text: str | None) -> str | None:
        if text is not None:
            seconds_of(text)
        return text

    @model_validator(mode="after")
    def _names_are_known(self) -> RunConfig:
        for name in (*(self.learners or ()), *self.settings, *self.rows):
            spec(name)  # refuses an unknown learner
        for name in self.pools:
            if name not in pool_specs():
                raise ValueError(f"unknown pool {name!r}: choose from {', '.join(pool_specs())}")
        return self

    @property
    def has_own_folds(self) -> bool:
        """Whether the user gives the folds, which then stay under a time limit too."""
        return False

    @property
    def n_folds(self) -> int:
        """Number of folds."""
        return self.folds if self.folds is not None else self.preset_folds[self.preset]

    def learner_specs(self, task: Task) -> tuple[LearnerSpec, ...]:
        """Return the learners of this run that fit the task (and, without grids, need none).

        Raises
        ------
        InputError
            If a learner named in ``learners`` cannot be used here, or none is left.
        """
        names = self.learners or tuple(
            entry.name
            for entry in LEARNERS.values()
            if self.preset in entry.presets and entry.for_tables == self.for_tables
        )
        resolved = dict.fromkeys(learner for learner in map(self.resolve_learner, names) if learner is not None)
        if not resolved:
            raise InputError(f"{', '.join(names)} can be trained on showers only: name another learner")
        usable = []
        for learner in map(spec, resolved):
            serves_task = not learner.tasks or task.name in learner.tasks or task.name not in TASKS
            if serves_task and not (self.for_tables and learner.needs_grid):
                usable.append(learner)
            elif self.learners:
                why = "needs detector grids" if serves_task else f"serves only {', '.join(learner.tasks)}"
                raise InputError(f"learner {learner.name!r} {why}: leave it out for {task.name}")
        if not usable:
            raise InputError(f"no learner of preset {self.preset!r} serves task {task.name!r}")
        return tuple(usable)

    def identity(self) -> dict[str, Any]:
        """Return the options that can change a prediction, as JSON content."""
        content = self.model_dump(mode="json", exclude=set(WHERE_IT_RUNS))
        content["folds"] = self.n_folds
        content["settings"] = {
            name: {key: value for key, value in settings.items() if key != "weights" or not spec(name).pretrained}
            for name, settings in content["settings"].items()
        }  # a file of weights counts by its hash
        content["pools"] = [
            name if name in POOLS else f"{name} of version {pool_specs()[name].version}" for name in self.pools
        ]
        return content


class StackConfig(RunConfig, ShowerOptions):
    """A run on the benchmark's dataset folders ``DATA/{task}_train`` and ``DATA/{task}_test``."""

    if TYPE_CHECKING:  # pydantic's plugin does not see the declared options

        def __init__(self, **options: Any) -> None: ...

    @field_validator("task")
    @classmethod
    def _task_is_known(cls, name: str) -> str:
        return task_named(name).name

    @model_validator(mode="before")
    @classmethod
    def _weights_as_settings(cls, options: dict[str, Any]) -> dict[str, Any]:
        """Move ``weights`` into the settings of the learners that start from pretrained weights."""
        if not isinstance(options.get("weights"), str | os.PathLike):  # none, or refused for its type
            return options
        from showerstack.models.pretraining.weights import weights_file

        file = weights_file(Path(options["weights"]))
        start = {"weights": str(file), "weights_sha256": hash_file(file)}
        settings = dict(options.get("settings") or {})
        pretrained = [learner.name for learner in LEARNERS.values() if learner.pretrained]
        settings |= {name: {**settings.get(name, {}), **start} for name in pretrained}
        return {**options, "weights": None, "settings": settings}

    def for_array(self, array: DetectorArray, task: Task) -> tuple[StackConfig, tuple[str, ...]]:
        """Return these options without learners of the preset that cannot learn from an array, and remarks on them.

        Learners that start from pretrained weights get those for any array, where the array is not KASCADE and no
        others are given.

        Raises
        ------
        InputError
            If such a learner was named, or given weights of another array, or none is left.
        """
        specs = self.learner_specs(task)
        config, remarks, left_out = self._starting_at(array, specs, task), [], {}
        for learner in specs:
            weights = config._weights_of(learner)
            why = learner.obstacle(array, KASCADE if weights is None else weights.array)
            if weights is not None and weights.seen is not None:
                from showerstack.models.pretraining.arrays import outside

                beyond, far = outside(array, weights.seen)
                words = f"starts from weights for any array that know none like {array.title}: {', '.join(beyond)}"
                why = words if far else why
                remarks += [f"learner {learner.name} {words}: it may gain less"] if beyond and not far else []
            if why:
                left_out[learner.name] = f"learner {learner.name} {why}"
        for name, reason in left_out.items():
            if "weights" in self.settings_of(name):
                raise InputError(f"{reason}: give weights of this array, or none")
        if left_out and (self.learners or len(left_out) == len(specs)):
            raise InputError(f"{next(iter(left_out.values()))}: name other learners")
        remarks += [f"{why}: it is left out" for why in left_out.values()]
        if left_out:
            kept = tuple(learner.name for learner in specs if learner.name not in left_out)
            config = config.model_copy(update={"learners": kept})
        return config, tuple(remarks)

    def for_number(self, n: int, task: Task) -> tuple[StackConfig, tuple[str, ...]]:
        """Return these options without learners that cannot win with ``n`` training showers, and a remark on them.

        With fewer than :data:`FEW_SHOWERS` what starts from pretrained weights is better than all others by far.
        """
        specs = self.learner_specs(task)
        started = tuple(learner.name for learner in specs if learner.pretrained)
        if n >= FEW_SHOWERS or not started or len(started) == len(specs):
            return self, ()
        others = ", ".join(learner.name for learner in specs if not learner.pretrained)
        remark = (
            f"with {n:,} training showers {listed(list(started))} alone is trained: {others} would need "
            f"{FEW_SHOWERS:,} to be of use beside it (--learners names others)"
        ) + ("" if task.target else f"; {MORE_SHOWERS}")  # energies hardly gain
        return self.model_copy(update={"learners": started}), (remark,)

    def _starting_at(self, array: DetectorArray, specs: Iterable[LearnerSpec], task: Task) -> StackConfig:
        """Return these options with the released weights for any array where KASCADE's would be those of a learner, and
        with the nuclei of mass groups that no weights know."""
        start: dict[str, Any] = {}
        if not array.is_like(KASCADE):
            from showerstack.models.pretraining.weights import ANY, ANY_SHA256

            start = {"weights": ANY, "weights_sha256": ANY_SHA256}
        own = {"masses": [list(masses) for masses in task.masses]} if task.has_own_groups else {}
        chosen = dict[str, dict[str, Any]]()
        for name in (one.name for one in specs if one.pretrained):
            if more := own | ({} if "weights" in self.settings_of(name) else start):
                chosen[name] = more | self.settings.get(name, {})
        return self.model_copy(update={"settings": {**self.settings, **chosen}}) if chosen else self

    def _weights_of(self, learner: LearnerSpec) -> Pretrained | None:
        """Return the weights that a learner starts from; None where these are none, or KASCADE's."""
        settings = self.settings_of(learner.name)
        if not learner.pretrained or "weights" not in settings:
            return None
        from showerstack.models.pretraining.weights import read_pretrained

        return read_pretrained(settings["weights"], settings.get("weights_sha256", ""))

    @property
    def train_folder(self) -> Path:
        """Where the training events are."""
        return self.data / f"{self.task}_train"

    @property
    def test_folder(self) -> Path:
        """Where the events to predict are."""
        return self.data / f"{self.task}_test"


class TableConfig(RunConfig, TableOptions):
    """A run on a table of any origin (Parquet, CSV or TSV)."""

    for_tables = True
    preset_folds = TABLE_FOLDS
    min_holdout = TABLE_MIN_HOLDOUT
    if TYPE_CHECKING:  # pydantic's plugin does not see the declared options

        def __init__(self, **options: Any) -> None: ...

    repeats: int | None = Field(None, ge=1, le=20)  # type: ignore[assignment]
    """None: 3 below :data:`FEW_ROWS` rows, where single fits differ and cost little; else 1."""
    holdout: float | None = Field(None, ge=0.0, le=0.5)  # type: ignore[assignment]
    """None: a tenth from :data:`FEW_ROWS` rows, below it none."""

    @field_validator("id", "categories", mode="before")
    @classmethod
    def _in_a_tuple(cls, names: Any) -> Any:
        return (names,) if isinstance(names, str) else names or ()

    @field_validator("separator")
    @classmethod
    def _tab_by_name(cls, separator: str | None) -> str | None:
        return "\t" if separator in ("tab", "\\t") else separator

    @model_validator(mode="after")
    def _split_is_alone(self) -> TableConfig:
        if self.split and (self.folds or self.repeats not in (None, 1) or self.holdout or self.group):
            raise ValueError("split names the folds: leave out folds, repeats, holdout and group")
        return self

    @property
    def has_own_folds(self) -> bool:
        return self.split is not None

    @property
    def reserved(self) -> set[str]:
        """Columns that no learner gets."""
        named = (self.label, self.group, self.weight, self.split, *self.id)
        return {name for name in named if name is not None}

    def resolve_learner(self, name: str) -> str | None:
        """Return the learner of that name for tables, if there is one; None for one that starts from showers."""
        for_tables = TABLE_PREFIX + name
        return for_tables if for_tables in LEARNERS else None if spec(name).pretrained else name

    def learner_remarks(self) -> list[str]:
        """Return which of the named learners are replaced or left out."""
        remarks = []
        for name in self.learners or ():
            learner = self.resolve_learner(name)
            if learner is None:
                remarks.append(f"learner {name} starts from a network of showers: it is left out on a table")
            elif learner != name:
                remarks.append(f"learner {name} is tuned for showers: {learner} takes its place")
        return remarks

    def for_rows(
        self,
        labels: np.ndarray,
        classes: tuple[str, ...],
        groups: np.ndarray | None = None,
        given_folds: np.ndarray | None = None,
    ) -> tuple[TableConfig, list[str]]:
        """Return these options with as many folds, repetitions and rows held out as the table allows, and remarks.

        Folds that the user gives are neither repeated, nor is a holdout set apart from them.
        """
        if given_folds is not None:
            return self.model_copy(update={"folds": int(given_folds.max()) + 1, "repeats": 1, "holdout": 0.0}), []
        few, remarks = len(labels) < FEW_ROWS, []
        counts, what = class_counts(labels, groups), "rows" if groups is None else "groups of rows"
        folds, fewest = self.n_folds, int(counts.min())
        if self.folds is None and 2 <= fewest < folds:
            name = classes[int(counts.argmin())]
            remarks.append(f"class {name!r} has {fewest} {what}: {fewest} folds instead of {folds}")
            folds = fewest
        repeats = self.repeats or (3 if few else 1)
        holdout = self.holdout if self.holdout is not None else (0.0 if few else 0.1)
        return self.model_copy(update={"folds": folds, "repeats": repeats, "holdout": holdout}), remarks


def _in_one_line(error: ValidationError, options: Iterable[str]) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        near = most_similar(where, list(options))
        return f"unknown option {where}" + (f": did you mean {near}?" if near else "")
    return f"option {problem_of(error)}" if where else str(first["msg"]).removeprefix("Value error, ")


def write_config(file: Path, options: Mapping[str, Any]) -> None:
    """Write options (strings, numbers, lists, tables; None is left out) as TOML."""
    with atomic_path(file) as temporary:
        temporary.write_text(tomli_w.dumps(_without_none(options)), encoding="utf-8")


def _without_none(options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _without_none(value) if isinstance(value, Mapping) else value
        for name, value in options.items()
        if value is not None
    }
