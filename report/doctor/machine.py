"""What this machine offers: Python, packages, accelerators, memory, disk, and which would be used."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from showerstack.features.device import cupy_obstacle, gpu_answers, resolve_device
from showerstack.report.shared.text import Finding
from showerstack.runtime.code import version_of
from showerstack.runtime.packages import EXTRAS, lacking
from showerstack.runtime.resources import cores, memory_limit_bytes

DISTRIBUTION = "showerstack"
COMFORTABLE_MEMORY_GB = 8.0
"""Enough for the demo with a process per core; the full benchmark wants 24."""
COMFORTABLE_DISK_GB = 30.0
"""The benchmark's files, their feature tables and a few runs."""


def findings(folder: Path = Path()) -> Iterator[Finding]:
    """Yield what this machine offers, most basic first; ``folder`` is where data and runs would go."""
    yield Finding("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    yield from _packages()
    missing = [extra for extra in EXTRAS if lacking(extra)]
    installed = ", ".join(extra for extra in EXTRAS if extra not in missing) or "none"
    todo = f"; the others: pip install 'showerstack[{','.join(missing)}]'" if missing else ""
    yield Finding("extras", installed + todo, "note" if missing else "ok")
    yield from _libraries()
    device = resolve_device("auto")
    yield Finding("--device auto", f"would use: {device} for features, for each learner what its library has")
    yield from _room(folder)


def _packages() -> Iterator[Finding]:
    """Compare every requirement of the distribution, and of the extras that are there, with what is installed."""
    from packaging.requirements import Requirement

    try:
        required = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        yield Finding("packages", f"{DISTRIBUTION} is not installed: run make env or pip install -e .", "bad")
        return
    # What a GPU needs can come from another extra or from a toolkit: it is tried instead.
    extras = ("", *(extra for extra in EXTRAS if extra != "gpu" and not lacking(extra)))
    fitting, missing = list[str](), list[Finding]()
    for need in map(Requirement, required):
        if need.marker and not any(need.marker.evaluate({"extra": extra}) for extra in extras):
            continue
        version = version_of(need.name)
        if version != "not installed" and need.specifier.contains(version, prereleases=True):
            fitting.append(f"{need.name} {version}")
        else:
            missing.append(Finding(need.name, f"{version}, need {need.specifier}", "bad"))
    yield Finding("packages", ", ".join(sorted(fitting)))
    yield from missing


def _libraries() -> Iterator[Finding]:
    """Yield what the libraries that are installed can do on a GPU; they are imported where one answers."""
    answers = gpu_answers()
    if not lacking("torch"):
        cuda = _cuda_of_torch()
        build = f"built for CUDA {cuda}, no GPU answers" if cuda else "CPU build"
        if answers and cuda:
            import torch

            # Without a driver that works, the names of devices that are there cannot be read.
            if answers := torch.cuda.is_available():
                names = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
                build = f"{', '.join(names)}, {'with' if torch.cuda.is_bf16_supported() else 'without'} bf16"
        yield Finding("torch", f"{version_of('torch')}: {build}", "ok" if answers and cuda else "note")
    if not lacking("xgboost"):
        # A build for CUDA brings NVIDIA's library of collective operations along.
        name = next((one for one in ("xgboost", "xgboost-cpu") if _is_installed(one)), "xgboost")
        has_cuda = any("nccl" in one for one in (importlib.metadata.requires(name) or []) if _is_installed(name))
        yield Finding("xgboost", f"{version_of('xgboost')}: {'CUDA' if has_cuda else 'CPU'} build",
                      "ok" if has_cuda else "note")  # fmt: skip
    if not lacking("lightgbm"):
        trains = False
        if answers:
            from showerstack.models.tables.lightgbm import trains_on_cuda

            trains = trains_on_cuda()
        build = "trains on the GPU" if trains else "CPU build, or no GPU answers; stays on the CPU in a run on a GPU"
        yield Finding("lightgbm", f"{version_of('lightgbm')}: {build}", "ok" if trains else "note")
    if obstacle := cupy_obstacle():
        yield Finding("cupy", f"features are computed on the CPU: {obstacle}", "note")
    else:
        import cupy

        yield Finding("cupy", f"{cupy.__version__}: compiles and runs on the GPU")


def _is_installed(distribution: str) -> bool:
    try:
        return bool(importlib.metadata.version(distribution))
    except importlib.metadata.PackageNotFoundError:
        return False


def _cuda_of_torch() -> str | None:
    """Return the CUDA version that torch was built for, from the file that says so; None for a CPU build."""
    spec = importlib.util.find_spec("torch")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    file = next((each for folder in folders if (each := Path(folder) / "version.py").is_file()), None)
    found = re.search(r"^cuda[^=]*= *['\"]([^'\"]+)", file.read_text(encoding="utf-8"), re.MULTILINE) if file else None
    return found[1] if found else None


def _room(folder: Path) -> Iterator[Finding]:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    limit = (memory_limit_bytes() or float("inf")) / 1e9
    text = f"{total:.1f} GB" + (f", limited to {limit:.1f} GB for this job" if limit < total else "")
    enough = min(total, limit) >= COMFORTABLE_MEMORY_GB
    text += f"{'' if enough else '; the demo wants 8 GB'}; {cores()} of {os.cpu_count()} cores usable"
    yield Finding("memory, cores", text, "ok" if enough else "note")
    existing = next(place for place in (Path(folder).resolve(), *Path(folder).resolve().parents) if place.exists())
    free = shutil.disk_usage(existing).free / 1e9
    enough = free >= COMFORTABLE_DISK_GB
    text = f"{free:.1f} GB free at {folder}{'' if enough else '; the full benchmark wants 30 GB, the demo 1 GB'}"
    yield Finding("disk", text, "ok" if enough else "note")
