"""Rows of a new table predicted with a finished run on tables."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from models.base import Batch
from models.registry import LearnerSpec
from showers.execution.progress import Bars, silent
from showers.schema import TASKS, InputError
from showers.storage.files import hash_file, read_json
from stacking.bundle import Bundle
from stacking.events import Events
from stacking.predict.chain import Predictions
from stacking.tables.columns import Plan
from stacking.tables.output import probabilities, write_table
from stacking.tables.train import PLAN_FILE, read_new_rows


@dataclass(frozen=True)
class FrameEvents(Events):
    """New rows in memory, to be predicted by a bundle."""

    matrix: np.ndarray
    """(N, F) float32, Fortran-ordered."""
    columns: tuple[str, ...]
    content_hash: str
    """Of the file they were read from."""
    categories: tuple[str, ...] = ()
    """Columns that hold codes of categories."""

    def __len__(self) -> int:
        return len(self.matrix)

    @property
    def location(self) -> None:
        """Nowhere but in memory."""
        return

    def columns_for(self, spec: LearnerSpec) -> tuple[str, ...]:
        """Return all columns."""
        return self.columns

    def batch(self, rows: np.ndarray, columns: tuple[str, ...], *, grids: bool) -> Batch:
        """Return unlabelled rows."""
        position = [self.columns.index(name) for name in columns]
        inside = tuple(name for name in columns if name in self.categories)
        table = np.asfortranarray(self.matrix[rows][:, position])
        return Batch(index=np.asarray(rows, dtype=np.int64), table=table, columns=columns, categories=inside)

    def labels(self) -> np.ndarray:
        """New rows have none."""
        raise InputError("rows to be predicted have no labels")

    def fingerprint(self) -> str:
        """Return the hash of the file that the rows were read from."""
        return self.content_hash


def predict_table(
    bundle: Bundle, file: Path, *, separator: str | None = None, fast: bool = False, bars: Bars = silent
) -> tuple[Predictions, pl.DataFrame]:
    """Predict the rows of a new table with a finished run on tables.

    Raises
    ------
    InputError
        If the run was trained on showers, or the table lacks columns.
    """
    file = Path(file)
    if bundle.task.name in TASKS:
        raise InputError(f"{bundle.run} was trained on showers: give it a dataset folder, not a table")
    config = bundle.manifest["config"]
    reserved = {config["label"], config["group"] or "", *config["id"]}
    separator = separator or config["separator"]
    found = Plan.from_json(read_json(bundle.sealed.path(f"table/{PLAN_FILE}")))
    frame, remarks = read_new_rows(file, found, reserved, config["id"], separator)
    matrix = np.asfortranarray(found.encoded(frame, file).to_numpy(), dtype=np.float32)
    events = FrameEvents(matrix, found.names, hash_file(file), found.categories)
    predictions = bundle.predict_events(events, fast=fast, bars=bars)
    predictions = replace(predictions, remarks=(*remarks, *predictions.remarks))
    names = frame.select([name for name in config["id"] if name in frame.columns])
    return predictions, probabilities(predictions.log_proba, bundle.task.classes, names)


def predict_table_to_file(
    bundle: Bundle, file: Path, out: Path, *, separator: str | None = None, fast: bool = False, bars: Bars = silent
) -> Predictions:
    """Predict a new table; write class probabilities and the hashes of run and table, as Parquet or CSV by ``out``."""
    predictions, frame = predict_table(bundle, file, separator=separator, fast=fast, bars=bars)
    origin = {"config_hash": predictions.config_hash, "test_fingerprint": predictions.test_fingerprint}
    write_table(out, frame.with_columns(pl.lit(value).alias(name) for name, value in origin.items()))
    return predictions
