"""Checksums of a folder's files: what is read is what was written, or an error names the file that is not.

:func:`write_checksums` writes ``checksums.json`` as the last file of a finished folder; :class:`Checksums` reads it and
hands out paths only after their bytes have been compared. This is integrity, not authenticity: whoever can replace a
file can replace its checksum too.

A part of the folder may have a list of its own. The folder's list then names that list alone, and takes its entries
over when it is read: every file has one checksum.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, Self

from showerstack.runtime.context import Progress
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import FileState, file_state, hash_file, read_json, write_json

CHECKSUMS_FILE = "checksums.json"
CHECKSUMS_FORMAT = 1
"""Raised when the meaning of ``checksums.json`` changes."""


@dataclass(frozen=True)
class Checksums:
    """The checksums of a folder; use :meth:`open`."""

    folder: Path
    files: dict[str, tuple[int, str]]
    """Relative POSIX path of each file: its length in bytes and its SHA-256 in hexadecimal."""

    @classmethod
    def open(cls, folder: str | Path, required: Iterable[str] = ()) -> Self:
        """Read ``checksums.json`` of a finished folder; refuse one that leads out of it.

        It must name the ``required`` relative paths: whoever reads a folder knows what it cannot do without.
        """
        folder = Path(folder)
        file = folder / CHECKSUMS_FILE
        content = read_json(file)
        if (
            not isinstance(content, dict)
            or content.get("format") != CHECKSUMS_FORMAT
            or not _is_list_of_files(content.get("files"))
        ):
            raise InputError(f"{file} is not a list of checksums of format {CHECKSUMS_FORMAT}")
        files = {name: (entry["bytes"], entry["sha256"]) for name, entry in content["files"].items()}
        outside = next((name for name in files if not _is_inside(name)), None)
        if outside is not None:
            raise InputError(f"{file} names {outside!r}, which is not a path inside the folder")
        checksums = cls(folder, files)
        for part in [PurePosixPath(name).parent for name in files if name.endswith(f"/{CHECKSUMS_FILE}")]:
            if not checksums.problem(f"{part}/{CHECKSUMS_FILE}"):
                files |= {f"{part}/{name}": entry for name, entry in cls.open(folder / part).files.items()}
        lacking = [name for name in required if name not in files]
        if lacking:
            more = f"{file} does not name {lacking[0]} ({len(lacking)} required files missing)"
            raise InputError(checksums._problem_of_list(lacking[0]) or more)
        return checksums

    def path(self, name: str) -> Path:
        """Return the path of a file after comparing its bytes; within a process an unchanged file is read once."""
        problem = self.problem(name)
        if problem:
            raise InputError(problem)
        return self.folder / name

    def problem(self, name: str) -> str | None:
        """Return what is wrong with one file, or None."""
        path = self.folder / name
        if name not in self.files:
            return self._problem_of_list(name) or f"{path} is not in {CHECKSUMS_FILE} of {self.folder}"
        if not path.is_file():
            return f"{path} does not exist, but {CHECKSUMS_FILE} names it"
        n_bytes, expected = self.files[name]
        state = file_state(path)
        if state is None or state[0] != n_bytes or _hash(path, state) != expected:
            return f"{path} is not the file that was written (damaged, truncated or replaced)"
        return None

    def _problem_of_list(self, name: str) -> str | None:
        """Return what is wrong with the list of the part that a file is in, or None."""
        lists = (f"{part}/{CHECKSUMS_FILE}" for part in PurePosixPath(name).parents[:-1])
        return next(filter(None, (self.problem(one) for one in lists if one in self.files and one != name)), None)

    def problems(self, progress: Progress | None = None) -> list[str]:
        """Compare every file; return one line for each that is missing or differs."""
        lines = []
        for number, name in enumerate(self.files, start=1):
            problem = self.problem(name)
            lines += [problem] if problem else []
            if progress:
                progress(number, len(self.files), name)
        return lines

    def write(self) -> None:
        """Write ``checksums.json``, atomically."""
        entries = {name: {"bytes": n_bytes, "sha256": digest} for name, (n_bytes, digest) in sorted(self.files.items())}
        write_json(self.folder / CHECKSUMS_FILE, {"format": CHECKSUMS_FORMAT, "files": entries})


def write_checksums(folder: str | Path, names: Iterable[str] | None = None) -> Checksums:
    """Write ``checksums.json`` with length and SHA-256 of the named files (relative POSIX paths), by default of all."""
    folder = Path(folder)
    if names is None:
        names = [file.relative_to(folder).as_posix() for file in sorted(folder.rglob("*")) if file.is_file()]
    checksums = Checksums(folder, {name: checksum(folder / name) for name in names})
    checksums.write()
    return checksums


def checksum(path: Path) -> tuple[int, str]:
    """Return length in bytes and SHA-256 of a file, as :class:`Checksums` keeps them."""
    return path.stat().st_size, hash_file(path)


def known_hash(path: Path) -> str | None:
    """Return the SHA-256 of a file, None where there is none; within a process an unchanged file is read once."""
    state = file_state(path)
    return None if state is None else _hash(path, state)


@lru_cache(maxsize=65_536)
def _hash(path: Path, state: FileState) -> str:
    return hash_file(path)


def _is_list_of_files(files: Any) -> bool:
    return isinstance(files, dict) and all(
        isinstance(entry, dict) and isinstance(entry.get("bytes"), int) and isinstance(entry.get("sha256"), str)
        for entry in files.values()
    )


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\0" not in name
