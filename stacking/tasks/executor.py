"""Work in several processes of this machine, results as they come."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import joblib


def in_processes(
    function: Callable[..., Any], arguments: Iterable[tuple[Any, ...]], *, workers: int, ordered: bool = True
) -> Iterator[Any]:
    """Yield ``function(*one)`` of each tuple; with ``ordered`` false, as they finish.

    A surrounding ``joblib.parallel_config`` chooses where: processes here, or a cluster.
    """
    pool = joblib.Parallel(n_jobs=workers, return_as="generator" if ordered else "generator_unordered", batch_size=1)
    with warnings.catch_warnings():
        # joblib replaces workers whose memory has grown between tasks, and says so; that is as it should be.
        warnings.filterwarnings("ignore", "A worker stopped while some jobs were given", UserWarning)
        yield from pool(joblib.delayed(function)(*one) for one in arguments)
