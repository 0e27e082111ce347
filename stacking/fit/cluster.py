"""Fits on the workers of a Dask cluster, which see this machine's files under the same paths.

Not through joblib's backend: there, a task whose worker has ended never ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from showerstack.runtime.errors import InputError, need

ATTEMPTS = 3
"""How often work is given out whose worker ends; each time Dask tries as often as its ``allowed-failures`` allows."""
_ONE_AT_A_TIME = threading.Lock()


@contextmanager
def connected(scheduler: str) -> Iterator[Any]:
    """Connect to the scheduler at an address (``tcp://host:port``); yields Dask's client.

    Raises
    ------
    InputError
        If Dask is not installed, no scheduler answers, or it has no workers.
    """
    need("cluster", what="option scheduler")
    from distributed import Client

    try:
        client = Client(scheduler, timeout=5)
    except (OSError, TimeoutError, ValueError) as error:
        raise InputError(f"option scheduler: no Dask scheduler answers at {scheduler}: {error}") from None
    with client:
        if not client.ncores():
            raise InputError(f"option scheduler: {scheduler} has no workers: start some (dask worker {scheduler})")
        yield client


def refuse_unshared(client: Any, paths: Iterable[Path]) -> None:
    """Refuse a cluster that does not share the file system.

    Raises
    ------
    InputError
        If a worker does not see one of the paths; both are named.
    """
    for worker, missing in sorted(client.run(_missing, [str(path) for path in paths]).items()):
        if missing:
            raise InputError(
                f"option scheduler: the worker {worker} does not see {missing[0]}: "
                "a cluster must have the same files under the same paths on all its machines"
            )


def _missing(paths: list[str]) -> list[str]:
    return [path for path in paths if not Path(path).exists()]


def on_cluster(
    function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], client: Any
) -> Generator[Any, None, None]:
    """Yield ``function(*one)`` of each tuple as they finish; what was given out first is begun first.

    A worker process does one at a time, whatever number of threads it has: libraries keep random states and numbers of
    threads for the whole process, and fits side by side in it would not repeat.

    Raises
    ------
    InputError
        If the workers that get the same tuple end :data:`ATTEMPTS` times, or the scheduler is lost.
    """
    from distributed import KilledWorker, as_completed

    at_work = {client.submit(_alone, function, *one, pure=False): (one, 1) for one in arguments}
    ended = as_completed(list(at_work))
    try:
        for future in ended:
            one, attempt = at_work.pop(future)
            try:
                result = future.result()
            except KilledWorker as error:
                if attempt == ATTEMPTS:
                    raise InputError(
                        f"the cluster's workers ended {attempt} times at the same fit, the last at "
                        f"{getattr(error.last_worker, 'address', 'an unknown address')} (killed, or out of memory): "
                        "finished fits are kept; start the same command again, with more memory a worker if it is short"
                    ) from None
                again = client.submit(_alone, function, *one, pure=False)
                at_work[again] = (one, attempt + 1)
                ended.add(again)
                continue
            yield result
    finally:
        client.cancel(list(at_work))


def _alone(function: Callable[..., Any], *arguments: Any) -> Any:
    with _ONE_AT_A_TIME:
        return function(*arguments)
