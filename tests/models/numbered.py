"""Functions for worker processes of tests: to answer with their own number, or to die."""

from __future__ import annotations

import os


def numbered(seed: int, number: int) -> tuple[int, int, int]:
    """Return the arguments and the process; the number 99 ends it."""
    if number == 99:
        os._exit(1)
    return seed, number, os.getpid()
