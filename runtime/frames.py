"""Arrays and data frames of any library as tables of Polars: converted where that is exact, refused with the column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from importlib import import_module
from numbers import Integral, Real
from typing import Any

import numpy as np
import polars as pl

from showerstack.runtime.errors import InputError


def is_frame(values: Any) -> bool:
    """Return whether something is a data frame, or a table of Arrow."""
    return type(values).__name__ in ("DataFrame", "Table", "RecordBatch") and hasattr(values, "columns")


def frame_of(values: Any, columns: Mapping[str, Any] | None = None) -> pl.DataFrame:
    """Return an array (N, F), its columns ``x0``, ``x1``..., or a data frame, with columns (N,) added by name.

    Masked entries are missing. A column that cannot be converted exactly is refused by name; so is an added one that
    is not as long, or whose name is taken.
    """
    if isinstance(values, pl.DataFrame):
        frame = values
    elif is_frame(values):
        is_pandas = hasattr(values, "iloc")
        names = [str(name) for name in (values.columns if is_pandas else values.schema.names)]
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"the data frame has {names.count(name)} columns {name!r}: rename them")
        parts = (values.iloc[:, k] if is_pandas else values.column(k) for k in range(len(names)))
        frame = pl.DataFrame([column_of(column, name) for name, column in zip(names, parts, strict=True)])
    else:
        array = values if isinstance(values, np.ndarray) else np.asarray(values)
        if array.ndim != 2 or array.dtype.kind not in "fiub":
            raise InputError(
                f"data has shape {array.shape} and type {array.dtype}, expected numbers (N, F), a data frame, or a path"
            )
        frame = pl.DataFrame([_of_numbers(array[:, k], f"x{k}") for k in range(array.shape[1])])
    for name, column in (columns or {}).items():
        if len(column) != len(frame):
            raise InputError(f"data has {len(frame)} rows, column {name!r} {len(column)}")
        if name in frame.columns:
            raise InputError(f"the data frame has a column {name!r} already: rename it")
        frame = frame.with_columns(column_of(column, name))
    return frame


def column_of(values: Any, name: str) -> pl.Series:
    """Return a list, array or column (N,) of any library as one of Polars, see :func:`frame_of`."""
    module = type(values).__module__.split(".")[0]
    try:
        if isinstance(values, pl.Series) or module == "pyarrow":
            return pl.Series(name, values)
        if module == "pandas":
            return _of_pandas(values if hasattr(values, "iloc") else import_module("pandas").Series(values), name)
        if isinstance(values, np.ndarray) and values.dtype.kind in "fiub":
            return _of_numbers(values, name)
        return _of_objects(values.tolist() if isinstance(values, np.ndarray) else list(values), name)
    except (TypeError, OverflowError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise InputError(f"column {name!r} cannot be converted: {str(error).splitlines()[0]}") from None


def _of_pandas(values: Any, name: str) -> pl.Series:
    kind = type(values.dtype).__name__
    if kind == "SparseDtype":
        values = values.sparse.to_dense()
    if kind == "CategoricalDtype":
        levels = [str(level) for level in values.cat.categories]
        if twice := [level for level in levels if levels.count(level) > 1]:
            raise InputError(f"column {name!r} has several categories that are {twice[0]!r} as text: rename them")
        texts = [None if code < 0 else levels[code] for code in values.cat.codes.tolist()]
        return pl.Series(name, texts, dtype=pl.Enum(levels))
    if isinstance(values.dtype, np.dtype) and values.dtype.kind in "fiub":
        return _of_numbers(values.to_numpy(), name)
    if kind == "DatetimeTZDtype":
        return pl.Series(name, values.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy()).dt.replace_time_zone("UTC")
    if isinstance(values.dtype, np.dtype) and values.dtype.kind in "mM":
        return pl.Series(name, values.to_numpy())
    if kind in ("PeriodDtype", "IntervalDtype") or (isinstance(values.dtype, np.dtype) and values.dtype.kind == "c"):
        raise InputError(f"column {name!r} holds {values.dtype}: convert it to numbers, times or a category")
    return _of_objects(values.astype(object).where(values.notna(), None).tolist(), name)


def _of_numbers(values: np.ndarray, name: str) -> pl.Series:
    """Return numbers or truth values (N,) of any width and byte order, null where masked."""
    array = np.ma.getdata(values)
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        narrow = array.astype(np.float64)
        wrong = (narrow != array) & ~np.isnan(array)
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise InputError(f"row {row}, column {name!r} holds {array[row]}, which float64 cannot: round it first")
        array = narrow
    series = pl.Series(name, np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("=")))
    mask = np.ma.getmaskarray(values)
    return series.set(pl.Series(mask), None) if mask.any() else series


def _of_objects(values: Sequence[Any], name: str) -> pl.Series:
    """Return objects of one kind: text, truth values, numbers, or times; None and NaN among them are missing."""
    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    plain = [None if value is None or value != value else value for value in plain]
    first = next((value for value in plain if value is not None), None)
    if isinstance(first, str | bool):
        kind: Any = type(first)
    else:
        kind = Real | Decimal if isinstance(first, Real | Decimal) else type(first)
    for row, value in enumerate(plain):
        if value is not None and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)):
            raise InputError(f"row {row}, column {name!r} holds {value!r}, others {first!r}: one column, one type")
    if kind == Real | Decimal and not all(isinstance(value, Integral | None) for value in plain):
        for row, value in enumerate(plain):
            if isinstance(value, Integral) and int(float(value)) != value:
                raise InputError(f"row {row}, column {name!r} holds {value}, which float64 cannot: round it first")
        plain = [None if value is None else float(value) for value in plain]
    series = pl.Series(name, plain, strict=True)
    if series.dtype.is_nested():
        raise InputError(f"column {name!r} holds {type(first).__name__}s, expected numbers, text or times")
    return series
