"""Opening regular files only: a pipe or a device under a file's name is refused at once, not waited for."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from showers.execution.suggestions import did_you_mean
from showers.schema import InputError


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading.

    Raises
    ------
    InputError
        If the file is missing, cannot be read, or is a folder, pipe, socket or device.
    """
    try:
        # Without O_NONBLOCK, opening a pipe waits for its other end.
        number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist{did_you_mean(Path(path))}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise InputError(f"{path} is not a regular file")
    return os.fdopen(number, "rb")
