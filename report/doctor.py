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
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table

from showerstack.features.device import cupy_obstacle, resolve_device
from showerstack.features.table import CATALOGUE_FILE, FeatureTable
from showerstack.report.shared.text import Finding, findings_table
from showerstack.runtime.arrays import read_arrays
from showerstack.runtime.checksums import CHECKSUMS_FILE, Checksums
from showerstack.runtime.context import Bars, Progress, silent
from showerstack.runtime.errors import InputError, did_you_mean
from showerstack.runtime.packages import EXTRAS, lacking
from showerstack.runtime.resources import cores, memory_limit_bytes
from showerstack.runtime.whole_table import WholeTable
from showerstack.scoring.score import ORIGIN_KEYS, Origin, check_run
from showerstack.scoring.tasks.truth import origin_of
from showerstack.showers import writer
from showerstack.showers.archives.folders import DatasetEvents, DatasetFolders, datasets_in
from showerstack.showers.archives.formats import DEPOSITS, UNITS, format_of, formats
from showerstack.showers.archives.measured import MeasuredReader, azimuth_convention, front_azimuth
from showerstack.showers.archives.raw import SimulatedReader, archive_path, stream_npz
from showerstack.showers.array import KASCADE, DetectorArray
from showerstack.showers.dataset import Dataset, ordering_of
from showerstack.showers.event_files import EventFiles, bad_cells, units_remarks
from showerstack.showers.protocols import TEST, TEST_WITH_AGE
from showerstack.showers.schema import (
    AGE,
    ARRIVAL_FILE,
    EXPORT_FILE,
    MANIFEST_FILE,
    PREDICTIONS_FILE,
    RANGES,
    SCALAR_NAMES,
    TASKS,
    Task,
)
from showerstack.stacking.run import Run

NEEDED_PYTHON = (3, 11)
DISTRIBUTION = "showerstack"
SUBMISSION_FILE = "metadata.yaml"
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
        _extras(),
        *(examined() for name, examined in _LEARNING if not lacking(name)),
        _cupy(),
        _use(),
        _memory_and_cores(),
        _disk(folder),
    ]


def _python() -> Finding:
    state = "ok" if sys.version_info >= NEEDED_PYTHON else "bad"
    return Finding("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}", state)


def _packages() -> list[Finding]:
    """Compare every requirement of the distribution, and of the extras that are there, with what is installed."""
    from packaging.requirements import Requirement

    try:
        required = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return [Finding("packages", f"{DISTRIBUTION} is not installed: run make env or pip install -e .", "bad")]
    # What a GPU needs can come from another extra or from a toolkit: it is tried instead.
    extras = ("", *(extra for extra in EXTRAS if extra != "gpu" and not lacking(extra)))
    fitting, missing = [], []
    for text in required:
        need = Requirement(text)
        if need.marker and not any(need.marker.evaluate({"extra": extra}) for extra in extras):
            continue
        try:
            version = importlib.metadata.version(need.name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(Finding(need.name, f"not installed, need {need.specifier}", "bad"))
            continue
        if need.specifier.contains(version, prereleases=True):
            fitting.append(f"{need.name} {version}")
        else:
            missing.append(Finding(need.name, f"{version}, need {need.specifier}", "bad"))
    return [Finding("packages", ", ".join(sorted(fitting)), "ok"), *missing]


def _extras() -> Finding:
    missing = [extra for extra in EXTRAS if lacking(extra)]
    installed = ", ".join(extra for extra in EXTRAS if extra not in missing) or "none"
    todo = f"; the others: pip install 'showerstack[{','.join(missing)}]'" if missing else ""
    return Finding("extras", installed + todo, "note" if missing else "ok")


def _torch() -> Finding:
    import torch

    if not torch.cuda.is_available():
        build = f"built for CUDA {torch.version.cuda}, no GPU answers" if torch.version.cuda else "CPU build"
        return Finding("torch", f"{torch.__version__}: {build}", "note")
    names = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
    bf16 = "with" if torch.cuda.is_bf16_supported() else "without"
    return Finding("torch", f"{torch.__version__}: {', '.join(names)}, {bf16} bf16", "ok")


def _cupy() -> Finding:
    if obstacle := cupy_obstacle():
        return Finding("cupy", f"features are computed on the CPU: {obstacle}", "note")
    import cupy

    return Finding("cupy", f"{cupy.__version__}: compiles and runs on the GPU", "ok")


def _xgboost() -> Finding:
    import xgboost

    cuda = bool(xgboost.build_info().get("USE_CUDA"))
    return Finding("xgboost", f"{xgboost.__version__}: {'CUDA' if cuda else 'CPU'} build", "ok" if cuda else "note")


def _lightgbm() -> Finding:
    import lightgbm

    from showerstack.models.tables.lightgbm import trains_on_cuda

    if trains_on_cuda():
        return Finding("lightgbm", f"{lightgbm.__version__}: trains on the GPU", "ok")
    text = f"{lightgbm.__version__}: CPU build, or no GPU answers; stays on the CPU in a run on a GPU"
    return Finding("lightgbm", text, "note")


_LEARNING = (("torch", _torch), ("xgboost", _xgboost), ("lightgbm", _lightgbm))
"""What is examined of a library where it is installed."""


def _use() -> Finding:
    features = resolve_device("auto")
    return Finding("--device auto", f"would use: {features} for features, for each learner what its library has", "ok")


def _memory_and_cores() -> Finding:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    limit = (memory_limit_bytes() or float("inf")) / 1e9
    text = f"{total:.1f} GB" + (f", limited to {limit:.1f} GB for this job" if limit < total else "")
    enough = min(total, limit) >= COMFORTABLE_MEMORY_GB
    text += "" if enough else "; the demo wants 8 GB"
    return Finding("memory, cores", f"{text}; {cores()} of {os.cpu_count()} cores usable", "ok" if enough else "note")


def _disk(folder: Path) -> Finding:
    existing = Path(folder).resolve()
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free / 1e9
    state = "ok" if free >= COMFORTABLE_DISK_GB else "note"
    text = f"{free:.1f} GB free at {folder}"
    return Finding("disk", text + ("" if state == "ok" else "; the full benchmark wants 30 GB, the demo 1 GB"), state)


FIRST_EVENTS = 4_096
"""Events of an archive whose grids are looked at."""


def examine_datasets(folders: Sequence[Path]) -> Group:
    """Return what is to be said of folders of events, and their columns side by side."""
    tables = [findings_table(str(folder), folder_findings(Path(folder))) for folder in folders]
    return Group(*tables, *columns_table(column_quartiles(folders)))


def folder_findings(folder: Path) -> Iterator[Finding]:
    """Yield what is to be said of a folder of any known format, and of one that the program wrote itself."""
    if results := list(_result_findings(folder)):
        yield from results
        return
    known_format = format_of(folder)
    if known_format is None and (writer.is_dataset(folder) or not folder.is_dir()):
        yield from dataset_findings(folder)
        return
    if known_format is None:
        known = "; ".join(f"{each.name} ({each.holds})" for each in formats())
        raise InputError(f"{folder} holds nothing that is known: no run, submission, feature table or {known}")
    if isinstance(known_format, DatasetFolders):
        inside = datasets_in(folder)
        for each in inside:
            prefix = "" if each == folder else f"{each.name}: "
            yield from (replace(result, what=f"{prefix}{result.what}") for result in dataset_findings(each))
    else:
        yield Finding("format", known_format.name, "ok")
        lost = list[str]()
        for reader in known_format.open(folder, lost.append):
            if isinstance(reader, SimulatedReader | MeasuredReader):
                try:
                    yield from _archive(reader)
                except InputError as error:
                    yield Finding(reader.name, str(error), "note")
            else:
                signals = "with" if DEPOSITS in reader.units else "without"
                yield Finding(reader.name, f"{reader.n_events:,} events {signals} deposits by station", "ok")
                try:
                    names = tuple(name for name in COMPARED if name in reader.units)
                    parts = [np.column_stack([chunk[name] for name in names]) for chunk in reader.chunks(names)]
                    yield from _units(reader.name, np.concatenate(parts), names)
                except InputError as error:
                    yield Finding(reader.name, str(error), "bad")
        yield from (Finding("left out", line, "note") for line in lost)
    yield from (Finding("next", command, "ok") for command in known_format.next_commands(folder))


def _result_findings(folder: Path) -> Iterator[Finding]:
    """Yield what is to be said of a run, a folder of runs, a submission, a feature table or an export."""
    if (folder / SUBMISSION_FILE).exists():
        yield Finding("kind", "submission", "ok")
        yield Finding("next", f"{folder / 'README.md'} says how it is scored and handed in", "ok")
        return
    if any((folder / name).exists() for name in (MANIFEST_FILE, CATALOGUE_FILE, EXPORT_FILE)):
        kind, problems = check_folder(folder)
        yield Finding("kind", kind, "ok")
        yield from (Finding("damage", line, "bad") for line in problems)
        predict = f"python cli.py predict --run {folder} --data DATA --out predictions.npz"
        yield Finding("next", predict if kind == "run" else f"python cli.py check {folder}", "ok")
        return
    runs = sorted(file.parent for file in folder.glob(f"*/{MANIFEST_FILE}"))
    for run in runs:
        kind, problems = check_folder(run)
        yield Finding(run.name, problems[0] if problems else f"a sound {kind}", "bad" if problems else "ok")
    if runs:
        yield Finding("next", f"python cli.py leaderboard {' '.join(map(str, runs))}", "ok")


COMPARED = ("E", "Ze", "Az", "Ne", "Nmu", "Age", "Xc", "Yc")
QUARTILES = (25.0, 50.0, 75.0)
MAX_COMPARED = 200_000
"""Events of a set whose columns are compared."""


def column_quartiles(folders: Sequence[Path]) -> list[dict[str, object]]:
    """Return median and quartiles of reconstructed columns, by set, of events that pass its evaluation cuts.

    Of archives, which name none, those of the test.

    Measured runs of one folder count as one set.

    Returns
    -------
    list of dict
        ``set``, ``simulated``, ``events`` (that pass), and for each column it has ``{name: (25 %, 50 %, 75 %)}``.
    """
    frames: dict[tuple[str, bool], list[pl.DataFrame]] = {}
    for folder in map(Path, folders):
        known_format = format_of(folder)
        for reader in known_format.open(folder) if known_format else ():
            label = reader.name if reader.is_simulated else folder.name
            frames_of_set = frames.setdefault((label, reader.is_simulated), [])
            names = [name for name in COMPARED if name in reader.units]
            cuts, usable = TEST_WITH_AGE if AGE.name in names else TEST, None
            if isinstance(reader, DatasetEvents):
                cuts, usable = reader.data.evaluation_cuts, reader.data.usable
            if not {"Ze", "Ne"} <= set(names):
                continue
            try:
                start = 0
                for chunk in reader.chunks(names):
                    if sum(len(part) for part in frames_of_set) >= MAX_COMPARED:
                        break
                    part = pl.DataFrame({name: np.asarray(chunk[name], np.float64) for name in names})
                    good = cuts.mask(part)
                    good &= True if usable is None else usable[start : start + len(part)]
                    start += len(part)
                    frames_of_set.append(part.filter(good))
            except InputError:  # the findings of that set say what is damaged
                continue
    rows: list[dict[str, object]] = []
    for (label, is_simulated), parts in frames.items():
        if not parts:
            continue
        frame = pl.concat(parts, how="diagonal")
        quartiles = {
            name: tuple(np.nanpercentile(frame[name].to_numpy(), QUARTILES).round(4).tolist())
            for name in frame.columns
            if frame.height and frame[name].is_finite().any()
        }
        rows.append({"set": label, "simulated": is_simulated, "events": frame.height, **quartiles})
    return sorted(rows, key=lambda row: bool(row["simulated"]))


def columns_table(sets: list[dict[str, object]]) -> list[Table]:
    """Return the columns of sets side by side, measured ones first; nothing without sets."""
    if not sets:
        return []
    table = WholeTable(
        box=SIMPLE_HEAD, title="25 %, 50 % and 75 % of events that pass the evaluation cuts", title_justify="left"
    )
    table.add_column("")
    for row in sets:
        kind = "simulated" if row["simulated"] else "measured"
        table.add_column(f"{row['set']}\n{row['events']:,} {kind}", justify="right", no_wrap=True)
    for name in COMPARED:
        if any(name in row for row in sets):
            cells = (" ".join(f"{value:.2f}" for value in row[name]) if name in row else "–" for row in sets)  # type: ignore[attr-defined]
            table.add_row(f"{name}, {UNITS[name]}", *cells)
    return [table]


def _units(name: str, values: np.ndarray, columns: tuple[str, ...]) -> list[Finding]:
    return [Finding("units", line, "bad") for line in units_remarks(name, values, columns)]


def _archive(reader: SimulatedReader | MeasuredReader) -> list[Finding]:
    """Return what is to be said of a mode or run."""
    name, folder, measured = reader.name, reader.folder, not reader.is_simulated
    columns = [column for column in reader.units if column != DEPOSITS]
    chunks = list(reader.chunks(columns))
    frame = {column: np.concatenate([chunk[column] for chunk in chunks]).astype(np.float64) for column in columns}
    findings = [
        Finding(name, f"{reader.n_events:,} events of {'a measured run' if measured else 'a simulated mode'}", "ok")
    ]
    if not measured:
        kinds, counts = np.unique(frame["type"], return_counts=True)
        text = ", ".join(f"{kind:g}: {count:,}" for kind, count in zip(kinds[:8], counts, strict=False))
        findings.append(Finding("  column type", text, "ok"))
        if not archive_path(folder, name, "true_features").exists():
            findings.append(Finding("  true_features", "missing: no groups and no truth; v2 needs it", "note"))
    elif not archive_path(folder, name, "extra_features").exists():
        findings.append(Finding("  extra_features", "missing: no event times", "note"))
    findings += _units(name, np.column_stack([frame[one] for one in SCALAR_NAMES]), SCALAR_NAMES)
    for column, (low, high) in RANGES.items():
        bad = np.flatnonzero(~((frame[column] >= low) & (frame[column] <= high)))
        if bad.size:
            rows = f"{bad.size} row{'s' * (bad.size > 1)} that no shower has"
            first = f"row {bad[0]} holds {frame[column][bad[0]]:g}"
            findings.append(Finding(f"  column {column}", f"{rows}: {first}", "note"))
    grids = next(stream_npz(archive_path(folder, name, "matrices"), "matrices", FIRST_EVENTS))
    cells = bad_cells(grids[..., 1:].astype(np.float32), f"{name}_matrices.npz")
    if cells:
        findings.append(Finding("  cells", f"{len(cells)} events with impossible cells: {cells[0]}", "note"))
    lost = int((~np.isfinite(grids[..., 0])).any(axis=(1, 2)).sum())
    if lost:
        findings.append(Finding("  arrival times", f"not finite in {lost} events (no learner sees them)", "note"))
    dead = int((KASCADE.has_station & ~(grids[..., 1] > 0).any(axis=0)).sum())
    if dead:
        findings.append(
            Finding("  stations", f"{dead} of {int(KASCADE.has_station.sum())} give no e/gamma signal", "note")
        )
    findings.append(
        replace(_azimuth(grids[..., 0], grids[..., 1], frame["Az"], frame["Ze"], KASCADE), what="  azimuth")
    )
    return findings


def _azimuth(
    times_ns: np.ndarray, deposits: np.ndarray, azimuth_deg: np.ndarray, zenith_deg: np.ndarray, array: DetectorArray
) -> Finding:
    """Return how the azimuths of the first events (n of N) are counted; no time and 0 both mean none."""
    front = front_azimuth(times_ns, (deposits > 0) & (times_ns != 0), array.x_m, array.y_m)
    convention = azimuth_convention(front, azimuth_deg[: len(front)], zenith_deg[: len(front)])
    words = convention.words
    if not convention.is_known:
        return Finding("azimuth", words, "note")
    sense = "counter-clockwise" if convention.sense > 0 else "clockwise"
    words += f"; for sky-map: --azimuth-of-north {convention.of_north_deg:.1f} --{sense}"
    return Finding("azimuth", words, "ok" if ": as in" in words else "note")


def dataset_findings(folder: Path) -> Iterator[Finding]:
    """Yield what is to be said of a dataset folder, its labels included where it has some."""
    task = _task_of_labels(folder)
    data = Dataset.open(folder, task, labels=task is not None)
    kinds = f"grids {data.matrices.dtype}, scalars {data.scalars.dtype}{', with age' if data.age is not None else ''}"
    yield Finding("events", f"{len(data):,}; {kinds}", "ok" if len(data) else "bad")
    if task is None:
        yield Finding("labels", "none: events to be predicted", "ok")
    else:
        origin = origin_of(folder, task)
        yield Finding("origin", f"{task.name}, {'public, ' if origin.public else ''}{origin.protocol}", "ok")
        counts = np.bincount(np.asarray(data.labels)[data.usable], minlength=task.n_classes)
        named = ", ".join(f"{name} {count:,}" for name, count in zip(task.classes, counts, strict=True))
        yield Finding("classes", named, "ok" if counts.min() else "note")
    if len(data):
        passed, usable = data.evaluation_cuts.mask(data.scalar_frame()) & data.usable, int(data.usable.sum())
        share = f"{passed.sum():,} of {usable:,} usable events pass ({100 * passed.sum() / max(usable, 1):.2f} %)"
        yield Finding("evaluation cuts", f"{data.evaluation_cuts.name}: {share}", "ok")
    if data.groups is not None:
        n = len(np.unique(np.asarray(data.groups)))
        yield Finding("showers", f"{n:,}, each used {len(data) / max(n, 1):.2f} times on average", "ok")
    if data.files.has(ARRIVAL_FILE) and len(data):
        times = data.files.array(ARRIVAL_FILE, data.array.grid_shape[:2], np.float16, len(data))[:FIRST_EVENTS]
        scalars = np.asarray(data.scalars[:FIRST_EVENTS], dtype=np.float64)
        deposits = np.asarray(data.matrices[:FIRST_EVENTS])[..., 0]
        yield _azimuth(times, deposits, scalars[:, 2], scalars[:, 1], data.array)
    yield from (Finding("note", line, "note") for line in data.remarks)
    ordering = ordering_of(data)
    remark = ordering.remark(folder.name)
    yield Finding("order of rows", remark or ordering.words, "note" if remark else "ok")
    unusable = data.describe_unusable()
    if unusable:
        yield Finding("rows that cannot be used", unusable, "note")


def _task_of_labels(folder: Path) -> Task | None:
    files = EventFiles.open(folder)
    labelled = [task for task in TASKS.values() if task.label_file and files.has(task.label_file)]
    return labelled[0] if len(labelled) == 1 else None


def check_folder(folder: Path, *, bars: Bars = silent) -> tuple[str, list[str]]:
    """Compare every file of a folder with its checksums, and what belongs together.

    Returns
    -------
    What kind of folder it is, and one line for each problem; none for a sound folder.
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
            return "export", _compare_checksums(folder, progress)
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
    damage = _compare_checksums(folder, progress)
    if damage:
        return damage
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
    damage = _compare_checksums(folder, progress)
    if damage:
        return damage
    try:
        parts = FeatureTable.open(folder).parts()
        Checksums.open(folder, required=(CATALOGUE_FILE, *(part.name for part in parts)))
    except InputError as error:
        return [str(error)]
    return []


def _compare_checksums(folder: Path, progress: Progress) -> list[str]:
    if not (folder / CHECKSUMS_FILE).exists():
        return [f"{folder} has no {CHECKSUMS_FILE} (unfinished, or made by an earlier version): make it again"]
    try:
        return Checksums.open(folder).problems(progress)
    except InputError as error:
        return [str(error)]
