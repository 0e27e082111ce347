"""Events as a search for photons sees them, measured and simulated, and where they come from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np

from analysis.events import MeasuredFolders, held_out, model_numbers, refuse_training_set, scalars, truth_of
from analysis.spectra.reading import thrown_primaries
from analysis.spectra.response import Thrown
from runtime.context import Context
from runtime.errors import InputError
from showers.dataset import Dataset
from stacking.meta.scorers import gamma_scores
from stacking.predict import predict
from stacking.run.read import Run

LG_NE_MIN = 4.8
"""Cut of published searches, with the zenith angle; none on muons, which photons lack."""
PHOTON, HADRON = 0, 1
MIN_HELD_OUT = 100
"""Held-out events of each class from which they alone are used."""


@dataclass(frozen=True)
class SearchEvents:
    """Events under the cuts; all arrays have N entries."""

    score: np.ndarray
    """Gamma scores, higher = more like a photon."""
    lg_energy: np.ndarray
    """Reconstructed lg(E/eV)."""
    zenith_deg: np.ndarray
    lg_ne: np.ndarray
    lg_nmu: np.ndarray
    folder: np.ndarray
    """Which of the folders given."""
    row: np.ndarray
    """Row in it."""

    def __len__(self) -> int:
        return len(self.score)

    def take(self, rows: np.ndarray) -> Self:
        """Return some of the events (positions or a mask)."""
        return replace(self, **{name: value[rows] for name, value in vars(self).items() if value is not None})


@dataclass(frozen=True)
class SimulatedSearch(SearchEvents):
    """Simulated events with truth."""

    labels: np.ndarray
    """0 photon, 1 hadron."""
    group: np.ndarray
    """Equal value = same simulated shower."""
    true_lg_energy: np.ndarray | None = None
    model: np.ndarray | None = None
    """Number of the hadronic model."""


def passes(content: dict[str, np.ndarray], zenith_max_deg: float) -> np.ndarray:
    """Return which events pass the cuts of the search, (N,) bool."""
    return (content["Ze"] < np.float32(zenith_max_deg)) & (content["Ne"] > np.float32(LG_NE_MIN))


def read_data(
    run: Run, folders: list[Path], zenith_max_deg: float, ctx: Context = Context()
) -> tuple[SearchEvents, list[str], list[str]]:
    """Score measured events.

    Returns
    -------
    SearchEvents, fingerprints of the folders, remarks.

    Raises
    ------
    InputError
        If a folder cannot be used, is the training set, is given twice, or no event passes the cuts.
    """
    parts = []
    measured = MeasuredFolders(run, folders, ctx)
    for number, (dataset, predictions) in enumerate(measured):
        result = scalars(dataset)
        whole = _events(predictions.log_proba, result, np.arange(len(dataset)), number)
        parts.append(whole.take(passes(result, zenith_max_deg)))
    every = SearchEvents(**{name: np.concatenate([vars(p)[name] for p in parts]) for name in vars(parts[0])})
    if not len(every):
        raise InputError(f"{folders[0]}: no event passes zenith < {zenith_max_deg:g} deg and lg Ne > {LG_NE_MIN}")
    return every, measured.prints, measured.remarks


def read_simulation(
    run: Run,
    folder: Path | None,
    data_prints: list[str],
    fine: np.ndarray,
    zenith_max_deg: float,
    ctx: Context = Context(),
) -> tuple[SimulatedSearch, Thrown | None, list[str]]:
    """Score a labelled simulated set that the run was not trained on, or take the run's own held-out events.

    Parameters
    ----------
    fine
        (T + 1,) borders of the true lg(E/eV) in which thrown primaries are counted.

    Raises
    ------
    InputError
        If the set was trained on, is among the data, or lacks labels.
    """
    remarks: list[str] = []
    if folder is None:
        values = held_out(run, lambda result: passes(result, zenith_max_deg), MIN_HELD_OUT)
        dataset, rows, log_proba, shares = values.dataset, values.rows, values.log_proba, values.shares
        log_proba = run.chain.predictions({run.chain.shipped: log_proba}, None, None).log_proba
        remarks += values.remarks
    else:
        dataset = Dataset.open(folder, run.task)
        refuse_training_set(run, dataset, "--simulation")
        if dataset.fingerprint() in data_prints:
            raise InputError(f"{folder} is both --data and --simulation: the response must come from other showers")
        predictions = predict(run, folder, ctx).concatenated()
        remarks += predictions.remarks
        rows, log_proba, shares = np.arange(len(dataset)), predictions.log_proba, np.ones(run.task.n_classes)
    assert dataset.labels is not None
    result = {name: column[rows] for name, column in scalars(dataset).items()}
    truth, thrown = truth_of(dataset, ("lg_energy", "model", "shower")), None
    try:
        if truth is None:
            raise InputError("it has no truth.parquet")
        thrown = thrown_primaries(dataset.source, truth, fine, zenith_max_deg)
        thrown = Thrown(thrown.lg_energy_edges, thrown.counts * shares[None, :, None])
    except InputError as error:
        remarks.append(f"{dataset.path}: the efficiency of cuts and trigger is not known, and no flux: {error}")
    group = np.asarray(dataset.groups) if dataset.groups is not None else np.arange(len(dataset))
    events = SimulatedSearch(
        **vars(_events(log_proba, result, rows, 0)),
        labels=np.asarray(dataset.labels, dtype=np.int64)[rows],
        group=group[rows],
        true_lg_energy=None if truth is None else truth["lg_energy"].to_numpy().astype(np.float64)[rows],
        model=None if truth is None else model_numbers(truth)[rows],
    )
    return events.take(passes(result, zenith_max_deg)), thrown, remarks


def _events(log_proba: np.ndarray, content: dict[str, np.ndarray], rows: np.ndarray, folder: int) -> SearchEvents:
    return SearchEvents(
        score=gamma_scores(log_proba),
        lg_energy=content["E"].astype(np.float64),
        zenith_deg=content["Ze"].astype(np.float64),
        lg_ne=content["Ne"].astype(np.float64),
        lg_nmu=content["Nmu"].astype(np.float64),
        folder=np.full(len(rows), folder),
        row=rows,
    )
