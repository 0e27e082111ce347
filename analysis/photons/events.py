"""Events as a search for photons sees them, measured and simulated, and where they come from."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from showerstack.analysis.cuts import add_flows, describe_flow, published_cuts
from showerstack.analysis.events import (
    MeasuredFolders,
    holdout_events,
    model_numbers,
    refuse_training_set,
    scalars,
    truth_of,
)
from showerstack.analysis.spectra.reading import thrown_primaries
from showerstack.analysis.spectra.response import Thrown
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError
from showerstack.runtime.rows import Rows
from showerstack.scoring.metrics.classes import gamma_scores
from showerstack.showers.dataset import Dataset
from showerstack.showers.identity import refuse_part
from showerstack.showers.protocols import CutSet
from showerstack.showers.schema import GAMMA_CLASS, HADRON
from showerstack.showers.simulation.primaries import PHOTON as PHOTON_MASS
from showerstack.showers.simulation.primaries import Primaries
from showerstack.showers.simulation.settings import Spectrum, load_settings
from showerstack.stacking.prediction.predict import predict
from showerstack.stacking.prediction.run import Run

PHOTON = GAMMA_CLASS
MIN_HOLDOUT = 100
"""Held-out events of each class from which they alone are used."""


@dataclass(frozen=True)
class SearchEvents(Rows):
    """Events under the cuts; all arrays have N entries."""

    score: np.ndarray
    """Gamma scores, higher = more like a photon."""
    lg_energy: np.ndarray
    """Reconstructed lg(E/eV), by which events are sorted: of a hadron, until :class:`PhotonEnergy` gives a photon's."""
    lg_energy_hadron: np.ndarray
    """lg(E/eV) by KASCADE's formula, for hadrons."""
    zenith_deg: np.ndarray
    lg_ne: np.ndarray
    lg_nmu: np.ndarray
    folder: np.ndarray
    """Which of the folders given."""
    row: np.ndarray
    """Row in it."""

    def __len__(self) -> int:
        return len(self.score)


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
    weight: np.ndarray = field(default_factory=lambda: np.ones(1))
    """Photons: what makes the directions thrown isotropic."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", np.broadcast_to(self.weight, self.score.shape))


@dataclass(frozen=True)
class PhotonEnergy:
    """lg(E/eV) of a shower if it was a photon's: linear in lg Ne and sec(zenith); muons say nothing of a photon.

    KASCADE's formula is that of hadrons, and gives photons of the shipped world some .4 too little.
    """

    coefficients: np.ndarray
    """(3,) constant, slope in lg Ne - 5, slope in sec(zenith) - 1."""
    resolution: float
    """Standard deviation of reconstructed - true, where it was fitted."""

    @classmethod
    def fitted(cls, events: SimulatedSearch, index: float) -> PhotonEnergy:
        """Fit to simulated photons of known energy, thrown as E^-2 and weighted to E^-index."""
        photon = events.labels == PHOTON
        assert events.true_lg_energy is not None
        true = events.true_lg_energy[photon]
        root = np.sqrt(10.0 ** ((2 - index) * (true - 15.0)) * events.weight[photon])
        x = _terms(events.take(photon))
        coefficients = np.linalg.lstsq(x * root[:, None], true * root, rcond=None)[0]
        return cls(coefficients, float(np.std(x @ coefficients - true)))

    def of(self, events: SearchEvents) -> np.ndarray:
        """Return lg(E/eV), (N,) float64."""
        return np.asarray(_terms(events) @ self.coefficients)


def _terms(events: SearchEvents) -> np.ndarray:
    secant = 1 / np.cos(np.radians(events.zenith_deg))
    return np.column_stack([np.ones(len(events)), events.lg_ne - 5.0, secant - 1.0])


def isotropic_weight(zenith_deg: np.ndarray, photon: np.ndarray, spectrum: Spectrum) -> np.ndarray:
    """Return (N,) weights of thrown primaries that make photons' directions isotropic on the flat array.

    Isotropic means uniform in sin^2(zenith); worlds throw photons as its power ``photon_zenith_power``.
    """
    power = spectrum.photon_zenith_power
    share = (np.sin(np.radians(zenith_deg)) / np.sin(np.radians(spectrum.photon_zenith_max_deg))) ** 2
    return np.where(photon, power * np.maximum(share, 1e-6) ** (1 - 1 / power), 1.0)


def _labels_and_weights(primaries: Primaries, spectrum: Spectrum) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and weights of thrown primaries: what they are, whatever their label says."""
    photon = primaries.mass == PHOTON_MASS
    return np.where(photon, PHOTON, HADRON), isotropic_weight(primaries.zenith_deg, photon, spectrum)


def search_cuts(zenith_max_deg: float) -> CutSet:
    """Return the cuts of published searches: none on muons, which photons lack."""
    return published_cuts(zenith_max_deg)


def read_data(
    run: Run, folders: list[Path], zenith_max_deg: float, ctx: Context = Context()
) -> tuple[SearchEvents, list[str], list[str], dict[str, int]]:
    """Score measured events.

    Returns
    -------
    SearchEvents, fingerprints of the folders, remarks, events after each cut.
    """
    parts = []
    measured = MeasuredFolders(run, folders, ctx)
    for number, (dataset, predictions) in enumerate(measured):
        columns = scalars(dataset)
        whole = _events(predictions.log_proba, columns, np.arange(len(dataset)), number)
        parts.append(whole.take(measured.passing(dataset, search_cuts(zenith_max_deg))))
    events = SearchEvents.joined(parts)
    if not len(events):
        raise InputError(f"{folders[0]}: no event passes the cuts; left after each: {describe_flow(measured.flows)}")
    return events, measured.fingerprints, measured.remarks, add_flows(measured.flows)


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
    """
    remarks: list[str] = []
    if folder is None:
        holdout = holdout_events(run, lambda columns: search_cuts(zenith_max_deg).mask(columns), MIN_HOLDOUT)
        dataset, rows, log_proba, shares = holdout.dataset, holdout.rows, holdout.log_proba, holdout.shares
        log_proba = run.chain.predictions({run.chain.shipped: log_proba}, None, None).log_proba
        remarks += holdout.remarks
    else:
        dataset = Dataset.open(folder, run.task)
        dataset.refuse_weighted("a search for photons")
        refuse_training_set(run, dataset, "--simulation")
        refuse_part(dataset)
        if dataset.fingerprint() in data_prints:
            raise InputError(f"{folder} is both --data and --simulation: the response must come from other showers")
        predictions = predict(run, folder, ctx).concatenated()
        remarks += predictions.remarks
        rows, log_proba, shares = np.arange(len(dataset)), predictions.log_proba, np.ones(run.task.n_classes)
    assert dataset.labels is not None
    columns = {name: column[rows] for name, column in scalars(dataset).items()}
    labels, weight = np.asarray(dataset.labels, dtype=np.int64), np.ones(len(dataset))
    truth, thrown = truth_of(dataset, ("lg_energy", "model", "shower")), None
    try:
        if truth is None:
            raise InputError("it has no truth.parquet")
        thrown = thrown_primaries(dataset.source, truth, fine, zenith_max_deg, _labels_and_weights)
        thrown = Thrown(thrown.lg_energy_edges, thrown.counts * shares[None, :, None])
        truth_of_primaries = truth_of(dataset, ("mass", "zenith_deg"))
        assert truth_of_primaries is not None
        photon = truth_of_primaries["mass"].to_numpy() == PHOTON_MASS
        spectrum = load_settings(str(dataset.source["world"])).spectrum
        weight = isotropic_weight(truth_of_primaries["zenith_deg"].to_numpy().astype(np.float64), photon, spectrum)
        labels = np.where(photon, PHOTON, HADRON)
    except InputError as error:
        remarks.append(f"{dataset.path}: the efficiency of cuts and trigger is not known, and no flux: {error}")
    group = np.asarray(dataset.groups) if dataset.groups is not None else np.arange(len(dataset))
    events = SimulatedSearch(
        **vars(_events(log_proba, columns, rows, 0)),
        labels=labels[rows],
        weight=weight[rows],
        group=group[rows],
        true_lg_energy=None if truth is None else truth["lg_energy"].to_numpy().astype(np.float64)[rows],
        model=None if truth is None else model_numbers(truth)[rows],
    )
    return events.take(search_cuts(zenith_max_deg).mask(columns)), thrown, remarks


def _events(log_proba: np.ndarray, columns: dict[str, np.ndarray], rows: np.ndarray, folder: int) -> SearchEvents:
    return SearchEvents(
        score=gamma_scores(log_proba),
        lg_energy=columns["E"].astype(np.float64),
        lg_energy_hadron=columns["E"].astype(np.float64),
        zenith_deg=columns["Ze"].astype(np.float64),
        lg_ne=columns["Ne"].astype(np.float64),
        lg_nmu=columns["Nmu"].astype(np.float64),
        folder=np.full(len(rows), folder),
        row=rows,
    )
