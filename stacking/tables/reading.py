"""Tables of any origin as Polars reads them: regular files under literal names, bounded, refused in one line."""

from __future__ import annotations

import gzip
import io
import os
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from showers.schema import InputError
from showers.storage.regular import open_regular

SUFFIXES = (".parquet", ".pq", ".csv", ".tsv", ".csv.gz", ".tsv.gz")
VALUE_BYTES = 8
UNPACKED_SHARE = 0.25
"""Share of the memory that an unpacked file may take."""
REPEATED = "_duplicated_"
"""What Polars adds to a name that a header repeats."""

_ERRORS = (
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
    OSError,
    EOFError,
    ValueError,
    OverflowError,
    MemoryError,
    zlib.error,
)
"""What reading a damaged table raises; a panic of the parser is an error like others."""


def read_table(file: Path, columns: list[str] | None = None, separator: str | None = None) -> pl.DataFrame:
    """Read a Parquet, CSV or TSV file, or some of its columns.

    Raises
    ------
    InputError
        If the file is missing, no regular file, of another kind, damaged, without rows, or larger than the memory.
    """
    scan = scan_table(file, separator)
    with _told(file):
        found = (scan if columns is None else scan.select(columns)).collect()
    if not found.height:
        raise InputError(f"{file} has no rows")
    return found


def scan_table(file: Path, separator: str | None = None) -> pl.LazyFrame:
    """Open a Parquet, CSV or TSV file (these also packed with gzip), its header checked.

    Parameters
    ----------
    file
        Its name says what it is; of a packed one the content is unpacked in memory.
    separator
        One character between columns; None: a tab in ``.tsv``, else a comma.

    A column without a name is called ``unnamed`` with its position.

    Raises
    ------
    InputError
        If the file is missing, no regular file, of another kind, damaged, or promises more than the memory holds.
    """
    if file.is_dir():
        raise InputError(f"{file} is a folder: expected a table")
    open_regular(file).close()
    kind = next((suffix for suffix in reversed(SUFFIXES) if file.name.lower().endswith(suffix)), None)
    if kind is None:
        raise InputError(f"{file}: expected a table named {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    if separator is not None and len(separator.encode()) != 1:
        raise InputError(f"separator {separator!r}: expected one character")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with _told(file):
        if kind not in (".parquet", ".pq"):
            between = separator or ("\t" if kind.startswith(".tsv") else ",")
            if kind.endswith(".gz"):
                content = io.BytesIO(_unpacked(file, int(memory * UNPACKED_SHARE)))
                scan = pl.read_csv(content, infer_schema_length=None, separator=between, glob=False).lazy()
            else:
                scan = pl.scan_csv(file, infer_schema_length=None, glob=False, separator=between)
            return _named(scan)
        scan = pl.scan_parquet(file, glob=False)
        n_bytes = int(scan.select(pl.len()).collect().item()) * len(scan.collect_schema()) * VALUE_BYTES
    if n_bytes > memory:
        raise InputError(
            f"{file} would need {n_bytes / 1e9:,.0f} GB, this machine has {memory / 1e9:,.0f}: give fewer rows"
        )
    return scan


def _named(scan: pl.LazyFrame) -> pl.LazyFrame:
    names = scan.collect_schema().names()
    return scan.rename({name: f"unnamed_{k + 1}" for k, name in enumerate(names) if not name.strip()})


def _unpacked(file: Path, limit: int) -> bytes:
    with gzip.open(file) as packed:
        content = packed.read(limit + 1)
    if len(content) > limit:
        raise InputError(f"{file} holds more than {limit / 1e9:,.0f} GB when unpacked: give fewer rows")
    return content


@contextmanager
def _told(file: Path) -> Iterator[None]:
    """Turn a parser's errors into an :class:`InputError`; what it writes on standard error itself is dropped then."""
    with tempfile.TemporaryFile() as said:
        kept = os.dup(2)
        os.dup2(said.fileno(), 2)
        try:
            yield
        except InputError:
            raise
        except _ERRORS as error:
            lines = str(error).splitlines() or [type(error).__name__]
            raise InputError(f"{file} cannot be read (damaged, or not what its name says?): {lines[0]}") from None
        finally:
            os.dup2(kept, 2)
            os.close(kept)
