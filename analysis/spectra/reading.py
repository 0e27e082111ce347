"""Measured and simulated events for spectra: predictions of one run under one set of cuts, and the primaries behind.

A dataset folder holds accepted events only. For sets of the embedded simulation the primaries that they were selected
from follow from ``source.json``: they are thrown again from its seed, which takes seconds. That they are the right ones
is checked on the energies in ``truth.parquet``, event by event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from analysis.events import MeasuredFolders, held_out, model_numbers, refuse_training_set, scalars, truth_of
from analysis.spectra.response import Binning, Simulated, SpectrumEvents, Thrown
from runtime.context import Context
from runtime.errors import InputError
from showers.dataset import Dataset
from showers.schema import SIMULATION, task_named
from showers.simulation.blocks import PRIMARIES_PER_BLOCK, BlockJob, generator
from showers.simulation.primaries import MODELS, throw_primaries
from showers.simulation.settings import load_settings
from stacking.predict import predict
from stacking.run.read import Run

UNKNOWN = "how many primaries were thrown is not known"


def thrown_primaries(
    source: Mapping[str, Any], truth: pl.DataFrame, lg_energy_edges: np.ndarray, zenith_max_deg: float
) -> Thrown:
    """Count the primaries behind a simulated set.

    Parameters
    ----------
    source
        Content of ``source.json``.
    truth
        ``truth.parquet`` with the columns shower and lg_energy, in the order of the set.
    lg_energy_edges
        (T + 1,) borders of the true lg(E/eV).
    zenith_max_deg
        Primaries beyond this true zenith angle are not counted; the exposure's limit.

    Raises
    ------
    InputError
        If the set is not of the embedded simulation, of a world that is no longer there, or does not fit.
    """
    if source.get("generator") != SIMULATION:
        raise InputError(f"{UNKNOWN}: source.json does not name the embedded simulation")
    settings = load_settings(str(source["world"]))
    if settings.digest() != source.get("settings_hash"):
        raise InputError(f"{UNKNOWN}: the simulated world {source['world']!r} has been changed since")
    task = task_named(str(source["task"]))
    job = BlockJob(
        task, str(source["split"]), int(source["seed"]), str(source["model"]), str(source["cuts"]), settings,
        int(source["reuse"]),
    )  # fmt: skip
    shower = truth["shower"].to_numpy()
    energy = truth["lg_energy"].to_numpy()
    counts = np.zeros((len(MODELS), task.n_classes, len(lg_energy_edges) - 1))
    last = int(shower.max())
    n_showers = -(-PRIMARIES_PER_BLOCK // job.reuse)
    for block in range(last // PRIMARIES_PER_BLOCK + 1):
        primaries = throw_primaries(task, n_showers, job.model, settings.spectrum, generator(job, block))
        first = block * PRIMARIES_PER_BLOCK
        here = (shower >= first) & (shower < first + PRIMARIES_PER_BLOCK)
        if not np.allclose(primaries.lg_energy[shower[here] - first], energy[here], atol=1e-5, rtol=0):
            raise InputError(f"{UNKNOWN}: the simulation's code has been changed since the set was made")
        number = np.arange(n_showers)
        times = np.bincount(np.repeat(number, job.reuse)[:PRIMARIES_PER_BLOCK], minlength=n_showers)
        counted = (first + number <= last) & (primaries.zenith_deg < zenith_max_deg)
        fine = np.searchsorted(lg_energy_edges, primaries.lg_energy, side="right") - 1
        counted &= (fine >= 0) & (fine < counts.shape[2])
        where = (primaries.model[counted], primaries.label[counted], fine[counted])
        np.add.at(counts, where, times[counted])
    return Thrown(np.asarray(lg_energy_edges), counts)


LG_NE_MIN, LG_NMU_MIN = 4.8, 3.6
"""Cuts of published spectra (JINST 19 (2024) P01025), with the zenith angle; compared in float32."""
TRUTH_COLUMNS = ("lg_energy", "model", "shower")
MIN_HELD_OUT = 200
"""Held-out events of each class from which they alone are used."""


@dataclass(frozen=True)
class Response:
    """Simulated events with what is known of their origin."""

    events: Simulated
    thrown: Thrown | None
    remarks: tuple[str, ...]


def selected(content: dict[str, np.ndarray], zenith_max_deg: float) -> np.ndarray:
    """Return which events pass the cuts of the spectra, (N,) bool."""
    return (
        (content["Ze"] < np.float32(zenith_max_deg))
        & (content["Ne"] > np.float32(LG_NE_MIN))
        & (content["Nmu"] > np.float32(LG_NMU_MIN))
    )


def read_measured(
    run: Run, folders: list[Path], zenith_max_deg: float, ctx: Context = Context()
) -> tuple[SpectrumEvents, list[str], list[str]]:
    """Predict measured events.

    Returns
    -------
    SpectrumEvents, fingerprints of the folders, remarks.

    Raises
    ------
    InputError
        If a folder cannot be used, is the training set, or is given twice.
    """
    parts: list[SpectrumEvents] = []
    measured = MeasuredFolders(run, folders, ctx)
    for dataset, predictions in measured:
        result = scalars(dataset)
        parts.append(_events(predictions.log_proba, predictions.labels, result).take(selected(result, zenith_max_deg)))
    every = concatenated(parts)
    if not len(every):
        raise InputError(f"{folders[0]}: no event passes zenith < {zenith_max_deg:g} deg, lg Ne > {LG_NE_MIN} and "
                         f"lg Nmu > {LG_NMU_MIN}")  # fmt: skip
    return every, measured.prints, measured.remarks


def read_response(
    run: Run,
    folders: list[Path],
    data_prints: list[str],
    bins: Binning,
    zenith_max_deg: float,
    ctx: Context = Context(),
) -> Response:
    """Predict labelled simulated sets that the run was not trained on, or take its own held-out events.

    Raises
    ------
    InputError
        If a set was trained on, is among the data, or lacks labels.
    """
    if not folders:
        return held_out_response(run, bins, zenith_max_deg)
    parts: list[Simulated] = []
    thrown: list[Thrown | None] = []
    remarks: list[str] = []
    for number, folder in enumerate(folders):
        dataset = Dataset.open(folder, run.task)
        refuse_training_set(run, dataset, "--simulation")
        if dataset.fingerprint() in data_prints:
            raise InputError(f"{folder} is both --data and --simulation: the response must come from other showers")
        predictions = predict(run, folder, ctx).concatenated()
        remarks += predictions.remarks
        events, primaries, new_remarks = _simulated(
            dataset, predictions.log_proba, predictions.labels, np.arange(len(dataset)), bins, zenith_max_deg, number
        )
        parts.append(events)
        thrown.append(primaries)
        remarks += new_remarks
    return Response(joined_simulated(parts), _sum(thrown), tuple(remarks))


def held_out_response(run: Run, bins: Binning, zenith_max_deg: float) -> Response:
    """Return the run's own held-out training events: those of its outer holdout, or all out-of-fold ones.

    Raises
    ------
    InputError
        If the training set is no longer there.
    """
    result = held_out(run, lambda values: selected(values, zenith_max_deg), MIN_HELD_OUT)
    dataset, rows, log_proba = result.dataset, result.rows, result.log_proba
    assert dataset.labels is not None
    shipped = run.chain.shipped
    decided = run.chain.predictions({shipped: log_proba}, None, None).labels
    events, thrown, new_remarks = _simulated(dataset, log_proba, decided, rows, bins, zenith_max_deg, 0)
    if thrown is not None:
        thrown = Thrown(thrown.lg_energy_edges, thrown.counts * result.shares[None, :, None])
    return Response(events, thrown, (*result.remarks, *new_remarks))


def training_prior(run: Run, bins: Binning, zenith_max_deg: float, response: Response) -> tuple[np.ndarray, str]:
    """Return the class shares (B, C) among the training events of each energy bin, and a remark.

    The simulated events' own shares stand in where the training set is no longer there.
    """
    folder = Path(run.manifest["data"]["train"])
    if folder.exists():
        dataset = Dataset.open(folder, run.task)
        assert dataset.labels is not None
        result = scalars(dataset)
        passing = selected(result, zenith_max_deg)
        place, labels, remark = bins.place(result["E"][passing]), np.asarray(dataset.labels[passing]), ""
    else:
        place, labels = bins.place(response.events.lg_energy), response.events.labels
        remark = f"{folder} is not there: the simulated events' class shares stand for the training prior"
    prior = np.ones((bins.n_bins, run.task.n_classes))  # one event each: no class is ever impossible
    np.add.at(prior, (place[place >= 0], labels[place >= 0]), 1.0)
    return prior / prior.sum(axis=1, keepdims=True), remark


def _events(log_proba: np.ndarray, decided: np.ndarray, content: dict[str, np.ndarray]) -> SpectrumEvents:
    return SpectrumEvents(
        log_proba=log_proba,
        decided=np.asarray(decided, dtype=np.int64),
        lg_energy=content["E"].astype(np.float64),
        lg_ne=content["Ne"].astype(np.float64),
        lg_nmu=content["Nmu"].astype(np.float64),
        zenith_deg=content["Ze"].astype(np.float64),
    )


def _simulated(
    dataset: Dataset,
    log_proba: np.ndarray,
    decided: np.ndarray,
    rows: np.ndarray,
    bins: Binning,
    zenith_max_deg: float,
    number: int,
) -> tuple[Simulated, Thrown | None, list[str]]:
    result = {name: column[rows] for name, column in scalars(dataset).items()}
    assert dataset.labels is not None
    truth, thrown = truth_of(dataset, TRUTH_COLUMNS), None
    remarks: list[str] = []
    if truth is None:
        remarks.append(f"{dataset.path} has no truth.parquet: fluxes are not corrected for efficiency and migration")
    else:
        try:
            thrown = thrown_primaries(dataset.source, truth, bins.fine, zenith_max_deg)
        except InputError as error:
            remarks.append(f"{dataset.path}: fluxes are not corrected for efficiency and migration: {error}")
    group = np.asarray(dataset.groups) if dataset.groups is not None else np.arange(len(dataset))
    base = _events(log_proba, decided, result)
    events = Simulated(
        **vars(base),
        labels=np.asarray(dataset.labels, dtype=np.int64)[rows],
        true_lg_energy=None if truth is None else truth["lg_energy"].to_numpy().astype(np.float64)[rows],
        model=None if truth is None else model_numbers(truth)[rows],
        group=group[rows].astype(np.int64) + (number << 40),
    )
    return events.take(selected(result, zenith_max_deg)), thrown, remarks


def concatenated(parts: list[SpectrumEvents]) -> SpectrumEvents:
    """Return all events together."""
    return SpectrumEvents(**{name: np.concatenate([vars(part)[name] for part in parts]) for name in vars(parts[0])})


def joined_simulated(parts: list[Simulated]) -> Simulated:
    """Return all simulated events together; what one part does not know, none knows."""
    columns: dict[str, Any] = {}
    for name in vars(parts[0]):
        values = [vars(part)[name] for part in parts]
        columns[name] = None if any(value is None for value in values) else np.concatenate(values)
    return Simulated(**columns)


def _sum(thrown: list[Thrown | None]) -> Thrown | None:
    total = thrown[0]
    for one in thrown[1:]:
        total = None if total is None or one is None else total + one
    return total
