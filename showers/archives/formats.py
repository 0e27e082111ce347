"""One protocol for all files of events: a module of this folder with a ``FORMAT`` is found by itself.

A format says whether it knows a path and opens what is there as readers. A reader gives named columns with units, chunk
by chunk. ``doctor`` compares the columns of any two formats; ``convert`` writes those of others' files as what
the project reads: a dataset folder where there are stations' deposits, a table elsewhere.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import polars as pl
from polars import read_parquet_metadata as polars_metadata

from showerstack.runtime.code import installed_modules
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError, did_you_mean
from showerstack.runtime.tables import write_frames
from showerstack.showers.archives.options import ConvertOptions
from showerstack.showers.array import KASCADE, DetectorArray
from showerstack.showers.azimuth import OURS, AzimuthConvention
from showerstack.showers.event_files import bad_cells, bad_quantities, check_true_values, units_remarks
from showerstack.showers.nuclei import MASS_OF, groups_entry
from showerstack.showers.protocols import MATCHED, UNROUNDED, Layout
from showerstack.showers.remarks import event_remarks
from showerstack.showers.schema import (
    ABSENT,
    AGE,
    CONVERSION,
    CORE_X_FILE,
    CORE_Y_FILE,
    GROUPS_FILE,
    SCALAR_NAMES,
    SCALARS,
    TASKS,
    TIMES_FILE,
    Task,
)
from showerstack.showers.units import time_remarks
from showerstack.showers.writer import ARRIVAL_STEM, write_dataset

LOG = logging.getLogger(__name__)

DEPOSITS = "deposits"
"""(n, rows, columns, 2) MeV by station: e/gamma, muon."""
LABEL = "label"
"""Class number of a task, or true value of its target."""
CONVERTED_FROM = "converted_from"
"""In a converted table's metadata: path and name of the set that it was made of."""
EVENT_TIME = "time_s"
"""UTC of an event, seconds since 1970."""
GROUP = "group"
"""Whole number; events of one value are the same simulated shower."""
UNITS = {scalar.name: scalar.unit for scalar in (*SCALARS, AGE)} | {
    DEPOSITS: "MeV", ARRIVAL_STEM: "ns", LABEL: "", GROUP: "", "type": "", "Xc": "m", "Yc": "m", "R": "m",
    EVENT_TIME: "s, UTC", "Gt": "s, UTC", "Mt": "ns",
}  # fmt: skip
"""Of columns that several formats have."""
DIRECTION = ("Ze", "Az")
"""Where a set has neither, fits take showers as vertical; docs/arrays.md says what this costs."""
TABLE_EVENTS = 65_536
GRID_EVENTS = 8_192
"""Events of a chunk, without and with deposits."""


class EventReader(Protocol):
    """Events of one set, opened; nothing but their heads has been read."""

    @property
    def name(self) -> str:
        """Of the folder or table that a conversion writes."""

    @property
    def n_events(self) -> int:
        """How many there are."""

    @property
    def units(self) -> Mapping[str, str]:
        """Column to unit, for all columns there are."""

    @property
    def array(self) -> DetectorArray:
        """Of the deposits."""

    @property
    def is_simulated(self) -> bool:
        """Whether the events are not measured ones."""

    def chunks(self, names: Sequence[str]) -> Iterator[dict[str, np.ndarray]]:
        """Yield columns of consecutive events, each (n, ...); memory stays bounded by a chunk."""


def azimuths_of(reader: EventReader) -> AzimuthConvention | None:
    """Return how a reader's azimuths count where it has looked (``azimuth``); None where it says nothing."""
    return getattr(reader, "azimuth", None)


class Format(Protocol):
    """One format of events."""

    name: str
    """In messages."""
    holds: str
    """By what a path of this format is known."""
    is_foreign: bool
    """Whether it is read reader by reader; the project's own formats are read as they are, or convert themselves."""

    def accepts(self, path: Path) -> bool:
        """Return whether a path is of this format, from names and heads alone."""

    def open(self, path: Path, tell: Callable[[str], None] = lambda line: None) -> Sequence[EventReader]:
        """Open every set there is; ``tell`` gets what is left out."""

    def next_commands(self, path: Path) -> Sequence[str]:
        """Return what to do with it next, or one line that says why nothing can be done."""


OF_EVENTS = ("task", "groups")
"""Options of formats that are converted reader by reader; others name theirs in ``options``, and have ``convert``."""


def options_taken(found: Format) -> tuple[str, ...]:
    """Return which options of a conversion have an effect."""
    return tuple(getattr(found, "options", OF_EVENTS))


def convert_path(path: Path, found: Format | None, given: ConvertOptions, ctx: Context = Context()) -> Iterator[str]:
    """Convert files of a format, which does it itself; yields a line for each thing written or left out."""
    convert = getattr(found, "convert", None)
    if convert is not None:
        yield from convert(path, given, ctx)
        return
    if given.array is not None and (path.is_file() or any(path.glob("DAT*"))):
        raise InputError(f"{path} holds no CORSIKA particle files: these begin with a run header (RUNH); is the run "
                         "finished?")  # fmt: skip
    yield from (f"wrote {written}" for written in convert_foreign(path, given.out, given.labels))


MODULES = ("folders", "hisparc", "auger", "kcdc", "measured", "convert", "station_lists", "grids", "corsika")
"""Modules with a format, in the order in which they are asked."""


def formats() -> list[Format]:
    """Return all formats: ours, then installed ones (entry points ``showerstack.formats``)."""
    ours = [importlib.import_module(f"showerstack.showers.archives.{name}") for name in MODULES]
    return [module.FORMAT for module in (*ours, *installed_modules("showerstack.formats").values())]


def format_of(path: Path) -> Format | None:
    """Return the format that knows a path, None where none does."""
    return next((one for one in formats() if Path(path).exists() and one.accepts(Path(path))), None)


def _log(line: str) -> None:
    LOG.warning("%s", line)


def convert_foreign(path: Path, out: Path, task: Task | None, tell: Callable[[str], None] = _log) -> list[Path]:
    """Write what another program wrote as dataset folders, or as tables where there are no deposits.

    ``out`` gets a folder or a Parquet file for each set, with labels of ``task`` where there are some; ``tell`` gets
    remarks. What is of no known format, or of one of the project's own, is refused.
    """
    path, out = Path(path), Path(out)
    if not path.exists():
        raise InputError(f"{path} does not exist{did_you_mean(path)}")
    source_format = format_of(path)
    if source_format is None:
        known = "; ".join(
            f"{each.name}: {each.holds}" for each in formats() if each.is_foreign or hasattr(each, "convert")
        )
        raise InputError(f"{path} {_nearly_lists(path) or f'is of no known format: {known}'}")
    if not source_format.is_foreign:
        following = source_format.next_commands(path)[0]
        raise InputError(f"{path} holds {source_format.name}, which are read as they are; next: {following}")
    written = []
    for reader in source_format.open(path, tell):
        needed = SCALAR_NAMES if reader.array == KASCADE else ()
        is_dataset = {DEPOSITS, *needed} <= set(reader.units)
        if is_dataset:
            written.append(write_set(reader, out, source_format, task, tell))
            continue
        file = out / f"{reader.name}.parquet"
        if file in written:
            raise InputError(f"{path} holds two tables that would be {file}: rename one, or convert them one by one")
        written.append(_table(reader, file, path, tell))
    return written


LISTS = ("stations", "signals", "events")
"""Files of lists of stations (:mod:`showerstack.showers.archives.station_lists`)."""


def _nearly_lists(path: Path) -> str | None:
    """Return in words what keeps a folder from being lists of stations, None where it is not nearly such."""
    there = [name for name in LISTS if (path / f"{name}.parquet").exists()]
    if there:
        missing = ", ".join(f"{name}.parquet" for name in LISTS if name not in there)
        return f"has {there[0]}.parquet, but no {missing}: lists of stations are three files"
    text = next((file for name in LISTS for file in sorted(path.glob(f"{name}.*"))), None)
    if text is not None:
        return (
            f"has {text.name}, but lists are read as Parquet: polars.read_csv(...).write_parquet('{text.stem}.parquet')"
        )
    inside = [file.parent for file in sorted(path.glob("*/stations.parquet"))] if path.is_dir() else []
    return f"holds folders of lists: did you mean {' or '.join(map(str, inside[:3]))}?" if inside else None


_CORES = {Path(CORE_X_FILE).stem: "Xc", Path(CORE_Y_FILE).stem: "Yc"}
_GROUPS = Path(GROUPS_FILE).stem
_TIMES, _TIME_COLUMNS = Path(TIMES_FILE).stem, ("Gt", "Mt")
"""Files of measured events beside the grids, and the columns that they are made of."""


def write_set(
    reader: EventReader, out: Path, source_format: Format, task: Task | None, tell: Callable[[str], None]
) -> Path:
    """Write the events of a reader as a dataset folder, with labels of the task where it has some, and return it."""
    folder, columns = out / reader.name, set(reader.units)
    labelled = task if task is not None and LABEL in columns else None
    named = next((name for name in TASKS if reader.name.startswith(f"{name}_")), None)
    if labelled and named not in (None, labelled.name):  # numbers alone may be photons or protons
        raise InputError(
            f"{reader.name} is named after task {named}, --task is {labelled.name}: which classes do its labels mean? "
            f"Give --task {named}, or rename the folder"
        )
    source: dict[str, Any] = {"generator": f"{CONVERSION} of {source_format.name}", "evaluation_cuts": "none"}
    source |= groups_entry(labelled) if labelled else {}
    nuclei, strays = set(chain(*labelled.masses)) if labelled else set(), set[Any]()
    layout, cores, has_times = UNROUNDED, dict[str, str](), False
    absent = [name for name in SCALAR_NAMES if name not in columns]
    if lacking := [name for name in DIRECTION if name in absent]:
        absent = [name for name in SCALAR_NAMES if name in {*absent, *DIRECTION}]
        tell(
            f"{reader.name} has no {' and no '.join(lacking)}: the fits take showers as vertical, and fitted sizes are "
            "some 10 % too large at 20 degrees"
        )
    if reader.array != KASCADE:  # its positions are counted from another place than its cores
        source |= {"array": reader.array.as_json()} | ({ABSENT: absent} if absent else {})
    else:
        cores = {stem: column for stem, column in _CORES.items() if column in columns}
        has_times = set(_TIME_COLUMNS) <= columns
    if reader.array == KASCADE and AGE.name in columns:
        layout = Layout(np.float32, np.float32, "column")
        source |= {"protocol": "2026", "age": True, "evaluation_cuts": MATCHED.name}
    azimuth = azimuths_of(reader)
    if azimuth is not None:
        source |= azimuth.source()
        tell_azimuths(reader.name, azimuth, tell)
    quantities = tuple(name for name in layout.scalars if name not in absent)
    names = [*quantities, DEPOSITS, *([LABEL] if labelled else []), *cores.values()]
    names += _TIME_COLUMNS if has_times else ()
    names += [GROUP] if GROUP in columns else []
    arrival = np.float32 if ARRIVAL_STEM in columns else None
    names += [ARRIVAL_STEM] if arrival else []
    types: dict[str, Any] = dict.fromkeys(cores, np.float32) | ({_TIMES: np.float64} if has_times else {})
    types |= {_GROUPS: np.int64} if GROUP in columns else {}
    if EVENT_TIME in columns:
        names, types = [*names, EVENT_TIME], types | {_TIMES: np.float64}
    start = 0
    with write_dataset(
        folder, reader.n_events, labelled, source=source, extras=types, layout=layout, arrival_times=arrival
    ) as writer:
        for chunk in reader.chunks(names):
            if azimuth is not None and "Az" in chunk:
                chunk["Az"] = azimuth.ours(chunk["Az"])
            scalars = np.full((len(chunk[DEPOSITS]), len(layout.scalars)), np.nan, np.float32)
            for name in quantities:
                scalars[:, layout.scalars.index(name)] = chunk[name]
            known = scalars[:, [layout.scalars.index(name) for name in quantities]]
            grids = chunk[DEPOSITS].astype(np.float32)
            writer.left_out += bad_quantities(reader.name, known, quantities, start)
            if not start:
                for remark in (*units_remarks(reader.name, known, quantities), *_unit_remarks(reader, chunk)):
                    tell(remark)
            writer.left_out += bad_cells(grids, reader.name, start)
            values: dict[str, Any] = {stem: chunk[column] for stem, column in cores.items()}
            values |= {_TIMES: chunk["Gt"] + 1e-9 * chunk["Mt"]} if has_times else {}
            values |= {_TIMES: chunk[EVENT_TIME]} if EVENT_TIME in columns else {}
            values |= {_GROUPS: chunk[GROUP]} if GROUP in columns else {}
            values |= {ARRIVAL_STEM: chunk[ARRIVAL_STEM]} if arrival else {}
            labels = labels_of(chunk[LABEL], labelled, reader.name, start) if labelled else None
            if nuclei:
                strays |= {one for one in chunk[LABEL].tolist() if one in MASS_OF and MASS_OF[one] not in nuclei}
            writer.put(start, grids, scalars, labels, **values)
            start += len(grids)
    if strays:
        named = ", ".join(sorted(strays))
        tell(f"{reader.name}: nuclei count as the class with the nearest ln A (--groups names others): {named}")
    if writer.left_out:
        rows = len({bad.row for bad in writer.left_out})
        tell(f"{rows:,} of {start:,} rows cannot be used (listed in {folder / 'left_out.csv'}); they stay in place")
    return folder


def first_remarks(reader: EventReader) -> list[str]:
    """Return remarks on the units of places and times, from the first events; none where a set has neither."""
    names = [name for name in ("E", *DIRECTION, DEPOSITS, ARRIVAL_STEM, "Gt", EVENT_TIME) if name in reader.units]
    if not {"Gt", EVENT_TIME} & set(names) and (DEPOSITS not in names or reader.array == KASCADE):
        return []
    names = [name for name in names if name not in (DEPOSITS, ARRIVAL_STEM) or reader.array != KASCADE]
    return next((_unit_remarks(reader, chunk) for chunk in reader.chunks(names)), [])


def _unit_remarks(reader: EventReader, chunk: Mapping[str, np.ndarray]) -> list[str]:
    """Return remarks on units, detectors and directions of the events of a chunk."""
    remarks = []
    if DEPOSITS in chunk and reader.array != KASCADE:
        scalars = {name: chunk[name] for name in ("E", *DIRECTION) if name in chunk}
        remarks += event_remarks(reader.name, reader.array, chunk[DEPOSITS], scalars, chunk.get(ARRIVAL_STEM))
    for name in ("Gt", EVENT_TIME):
        if name in chunk:
            remarks += time_remarks(reader.name, np.asarray(chunk[name], np.float64), reader.array)
    return remarks


def tell_azimuths(name: str, azimuth: AzimuthConvention, tell: Callable[[str], None]) -> None:
    """Say whether azimuths were turned, or that nothing shows how they count."""
    if not azimuth.is_known:
        tell(
            f"{name}: nothing shows how Az is counted ({azimuth.words}): it is kept, and distances from a shower's "
            f"axis are right only if it counts {OURS}"
        )
    elif not azimuth.is_ours:
        tell(f"{name}: {azimuth.words}: turned, it counts {OURS}")


def numbers_of_labels(task: Task) -> dict[Any, int]:
    """Return the class number of each label of a task, by number and by name: nuclei are of the nearest group."""
    of_nuclei = dict(zip(MASS_OF, task.class_of_mass([*MASS_OF.values()]).tolist(), strict=True)) if task.masses else {}
    return (
        of_nuclei | {name: k for k, name in enumerate(task.classes)} | {label: k for k, label in enumerate(task.labels)}
    )


def labels_of(values: np.ndarray, task: Task, name: str, first: int) -> np.ndarray:
    """Return what a label file holds of labels (n,) as they are written: class numbers or names, or true values.

    What is no whole number of a class, no name of one, or no possible true value is refused.
    """
    if task.target:
        if values.dtype.kind not in "fiu":
            raise InputError(f"{name}: true values are {values.dtype}, expected numbers, {task.target.unit}")
        true_values = values.astype(np.float64)
        check_true_values(true_values, task.target, Path(name))
        return true_values
    number_of = numbers_of_labels(task)
    can_be_label = (
        isinstance(value, str | int | float | Decimal) and not isinstance(value, bool) for value in values.tolist()
    )
    # 1.0 is the key 1, 0.7 is none, and True is no number of a class.
    numbers = [
        number_of.get(value, -1) if possible else -1
        for value, possible in zip(values.tolist(), can_be_label, strict=True)
    ]
    if -1 in numbers:
        row = numbers.index(-1)
        bad = f"{values.tolist()[row]!r} ({numbers.count(-1)} bad ones)"
        raise InputError(
            f"{name}: event {first + row} has label {bad}, expected {task.label_words} or "
            f"{', '.join(task.classes)}: is --task {task.name} meant?"
        )
    return task.decoded(np.array(numbers, dtype=np.int64))


def _table(reader: EventReader, file: Path, path: Path, tell: Callable[[str], None]) -> Path:
    """Write the table of a set; a file of that name is replaced only where it was made of the same."""
    names = [name for name in reader.units if name not in (DEPOSITS, ARRIVAL_STEM)]
    if not reader.n_events:
        raise InputError(f"{reader.name} holds no events")
    origin = {CONVERTED_FROM: f"{path.resolve()} {reader.name}"}
    if file.exists() and _origin_of(file) != origin[CONVERTED_FROM]:
        raise InputError(f"{file} exists already, made of something else: choose another folder or remove it")
    write_frames(file, _checked_frames(reader, names, tell), origin)
    return file


def _origin_of(file: Path) -> str | None:
    try:
        with file.open("rb") as content:
            return polars_metadata(content).get(CONVERTED_FROM)
    except (pl.exceptions.PolarsError, OSError):
        return None


def _checked_frames(reader: EventReader, names: list[str], tell: Callable[[str], None]) -> Iterator[pl.DataFrame]:
    """Yield all rows in frames; remarks say of which rows no shower can have the quantities, and what units may be."""
    checked = tuple(name for name in (*SCALAR_NAMES, AGE.name) if name in names)
    start, n_bad, first = 0, 0, ""
    for chunk in reader.chunks(names):
        if checked:
            values = np.column_stack([chunk[name] for name in checked])
            bad = bad_quantities(reader.name, values, checked, start)
            n_bad, first = n_bad + len(bad), first or (str(bad[0]) if bad else "")
            for remark in units_remarks(reader.name, values, checked) if not start else ():
                tell(remark)
        yield pl.DataFrame([pl.Series(name, _as_series(chunk[name])) for name in names])
        start += len(chunk[names[0]])
    if n_bad:
        tell(f"{n_bad:,} of {start:,} rows hold what no shower has, the first: {first}")


def _as_series(values: np.ndarray) -> pl.Series:
    """Return a column whose type does not depend on which rows of it are missing."""
    return pl.Series(values.tolist(), dtype=pl.String) if values.dtype.kind == "O" else pl.Series(values)
