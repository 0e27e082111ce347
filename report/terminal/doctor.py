"""What this machine offers, and what would be used: Python, packages, accelerators, memory, disk."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from rich.table import Table

from features.device import resolve_device
from report.terminal.findings import Finding, findings_table
from stacking.tasks.energy import energy_words

NEEDED_PYTHON = (3, 11)
DISTRIBUTION = "showerstack"
COMFORTABLE_MEMORY_GB = 8.0
"""Enough for the demo with a process per core; the full benchmark wants 24."""
COMFORTABLE_DISK_GB = 30.0
"""The benchmark's files, their feature tables and a few runs."""


def doctor(folder: Path = Path()) -> Table:
    """Return the examination as a table; ``folder`` is where data and runs would go."""
    return findings_table("showerstack on this machine", findings(folder))


def findings(folder: Path = Path()) -> list[Finding]:
    """Return everything that was found, most basic first."""
    return [
        _python(),
        *_packages(),
        _torch(),
        _cupy(),
        _xgboost(),
        _lightgbm(),
        _use(),
        _memory(),
        _cores(),
        _energy(),
        _disk(folder),
        _check(),
    ]


def _python() -> Finding:
    state = "ok" if sys.version_info >= NEEDED_PYTHON else "bad"
    return Finding("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}", state)


def _packages() -> list[Finding]:
    """Compare every requirement of the distribution with what is installed."""
    from packaging.requirements import Requirement

    try:
        required = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return [Finding("packages", f"{DISTRIBUTION} is not installed: run make env or pip install -e .", "bad")]
    found, missing = [], []
    for text in required:
        need = Requirement(text)
        if need.marker and not need.marker.evaluate({"extra": ""}):
            continue
        try:
            version = importlib.metadata.version(need.name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(Finding(need.name, f"not installed, need {need.specifier}", "bad"))
            continue
        if need.specifier.contains(version, prereleases=True):
            found.append(f"{need.name} {version}")
        else:
            missing.append(Finding(need.name, f"{version}, need {need.specifier}", "bad"))
    return [Finding("packages", ", ".join(sorted(found)), "ok"), *missing]


def _torch() -> Finding:
    import torch

    if not torch.cuda.is_available():
        build = f"built for CUDA {torch.version.cuda}, no GPU answers" if torch.version.cuda else "CPU build"
        return Finding("torch", f"{torch.__version__}: {build}", "note")
    names = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
    bf16 = "with" if torch.cuda.is_bf16_supported() else "without"
    return Finding("torch", f"{torch.__version__}: {', '.join(names)}, {bf16} bf16", "ok")


def _cupy() -> Finding:
    try:
        import cupy
    except ImportError as error:
        return Finding("cupy", f"not installed ({error}); features run on the CPU. Install the extra [gpu]", "note")
    if not cupy.is_available():
        return Finding("cupy", f"{cupy.__version__}: no GPU answers (driver missing?)", "note")
    return Finding("cupy", f"{cupy.__version__}: {cupy.cuda.runtime.getDeviceCount()} GPU", "ok")


def _xgboost() -> Finding:
    import xgboost

    cuda = bool(xgboost.build_info().get("USE_CUDA"))
    return Finding("xgboost", f"{xgboost.__version__}: {'CUDA' if cuda else 'CPU'} build", "ok" if cuda else "note")


def _lightgbm() -> Finding:
    import lightgbm

    # in a process of its own: the library writes its refusals straight to the terminal, and drivers may crash
    code = "from models.tables.lightgbm import gpu_device; print('answer', gpu_device())"
    asked = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True
    )
    answer = asked.stdout.rpartition("answer ")[2].strip()
    if answer in ("cuda", "gpu"):
        return Finding("lightgbm", f"{lightgbm.__version__}: trains with device_type={answer}", "ok")
    found = f"{lightgbm.__version__}: CPU build, or no GPU answers; stays on the CPU in a run on a GPU"
    return Finding("lightgbm", found, "note")


def _use() -> Finding:
    device = resolve_device("auto")
    return Finding("--device auto", f"would use: {device}", "ok")


def _memory() -> Finding:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    limit = _memory_limit_gb()
    usable = min(total, limit) if limit else total
    text = f"{total:.1f} GB" + (f", limited to {limit:.1f} GB by its control group" if limit and limit < total else "")
    enough = usable >= COMFORTABLE_MEMORY_GB
    return Finding("memory", text + ("" if enough else "; the demo wants 8 GB"), "ok" if enough else "note")


def _memory_limit_gb() -> float | None:
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        file = Path(name)
        if file.exists() and (text := file.read_text().strip()).isdigit():
            return int(text) / 1e9
    return None


def _cores() -> Finding:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Finding("cores", f"{usable} usable of {os.cpu_count()}; one process each, one thread a process", "ok")


def _energy() -> Finding:
    words, is_measured = energy_words()
    return Finding("energy of runs", words, "ok" if is_measured else "note")


def _disk(folder: Path) -> Finding:
    place = Path(folder).resolve()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free / 1e9
    state = "ok" if free >= COMFORTABLE_DISK_GB else "note"
    text = f"{free:.1f} GB free at {folder}"
    return Finding("disk", text + ("" if state == "ok" else "; the full benchmark wants 30 GB, the demo 1 GB"), state)


def _check() -> Finding:
    found = "exits with 1 as long as a fact of the real data is outside its tolerance: no fault of the installation"
    return Finding("simulate --check", found, "ok")
