"""A run's options as a TOML file: what ``stack --config`` reads, and what every run writes beside its manifest."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from showers.schema import InputError
from showers.storage.files import atomic_path

CONFIG_FILE = "config.toml"


def read_config(file: Path) -> dict[str, Any]:
    """Return the options in a file; relative paths in it are relative to where the command is started.

    Raises
    ------
    InputError
        If it is missing or no TOML.
    """
    try:
        return tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{file} is not TOML: {error}") from None


def write_config(file: Path, options: Mapping[str, Any]) -> None:
    """Write options (strings, numbers, lists, tables; None is left out) as TOML.

    Raises
    ------
    InputError
        If the disk is full.
    """
    with atomic_path(file) as temporary:
        temporary.write_text("\n".join(_lines(options, ())) + "\n", encoding="utf-8")


def _lines(options: Mapping[str, Any], inside: tuple[str, ...]) -> Iterator[str]:
    tables = {name: value for name, value in options.items() if isinstance(value, Mapping)}
    if inside:
        yield f"\n[{'.'.join(map(_quoted, inside))}]"
    for name, value in options.items():
        if value is not None and name not in tables:
            yield f"{_quoted(name)} = {_value(value)}"
    for name, value in tables.items():
        if value:
            yield from _lines(value, (*inside, name))


def _quoted(name: str) -> str:
    return name if name.isascii() and name.replace("_", "").replace("-", "").isalnum() else _text(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(one) for one in value if one is not None) + "]"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_quoted(name)} = {_value(one)}" for name, one in value.items()) + " }"
    return _text(str(value))


def _text(value: str) -> str:
    """Return a basic string: JSON's, whose escapes TOML shares but for the delete character, which it forbids."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
