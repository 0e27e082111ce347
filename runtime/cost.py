"""What a step costs: wall-clock and CPU time, peak memory and energy, measured in the process that does the work.

Energy comes from the counters of the processor (RAPL) and of the GPU (NVML) where they can be read, and is estimated
where not. A processor's counter includes what all programs on the machine use. A step is given the share that its CPU
time has in the busy time of the machine, so that fits side by side add up to what was used and not to a multiple of it.
"""

from __future__ import annotations

import importlib
import os
import re
import resource
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from showerstack.runtime.errors import InputError

POWERCAP = Path("/sys/class/powercap")
STAT = Path("/proc/stat")
WATTS_PER_CORE = 10.0
"""Electrical power of a busy CPU core with its share of the machine; a rule of thumb for servers, within a factor 2."""
MEASURED, ESTIMATED = "RAPL", "estimate"
LOOKS_AGAIN_S = 60.0
"""Counters wrap around after some minutes at full power; they are read at least this often."""
BUSY_FIELDS = (0, 1, 2, 5, 6)
"""Columns of the machine's CPU time that count as busy: user, nice, system, irq, softirq."""


@dataclass
class Counter:
    """One energy counter that starts again at its end."""

    file: Path
    end_uj: int
    last_uj: int
    total_uj: int = 0

    def read(self) -> None:
        """Add what has come since the last reading.

        Raises
        ------
        OSError
            If the counter can no longer be read.
        """
        now = int(self.file.read_text())
        passed = now - self.last_uj
        self.total_uj += passed if passed >= 0 else passed + self.end_uj
        self.last_uj = now


def cpu_counters(folder: Path | None = None) -> list[Counter]:
    """Return the counters of all processor packages and of the memory beside them; none where they are unreadable."""
    entries = []
    for zone in sorted((folder or POWERCAP).glob("*rapl:*")):
        try:
            name = (zone / "name").read_text().strip()
            if not name.startswith(("package", "dram")):
                continue
            start = int((zone / "energy_uj").read_text())
            entries.append(Counter(zone / "energy_uj", int((zone / "max_energy_range_uj").read_text()), start))
        except (OSError, ValueError):
            # One package that cannot be read would leave its energy out: then none is measured.
            return []
    return (
        entries if any((counter.file.parent / "name").read_text().startswith("package") for counter in entries) else []
    )


def busy_seconds(file: Path | None = None) -> float | None:
    """Return the CPU seconds that all programs on this machine have used since its start; None if it does not say."""
    try:
        fields = (file or STAT).read_text().splitlines()[0].split()[1:]
        return sum(int(fields[k]) for k in BUSY_FIELDS) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


@dataclass
class GpuCounter:
    """The energy counter of the GPU that CUDA takes first."""

    library: Any
    handle: Any

    @classmethod
    def open(cls) -> GpuCounter | None:
        """Return the counter; None without NVML, a GPU, or a counter in it."""
        try:
            library = importlib.import_module("pynvml")
        except ImportError:
            return None
        try:
            library.nvmlInit()
            first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
            if first.isdigit():
                handle = library.nvmlDeviceGetHandleByIndex(int(first))
            else:
                handle = library.nvmlDeviceGetHandleByUUID(first)
            result = cls(library, handle)
            return result if result.joules() is not None else None
        except library.NVMLError:
            return None

    def joules(self) -> float | None:
        """Return what the GPU has used since its driver was loaded."""
        try:
            return float(self.library.nvmlDeviceGetTotalEnergyConsumption(self.handle)) / 1e3
        except self.library.NVMLError:
            return None


@dataclass
class Energy:
    """What a step used; filled when it ends."""

    cpu_j: float = 0.0
    source: str = ESTIMATED
    """:data:`MEASURED` or :data:`ESTIMATED`, of the processor's energy."""
    gpu_j: float | None = None
    """None where no GPU worked, or it does not count."""


@dataclass
class EnergyMeter:
    """Reads counters from the start of a step to its end."""

    on_gpu: bool = False
    counters: list[Counter] = field(default_factory=cpu_counters)
    busy_start: float | None = field(default_factory=busy_seconds)

    def __post_init__(self) -> None:
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._gpu = GpuCounter.open() if self.on_gpu else None
        self._gpu_start = self._gpu.joules() if self._gpu else None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Read the counters now and then until the block ends, so that none wraps around twice unseen."""
        watcher = threading.Thread(target=self._watch, daemon=True) if self.counters else None
        if watcher:
            watcher.start()
        try:
            yield
        finally:
            self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(LOOKS_AGAIN_S):
            self.read()

    def read(self) -> None:
        """Read all counters; from the first that fails on nothing is measured."""
        with self._lock:
            try:
                for counter in self.counters:
                    counter.read()
            except (OSError, ValueError):
                self.counters = []

    def result(self, cpu_s: float) -> Energy:
        """Return what a step that has used ``cpu_s`` CPU seconds is to be charged with."""
        self.read()
        energy = Energy(cpu_s * WATTS_PER_CORE)
        now = busy_seconds()
        if self.counters and now is not None and self.busy_start is not None:
            busy = max(now - self.busy_start, cpu_s)
            total_j = sum(counter.total_uj for counter in self.counters) / 1e6
            energy = Energy(total_j * (cpu_s / busy if busy > 0 else 0.0), MEASURED)
        end = self._gpu.joules() if self._gpu else None
        if end is not None and self._gpu_start is not None:
            energy.gpu_j = max(0.0, end - self._gpu_start)
        return energy


def energy_words() -> tuple[str, bool]:
    """Return in a line how energy is found on this machine, and whether the processor's is measured."""
    counters = cpu_counters()
    gpu = "; the GPU's by NVML" if GpuCounter.open() else ""
    if counters:
        names = ", ".join((counter.file.parent / "name").read_text().strip() for counter in counters)
        return f"measured by RAPL ({names}), shared by CPU time{gpu}", True
    zones = sorted(POWERCAP.glob("*rapl:*"))
    why = "its counters are readable for the administrator alone" if zones else "it has no RAPL counters"
    return f"estimated at {WATTS_PER_CORE:g} W per busy core, right within a factor of two ({why}){gpu}", False


_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


@dataclass
class Cost:
    """One step's use of the machine; filled when the step ends."""

    step: str
    learner: str | None = None
    fold: int | None = None
    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_mb: float = 0.0
    cpu_j: float | None = None
    """Joules of the processor; None in runs of earlier versions."""
    gpu_j: float | None = None
    """Joules of the GPU; None where none worked, or it does not count."""
    energy_source: str = ESTIMATED
    """How ``cpu_j`` was found: ``RAPL`` or ``estimate``."""

    def as_json(self) -> dict[str, Any]:
        """Return the row of the manifest."""
        return asdict(self)


@contextmanager
def measured(step: str, learner: str | None = None, fold: int | None = None, *, device: str = "cpu") -> Iterator[Cost]:
    """Measure the block; on ``device`` ``"cuda"`` the GPU's energy too.

    CPU time includes that of child processes, alive or ended; the peak is this process's own.
    """
    cost = Cost(step, learner, fold)
    _forget_peak()
    meter = EnergyMeter(on_gpu=device == "cuda")
    wall, cpu = time.perf_counter(), cpu_seconds()
    try:
        with meter.watching():
            yield cost
    finally:
        cost.wall_s = time.perf_counter() - wall
        cost.cpu_s = cpu_seconds() - cpu
        cost.peak_mb = _peak_mb()
        energy = meter.result(cost.cpu_s)
        cost.cpu_j, cost.gpu_j, cost.energy_source = energy.cpu_j, energy.gpu_j, energy.source


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
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _forget_peak() -> None:
    # Linux keeps the high-water mark of a process; 5 resets it, so that each task of a worker has its own.
    if _CLEAR.exists():
        try:
            _CLEAR.write_text("5")
        except PermissionError:
            return


def _peak_mb() -> float:
    if _STATUS.exists():
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20) if sys.platform == "darwin" else peak / 1024


SCHEDULED = Path("/proc/self/schedstat")
PACE_S = 1.0
"""Processor time after which the pace is read again."""


@dataclass
class Pace:
    """How long a second of processor time takes this process, lately: 1 alone on a machine, more beside others.

    Linux counts what the main thread has worked and what it has waited for a processor, in nanoseconds
    (``/proc/self/schedstat``); elsewhere it is taken to be alone.
    """

    value: float = 1.0
    worked_ns: int = 0
    waited_ns: int = 0

    def read(self, file: Path = SCHEDULED) -> float:
        """Return wall-clock seconds of a second of processor time, over the last :data:`PACE_S` of work at least."""
        try:
            worked, waited = map(int, file.read_text().split()[:2])
        except (OSError, ValueError):
            return self.value
        if worked - self.worked_ns >= 1e9 * PACE_S:
            self.value = 1.0 + (waited - self.waited_ns) / (worked - self.worked_ns)
            self.worked_ns, self.waited_ns = worked, waited
        return self.value


PACE = Pace()
"""Of this process."""


@dataclass(frozen=True)
class Deadline:
    """When work has to end, so that what follows it is done in time."""

    at: float
    """Seconds since 1970."""
    follows_s: float = 0.0
    """Processor time of what follows, s: it takes the longer the busier the machine is."""

    def before(self, follows_s: float) -> Deadline:
        """Return the deadline of work that so many seconds of processor time have to follow."""
        return Deadline(self.at, self.follows_s + follows_s)

    def left_s(self) -> float:
        """Return the processor time that is left, s, at the present pace; negative if there is none."""
        return (self.at - time.time()) / PACE.read() - self.follows_s


def reached(deadline: Deadline | None, takes_s: float = 0.0) -> bool:
    """Return whether a deadline does not leave so many seconds of processor time; None never ends."""
    return deadline is not None and deadline.left_s() < takes_s


_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
LONGEST = 1000 * 86400.0
"""A longer limit is none, and would be taken for a mistake."""
_WHOLE = re.compile(r"(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")


def seconds_of(text: str) -> float:
    """Return the seconds in ``4h``, ``30m``, ``90s``, ``1h30m``, ``1d12h``.

    >>> seconds_of("1h30m")
    5400.0

    Raises
    ------
    InputError
        If it is not a length of time, none at all, or more than 1000 days.
    """
    match = _WHOLE.fullmatch(text.strip().lower())
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
