"""How options are declared, each once: a field of a group, its type, limits and default, and below it what it means.

The command line, the estimators of scikit-learn and the reference are made from them. Nothing here is slow to import.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, TypeGuard, get_origin, get_type_hints

from showerstack.runtime.errors import InputError


@dataclass(frozen=True)
class Limits:
    """Smallest and largest value of a number, and what it lies below and above."""

    ge: float | None = None
    le: float | None = None
    lt: float | None = None
    gt: float | None = None

    __is_annotated_types_grouped_metadata__ = True  # pydantic takes them one by one

    def __iter__(self) -> Iterator[Any]:
        from annotated_types import Ge, Gt, Le, Lt

        for name, kind in (("ge", Ge), ("le", Le), ("lt", Lt), ("gt", Gt)):
            if (value := getattr(self, name)) is not None:
                yield kind(value)

    def hold(self, value: float) -> bool:
        """Return whether a number lies within; one that is none does not."""
        low = value >= (-math.inf if self.ge is None else self.ge) and (self.gt is None or value > self.gt)
        return low and value <= (math.inf if self.le is None else self.le) and (self.lt is None or value < self.lt)

    def __str__(self) -> str:
        names = {"ge": "of at least", "gt": "above", "le": "of at most", "lt": "below"}
        there = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return " and ".join(f"{names[name]} {value:g}" for name, value in there.items())


class OptionGroup:
    """A group of options, as a command gets it."""

    heading: ClassVar[str | None] = None
    """Under which ``--help`` lists them."""
    needed: ClassVar[bool] = True
    """Whether those without a default must be given."""

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    def __post_init__(self) -> None:
        """Refuse numbers that lie outside what their options declare."""
        for name, option in options_of(type(self)).items():
            value = getattr(self, name)
            for limits in option.metadata:
                if isinstance(limits, Limits) and value is not None and not limits.hold(value):
                    raise InputError(f"{option.flag(name)} {value:g}: give a number {limits}")


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

    def flag(self, name: str) -> str:
        """Return how the command line names it; of two names the first."""
        given = next((text for text in self.metadata if isinstance(text, str)), f"--{name.replace('_', '-')}")
        return str(given).split("/", maxsplit=1)[0]


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
    texts: dict[str, str] = {}
    for base in reversed(group.__mro__[: group.__mro__.index(OptionGroup)]):
        texts |= _texts(inspect.getfile(base))[base.__name__]
    result = {}
    for name, hint in get_type_hints(group, include_extras=True).items():
        if get_origin(hint) is not ClassVar and not is_group(hint):
            plain, metadata = getattr(hint, "__origin__", hint), getattr(hint, "__metadata__", ())
            default = getattr(group, name, REQUIRED)
            result[name] = Option(plain if metadata else hint, default, metadata, texts[name])
    return result


@contextmanager
def as_arguments(*kinds: type[OptionGroup]) -> Iterator[None]:
    """Let errors within speak of arguments, ``zenith_max_deg``, where they name options, ``--zenith-max``."""
    every = [*kinds, *(inner for kind in kinds for inner in groups_in(kind).values())]
    names = {option.flag(name): name for kind in every for name, option in options_of(kind).items()}
    try:
        yield
    except InputError as error:
        error.args = (re.sub(r"--[a-z][a-z-]*[a-z]", lambda match: names.get(match[0], match[0]), str(error)),)
        raise
