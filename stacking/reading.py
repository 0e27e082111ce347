"""Tables of any origin as Polars reads them: regular files under literal names, bounded, refused in one line."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from showers.schema import InputError
from showers.storage.regular import open_regular

SUFFIXES = (".parquet", ".pq", ".csv")
VALUE_BYTES = 8

_ERRORS = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError, OverflowError, MemoryError)
"""What reading a damaged table raises; a panic of the parser is an error like others."""


def read_table(file: Path, columns: list[str] | None = None) -> pl.DataFrame:
    """Read a Parquet or CSV file, or some of its columns.

    Raises
    ------
    InputError
        If the file is missing, no regular file, of another kind, damaged, without rows, or larger than the memory.
    """
    scan = scan_table(file)
    with _told(file):
        found = (scan if columns is None else scan.select(columns)).collect()
    if not found.height:
        raise InputError(f"{file} has no rows")
    return found


def scan_table(file: Path) -> pl.LazyFrame:
    """Open a Parquet or CSV file, its header checked, without reading its rows.

    Raises
    ------
    InputError
        If the file is missing, no regular file, of another kind, damaged, or promises more than the memory holds.
    """
    if file.is_dir():
        raise InputError(f"{file} is a folder: expected a table")
    open_regular(file).close()
    suffix = file.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"{file}: expected a table named {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    with _told(file):
        if suffix == ".csv":
            scan = pl.scan_csv(file, infer_schema_length=None, glob=False)
            scan.collect_schema()
            return scan
        scan = pl.scan_parquet(file, glob=False)
        n_bytes = int(scan.select(pl.len()).collect().item()) * len(scan.collect_schema()) * VALUE_BYTES
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if n_bytes > memory:
        raise InputError(
            f"{file} would need {n_bytes / 1e9:,.0f} GB, this machine has {memory / 1e9:,.0f}: give fewer rows"
        )
    return scan


@contextmanager
def _told(file: Path) -> Iterator[None]:
    """Turn a parser's errors into an :class:`InputError`; what it writes on standard error itself is dropped then."""
    with tempfile.TemporaryFile() as said:
        kept = os.dup(2)
        os.dup2(said.fileno(), 2)
        try:
            yield
        except _ERRORS as error:
            lines = str(error).splitlines() or [type(error).__name__]
            raise InputError(f"{file} cannot be read (damaged, or not what its name says?): {lines[0]}") from None
        finally:
            os.dup2(kept, 2)
            os.close(kept)
