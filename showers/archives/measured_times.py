"""Event times from the measured archive's third file, without loading its pickle.

``{run}_extra_features.npz`` holds an array of Python objects, which NumPy stores as a pickle: a program that can do
anything. Here that program is read by an unpickler to which three names mean something (the reconstruction of a NumPy
array, its type, and dates); all of them are stand-ins of ours that only keep what they are given. Any other name ends
the reading, and no NumPy object is built from it.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from showers.archives.raw import member_of
from showers.schema import InputError

TIMES_KIND = "extra_features"
TIME_COLUMN = 8
MAX_BYTES_AN_EVENT = 4_096
MAX_HEAD_BYTES = 1 << 16

_NUMPY = ("numpy.core.multiarray", "numpy._core.multiarray")


def read_times(path: Path, n_events: int) -> np.ndarray:
    """Return the UTC times of a run's events.

    Parameters
    ----------
    path
        ``{run}_extra_features.npz``.
    n_events
        How many events the run has.

    Returns
    -------
    (N,) float64, seconds since 1970-01-01 UTC.

    Raises
    ------
    InputError
        If the file is missing, damaged, of another shape, or holds anything but numbers, text and dates.
    """
    with member_of(path, f"{TIMES_KIND}.npy") as (member, file):
        if member.file_size > MAX_HEAD_BYTES + MAX_BYTES_AN_EVENT * n_events:
            raise InputError(f"{path}: {member.file_size:,} bytes are too many for {n_events:,} events")
        shape = _object_shape(path, file)
        if len(shape) != 2 or shape[0] != n_events or shape[1] <= TIME_COLUMN:
            raise InputError(f"{path}: shape {shape}, expected ({n_events}, {TIME_COLUMN + 1} or more)")
        try:
            found = _Reader(file).load()
        except _Foreign as error:
            raise InputError(f"{path}: it names {error}, which is neither an array nor a date: not read") from None
        except Exception as error:  # what a damaged or hostile program of a pickle can raise is not bounded
            raise InputError(f"{path} is damaged: {type(error).__name__}") from None
    if not isinstance(found, _ObjectArray) or found.shape != shape or len(found.values) != shape[0] * shape[1]:
        raise InputError(f"{path} does not hold an array of objects")
    return _seconds(path, found.values[TIME_COLUMN :: shape[1]])


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


def _object_shape(path: Path, file: IO[bytes]) -> tuple[int, ...]:
    """Read the array's head and leave the stream at the first byte of the pickle."""
    stream = cast("Any", file)
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(stream)
    except Exception as error:  # a damaged head is parsed as Python literals and can raise nearly anything
        raise InputError(f"{path} cannot be read as a NumPy array: {type(error).__name__}") from None
    if dtype != np.dtype(object) or fortran:
        raise InputError(f"{path}: type {dtype}, expected rows of objects")
    return tuple(shape)


class _Foreign(Exception):
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


class _Reader(pickle.Unpickler):
    """An unpickler for which only the names of an array of dates have a meaning."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the stand-in of an admitted name."""
        if module in _NUMPY and name == "_reconstruct":
            return _Admitted(lambda *_: _ObjectArray())
        if (module, name) == ("numpy", "ndarray"):
            return _Admitted(lambda *_: _ObjectArray())
        if (module, name) == ("numpy", "dtype"):
            return _Admitted(lambda *_: _Type())
        if (module, name) == ("_codecs", "encode"):  # how old pickles write bytes
            return _Admitted(lambda text, _="latin1": str(text).encode("latin1"))
        if (module, name) == ("datetime", "datetime"):
            return _Admitted(datetime)
        if (module, name) == ("datetime", "timedelta"):
            return _Admitted(timedelta)
        if (module, name) == ("datetime", "timezone"):
            return _Admitted(timezone)
        raise _Foreign(f"{module}.{name}"[:80])
