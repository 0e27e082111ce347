"""Where results may be written: new names, or files of the same kind; never devices, pipes, folders or other files."""

from __future__ import annotations

import os
from pathlib import Path

from showers.schema import InputError
from showers.storage.files import kind_of

_HEADS = {
    ".npz": (b"PK\x03\x04", b"PK\x05\x06"),
    ".parquet": (b"PAR1",),
    ".pq": (b"PAR1",),
    ".png": (b"\x89PNG",),
    ".pdf": (b"%PDF",),
    ".svg": (b"<?xml", b"<svg"),
}
"""First bytes of files whose kind can be told."""


def check_target(path: Path, suffixes: tuple[str, ...]) -> None:
    """Make sure before long work that a result can be written to ``path``; makes its parent folder.

    Parameters
    ----------
    path
        The file to write; an existing one of the same kind will be replaced.
    suffixes
        Kinds of file that can be written, with the dot.

    Raises
    ------
    InputError
        If the suffix is another one, the file there is of another kind, or its folder cannot be made or written.
    """
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is {kind_of(path)}: choose the name of a file")
    suffix = path.suffix.lower()
    if suffix not in suffixes:
        raise InputError(f"{path}: choose a name that ends in {', '.join(suffixes[:-1])} or {suffixes[-1]}")
    if path.exists() and path.stat().st_size and suffix in _HEADS:
        with path.open("rb") as file:
            if not file.read(8).startswith(_HEADS[suffix]):
                raise InputError(f"{path} exists and is no {suffix} file: choose another name or remove it first")
    path.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise InputError(f"{path.parent} cannot be written: choose another place, or change its permissions")
