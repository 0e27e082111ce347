"""The feature table on disk: Parquet shards in event order with ``catalogue.json`` beside them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl

from showerstack.runtime.checksums import CHECKSUMS_FILE, Checksums
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import read_json

CATALOGUE_FILE = "catalogue.json"
EVENT_COLUMN = "event"


CONVERGED = "fit_converged"
LEAST_CONVERGED = 0.5
"""Share of lateral fits that converge below which a table says so."""


def fit_remark(name: str, converged: np.ndarray) -> str | None:
    """Return a line where fewer than half of the lateral fits converged, None elsewhere.

    Parameters
    ----------
    converged
        (n,) of the column ``fit_converged``: 1 or 0, NaN where too few stations were hit for a fit.
    """
    share, fitted = float(np.nan_to_num(converged).mean()), np.isfinite(converged)
    if share >= LEAST_CONVERGED:
        return None
    why = f"{100 * (1 - fitted.mean()):.0f} % had fewer than 3 hit stations"
    if fitted.mean() > LEAST_CONVERGED:
        why += ": look at units, areas and array.toml with doctor"
    return f"{name}: the lateral fit converged in {100 * share:.0f} % of {len(converged):,} events ({why})"


def default_path(dataset: Path) -> Path:
    """Return where a dataset's table lies unless told otherwise: ``<dataset>.features`` beside it."""
    dataset = Path(dataset)
    return dataset.with_name(f"{dataset.name}.features")


def part_path(folder: Path, number: int) -> Path:
    """Return the name of a shard."""
    return Path(folder) / f"part-{number:05d}.parquet"


OWN_SIZES = ("E", "Ne", "Nmu")
"""Reconstructed quantities that events of another array than KASCADE may lack."""


def refuse_missing(said: str, wanted: Sequence[str], there: Collection[str]) -> None:
    """Refuse a table or set that lacks features; ``said`` says whose they are."""
    missing = [name for name in wanted if name not in there]
    if missing:
        names = [name for name in OWN_SIZES if name in missing]
        mend = f"; showers that lack it can be trained on as well: simulate --without {','.join(names)}"
        raise InputError(f"{said} {missing[0]!r} ({len(missing)} missing of {len(wanted)}){mend if names else ''}")


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
    """Hash of dataset, version of the features and columns."""
    checksums: Checksums
    """Checksums by which every shard is compared before it is read, once in a process."""

    def __len__(self) -> int:
        return self.n_events

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Open a finished table.

        Raises
        ------
        InputError
            If the folder is missing, unfinished or lacks a shard, or its catalogue is not the one that was written.
        """
        folder = Path(folder)
        head = read_head(folder)
        if head is None:
            raise InputError(f"{folder} is not a feature table: expected {CATALOGUE_FILE} and Parquet shards in it")
        if not head["complete"]:
            raise InputError(
                f"{folder} is an unfinished feature table: run the feature extraction again to complete it"
            )
        checksums = Checksums.open(folder)
        checksums.path(CATALOGUE_FILE)
        table = cls(
            folder=folder,
            columns=tuple(column["name"] for column in head["columns"]),
            n_events=head["n_events"],
            shard_events=head["shard_events"],
            fingerprint=head["fingerprint"],
            checksums=checksums,
        )
        if n_parts(head) != len(checksums.files) - 1:
            raise InputError(
                f"{checksums.folder / CHECKSUMS_FILE} names {len(checksums.files) - 1} shards of {n_parts(head)}"
            )
        for path in table.parts():
            if path.name not in checksums.files or not path.is_file():
                raise InputError(f"{path} is missing: run the feature extraction again to make it")
        return table

    @property
    def remarks(self) -> tuple[str, ...]:
        """What whoever uses the table should know: that fewer than half of the lateral fits converged."""
        if CONVERGED not in self.columns or not self.n_events:
            return ()
        converged = self._read(self.parts()[0].name, (CONVERGED,), min(self.shard_events, self.n_events))[CONVERGED]
        line = fit_remark(self.folder.name, converged.to_numpy())
        return () if line is None else (line,)

    def parts(self) -> list[Path]:
        """Return the paths of the shards in event order."""
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
            If the table lacks a column, a row is out of range, or a shard is not the one that was written.
        """
        refuse_missing(f"{self.folder} has no column", columns, self.columns)
        order = None if rows is None else _as_positions(np.asarray(rows), self.n_events)
        n = self.n_events if order is None else len(order)
        filled = np.empty((n, len(columns)), dtype=np.float32, order="F")
        for k, path in enumerate(self.parts()):
            start, stop = k * self.shard_events, min((k + 1) * self.shard_events, self.n_events)
            here = np.arange(start, stop) if order is None else np.flatnonzero((order >= start) & (order < stop))
            if not here.size:
                continue
            shard = self._read(path.name, columns, stop - start)
            for j, name in enumerate(columns):
                values = shard[name].to_numpy()
                filled[here, j] = values if order is None else values[order[here] - start]
        return filled

    def _read(self, name: str, columns: tuple[str, ...] | list[str], n_events: int) -> pl.DataFrame:
        """Return columns of a shard after comparing its bytes."""
        path = self._verified_path(name)
        try:
            shard = pl.read_parquet(path, columns=list(columns), glob=False)
        except (pl.exceptions.PolarsError, OSError, pl.exceptions.PanicException) as error:
            raise InputError(f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}") from None
        if len(shard) != n_events or any(kind != pl.Float32 for kind in shard.dtypes):
            raise InputError(f"{path} is not a shard of {n_events} events with float32 columns")
        return shard

    def _verified_path(self, name: str) -> Path:
        problem = self.checksums.problem(name)
        if problem:
            raise InputError(f"{problem}: remove it and run the feature extraction again")
        return self.folder / name

    def frame(self) -> pl.LazyFrame:
        """Return the table as a lazy Polars frame with the column ``event``, after comparing every shard."""
        return pl.scan_parquet([self._verified_path(path.name) for path in self.parts()], glob=False)


def read_head(folder: Path) -> dict[str, Any] | None:
    """Return ``catalogue.json`` of a table, or None where there is none."""
    path = Path(folder) / CATALOGUE_FILE
    if not path.exists():
        return None
    head = read_json(path)
    if not _is_head(head):
        raise InputError(f"{path} is not the catalogue of a feature table: choose another folder or remove this one")
    return head


def n_parts(head: dict[str, Any]) -> int:
    """Return how many shards a table has."""
    return int(-(-head["n_events"] // head["shard_events"]))


def _is_head(head: Any) -> bool:
    kinds = {"complete": bool, "fingerprint": str, "dataset_fingerprint": str, "n_events": int, "shard_events": int}
    if not isinstance(head, dict) or not all(type(head.get(key)) is kind for key, kind in kinds.items()):
        return False
    columns = head.get("columns")
    return (
        head["n_events"] >= 0
        and head["shard_events"] > 0
        and isinstance(columns, list)
        and all(isinstance(column, dict) and isinstance(column.get("name"), str) for column in columns)
    )


def _as_positions(rows: np.ndarray, n: int) -> np.ndarray:
    if rows.dtype == bool:
        if len(rows) != n:
            raise InputError(f"a mask of {len(rows)} rows was given for a table of {n} events")
        return np.flatnonzero(rows)
    if rows.size and (rows.min() < 0 or rows.max() >= n):
        raise InputError(f"row {rows.max() if rows.max() >= n else rows.min()} is not in a table of {n} events")
    return rows
