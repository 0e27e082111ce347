"""Arrays and data frames, as programs have them, written as the tables that runs are trained on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import polars as pl

LABEL = "class"
"""Column of the classes in tables made from arrays."""


def is_frame(values: Any) -> bool:
    """Return whether something is a data frame of polars or pandas."""
    return type(values).__name__ == "DataFrame" and hasattr(values, "columns")


def write_table(run: Path, values: Any, labels: Any = None) -> Path:
    """Write an array (N, F) or a data frame, and classes (N,) if given, as ``{run}.parquet`` beside the run.

    Raises
    ------
    showers.schema.InputError
        If the values are neither, or the classes are not as many.
    """
    import polars as pl

    from showers.schema import InputError
    from showers.storage.files import atomic_path

    table = _frame(values)
    if labels is not None:
        if len(labels) != len(table):
            raise InputError(f"data has {len(table)} rows, labels {len(labels)}")
        if LABEL in table.columns:
            raise InputError(f"the data frame has a column {LABEL!r} already: give label={LABEL!r} instead of labels")
        table = table.with_columns(pl.Series(LABEL, np.asarray(labels)))
    file = run.with_name(f"{run.name}.parquet")
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(file) as temporary:
        table.write_parquet(temporary)
    return file


def _frame(values: Any) -> pl.DataFrame:
    import polars as pl

    from showers.schema import InputError

    if isinstance(values, pl.DataFrame):
        return values
    if is_frame(values):
        return pl.from_pandas(values)
    array = np.asarray(values)
    if array.ndim != 2 or array.dtype.kind not in "fiub":
        raise InputError(
            f"data has shape {array.shape} and type {array.dtype}, expected numbers (N, F), a data frame, or a path"
        )
    return pl.DataFrame({f"x{k}": array[:, k] for k in range(array.shape[1])})
