"""What really happened in simulated showers, from ``truth.parquet`` beside their labels: for training and scoring."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from showers.schema import InputError

TRUTH_COLUMNS = ("lg_energy", "core_x_m", "core_y_m", "lg_ne", "lg_nmu", "xmax", "age", "mass")
"""Columns that are read: lg(E/eV), m, m, lg, lg, g/cm2, 1, mass number (0: photon)."""


def read_truth(file: Path, n_events: int) -> pl.DataFrame:
    """Return the true quantities.

    Parameters
    ----------
    file
        A Parquet file of one row an event.
    n_events
        Rows that it must have.

    Returns
    -------
    polars.DataFrame
        :data:`TRUTH_COLUMNS` as float64, NaN where a quantity is not known or the file has no such column.

    Raises
    ------
    InputError
        If the file is damaged, has another number of rows, none of the columns, or values that are no numbers or
        infinite.
    """
    try:
        frame = pl.read_parquet(file, glob=False)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"{file} cannot be read as Parquet: {' '.join(str(error).split())[:120]}") from None
    if len(frame) != n_events:
        raise InputError(f"{file} has {len(frame)} rows, but the folder has {n_events} events")
    if not set(TRUTH_COLUMNS) & set(frame.columns):
        raise InputError(f"{file} has none of the columns {', '.join(TRUTH_COLUMNS)}")
    columns = {}
    for name in TRUTH_COLUMNS:
        if name not in frame.columns:
            columns[name] = np.full(n_events, np.nan)
            continue
        if not frame[name].dtype.is_numeric():
            raise InputError(f"{file}: column {name} holds {frame[name].dtype}, expected numbers")
        columns[name] = frame[name].cast(pl.Float64).fill_null(np.nan).to_numpy()
        bad = np.flatnonzero(np.isinf(columns[name]))
        if bad.size:
            raise InputError(f"{file}: row {bad[0]}, column {name} is infinite ({bad.size} bad rows)")
    return pl.DataFrame(columns)
