"""What a step costs: wall-clock, CPU time, peak memory and energy, measured in the process that does the work."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stacking.tasks.energy import ESTIMATED, EnergyMeter

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
    wall, cpu = time.perf_counter(), _cpu_seconds()
    try:
        with meter.watching():
            yield cost
    finally:
        cost.wall_s = time.perf_counter() - wall
        cost.cpu_s = _cpu_seconds() - cpu
        cost.peak_mb = _peak_mb()
        energy = meter.result(cost.cpu_s)
        cost.cpu_j, cost.gpu_j, cost.energy_source = energy.cpu_j, energy.gpu_j, energy.source


def _cpu_seconds() -> float:
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
