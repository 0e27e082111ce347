"""The simulated events that data are compared with: a run's training events under its cuts, with their posteriors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from features.build import build_table
from features.catalogue import NOT_LEARNED
from features.table import FeatureTable
from showers.cuts import CutSet
from showers.datasets.dataset import Dataset
from showers.execution.progress import Bars, silent
from showers.schema import TRUTH_FILE, InputError, Task
from stacking.bundle import Bundle
from stacking.events import ShowerEvents

MAX_EVENTS = 60_000
"""Training events that data are compared with; more would cost memory and tell little more."""
LEAST_EVENTS = 500


@dataclass(frozen=True)
class Reference:
    """Training events that pass the cuts, in random order."""

    task: Task
    columns: tuple[str, ...]
    values: np.ndarray
    """(R, F) float32 features."""
    labels: np.ndarray
    """(R,) int64 class numbers."""
    log_proba: np.ndarray
    """(R, C) log-posteriors of what ships, out of fold."""
    lg_energy: np.ndarray
    """(R,) lg(E/eV) in which spectra are fitted: true where the simulation says it, else reconstructed."""
    true_energy: bool
    reconstructed: np.ndarray
    """(R,) reconstructed lg(E/eV)."""
    groups: np.ndarray
    """(R,) int64: equal where a simulated shower was used again."""
    rows: np.ndarray
    """(R,) rows in the dataset."""
    data: Dataset
    cuts: CutSet

    def __len__(self) -> int:
        return len(self.labels)


def read_reference(
    bundle: Bundle, train: Path | None, *, seed: int, max_events: int = MAX_EVENTS, bars: Bars = silent
) -> Reference:
    """Read a run's training events.

    Parameters
    ----------
    bundle
        The finished run.
    train
        The dataset folder that it was trained on, if it has moved.
    seed
        Which events are taken if there are more than ``max_events``.

    Raises
    ------
    InputError
        If the folder is missing or not the one that the run was trained on, or too few of its events pass the cuts.
    """
    stated = bundle.manifest["data"].get("train")
    folder = Path(train or str(stated))
    if not folder.is_dir():
        raise InputError(f"{folder}, on which {bundle.run} was trained, is not there: say where with --train FOLDER")
    table = build_table(folder, bars=bars)
    events = ShowerEvents(folder, table.folder, bundle.task, labelled=True)
    if events.fingerprint() != bundle.manifest["data"]["train_fingerprint"]:
        raise InputError(
            f"{folder} is not the set on which {bundle.run} was trained (or its features are of other code)"
        )
    data = Dataset.open(folder, labels=False)
    log_proba = _out_of_fold(bundle, len(data))
    good = data.evaluation_cuts.mask(data.scalar_frame()) & np.isfinite(log_proba).all(axis=1)
    rows = np.random.default_rng(seed).permutation(np.flatnonzero(good))[:max_events]
    if len(rows) < LEAST_EVENTS:
        raise InputError(f"{folder}: {len(rows)} training events pass the cuts, at least {LEAST_EVENTS} are needed")
    reconstructed = np.asarray(data.scalars[:, 0], dtype=np.float64)[rows]
    true = _true_energy(data)
    groups = np.arange(len(data)) if data.groups is None else np.asarray(data.groups)
    columns = usable_columns(table)
    return Reference(
        task=bundle.task,
        columns=columns,
        values=table.matrix(columns, rows),
        labels=events.labels()[rows],
        log_proba=log_proba[rows],
        lg_energy=reconstructed if true is None else true[rows],
        true_energy=true is not None,
        reconstructed=reconstructed,
        groups=groups[rows],
        rows=rows,
        data=data,
        cuts=data.evaluation_cuts,
    )


def usable_columns(table: FeatureTable) -> tuple[str, ...]:
    """Return the features that are compared: all but the azimuth."""
    return tuple(name for name in table.columns if name not in NOT_LEARNED)


def _out_of_fold(bundle: Bundle, n_events: int) -> np.ndarray:
    """Return the out-of-fold log-posteriors of what ships, (N, C); NaN where a row was never predicted."""
    file = bundle.sealed.path(f"oof/{bundle.chain.shipped}.parquet")
    frame = pl.read_parquet(file, glob=False)
    if frame.height != n_events:
        raise InputError(f"{file} has {frame.height:,} rows, the training set {n_events:,}")
    return frame.select([f"logp_{name}" for name in bundle.task.classes]).to_numpy()


def _true_energy(data: Dataset) -> np.ndarray | None:
    """Return (N,) true lg(E/eV), None where the set does not say."""
    if not data.files.has(TRUTH_FILE):
        return None
    truth = pl.read_parquet(data.files.path(TRUTH_FILE), columns=["lg_energy"], glob=False)
    return truth["lg_energy"].to_numpy().astype(np.float64)
