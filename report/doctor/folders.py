"""What a folder holds, and the command that comes next.

Of datasets: origin, cuts, classes, rows that cannot be used, order of rows. Of archives: modes or runs, odd rows, how
azimuths are counted, where the columns lie. Of what the program wrote: its kind, and whether it is sound.
"""

from __future__ import annotations

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
from showerstack.features.table import CATALOGUE_FILE, CONVERGED, fit_remark
from showerstack.report.doctor.soundness import check_folder
from showerstack.report.shared.text import Finding, findings_table
from showerstack.runtime.arrays import array_names
from showerstack.runtime.errors import InputError
from showerstack.runtime.whole_table import WholeTable
from showerstack.scoring.score import task_of
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
    RANGES,
    SCALAR_NAMES,
    SUBMISSION_FILE,
    TASKS,
)
from showerstack.showers.source import is_simulated
from showerstack.stacking.config import StackConfig

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
    parts_of: dict[tuple[Path, str, bool], list[pl.DataFrame]] = {}
    for folder in map(Path, folders):
        known_format = format_of(folder)
        for reader in known_format.open(folder) if known_format else ():
            label = reader.name if reader.is_simulated else folder.name
            parts = parts_of.setdefault((folder, label, reader.is_simulated), [])
            try:
                for part in _passing(reader):
                    if sum(map(len, parts)) >= MAX_COMPARED:
                        break
                    parts.append(part)
            except InputError:  # the findings of that set say what is damaged
                continue
    rows: list[dict[str, object]] = []
    labels = [label for _, label, _ in parts_of]
    for (folder, name, simulated), parts in sorted(parts_of.items(), key=lambda one: one[0][2]):
        label = name if labels.count(name) == 1 else str(folder if folder.name == name else folder / name)
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
        labels, split = np.asarray(data.labels), folder.resolve().name.removeprefix(f"{task.name}_")
        known = labels[data.usable]
        if task.target:
            low, middle, high = np.quantile(known, (0.0, 0.5, 1.0)) if known.size else [np.nan] * 3
            yield Finding(f"true {task.target.unit}", f"{low:.2f} to {high:.2f}, median {middle:.2f}")
        else:
            counts = np.bincount(known, minlength=task.n_classes)
            named = ", ".join(f"{name} {count:,}" for name, count in zip(task.classes, counts, strict=True))
            absent, tolerable = task.absent(counts), split == "test" or task.among(labels) != task
            yield Finding("classes", named + absent, "ok" if not absent else "note" if tolerable else "bad")
        if split == "train" and not task.target:
            n_showers = int(data.usable.sum()) if data.groups is None else len(np.unique(data.groups[data.usable]))
            config, of_array = StackConfig(task=task.name, data=folder, run=folder).for_array(data.array, task)
            remarks = (*of_array, *config.for_number(n_showers, task)[1])
            yield from (Finding("training", remark, "note") for remark in remarks)
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
