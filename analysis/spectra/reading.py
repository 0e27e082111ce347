"""Measured and simulated events for spectra: predictions of one run under one set of cuts, and the primaries behind.

A dataset folder holds accepted events only. For sets of the embedded simulation the primaries that they were selected
from follow from ``source.json``: they are thrown again from its seed, which takes seconds. That they are the right ones
is checked on the energies in ``truth.parquet``, event by event. For converted sets the published law by which showers
were thrown is normalised on each class's plateau (:func:`showerstack.analysis.spectra.folding.plateau_thrown`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from showerstack.analysis.cuts import add_flows, describe_flow, published_cuts
from showerstack.analysis.events import (
    MeasuredFolders,
    holdout_events,
    model_numbers,
    predict_folder,
    refuse_training_set,
    scalars,
    truth_of,
)
from showerstack.analysis.spectra.folding import (
    CUT_MARGIN,
    EFFICIENCY_ERROR,
    PLATEAU_EFFICIENCY,
    PLATEAU_LG_ENERGY,
    STEP_LG_ENERGY,
    numbers_of_copied_showers,
    plateau_thrown,
)
from showerstack.analysis.spectra.moving import DEPOSITS, moved_summaries
from showerstack.analysis.spectra.response import Binning, MassGroups, Simulated, SpectrumEvents, Thrown
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError
from showerstack.showers.array import KASCADE, array_of
from showerstack.showers.dataset import Dataset
from showerstack.showers.identity import refuse_part
from showerstack.showers.kascade import LG_NE_MIN, LG_NMU_MIN, ZENITH_MAX_DEG, reconstructed_energy
from showerstack.showers.protocols import CutSet
from showerstack.showers.schema import SIMULATION, Task
from showerstack.showers.simulation.blocks import PRIMARIES_PER_BLOCK, BlockJob, random_generator
from showerstack.showers.simulation.datasets import task_of_source
from showerstack.showers.simulation.primaries import MODELS, Primaries, throw_primaries
from showerstack.showers.simulation.settings import Spectrum, load_settings
from showerstack.showers.writer import EVENTS
from showerstack.stacking.prediction.run import Run

UNKNOWN = "the number of generated primaries is not known"
SEED_OF_A_SET = ("world", "settings_hash", "task", "split", "seed", "model", "cuts", "reuse")
"""Entries of source.json from which the primaries of a set follow."""


def thrown_primaries(
    source: Mapping[str, Any],
    truth: pl.DataFrame,
    lg_energy_edges: np.ndarray,
    zenith_max_deg: float,
    counted_as: Callable[[Primaries, Spectrum], tuple[np.ndarray, np.ndarray]] | None = None,
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
    counted_as
        Gives the classes and weights (N,) by which primaries are counted; None: their labels, each once.
    """
    missing = [name for name in SEED_OF_A_SET if name not in source]
    if source.get("generator") != SIMULATION or missing:
        raise InputError(f"{UNKNOWN}: source.json is not that of a set of the embedded simulation")
    if array_of(source) != KASCADE:
        raise InputError(f"{UNKNOWN}: the set is of another array than KASCADE, with another disc of cores")
    settings = load_settings(str(source["world"]))
    if settings.digest() != source.get("settings_hash"):
        raise InputError(f"{UNKNOWN}: the simulated world {source['world']!r} has been changed since")
    if truth.height != source.get(EVENTS, truth.height):
        raise InputError(f"{UNKNOWN}: {truth.height:,} of {source[EVENTS]:,} events are there")
    task = task_of_source(source)
    job = BlockJob(
        task, str(source["split"]), int(source["seed"]), str(source["model"]), str(source["cuts"]), settings,
        int(source["reuse"]),
    )  # fmt: skip
    shower = truth["shower"].to_numpy()
    energy = truth["lg_energy"].to_numpy()
    counts = np.zeros((len(MODELS), task.labels[-1] + 1, len(lg_energy_edges) - 1))
    last = int(shower.max())
    n_showers = -(-PRIMARIES_PER_BLOCK // job.reuse)
    for block in range(last // PRIMARIES_PER_BLOCK + 1):
        primaries = throw_primaries(task, n_showers, job.model, settings.spectrum, random_generator(job, block))
        first = block * PRIMARIES_PER_BLOCK
        in_block = (shower >= first) & (shower < first + PRIMARIES_PER_BLOCK)
        if not np.allclose(primaries.lg_energy[shower[in_block] - first], energy[in_block], atol=1e-5, rtol=0):
            raise InputError(f"{UNKNOWN}: the simulation's code has been changed since the set was made")
        number = np.arange(n_showers)
        times = np.bincount(np.repeat(number, job.reuse)[:PRIMARIES_PER_BLOCK], minlength=n_showers)
        counted = (first + number <= last) & (primaries.zenith_deg < zenith_max_deg)
        fine = np.searchsorted(lg_energy_edges, primaries.lg_energy, side="right") - 1
        counted &= (fine >= 0) & (fine < counts.shape[2])
        label, weight = (primaries.label, 1.0) if counted_as is None else counted_as(primaries, settings.spectrum)
        index = (primaries.model[counted], label[counted], fine[counted])
        np.add.at(counts, index, (times * weight)[counted])
    return Thrown(np.asarray(lg_energy_edges), counts)


TRUTH_COLUMNS = ("lg_energy", "model")
DEPOSITS_REMARK = (
    "posteriors move with the muon and electron scales as those of showers whose deposits were multiplied: derivatives "
    "of the counts are right to 10 to 30 %; sets simulated here at KASCADE are simulated again instead"
)
REGRESSION_REMARK = (
    "posteriors move with the muon and electron scales by a regression on sizes and zenith angle: derivatives of the "
    "counts are up to 27 % wrong; give --simulation, whose showers are then moved and predicted again"
)
MIN_HOLDOUT = 200
"""Held-out events of each class from which they alone are used."""


@dataclass(frozen=True)
class Response:
    """Simulated events with what is known of their origin."""

    events: Simulated
    """Also events up to :data:`showerstack.analysis.spectra.folding.CUT_MARGIN` below the cuts in lg Ne and lg Nmu."""
    thrown: Thrown
    remarks: tuple[str, ...]

    @property
    def passing(self) -> Simulated:
        """The events that pass the cuts."""
        return self.events.take((self.events.lg_ne > LG_NE_MIN) & (self.events.lg_nmu > LG_NMU_MIN))


def spectra_cuts(zenith_max_deg: float, margin: float = 0.0) -> CutSet:
    """Return the cuts of the spectra; those in lg Ne and lg Nmu looser by a margin."""
    return published_cuts(zenith_max_deg, LG_NMU_MIN - margin, LG_NE_MIN - margin)


def read_measured(
    run: Run, folders: list[Path], zenith_max_deg: float, ctx: Context = Context(), keep: Path | None = None
) -> tuple[SpectrumEvents, np.ndarray, list[str], list[str], dict[str, int]]:
    """Predict measured events.

    Returns
    -------
    SpectrumEvents, (N,) numbers of their folders, fingerprints of the folders, remarks, events after each cut.
    """
    parts: list[SpectrumEvents] = []
    measured = MeasuredFolders(run, folders, ctx, keep)
    for dataset, predictions in measured:
        whole = _events(run.task, predictions.log_proba, predictions.labels, scalars(dataset))
        parts.append(whole.take(measured.passing(dataset, spectra_cuts(zenith_max_deg))))
    events = SpectrumEvents.joined(parts)
    if not len(events):
        raise InputError(f"{folders[0]}: no event passes the cuts; left after each: {describe_flow(measured.flows)}")
    runs = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    return events, runs, measured.fingerprints, measured.remarks, add_flows(measured.flows)


def read_response(
    run: Run,
    folders: list[Path],
    data_prints: list[str],
    bins: Binning,
    zenith_max_deg: float,
    ctx: Context = Context(),
    keep: Path | None = None,
    *,
    moved: bool = True,
) -> Response:
    """Predict labelled simulated sets that the run was not trained on, or take its own held-out events.

    Unless ``moved`` is false their posteriors are also predicted with other muon and electron numbers.
    """
    if not folders:
        return holdout_response(run, bins, zenith_max_deg)
    parts: list[Simulated] = []
    thrown: list[Thrown] = []
    remarks: list[str] = []
    for number, folder in enumerate(folders):
        dataset = Dataset.open(folder, run.task)
        refuse_training_set(run, dataset, "--simulation")
        refuse_part(dataset)
        if dataset.fingerprint() in data_prints:
            raise InputError(f"{folder} is both --data and --simulation: the response must come from other showers")
        predictions = predict_folder(run, folder, ctx, keep)
        remarks += predictions.remarks
        used = spectra_cuts(zenith_max_deg, CUT_MARGIN).mask(scalars(dataset))
        y_again, how = moved_summaries(run, dataset, ctx, keep, used) if moved else (None, "")
        if how == DEPOSITS:
            remarks.append(f"{folder}: {DEPOSITS_REMARK}")
        events, primaries, new_remarks = _simulated(
            run.task, dataset, predictions.log_proba, predictions.labels, np.arange(len(dataset)), bins, zenith_max_deg,
            number, moved=y_again,
        )  # fmt: skip
        parts.append(events)
        thrown.append(primaries)
        remarks += new_remarks
    return Response(Simulated.joined(parts), sum(thrown[1:], thrown[0]), tuple(remarks))


def holdout_response(run: Run, bins: Binning, zenith_max_deg: float) -> Response:
    """Return the run's own held-out training events: those of its outer holdout, or all out-of-fold ones."""
    holdout = holdout_events(run, lambda values: spectra_cuts(zenith_max_deg).mask(values), MIN_HOLDOUT)
    dataset, rows, log_proba = holdout.dataset, holdout.rows, holdout.log_proba
    assert dataset.labels is not None
    shipped = run.chain.shipped
    predicted_labels = run.chain.predictions({shipped: log_proba}, None, None).labels
    events, thrown, new_remarks = _simulated(
        run.task, dataset, log_proba, predicted_labels, rows, bins, zenith_max_deg, 0, holdout.shares
    )
    return Response(events, thrown, (*holdout.remarks, REGRESSION_REMARK, *new_remarks))


def undo_rounding(lg_energy: np.ndarray, lg_ne: np.ndarray, lg_nmu: np.ndarray, zenith_deg: np.ndarray) -> np.ndarray:
    """Return lg E as it was before it was rounded to float16, where all values (N,) may have been.

    Rounded, lg E lies on a comb of 1/128, from 16 on of 1/64. Bins of .1 hold six or seven teeth, and expectations
    jump where a scale moves a tooth over a border. The energy is a function of sizes and zenith, which are rounded ten
    times less; it is taken within what the rounding leaves open.
    """
    lg_energy = np.asarray(lg_energy, dtype=np.float64)
    short = lg_energy.astype(np.float16)
    if not np.array_equal(lg_energy, short, equal_nan=True):
        return lg_energy
    half = np.spacing(np.nan_to_num(short)).astype(np.float64) / 2
    formula = reconstructed_energy(lg_ne.astype(np.float64), lg_nmu.astype(np.float64), zenith_deg.astype(np.float64))
    return np.clip(formula, lg_energy - half, lg_energy + half)


def _events(task: Task, log_proba: np.ndarray, predicted: np.ndarray, columns: dict[str, np.ndarray]) -> SpectrumEvents:
    names = ("E", "Ne", "Nmu", "Ze")
    return SpectrumEvents(
        log_proba=log_proba,
        predicted=np.asarray(predicted, dtype=np.int64),
        lg_energy=undo_rounding(*(columns[name] for name in names)),
        lg_ne=columns["Ne"].astype(np.float64),
        lg_nmu=columns["Nmu"].astype(np.float64),
        zenith_deg=columns["Ze"].astype(np.float64),
        groups=MassGroups.of(task),
    )


def _simulated(
    task: Task,
    dataset: Dataset,
    log_proba: np.ndarray,
    predicted: np.ndarray,
    rows: np.ndarray,
    bins: Binning,
    zenith_max_deg: float,
    number: int,
    shares: np.ndarray | None = None,
    *,
    moved: np.ndarray | None = None,
) -> tuple[Simulated, Thrown, list[str]]:
    """Return the chosen events of a set, the primaries behind them, and remarks.

    ``shares`` (C,) are those of all events under the cuts that the rows are; None: all. ``moved`` (N, 4) are mass
    summaries of the chosen events, predicted again.
    """
    columns = {name: column[rows] for name, column in scalars(dataset).items()}
    assert dataset.labels is not None
    truth = truth_of(dataset, TRUTH_COLUMNS)
    if truth is None:
        raise InputError(f"{dataset.path} has no truth.parquet: spectra need simulated events with true energies; "
                         "convert raw archives with their true_features files, or simulate")  # fmt: skip
    group = np.asarray(dataset.groups) if dataset.groups is not None else np.arange(len(dataset))
    events = Simulated(
        **vars(_events(task, log_proba, predicted, columns)),
        labels=task.encoded(np.asarray(dataset.labels, dtype=np.int64)[rows]),
        true_lg_energy=truth["lg_energy"].to_numpy().astype(np.float64)[rows],
        model=model_numbers(truth)[rows],
        group=group[rows].astype(np.int64) + (number << 40),
        y_again=np.full((len(rows), 4), np.nan) if moved is None else moved,
    )
    known = np.isfinite(truth["lg_energy"].to_numpy()[rows])
    if zenith_max_deg > ZENITH_MAX_DEG and _is_cut(dataset.source):
        raise InputError(f"{dataset.path} holds zenith angles below {ZENITH_MAX_DEG:g} degrees only: give a smaller "
                         f"--zenith-max than {zenith_max_deg:g}, or a set without cuts")  # fmt: skip
    passing = spectra_cuts(zenith_max_deg).mask(columns) & known
    near = events.take(spectra_cuts(zenith_max_deg, CUT_MARGIN).mask(columns) & known)
    below = [bool((near.lg_ne <= LG_NE_MIN).any()), bool((near.lg_nmu <= LG_NMU_MIN).any())]
    near = replace(near, mirrored=np.tile(~np.array(below), (len(near), 1)))
    try:
        numbered = truth_of(dataset, (*TRUTH_COLUMNS, "shower"))
        assert numbered is not None
        thrown = thrown_primaries(dataset.source, numbered, bins.fine, zenith_max_deg)
    except InputError as error:
        thrown, why = None, str(error)
    if thrown is not None:
        share = np.ones(1) if shares is None else shares[None, :, None]
        return near, Thrown(thrown.lg_energy_edges, thrown.counts[:, list(task.labels)] * share), []
    right = "right to about 1 %, with few events to 1 / sqrt(events there), which is part of the simulation's error"
    remarks = [
        f"{dataset.path}: the generated primaries were recovered from each class's plateau, lg(E/eV) > "
        f"{PLATEAU_LG_ENERGY:g}, as E^-2 ({why}): absolute fluxes are "
        f"{right if dataset.array.is_of_kascade else 'not known'}"
    ]
    thrown = plateau_primaries(events.take(passing), bins)
    near, left_out = without_unknown(near, thrown)
    return near, thrown, [*remarks, *(f"{dataset.path}: {line}" for line in left_out)]


def _is_cut(source: Mapping[str, Any]) -> bool:
    """Return whether a set holds only events that pass the benchmark's cuts."""
    if "cuts" in source:
        return bool(source["cuts"] != "none")
    return source.get("protocol") in ("matched", "2026") or source.get("split") == "test"


def plateau_primaries(accepted: Simulated, bins: Binning) -> Thrown:
    """Return the primaries behind accepted events of sets thrown by the public law, by hadronic model, with errors.

    They are 0 for a class of which a model has no event on the plateau.
    """
    assert accepted.model is not None
    assert accepted.true_lg_energy is not None
    n_classes, names = len(accepted.groups), accepted.groups.names
    counts = np.zeros((len(MODELS), n_classes, len(bins.fine) - 1))
    changes: list[np.ndarray] = []
    for number in np.unique(accepted.model):
        of_model = accepted.take(accepted.model == number)
        assert of_model.true_lg_energy is not None
        counts[number], moved = plateau_thrown(
            of_model.labels,
            of_model.true_lg_energy,
            bins.fine,
            accepted.groups,
            numbers_of_copied_showers(of_model.group),
        )
        for one in moved:
            changes.append(np.zeros_like(counts))
            changes[-1][number] = one
    missing = np.flatnonzero(counts.sum(axis=(0, 2)) == 0)
    if len(missing):
        raise InputError(
            f"--simulation: no {names[missing[0]]} event lies on the plateau, lg(E/eV) {PLATEAU_LG_ENERGY:g} to "
            f"{STEP_LG_ENERGY:g}: the number of generated primaries cannot be recovered; give a larger --simulation"
        )
    common = np.zeros((n_classes, *counts.shape))
    for k, efficiency in enumerate(accepted.groups.means_of_five(PLATEAU_EFFICIENCY)):
        common[k][:, k] = counts[:, k] * EFFICIENCY_ERROR / efficiency
    return Thrown(bins.fine, counts, tuple(changes), tuple(common))


def without_unknown(events: Simulated, thrown: Thrown) -> tuple[Simulated, list[str]]:
    """Return the events whose primaries are known, and remarks on the classes of models that are left out."""
    assert events.model is not None
    known = thrown.counts.sum(axis=2) > 0
    used = known[events.model, events.labels]
    remarks = []
    for model in np.unique(events.model):
        for k in np.flatnonzero(~known[model]):
            n, name = int(((events.model == model) & (events.labels == k)).sum()), events.groups.names[k]
            remarks.append(
                f"hadronic model {model} has no {name} event on the plateau: its {n} {name} events are left "
                "out, and the model is not compared with others"
            )
    return events.take(used), remarks
