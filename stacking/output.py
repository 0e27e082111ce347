"""Predictions of new data with a finished run, written to a file."""

from __future__ import annotations

from pathlib import Path

from showers.progress import Bars, silent
from showers.schema import TASKS
from stacking.bundle import load
from stacking.predict.chain import Predictions
from stacking.run.folder import write_predictions
from stacking.table import predict_table_to_file


def predict_to_file(
    run: Path,
    data: Path,
    out: Path,
    *,
    device: str = "auto",
    workers: int | None = None,
    anyway: bool = False,
    bars: Bars = silent,
) -> Predictions:
    """Predict new data with a finished run and write the result.

    A dataset folder gives a file like ``predictions.npz``; a table, for a run on tables, class probabilities per row.
    """
    bundle = load(run)
    if bundle.task.name not in TASKS:
        return predict_table_to_file(bundle, Path(data), Path(out), bars=bars)
    predictions = bundle.predict(data, device=device, workers=workers, anyway=anyway, bars=bars)
    write_predictions(Path(out), predictions)
    return predictions
