"""Downloads of the KCDC DataShop: text files of a job, ``events.h5`` or ``events.root``, joined to one list of events.

A job has one table for each part of the experiment: ``array`` (E lg eV, Xc, Yc m, Ze, Az deg, Ne, Nmu lg, Age),
``general`` (R, Ev, Gt, Mt, Datetime, T, P) and others of other lengths. ``row_mapping`` says for every event which row
of each table is its own, -1 for none; tables are joined by it, never by position. Older jobs write names in capitals.

What the stored pages of KCDC do not say, and no file was there to show: the names and types of tables, groups and
branches in HDF5 and ROOT, in which order stations are numbered, and how azimuths count. Tables are therefore known by
their columns, the station of each number by the cores of the showers that fell beside it, and azimuths by planes
through arrival times. Text never holds stations' signals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import polars as pl

from showerstack.runtime.arrays import refuse_swollen
from showerstack.runtime.errors import InputError, need
from showerstack.runtime.tables import damage_as_input_error, read_text
from showerstack.showers.archives.formats import DEPOSITS, GRID_EVENTS, TABLE_EVENTS, UNITS
from showerstack.showers.array import KASCADE, DetectorArray
from showerstack.showers.azimuth import FRONT_EVENTS, AzimuthConvention, azimuth_convention, front_azimuth

MAPPING = "row_mapping"
QUANTITIES = {
    "array": ("E", "Xc", "Yc", "Ze", "Az", "Ne", "Nmu", "Age"),
    "general": ("R", "Ev", "Gt", "Mt", "Datetime", "T", "P"),
    "calorimeter": ("Nhad", "Ehad"),
}
"""Quantities that are taken, by table, as KCDC names them; the first column of a table is by what it is known."""
NUMBERS = {name.lower() for names in QUANTITIES.values() for name in names} - {"datetime"}
NEEDED = {"array": QUANTITIES["array"], "general": ("R", "Ev"), "calorimeter": ("Nhad",)}
"""By what a table is known, whatever it is called."""
SIGNALS = ("EDeposit", "MDeposit")
"""MeV by station, in ROOT and HDF5."""
ARRIVAL, ARRIVAL_STATIONS = "Arrival", "ArrivalS"
"""ns by station; or of the stations hit alone, whose numbers from 1 are then in the second column."""
OF_STATIONS = (*SIGNALS, ARRIVAL, ARRIVAL_STATIONS)
TRUE_ENERGY = "TrEP"
"""A column of KCDC's simulations alone."""
KCDC_UNITS = {"R": "", "Ev": "", "T": "deg C", "P": "hPa", "Datetime": "ISO", "Nhad": "", "Ehad": "lg(E/eV)"}
UNCHECKED = "no such file was there when this reader was written: tables are known by their columns"


Table: TypeAlias = "TextTable | Hdf5Table | RootTable"
"""One table of a download: its ``columns`` (name as stored to shape of a row's value, () for a number or text), its
``length`` in rows, and ``read``, which returns columns of consecutive rows."""


@dataclass(frozen=True)
class TextTable:
    """A tab-separated file with a header, in memory."""

    frame: pl.DataFrame

    @classmethod
    def open(cls, file: Path) -> TextTable:
        """Read a file; a column is of one type, by all its rows: integers with a gap become floats."""
        with damage_as_input_error(file):
            frame = read_text(file, "\t").rename(str.strip)
        empty = frame.select(pl.all_horizontal(pl.all().is_null()))
        if empty.to_series().any():
            raise InputError(f"{file}: row {empty.to_series().arg_max()} is empty, and would shift the rows below it")
        return cls(frame.select(_typed(values, file) for values in frame))

    @property
    def columns(self) -> dict[str, tuple[int, ...]]:
        return dict.fromkeys(self.frame.columns, ())

    @property
    def length(self) -> int:
        return self.frame.height

    def read(self, names: Sequence[str], start: int, stop: int) -> dict[str, np.ndarray]:
        return {name: self.frame[name][start:stop].to_numpy() for name in names}


def _typed(values: pl.Series, file: Path) -> pl.Series:
    """Return text as whole numbers or numbers where all of it is, with gaps as numbers; else as text."""
    text = values.str.strip_chars()
    numbers, whole = (text.cast(kind, strict=False) for kind in (pl.Float64, pl.Int64))
    no_number = numbers.is_null() & values.is_not_null()
    if no_number.any() and values.name.lower() not in NUMBERS:
        return values
    # Beside a gap, and beyond 64 bits, a column is of float64.
    if no_number.any() or whole.null_count():
        inexact = text.str.contains(r"^[+-]?\d+$") & (numbers.abs() >= 2**53)
        for wrong, expected in ((no_number, "a number"), (inexact, "a number that float64 can hold")):
            if wrong.any():
                row = int(wrong.arg_true()[0])
                raise InputError(f"{file}: row {row}, column {values.name} holds {text[row]!r}, expected {expected}")
        return numbers
    return whole


@dataclass(frozen=True)
class Hdf5Table:
    """A compound dataset, or a group of datasets of one length."""

    columns: Mapping[str, tuple[int, ...]]
    length: int
    stored: Any
    """h5py.Dataset or h5py.Group."""

    @classmethod
    def all_in(cls, file: Path) -> dict[str, Table]:
        """Return the tables of a file by their paths in it."""
        h5py = _library("h5py", file)
        try:
            opened = h5py.File(file, "r")
        except OSError as error:
            raise InputError(f"{file} cannot be read as HDF5: {' '.join(str(error).split())[:120]}") from None
        tables: dict[str, Table] = {}

        def add_table(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset):
                where = f"{file}, {item.name} (shape {item.shape})"
                n_bytes = (item.size or 0) * item.id.get_type().get_size()  # item.nbytes asks for a NumPy type
                refuse_swollen(where, n_bytes, file.stat().st_size, "write it again without compression")
            if isinstance(item, h5py.Dataset) and (kinds := _stored_kinds(item)) and item.ndim == 1:
                tables[name] = cls({field: kind.shape for field, kind in kinds.items()}, len(item), item)
            elif isinstance(item, h5py.Group):
                inside = {key: one for key, one in item.items() if isinstance(one, h5py.Dataset) and one.ndim}
                plain = {key: one for key, one in inside.items() if _has_numpy_type(one) and not one.dtype.names}
                if plain and len({len(one) for one in plain.values()}) == 1:
                    length = len(next(iter(plain.values())))
                    tables[name] = cls({key: one.shape[1:] for key, one in plain.items()}, length, item)

        add_table("", opened)
        opened.visititems(add_table)
        return tables

    def read(self, names: Sequence[str], start: int, stop: int) -> dict[str, np.ndarray]:
        if not hasattr(self.stored, "fields"):
            return {name: self.stored[name][start:stop] for name in names}
        if _has_numpy_type(self.stored):
            rows = self.stored.fields(list(names))[start:stop]
        else:
            rows = self._read_with_times(names, start, stop)
        return {name: rows[name] for name in names}

    def _read_with_times(self, names: Sequence[str], start: int, stop: int) -> np.ndarray:
        """Return rows of a dataset in which a column is of HDF5's type for times, for which h5py has no NumPy type.

        HDF5 converts such a value to no other type: it is read as it lies in the file.
        """
        from h5py import h5s, h5t

        kinds, stored = _stored_kinds(self.stored), self.stored.id.get_type()
        rows = np.zeros(stop - start, [(name, kinds[name]) for name in names])
        wanted = h5t.create(h5t.COMPOUND, rows.dtype.itemsize)
        for name in names:
            member = stored.get_member_type(stored.get_member_index(name.encode()))
            offset = rows.dtype.fields[name][1]  # type: ignore[index]
            kind = member if member.get_class() == h5t.TIME else h5t.py_create(kinds[name])
            wanted.insert(name.encode(), offset, kind)
        if len(rows):
            space = self.stored.id.get_space()
            space.select_hyperslab((start,), rows.shape)
            self.stored.id.read(h5s.create_simple(rows.shape), space, rows, wanted)
        return rows


def _has_numpy_type(dataset: Any) -> bool:
    try:
        return dataset.dtype is not None
    except TypeError:  # a column of times
        return False


def _stored_kinds(dataset: Any) -> dict[str, np.dtype]:
    """Return the types of a compound dataset's columns that NumPy can hold; empty for any other dataset.

    A time of 32 bits is a whole number of seconds since 1970. What one of 64 bits means depends on the program that
    wrote it: it is no column.
    """
    from h5py import h5t

    stored = dataset.id.get_type()
    if stored.get_class() != h5t.COMPOUND:
        return {}
    kinds = {}
    for k in range(stored.get_nmembers()):
        member, name = stored.get_member_type(k), stored.get_member_name(k).decode()
        if member.get_class() == h5t.TIME and member.get_size() == 4:
            kinds[name] = np.dtype(">i4" if member.equal(h5t.UNIX_D32BE) else "<i4")
        with suppress(TypeError):  # a type that NumPy does not have
            kinds[name] = kinds.get(name) or member.dtype
    return kinds


@dataclass(frozen=True)
class RootTable:
    """A TTree, or an RNTuple, which is what uproot writes today."""

    columns: Mapping[str, tuple[int, ...]]
    length: int
    tree: Any

    @classmethod
    def all_in(cls, file: Path) -> dict[str, Table]:
        """Return the trees of a file by their paths in it."""
        uproot = _library("uproot", file)
        try:
            opened = uproot.open(file)
            names = opened.keys(cycle=False, filter_classname=["TTree", "ROOT::RNTuple"])
            trees = {name: opened[name] for name in names}
        except Exception as error:  # a damaged file raises nearly anything in the parser
            raise InputError(f"{file} cannot be read as ROOT: {' '.join(str(error).split())[:120]}") from None

        return {name: cls(_root_columns(tree), tree.num_entries, tree) for name, tree in trees.items()}

    def read(self, names: Sequence[str], start: int, stop: int) -> dict[str, np.ndarray]:
        return dict(self.tree.arrays(list(names), entry_start=start, entry_stop=stop, library="np"))


def _root_columns(tree: Any) -> dict[str, tuple[int, ...]]:
    """Return columns and shapes; one with another number of values for each event has none."""
    if hasattr(tree, "branches"):
        return {one.name: getattr(one.interpretation, "inner_shape", (-1,)) for one in tree.branches}
    none = tree.arrays(entry_stop=0)
    return {name: _shape_of(none[name].type.content) for name in none.fields}


def _shape_of(kind: Any) -> tuple[int, ...]:
    """Return the shape of a value of one of awkward's types."""
    if hasattr(kind, "primitive"):
        return ()
    size = getattr(kind, "size", None)  # of a list as long in every event
    return (-1,) if size is None else (size, *_shape_of(kind.content))


def _library(name: str, file: Path) -> Any:
    need(name, what=str(file))
    return import_module(name)


class KcdcDownload:
    """The format."""

    name = "a KCDC download"
    holds = f"events.h5, events.root, or array.txt and {MAPPING}.txt of a DataShop job"
    is_foreign = True

    def accepts(self, path: Path) -> bool:
        """Return whether a folder holds a job, or a file is one."""
        return self._file(path) is not None

    def open(self, path: Path, tell: Callable[[str], None] = lambda line: None) -> list[KcdcEvents]:
        """Open the tables and how they are joined."""
        file = self._file(path)
        assert file is not None
        if file.suffix == ".txt":
            files = [file.with_name(f"{name}.txt") for name in (*QUANTITIES, MAPPING)]
            tables: dict[str, Table] = {one.stem: TextTable.open(one) for one in files if one.is_file()}
        else:
            tables = (RootTable if file.suffix.lower() == ".root" else Hdf5Table).all_in(file)
        folder = path if path.is_dir() else path.with_suffix("")
        return [KcdcEvents.join(file, folder.resolve().name, tables, tell)]

    def next_commands(self, path: Path) -> list[str]:
        """Return the command that writes what the project reads."""
        return [f"python cli.py convert {path} --out data"]

    def _file(self, path: Path) -> Path | None:
        if path.is_file():
            return path if path.suffix.lower() in (".h5", ".hdf5", ".root") else None
        names = [path / "events.h5", path / "events.root"]
        if (path / f"{MAPPING}.txt").is_file():
            names.append(path / "array.txt")
        return next((file for file in names if file.is_file()), None)


@dataclass(frozen=True)
class KcdcEvents:
    """Events that the array has reconstructed."""

    name: str
    file: Path
    tables: Mapping[str, tuple[Table, dict[str, str]]]
    """By role: the table, and its columns by KCDC's names."""
    rows: Mapping[str, np.ndarray]
    """By role: row (N,) int64 of each event, -1 for none."""
    n_events: int
    is_simulated: bool
    """KCDC's own simulations have true quantities, which are not read."""
    array: DetectorArray = KASCADE

    @classmethod
    def join(cls, file: Path, name: str, tables: dict[str, Table], tell: Callable[[str], None]) -> KcdcEvents:
        """Find the tables by their columns, and join them by the mapping."""
        found: dict[str, tuple[str, Table, dict[str, str]]] = {}
        for role, needed in NEEDED.items():
            for key, table in sorted(tables.items(), key=lambda one: one[0].rsplit("/", 1)[-1].lower() != role):
                names = _names_by_lower_case(table.columns, file)
                is_named = role != "array" and key.rsplit("/", 1)[-1].lower() == role
                known_by_name = is_named and any(one.lower() in names for one in QUANTITIES[role])
                if role not in found and (known_by_name or all(one.lower() in names for one in needed)):
                    wanted = (*QUANTITIES[role], *(OF_STATIONS if role == "array" else ()))
                    found[role] = key, table, {one: names[one.lower()] for one in wanted if one.lower() in names}
        if "array" not in found:
            held = "; ".join(f"{key or '/'}: {', '.join(list(t.columns)[:12])}" for key, t in tables.items())
            raise InputError(
                f"{file} has no table with the columns {', '.join(NEEDED['array'])} ({UNCHECKED}); found "
                f"{held or 'no table'}"
            )
        mapping = _mapping(file, {key: role for role, (key, *_) in found.items()}, tables)
        _, array, columns = found["array"]
        if mapping is None and MAPPING in tables:
            raise InputError(f"{file.with_name(MAPPING + '.txt')} has no column 'array'")
        if mapping is None:
            n, separate = array.length, [key for role, (key, t, _) in found.items() if t is not array]
            if separate:
                tell(f"{file.name} has no {MAPPING}: {', '.join(separate)} cannot be joined to the events, left out")
            rows = {role: np.arange(n) for role, (_, table, _) in found.items() if table is array}
        else:
            has_array = mapping["array"] >= 0
            if not has_array.all():
                lost, n = int((~has_array).sum()), len(has_array)
                tell(f"{lost:,} of {n:,} events have no array data and are left out")
            rows = {role: values[has_array] for role, values in mapping.items() if role in found}
            n = int(has_array.sum())
            for role, values in rows.items():
                key, table, _ = found[role]
                if values.max(initial=-1) >= table.length:
                    largest = int(values.max())
                    raise InputError(
                        f"{file}: table {key} has {table.length} rows, but {MAPPING} beside it asks for row {largest}"
                    )
        for signal in SIGNALS:
            if signal in columns and array.columns[columns[signal]] != (KASCADE.n_stations,):
                shape = array.columns[columns.pop(signal)]
                tell(f"{signal} of {file.name} is left out: {shape} values an event, expected {KASCADE.n_stations}")
        everything = {column.lower() for table in tables.values() for column in table.columns}
        is_simulated = TRUE_ENERGY.lower() in everything
        return cls(name, file, {role: found[role][1:] for role in rows}, rows, n, is_simulated)

    @cached_property
    def units(self) -> dict[str, str]:
        """Column to unit."""
        names = [name for _, columns in self.tables.values() for name in columns]
        result = {name: (UNITS | KCDC_UNITS)[name] for name in names if name not in OF_STATIONS}
        return result | ({DEPOSITS: UNITS[DEPOSITS]} if set(SIGNALS) <= set(names) else {})

    def chunks(self, names: Sequence[str]) -> Iterator[dict[str, np.ndarray]]:
        """Yield columns of consecutive events; a quantity of a table that has no row of the event is NaN or null."""
        size = GRID_EVENTS if DEPOSITS in names else TABLE_EVENTS
        cell_of = self._cell_of_station if DEPOSITS in names else np.empty(0, np.int64)
        wanted = [*(name for name in names if name != DEPOSITS), *(SIGNALS if DEPOSITS in names else ())]
        for start in range(0, self.n_events, size):
            stop = min(start + size, self.n_events)
            chunk = self._read(wanted, start, stop)
            if DEPOSITS in names:
                grids = np.zeros((stop - start, KASCADE.x_m.size, len(SIGNALS)), np.float32)
                for channel, signal in enumerate(SIGNALS):
                    grids[:, cell_of, channel] = chunk.pop(signal)
                chunk[DEPOSITS] = grids.reshape(-1, *KASCADE.grid_shape)
            yield {name: chunk[name] for name in names}

    def _read(self, names: Sequence[str], start: int, stop: int) -> dict[str, np.ndarray]:
        columns_read = {}
        for role, (table, columns) in self.tables.items():
            wanted = [name for name in names if name in columns]
            if not wanted:
                continue
            rows = self.rows[role][start:stop]
            has_row = rows >= 0
            first, last = (int(rows[has_row].min()), int(rows.max()) + 1) if has_row.any() else (0, 1)
            try:
                part = table.read([columns[name] for name in wanted], first, min(last, table.length))
            except Exception as error:  # libraries raise nearly anything where data are damaged
                why = " ".join(str(error).split())[:120]
                raise InputError(f"{self.file}: rows from {first} of its table {role} cannot be read: {why}") from None
            complete = self._complete[role]
            for name in wanted:
                values = _decoded(part[columns[name]])
                columns_read[name] = (
                    values[rows - first] if complete else _take_or_missing(values, rows - first, has_row)
                )
        return columns_read

    @cached_property
    def _complete(self) -> dict[str, bool]:
        """Whether every event has a row, by role: columns have one type in all chunks."""
        return {role: bool((rows >= 0).all()) for role, rows in self.rows.items()}

    @cached_property
    def azimuth(self) -> AzimuthConvention:
        """How azimuths count, by the arrival times of the first events; unknown where there are none by station."""
        table, columns = self.tables["array"]
        unknown = AzimuthConvention(0, 1, 0.0, 0.0)
        if not {*SIGNALS, ARRIVAL} <= columns.keys() or not self.n_events:
            return unknown
        by_number = table.columns[columns[ARRIVAL]] != (KASCADE.n_stations,)
        if by_number and ARRIVAL_STATIONS not in columns:
            return unknown
        names = (SIGNALS[0], ARRIVAL, *([ARRIVAL_STATIONS] if by_number else []), "Az", "Ze")
        first = self._read(names, 0, min(FRONT_EVENTS, self.n_events))
        times = np.full((len(first["Az"]), KASCADE.x_m.size), np.nan)
        hit = np.zeros(times.shape, bool)
        hit[:, self._cell_of_station] = np.nan_to_num(first[SIGNALS[0]].astype(np.float64)) > 0
        if by_number:
            for row, (arrived, numbers) in enumerate(zip(first[ARRIVAL], first[ARRIVAL_STATIONS], strict=True)):
                numbers = np.asarray(numbers, np.int64)
                if len(numbers) != len(arrived) or not ((numbers >= 1) & (numbers <= KASCADE.n_stations)).all():
                    return unknown
                times[row, self._cell_of_station[numbers - 1]] = arrived
        else:
            times[:, self._cell_of_station] = first[ARRIVAL]
        shape = (-1, *KASCADE.grid_shape[:2])
        front = front_azimuth(times.reshape(shape), hit.reshape(shape), KASCADE.x_m, KASCADE.y_m)
        return azimuth_convention(front, first["Az"].astype(np.float64), first["Ze"].astype(np.float64))

    @cached_property
    def _cell_of_station(self) -> np.ndarray:
        return stations_by_cores(
            (self._read((SIGNALS[0], "Xc", "Yc"), k, min(k + GRID_EVENTS, self.n_events))
             for k in range(0, self.n_events, GRID_EVENTS)),
            self.file,
        )  # fmt: skip


def _take_or_missing(values: np.ndarray, rows: np.ndarray, has_row: np.ndarray) -> np.ndarray:
    """Return values of rows (n,), NaN or None where there is no row."""
    if values.dtype.kind in "OU":
        taken = np.full(len(rows), None, object)
    else:
        if values.dtype.kind in "iu" and values.size and np.abs(values.astype(np.float64)).max() > 2**53:
            raise InputError(f"whole numbers such as {values.max()} are too large beside events that have none")
        taken = np.full((len(rows), *values.shape[1:]), np.nan)
    taken[has_row] = values[rows[has_row]]
    return taken


def _decoded(values: np.ndarray) -> np.ndarray:
    """Return text as text: HDF5 stores bytes."""
    if values.dtype.kind not in "SO":
        return values
    return np.array(
        [one.decode(errors="replace") if isinstance(one, bytes) else one for one in values.tolist()], object
    )


def _names_by_lower_case(columns: Iterable[str], file: Path) -> dict[str, str]:
    """Return names as they are stored by those in small letters, or refuse two that differ in case alone."""
    stored_names: dict[str, str] = {}
    for name in columns:
        if stored_names.setdefault(name.lower(), name) != name:
            raise InputError(
                f"{file}: columns {stored_names[name.lower()]!r} and {name!r} differ in case alone: rename one"
            )
    return stored_names


def _mapping(file: Path, role_of: Mapping[str, str], tables: Mapping[str, Table]) -> dict[str, np.ndarray] | None:
    """Return each event's row (n,) int64 in each table by its role; None where no table says."""
    for key, table in tables.items():
        role_of_name = {one.rsplit("/", 1)[-1].lower(): role for one, role in role_of.items()}
        names = {role_of_name[name.lower()]: name for name in table.columns if name.lower() in role_of_name}
        if "array" in names and (key.rsplit("/", 1)[-1].lower() == MAPPING or len(names) > 1):
            stored = table.read(list(names.values()), 0, table.length)
            return {
                role: _row_numbers(stored[name], f"{file}: {key}, column {name}", once=role in ("array", "general"))
                for role, name in names.items()
            }
    return None


def _row_numbers(stored: np.ndarray, where: str, *, once: bool) -> np.ndarray:
    """Return row numbers (n,) int64, -1 for none, or refuse what is none, or where asked there twice."""
    try:
        rows = np.nan_to_num(stored.astype(float), nan=-1.0)  # a gap is none, too
    except (ValueError, TypeError):
        raise InputError(f"{where} holds other things than row numbers") from None
    wrong = np.flatnonzero(~((rows >= -1) & (rows < 2**53) & (rows == np.floor(rows))))
    if wrong.size:
        raise InputError(f"{where}, row {wrong[0]} holds {stored[wrong[0]]}, expected a row number, or -1 for none")
    numbers, counts = np.unique(rows[rows >= 0], return_counts=True)
    if once and (counts > 1).any():
        raise InputError(f"{where} gives row {int(numbers[counts > 1][0])} to several events")
    return rows.astype(np.int64)


REACH_M = 25.0
"""Distance from a core at which half of the nearness is left."""


def stations_by_cores(chunks: Iterable[dict[str, np.ndarray]], file: Path) -> np.ndarray:
    """Return the cell (n_stations,) of each station number, from where the showers fell that it saw.

    Chunks of consecutive events have ``EDeposit`` (n, n_stations) MeV, ``Xc`` and ``Yc`` (n,) m; ``file`` is for
    messages. If two halves of the events do not give the same answer (too few, or no deposits by station), they are
    refused.

    Over events, ln(1 + deposit / MeV) of a number, less the event's mean over stations, is correlated with the
    nearness 1 / (1 + (r / 25 m)^2) of a place, r from the core. Of all assignments of numbers to places the one with
    the largest sum of correlations is taken.
    """
    cells = np.flatnonzero(KASCADE.has_station.ravel())
    x, y = KASCADE.x_m.ravel()[cells], KASCADE.y_m.ravel()[cells]
    sums = np.zeros((2, 1 + 2 * len(cells), 1 + 2 * len(cells)))
    for chunk in chunks:
        signal = np.log1p(np.maximum(np.nan_to_num(np.asarray(chunk[SIGNALS[0]], np.float64)), 0.0))
        signal -= signal.mean(axis=1, keepdims=True)
        r = np.hypot(np.asarray(chunk["Xc"])[:, None] - x, np.asarray(chunk["Yc"])[:, None] - y)
        nearness = 1 / (1 + (r / REACH_M) ** 2)
        good = np.isfinite(nearness).all(axis=1)
        values = np.column_stack([np.ones(good.sum()), signal[good], nearness[good]])
        for k, half in enumerate(sums):
            half += values[k::2].T @ values[k::2]
    from scipy.optimize import linear_sum_assignment

    correlation = [_correlations(half) for half in sums]
    assignments = [linear_sum_assignment(-values)[1] for values in correlation]
    differing = int((assignments[0] != assignments[1]).sum())
    if differing:
        raise InputError(
            f"{file}: {sums[:, 0, 0].sum():,.0f} showers do not tell which station is which ({differing} of "
            f"{len(cells)} stand elsewhere in one half of them): ask KCDC for more, or is EDeposit not in MeV by "
            "station?"
        )
    return cells[linear_sum_assignment(-sum(correlation))[1]]


def _correlations(products: np.ndarray) -> np.ndarray:
    """Return the correlation of every signal with every nearness, (n, n); 0 where a signal never changes.

    From the sums over events of the products (1 + 2 n, 1 + 2 n) of 1, n signals and n nearnesses.
    """
    n_events, n = max(products[0, 0], 1), len(products) // 2
    mean = products[0] / n_events
    covariance = products / n_events - np.outer(mean, mean)
    variance = np.diag(covariance)
    scale = np.sqrt(np.maximum(np.outer(variance[1 : n + 1], variance[n + 1 :]), 1e-24))
    return np.divide(covariance[1 : n + 1, n + 1 :], scale)


FORMAT = KcdcDownload()
