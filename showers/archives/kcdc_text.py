"""Text files of a KCDC DataShop job, joined to one table of events.

A job gives one file a table, tab-separated with a header: ``array.txt`` (E lg eV, Xc, Yc m, Ze, Az deg, Ne, Nmu lg,
Age), ``general.txt`` (R, Ev, Gt, Mt, Datetime, T, P) and others of other lengths. ``row_mapping.txt`` says for every
event which row of each table is its own, -1 for none; tables are joined by it, never by position. Older jobs write
names in capitals. Text never holds the stations' signals.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl

from runtime.errors import InputError
from runtime.files import atomic_path
from showers.schema import Task

MAPPING_FILE = "row_mapping.txt"
COLUMNS = {
    "array": ("E", "Xc", "Yc", "Ze", "Az", "Ne", "Nmu", "Age"),
    "general": ("R", "Ev", "Gt", "Mt", "Datetime", "T", "P"),
    "calorimeter": ("Nhad", "Ehad"),
}
"""Quantities that are taken, by table, as KCDC names them."""


class KcdcText:
    """The format."""

    name = "KCDC text"
    holds = f"array.txt and {MAPPING_FILE} of a DataShop job"

    def accepts(self, path: Path) -> bool:
        """Return whether a folder holds a job."""
        return (path / "array.txt").is_file() and (path / MAPPING_FILE).is_file()

    def convert(self, path: Path, out: Path, task: Task | None, tell: Callable[[str], None]) -> Path:
        """Write ``OUT/<folder>.parquet``: one row for each event with a reconstruction by the array.

        Raises
        ------
        InputError
            If a file cannot be read, lacks a quantity, or a row is asked for that a table does not have.
        """
        mapping = _read(path / MAPPING_FILE)
        if "array" not in mapping.columns:
            raise InputError(f"{path / MAPPING_FILE} has no column 'array': found {', '.join(mapping.columns)}")
        mapping = mapping.with_columns(pl.all().cast(pl.Int64, strict=False).fill_null(-1))
        known = mapping.filter(pl.col("array") >= 0)
        parts = []
        for table, wanted in COLUMNS.items():
            if table in mapping.columns and (path / f"{table}.txt").is_file():
                parts.append(_rows_of(path / f"{table}.txt", wanted, known[table], required=table == "array"))
        result = pl.concat(parts, how="horizontal")
        if mapping.height > known.height:
            tell(f"{mapping.height - known.height:,} of {mapping.height:,} events have no array data and are left out")
        file = out / f"{path.resolve().name}.parquet"
        out.mkdir(parents=True, exist_ok=True)
        with atomic_path(file) as temporary:
            result.write_parquet(temporary)
        return file


def _read(file: Path) -> pl.DataFrame:
    """Read a table with its names in small letters."""
    try:
        table = pl.read_csv(file, separator="\t", glob=False, truncate_ragged_lines=True)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"{file} cannot be read as a table with tabs: {str(error).splitlines()[0]}") from None
    return table.rename(lambda name: name.strip().lower())


def _rows_of(file: Path, wanted: tuple[str, ...], rows: pl.Series, *, required: bool) -> pl.DataFrame:
    """Return quantities of rows of a table, null where the row is -1."""
    table = _read(file)
    there = [name for name in wanted if name.lower() in table.columns]
    missing = [name for name in wanted if name not in there]
    if required and missing:
        raise InputError(f"{file} has no column {missing[0]}: found {', '.join(table.columns)}")
    last = int(rows.to_numpy().max(initial=-1))
    if last >= table.height:
        raise InputError(f"{file} has {table.height} rows, but {MAPPING_FILE} beside it asks for row {last}")
    chosen = table.select(pl.col(name.lower()).alias(name) for name in there)
    return chosen[rows.clip(0).to_list()].with_columns(
        pl.when(pl.lit(rows) >= 0).then(pl.col(name)).alias(name) for name in there
    )


FORMAT = KcdcText()
