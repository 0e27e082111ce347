"""Options of a stacking run, each declared once; ``stacking/config.py`` checks them. They take no time to import."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from showerstack.models.base.presets import Preset
from showerstack.runtime.options import Limits, OptionGroup

Device = Literal["auto", "cpu", "cuda"]
Precision = Literal["auto", "float32"]
Race = Literal["on", "off"]

TOLERANCE = 2e-4
"""Log-loss that all learners left out may cost together."""


class RunOptions(OptionGroup):
    """Options of every run; a file or Python sets those of ``RunConfig`` too."""

    needed = False

    run: Path
    """Run folder; an interrupted run is continued."""
    preset: Preset = "good"
    """quick: minutes for tens of thousands of showers; good: learners that improve a stack; best: several times longer;
    a time limit ends it earlier."""
    learners: tuple[str, ...] | None = None
    """Names of learners instead of the preset's."""
    folds: Annotated[int | None, Limits(2, 100)] = None
    """Number of folds instead of the preset's."""
    time_limit: str | None = None
    """Limit for the whole run, e.g. 4h, 30m: three folds at most, fits end early and keep their best."""
    race: Race = "on"
    """on: learners that the stack would leave out by their first fold have that one fit; off: all fits of all."""
    prune: Annotated[float, Limits(0, 1)] = TOLERANCE
    """Log-loss that learners left out of the stack may cost together; 0 keeps every learner."""
    seed: Annotated[int, Limits(0, lt=2**31)] = 1
    """Seed of all random numbers."""
    device: Device = "auto"
    """auto: the GPU if there is one."""
    precision: Precision = "auto"
    """In which networks are trained. auto: bf16 where the processor multiplies it; float32: the same on all."""
    workers: Annotated[int | None, Limits(1)] = None
    """Processes or threads at work; default: one a core."""
    scheduler: str | None = None
    """Dask scheduler that shares this file system, e.g. tcp://host:8786; default: this machine alone."""


class ShowerOptions(OptionGroup):
    """Options of a run on the benchmark's dataset folders."""

    heading = "On showers"

    task: str = "composition"
    """Which task to train for."""
    data: Path = Path("data")
    """Folder with {task}_train and {task}_test."""
    features: Path | None = None
    """Folder for feature tables; default: beside the data, or beside the run where the data cannot be written."""
    weights: Path | None = None
    """Pretrained weights of the data's array: folder of a pretraining, or its .safetensors file; default: KASCADE's."""


class TableOptions(OptionGroup):
    """Options of a run on a table."""

    heading = "On a table"
    needed = False

    table: Path
    """Train on this table (Parquet, CSV, TSV), not on showers."""
    label: str
    """Column with the classes."""
    group: str | None = None
    """Column whose equal values stay in one fold."""
    weight: str | None = None
    """Column of positive weights: how much a row counts in training and scoring."""
    split: str | None = None
    """Column of your own folds."""
    test_table: Path | None = None
    """Table of rows to predict."""
    id: tuple[str, ...] = ()
    """Columns that name rows: no learner sees them, predictions carry them."""
    columns: tuple[str, ...] | None = None
    """Columns to learn from; default: all others."""
    categories: tuple[str, ...] = ()
    """Columns that are categories although the file does not declare them."""
    separator: str | None = None
    """Between columns of text files, or tab; default: a tab in .tsv, else a comma."""


SeedOption: TypeAlias = Annotated[int, RunOptions]
"""An option of another command that is the run's of the same name, as those below."""
DeviceOption: TypeAlias = Annotated[Device, RunOptions]
WorkersOption: TypeAlias = Annotated[int | None, RunOptions]
SchedulerOption: TypeAlias = Annotated[str | None, RunOptions]
LearnersOption: TypeAlias = Annotated[tuple[str, ...] | None, RunOptions]
