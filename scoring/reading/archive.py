"""Arrays out of an ``.npz`` archive, bounded: heads are read and judged before anything is unpacked."""

from __future__ import annotations

import lzma
import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from showers.schema import InputError
from showers.storage.npy import Header, read_header
from showers.storage.regular import open_regular

LEAST_BOUND_BYTES = 1 << 26
MAX_RATIO = 50
"""An array may take 64 MB, or this many times the archive's own size: tighter packing is a bomb, not predictions."""

_DAMAGED = (
    ValueError, OSError, EOFError, RuntimeError, OverflowError, KeyError, MemoryError,
    zlib.error, lzma.LZMAError, struct.error, zipfile.BadZipFile,
)  # fmt: skip
"""What reading a damaged archive raises."""


def read_arrays(file: Path, *wanted: str, check: Callable[[str, Header], None] | None = None) -> dict[str, np.ndarray]:
    """Read those of the wanted arrays that an ``.npz`` archive holds.

    Parameters
    ----------
    check
        Called with the name and head of each wanted array before any is unpacked; refuses by an ``InputError``.

    Raises
    ------
    InputError
        If the file is missing, no regular file, no complete archive, damaged, holds none of the arrays, or a wanted
        array holds Python objects or would be larger than any predictions packed into a file of this size.
    """
    file = Path(file)
    if file.is_dir():
        raise InputError(f"{file} is a folder: give the predictions.npz inside it")
    with open_regular(file) as stream:
        if not zipfile.is_zipfile(stream):
            raise InputError(f"{file} is not a complete .npz archive: write it with numpy.savez(file, {wanted[0]}=...)")
        bound = max(LEAST_BOUND_BYTES, MAX_RATIO * os.fstat(stream.fileno()).st_size)
        try:
            with zipfile.ZipFile(stream) as archive:
                members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
                held = [name for name in wanted if name in members]
                if not held:
                    there = ", ".join(members) or "nothing"
                    raise InputError(f"{file} holds no array {wanted[0]!r} (it holds {there[:400]})")
                for name in held:
                    where = f"{file}, {name}"
                    header = _head(archive, members[name], where)
                    if check:
                        check(name, header)
                    if header.n_bytes > bound:
                        raise InputError(
                            f"{where} would unpack to {header.n_bytes / 1e9:,.2f} GB, more than {MAX_RATIO} times its "
                            "file: if that is meant, write it again with numpy.savez, unpacked"
                        )
                return {name: _unpacked(archive, members[name]) for name in held}
        except InputError:
            raise
        except _DAMAGED as error:
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InputError(f"{file}: cannot be read (damaged?): {why}") from None


def array_names(file: Path) -> frozenset[str]:
    """Return the names of the arrays in an ``.npz`` archive; none for what cannot be read as one."""
    try:
        with open_regular(Path(file)) as stream, zipfile.ZipFile(stream) as archive:
            return frozenset(name.removesuffix(".npy") for name in archive.namelist())
    except _DAMAGED:  # an InputError is a ValueError: reading the arrays says what is wrong
        return frozenset()


def _head(archive: zipfile.ZipFile, member: zipfile.ZipInfo, where: str) -> Header:
    with archive.open(member) as stream:
        header = read_header(cast(BinaryIO, stream), where, any_order=True)
    if header.n_bytes != member.file_size:
        raise InputError(
            f"{where} cannot be read (damaged?): it has {member.file_size:,} bytes, but an array {header.shape} of "
            f"{header.dtype} makes {header.n_bytes:,}"
        )
    return header


def _unpacked(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(member) as stream:
        array: np.ndarray = np.lib.format.read_array(stream, allow_pickle=False)
        stream.read(1)  # the end, where the checksum is compared
    return array
