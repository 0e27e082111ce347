"""NumPy's ``.npy`` and ``.npz`` files, read within bounds and written piece by piece.

What a header promises is compared with the file before anything is mapped, read or unpacked. Mapped files that shrink,
and disks that are full, would end the process with a bus error; here they end in a message. Predictions are written
while they are made, so that memory does not grow with the number of events.
"""

from __future__ import annotations

import errno
import lzma
import os
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Literal, Self, cast

import numpy as np

from showerstack.runtime.errors import InputError
from showerstack.runtime.files import atomic_path, open_regular

_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}

_FULL_DISK_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Header:
    """What the head of a ``.npy`` file says."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int
    """Length of the head itself, bytes."""
    fortran: bool = False
    """Whether the first index changes fastest, as in columns that NumPy chose with an index."""

    @property
    def n_bytes(self) -> int:
        """Length of the whole file."""
        return self.offset + prod(self.shape) * self.dtype.itemsize


def read_header(stream: BinaryIO, where: str, *, objects: bool = False) -> Header:
    """Read the head of an array, and no more, from a stream at its first byte.

    ``where`` is what messages call it. What is not in NumPy's format, or holds Python objects
    where there must be none, is refused.
    """
    start = stream.tell()
    try:
        shape, fortran, dtype = _READERS[np.lib.format.read_magic(stream)](stream)
    except Exception as error:  # a damaged head is parsed as Python literals and can raise nearly anything
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{where} cannot be read as a NumPy array (truncated or damaged?): {why}") from None
    if (dtype.hasobject and not objects) or not dtype.itemsize:
        raise InputError(f"{where} cannot be read as a NumPy array: it holds Python objects, expected numbers")
    if any(isinstance(length, bool) or length < 0 for length in shape):
        raise InputError(f"{where} cannot be read as a NumPy array (damaged?): its shape is {shape}")
    return Header(shape, dtype, stream.tell() - start, fortran and len(shape) > 1)


class MappedArray(np.memmap):
    """A read-only memory map that notices when its file has become shorter; its parts are plain arrays in C order."""

    def __getitem__(self, index: Any) -> Any:
        """Return a part, after making sure that the file still holds all rows."""
        mapped = getattr(self, "_mmap", None)
        if mapped is not None and mapped.size() < self.offset + self.nbytes:
            raise InputError(f"{self.filename} has become shorter while it was being read: restore it and start again")
        part = np.ndarray.__getitem__(self, index)
        if not isinstance(part, np.ndarray):
            return part
        plain = part.view(np.ndarray)
        return np.ascontiguousarray(plain) if self.ndim > 1 and self.flags.f_contiguous else plain


def open_npy(path: Path) -> np.ndarray:
    """Memory-map a ``.npy`` file read-only; refuse a truncated one, and Python objects."""
    path = Path(path)
    with open_regular(path) as file:
        header = read_header(file, str(path))
        n_bytes = os.fstat(file.fileno()).st_size
        if n_bytes != header.n_bytes:
            raise InputError(
                f"{path} cannot be read as a NumPy array (truncated or damaged?): it has {n_bytes:,} bytes, "
                f"but an array {header.shape} of {header.dtype} makes {header.n_bytes:,}"
            )
        if not prod(header.shape):  # an empty array cannot be mapped, but it is a valid file
            return np.empty(header.shape, header.dtype)
        order: Literal["F", "C"] = "F" if header.fortran else "C"
        mapped = MappedArray(file, header.dtype, "r", header.offset, header.shape, order)
        mapped.filename = str(path.resolve())
        return mapped


def open_array(path: Path, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Map an array of (N, *shape); numbers of another width, byte order or memory order are read into memory."""
    array = open_npy(path)
    check_kind(path, array, dtype)
    check_shape(path, array, shape)
    if array.dtype == np.dtype(dtype) and array.dtype.isnative and array.flags.c_contiguous:
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        return np.ascontiguousarray(array).astype(dtype)


def check_kind(path: Path, array: np.ndarray, dtype: Any) -> None:
    """Refuse an array that holds no numbers, or no whole ones where ``dtype`` is of whole numbers."""
    whole = np.dtype(dtype).kind == "i"
    if array.dtype.kind not in ("iu" if whole else "fiu"):
        raise InputError(f"{path} has type {array.dtype}, expected {'whole ' if whole else ''}numbers")


def check_shape(path: Path, array: np.ndarray, shape: tuple[int, ...]) -> None:
    """Refuse an array that is not (N, *shape)."""
    if array.shape[1:] != shape or array.ndim != len(shape) + 1:
        wanted = ", ".join(["N", *map(str, shape)]) + ("," if not shape else "")
        raise InputError(f"{path} has shape {array.shape}, expected ({wanted})")


class ArrayFile:
    """A new ``.npy`` file, filled row by row; its space on disk is reserved before the first row."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: Any) -> None:
        """Create the file."""
        self.dtype = np.dtype(dtype)
        self.rows_written = 0
        self._shape = shape
        self._row_bytes = prod(shape[1:]) * self.dtype.itemsize
        self._file = path.open("wb")
        head = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, head)
        self._offset = self._file.tell()
        try:
            reserve(self._file, self._offset + shape[0] * self._row_bytes)
        except InputError:
            self._file.close()
            raise

    def put(self, start: int, rows: np.ndarray) -> None:
        """Write consecutive rows from row ``start`` on."""
        if rows.shape[1:] != self._shape[1:]:
            raise InputError(f"{self._file.name}: rows {start} on have shape {rows.shape[1:]}, not {self._shape[1:]}")
        if start + len(rows) > self._shape[0]:
            raise InputError(f"{self._file.name}: rows {start} to {start + len(rows)} of {self._shape[0]} were given")
        self._file.seek(self._offset + start * self._row_bytes)
        self._file.write(np.ascontiguousarray(rows, dtype=self.dtype).data.cast("B") if len(rows) else b"")
        self.rows_written += len(rows)

    def close(self) -> None:
        """Flush to disk and close."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()


def reserve(file: BinaryIO, n_bytes: int) -> None:
    """Reserve space on disk for a file that will have ``n_bytes``."""
    if not n_bytes or not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(file.fileno(), 0, n_bytes)
    except OSError as error:
        if error.errno in _FULL_DISK_ERRNOS:
            folder = next(up for up in Path(str(file.name)).parents if not up.name.startswith(".partial-"))
            raise InputError(
                f"{folder}: no room for {n_bytes / 1e9:,.3f} GB ({error.strerror}): free some space or write elsewhere"
            ) from None
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
            raise


@contextmanager
def full_disk_as_input_error(path: Path) -> Iterator[None]:
    """Turn the errors of a full disk, quota or size limit into an :class:`InputError` that names ``path``."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL_DISK_ERRNOS:
            raise
        raise InputError(f"{path} cannot be written: {error.strerror}: free some space or write elsewhere") from None


LEAST_BOUND_BYTES = 1 << 26
MAX_RATIO = 50
"""An array may take 64 MB, or this many times the archive's own size: tighter packing is a bomb, not predictions."""

_DAMAGE_ERRORS = (
    ValueError, OSError, EOFError, RuntimeError, OverflowError, KeyError, MemoryError,
    zlib.error, lzma.LZMAError, struct.error, zipfile.BadZipFile,
)  # fmt: skip
"""What reading a damaged archive raises."""


def refuse_swollen(where: str, n_bytes: int, file_bytes: int, remedy: str) -> None:
    """Refuse content that says to be far larger than its file is, before memory is taken for it.

    Raises
    ------
    InputError
        If it would take more than :data:`LEAST_BOUND_BYTES` and :data:`MAX_RATIO` times the file.
    """
    if n_bytes > max(LEAST_BOUND_BYTES, MAX_RATIO * file_bytes):
        raise InputError(
            f"{where} would unpack to {n_bytes / 1e9:,.2f} GB, more than {MAX_RATIO} times its file: if that is meant, "
            f"{remedy}"
        )


def read_arrays(file: Path, *wanted: str, check: Callable[[str, Header], None] | None = None) -> dict[str, np.ndarray]:
    """Read those of the wanted arrays that an ``.npz`` archive holds; refuse an archive that holds none.

    ``check`` is called with the name and head of each wanted array before any is unpacked, and refuses by an
    :class:`InputError`. Refused are damaged archives, Python objects, and arrays larger than any predictions packed
    into a file of this size.
    """
    file = Path(file)
    if file.is_dir():
        raise InputError(f"{file} is a folder: give the predictions.npz inside it")
    with open_regular(file) as stream:
        if not zipfile.is_zipfile(stream):
            raise InputError(f"{file} is not a complete .npz archive: write it with numpy.savez(file, {wanted[0]}=...)")
        size = os.fstat(stream.fileno()).st_size
        try:
            with zipfile.ZipFile(stream) as archive:
                members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
                present = [name for name in wanted if name in members]
                if not present:
                    held = ", ".join(members) or "nothing"
                    raise InputError(f"{file} holds no array {wanted[0]!r} (it holds {held[:400]})")
                for name in present:
                    where = f"{file}, {name}"
                    header = _checked_header(archive, members[name], where)
                    if check:
                        check(name, header)
                    refuse_swollen(where, header.n_bytes, size, "write it again with numpy.savez, unpacked")
                return {name: _unpack(archive, members[name]) for name in present}
        except InputError:
            raise
        except _DAMAGE_ERRORS as error:
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InputError(f"{file}: cannot be read (damaged?): {why}") from None


def array_names(file: Path) -> frozenset[str]:
    """Return the names of the arrays in an ``.npz`` archive; none for what cannot be read as one."""
    try:
        with open_regular(Path(file)) as stream, zipfile.ZipFile(stream) as archive:
            return frozenset(name.removesuffix(".npy") for name in archive.namelist())
    except _DAMAGE_ERRORS:  # an InputError is a ValueError: reading the arrays says what is wrong
        return frozenset()


def _checked_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo, where: str) -> Header:
    with archive.open(member) as stream:
        header = read_header(cast(BinaryIO, stream), where)
    if header.n_bytes != member.file_size:
        raise InputError(
            f"{where} cannot be read (damaged?): it has {member.file_size:,} bytes, but an array {header.shape} of "
            f"{header.dtype} makes {header.n_bytes:,}"
        )
    return header


def _unpack(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(member) as stream:
        array: np.ndarray = np.lib.format.read_array(stream, allow_pickle=False)
        stream.read(1)  # the end, where the checksum is compared
    return array


COPY_BYTES = 1 << 22


def write_pieces(file: Path, n_events: int, pieces: Iterable[Mapping[str, np.ndarray]]) -> None:
    """Write an uncompressed ``.npz``, with the bytes that :func:`showerstack.runtime.files.write_npz` would give.

    Pieces, of ``n_events`` together, hold the same arrays (n,) or (n, C), and scalars, which are equal in all.
    """
    with atomic_path(file) as temporary, ExitStack() as stack:
        streams: dict[str, BinaryIO] = {}
        templates: dict[str, np.ndarray] = {}
        for piece in pieces:
            for name, array in piece.items():
                if name not in streams:
                    streams[name] = stack.enter_context(tempfile.TemporaryFile(dir=temporary.parent))
                    templates[name] = array[:0] if array.ndim else array
                    if not array.ndim:
                        streams[name].write(array.tobytes())
                if array.ndim:
                    streams[name].write(np.ascontiguousarray(array).tobytes())
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            for name, unsized in streams.items():
                shape = (n_events, *templates[name].shape[1:]) if templates[name].ndim else ()
                header = {
                    "descr": np.lib.format.dtype_to_descr(templates[name].dtype), "fortran_order": False,
                    "shape": shape,
                }  # fmt: skip
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array_header_1_0(member, header)
                    unsized.seek(0)
                    while block := unsized.read(COPY_BYTES):
                        member.write(block)
