"""Portions of the stream, drawn by other processes ahead of who reads them."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any

from models.pretraining.stream import draw_portion
from showers.execution.processes import end_with_parent
from showers.schema import InputError

AHEAD = 8
"""Portions that may wait to be read, beside those being drawn: about 60 MB."""


def drawn_ahead(
    seed: int, numbers: range, workers: int, draw: Callable[[int, int], Any] = draw_portion
) -> Iterator[tuple[Any, float]]:
    """Yield the portions with these numbers in order, and the processor time each took.

    Parameters
    ----------
    seed, numbers
        Arguments of ``draw``.
    workers
        Processes.
    draw
        What is called there; a function of a module.

    Raises
    ------
    InputError
        If a process is lost.
    """
    pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=end_with_parent, initargs=(os.getpid(),))
    waiting: deque[Any] = deque()
    upcoming = iter(numbers)
    try:
        while True:
            while len(waiting) < workers + AHEAD and (number := next(upcoming, None)) is not None:
                waiting.append(pool.submit(_timed, draw, seed, number))
            if not waiting:
                return
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise InputError(
            "a process that draws showers was lost (killed, or out of memory): start the same command again"
        ) from None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _timed(draw: Callable[[int, int], Any], seed: int, number: int) -> tuple[Any, float]:
    before = time.process_time()
    return draw(seed, number), time.process_time() - before
