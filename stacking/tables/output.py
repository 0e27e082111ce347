"""Class probabilities of rows as a table, written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from showers.storage.files import atomic_path
from stacking.events import ROW_GROUP


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
