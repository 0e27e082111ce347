"""A feature table while it is made: one writer at a time, shards listed with their checksums as they are finished.

``checksums.json`` grows with the shards and names ``catalogue.json`` last: killed at any moment, the table is continued
from the shards that are listed, and no file is hashed twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from features.table import CATALOGUE_FILE, n_parts, part_path, read_head
from showers.schema import InputError
from showers.storage.checksums import CHECKSUMS_FILE, Seal, checksum
from showers.storage.files import write_json
from showers.storage.locks import LOCK_FILE, locked

_SHARD = r"part-[0-9]{5,}\.parquet"
_MADE = rf"({_SHARD}|{re.escape(CATALOGUE_FILE)}|{re.escape(CHECKSUMS_FILE)})"
_TEMPORARY = r"\.partial-[0-9]+-([0-9a-f]{16}-)?"
_OURS = re.compile(rf"{re.escape(LOCK_FILE)}|({_TEMPORARY})?{_MADE}")
_LEFTOVER = re.compile(rf"{_TEMPORARY}{_MADE}")


@dataclass(frozen=True)
class TableWriter:
    """The folder of an unfinished table; use :func:`opened_for_writing`."""

    folder: Path
    head: dict[str, Any]
    """Content of ``catalogue.json``."""
    seal: Seal
    """The shards that are finished."""

    def missing(self) -> list[int]:
        """Return the numbers of the shards still to be made."""
        parts = n_parts(self.head)
        return [k for k in range(parts) if part_path(self.folder, k).name not in self.seal.files]

    def add(self, number: int, n_bytes: int, digest: str) -> None:
        """Record a shard that was written, with its length and SHA-256."""
        self.seal.files[part_path(self.folder, number).name] = (n_bytes, digest)
        with one_line(self.folder):
            self.seal.write()

    def finish(self) -> None:
        """Mark the table as complete."""
        with one_line(self.folder):
            write_json(self.folder / CATALOGUE_FILE, {**self.head, "complete": True})
            self.seal.files[CATALOGUE_FILE] = checksum(self.folder / CATALOGUE_FILE)
            self.seal.write()


@contextmanager
def opened_for_writing(folder: Path, head: dict[str, Any], *, replace: bool) -> Iterator[TableWriter]:
    """Hold the folder of a table and prepare it: what fits ``head`` is kept, everything else of ours removed.

    Parameters
    ----------
    folder
        Where the table is to be.
    head
        Content of ``catalogue.json`` of the unfinished table.
    replace
        Whether a table of another dataset may be replaced.

    Raises
    ------
    InputError
        If the folder holds something else, another process writes into it, or it cannot be written.
    """
    _check_owner(folder, head, replace)
    with locked(folder):
        # Looked at again: another process may have just finished with it.
        found = _check_owner(folder, head, replace)
        with one_line(folder):
            for path in folder.iterdir():
                if _LEFTOVER.fullmatch(path.name) and (path.is_symlink() or not path.is_dir()):
                    path.unlink(missing_ok=True)
            same = found is not None and all(found[key] == head[key] for key in ("fingerprint", "shard_events"))
            files = _listed(folder, n_parts(head)) if same else {}
            _clear(folder, files)
            writer = TableWriter(folder, head, Seal(folder, files))
            writer.seal.write()
            write_json(folder / CATALOGUE_FILE, head)
        yield writer


@contextmanager
def one_line(folder: Path) -> Iterator[None]:
    """Tell in one line that a table cannot be written (full disk, no permission)."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{folder} cannot be written ({error.strerror or error}): what is finished is kept") from None


def _check_owner(folder: Path, head: dict[str, Any], replace: bool) -> dict[str, Any] | None:
    """Return the head of the table that is there, if any, after making sure that the folder may be written."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: expected the folder of a feature table")
    found = read_head(folder)
    if found is None:
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        if names and not (LOCK_FILE in names and all(_OURS.fullmatch(name) for name in names)):
            raise InputError(f"{folder} exists and is not a feature table: choose another folder or remove it")
    elif not replace and found["dataset_fingerprint"] != head["dataset_fingerprint"]:
        raise InputError(f"{folder} holds the features of another dataset: choose another folder or remove it")
    return found


def _listed(folder: Path, parts: int) -> dict[str, tuple[int, str]]:
    """Return the checksums of the shards that are listed and there, at full length."""
    try:
        files = Seal.open(folder).files
    except InputError:
        return {}
    shards = (part_path(folder, k) for k in range(parts))
    return {
        path.name: files[path.name]
        for path in shards
        if path.name in files and path.is_file() and path.stat().st_size == files[path.name][0]
    }


def _clear(folder: Path, kept: dict[str, tuple[int, str]]) -> None:
    """Remove shards that no longer fit; the head goes first: a half-removed table is never taken as complete."""
    (folder / CATALOGUE_FILE).unlink(missing_ok=True)
    for path in folder.iterdir():
        if re.fullmatch(_SHARD, path.name) and path.name not in kept:
            path.unlink()
