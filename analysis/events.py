"""Measured and simulated events as a run sees them, and the rules about what may be used for what."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from runtime.context import Context
from runtime.errors import InputError
from showers.dataset import Dataset
from showers.schema import SCALAR_NAMES, SIMULATION, TASKS, TRUTH_FILE
from stacking.predict import predict
from stacking.run.chain import Predictions
from stacking.run.read import Run, load


def open_run(run: Path, task: str, command: str) -> Run:
    """Open a finished run of one task.

    Raises
    ------
    InputError
        If it is a run of another task, or none.
    """
    opened = load(run)
    if opened.task.name != task:
        raise InputError(f"{run} was trained for {opened.task.name}: {command} needs a run trained for {task}")
    return opened


def is_simulated(dataset: Dataset) -> bool:
    """Tell from ``source.json`` whether showers were simulated here."""
    return str(dataset.source.get("generator", "")).startswith(SIMULATION)


def label_remarks(dataset: Dataset) -> list[str]:
    """Return a remark if a set to be measured holds labels; they are not read."""
    events = [task.label_file for task in TASKS.values() if task.label_file and dataset.files.has(task.label_file)]
    if not events:
        return []
    why = "its showers are simulated" if is_simulated(dataset) else "a measured set has none: is it the right folder?"
    return [f"{dataset.path} holds {', '.join(events)}, which is not read ({why})"]


def refuse_training_set(run: Run, dataset: Dataset, what: str) -> None:
    """Refuse events that the run was trained on: its posteriors of them are better than of any others.

    Raises
    ------
    InputError
        If the set is the run's training set.
    """
    if str(run.manifest["data"].get("train_fingerprint", "")).startswith(dataset.fingerprint()):
        raise InputError(f"{dataset.path} is what {run.folder} was trained on: give another set as {what}")


@dataclass
class MeasuredFolders:
    """Folders of measured events, opened and predicted one after the other; what was found is noted."""

    run: Run
    folders: list[Path]
    ctx: Context = Context()
    prints: list[str] = field(default_factory=list)
    """Fingerprints of the folders so far."""
    remarks: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[tuple[Dataset, Predictions]]:
        """Yield each folder with its predictions.

        Raises
        ------
        InputError
            If a folder cannot be used, is the training set, or is given twice.
        """
        for folder in self.folders:
            dataset = Dataset.open(folder, labels=False)
            refuse_training_set(self.run, dataset, "--data")
            self.remarks += label_remarks(dataset)
            if dataset.fingerprint() in self.prints:
                raise InputError(f"{folder} holds the same events as another folder of --data")
            self.prints.append(dataset.fingerprint())
            predictions = predict(self.run, folder, self.ctx).concatenated()
            self.remarks += predictions.remarks
            yield dataset, predictions


def scalars(dataset: Dataset) -> dict[str, np.ndarray]:
    """Return the reconstructed scalars by name, (N,) float32, compared as the benchmark does.

    NaN for events that cannot be used: they pass no cut.
    """
    values = np.asarray(dataset.scalars, dtype=np.float32)
    if not dataset.usable.all():
        values = np.where(dataset.usable[:, None], values, np.float32(np.nan))
    return {name: values[:, k] for k, name in enumerate(SCALAR_NAMES)}


@dataclass(frozen=True)
class HeldOutEvents:
    """A run's own training events with predictions by fits that did not see them."""

    dataset: Dataset
    rows: np.ndarray
    log_proba: np.ndarray
    """(n, C) of the rows."""
    shares: np.ndarray
    """(C,) shares of the training events under the cuts that are here."""
    remarks: tuple[str, ...]


def held_out(run: Run, passes: Callable[[dict[str, np.ndarray]], np.ndarray], least: int) -> HeldOutEvents:
    """Return the events of a run's outer holdout, or all out-of-fold ones where the holdout is small.

    Parameters
    ----------
    passes
        Which events pass the cuts, from their scalars.
    least
        Events of each class under the cuts from which the holdout alone is used.

    Raises
    ------
    InputError
        If the training set is no longer there.
    """
    folder = Path(run.manifest["data"]["train"])
    if not folder.exists():
        raise InputError(f"{folder}, which {run.folder} was trained on, is not there: give --simulation")
    dataset = Dataset.open(folder, run.task)
    log_proba, folds = run.oof(run.chain.shipped)
    if len(folds) != len(dataset):
        raise InputError(f"{folder} has {len(dataset)} events, {run.folder} was trained on {len(folds)}")
    known = np.isfinite(log_proba).all(axis=1)
    used = known & (folds < 0)
    assert dataset.labels is not None
    remarks: list[str] = []
    passing, classes = passes(scalars(dataset)), range(run.task.n_classes)
    if np.bincount(dataset.labels[used & passing], minlength=len(classes)).min() < least:
        used = known
        remarks.append(
            f"the holdout of {run.folder} has fewer than {least} events of a class under the cuts: out-of-fold "
            "predictions of single fits stand for the shipped average; give --simulation, a set not trained on"
        )
    rows = np.flatnonzero(used)
    shares = np.array([used[passing & (dataset.labels == k)].mean() for k in classes], dtype=np.float64)
    return HeldOutEvents(dataset, rows, log_proba[rows], shares, tuple(remarks))


def truth_of(dataset: Dataset, columns: tuple[str, ...]) -> pl.DataFrame | None:
    """Return columns of ``truth.parquet``, None where there is no such file.

    Raises
    ------
    InputError
        If it lacks a column or has another number of events.
    """
    if not dataset.files.has(TRUTH_FILE):
        return None
    file = dataset.files.path(TRUTH_FILE)
    there = pl.scan_parquet(file, glob=False).collect_schema()
    missing = [name for name in columns if name not in there]
    if missing:
        raise InputError(f"{file} lacks column {', '.join(missing)}")
    result = pl.read_parquet(file, columns=list(columns), glob=False)
    if result.height != len(dataset):
        raise InputError(f"{file} has {result.height} rows, the set {len(dataset)} events")
    return result


def model_numbers(truth: pl.DataFrame) -> np.ndarray:
    """Return (N,) int64 numbers of the hadronic models in the column ``model``, which raw archives give by name."""
    model = truth["model"]
    return (model if model.dtype.is_numeric() else model.rank("dense")).to_numpy().astype(np.int64)
