"""The header that every saved learner carries, ``learner.json``, and the checks made when it is read.

It is written last, so a folder without it is a learner that was never completely saved. It names the learner's class,
its settings, classes and inputs, and holds the SHA-256 of every other file: a truncated or altered model file is
refused before a library parses it. Class names are looked up among the registered learners, never imported freely,
so that opening somebody else's learner cannot run code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from showerstack.runtime.checksums import known_hash
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import hash_file, read_json, write_json
from showerstack.runtime.stated import Stated, stated_as

HEADER_FILE = "learner.json"
HEADER_FORMAT = 1
"""Raised when the meaning of a saved learner changes."""


class CheckpointError(InputError):
    """The state of an unfinished fit is damaged or belongs to another fit."""


def write_header(folder: Path, learner: str, files: tuple[str, ...], content: dict[str, Any]) -> None:
    """Write ``learner.json`` beside the learner's ``files``, with their hashes."""
    hashes = {name: hash_file(folder / name) for name in files}
    write_json(folder / HEADER_FILE, {"format": HEADER_FORMAT, "learner": learner, **plain(content), "files": hashes})


MOST_THREADS = 1024
"""Numerical threads of a process at most: more than the largest machines have processors."""


def check_threads(threads: Any, file: Path) -> int:
    """Return a number of threads that a file states; refuse what is none, before so many are begun."""
    if not isinstance(threads, int) or isinstance(threads, bool) or not 1 <= threads <= MOST_THREADS:
        raise InputError(f"{file} states {threads!r:.40} threads: expected 1 to {MOST_THREADS}")
    return threads


class _Header(Stated):
    learner: str
    classes: list[str]
    settings: dict[str, Any]
    threads: Any
    files: dict[str, str]


def read_header(folder: Path, learner: str | None = None) -> dict[str, Any]:
    """Read and check ``learner.json``, which must be of the class ``learner``; None for any."""
    file = Path(folder) / HEADER_FILE
    header = read_json(file)
    if not isinstance(header, dict) or header.get("format") != HEADER_FORMAT:
        raise InputError(f"{file} is not a saved learner of format {HEADER_FORMAT}")
    stated_as(_Header, header, file)
    check_threads(header["threads"], file)
    if learner is not None and header["learner"] != learner:
        raise InputError(f"{file} holds a {header['learner']}, expected a {learner}")
    for name, expected in header["files"].items():
        part = Path(folder) / name
        if Path(name).name != name or not part.is_file():
            raise InputError(f"{part} does not exist, but {HEADER_FILE} beside it names it")
        if known_hash(part) != expected:
            raise InputError(f"{part} is not the file that was saved (damaged, truncated or replaced)")
    return header


def plain(value: Any) -> Any:
    """Return ``value`` with NumPy scalars, arrays, tuples and paths turned into what JSON can hold."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Path):
        return str(value)
    return value
