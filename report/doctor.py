"""What this machine offers, what a folder of events holds, and whether a finished folder is still what was written.

Of the machine: Python, packages, accelerators, memory, disk, and which would be used. Of datasets: origin, cuts,
classes, rows that cannot be used, order of rows. Of archives: modes or runs, odd rows, how azimuths are counted, where
the columns lie. Each ends with the command that comes next. Every file of a run, a feature table, a dataset or an
export can be compared with its checksum.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
from rich.table import Table

from features.device import resolve_device
from features.table import CATALOGUE_FILE, FeatureTable
from report.shared.published import origin_of
from report.shared.subject import check_run
from report.shared.text import Finding, findings_table
from runtime.arrays import read_arrays
from runtime.checksums import CHECKSUMS_FILE, Checksums
from runtime.context import Bars, Progress, silent
from runtime.cost import energy_words
from runtime.errors import InputError, did_you_mean
from scoring.score import ORIGIN_KEYS, Origin
from showers import writer
from showers.archives.convert import RANGES
from showers.archives.measured import COLUMNS, azimuth_convention, front_azimuth
from showers.archives.raw import RAW_COLUMNS, TRUTH_KIND, archive_path, head_of, stream_npz
from showers.array import KASCADE, RAW_SHAPE, DetectorArray
from showers.dataset import Dataset, ordering_of
from showers.event_files import EventFiles, bad_cells
from showers.protocols import LABELS_FROM_TYPE, MODES, TEST_WITH_AGE
from showers.schema import ARRIVAL_FILE, MATRICES_FILE, TASKS, Task
from stacking.run.folder import EXPORT_FILE, MANIFEST_FILE, PREDICTIONS_FILE
from stacking.run.read import Run

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
    result, missing = [], []
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
            result.append(f"{need.name} {version}")
        else:
            missing.append(Finding(need.name, f"{version}, need {need.specifier}", "bad"))
    return [Finding("packages", ", ".join(sorted(result)), "ok"), *missing]


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
    requested = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).resolve().parents[1], capture_output=True, text=True
    )
    answer = requested.stdout.rpartition("answer ")[2].strip()
    if answer in ("cuda", "gpu"):
        return Finding("lightgbm", f"{lightgbm.__version__}: trains with device_type={answer}", "ok")
    result = f"{lightgbm.__version__}: CPU build, or no GPU answers; stays on the CPU in a run on a GPU"
    return Finding("lightgbm", result, "note")


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
    result = "exits with 1 as long as a fact of the real data is outside its tolerance: no fault of the installation"
    return Finding("simulate --check", result, "ok")


FIRST_EVENTS = 4_096
"""Events of an archive whose grids are looked at."""


def examine_dataset(folder: Path) -> Table:
    """Return what is to be said of a folder of events.

    Raises
    ------
    InputError
        If it cannot be opened.
    """
    return findings_table(str(folder), folder_findings(Path(folder)))


def folder_findings(folder: Path) -> Iterator[Finding]:
    """Yield what is to be said of a dataset, a folder of datasets, or a folder of raw archives."""
    if (folder / MATRICES_FILE).exists() or not folder.is_dir():
        yield from dataset_findings(folder)
    elif list(folder.glob("*_features.npz")):
        yield from archive_findings(folder)
    elif inside := sorted(file.parent for file in folder.glob(f"*/{MATRICES_FILE}")):
        for each in inside:
            yield from (replace(result, what=f"{each.name}: {result.what}") for result in dataset_findings(each))
    else:
        yield from dataset_findings(folder)


def archive_findings(folder: Path) -> Iterator[Finding]:
    """Yield what is to be said of raw archives, simulated modes or measured runs."""
    files = {file.name.removesuffix("_features.npz") for file in folder.glob("*_features.npz")}
    names = sorted(name for name in files if not name.endswith(("_true", "_extra")))
    measured = False
    for name in names:
        try:
            kind, result = _archive(folder, name)
        except InputError as error:
            yield Finding(name, str(error), "note")
            continue
        measured |= kind == "measured"
        yield from result
    if measured:
        yield Finding("next", f"python cli.py convert --measured {folder} --times --protocol 2026 --out data", "ok")
        return
    possible = [
        (protocol, task)
        for (protocol, task), modes in MODES.items()
        if set(modes) <= set(names)
        and ((protocol, task) in LABELS_FROM_TYPE or all(archive_path(folder, m, TRUTH_KIND).exists() for m in modes))
    ]
    for protocol, task in possible:
        command = f"python cli.py convert --raw {folder} --task {task} --protocol {protocol} --out data"
        yield Finding("next", command, "ok")
    if not possible:
        yield Finding("next", "no protocol can be made: modes are missing (see docs/data.md)", "note")


def _archive(folder: Path, name: str) -> tuple[str, list[Finding]]:
    """Return what a mode or run is, and what is to be said of it."""
    blocks = list(stream_npz(archive_path(folder, name, "features"), "features", 1 << 18))
    if not blocks:
        raise InputError("holds no events")
    features = np.concatenate(blocks)
    n_grids = head_of(archive_path(folder, name, "matrices"), "matrices", RAW_SHAPE)[0]
    if n_grids != len(features):
        raise InputError(f"{n_grids:,} events in {name}_matrices.npz, but {len(features):,} in {name}_features.npz")
    measured = features.shape[1:] == (len(COLUMNS),)
    columns = COLUMNS if measured else RAW_COLUMNS
    if features.shape[1:] != (len(columns),):
        raise InputError(f"{archive_path(folder, name, 'features')}: events have shape {features.shape[1:]}")
    frame = {column: features[:, k].astype(np.float64) for k, column in enumerate(columns)}
    result = [
        Finding(name, f"{len(features):,} events of {'a measured run' if measured else 'a simulated mode'}", "ok")
    ]
    if not measured:
        kinds, counts = np.unique(frame["type"], return_counts=True)
        text = ", ".join(f"{kind:g}: {count:,}" for kind, count in zip(kinds[:8], counts, strict=False))
        result.append(Finding("  column type", text, "ok"))
        if not archive_path(folder, name, "true_features").exists():
            result.append(Finding("  true_features", "missing: no groups and no truth; v2 needs it", "note"))
    elif not archive_path(folder, name, "extra_features").exists():
        result.append(Finding("  extra_features", "missing: no event times", "note"))
    for column, (low, high) in RANGES.items():
        bad = np.flatnonzero(~((frame[column] >= low) & (frame[column] <= high)))
        if bad.size:
            first = f"row {bad[0]} holds {frame[column][bad[0]]:g}"
            result.append(Finding(f"  column {column}", f"{bad.size} rows that no shower has: {first}", "note"))
    grids = next(stream_npz(archive_path(folder, name, "matrices"), "matrices", FIRST_EVENTS))
    cells = bad_cells(grids[..., 1:].astype(np.float32), f"{name}_matrices.npz")
    if cells:
        result.append(Finding("  cells", f"{len(cells)} events with impossible cells: {cells[0]}", "note"))
    lost = int((~np.isfinite(grids[..., 0])).any(axis=(1, 2)).sum())
    if lost:
        result.append(Finding("  arrival times", f"not finite in {lost} events (no learner sees them)", "note"))
    dead = int((KASCADE.has_station & ~(grids[..., 1] > 0).any(axis=0)).sum())
    if dead:
        result.append(
            Finding("  stations", f"{dead} of {int(KASCADE.has_station.sum())} give no e/gamma signal", "note")
        )
    result.append(replace(_azimuth(grids[..., 0], grids[..., 1], frame["Az"], frame["Ze"], KASCADE), what="  azimuth"))
    passing = TEST_WITH_AGE.mask(pl.DataFrame(frame))
    if passing.any():
        spread = (f"{column} {np.nanmedian(frame[column][passing]):.2f}" for column in ("E", "Ze", "Ne", "Nmu", "Age"))
        text = f"{int(passing.sum()):,} events pass the test's cuts; medians: {', '.join(spread)}"
        result.append(Finding("  columns", text, "ok"))
    return ("measured" if measured else "simulated"), result


NORTH_FROM_X_DEG = 105.0
"""Where north lies, from the array's +x, anticlockwise: the array is turned by 15 degrees (D. Fokkema, PhD thesis,
Twente 2012, map of KASCADE)."""


def _azimuth(
    times_ns: np.ndarray, deposits: np.ndarray, azimuth_deg: np.ndarray, zenith_deg: np.ndarray, array: DetectorArray
) -> Finding:
    """Return how the azimuths of the first events (n of N) are counted; no time and 0 both mean none."""
    front = front_azimuth(times_ns, (deposits > 0) & (times_ns != 0), array.x_m, array.y_m)
    convention = azimuth_convention(front, azimuth_deg[: len(front)], zenith_deg[: len(front)])
    words = convention.words
    if "no relation" in words:
        return Finding("azimuth", words, "note")
    north = (convention.offset_deg + convention.sense * NORTH_FROM_X_DEG) % 360.0
    sense = "counter-clockwise" if convention.sense > 0 else "clockwise"
    words += f"; for sky-map: --azimuth-of-north {north:.1f} --{sense}"
    return Finding("azimuth", words, "ok" if ": as in" in words else "note")


def dataset_findings(folder: Path) -> Iterator[Finding]:
    """Yield what is to be said of a dataset folder, its labels included where it has some."""
    task = _labelled(folder)
    data = Dataset.open(folder, task, labels=task is not None)
    kinds = f"grids {data.matrices.dtype}, scalars {data.scalars.dtype}{', with age' if data.age is not None else ''}"
    yield Finding("events", f"{len(data):,}; {kinds}", "ok" if len(data) else "bad")
    if task is None:
        yield Finding("labels", "none: events to be predicted", "ok")
    else:
        origin = origin_of(folder, task)
        yield Finding("origin", f"{task.name}, {'public, ' if origin.public else ''}{origin.protocol}", "ok")
        counts = np.bincount(np.asarray(data.labels), minlength=task.n_classes)
        named = ", ".join(f"{name} {count:,}" for name, count in zip(task.classes, counts, strict=True))
        yield Finding("classes", named, "ok" if counts.min() else "note")
    if len(data):
        passed = float(data.evaluation_cuts.mask(data.scalar_frame()).mean())
        yield Finding("evaluation cuts", f"{data.evaluation_cuts.name}: {100 * passed:.1f} % of the events pass", "ok")
    if data.groups is not None:
        n = len(np.unique(np.asarray(data.groups)))
        yield Finding("showers", f"{n:,}, thrown {len(data) / max(n, 1):.2f} times on average", "ok")
    if data.files.has(ARRIVAL_FILE) and len(data):
        times = data.files.array(ARRIVAL_FILE, data.array.grid_shape[:2], np.float16, len(data))[:FIRST_EVENTS]
        scalars = np.asarray(data.scalars[:FIRST_EVENTS], dtype=np.float64)
        deposits = np.asarray(data.matrices[:FIRST_EVENTS])[..., 0]
        yield _azimuth(times, deposits, scalars[:, 2], scalars[:, 1], data.array)
    yield from (Finding("checksums", line, "note") for line in data.remarks)
    ordering = ordering_of(data)
    remark = ordering.remark(folder.name)
    yield Finding("order of rows", remark or ordering.words, "note" if remark else "ok")
    unusable = data.unusable_words()
    if unusable:
        yield Finding("rows that cannot be used", unusable, "note")
    yield Finding("next", _next_command(folder, task), "ok")


def _next_command(folder: Path, task: Task | None) -> str:
    if task is None:
        return f"python cli.py predict --run RUN --data {folder} --out predictions.npz"
    return f"python cli.py stack --task {task.name} --data {folder.parent} --run runs/{task.name}"


def _labelled(folder: Path) -> Task | None:
    files = EventFiles.open(folder)
    entries = [task for task in TASKS.values() if task.label_file and files.has(task.label_file)]
    return entries[0] if len(entries) == 1 else None


def check_folder(folder: Path, *, bars: Bars = silent) -> tuple[str, list[str]]:
    """Compare every file of a folder with its checksums, and what belongs together.

    Parameters
    ----------
    folder
        A run, a feature table, a dataset or an export.
    bars
        Opens a progress bar.

    Returns
    -------
    What kind of folder it is, and one line for each problem; none for a sound folder.

    Raises
    ------
    InputError
        If it is none of them.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(
            f"{folder} is not a folder{did_you_mean(folder)}: give a run, a feature table, a dataset or an export"
        )
    with bars("checking", "parts") as progress:
        if _has(folder, MANIFEST_FILE):
            return "run", _run(folder, progress)
        if _has(folder, CATALOGUE_FILE):
            return "feature table", _table(folder, progress)
        if _has(folder, EXPORT_FILE):
            return "export", _compared(folder, progress)
        if writer.is_dataset(folder):
            return "dataset", writer.problems(folder, progress)
    raise InputError(f"{folder} holds neither a run, nor a feature table, nor a dataset, nor an export")


def _has(folder: Path, name: str) -> bool:
    """Return whether a folder holds a file, or should."""
    if (folder / name).exists():
        return True
    try:
        return name in Checksums.open(folder).files
    except InputError:
        return False


def _run(folder: Path, progress: Progress) -> list[str]:
    result = _compared(folder, progress)
    if result:
        return result
    try:
        run = Run.open(folder)
        lacking = [name for name in run.required_files if name not in run.checksums.files]
        if lacking:
            return [f"{folder / name} is not in {CHECKSUMS_FILE}, but every such run has it" for name in lacking]
        if PREDICTIONS_FILE in run.checksums.files:
            arrays = read_arrays(run.predictions, *ORIGIN_KEYS)
            origin = Origin(*(str(arrays[key]) if key in arrays else None for key in ORIGIN_KEYS))
            check_run(run.predictions, origin, run.manifest)
    except InputError as error:
        return [str(error)]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return [f"{folder / MANIFEST_FILE} is not the manifest of a finished run ({error!r})"]
    return []


def _table(folder: Path, progress: Progress) -> list[str]:
    result = _compared(folder, progress)
    if result:
        return result
    try:
        parts = FeatureTable.open(folder).parts()
        Checksums.open(folder, required=(CATALOGUE_FILE, *(part.name for part in parts)))
    except InputError as error:
        return [str(error)]
    return []


def _compared(folder: Path, progress: Progress) -> list[str]:
    if not (folder / CHECKSUMS_FILE).exists():
        return [f"{folder} has no {CHECKSUMS_FILE} (unfinished, or made by an earlier version): make it again"]
    try:
        return Checksums.open(folder).problems(progress)
    except InputError as error:
        return [str(error)]
