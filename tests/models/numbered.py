"""What the processes of a test are asked for: who did it; or to die."""

from __future__ import annotations

import os


def numbered(seed: int, number: int) -> tuple[int, int, int]:
    """Return the arguments and the process; the number 99 ends it."""
    if number == 99:
        os._exit(1)
    return seed, number, os.getpid()
