"""The raw format of the public data: NPZ archives, read as bounded streams, and event times read without a pickle.

A simulated mode (hadronic model) has ``{mode}_matrices.npz`` (N, 16, 16, 3: arrival time, e/gamma, muon),
``{mode}_features.npz`` and ``{mode}_true_features.npz`` (N, 10 each). Archives written by the simulation also hold
``source.json``, which says so.

A measured run has ``{run}_extra_features.npz``, an array of Python objects, which NumPy stores as a pickle: a program
that can do anything. Here that program is read by an unpickler which knows three names (the reconstruction of a NumPy
array, its type, and dates). All of them are stand-ins of ours that only keep what they are given. Any other name ends
the reading, and no NumPy object is built from it.
"""

from __future__ import annotations

import json
import lzma
import pickle
import shutil
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from itertools import repeat
from math import prod
from pathlib import Path
from typing import IO, Any, ClassVar, Self, cast

import numpy as np

from showerstack.runtime.arrays import Header, full_disk_as_input_error, read_header
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import open_regular
from showerstack.showers.archives.formats import DEPOSITS, TABLE_EVENTS, UNITS
from showerstack.showers.array import KASCADE, RAW_SHAPE, DetectorArray
from showerstack.showers.schema import SOURCE_FILE

KINDS: dict[str, tuple[int, ...]] = {"matrices": RAW_SHAPE, "features": (10,), "true_features": (10,)}
"""Archives of a mode: key of the array and its shape per event; a mode may lack the last one."""
TRUTH_KIND = "true_features"

RAW_COLUMNS = ("type", "E", "Xc", "Yc", "R", "Ze", "Az", "Ne", "Nmu", "Age")
TRUE_COLUMNS = ("E", "id", "Xc", "Yc", "Ze", "Az", "Ne", "Nphoton", "Nmu", "Nhadron")

EVENTS_AT_ONCE = 8_192
MAX_RATIO = 250.0
"""An array that is packed tighter than this is no air showers: random numbers fill at least these archives."""
MAX_SOURCE_BYTES = 65_536

_DAMAGE_ERRORS = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error,
    EOFError, OSError, RuntimeError, ValueError, OverflowError, KeyError,
)  # fmt: skip
"""What reading a damaged archive raises."""


@dataclass(frozen=True)
class ArchiveReader:
    """The archives of one mode or run, their heads read and compared; use :meth:`open`."""

    kinds: ClassVar[dict[str, tuple[int, ...]]]
    """Archives: key of the array and its shape per event."""
    columns: ClassVar[tuple[str, ...]]
    """Of the quantities."""
    is_simulated: ClassVar[bool]
    array: ClassVar[DetectorArray] = KASCADE
    folder: Path
    name: str
    n_events: int
    source: dict[str, Any] | None
    """What the simulation wrote about its making; None for archives of another origin."""
    members: str
    """Names, lengths and CRC-32 of all members, a line each."""

    @classmethod
    def open(cls, folder: Path, name: str) -> Self:
        """Compare the heads of the archives, before anything is unpacked."""
        lengths, sources, members = dict[Path, int](), dict[Path, Any](), list[str]()
        for kind, shape in cls.kinds.items():
            path = archive_path(folder, name, kind)
            if kind == TRUTH_KIND and not path.exists():
                continue
            lengths[path], sources[path], content = head_of(path, kind, shape)
            members += content
        first = next(iter(lengths))
        for path in lengths:
            if lengths[path] != lengths[first]:
                raise InputError(f"{path} has {lengths[path]} events, but {first.name} beside it has {lengths[first]}")
            if sources[path] != sources[first]:
                raise InputError(f"{path} and {first.name} beside it were not made together: make them again")
        return cls(Path(folder), name, lengths[first], sources[first], "\n".join(members))

    @property
    def units(self) -> dict[str, str]:
        """Column to unit."""
        return {name: UNITS[name] for name in (*self.columns, DEPOSITS)}

    def path(self, kind: str) -> Path:
        """Return the path of one archive."""
        return archive_path(self.folder, self.name, kind)

    def chunks(self, names: Sequence[str]) -> Iterator[dict[str, np.ndarray]]:
        """Yield quantities and, where they are asked for, deposits of consecutive events."""
        size = EVENTS_AT_ONCE if DEPOSITS in names else TABLE_EVENTS
        grids = self.stream("matrices", size) if DEPOSITS in names else repeat(None)
        for values, block in zip(self.stream("features", size), grids, strict=False):
            chunk = {name: values[:, self.columns.index(name)] for name in names if name != DEPOSITS}
            yield chunk if block is None else chunk | {DEPOSITS: block[..., 1:]}

    def stream(self, kind: str, events_at_once: int = EVENTS_AT_ONCE) -> Iterator[np.ndarray]:
        """Yield consecutive events of one archive."""
        return stream_npz(self.path(kind), kind, events_at_once)

    def read(self, kind: str) -> np.ndarray:
        """Return all events of one archive of columns, (N, C)."""
        return np.concatenate(list(self.stream(kind, 1 << 18)))


@dataclass(frozen=True)
class SimulatedReader(ArchiveReader):
    """The archives of one simulated mode."""

    kinds = KINDS
    columns = RAW_COLUMNS
    is_simulated = True

    @property
    def has_truth(self) -> bool:
        """Whether there are true quantities."""
        return self.path(TRUTH_KIND).exists()


def arrival_times(grids: np.ndarray) -> np.ndarray:
    """Return the arrival times (n, rows, columns) float16, ns, of raw grids; NaN where they are not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        times = grids[..., 0].astype(np.float16)
    return np.where(np.isfinite(times), times, np.float16(np.nan))


def common_source(archives: Sequence[SimulatedReader]) -> dict[str, Any] | None:
    """Return what the simulation says of all modes together, or None for archives of another origin."""

    def shared(one: SimulatedReader) -> dict[str, Any] | None:
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
    """Return what the simulation wrote into an archive about its making, None for archives of another origin."""
    with _open_archive(path) as archive:
        return _source(path, archive)


def head_of(path: Path, key: str, shape: tuple[int, ...]) -> tuple[int, dict[str, Any] | None, list[str]]:
    """Compare the head of an archive of one array with what it holds, before anything is unpacked.

    Return the number of events, what the simulation wrote about its making (None for archives of another origin), and
    names, lengths and CRC-32 of all members. Events of another shape are refused.
    """
    with _open_array(path, key) as (archive, member, file):
        header = _checked_header(path, key, member, file)
        if not header.shape[0]:
            raise InputError(f"{path} holds no events")
        if header.shape[1:] != shape:
            raise InputError(f"{path}: events have shape {header.shape[1:]}, expected {shape}")
        members = [f"{info.filename} {info.file_size} {info.CRC:08x}" for info in archive.infolist()]
        return header.shape[0], _source(path, archive), members


def stream_npz(path: Path, key: str, events_at_once: int = EVENTS_AT_ONCE) -> Iterator[np.ndarray]:
    """Yield consecutive blocks of one array of an NPZ archive without loading it whole.

    An archive that is damaged, holds Python objects, or promises more than it holds is refused.
    """
    with _open_array(path, key) as (_, member, file):
        header = _checked_header(path, key, member, file)
        if header.fortran:
            yield from _blocks_of_columns(path, key, header, file, events_at_once)
            return
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


def _blocks_of_columns(
    path: Path, key: str, header: Header, file: IO[bytes], events_at_once: int
) -> Iterator[np.ndarray]:
    """Yield events of an array in Fortran order, whose events lie spread over all of it, by way of the disk."""
    with full_disk_as_input_error(Path(tempfile.gettempdir())), tempfile.TemporaryFile() as unpacked:
        shutil.copyfileobj(file, unpacked, 1 << 24)
        if unpacked.tell() != header.n_bytes - header.offset:
            raise InputError(f"{path}: array {key!r} ends early")
        unpacked.flush()
        events = np.memmap(unpacked, header.dtype, "r", 0, header.shape, "F")
        for start in range(0, header.shape[0], events_at_once):
            yield np.ascontiguousarray(events[start : start + events_at_once])


@contextmanager
def _open_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    with open_regular(path) as stream:
        try:
            with zipfile.ZipFile(stream) as archive:
                yield archive
        except InputError:
            raise
        except _DAMAGE_ERRORS as error:
            why = str(error) or type(error).__name__
            raise InputError(f"{path} is damaged: {why}; remove it and download it again") from None


@contextmanager
def _open_array(path: Path, key: str) -> Iterator[tuple[zipfile.ZipFile, zipfile.ZipInfo, IO[bytes]]]:
    """Open one array of an archive as a stream."""
    with _open_archive(path) as archive:
        if f"{key}.npy" not in archive.namelist():
            raise InputError(f"{path} holds no array {key!r} of a known format")
        with archive.open(f"{key}.npy") as file:
            yield archive, archive.getinfo(f"{key}.npy"), file


def _checked_header(path: Path, key: str, member: zipfile.ZipInfo, file: IO[bytes]) -> Header:
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


TIMES_KIND = "extra_features"
TIME_COLUMN = 8
MAX_BYTES_AN_EVENT = 4_096
MAX_HEAD_BYTES = 1 << 16


def read_times(path: Path, n_events: int) -> np.ndarray:
    """Return the UTC times (N,) float64 of a run's N events, seconds since 1970-01-01.

    From ``{run}_extra_features.npz``; anything but numbers, text and dates in it is refused.
    """
    with _open_array(path, TIMES_KIND) as (_, member, file):
        if member.file_size > MAX_HEAD_BYTES + MAX_BYTES_AN_EVENT * n_events:
            raise InputError(f"{path}: {member.file_size:,} bytes are too many for {n_events:,} events")
        header = read_header(cast("Any", file), str(path), objects=True)
        shape = header.shape
        if header.dtype != np.dtype(object) or header.fortran:
            raise InputError(f"{path}: type {header.dtype}, expected rows of objects")
        if len(shape) != 2 or shape[0] != n_events or shape[1] <= TIME_COLUMN:
            raise InputError(f"{path}: shape {shape}, expected ({n_events}, {TIME_COLUMN + 1} or more)")
        try:
            content = _DatesUnpickler(file).load()
        except _NameNotAdmitted as error:
            raise InputError(f"{path}: it names {error}, which is neither an array nor a date: not read") from None
        except Exception as error:  # what a damaged or hostile program of a pickle can raise is not bounded
            raise InputError(f"{path} is damaged: {type(error).__name__}") from None
    if not isinstance(content, _ObjectArray) or content.shape != shape or len(content.values) != shape[0] * shape[1]:
        raise InputError(f"{path} does not hold an array of objects")
    return _seconds(path, content.values[TIME_COLUMN :: shape[1]])


def _seconds(path: Path, times: list[Any]) -> np.ndarray:
    seconds = np.empty(len(times))
    for row, time in enumerate(times):
        if not isinstance(time, datetime):
            raise InputError(f"{path}: row {row}, column {TIME_COLUMN} holds no date and time")
        try:
            seconds[row] = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            raise InputError(f"{path}: row {row}, column {TIME_COLUMN} holds a date out of range") from None
    return seconds


class _NameNotAdmitted(Exception):
    """A name that is not admitted."""


class _ObjectArray:
    """Stands for a NumPy array of objects."""

    __slots__ = ("shape", "values")

    def __init__(self) -> None:
        self.shape: Any = ()
        self.values: list[Any] = []

    def __setstate__(self, state: Any) -> None:
        """Keep shape and elements of NumPy's state: version, shape, type, order, list."""
        _, self.shape, _, fortran, values = state
        if fortran or not isinstance(values, list):
            raise ValueError("not in C order")
        self.values = values


class _Type:
    """Stands for ``numpy.dtype``."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        """Forget it."""


class _Admitted:
    """Something that the pickle may call; it has no attributes that could be changed."""

    __slots__ = ("_call",)

    _call: Callable[..., Any]

    def __init__(self, call: Callable[..., Any]) -> None:
        object.__setattr__(self, "_call", call)

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)

    def __setattr__(self, name: str, value: Any) -> None:
        raise ValueError("nothing here is changed")


_CALLS: dict[str, Callable[..., Any]] = {
    "numpy.core.multiarray._reconstruct": lambda *_: _ObjectArray(),
    "numpy._core.multiarray._reconstruct": lambda *_: _ObjectArray(),
    "numpy.ndarray": lambda *_: _ObjectArray(),
    "numpy.dtype": lambda *_: _Type(),
    "_codecs.encode": lambda text, _="latin1": str(text).encode("latin1"),  # how old pickles write bytes
    "datetime.datetime": datetime,
    "datetime.timedelta": timedelta,
    "datetime.timezone": timezone,
}
"""What stands for the admitted names."""


class _DatesUnpickler(pickle.Unpickler):
    """An unpickler for which only the names of an array of dates have a meaning."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the stand-in of an admitted name."""
        call = _CALLS.get(f"{module}.{name}")
        if call is None:
            raise _NameNotAdmitted(f"{module}.{name}"[:80])
        return _Admitted(call)


FEATURES_ENDING = "_features.npz"


def sets_in(folder: Path) -> list[str]:
    """Return the names of modes or runs whose quantities a folder holds, in order."""
    names = (file.name.removesuffix(FEATURES_ENDING) for file in Path(folder).glob(f"*{FEATURES_ENDING}"))
    return sorted(name for name in names if not name.endswith(("_true", "_extra")))


def n_columns(folder: Path) -> int:
    """Return how many quantities the first readable archive of a folder has, 0 where there is none."""
    for name in sets_in(folder):
        try:
            path = archive_path(folder, name, "features")
            with _open_array(path, "features") as (_, member, file):
                header = _checked_header(path, "features", member, file)
            return int(header.shape[1]) if len(header.shape) == 2 else 0
        except InputError:
            continue
    return 0


class Archives:
    """What the formats of simulated and of measured archives have in common."""

    name: str
    holds: str
    is_foreign = False
    reader: ClassVar[type[ArchiveReader]]

    def accepts(self, path: Path) -> bool:
        """Return whether a folder holds such archives, by the number of quantities."""
        return n_columns(path) == len(self.reader.columns)

    def open(self, path: Path, tell: Callable[[str], None] = lambda line: None) -> list[ArchiveReader]:
        """Open every mode or run; those that cannot be used are told."""
        readers = []
        for name in sets_in(path):
            try:
                readers.append(self.reader.open(path, name))
            except InputError as error:
                tell(str(error))
        return readers
