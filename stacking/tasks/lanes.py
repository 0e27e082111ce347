"""Work on a GPU and on the CPU side by side: which lane it belongs to, and its results as they come."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from showers.execution.processes import in_lanes, in_processes

Work = TypeVar("Work")


def in_their_lanes(
    work: Iterable[Work], lanes: Mapping[str, int], device_of: Callable[[Work], str]
) -> dict[str, list[Work]]:
    """Return the work by lane, in its order; what is on a device without a lane is in the first."""
    first = next(iter(lanes))
    found: dict[str, list[Work]] = {lane: [] for lane in lanes}
    for one in work:
        found[device if (device := device_of(one)) in lanes else first].append(one)
    return found


def in_devices(
    function: Callable[..., Any],
    arguments: Mapping[str, Sequence[tuple[Any, ...]]],
    workers: Mapping[str, int],
    *,
    threads: int,
) -> Generator[Any, None, None]:
    """Yield ``function(*one)`` as they finish: in lanes side by side, or where joblib works if there is only one."""
    if len(arguments) > 1:
        yield from in_lanes(function, arguments, workers=workers, threads=threads)
        return
    for lane, part in arguments.items():
        yield from in_processes(function, part, workers=workers[lane], ordered=False)
