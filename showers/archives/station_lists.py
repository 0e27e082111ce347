"""Events as lists of hit stations, of any array: three Parquet files become a dataset folder with its own array.

``stations.parquet``: ``id``, ``x_m``, ``y_m``, and ``electron_area_m2``, ``muon_area_m2`` or both.
``signals.parquet``: a row for each hit station of an event, ``event``, ``station``, ``electron_mev``, ``muon_mev``
(``electron_mip`` and so on where ``array.toml`` says this unit) and, where known, ``time_ns`` of the first particle.
``events.parquet``: ``event``; where known the reconstructed ``Ze``, ``Az`` deg, ``E`` lg(E/eV), ``Ne``, ``Nmu`` lg,
``label`` (class number of the task), ``group`` (number or text, equal where events are of one simulated shower that was
used several times) and ``time_s`` (UTC, seconds since 1970, or a datetime). Columns of other names are named once.
Without ``Ze`` and ``Az``, or where an event lacks one, they are those of the front fitted to the times. Without times
showers of lists without these columns are taken as vertical, and events that lack a value are not used.
``array.toml``: the array's card (:mod:`showerstack.showers.card`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from showerstack.runtime.errors import InputError, most_similar
from showerstack.runtime.logs import remark
from showerstack.showers.archives.formats import (
    DEPOSITS,
    DIRECTION,
    EVENT_TIME,
    GRID_EVENTS,
    GROUP,
    LABEL,
    UNITS,
    numbers_of_labels,
)
from showerstack.showers.array import DetectorArray
from showerstack.showers.card import CARD_FILE, NO_CARD, ArrayCard, altitude_remarks, read_card
from showerstack.showers.card import UNITS as CARD_UNITS
from showerstack.showers.dataset import Dataset
from showerstack.showers.front import front_of
from showerstack.showers.schema import COMPOSITION, GAMMA, SCALAR_NAMES
from showerstack.showers.units import pitch_remarks
from showerstack.showers.writer import ARRIVAL_STEM

LOG = logging.getLogger(__name__)
FILES = {
    "stations": ("id", "x_m", "y_m"),
    "signals": ("event", "station"),
    "events": ("event",),
}
"""Columns that each file needs."""
EXACT = 2**53
"""Whole numbers in floats from here on may be those of several events."""
KEYS = ("id", "station", "event")
"""Columns by which the files are joined: whole numbers or text."""
AREAS = ("electron_area_m2", "muon_area_m2")
"""Columns of areas, by channel; one is enough."""
CHANNELS = {unit: (f"electron_{unit}", f"muon_{unit}") for unit in CARD_UNITS}
"""Columns of signals, by unit and channel; one is enough."""
TIME = "time_ns"
"""Column of arrival times."""
USED = {
    "stations": ("id", "x_m", "y_m", *AREAS),
    "signals": ("event", "station", TIME, *(name for names in CHANNELS.values() for name in names)),
    "events": ("event", LABEL, GROUP, EVENT_TIME, *SCALAR_NAMES),
}
"""Columns that each file may have."""
MEANT = {"time": EVENT_TIME, "t": TIME, "timestamp": EVENT_TIME, "zenith": "Ze", "azimuth": "Az", "energy": "E"}
"""Names of columns that may mean one of ours, beside similar ones."""
NUMBERS = (TIME, "x_m", "y_m", *AREAS, *(name for names in CHANNELS.values() for name in names), *SCALAR_NAMES)
COARSEST_NS = 0.5
"""Floats of times that lie further apart lose directions."""
MANY_TIMES, MOST_NONE, RATIO_NONE, LEAST_NONE = 100, 3, 5.0, 20
"""Times from which is looked for values that mean none; so many such values at most, each so many times as frequent as
any other value, and by so many more."""
SAME_PLACE = 1e-3
"""Stations that are no further apart, in usual distances to the nearest one, stand on one place."""


class StationLists:
    """The format."""

    name = "station lists"
    holds = ", ".join(f"{name}.parquet" for name in FILES)
    is_foreign = True

    def accepts(self, path: Path) -> bool:
        """Return whether a folder holds the three files."""
        return all((path / f"{name}.parquet").is_file() for name in FILES)

    def open(self, path: Path, tell: Callable[[str], None] = lambda line: None) -> list[ListedEvents]:
        """Open the lists.

        Raises
        ------
        InputError
            If a file lacks a column, holds an unknown station, or names an event or a station twice.
        """
        stations, signals, events = (_read(path / f"{name}.parquet", columns) for name, columns in FILES.items())
        _name_unused(path, {"stations": stations, "signals": signals, "events": events}, tell)
        events = _in_seconds(events, path / "events.parquet")
        for one, column in ((stations, "id"), (events, "event")):
            named, other = (signals["station" if column == "id" else column], one[column])
            if named.dtype != other.dtype:
                raise InputError(f"{path}: signals.parquet has {named.name} {named[0]!r}, the other file {other[0]!r}")
        _refuse_twice(stations, "id", path / "stations.parquet")
        _refuse_twice(events, "event", path / "events.parquet")
        if GROUP in events.columns:
            events = events.with_columns(_key(events[GROUP], path / "events.parquet").rank("dense").cast(pl.Int64))
        array, cell_of = _array_in(path, stations)
        for line in _card_remarks(path, array):
            tell(line)
        signals = _in_mev(signals, array, path)
        cells = stations.select("id").with_columns(pl.Series("cell", cell_of)).rename({"id": "station"})
        numbered = events.select("event").with_row_index("row")
        placed = signals.join(cells, on="station", how="left", maintain_order="left")
        strange = placed.filter(pl.col("cell").is_null())
        if strange.height:
            raise InputError(f"{path / 'signals.parquet'}: station {strange['station'][0]} is not in stations.parquet")
        placed = placed.join(numbered, on="event", how="inner").sort("row")
        if not placed.height:
            here, there = signals["event"][0], events["event"][0]
            raise InputError(f"{path}: no signal is of an event: signals.parquet has event {here!r}, events {there!r}")
        if placed.height < signals.height:
            tell(f"{signals.height - placed.height:,} signals are of events that events.parquet does not have")
        silent = events.height - placed["row"].n_unique()
        if silent:
            tell(f"{silent:,} of {events.height:,} events have no signal in signals.parquet")
        if placed.select("row", "cell").is_duplicated().any():
            raise InputError(f"{path / 'signals.parquet'}: a station appears twice in one event")
        if TIME in placed.columns:
            placed = _after_the_first(placed, path / "signals.parquet", tell)
        listed = ListedEvents(path.resolve().name, array, events, placed)
        return [listed.with_directions(tell) if TIME in signals.columns else listed]

    def next_commands(self, path: Path) -> list[str]:
        """Return the command that writes a dataset folder."""
        labels = set(_read(path / "events.parquet", FILES["events"]).to_dict(as_series=False).get(LABEL, []))
        fitting = [task.name for task in (GAMMA, COMPOSITION) if labels and labels <= numbers_of_labels(task).keys()]
        # Two classes alone may be protons and helium nuclei.
        fitting.sort(key=lambda name: not path.resolve().name.startswith(name))
        chosen = f" --task {fitting[0]}" if fitting else ""
        return [f"python cli.py convert {path}{chosen} --out data"]


@dataclass(frozen=True)
class ListedEvents:
    """Events of an array of any form."""

    name: str
    array: DetectorArray
    events: pl.DataFrame
    signals: pl.DataFrame
    """``row``, ``cell`` and deposits, sorted by ``row``."""

    @property
    def n_events(self) -> int:
        """How many there are."""
        return self.events.height

    @property
    def is_simulated(self) -> bool:
        """Whether the classes are known."""
        return LABEL in self.events.columns

    @property
    def units(self) -> dict[str, str]:
        """Column to unit."""
        times = [ARRIVAL_STEM] if TIME in self.signals.columns else []
        return {name: UNITS[name] for name in (*self.events.columns, DEPOSITS, *times) if name in UNITS}

    def with_directions(self, tell: Callable[[str], None]) -> ListedEvents:
        """Return the events with zenith and azimuth of their fronts where one of these is missing.

        They are NaN where times show none.
        """
        given = np.full((self.n_events, len(DIRECTION)), np.nan)
        if set(DIRECTION) <= set(self.events.columns):
            given = self.events.select(DIRECTION).cast(pl.Float64).fill_null(np.nan).to_numpy()
        lacking = ~np.isfinite(given).all(axis=1)
        if not lacking.any():
            return self
        directions = [
            np.column_stack(front_of(self.array, chunk[DEPOSITS], chunk[ARRIVAL_STEM]).zenith_azimuth_deg())
            for chunk in self.chunks([DEPOSITS, ARRIVAL_STEM])
        ]
        found = np.where(lacking[:, None], np.concatenate(directions).astype(np.float64), given)
        lost = int(np.isnan(found[:, 0]).sum())
        of = "" if lacking.all() else f" of {int(lacking.sum()):,} events without Ze or Az"
        line = f"{self.name}: directions{of} are fitted to the arrival times"
        tell(line + (f", but in {lost:,} events" if lost else ""))
        columns = {name: found[:, k] for k, name in enumerate(DIRECTION)}
        return replace(self, events=self.events.with_columns(**columns))

    def chunks(self, names: Sequence[str]) -> Iterator[dict[str, np.ndarray]]:
        """Yield columns of consecutive events."""
        rows, cell = self.signals["row"].to_numpy(), self.signals["cell"].to_numpy()
        # A deposit that is not known is none of 0; a detector that is not there has none.
        there = [area.ravel()[cell] > 0 for area in (self.array.electron_area_m2, self.array.muon_area_m2)]
        values = {
            channel: np.where(np.isnan(known) & ~there[channel], 0, known)
            for channel, name in enumerate(CHANNELS["mev"])
            if name in self.signals.columns
            for known in [self.signals[name].cast(pl.Float32).fill_null(np.nan).to_numpy()]
        }
        for start in range(0, self.n_events, GRID_EVENTS):
            stop = min(start + GRID_EVENTS, self.n_events)
            plain = [name for name in names if name not in (DEPOSITS, ARRIVAL_STEM)]
            chunk = {name: self.events[name][start:stop].to_numpy() for name in plain}
            here = slice(*np.searchsorted(rows, [start, stop]).tolist())
            if ARRIVAL_STEM in names:
                times = np.full((stop - start, self.array.x_m.size), np.nan, np.float32)
                times[rows[here] - start, cell[here]] = self.signals[TIME][here].fill_null(np.nan).to_numpy()
                chunk[ARRIVAL_STEM] = times.reshape(stop - start, *self.array.grid_shape[:2])
            if DEPOSITS in names:
                grids = np.zeros((stop - start, self.array.x_m.size, 2), np.float32)
                for channel, of_all in values.items():
                    grids[rows[here] - start, cell[here], channel] = of_all[here]
                chunk[DEPOSITS] = grids.reshape(stop - start, *self.array.grid_shape)
            yield {name: chunk[name] for name in names}


def _name_unused(folder: Path, tables: Mapping[str, pl.DataFrame], tell: Callable[[str], None]) -> None:
    """Name the columns that are not used, and what may be meant."""
    for name, table in tables.items():
        unused = [column for column in table.columns if column not in USED[name]]
        if not unused:
            continue
        free = [column for column in USED[name] if column not in table.columns]
        hints = []
        for column in unused:
            meant = next((free_name for word, free_name in MEANT.items() if word in column.lower().split("_")), None)
            meant = meant if meant in free else most_similar(column, free)
            hints += [f"{column} (did you mean {meant}?)" if meant else column]
        weights = "; showers get weights by convert --slope, tables by --weight" if "weight" in unused else ""
        tell(f"{folder / f'{name}.parquet'}: not used: {', '.join(hints)}{weights}")


def _in_seconds(events: pl.DataFrame, file: Path) -> pl.DataFrame:
    """Return events whose times, if there are any, are float64 seconds since 1970."""
    if EVENT_TIME not in events.columns:
        return events
    times = events[EVENT_TIME]
    if times.dtype == pl.Datetime:
        times = times.dt.convert_time_zone("UTC") if times.dtype.time_zone else times  # type: ignore[attr-defined]
        times = times.dt.epoch("us") / 1e6
    elif not times.dtype.is_numeric():
        raise InputError(f"{file}: column {EVENT_TIME} holds {times.dtype}, expected seconds since 1970, or datetimes")
    return events.with_columns(times.cast(pl.Float64).fill_null(np.nan).alias(EVENT_TIME))


def _after_the_first(placed: pl.DataFrame, file: Path, tell: Callable[[str], None]) -> pl.DataFrame:
    """Return signals with times after the first one of their event, float64 ns; null where a value means no time.

    Whole numbers are subtracted as such: those of nanoseconds since 1970 do not fit a float64.
    """
    times = placed[TIME]
    if times.dtype.is_float():
        times = times.cast(pl.Float64).fill_nan(None)
        times = times.set(times.is_infinite().fill_null(False), None)
        kind = np.float32 if placed[TIME].dtype == pl.Float32 else np.float64
        largest = kind(np.abs(times.drop_nulls().to_numpy()).max(initial=0.0))
        if np.spacing(largest) > COARSEST_NS:
            tell(
                f"{file}: column {TIME} holds floats near {largest:.3g}, in steps of {np.spacing(largest):.3g} ns: "
                "too coarse for directions; write whole numbers (int64)"
            )
    for value in _meaning_none(times, placed["row"]):
        is_none = (times == value).fill_null(False)
        tell(
            f"{file}: {is_none.sum():,} of {len(times):,} values of {TIME} are exactly {value:g}: they are taken for "
            '"no time"'
        )
        times = times.set(is_none, None)
    counted = placed.with_columns(times.alias(TIME))
    return counted.with_columns((pl.col(TIME) - pl.col(TIME).min().over("row")).cast(pl.Float64))


def _meaning_none(times: pl.Series, row: pl.Series) -> list[float]:
    """Return values that so many times have, and no others as often, that they mean that there is none.

    Such are 0, -1 and other values at an end of all times. One 0 an event may be its first station's.
    """
    frame = pl.DataFrame({"time": times, "row": row}).drop_nulls()
    if frame.height < MANY_TIMES:
        return []
    counts = frame["time"].value_counts(sort=True)
    if counts.height < MANY_TIMES // 2:
        return []
    firsts = frame.group_by("row").agg(pl.col("time").min())["time"]
    n_first = int((firsts == 0).sum())
    counts = counts.with_columns(
        n=pl.when(pl.col("time") == 0).then(pl.col("count").cast(pl.Int64) - n_first).otherwise("count")
    ).sort("n", descending=True)
    n, ends = counts["n"].to_list(), {frame["time"].min(), frame["time"].max()}
    for k in range(MOST_NONE, 0, -1):
        values = counts["time"][:k].to_list()
        if n[k - 1] > RATIO_NONE * n[k] + LEAST_NONE and all(one <= 0 or one in ends for one in values):
            return [float(one) for one in values]
    return []


def array_in(path: Path) -> DetectorArray:
    """Return the array that a table of stations lists, or that a dataset folder is of."""
    if path.is_dir():
        return Dataset.open(path, labels=False).array
    stations = _read(path, FILES["stations"])
    _refuse_twice(stations, "id", path)
    array = _array_in(path.parent, stations)[0]
    remark(LOG, [*pitch_remarks(str(path), array), *_card_remarks(path.parent, array)])
    return array


def _card_remarks(folder: Path, array: DetectorArray) -> list[str]:
    """Return a line on what is assumed of an array without a card, none of KASCADE's, or on the unit of an altitude."""
    if (folder / CARD_FILE).exists():
        return altitude_remarks(folder / CARD_FILE)
    if array.card != NO_CARD:
        return []
    response = array.response
    return [
        f"{folder.name} has no {CARD_FILE}: signals in MeV, KASCADE's detectors ({response.electron_deposit_mev:g} MeV "
        f"a particle, {response.muon_deposit_mev:g} a muon) and sea level are assumed; docs/arrays.md says what to give"
    ]


def _array_in(folder: Path, stations: pl.DataFrame) -> tuple[DetectorArray, np.ndarray]:
    """Return the array that a folder lists, with the card beside it, and the cell (n,) int64 of each station.

    Raises
    ------
    InputError
        For stations without a place or an area, or on the place of another one; a card that cannot be theirs.
    """
    file, card_file = folder / "stations.parquet", folder / CARD_FILE
    _check_stations(stations, file)
    named_card = read_card(card_file, stations.height) if card_file.exists() else (None, NO_CARD)
    array, cells = array_of_stations(folder.resolve().name, stations, named_card)
    reach = float(max(np.abs(array.x_m).max(), np.abs(array.y_m).max()))
    if array.core_limit_m < reach:
        raise InputError(
            f"{card_file}: [fit] core_limit_m is {array.core_limit_m:g}, but stations reach {reach:,.0f} m from their "
            "centre: is it the card of another array?"
        )
    return array, cells


def _check_stations(stations: pl.DataFrame, file: Path) -> None:
    areas = [name for name in AREAS if name in stations.columns]
    if not areas:
        raise InputError(f"{file} has neither {' nor '.join(AREAS)}: found {', '.join(stations.columns)}")
    values = stations.select("x_m", "y_m", *areas).cast(pl.Float64).fill_null(np.nan).to_numpy()
    for k, name in enumerate(("x_m", "y_m", *areas)):
        wrong = np.flatnonzero(~np.isfinite(values[:, k]) | ((values[:, k] < 0) & (k > 1)))
        if wrong.size:
            row, what = wrong[0], "m" if k < 2 else "m2, not negative"
            raise InputError(f"{file}: row {row}, column {name} holds {values[row, k]:g}, expected a number of {what}")
    nothing = np.flatnonzero(~(values[:, 2:] > 0).any(axis=1))
    if nothing.size:
        row = nothing[0]
        raise InputError(
            f"{file}: row {row}, station {stations['id'][int(row)]} has an area of 0 m2 ({nothing.size} such rows): "
            "leave it out"
        )
    apart = np.hypot(*(values[:, k][:, None] - values[:, k] for k in (0, 1))) + np.diag(np.full(len(values), np.inf))
    close = np.argwhere(np.triu(apart <= SAME_PLACE * np.median(apart.min(axis=1)), 1))
    if len(close):
        first, second = close[0].tolist()
        ids = stations["id"]
        raise InputError(
            f"{file}: rows {first} and {second}, stations {ids[first]} and {ids[second]}, stand on one place "
            f"({values[first, 0]:g} m, {values[first, 1]:g} m): {len(close)} such pairs; give one row a station"
        )


def _in_mev(signals: pl.DataFrame, array: DetectorArray, folder: Path) -> pl.DataFrame:
    """Return signals in MeV, whatever unit the array's card names: those of a particle are its mean deposit."""
    file, unit = folder / "signals.parquet", array.card.unit
    named = [name for name in CHANNELS[unit] if name in signals.columns]
    if not named:
        other = [one for one, names in CHANNELS.items() if set(names) & set(signals.columns)]
        found = f": found {', '.join(signals.columns)}"
        hint = f': say unit = "{other[0]}" in {folder / CARD_FILE}' if other else found
        raise InputError(f"{file} has no column {' or '.join(CHANNELS[unit])}{hint}")
    if unit == "mev":
        return signals
    response = array.response
    deposits = (response.electron_deposit_mev, response.muon_deposit_mev)
    return signals.with_columns(
        (pl.col(name) * deposit).alias(in_mev)
        for name, in_mev, deposit in zip(CHANNELS[unit], CHANNELS["mev"], deposits, strict=True)
        if name in named
    )


def _refuse_twice(table: pl.DataFrame, column: str, file: Path) -> None:
    twice = table.filter(pl.col(column).is_duplicated())
    if twice.height:
        raise InputError(f"{file}: {column} {twice[column][0]} appears more than once")


def array_of_stations(
    name: str, stations: pl.DataFrame, named_card: tuple[str | None, ArrayCard] = (None, NO_CARD)
) -> tuple[DetectorArray, np.ndarray]:
    """Return the array of listed stations, and the cell (n,) int64 of each; its card's name counts before ``name``.

    Cells are filled row by row in the order of the ids, whatever the order of the list and the positions are; those
    that are left have no station. Positions count from the mean of all.
    """
    n = stations.height
    order = stations["id"].arg_sort().to_numpy()
    stations = stations[order]
    columns = math.ceil(math.sqrt(n))
    shape = (math.ceil(n / columns), columns)
    x, y = (stations[axis].cast(pl.Float64).to_numpy() for axis in ("x_m", "y_m"))
    x, y = x - x.mean(), y - y.mean()
    distance = np.hypot(x[:, None] - x, y[:, None] - y) + np.diag(np.full(n, np.inf))

    def plane(values: np.ndarray) -> np.ndarray:
        filled = np.zeros(shape[0] * shape[1])
        filled[:n] = values
        return filled.reshape(shape)

    electron, muon = (
        (stations[name] if name in stations.columns else pl.Series(np.zeros(n))).cast(pl.Float64).to_numpy()
        for name in AREAS
    )
    array = DetectorArray(
        name=named_card[0] or name,
        pitch_m=float(np.median(distance.min(axis=1))) if n > 1 else 1.0,
        x_m=plane(x),
        y_m=plane(y),
        electron_area_m2=plane(electron),
        muon_area_m2=plane(muon),
        cluster=np.zeros(shape, np.int64),
        card=named_card[1],
    )
    return array, np.argsort(order)


def _read(file: Path, columns: tuple[str, ...]) -> pl.DataFrame:
    try:
        table = pl.read_parquet(file, glob=False)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"{file} cannot be read as Parquet: {str(error).splitlines()[0]}") from None
    missing = [name for name in columns if name not in table.columns]
    if missing:
        raise InputError(f"{file} has no column {missing[0]}: found {', '.join(table.columns)}")
    if not table.height:
        raise InputError(f"{file} has no rows")
    for name in table.columns:
        if name in NUMBERS and not table[name].dtype.is_numeric():
            raise InputError(f"{file}: column {name} holds {table[name].dtype}, expected numbers")
    keys = (name for name in KEYS if name in table.columns)
    return table.with_columns(_key(table[name], file) for name in keys)


def _key(values: pl.Series, file: Path) -> pl.Series:
    """Return numbers of events or stations as whole numbers, whatever type of number a file has; text stays text."""
    if values.dtype in (pl.String, pl.Categorical, pl.Enum):
        whole = values = values.cast(pl.String)
        wrong = values.is_null()
    elif values.dtype.is_numeric():
        whole = values.cast(pl.Int128, strict=False)
        wrong = whole.is_null() | (whole != values)
        if values.dtype.is_float():
            wrong |= values.abs() >= EXACT
    else:
        raise InputError(f"{file}: column {values.name} holds {values.dtype}, expected whole numbers or text")
    wrong = wrong.fill_null(True)
    if wrong.any():
        row = int(wrong.arg_true()[0])
        raise InputError(
            f"{file}: row {row}, column {values.name} holds {values[row]!r}, expected a whole number or text"
        )
    return whole


FORMAT = StationLists()
