"""The raw format of the public data: three NPZ archives a mode (hadronic model), read as bounded streams.

``{mode}_matrices.npz`` (N, 16, 16, 3: arrival time, e/gamma, muon), ``{mode}_features.npz`` and
``{mode}_true_features.npz`` (N, 10 each). Archives written by the simulation also hold ``source.json``, which says so.
"""

from __future__ import annotations

import json
import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from showers.kascade import RAW_SHAPE
from showers.schema import SOURCE_FILE, InputError
from showers.storage.npy import Header, read_header
from showers.storage.regular import open_regular

KINDS: dict[str, tuple[int, ...]] = {"matrices": RAW_SHAPE, "features": (10,), "true_features": (10,)}
"""Archives of a mode: key of the array and its shape per event."""

RAW_COLUMNS = ("type", "E", "Xc", "Yc", "R", "Ze", "Az", "Ne", "Nmu", "Age")
TRUE_COLUMNS = ("E", "id", "Xc", "Yc", "Ze", "Az", "Ne", "Nphoton", "Nmu", "Nhadron")

EVENTS_AT_ONCE = 8_192
MAX_RATIO = 250.0
"""An array that is packed tighter than this is no air showers: random numbers fill at least these archives."""
MAX_SOURCE_BYTES = 65_536

_DAMAGED = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error,
    EOFError, OSError, RuntimeError, ValueError, OverflowError, KeyError,
)  # fmt: skip
"""What reading a damaged archive raises."""


@dataclass(frozen=True)
class Archives:
    """The three archives of one mode, their heads read and compared; use :meth:`open`."""

    folder: Path
    mode: str
    n_events: int
    source: dict[str, Any] | None
    """What the simulation wrote about its making; None for archives of another origin."""
    digest: str
    """Names, lengths and CRC-32 of all members."""

    @classmethod
    def open(cls, folder: Path, mode: str) -> Archives:
        """Compare the heads of a mode's archives, before anything is unpacked.

        Raises
        ------
        InputError
            If one is missing, damaged or of another shape, if they differ in length, or were not made together.
        """
        lengths, sources, members = {}, {}, []
        for kind, shape in KINDS.items():
            path = archive_path(folder, mode, kind)
            lengths[path], sources[path], content = head_of(path, kind, shape)
            members += content
        first = archive_path(folder, mode, next(iter(KINDS)))
        for path in lengths:
            if lengths[path] != lengths[first]:
                raise InputError(f"{path} has {lengths[path]} events, but {first.name} beside it has {lengths[first]}")
            if sources[path] != sources[first]:
                raise InputError(f"{path} and {first.name} beside it were not made together: make them again")
        return cls(folder, mode, lengths[first], sources[first], "\n".join(members))

    def path(self, kind: str) -> Path:
        """Return the path of one archive."""
        return archive_path(self.folder, self.mode, kind)

    def stream(self, kind: str, events_at_once: int = EVENTS_AT_ONCE) -> Iterator[np.ndarray]:
        """Yield consecutive events of one archive."""
        return stream_npz(self.path(kind), kind, events_at_once)

    def read(self, kind: str) -> np.ndarray:
        """Return all events of one archive of columns, (N, 10)."""
        return np.concatenate([np.empty((0, *KINDS[kind]), np.float32), *self.stream(kind, 1 << 18)])


def common_source(archives: Sequence[Archives]) -> dict[str, Any] | None:
    """Return what the simulation says of all modes together, or None for archives of another origin.

    Raises
    ------
    InputError
        If the modes were not made together.
    """

    def shared(one: Archives) -> dict[str, Any] | None:
        return one.source and {key: value for key, value in one.source.items() if key not in ("mode", "model")}

    first = shared(archives[0])
    for other in archives[1:]:
        if shared(other) != first:
            raise InputError(
                f"{other.path('matrices')} and {archives[0].path('matrices').name} beside it were not made together: "
                "make them again"
            )
    return first and {**first, "model": "+".join(str((one.source or {}).get("model")) for one in archives)}


def archive_path(folder: Path, mode: str, kind: str) -> Path:
    """Return the name of an archive."""
    return Path(folder) / f"{mode}_{kind}.npz"


def read_source(path: Path) -> dict[str, Any] | None:
    """Return what the simulation wrote into an archive about its making, None for archives of another origin.

    Raises
    ------
    InputError
        If the archive is damaged.
    """
    with _archive(path) as archive:
        return _source(path, archive)


def head_of(path: Path, key: str, shape: tuple[int, ...]) -> tuple[int, dict[str, Any] | None, list[str]]:
    """Compare the head of an archive of one array with what it holds, before anything is unpacked.

    Returns
    -------
    tuple
        Number of events, what the simulation wrote about its making (None for archives of another origin), and names,
        lengths and CRC-32 of all members.

    Raises
    ------
    InputError
        If the archive is missing, damaged, or its events have another shape.
    """
    with _opened(path, key) as (archive, file):
        header = _checked(path, key, archive.getinfo(f"{key}.npy"), file)
        if header.shape[1:] != shape:
            raise InputError(f"{path}: events have shape {header.shape[1:]}, expected {shape}")
        members = [f"{info.filename} {info.file_size} {info.CRC:08x}" for info in archive.infolist()]
        return header.shape[0], _source(path, archive), members


def stream_npz(path: Path, key: str, events_at_once: int = EVENTS_AT_ONCE) -> Iterator[np.ndarray]:
    """Yield consecutive blocks of one array of an NPZ archive without loading it whole.

    Raises
    ------
    InputError
        If the archive or the array is missing, damaged, in Fortran order, holds Python objects, or promises more
        than it holds.
    """
    with _opened(path, key) as (archive, file):
        header = _checked(path, key, archive.getinfo(f"{key}.npy"), file)
        row_bytes = header.dtype.itemsize * prod(header.shape[1:])
        left = header.shape[0]
        while left:
            n = min(events_at_once, left)
            content = file.read(n * row_bytes)
            if len(content) != n * row_bytes:
                raise InputError(f"{path}: array {key!r} ends {left} rows early")
            yield np.frombuffer(content, dtype=header.dtype).reshape(n, *header.shape[1:])
            left -= n
        file.read(1)  # at its end the archive's own checksum is compared


@contextmanager
def member_of(path: Path, name: str) -> Iterator[tuple[zipfile.ZipInfo, IO[bytes]]]:
    """Open one member of an archive as a stream.

    Raises
    ------
    InputError
        If the archive is missing or damaged, or has no such member.
    """
    with _archive(path) as archive:
        if name not in archive.namelist():
            raise InputError(f"{path} holds no {name}")
        with archive.open(name) as file:
            yield archive.getinfo(name), file


@contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    with open_regular(path) as stream:
        try:
            with zipfile.ZipFile(stream) as archive:
                yield archive
        except InputError:
            raise
        except _DAMAGED as error:
            raise InputError(f"{path} is damaged: {str(error) or type(error).__name__}") from None


@contextmanager
def _opened(path: Path, key: str) -> Iterator[tuple[zipfile.ZipFile, IO[bytes]]]:
    with _archive(path) as archive:
        if f"{key}.npy" not in archive.namelist():
            raise InputError(f"{path} holds no array {key!r} of a known format")
        with archive.open(f"{key}.npy") as file:
            yield archive, file


def _checked(path: Path, key: str, member: zipfile.ZipInfo, file: IO[bytes]) -> Header:
    """Read an array's head and compare it with what the archive holds, packed and unpacked."""
    header = read_header(cast("Any", file), f"{path}, array {key!r},")
    if not header.shape or header.dtype.kind not in "fiu":
        raise InputError(f"{path}: array {key!r} has type {header.dtype}, expected rows of numbers")
    if header.n_bytes != member.file_size:
        raise InputError(
            f"{path}: array {key!r} of shape {header.shape} makes {header.n_bytes:,} bytes, "
            f"the archive holds {member.file_size:,}"
        )
    if header.n_bytes > MAX_RATIO * max(member.compress_size, 1_000):
        raise InputError(f"{path}: array {key!r} unpacks to {header.n_bytes:,} bytes: no measured or simulated showers")
    return header


def _source(path: Path, archive: zipfile.ZipFile) -> dict[str, Any] | None:
    if SOURCE_FILE not in archive.namelist():
        return None
    if archive.getinfo(SOURCE_FILE).file_size > MAX_SOURCE_BYTES:
        raise InputError(f"{path}: {SOURCE_FILE} in it is too long")
    content = json.loads(archive.read(SOURCE_FILE))
    if not isinstance(content, dict):
        raise InputError(f"{path}: {SOURCE_FILE} in it is not a table of names and values")
    return content
