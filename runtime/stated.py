"""What a JSON file states, compared with the type of each entry before anything uses it.

Files of runs come from strangers too, and their checksums can be made anew by whoever changes them. Here an entry of
another type, a missing one, or a number beyond its bounds is one line with the file's name and the entry's place.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from showerstack.runtime.errors import InputError, shown


class Stated(BaseModel):
    """Entries of a JSON object by name and type; what is not named here is free, and stays as it is in the file."""

    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())

    def as_json(self) -> dict[str, Any]:
        """Return the entries that were given, as JSON content."""
        return self.model_dump(mode="json", exclude_unset=True)


S = TypeVar("S", bound=Stated)


def stated_as(shape: type[S], content: Any, file: Path) -> S:
    """Return content of ``file`` as ``shape``; refuse a missing entry, one of another type or out of bounds."""
    try:
        return shape.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "the whole file"
        if first["type"] == "missing":
            raise InputError(f"{file} has no entry {place!r} (made by an earlier version, or changed)") from None
        message = str(first["msg"]).removeprefix("Input should be ")
        raise InputError(f"{file}: {place} holds {shown(first['input'])}, expected {message}") from None


def problem_of(error: ValidationError) -> str:
    """Return in words the first thing that is wrong with options or the content of a file, and where."""
    first = error.errors(include_url=False)[0]
    parts = [str(one) for one in first["loc"] if one != "[key]"]
    place, key = ".".join(parts) or "the file", (parts or [""])[-1]
    if first["type"] == "extra_forbidden":
        return f"{place}: unknown key {key}"
    if first["type"] == "string_pattern_mismatch":
        names = str(first["ctx"]["pattern"]).strip("^()$").replace("|", ", ")
        return f"{place} holds {shown(first['input'])}: it is none of the names that are known, {names}"
    if first["type"] == "path_type":
        return f"{place}: expected a path (got {shown(first['input'])})"
    message = str(first["msg"]).removeprefix("Input should be ").removeprefix("Value error, ")
    expected = (
        message if message == first["msg"] or str(first["msg"]).startswith("Value error") else f"expected {message}"
    )
    return f"{place}: {expected} (got {shown(first['input'])})"


WRONG_CONTENT = (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError, AssertionError)
"""What Python raises where content that was changed is used."""


@contextmanager
def understood(file: Path, what: str) -> Iterator[None]:
    """Turn whatever content of ``file`` makes of the code that reads it into one line; ``what`` it should have been.

    For code that does nothing but read that file: mistakes of other code would be taken for the file's.
    """
    try:
        yield
    except InputError as error:
        if type(error) is not InputError or str(file) in str(error):
            raise
        raise InputError(f"{file}: {error}") from error
    except WRONG_CONTENT as error:
        why = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise InputError(f"{file} is not {what} ({why}): take it from another copy") from error
