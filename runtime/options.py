"""How options are declared, each once: a field of a group, its type, limits and default, and below it what it means.

The command line, the estimators of scikit-learn and the reference are made from them, and what is given is checked
against them. Arguments of public functions are declared and checked in the same way (:func:`checked`). Nothing here is
slow to import.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, wraps
from itertools import pairwise
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    ParamSpec,
    TypeAlias,
    TypeGuard,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from showerstack.runtime.errors import InputError, most_similar, shown

Taken = ParamSpec("Taken")
Result = TypeVar("Result")
Group = TypeVar("Group", bound="OptionGroup")


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


Place: TypeAlias = str | PathLike[str]
Count: TypeAlias = Annotated[int, Limits(1)]
Seed: TypeAlias = Annotated[int, Limits(0)]
"""What arguments of many functions are."""
WORDS = {
    bool: "True or False", int: "a whole number", float: "a number", str: "text", Path: "a path", PathLike: "a path",
    NoneType: "None", Callable: "a function", Mapping: "a dict", dict: "a dict",
}  # fmt: skip


def _words(kind: Any) -> str:
    """Return a type in words."""
    kind, plain, inside = _plain(kind), get_origin(_plain(kind)) or _plain(kind), get_args(_plain(kind))
    if plain in (Union, UnionType):
        words = dict.fromkeys(map(_words, inside))
        return " or ".join(word for word in words if word != "text" or "a path" not in words)
    if plain is Literal:
        return " or ".join(map(repr, inside))
    if _is_list(plain):
        return f"a list of {_words(inside[0]).removeprefix('a ').removesuffix('s')}s" if inside else "a list"
    return WORDS.get(plain, getattr(plain, "__name__", str(plain)))


def _plain(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _is_list(plain: Any) -> bool:
    return isinstance(plain, type) and issubclass(plain, Iterable) and not issubclass(plain, str | bytes | Mapping)


def _is_of(value: Any, kind: Any) -> bool:
    """Return whether a value is of a declared type; numbers of NumPy are numbers, any collection is a list."""
    kind = _plain(kind)
    plain, inside = get_origin(kind) or kind, get_args(kind)
    if plain is Any:
        return True
    if plain in (Union, UnionType):
        return any(_is_of(value, one) for one in inside)
    if plain is Literal:
        return any(isinstance(value, type(one)) and value == one for one in inside)
    if plain is bool or (plain in (int, float) and type(value).__name__.startswith("bool")):
        return plain is bool and type(value).__name__.startswith("bool")
    if plain in (int, float):
        return isinstance(value, Integral if plain is int else Real) and value == value
    if plain is Path:
        return isinstance(value, PathLike)
    if plain in (None, NoneType):
        return value is None
    if plain is Callable:
        return callable(value)
    if _is_list(plain):
        is_list = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping | PathLike)
        return is_list and all(_is_of(one, inside[0]) for one in (value if inside else ()))
    return not isinstance(plain, type) or isinstance(value, plain)


def refuse_wrong(name: str, value: Any, kind: Any, metadata: Iterable[Any] = ()) -> None:
    """Refuse a value that is not of a declared type, or a number outside of its :class:`Limits`."""
    if not _is_of(value, kind):
        raise InputError(f"{name} {shown(value)}: expected {_words(kind)}")
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    inside = [one for part in parts if _is_of(value, part) for one in getattr(part, "__metadata__", ())]
    for limits in (*metadata, *inside):
        if isinstance(limits, Limits) and value is not None and not limits.hold(value):
            raise InputError(f"{name} {value:g}: give a number {limits}")


def checked(function: Callable[Taken, Result]) -> Callable[Taken, Result]:
    """Let a function refuse arguments that are not as its annotations say, before anything is done."""
    signature = inspect.signature(function)

    @cache
    def declared() -> dict[str, Any]:
        names = getattr(inspect.unwrap(function), "__globals__", {})
        return {
            name: eval(one.annotation, names) if isinstance(one.annotation, str) else one.annotation
            for name, one in signature.parameters.items()
            if one.kind is not inspect.Parameter.VAR_KEYWORD and one.annotation is not inspect.Parameter.empty
        }

    @wraps(function)
    def call(*arguments: Taken.args, **given: Taken.kwargs) -> Result:
        bound: Mapping[str, Any] = {}
        with suppress(TypeError):  # Python's own error, below, names the function
            bound = signature.bind(*arguments, **given).arguments
        for name, value in bound.items():
            if name in declared():
                refuse_wrong(name, value, declared()[name])
        return function(*arguments, **given)

    return call


class OptionGroup:
    """A group of options, as a command gets it."""

    heading: ClassVar[str | None] = None
    """Under which ``--help`` lists them."""
    needed: ClassVar[bool] = True
    """Whether those without a default must be given."""

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    def __post_init__(self) -> None:
        """Refuse what is not as its options declare."""
        for name, option in options_of(type(self)).items():
            refuse_wrong(option.flag(name), getattr(self, name), option.type, option.metadata)


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


def made_of(group: type[Group], given: Mapping[str, Any]) -> Group:
    """Return a group with options given by name, also those of the groups within it."""
    own, inner = options_of(group), groups_in(group)
    known = [*own, *inner, *(name for kind in inner.values() for name in options_of(kind))]
    for name in given:
        if name not in known:
            similar = most_similar(name, known)
            raise InputError(f"there is no option {name}{f', did you mean {similar}?' if similar else ''}")
    parts = {
        name: given.get(name) or kind(**{one: given[one] for one in options_of(kind) if one in given})
        for name, kind in inner.items()
    }
    return group(**parts, **{name: given[name] for name in own if name in given})


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
