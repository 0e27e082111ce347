"""The feature table on disk: Parquet shards in event order with ``catalogue.json`` beside them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl

from showers.files import read_json
from showers.schema import InputError

CATALOGUE_FILE = "catalogue.json"
EVENT_COLUMN = "event"


def default_path(dataset: Path) -> Path:
    """Return where a dataset's table lies unless told otherwise: ``<dataset>.features`` beside it."""
    dataset = Path(dataset)
    return dataset.with_name(f"{dataset.name}.features")


def part_path(folder: Path, number: int) -> Path:
    """Return the name of a shard."""
    return Path(folder) / f"part-{number:05d}.parquet"


@dataclass(frozen=True)
class FeatureTable:
    """A complete feature table; use :meth:`open`."""

    folder: Path
    columns: tuple[str, ...]
    """Names of all features, in catalogue order."""
    n_events: int
    shard_events: int
    """Events per shard; only the last one may hold fewer."""
    fingerprint: str
    """Hash of dataset, code version and columns."""

    def __len__(self) -> int:
        return self.n_events

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Open a finished table.

        Raises
        ------
        InputError
            If the folder is missing, unfinished or lacks a shard.
        """
        folder = Path(folder)
        head = read_head(folder)
        if head is None:
            raise InputError(f"{folder} is not a feature table: expected {CATALOGUE_FILE} and Parquet shards in it")
        if not head["complete"]:
            raise InputError(
                f"{folder} is an unfinished feature table: run the feature extraction again to complete it"
            )
        table = cls(
            folder=folder,
            columns=tuple(column["name"] for column in head["columns"]),
            n_events=head["n_events"],
            shard_events=head["shard_events"],
            fingerprint=head["fingerprint"],
        )
        for path in table.parts():
            if not path.exists():
                raise InputError(f"{path} is missing: remove {folder} and run the feature extraction again")
        return table

    def parts(self) -> list[Path]:
        """Return the shards in event order."""
        return [part_path(self.folder, k) for k in range(-(-self.n_events // self.shard_events))]

    def matrix(self, columns: tuple[str, ...] | list[str], rows: np.ndarray | None = None) -> np.ndarray:
        """Return columns as (n, F) float32, Fortran-ordered, read shard by shard.

        Parameters
        ----------
        columns
            Names of features.
        rows
            Events wanted: integer positions in any order, or a boolean mask of all events; None means all.

        Raises
        ------
        InputError
            If the table lacks a column; or a row is out of range.
        """
        missing = [name for name in columns if name not in self.columns]
        if missing:
            raise InputError(f"{self.folder} has no column {missing[0]!r} ({len(missing)} missing of {len(columns)})")
        order = None if rows is None else _as_positions(np.asarray(rows), self.n_events)
        n = self.n_events if order is None else len(order)
        result = np.empty((n, len(columns)), dtype=np.float32, order="F")
        for k, path in enumerate(self.parts()):
            start, stop = k * self.shard_events, min((k + 1) * self.shard_events, self.n_events)
            here = np.arange(start, stop) if order is None else np.flatnonzero((order >= start) & (order < stop))
            if not here.size:
                continue
            frame = pl.read_parquet(path, columns=list(columns), glob=False)
            for j, name in enumerate(columns):
                values = frame[name].to_numpy()
                result[here, j] = values if order is None else values[order[here] - start]
        return result

    def frame(self, columns: tuple[str, ...] | None = None) -> pl.LazyFrame:
        """Return the table as a lazy Polars frame with the column ``event``."""
        scan = pl.scan_parquet(self.parts(), glob=False)
        return scan.select([EVENT_COLUMN, *columns]) if columns else scan


def read_head(folder: Path) -> dict[str, Any] | None:
    """Return ``catalogue.json`` of a table, or None where there is none."""
    path = Path(folder) / CATALOGUE_FILE
    return read_json(path) if path.exists() else None


def _as_positions(rows: np.ndarray, n: int) -> np.ndarray:
    if rows.dtype == bool:
        if len(rows) != n:
            raise InputError(f"a mask of {len(rows)} rows was given for a table of {n} events")
        return np.flatnonzero(rows)
    if rows.size and (rows.min() < 0 or rows.max() >= n):
        raise InputError(f"row {rows.max() if rows.max() >= n else rows.min()} is not in a table of {n} events")
    return rows
