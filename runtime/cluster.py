"""Work done by the workers of a Dask cluster, which see this machine's files under the same paths.

They are not reached through joblib's backend: there, a task whose worker has ended never ends.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import closing, contextmanager, suppress
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from showerstack.runtime.code import code_of_fits
from showerstack.runtime.errors import InputError, need

LOG = logging.getLogger(__name__)

ATTEMPTS = 3
"""How often work is given out whose worker ends; each time Dask tries as often as its ``allowed-failures`` allows."""
_ONE_AT_A_TIME = threading.RLock()
"""Libraries keep random states for the whole process: fits side by side in it would not repeat."""


@contextmanager
def connected(scheduler: str) -> Iterator[Any]:
    """Connect to the scheduler at an address (``tcp://host:port``), which must have workers; yield Dask's client."""
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


def refuse_other_code(client: Any) -> None:
    """Refuse a cluster with a worker that has other code, or other versions of libraries, than this process."""

    python_here = code_of_fits()["python"]
    # First, without code of ours: a worker of another Python ends at bytecode of this one.
    for worker, seen in sorted(client.get_versions()["workers"].items()):
        python_there = ".".join(str(seen["host"]["python"]).split(".")[:2])
        if python_there != python_here:
            raise InputError(
                f"option scheduler: the worker {worker} has Python {python_there} (here {python_here}): all machines "
                "of a cluster must have the same code and libraries"
            )

    def code_there() -> dict[str, str]:  # sent as it stands: a worker may have an older package, or none
        try:
            from showerstack.runtime.code import code_of_fits
        except ImportError as error:
            return {"showerstack": f"missing or older ({error})"}
        return code_of_fits()

    here = code_of_fits()
    for worker, there in sorted(client.run(code_there).items()):
        _refuse_other(worker, there, here)


def _refuse_other(worker: str, there: Mapping[str, str], here: Mapping[str, str]) -> None:
    other = [
        f"{name} {there.get(name, 'unknown')} (here {here[name]})" for name in here if there.get(name) != here[name]
    ]
    if there.keys() == {"showerstack"}:
        other = [f"showerstack {there['showerstack']}"]
    if other:
        raise InputError(
            f"option scheduler: the worker {worker} has {', '.join(other[:4])}: all machines of a cluster must "
            "have the same code and libraries"
        )


def with_same_code(here: Mapping[str, str], function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns in a worker that has the code ``here``: it may have come after the others."""
    from distributed import get_worker

    _refuse_other(get_worker().address, _code_of_this_process(), here)
    return function(*arguments)


@cache
def _code_of_this_process() -> dict[str, str]:
    return code_of_fits()


def refuse_unshared(client: Any, paths: Iterable[Path]) -> None:
    """Refuse a cluster with a worker on whose machine one of the paths is missing."""
    for worker, missing in sorted(client.run(_missing, [str(path) for path in paths]).items()):
        if missing:
            raise InputError(
                f"option scheduler: the worker {worker} does not see {missing[0]}: "
                "a cluster must have the same files under the same paths on all its machines"
            )


def _missing(paths: list[str]) -> list[str]:
    return [path for path in paths if not Path(path).exists()]


NO_WORKERS_S = 30.0
"""A cluster may be without workers for so long: those that are started anew have come back by then."""
LOOK_EVERY_S = 5.0


def on_cluster(
    function: Callable[..., Any], arguments: Iterable[tuple[Any, ...]], client: Any, ahead: int | None = None
) -> Generator[Any, None, None]:
    """Yield ``function(*one)`` of each tuple as they finish; they begin in their order.

    All are given at once, or as many as there are workers and ``ahead`` more, then one for each that is taken. A worker
    process does one at a time, whatever its number of threads: libraries keep random states and numbers of
    threads for the whole process, and fits side by side in it would not repeat.
    """
    from distributed import KilledWorker

    here = code_of_fits()
    attempts: dict[Any, tuple[tuple[Any, ...], int]] = {}
    ended: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def give(one: tuple[Any, ...], attempt: int) -> None:
        future = client.submit(alone, with_same_code, here, function, *one, pure=False)
        attempts[future] = one, attempt
        future.add_done_callback(ended.put)

    given = iter(arguments)
    try:
        for one in islice(given, None if ahead is None else len(client.ncores()) + ahead):
            give(one, 1)
        while attempts:
            future = _next_of(ended, client)
            one, attempt = attempts.pop(future)
            try:
                result = _fetched(future, client)
            except KilledWorker as error:
                if attempt == ATTEMPTS:
                    raise InputError(
                        f"the cluster's workers ended {attempt} times at the same task, the last at "
                        f"{getattr(error.last_worker, 'address', 'an unknown address')} (killed, or out of memory): "
                        "what is finished is kept; start the same command again, with more memory a worker if need be"
                    ) from None
                give(one, attempt + 1)
                continue
            except (AttributeError, ImportError) as error:  # what the function raises, it returns
                raise InputError(
                    f"option scheduler: a worker has other code ({_first_words(error)}): all machines of a cluster "
                    "must have the same code and libraries"
                ) from None
            for following in islice(given, 1):
                give(following, 1)
            yield result
    except (OSError, CancelledError) as error:  # of its connection: what the function raises, it returns
        raise InputError(
            f"the Dask scheduler at {client.scheduler.address} no longer answers ({_first_words(error)}): what is "
            "finished is kept; start a scheduler and workers, and the same command again"
        ) from None
    finally:
        with suppress(Exception):  # the scheduler may be gone
            client.cancel(list(attempts))


def _fetched(future: Any, client: Any) -> Any:
    """Return the result of a task that has ended, or raise its error; look now and then whether a worker has it.

    Where the last worker is lost meanwhile, Dask waits for another one without end.
    """
    arrived: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def fetch() -> None:
        try:
            arrived.put((future.result(), None))
        except BaseException as error:
            arrived.put((None, error))

    threading.Thread(target=fetch, daemon=True).start()
    result, error = _next_of(arrived, client)
    if error is not None:
        raise error
    return result


def _next_of(ended: queue.SimpleQueue[Any], client: Any) -> Any:
    """Return what comes next; look now and then whether there is anybody left to end one."""
    most, told, alone_since = 0, 0, None
    while True:
        with suppress(queue.Empty):
            return ended.get(timeout=LOOK_EVERY_S)
        here = len(client.ncores())
        if here:
            most, alone_since = max(most, here), None
            if here < most != told:
                told = most
                LOG.warning("the cluster has %d of its %d workers left", here, most)
            continue
        alone_since = time.monotonic() if alone_since is None else alone_since
        if time.monotonic() - alone_since >= NO_WORKERS_S:
            raise InputError(
                f"the Dask scheduler at {client.scheduler.address} has had no worker for {NO_WORKERS_S:.0f} s: "
                "what is finished is kept; start workers and the same command again"
            )


def _first_words(error: BaseException) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__


def alone(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns that works alone of its kind in this process."""
    with _ONE_AT_A_TIME:
        return function(*arguments)


def spread_over(
    scheduler: str,
    function: Callable[..., Any],
    arguments: Iterable[tuple[Any, ...]],
    places: Iterable[Path] = (),
    ahead: int | None = None,
) -> Generator[Any, None, None]:
    """Yield ``function(*one)`` of each tuple as the workers of a scheduler end them; see :func:`on_cluster`.

    Parameters
    ----------
    places
        Absolute paths that every worker must see.
    """
    with connected(scheduler) as client:
        refuse_other_code(client)
        refuse_unshared(client, sorted(places))
        with closing(on_cluster(function, arguments, client, ahead)) as results:
            yield from results
