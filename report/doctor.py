"""What this machine offers, what a folder of events holds, and whether a finished folder is still what was written.

Of the machine: Python, packages, accelerators, memory, disk, and which would be used. Of datasets: origin, cuts,
classes, rows that cannot be used, order of rows. Of archives: modes or runs, odd rows, how azimuths are counted, where
the columns lie. Each ends with the command that comes next. Every file of a run, a feature table, a dataset or an
export can be compared with its checksum.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from zipfile import is_zipfile

import numpy as np
import polars as pl
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table

from showerstack.features.compute import FIT_RESULT_GROUPS, compute_events
from showerstack.features.device import cupy_obstacle, gpu_answers, resolve_device
from showerstack.features.table import CATALOGUE_FILE, CONVERGED, FeatureTable, fit_remark
from showerstack.report.shared.subject import stated_origin
from showerstack.report.shared.text import Finding, findings_table
from showerstack.runtime.arrays import array_names, read_arrays
from showerstack.runtime.checksums import CHECKSUMS_FILE, Checksums
from showerstack.runtime.code import version_of
from showerstack.runtime.context import Bars, Progress, silent
from showerstack.runtime.errors import InputError, did_you_mean
from showerstack.runtime.packages import EXTRAS, lacking
from showerstack.runtime.resources import cores, memory_limit_bytes
from showerstack.runtime.whole_table import WholeTable
from showerstack.scoring.score import ORIGIN_KEYS, Origin, check_run, task_of
from showerstack.scoring.tasks.truth import origin_of
from showerstack.showers import writer
from showerstack.showers.archives.control import control_lines, rows_line
from showerstack.showers.archives.folders import DatasetEvents, DatasetFolders, datasets_in, tasks_of
from showerstack.showers.archives.formats import DEPOSITS, UNITS, EventReader, first_remarks, format_of, formats
from showerstack.showers.archives.measured import MeasuredReader
from showerstack.showers.archives.raw import SimulatedReader, archive_path, stream_npz
from showerstack.showers.array import KASCADE, DetectorArray
from showerstack.showers.azimuth import azimuth_convention, front_azimuth
from showerstack.showers.calibration import calibrate
from showerstack.showers.dataset import Dataset, ordering_of
from showerstack.showers.event_files import bad_cells, units_remarks, zero_if_not_finite
from showerstack.showers.nuclei import OWN_OUTPUT
from showerstack.showers.protocols import NONE, TEST, TEST_WITH_AGE
from showerstack.showers.schema import (
    AGE,
    ARRIVAL_FILE,
    EXPORT_FILE,
    MANIFEST_FILE,
    PREDICTIONS_FILE,
    RANGES,
    SCALAR_NAMES,
    TASKS,
)
from showerstack.showers.source import is_simulated
from showerstack.stacking.config import FEW_SHOWERS, MORE_SHOWERS
from showerstack.stacking.run import Run

DISTRIBUTION = "showerstack"
SUBMISSION_FILE = "metadata.yaml"
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


FIRST_EVENTS = 4_096
"""Events of an archive whose grids are looked at."""


def examine_datasets(folders: Sequence[Path]) -> Group:
    """Return what is to be said of folders of events, and their columns side by side."""
    tables = [findings_table(str(folder), folder_findings(Path(folder))) for folder in folders]
    quartiles = column_quartiles(folders)
    return Group(*tables, *([_columns_table(quartiles)] if quartiles else []))


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
        for each in datasets_in(folder):
            prefix = "" if each == folder else f"{each.name}: "
            yield from (replace(result, what=f"{prefix}{result.what}") for result in dataset_findings(each))
        unlabelled = [each for each in datasets_in(folder) if not tasks_of(each)]
        yield from (Finding("control numbers", line) for line in control_lines(unlabelled))
    else:
        yield Finding("format", known_format.name)
        lost = list[str]()
        for reader in known_format.open(folder, lost.append):
            archive = reader if isinstance(reader, SimulatedReader | MeasuredReader) else None
            try:
                yield from _archive(archive) if archive else _events(reader)
            except InputError as error:
                yield Finding(reader.name, str(error), "note" if archive else "bad")
        yield from (Finding("left out", line, "note") for line in lost)
    yield from (Finding("next", command) for command in known_format.next_commands(folder))


def _result_findings(folder: Path) -> Iterator[Finding]:
    """Yield what is to be said of a run, a submission, a feature table, an export, or a folder of such results."""
    if (folder / SUBMISSION_FILE).exists():
        yield Finding("kind", "submission")
        yield Finding("next", f"{folder / 'README.md'} says how it is scored and handed in")
        return
    if any((folder / name).exists() for name in (MANIFEST_FILE, CATALOGUE_FILE, EXPORT_FILE)):
        kind, problems = check_folder(folder)
        yield Finding("kind", kind)
        yield from (Finding("damage", line, "bad") for line in problems)
        predict = f"python cli.py predict --run {folder} --data DATA --out predictions.npz"
        yield Finding("next", predict if kind == "run" else f"python cli.py check {folder}")
        return
    runs = sorted(file.parent for file in folder.glob(f"*/{MANIFEST_FILE}"))
    for run in runs:
        kind, problems = check_folder(run)
        yield Finding(run.name, problems[0] if problems else f"a sound {kind}", "bad" if problems else "ok")
    for inside in sorted(file.parent for file in folder.glob(f"*/{SUBMISSION_FILE}")):
        yield Finding(inside.name, "submission")
        yield Finding("next", f"{inside / 'README.md'} says how it is scored and handed in")
    scored = {task.output_array for task in TASKS.values()} | {OWN_OUTPUT}
    answers = [file for file in sorted(folder.glob("*.npz")) if is_zipfile(file) and scored & set(array_names(file))]
    yield from (Finding(file.name, f"predictions of {task_of(file).name}") for file in answers)
    if ranked := [*runs, *answers]:
        place = " --data DATA" if answers else ""
        yield Finding("next", f"python cli.py leaderboard {' '.join(map(str, ranked))}{place}")


COMPARED = ("E", "Ze", "Az", "Ne", "Nmu", "Age", "Xc", "Yc")
QUARTILES = (25.0, 50.0, 75.0)
MAX_COMPARED = 200_000
"""Events of a set whose columns are compared."""


def column_quartiles(folders: Sequence[Path]) -> list[dict[str, object]]:
    """Return median and quartiles of reconstructed columns, by set, of events that pass its evaluation cuts.

    Of archives, which name none, those of the test. Measured runs of one folder count as one set.

    Returns
    -------
    list of dict
        ``set``, ``simulated``, ``events`` (that pass), and for each column it has ``{name: (25 %, 50 %, 75 %)}``;
        measured sets first.
    """
    parts_of: dict[tuple[str, bool], list[pl.DataFrame]] = {}
    for folder in map(Path, folders):
        known_format = format_of(folder)
        for reader in known_format.open(folder) if known_format else ():
            parts = parts_of.setdefault((reader.name if reader.is_simulated else folder.name, reader.is_simulated), [])
            try:
                for part in _passing(reader):
                    if sum(map(len, parts)) >= MAX_COMPARED:
                        break
                    parts.append(part)
            except InputError:  # the findings of that set say what is damaged
                continue
    rows: list[dict[str, object]] = []
    for (label, simulated), parts in sorted(parts_of.items(), key=lambda one: one[0][1]):
        frame = pl.concat(parts, how="diagonal") if parts else None
        if frame is not None:
            known = [name for name in frame.columns if frame.height and frame[name].is_finite().any()]
            quartiles = {name: np.nanpercentile(frame[name].to_numpy(), QUARTILES).round(4) for name in known}
            row = {name: tuple(values.tolist()) for name, values in quartiles.items()}
            rows.append({"set": label, "simulated": simulated, "events": frame.height, **row})
    return rows


def _passing(reader: EventReader) -> Iterator[pl.DataFrame]:
    """Yield the compared columns of usable events that pass the cuts, chunk by chunk."""
    names = [name for name in COMPARED if name in reader.units]
    cuts, start = TEST_WITH_AGE if AGE.name in names else TEST, 0
    if reader.array != KASCADE:  # the cuts of its protocols are no other array's
        cuts = NONE
    if not names or not {cut.column for cut in cuts.cuts} <= set(names):
        return
    usable = np.ones(reader.n_events, dtype=bool)
    if isinstance(reader, DatasetEvents):
        cuts, usable = reader.data.evaluation_cuts, reader.data.usable
    for chunk in reader.chunks(names):
        part = pl.DataFrame({name: np.asarray(chunk[name], np.float64) for name in names})
        yield part.filter(cuts.mask(part) & usable[start : start + len(part)])
        start += len(part)


def _columns_table(sets: list[dict[str, object]]) -> Table:
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
    return table


def _events(reader: EventReader) -> Iterator[Finding]:
    """Yield what is to be said of a set of another program's."""
    signals = "with" if DEPOSITS in reader.units else "without"
    yield Finding(reader.name, f"{reader.n_events:,} events {signals} deposits by station")
    names = tuple(name for name in COMPARED if name in reader.units)
    if names:
        parts = [np.column_stack([chunk[name] for name in names]) for chunk in reader.chunks(names)]
        yield from _units(reader.name, np.concatenate(parts), names)
    yield from (Finding("units", line, "bad") for line in first_remarks(reader))
    if DEPOSITS in reader.units and reader.array != KASCADE:
        wanted = [DEPOSITS, *(name for name in SCALAR_NAMES if name in reader.units)]
        for chunk in reader.chunks(wanted):
            scalars = np.column_stack(
                [np.asarray(chunk.get(name, np.zeros(len(chunk[DEPOSITS]))), np.float32) for name in SCALAR_NAMES]
            )
            yield from _array_findings(reader.array, chunk[DEPOSITS][:FIRST_EVENTS], scalars[:FIRST_EVENTS])
            break


def _array_findings(array: DetectorArray, grids: np.ndarray, scalars: np.ndarray) -> Iterator[Finding]:
    """Yield what the first events (n, ...) of another array than KASCADE say of its detectors and of the fits."""
    ground = "depth not said" if array.depth_g_cm2 is None else f"{array.depth_g_cm2:.0f} g/cm2"
    yield Finding(
        "array",
        f"{array.title}, pitch {array.pitch_m:.3g} m, {ground}; cores up to {array.core_limit_m:,.0f} m, "
        f"spread {array.core_spread_m:,.0f} m",
    )
    grids, scalars = np.nan_to_num(np.asarray(grids, np.float32)), zero_if_not_finite(scalars)
    channels = (("e/gamma detectors", array.has_electron), ("muon detectors", array.has_muon))
    expected = (array.response.electron_deposit_mev, array.response.muon_deposit_mev)
    for channel, (name, there) in enumerate(channels):
        if there.any():
            found = calibrate(array, grids, channel, scalars[:, 1])
            yield Finding(name, f"{found.words('MeV')}; the card has {expected[channel]:.3g} MeV a particle")
    converged = compute_events(grids, scalars, None, FIT_RESULT_GROUPS, array)[CONVERGED].to_numpy()
    remark = fit_remark(array.name, converged)
    share = f"converged in {100 * np.nan_to_num(converged).mean():.0f} % of the first {len(converged):,} events"
    yield Finding("lateral fits", remark or share, "note" if remark else "ok")


def _units(name: str, values: np.ndarray, columns: tuple[str, ...]) -> Iterator[Finding]:
    return (Finding("units", line, "bad") for line in units_remarks(name, values, columns))


def _archive(reader: SimulatedReader | MeasuredReader) -> Iterator[Finding]:
    """Yield what is to be said of a mode or run."""
    name, folder, measured = reader.name, reader.folder, not reader.is_simulated
    columns = [column for column in reader.units if column != DEPOSITS]
    chunks = list(reader.chunks(columns))
    frame = {column: np.concatenate([chunk[column] for chunk in chunks]).astype(np.float64) for column in columns}
    yield Finding(name, f"{reader.n_events:,} events of {'a measured run' if measured else 'a simulated mode'}")
    if not measured:
        kinds, counts = np.unique(frame["type"], return_counts=True)
        text = ", ".join(f"{kind:g}: {count:,}" for kind, count in zip(kinds[:8], counts, strict=False))
        yield Finding("  column type", text)
        if not archive_path(folder, name, "true_features").exists():
            yield Finding("  true_features", "missing: no groups and no truth; v2 needs it", "note")
    elif not archive_path(folder, name, "extra_features").exists():
        yield Finding("  extra_features", "missing: no event times", "note")
    yield from _units(name, np.column_stack([frame[one] for one in SCALAR_NAMES]), SCALAR_NAMES)
    for column, (low, high) in RANGES.items():
        bad = np.flatnonzero(~((frame[column] >= low) & (frame[column] <= high)))
        if bad.size:
            rows = f"{bad.size} row{'s' * (bad.size > 1)} that no shower has"
            first = f"row {bad[0]} holds {frame[column][bad[0]]:g}"
            yield Finding(f"  column {column}", f"{rows}: {first}", "note")
    grids = next(stream_npz(archive_path(folder, name, "matrices"), "matrices", FIRST_EVENTS))
    cells = bad_cells(grids[..., 1:].astype(np.float32), f"{name}_matrices.npz")
    if cells:
        yield Finding("  cells", f"{len(cells)} events with impossible cells: {cells[0]}", "note")
    lost = int((~np.isfinite(grids[..., 0])).any(axis=(1, 2)).sum())
    if lost:
        yield Finding("  arrival times", f"not finite in {lost} events", "note")
    dead = int((KASCADE.has_station & ~(grids[..., 1] > 0).any(axis=0)).sum())
    if dead:
        text = f"{dead} of {int(KASCADE.has_station.sum())} give no e/gamma signal"
        yield Finding("  stations", text, "note")
    azimuth = _azimuth(grids[..., 0], grids[..., 1], frame["Az"], frame["Ze"], KASCADE, is_raw=True)
    yield replace(azimuth, what="  azimuth")


def _azimuth(
    times_ns: np.ndarray,
    deposits: np.ndarray,
    azimuth_deg: np.ndarray,
    zenith_deg: np.ndarray,
    array: DetectorArray,
    *,
    is_raw: bool = False,
) -> Finding:
    """Return how the azimuths of the first events (n of N) are counted; no time and 0 both mean none."""
    front = front_azimuth(times_ns, (deposits > 0) & (times_ns != 0), array.x_m, array.y_m)
    convention = azimuth_convention(front, azimuth_deg[: len(front)], zenith_deg[: len(front)])
    if not convention.is_known:
        return Finding("azimuth", convention.words, "note")
    if is_raw:
        return Finding("azimuth", convention.words + ("" if convention.is_ours else "; convert turns it"), "ok")
    sense, option = "anticlockwise" if convention.sense > 0 else "clockwise", ""
    if array == KASCADE:
        option = f"; for sky-map: --azimuth-of-north {convention.of_north_deg:.1f} --{sense}"
    elif not convention.is_ours:
        option = f"; give {convention.cure}"
    return Finding("azimuth", convention.words + option, "ok" if convention.is_ours else "note")


def dataset_findings(folder: Path) -> Iterator[Finding]:
    """Yield what is to be said of a dataset folder, its labels included where it has some."""
    labelled = tasks_of(folder)
    task = labelled[0] if len(labelled) == 1 else None
    data = Dataset.open(folder, task, labels=task is not None)
    kinds = f"grids {data.matrices.dtype}, scalars {data.scalars.dtype}{', with age' if data.age is not None else ''}"
    yield Finding("events", f"{len(data):,}; {kinds}", "ok" if len(data) else "bad")
    if task is None:
        yield Finding("labels", "none: events to be predicted")
    else:
        origin = origin_of(folder, task)
        yield Finding("origin", f"{task.name}, {'public, ' if origin.public else ''}{origin.protocol}")
        counts = np.bincount(np.asarray(data.labels)[data.usable], minlength=task.n_classes)
        named = ", ".join(f"{name} {count:,}" for name, count in zip(task.classes, counts, strict=True))
        split = folder.resolve().name.removeprefix(f"{task.name}_")
        absent = task.absent(counts)
        tolerable = split == "test" or task.among(np.asarray(data.labels)) != task
        yield Finding("classes", named + absent, "ok" if not absent else "note" if tolerable else "bad")
        if split == "train" and not task.target:
            n_showers = len(data) if data.groups is None else len(np.unique(data.groups))
            if n_showers < FEW_SHOWERS:
                yield Finding("training", f"{n_showers:,} showers: pretrained alone; {MORE_SHOWERS}", "note")
        if not is_simulated(data.source) and data.array == KASCADE:
            rows = rows_line(task.name, data.protocol, split, len(data))
            if rows is not None:
                yield Finding("rows", rows, "ok" if rows.startswith("as many") else "note")
    if len(data):
        passed, usable = data.evaluation_cuts.mask(data.scalar_frame()) & data.usable, int(data.usable.sum())
        share = f"{passed.sum():,} of {usable:,} usable events pass ({100 * passed.sum() / max(usable, 1):.2f} %)"
        if data.source.get("cuts") == data.evaluation_cuts.name and passed.sum() < usable:
            share += f"; the set was made with these cuts, and rounding to {data.scalars.dtype} moved the others across"
        yield Finding("evaluation cuts", f"{data.evaluation_cuts.name}: {share}")
    if data.groups is not None:
        n = len(np.unique(np.asarray(data.groups)))
        yield Finding("showers", f"{n:,}, each used {len(data) / max(n, 1):.2f} times on average")
    if data.files.has(ARRIVAL_FILE) and len(data):
        times = data.files.array(ARRIVAL_FILE, data.array.grid_shape[:2], np.float16, len(data))[:FIRST_EVENTS]
        scalars = np.asarray(data.scalars[:FIRST_EVENTS], dtype=np.float64)
        deposits = np.asarray(data.matrices[:FIRST_EVENTS])[..., 0]
        yield _azimuth(times, deposits, scalars[:, 2], scalars[:, 1], data.array)
    yield from (Finding("note", line, "note") for line in data.remarks)
    if data.array != KASCADE and len(data):
        first = np.asarray(data.scalars[:FIRST_EVENTS], dtype=np.float32)
        yield from _array_findings(data.array, np.asarray(data.matrices[:FIRST_EVENTS]), first)
    ordering = ordering_of(data)
    remark = ordering.remark(folder.name)
    yield Finding("order of rows", remark or ordering.words, "note" if remark else "ok")
    unusable = data.describe_unusable()
    if unusable:
        yield Finding("rows that cannot be used", unusable, "note")


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
    kinds = {MANIFEST_FILE: "run", CATALOGUE_FILE: "feature table", EXPORT_FILE: "export"}
    kind = next((kind for name, kind in kinds.items() if _has(folder, name)), None)
    with bars("checking", "parts") as progress:
        if kind is not None:
            return kind, _problems(folder, kind, progress)
        if writer.is_dataset(folder):
            return "dataset", writer.problems(folder, progress)
    if _has(folder, SUBMISSION_FILE) and _has(folder, PREDICTIONS_FILE):
        raise InputError(
            f"{folder} is a submission, which was checked when it was written; its scores: python verify.py "
            f"--task TASK {folder / PREDICTIONS_FILE}"
        )
    raise InputError(f"{folder} holds neither a run, nor a feature table, nor a dataset, nor an export")


def _has(folder: Path, name: str) -> bool:
    """Return whether a folder holds a file, or should."""
    if (folder / name).exists():
        return True
    try:
        return name in Checksums.open(folder).files
    except InputError:
        return False


def _problems(folder: Path, kind: str, progress: Progress) -> list[str]:
    """Return what is wrong with a folder that has checksums: files that differ, else what does not belong together."""
    if not (folder / CHECKSUMS_FILE).exists():
        return [f"{folder} has no {CHECKSUMS_FILE} (unfinished, or made by an earlier version): make it again"]
    try:
        if damage := Checksums.open(folder).problems(progress):
            return damage
        if kind == "run":
            return _problems_of_run(Run.open(folder))
        if kind == "feature table":
            parts = FeatureTable.open(folder).parts()
            Checksums.open(folder, required=(CATALOGUE_FILE, *(part.name for part in parts)))
    except InputError as error:
        return [str(error)]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return [f"{folder / MANIFEST_FILE} is not the manifest of a finished run ({error!r})"]
    return []


def _problems_of_run(run: Run) -> list[str]:
    unlisted = [name for name in run.required_files if name not in run.checksums.files]
    if not unlisted and PREDICTIONS_FILE in run.checksums.files:
        arrays = read_arrays(run.predictions, *ORIGIN_KEYS)
        origin = Origin(*(str(arrays[key]) if key in arrays else None for key in ORIGIN_KEYS))
        check_run(run.predictions, origin, stated_origin(run))
    return [f"{run.folder / name} is not in {CHECKSUMS_FILE}, but every such run has it" for name in unlisted]
