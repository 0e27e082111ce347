"""Reconstructed quantities in a CSV file."""

import polars as pl

from showerstack.showers.archives.formats import TABLE_EVENTS, UNITS
from showerstack.showers.array import KASCADE


class CsvEvents:
    array, is_simulated = KASCADE, False

    def __init__(self, name, frame):
        self.name, self.frame, self.n_events = name, frame, frame.height
        self.units = {column: UNITS.get(column, "") for column in frame.columns}

    def chunks(self, names):
        for part in self.frame.select(names).iter_slices(TABLE_EVENTS):
            yield {name: part[name].to_numpy() for name in names}


class EventTable:
    name, holds, is_foreign = "a table of events", "events.csv", True

    def accepts(self, path):
        return (path / "events.csv").is_file()

    def open(self, path, tell=print):
        return [CsvEvents(path.name, pl.read_csv(path / "events.csv", glob=False))]

    def next_commands(self, path):
        return [f"python cli.py convert {path} --out data"]


FORMAT = EventTable()
