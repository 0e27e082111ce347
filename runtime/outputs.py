"""What a command writes never replaces what it reads, nor what is not its own output of the same input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from showerstack.runtime.checksums import CHECKSUMS_FILE, Checksums
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import hash_file, hash_json, is_as_written, read_json, with_checksum, write_json


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


RECORD_FILE = ".showerstack-outputs.json"
"""Beside the outputs of commands: what each was made of, and its SHA-256."""


class Outputs:
    """Files that one command writes of one input; those of others are not replaced."""

    def __init__(self, made_of: Mapping[str, str]) -> None:
        """Say what is read, and by which command: two such are the same if they say the same."""
        self.made_of = hash_json(dict(made_of))
        self.files: list[Path] = []

    def claim(self, files: Iterable[Path], *, overwrite: bool = False) -> None:
        """Refuse files that exist, but for those that were written of the same input and not changed since."""
        for file in files:
            is_ours = overwrite or not file.is_file()
            if not is_ours and _recorded(file.parent).get(file.name) != [self.made_of, hash_file(file)]:
                raise InputError(
                    f"{file} exists already, and is not what this command wrote of the same input: choose another "
                    "name, or say --overwrite"
                )
            self.files.append(file)

    def record(self) -> None:
        """Note the files that were claimed and are there now."""
        for folder in {file.parent for file in self.files}:
            there = [file for file in self.files if file.parent == folder and file.is_file()]
            mine = {file.name: [self.made_of, hash_file(file)] for file in there}
            with suppress(OSError):  # an output without a note is not replaced, no more
                write_json(folder / RECORD_FILE, with_checksum({"outputs": _recorded(folder) | mine}))


def _recorded(folder: Path) -> dict[str, list[str]]:
    """Return what was noted of the files of a folder; nothing where that cannot be read."""
    try:
        content = read_json(folder / RECORD_FILE)
    except InputError:
        return {}
    is_ours = isinstance(content, dict) and is_as_written(content) and isinstance(content.get("outputs"), dict)
    return content["outputs"] if is_ours else {}
