"""Processors and memory that a job was given: by its control group, its affinity or SLURM, not those of the machine."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

CONTROL_GROUPS = Path("/sys/fs/cgroup")
PROC = Path("/proc")
_UNLIMITED = 1 << 60
"""Version 1 of control groups writes a number as large as this where there is no limit."""


def cores() -> int:
    """Return how many processors this process may use, at least 1.

    Affinity, the quotas of its control groups (rounded up) and ``LOKY_MAX_CPU_COUNT`` count, as for joblib. What SLURM
    gave a task of its job, else the job on this node, counts as well: not every site binds a job to its processors.
    """
    has_affinity = hasattr(os, "sched_getaffinity")
    limits = [float(len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1), *_quotas()]
    slurm = next((name for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE") if name in os.environ), "")
    given = (os.environ.get(name, "") for name in ("LOKY_MAX_CPU_COUNT", slurm))
    limits += [float(text) for text in given if text.isdigit()]
    return max(1, math.ceil(min(limits)))


def _quotas() -> Iterator[float]:
    """Yield how many processors the control groups of this process may keep busy, nearest first."""
    shares = [_read(file).split() for file in _control_files("", "cpu.max")]
    shares += [
        [_read(file), _read(file.with_name("cpu.cfs_period_us"))] for file in _control_files("cpu", "cpu.cfs_quota_us")
    ]
    for share in shares:
        if len(share) == 2 and all(part.isdigit() and int(part) for part in share):
            yield int(share[0]) / int(share[1])


def memory_limit_bytes() -> int | None:
    """Return the least limit on memory that a control group or SLURM sets for this job; None without one."""
    limits = [*_memory_limits()]
    a_node, a_core, cores_here = (
        int(text) if (text := os.environ.get(f"SLURM_{name}", "")).isdigit() else 0
        for name in ("MEM_PER_NODE", "MEM_PER_CPU", "CPUS_ON_NODE")
    )
    limits += [megabytes << 20 for megabytes in (a_node, a_core * cores_here) if megabytes]
    return min(limits, default=None)


def memory_bytes() -> int:
    """Return how much memory this job may take: what it was given, else all of the machine's."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(memory_limit_bytes() or total, total)


def _memory_limits() -> Iterator[int]:
    """Yield the limits, in bytes, of the memory controllers that this process is under, nearest first."""
    for file in (*_control_files("", "memory.max"), *_control_files("memory", "memory.limit_in_bytes")):
        text = _read(file)
        if text.isdigit() and int(text) < _UNLIMITED:
            yield int(text)


def _control_files(controller: str, name: str) -> Iterator[Path]:
    root = CONTROL_GROUPS / controller
    for line in _read(PROC / "self" / "cgroup").splitlines():
        number, names, path = line.split(":", 2)
        if (controller in names.split(",")) if controller else number == "0":
            place = Path(path.lstrip("/"))
            yield from (root / part / name for part in (place, *place.parents))


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
