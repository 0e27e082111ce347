"""Writing so that a half-written file is never taken as complete, and reading ``.npy`` files with clear refusals."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from showers.schema import InputError


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary file name beside ``path``; on success flush it to disk and rename it to ``path``.

    The parent folder is created. On an exception the temporary file is removed and ``path`` is untouched.
    The temporary name keeps the suffix, because some libraries choose a format by it.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
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

    Raises
    ------
    InputError
        If ``path`` exists and ``overwrite`` is false.
    """
    path = Path(path)
    if path.exists() and not overwrite:
        raise InputError(f"{path} exists already: choose another name or remove it first")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".partial-{os.getpid()}-{path.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        if path.exists():
            shutil.rmtree(path)
        temporary.replace(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` as strict JSON (no NaN literals), atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises
    ------
    InputError
        If the file is missing or not JSON.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid JSON: {error}") from None


def write_npz(path: Path, **arrays: np.ndarray) -> None:
    """Write small arrays to an uncompressed ``.npz``, atomically and with the same bytes for the same content.

    ``numpy.savez`` stamps fixed times into the archive, so equal arrays give equal bytes.
    """
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def open_npy(path: Path) -> np.ndarray:
    """Memory-map a ``.npy`` file read-only.

    Raises
    ------
    InputError
        If the file is missing, truncated, not in NumPy's format, or holds Python objects.
    """
    path = Path(path)
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except (ValueError, OSError, EOFError) as error:
        # An empty array cannot be memory-mapped, but it is a valid file.
        try:
            array = np.load(path, allow_pickle=False)
        except (ValueError, OSError, EOFError):
            raise InputError(f"{path} cannot be read as a NumPy array (truncated or damaged?): {error}") from None
        if array.size:
            raise InputError(f"{path} cannot be memory-mapped: {error}") from None
        return array


def hash_file(path: Path, digest: hashlib._Hash | None = None) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal; with ``digest``, feed that one."""
    digest = digest or hashlib.sha256()
    with Path(path).open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def hash_json(content: Any) -> str:
    """Return the SHA-256 of JSON content, independent of the order of keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()
