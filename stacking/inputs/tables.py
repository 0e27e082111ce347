"""Tables of any origin: read as regular files under literal names, bounded, refused in one line; posteriors written."""

from __future__ import annotations

import gzip
import io
import os
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import polars as pl

from showerstack.runtime.errors import InputError
from showerstack.runtime.files import atomic_path, open_regular
from showerstack.stacking.inputs.columns import Plan
from showerstack.stacking.inputs.events import ROW_GROUP

MAX_CLASSES = 100
"""More different labels are taken for a quantity, not for classes."""


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
    with _with_reasons(file):
        result = (scan if columns is None else scan.select(columns)).collect()
    if not result.height:
        raise InputError(f"{file} has no rows")
    return result


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
    with _with_reasons(file):
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
    return _named(scan)


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
def _with_reasons(file: Path) -> Iterator[None]:
    """Turn a parser's errors into an :class:`InputError`; what it writes on standard error itself is dropped then."""
    with tempfile.TemporaryFile() as message:
        kept = os.dup(2)
        os.dup2(message.fileno(), 2)
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


def probabilities(
    log_proba: np.ndarray, classes: tuple[str, ...], identifiers: pl.DataFrame | None = None
) -> pl.DataFrame:
    """Return the table of class probabilities: row, identifiers, ``p_<class>``, predicted class."""
    best = np.argmax(log_proba, axis=1)
    names = {} if identifiers is None else {name: identifiers[name] for name in identifiers.columns}
    return pl.DataFrame(
        {
            "row": np.arange(len(log_proba), dtype=np.uint32),
            **names,
            **{f"p_{name}": np.exp(log_proba[:, k]) for k, name in enumerate(classes)},
            "predicted": pl.Series([classes[k] for k in best], dtype=pl.String),
        }
    )


def write_table(file: Path, frame: pl.DataFrame) -> None:
    """Write a table atomically: CSV by its name, Parquet otherwise."""
    with atomic_path(file) as temporary:
        if file.suffix.lower() == ".csv":
            frame.write_csv(temporary)
        else:
            frame.write_parquet(temporary, row_group_size=ROW_GROUP)


def read_new_rows(
    file: Path, plan: Plan, reserved: set[str], identifiers: Sequence[str], separator: str | None
) -> tuple[pl.DataFrame, list[str]]:
    """Read rows to be predicted: the columns of training and, where they are there, identifiers; never a label.

    Raises
    ------
    InputError
        If the table cannot be read or lacks columns.
    """
    header = scan_table(file, separator).collect_schema().names()
    missing = [name for name in plan.names if name not in header]
    if missing:
        raise InputError(f"{file} lacks columns of the training table: {', '.join(missing)}")
    extra = [name for name in header if name not in plan.names and name not in reserved]
    remarks = [f"{file}: columns that the training table lacks are ignored: {', '.join(extra)}"] if extra else []
    names = [name for name in identifiers if name in header]
    frame = read_table(file, [*plan.names, *names], separator)
    for column in plan.columns:
        unknown = column.unknown(frame[column.name])
        if unknown:
            remarks.append(
                f"{file}: column {column.name!r} holds {', '.join(map(repr, unknown[:5]))}, which training rows do not "
                "have: taken as missing"
            )
    return frame, remarks


def _labels(frame: pl.DataFrame, file: Path, column: str) -> tuple[np.ndarray, tuple[str, ...]]:
    values = _column(frame, file, column, "label")
    result = values.unique().sort()
    if len(result) < 2:
        raise InputError(f"{file}: label column {column!r} holds one value only: expected 2 or more classes")
    if len(result) > MAX_CLASSES:
        raise InputError(f"{file}: label column {column!r} holds {len(result)} different values, at most {MAX_CLASSES}")
    codes = values.replace_strict(result, pl.Series(range(len(result)), dtype=pl.Int64), return_dtype=pl.Int64)
    return codes.to_numpy().astype(np.int64), tuple(str(value) for value in result)


def _groups(frame: pl.DataFrame, file: Path, column: str | None) -> np.ndarray | None:
    if column is None:
        return None
    return _column(frame, file, column, "group").rank("dense").to_numpy().astype(np.int64)


def _column(frame: pl.DataFrame, file: Path, column: str, what: str) -> pl.Series:
    values = _present(frame, file, column, what)
    empty = values.is_null() | (values.is_nan() if values.dtype.is_float() else False)
    if empty.any():
        first = int(empty.arg_true()[0])
        raise InputError(f"{file}: row {first}, column {column!r} is empty: every row needs a {what}")
    return values


def _present(frame: pl.DataFrame, file: Path, column: str, what: str) -> pl.Series:
    if column not in frame.columns:
        alone = " (one column only: is there another --separator?)" if len(frame.columns) == 1 else ""
        raise InputError(f"{file} has no column {column!r} ({what}): it has {', '.join(frame.columns[:20])}{alone}")
    return frame[column]


def class_positions(values: pl.Series, classes: tuple[str, ...]) -> np.ndarray:
    """Return the class number of each label, (N,) int64, -1 where it is missing or none of the classes.

    A label is a class by its text, else by its value: 0, 0.0 and "0" are one where only one class has that value.
    """
    texts = [None if value is None else str(value) for value in values.to_list()]
    by_text = {name: k for k, name in enumerate(classes)}
    numbers = [_number(name) for name in classes]
    by_value = {number: k for k, number in enumerate(numbers) if number is not None and numbers.count(number) == 1}
    return np.array([by_text.get(text, by_value.get(_number(text), -1)) for text in texts], dtype=np.int64)  # type: ignore[arg-type]


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
