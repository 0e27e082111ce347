"""Tables in files, Parquet or text, written in pieces and read without a guess: no row is lost, types are the file's.

A blank line of a text file is no row. A row with more or fewer fields than the header is refused with its line.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import polars as pl

from showerstack.runtime.errors import InputError
from showerstack.runtime.files import atomic_path, open_regular, write_json
from showerstack.runtime.resources import memory_bytes

SUFFIXES = (".parquet", ".pq", ".csv", ".tsv", ".csv.gz", ".tsv.gz")
VALUE_BYTES = 8
UNPACKED_SHARE = 0.25
"""Share of the memory that an unpacked file may take."""
_DAMAGE_ERRORS = (
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
    csv.Error,
    OSError,
    EOFError,
    ValueError,
    OverflowError,
    MemoryError,
    zlib.error,
)
"""What reading a damaged table raises; a panic of the parser, which tells of itself as well, is one like others."""
_NO_NAME = re.compile(r"\s*|_duplicated_\d+")
"""A second column without a name is ``_duplicated_0`` to Polars."""


def read_table(file: Path, columns: Sequence[str] | None = None, separator: str | None = None) -> pl.DataFrame:
    """Read a Parquet, CSV or TSV file (these also packed with gzip), or some of its columns.

    Parameters
    ----------
    file
        Its name says what it is; of a packed one the content is unpacked in memory.
    columns
        Names; None for all.
    separator
        One character between columns; None: a tab in ``.tsv``, else a comma.

    Returns
    -------
    polars.DataFrame
        Types of a Parquet file as it declares them, of a text file all text, null where nothing is written. A column
        without a name is called ``unnamed_`` with its position.

    Raises
    ------
    InputError
        If the file is missing, no regular file, of another kind, damaged, without rows, or larger than the memory.
    """
    with damage_as_input_error(file):
        scan = _scan(file, separator)
        result = (scan if columns is None else scan.select(columns)).collect()
    if not result.height:
        raise InputError(f"{file} has no rows")
    return result


def column_names(file: Path, separator: str | None = None) -> list[str]:
    """Return the names of a table's columns; see :func:`read_table`."""
    with damage_as_input_error(file):
        return _scan(file, separator, header=True).collect_schema().names()


def _scan(file: Path, separator: str | None, *, header: bool = False) -> pl.LazyFrame:
    if file.is_dir():
        raise InputError(f"{file} is a folder: expected a table")
    open_regular(file).close()
    kind = next((suffix for suffix in reversed(SUFFIXES) if file.name.lower().endswith(suffix)), None)
    if kind is None:
        raise InputError(f"{file}: expected a table named {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    if separator is not None and len(separator.encode()) != 1:
        raise InputError(f"separator {separator!r}: expected one character")
    if kind in (".parquet", ".pq"):
        scan = pl.scan_parquet(file, glob=False)
        memory = memory_bytes()
        n_bytes = int(scan.select(pl.len()).collect().item()) * len(scan.collect_schema()) * VALUE_BYTES
        text = [name for name, kind in scan.collect_schema().items() if kind == pl.String]
        if text:  # equal texts are stored once, however long: their lengths alone are read here, part by part
            lengths = pl.sum_horizontal(pl.col(name).str.len_bytes().cast(pl.UInt64).sum() for name in text)
            n_bytes += int(scan.select(lengths).collect(engine="streaming").item())
        if n_bytes > memory:
            raise InputError(
                f"{file} would need {n_bytes / 1e9:,.0f} GB, this job has {memory / 1e9:,.0f}: give fewer rows"
            )
    else:
        between = separator or ("\t" if kind.startswith(".tsv") else ",")
        scan = read_text(file, between, n_rows=0 if header else None).lazy()
    names = scan.collect_schema().names()
    return scan.rename({name: f"unnamed_{k + 1}" for k, name in enumerate(names) if _NO_NAME.fullmatch(name)})


def read_text(file: Path, separator: str, *, n_rows: int | None = None) -> pl.DataFrame:
    """Read a text file of one header line and rows, all columns as text, null where nothing is written.

    With no row wanted, the header alone. A row that has not as many fields as the header is refused with its line; so
    is a header that repeats a name.
    """
    source = _unpacked(file) if file.name.lower().endswith(".gz") else file
    blank = _blank_rows(file, source, separator, n_rows)
    result = pl.read_csv(source, separator=separator, infer_schema=False, glob=False, n_rows=n_rows)
    if len(blank) != result.height:
        raise InputError(f"{file}: {len(blank)} rows by their line ends, {result.height} by their quotation marks")
    return result.filter(~blank) if blank.any() else result


def _blank_rows(file: Path, source: Path | bytes, separator: str, n_rows: int | None) -> np.ndarray:
    """Return which rows are blank lines, (N,) bool, after counting the fields of every row."""
    opened = io.BytesIO(source) if isinstance(source, bytes) else open_regular(source)
    with io.TextIOWrapper(opened, encoding="utf-8-sig", newline="") as lines:
        reader = csv.reader(lines, delimiter=separator)
        header = next(filter(None, reader), [])
        for name in header:
            if name.strip() and header.count(name) > 1:
                raise InputError(f"{file} has {header.count(name)} columns {name!r}: rename them")
        blank = []
        for fields in reader if n_rows is None else ():
            is_blank = not fields or (len(fields) == 1 < len(header) and not fields[0].strip())
            if len(fields) != len(header) and not is_blank:
                raise InputError(
                    f"{file}: line {reader.line_num} has {len(fields)} fields, the header {len(header)}: "
                    "every row needs as many as the header"
                )
            blank.append(is_blank)
    return np.array(blank, dtype=bool)


def _unpacked(file: Path) -> bytes:
    limit = int(memory_bytes() * UNPACKED_SHARE)
    with gzip.open(file) as packed:
        content = packed.read(limit + 1)
    if len(content) > limit:
        raise InputError(f"{file} holds more than {limit / 1e9:,.0f} GB when unpacked: give fewer rows")
    return content


@contextmanager
def damage_as_input_error(file: Path) -> Iterator[None]:
    """Turn a parser's errors into an :class:`InputError`."""
    try:
        yield
    except InputError:
        raise
    except UnicodeDecodeError:
        raise InputError(f"{file} is not text in UTF-8: save it as that") from None
    except _DAMAGE_ERRORS as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise InputError(f"{file} cannot be read (damaged, or not what its name says?): {lines[0]}") from None


def write_frames(file: Path, frames: Iterator[pl.DataFrame], origin: Mapping[str, str] | None = None) -> None:
    """Write the rows of all frames to one table: CSV by its name, Parquet otherwise.

    ``origin`` says once what the table was made from: in a Parquet file's metadata, or in ``FILE.json`` beside a CSV;
    None for tables that do not say it.
    """
    if file.suffix.lower() == ".csv":
        with atomic_path(file) as temporary, temporary.open("wb") as stream:
            for number, frame in enumerate(frames):
                frame.write_csv(stream, include_header=not number)
        if origin is not None:
            write_json(file.with_name(f"{file.name}.json"), dict(origin))
        return
    with (
        atomic_path(file) as temporary,
        tempfile.TemporaryDirectory(dir=temporary.parent, prefix=f"{temporary.name}-") as folder,
    ):
        parts = []
        for number, frame in enumerate(frames):
            parts.append(Path(folder) / f"{number}.parquet")
            frame.write_parquet(parts[-1])
        pl.scan_parquet(parts, glob=False).sink_parquet(temporary, metadata=None if origin is None else dict(origin))
