"""Conversion of event formats that others write: each is a module of this folder with a ``FORMAT``, found by itself."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from runtime.errors import InputError
from showers import archives
from showers.schema import Task


class Format(Protocol):
    """One format of events that others write."""

    name: str
    """In messages."""
    holds: str
    """What a folder of this format holds."""

    def accepts(self, path: Path) -> bool:
        """Return whether a folder is of this format, from the names in it."""

    def convert(self, path: Path, out: Path, task: Task | None, tell: Callable[[str], None]) -> Path:
        """Write what the project reads below ``out`` and return it; ``task`` is whose labels to take, if any."""


def formats() -> list[Format]:
    """Return all formats, by the names of their modules."""
    names = [entry.name for entry in pkgutil.iter_modules(archives.__path__)]
    modules = (importlib.import_module(f"{archives.__name__}.{name}") for name in sorted(names))
    return [module.FORMAT for module in modules if hasattr(module, "FORMAT")]


def convert_foreign(path: Path, out: Path, task: Task | None, tell: Callable[[str], None] = lambda line: None) -> Path:
    """Convert a folder of any known format.

    Raises
    ------
    InputError
        If no format knows it, or its files cannot be used.
    """
    known = formats()
    for one in known:
        if Path(path).is_dir() and one.accepts(Path(path)):
            return one.convert(Path(path), Path(out), task, tell)
    raise InputError(f"{path} is of no known format: " + "; ".join(f"{one.name}: {one.holds}" for one in known))
