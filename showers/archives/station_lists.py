"""Events as lists of hit stations, of any array: three Parquet files become a dataset folder with its own array.

``stations.parquet``: ``id``, ``x_m``, ``y_m``, ``electron_area_m2`` and, where there are muon detectors,
``muon_area_m2``. ``signals.parquet``: a row for each hit station of an event, ``event``, ``station``, ``electron_mev``,
``muon_mev`` (other columns, such as arrival times, are not used). ``events.parquet``: ``event`` and the reconstructed
``E`` lg(E/eV), ``Ze``, ``Az`` deg, ``Ne``, ``Nmu`` lg; where known ``label`` (class number of the task).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl

from runtime.errors import InputError
from showers.array import DetectorArray
from showers.protocols import Layout
from showers.schema import CONVERSION, SCALAR_NAMES, Task
from showers.writer import write_dataset

FILES = {
    "stations": ("id", "x_m", "y_m", "electron_area_m2"),
    "signals": ("event", "station", "electron_mev"),
    "events": ("event", *SCALAR_NAMES),
}
"""Columns that each file needs."""
EVENTS_AT_ONCE = 8_192


class StationLists:
    """The format."""

    name = "station lists"
    holds = ", ".join(f"{name}.parquet" for name in FILES)

    def accepts(self, path: Path) -> bool:
        """Return whether a folder holds the three files."""
        return all((path / f"{name}.parquet").is_file() for name in FILES)

    def convert(self, path: Path, out: Path, task: Task | None, tell: Callable[[str], None]) -> Path:
        """Write the dataset folder ``OUT/<folder>``, with labels where there are some and a task is named.

        Raises
        ------
        InputError
            If a file lacks a column, holds an unknown station, or names an event or a station twice.
        """
        stations, signals, events = (_read(path / f"{name}.parquet", columns) for name, columns in FILES.items())
        for table, column, file in ((stations, "id", "stations"), (events, "event", "events")):
            twice = table.filter(pl.col(column).is_duplicated())
            if twice.height:
                raise InputError(f"{path / f'{file}.parquet'}: {column} {twice[column][0]} appears more than once")
        array, cell_of = array_of_stations(path.resolve().name, stations)
        cells = stations.select("id").with_columns(pl.Series("cell", cell_of)).rename({"id": "station"})
        numbered = events.select("event").with_row_index("row")
        placed = signals.join(cells, on="station", how="left", maintain_order="left")
        strange = placed.filter(pl.col("cell").is_null())
        if strange.height:
            raise InputError(f"{path / 'signals.parquet'}: station {strange['station'][0]} is not in stations.parquet")
        placed = placed.join(numbered, on="event", how="inner").sort("row")
        if placed.height < signals.height:
            tell(f"{signals.height - placed.height:,} signals are of events that events.parquet does not have")
        if placed.select("row", "cell").is_duplicated().any():
            raise InputError(f"{path / 'signals.parquet'}: a station appears twice in one event")
        labelled = task if task is not None and "label" in events.columns else None
        folder = out / path.resolve().name
        source = {"generator": f"{CONVERSION} of station lists", "array": array.as_json(), "evaluation_cuts": "none"}
        scalars = events.select(SCALAR_NAMES).cast(pl.Float32).to_numpy()
        layout = Layout(np.float32, np.float32)
        rows, n_cells = placed["row"].to_numpy(), array.x_m.size
        names = ("electron_mev", "muon_mev") if "muon_mev" in placed.columns else ("electron_mev",)
        values = placed.select(names).cast(pl.Float32).fill_null(0.0).to_numpy()
        cell = placed["cell"].to_numpy()
        with write_dataset(folder, events.height, labelled, source=source, layout=layout) as writer:
            for start in range(0, events.height, EVENTS_AT_ONCE):
                stop = min(start + EVENTS_AT_ONCE, events.height)
                here = slice(*np.searchsorted(rows, [start, stop]).tolist())
                grids = np.zeros((stop - start, n_cells, 2), np.float32)
                for channel in range(len(names)):
                    grids[rows[here] - start, cell[here], channel] = values[here, channel]
                labels = events["label"].to_numpy()[start:stop] if labelled else None
                shape = (stop - start, *array.grid_shape)
                writer.put(start, grids.reshape(shape), scalars[start:stop], labels)
        return folder


def array_of_stations(name: str, stations: pl.DataFrame) -> tuple[DetectorArray, np.ndarray]:
    """Return the array of listed stations, and the cell (n,) int64 of each.

    Cells are filled row by row in the order of the list, whatever the positions are; those that are left have no
    station. Positions count from the mean of all.
    """
    n = stations.height
    columns = math.ceil(math.sqrt(n))
    shape = (math.ceil(n / columns), columns)
    x, y = (stations[axis].cast(pl.Float64).to_numpy() for axis in ("x_m", "y_m"))
    x, y = x - x.mean(), y - y.mean()
    distance = np.hypot(x[:, None] - x, y[:, None] - y) + np.diag(np.full(n, np.inf))

    def plane(values: np.ndarray) -> np.ndarray:
        filled = np.zeros(shape[0] * shape[1])
        filled[:n] = values
        return filled.reshape(shape)

    muon = stations["muon_area_m2"] if "muon_area_m2" in stations.columns else pl.Series(np.zeros(n))
    array = DetectorArray(
        name=name,
        pitch_m=float(np.median(distance.min(axis=1))) if n > 1 else 1.0,
        x_m=plane(x),
        y_m=plane(y),
        electron_area_m2=plane(stations["electron_area_m2"].cast(pl.Float64).to_numpy()),
        muon_area_m2=plane(muon.cast(pl.Float64).to_numpy()),
        cluster=np.zeros(shape, np.int64),
    )
    return array, np.arange(n)


def _read(file: Path, columns: tuple[str, ...]) -> pl.DataFrame:
    try:
        table = pl.read_parquet(file, glob=False)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"{file} cannot be read as Parquet: {str(error).splitlines()[0]}") from None
    missing = [name for name in columns if name not in table.columns]
    if missing:
        raise InputError(f"{file} has no column {missing[0]}: found {', '.join(table.columns)}")
    return table


FORMAT = StationLists()
