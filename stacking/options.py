"""Options of a stacking run, each declared once: its type, limits and default, and below it what it means.

``stacking/config.py`` checks them; the command line, the estimators of scikit-learn and the reference are made from
them. Nothing here takes time to import.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeGuard, get_origin, get_type_hints

Preset = Literal["quick", "good", "best"]
Device = Literal["auto", "cpu", "cuda"]

TOLERANCE = 2e-4
"""Log-loss that all learners left out may cost together."""


@dataclass(frozen=True)
class Limits:
    """Smallest and largest value of a number, and what it lies below."""

    ge: float | None = None
    le: float | None = None
    lt: float | None = None

    __is_annotated_types_grouped_metadata__ = True  # pydantic takes them one by one

    def __iter__(self) -> Iterator[Any]:
        from annotated_types import Ge, Le, Lt

        for name, kind in (("ge", Ge), ("le", Le), ("lt", Lt)):
            if (value := getattr(self, name)) is not None:
                yield kind(value)


class OptionGroup:
    """A group of options, as a command gets it."""

    heading: ClassVar[str | None] = None
    """Under which ``--help`` lists them."""
    needed: ClassVar[bool] = True
    """Whether those without a default must be given."""

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)


class RunOptions(OptionGroup):
    """Options of every run; a file or Python sets those of ``EngineConfig`` too."""

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
    prune: Annotated[float, Limits(0, 1)] = TOLERANCE
    """Log-loss that learners left out of the stack may cost together; 0 keeps every learner."""
    seed: Annotated[int, Limits(0, lt=2**31)] = 1
    """Seed of all random numbers."""
    device: Device = "auto"
    """auto: the GPU if there is one."""
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


REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True)
class Option:
    """What is declared of one option."""

    type: Any
    default: Any
    """:data:`REQUIRED` where there is none."""
    metadata: tuple[Any, ...]
    """:class:`Limits`, and names on the command line."""
    help: str


@cache
def _texts(file: str) -> dict[str, dict[str, str]]:
    """Return the text below each field of each class of a module; Python keeps none, so the source is read."""
    return {
        body.name: {
            field.target.id: " ".join(str(ast.literal_eval(text.value)).split())
            for field, text in pairwise(body.body)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr)
        }
        for body in ast.parse(Path(file).read_text(encoding="utf-8")).body
        if isinstance(body, ast.ClassDef)
    }


def is_group(kind: Any) -> TypeGuard[type[OptionGroup]]:
    """Return whether a type is a group of options."""
    return isinstance(kind, type) and issubclass(kind, OptionGroup)


def groups_in(group: type[OptionGroup]) -> dict[str, type[OptionGroup]]:
    """Return the groups that a group holds, by the names of their fields."""
    return {name: kind for name, kind in get_type_hints(group).items() if is_group(kind)}


def options_of(group: type[OptionGroup]) -> dict[str, Option]:
    """Return the options that a group declares, by name; a field that is a group itself is left out."""
    texts, result = _texts(inspect.getfile(group))[group.__name__], {}
    for name, hint in get_type_hints(group, include_extras=True).items():
        if get_origin(hint) is not ClassVar and not is_group(hint):
            plain, metadata = getattr(hint, "__origin__", hint), getattr(hint, "__metadata__", ())
            default = getattr(group, name, REQUIRED)
            result[name] = Option(plain if metadata else hint, default, metadata, texts[name])
    return result
