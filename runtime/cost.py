"""What a step costs: wall-clock and CPU time and peak memory, measured in the process that does the work."""

from __future__ import annotations

import os
import re
import resource
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from showerstack.runtime.errors import InputError

_STATUS_FILE = Path("/proc/self/status")
_CLEAR_REFS_FILE = Path("/proc/self/clear_refs")


@dataclass
class Cost:
    """One step's use of the machine; filled when the step ends."""

    step: str
    learner: str | None = None
    fold: int | None = None
    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_mb: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the row of the manifest."""
        return asdict(self)


@contextmanager
def timed(step: str, learner: str | None = None, fold: int | None = None) -> Iterator[Cost]:
    """Measure the block.

    CPU time includes that of child processes, alive or ended; the peak is this process's own.
    """
    cost = Cost(step, learner, fold)
    _forget_peak()
    wall, cpu = time.perf_counter(), cpu_seconds()
    try:
        yield cost
    finally:
        cost.wall_s = time.perf_counter() - wall
        cost.cpu_s = cpu_seconds() - cpu
        cost.peak_mb = _peak_mb()


def cpu_seconds() -> float:
    """Return the processor time of this process and its children, alive or ended, s."""
    own, ended = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime + _live_children_seconds()


def _live_children_seconds() -> float:
    # Pools keep their workers: what those used is in no resource usage of ours until they end.
    ticks = 0
    for task in Path("/proc/self/task").glob("*/children"):
        for child in _read(task).split():
            fields = _read(Path("/proc") / child / "stat").rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _read(file: Path) -> str:
    """Return the text of a file of ``/proc``; nothing if its process has ended meanwhile."""
    try:
        return file.read_text()
    except OSError:
        return ""


def _forget_peak() -> None:
    # Linux keeps the high-water mark of a process; 5 resets it, so that each task of a worker has its own.
    if _CLEAR_REFS_FILE.exists():
        try:
            _CLEAR_REFS_FILE.write_text("5")
        except PermissionError:
            return


def _peak_mb() -> float:
    if _STATUS_FILE.exists():
        for line in _STATUS_FILE.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20) if sys.platform == "darwin" else peak / 1024


def now_s() -> float:
    """Return the time in seconds of a clock that nobody sets: on Linux since the start of the machine, asleep or not.

    All processes of a machine read the same; for others see :class:`Clock`.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


_BOOT_FILE = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Clock:
    """A machine's :func:`now_s`."""

    machine: str
    """Number of its present start."""
    ahead_s: float
    """Its clock of the day minus :func:`now_s`."""

    @classmethod
    def here(cls) -> Self:
        """Return that of this machine."""
        return cls(_read(_BOOT_FILE).strip() or socket.gethostname(), time.time() - now_s())

    def on_this_machine(self, moment_s: float) -> float:
        """Return what this machine's :func:`now_s` says at a moment that is given by that clock."""
        here = Clock.here()
        return moment_s if here.machine == self.machine else moment_s + self.ahead_s - here.ahead_s


_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
LONGEST = 1000 * 86400.0
"""A longer limit is none, and would be taken for a mistake."""
_LENGTH_OF_TIME = re.compile(r"(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")


def seconds_of(text: str) -> float:
    """Return the seconds in ``4h``, ``30m``, ``90s``, ``1h30m``, ``1d12h``.

    >>> seconds_of("1h30m")
    5400.0
    """
    match = _LENGTH_OF_TIME.fullmatch(text.strip().lower())
    total = sum(float(n) * unit for n, unit in zip(match.groups(), _SECONDS.values(), strict=True) if n) if match else 0
    if not total:
        raise InputError(f"time limit {text!r}: write it like 4h, 30m, 90s or 1h30m")
    if total > LONGEST:
        raise InputError(f"time limit {text!r}: expected at most 1000d; without a limit, leave it out")
    return total


def in_words(seconds: float) -> str:
    """Return a length of time to two figures or so.

    >>> in_words(9000)
    '2.5 h'
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 36000 else f"{seconds / 3600:.0f} h"
