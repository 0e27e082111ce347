"""A folder that one process writes at a time: a lock file in it, dropped by the kernel however the process ends."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from showers.schema import InputError

LOCK_FILE = ".lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder, which is made if need be, for this process alone.

    The lock file is opened without following links, without waiting and without changing what is in it.

    Raises
    ------
    InputError
        If another process holds the folder, its lock file is not a plain file, or it cannot be written.
    """
    file = Path(folder) / LOCK_FILE
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise InputError(f"{file} cannot be opened as a lock: {error.strerror}") from None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise InputError(f"{file} is not a plain file: remove it")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"{folder} is being written by another process: wait for it or choose another name"
            ) from None
        yield
    finally:
        os.close(handle)
