"""HiSPARC's event summary data, as hisparc-sapphire's HDF5 files hold them: one table for each station.

An ``events`` table has ``ext_timestamp`` (ns), ``n1`` to ``n4`` (particles in each plate) and ``t1`` to ``t4`` (ns, the
first particle's). A plate that a station does not have reads -1 in all events, and its columns are left out; one
without a time reads -999, which becomes NaN. ``timestamp`` counts the seconds of GPS time as Unix counts those of UTC.

The time column is of an HDF5 type that NumPy does not have: h5py raises a TypeError as soon as a table's type is asked
for. Columns are therefore read by a type that is built of the stored ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from showerstack.runtime.errors import InputError
from showerstack.runtime.tables import damage_as_input_error
from showerstack.showers.archives.formats import TABLE_EVENTS
from showerstack.showers.array import KASCADE, DetectorArray

TABLE = "events"
PLATES = range(1, 5)
NEEDED = {"event_id", "timestamp", "nanoseconds", "ext_timestamp"}
GPS_TIME = "since 1970, GPS time"
HISPARC_UNITS = {
    "event_id": "", "timestamp": f"s {GPS_TIME}", "nanoseconds": "ns", "ext_timestamp": f"ns {GPS_TIME}",
    **{f"n{k}": "particles" for k in PLATES}, **{f"t{k}": "ns" for k in PLATES}, "t_trigger": "ns",
}  # fmt: skip
"""Columns that are taken."""
NO_PLATE, NO_TIME = -1.0, -999.0


class HisparcData:
    """The format."""

    name = "HiSPARC event summary data"
    holds = "an HDF5 file of hisparc-sapphire with tables of events"
    is_foreign = True

    def accepts(self, path: Path) -> bool:
        """Return whether a path is an HDF5 file with such a table."""
        if path.suffix.lower() not in (".h5", ".hdf5") or not path.is_file() or find_spec("h5py") is None:
            return False
        try:
            return bool(_tables(path))
        except OSError:
            return False
        except (KeyError, RuntimeError, TypeError, ValueError):  # of a damaged file: open says it
            return True

    def open(self, path: Path, tell: Callable[[str], None] = lambda line: None) -> list[HisparcEvents]:
        """Open every table of events; those that were not reduced to particles and times are left out."""
        with _reading(path):
            tables = {place: columns for place, columns in _tables(path).items() if "n1" in columns}
        if not tables:
            raise InputError(f"{path}: its events have no numbers of particles (n1 ...): process them with sapphire")
        # Stations of several clusters or runs have the same names: then the groups above tell them apart.
        groups = [place.strip("/").split("/")[:-1] for place in tables]
        depth = 1
        while len({tuple(one[-depth:]) for one in groups}) < len(groups):
            depth += 1
        parts = [["_".join(one[-depth:])] if one and len(tables) > 1 else [] for one in groups]
        return [
            HisparcEvents.of("_".join([path.stem, *part]), path, place, columns)
            for part, (place, columns) in zip(parts, tables.items(), strict=True)
        ]

    def next_commands(self, path: Path) -> list[str]:
        """Return the command that writes a table."""
        return [f"python cli.py convert {path} --out data"]


FORMAT = HisparcData()


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn what h5py raises of a damaged file into an :class:`InputError`."""
    with damage_as_input_error(path):
        try:
            yield
        except (KeyError, RuntimeError, TypeError) as error:
            raise OSError(str(error)) from error


def _tables(path: Path) -> dict[str, list[str]]:
    """Return place in the file and columns of each table of events."""
    h5py = import_module("h5py")
    found: dict[str, list[str]] = {}

    def look(place: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and place.rpartition("/")[2] == TABLE:
            stored = item.id.get_type()
            if isinstance(stored, h5py.h5t.TypeCompoundID):
                names = [stored.get_member_name(k).decode() for k in range(stored.get_nmembers())]
                # KASCADE's events in HiSPARC's files have no plates.
                if set(names) >= NEEDED and {"n1", "pulseheights"} & set(names):
                    found[place] = names

    with h5py.File(path, "r") as opened:
        opened.visititems(look)
    return found


def read_columns(dataset: Any, names: Sequence[str], start: int, stop: int) -> dict[str, np.ndarray]:
    """Return columns of consecutive rows of a table (h5py.Dataset), times as whole numbers."""
    h5t, h5s = (import_module(f"h5py.{module}") for module in ("h5t", "h5s"))
    stored = dataset.id.get_type()
    members = {name: stored.get_member_type(stored.get_member_index(name.encode())) for name in names}
    times = {name for name, kind in members.items() if kind.get_class() == h5t.TIME}
    types = {name: np.dtype(f"i{kind.get_size()}") if name in times else kind.dtype for name, kind in members.items()}
    if strange := next((name for name, kind in types.items() if kind.kind not in "iuf" or kind.shape), None):
        raise InputError(f"{dataset.file.filename}: column {strange} of {dataset.name} holds no numbers")
    rows = np.zeros(stop - start, dtype=list(types.items()))
    offsets = {name: place for name, (_, place, *_) in (rows.dtype.fields or {}).items()}
    memory = h5t.create(h5t.COMPOUND, rows.dtype.itemsize)
    for name, kind in members.items():
        memory.insert(name.encode(), offsets[name], kind if name in times else h5t.py_create(types[name]))
    space = dataset.id.get_space()
    space.select_hyperslab((start,), (stop - start,))
    dataset.id.read(h5s.create_simple((stop - start,)), space, rows, mtype=memory)
    return {name: np.ascontiguousarray(rows[name]) for name in names}


@dataclass(frozen=True)
class HisparcEvents:
    """Events of one station."""

    name: str
    path: Path
    place: str
    """Of the table in the file."""
    n_events: int
    columns: tuple[str, ...]
    array: DetectorArray = KASCADE
    is_simulated: bool = False

    @classmethod
    def of(cls, name: str, path: Path, place: str, columns: Sequence[str]) -> HisparcEvents:
        """Open a table; columns of plates that the station does not have are left out."""
        with _reading(path), import_module("h5py").File(path, "r") as opened:
            shape = opened[place].shape
            if shape is None or len(shape) != 1:
                raise InputError(f"{path}: {place} is no table of events: it has shape {shape}")
            n_events = shape[0]
            if not n_events:
                raise InputError(f"{path}: {place} has no events")
            plates = [f"n{k}" for k in PLATES if f"n{k}" in columns]
            counts = read_columns(opened[place], plates, 0, n_events)
        missing = {plate[1:] for plate, values in counts.items() if (values == NO_PLATE).all()}
        there = [one for one in HISPARC_UNITS if one in columns and not (one[1:] in missing and one[0] in "nt")]
        return cls(name, path, place, n_events, tuple(there))

    @property
    def units(self) -> dict[str, str]:
        """Column to unit."""
        return {name: HISPARC_UNITS[name] for name in self.columns}

    def chunks(self, names: Sequence[str]) -> Iterator[dict[str, np.ndarray]]:
        """Yield columns of consecutive events; what a plate does not say is NaN."""
        for start in range(0, self.n_events, TABLE_EVENTS):
            with _reading(self.path), import_module("h5py").File(self.path, "r") as opened:
                stop = min(start + TABLE_EVENTS, self.n_events)
                values = read_columns(opened[self.place], names, start, stop)
            for name in names:
                if values[name].dtype.kind == "f":
                    unknown = (values[name] == NO_TIME) | ((values[name] == NO_PLATE) & (name[0] == "n"))
                    values[name] = np.where(unknown, np.nan, values[name])
            yield values
