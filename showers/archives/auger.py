"""The Pierre Auger Observatory's open data: the summary of reconstructed events as a table.

``dataSummarySD1500.csv`` (and others of that form) has a row for each telescope site that saw an event, so that an
event stands there more than once: rows with the same ``id`` and the same values of the surface detector are one.
``sd_energy`` is in EeV, ``sd_theta`` and ``sd_phi`` in deg, the azimuth anticlockwise from east. The columns E, Ze and
Az are made of these; all of the surface detector's stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from showerstack.runtime.errors import InputError
from showerstack.runtime.tables import damage_as_input_error
from showerstack.showers.archives.formats import TABLE_EVENTS, UNITS
from showerstack.showers.array import KASCADE, DetectorArray

PREFIX = "sd_"
NEEDED = ("id", "sd_energy", "sd_theta", "sd_phi")
LG_EEV = 18.0
"""lg of 1 EeV in eV."""


class AugerSummary:
    """The format."""

    name = "Pierre Auger open data"
    holds = "dataSummary*.csv with id, sd_energy, sd_theta and sd_phi"
    is_foreign = True

    def accepts(self, path: Path) -> bool:
        """Return whether a path is such a file, by its first line."""
        if path.suffix.lower() != ".csv" or not path.is_file():
            return False
        with path.open(encoding="utf-8", errors="replace") as opened:
            return set(NEEDED) <= {name.strip().strip('"') for name in opened.readline(65_536).split(",")}

    def open(self, path: Path, tell: Callable[[str], None] = lambda line: None) -> list[AugerEvents]:
        """Read the file."""
        with damage_as_input_error(path):
            frame = pl.read_csv(path, infer_schema_length=None, schema_overrides={"id": pl.String}, glob=False)
        for name in NEEDED[1:]:
            if not frame[name].dtype.is_numeric():
                raise InputError(f"{path}: column {name} holds {frame[name].dtype}, expected numbers")
        wrong = frame.with_row_index("row").filter(~(pl.col("sd_energy").fill_null(0) > 0))
        if wrong.height:
            raise InputError(
                f"{path}: row {wrong['row'][0]}, sd_energy is {wrong['sd_energy'][0]}, expected EeV above 0"
            )
        kept = [name for name in frame.columns if name == "id" or name.startswith(PREFIX)]
        events = frame.select(kept).unique(maintain_order=True)
        twice = events.filter(pl.col("id").is_duplicated())
        if twice.height:
            raise InputError(f"{path}: event {twice['id'][0]} has rows with different values of the surface detector")
        if events.height < frame.height:
            tell(f"{path.name}: {frame.height:,} rows, one for each telescope site, are {events.height:,} events")
        made = {
            "E": pl.col("sd_energy").log10() + LG_EEV, "Ze": pl.col("sd_theta").cast(pl.Float64),
            "Az": pl.col("sd_phi").cast(pl.Float64) % 360.0,
        }  # fmt: skip
        return [AugerEvents(path.stem, events.with_columns(**made))]

    def next_commands(self, path: Path) -> list[str]:
        """Return the command that writes a table."""
        return [f"python cli.py convert {path} --out data"]


FORMAT = AugerSummary()


@dataclass(frozen=True)
class AugerEvents:
    """Reconstructed events."""

    name: str
    events: pl.DataFrame
    array: DetectorArray = KASCADE
    is_simulated: bool = False

    @property
    def n_events(self) -> int:
        """How many there are."""
        return self.events.height

    @property
    def units(self) -> dict[str, str]:
        """Column to unit; those of the surface detector are Auger's."""
        return {name: UNITS.get(name, "") for name in self.events.columns}

    def chunks(self, names: Sequence[str]) -> Iterator[dict[str, np.ndarray]]:
        """Yield columns of consecutive events."""
        for part in self.events.select(names).iter_slices(TABLE_EVENTS):
            yield {name: part[name].to_numpy() for name in names}
