"""Writing so that a half-written file is never taken as complete, and reading ``.npy`` files with clear refusals."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from showers.npy import open_npy as open_npy
from showers.regular import open_regular
from showers.schema import InputError

_LEFTOVER = re.compile(r"\.(partial|replaced)-(?P<process>[0-9]{1,9})-(?P<name>.*)", re.DOTALL)


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary file name beside ``path``; on success flush it to disk and rename it to ``path``.

    The parent folder is created. On an exception the temporary file is removed and ``path`` is untouched.
    The temporary name keeps the suffix, because some libraries choose a format by it.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path)
    temporary = path.with_name(f".partial-{os.getpid()}-{path.name}")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary folder beside ``path``; on success rename it to ``path``.

    A folder that is replaced is renamed first and removed last: killed in between, neither the old nor the new one
    is ever found in pieces under its name.

    Raises
    ------
    InputError
        If ``path`` exists and ``overwrite`` is false.
    """
    path = Path(path)
    if path.exists() and not overwrite:
        raise InputError(f"{path} exists already: choose another name or remove it first")
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path)
    temporary = path.with_name(f".partial-{os.getpid()}-{path.name}")
    replaced = path.with_name(f".replaced-{os.getpid()}-{path.name}")
    for folder in (temporary, replaced):
        shutil.rmtree(folder, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        if path.exists():
            path.replace(replaced)
        temporary.replace(path)
    finally:
        if replaced.exists() and not path.exists():
            replaced.replace(path)
        for folder in (temporary, replaced):
            shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers(path: Path) -> None:
    """Remove what processes that no longer live left half-written (or half-removed) on the way to ``path``."""
    with os.scandir(path.parent) as entries:
        found = [(entry, _LEFTOVER.fullmatch(entry.name)) for entry in entries]
    for entry, match in found:
        if match is None or match["name"] != path.name or _lives(int(match["process"])):
            continue
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            Path(entry.path).unlink(missing_ok=True)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` as strict JSON (no NaN literals), atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises
    ------
    InputError
        If the file is missing, no regular file, or not JSON.
    """
    with open_regular(Path(path)) as file:
        try:
            return json.loads(file.read().decode())
        except (ValueError, RecursionError, MemoryError) as error:
            raise InputError(f"{path} is not valid JSON: {error}") from None


def write_npz(path: Path, **arrays: np.ndarray) -> None:
    """Write small arrays to an uncompressed ``.npz``, atomically and with the same bytes for the same content.

    ``numpy.savez`` stamps fixed times into the archive, so equal arrays give equal bytes.
    """
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def hash_file(path: Path, digest: hashlib._Hash | None = None) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal; with ``digest``, feed that one."""
    digest = digest or hashlib.sha256()
    with open_regular(Path(path)) as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def hash_json(content: Any) -> str:
    """Return the SHA-256 of JSON content, independent of the order of keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()
