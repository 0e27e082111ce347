"""Energy of a step: the processor's counters (RAPL) and the GPU's (NVML) where they can be read, an estimate where not.

A processor's counter holds what all programs on the machine use. A step is given the share that its CPU time has in the
busy time of the machine, so that fits side by side add up to what was used and not to a multiple of it.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
    found = []
    for zone in sorted((folder or POWERCAP).glob("*rapl:*")):
        try:
            name = (zone / "name").read_text().strip()
            if not name.startswith(("package", "dram")):
                continue
            start = int((zone / "energy_uj").read_text())
            found.append(Counter(zone / "energy_uj", int((zone / "max_energy_range_uj").read_text()), start))
        except (OSError, ValueError):
            # One package that cannot be read would leave its energy out: then none is measured.
            return []
    return found if any((counter.file.parent / "name").read_text().startswith("package") for counter in found) else []


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
            found = cls(library, handle)
            return found if found.joules() is not None else None
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
        found = Energy(cpu_s * WATTS_PER_CORE)
        now = busy_seconds()
        if self.counters and now is not None and self.busy_start is not None:
            busy = max(now - self.busy_start, cpu_s)
            total_j = sum(counter.total_uj for counter in self.counters) / 1e6
            found = Energy(total_j * (cpu_s / busy if busy > 0 else 0.0), MEASURED)
        end = self._gpu.joules() if self._gpu else None
        if end is not None and self._gpu_start is not None:
            found.gpu_j = max(0.0, end - self._gpu_start)
        return found


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
