"""What a command writes never replaces what it reads."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from showerstack.runtime.checksums import CHECKSUMS_FILE, Checksums
from showerstack.runtime.errors import InputError


def refuse_replacing(output: str, out: Path, inputs: Iterable[tuple[str, Path]]) -> None:
    """Refuse an output that is an input, or a file of an input folder, whatever paths and links lead to it.

    Parameters
    ----------
    output, out
        The option that names the output, and the path.
    inputs
        The options that name inputs, and their paths.
    """
    for name, path in inputs:
        if _is_same(out, path):
            raise InputError(f"{output} {out} is {name} too, which it would replace: choose another name")
        if out.is_file() and path.is_dir() and _is_file_of(out.resolve(), path.resolve()):
            raise InputError(f"{output} {out} is a file of {name} {path}, which it would replace: choose another name")


def _is_same(one: Path, other: Path) -> bool:
    """Return whether two paths lead to the same file or folder, by links of either kind too."""
    if one.exists() and other.exists():
        return one.samefile(other)
    return one.resolve() == other.resolve()


def _is_file_of(file: Path, folder: Path) -> bool:
    """Return whether a list of checksums, of the folder or of one below it that holds the file, names the file."""
    parents = [part for part in file.parents if part == folder or folder in part.parents]
    lists = [part for part in parents if (part / CHECKSUMS_FILE).is_file()]
    return any(file.relative_to(part).as_posix() in (CHECKSUMS_FILE, *Checksums.open(part).files) for part in lists)
