"""Processors and memory of the job: control groups of both versions, SLURM, affinity."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from showerstack.runtime import resources
from showerstack.runtime.resources import cores, memory_bytes, memory_limit_bytes

GB = 1 << 30


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without limits."""
    monkeypatch.setattr(resources, "CONTROL_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(resources, "PROC", tmp_path / "proc")
    for name in ("SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_CPUS_ON_NODE", "SLURM_CPUS_PER_TASK"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "proc" / "self").mkdir(parents=True)
    return tmp_path


def limited(system: Path, lines: str, files: dict[str, str]) -> None:
    """Write the groups of this process and the files of the controllers."""
    (system / "proc" / "self" / "cgroup").write_text(lines)
    for name, text in files.items():
        file = system / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")


def test_processors_that_slurm_gave(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task's, else the job's on this node; where a site binds jobs to processors, the least counts."""
    monkeypatch.setattr(resources.os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.delenv("LOKY_MAX_CPU_COUNT", raising=False)
    assert cores() == 16
    for name, value, n in (("SLURM_CPUS_ON_NODE", "6", 6), ("SLURM_CPUS_PER_TASK", "2", 2)):
        monkeypatch.setenv(name, value)
        assert cores() == n
    for odd, n in (("64", 16), ("4(x2)", 16)):
        monkeypatch.setenv("SLURM_CPUS_PER_TASK", odd)
        assert cores() == n


def test_without_limits(system: Path) -> None:
    assert memory_limit_bytes() is None


@pytest.mark.parametrize("depth", ["job/step/memory.max", "job/memory.max", "memory.max"])
def test_the_least_limit_above_a_process_counts(system: Path, depth: str) -> None:
    """Version 2: a limit of 8 GiB at any level; others say ``max``."""
    files = {f"{folder}memory.max": "max" for folder in ("job/step/", "job/", "")}
    limited(system, "0::/job/step\n", files | {depth: str(8 * GB)})
    assert memory_limit_bytes() == 8 * GB


def test_version_one_of_control_groups(system: Path) -> None:
    files = {"memory/slurm/job/memory.limit_in_bytes": 4 * GB, "memory/memory.limit_in_bytes": (1 << 63) - 4096}
    limited(system, "4:cpuset:/\n3:memory:/slurm/job\n", {name: str(limit) for name, limit in files.items()})
    assert memory_limit_bytes() == 4 * GB


def test_all_memory_is_given_where_there_is_no_limit(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    total = memory_bytes()
    assert total == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "512")
    assert memory_bytes() == GB // 2
    monkeypatch.setenv("SLURM_MEM_PER_NODE", str(2 * total >> 20))
    assert memory_bytes() == total


def test_slurm_without_control_groups(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "2048")
    assert memory_limit_bytes() == 2 * GB
    monkeypatch.delenv("SLURM_MEM_PER_NODE")
    monkeypatch.setenv("SLURM_MEM_PER_CPU", "3072")
    assert memory_limit_bytes() is None
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "4")
    assert memory_limit_bytes() == 12 * GB


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_cores_are_those_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOKY_MAX_CPU_COUNT", raising=False)
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert cores() == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    ("lines", "files", "expected"),
    [
        ("0::/job\n", {"cpu.max": "max 100000", "job/cpu.max": "150000 100000"}, 2),
        ("0::/job\n", {"cpu.max": "100000 100000", "job/cpu.max": "300000 100000"}, 1),
        ("2:cpu,cpuacct:/job\n", {"cpu/job/cpu.cfs_quota_us": "200000", "cpu/job/cpu.cfs_period_us": "100000"}, 2),
        ("2:cpu,cpuacct:/job\n", {"cpu/job/cpu.cfs_quota_us": "-1", "cpu/job/cpu.cfs_period_us": "100000"}, 8),
    ],
)
def test_the_quota_of_a_control_group_counts(
    system: Path, monkeypatch: pytest.MonkeyPatch, lines: str, files: dict[str, str], expected: int
) -> None:
    monkeypatch.delenv("LOKY_MAX_CPU_COUNT", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    limited(system, lines, files)
    assert cores() == expected
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "1")
    assert cores() == 1
