"""The whole data check: weights, four tests with one pass over the data, and what follows from them in sentences."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from showerstack.analysis.datacheck.sample import (
    MAX_EVENTS,
    DataSample,
    Reference,
    open_sample,
    predict_rows,
    read_reference,
    with_dead_detectors,
)
from showerstack.analysis.datacheck.streamed import (
    CHANNELS,
    Difference,
    Histograms,
    RowOrder,
    StationHits,
    compare_stations,
    shifts_of_runs,
)
from showerstack.analysis.datacheck.weights import FittedWeights, fit_weights
from showerstack.analysis.datacheck.zenith import MassEvents, ZenithTest, zenith_bands
from showerstack.analysis.events import refuse_training_set
from showerstack.features.catalogue import CATALOGUE
from showerstack.runtime.context import Bars, Context
from showerstack.runtime.errors import InputError
from showerstack.runtime.logs import remark
from showerstack.runtime.options import Count, Limits, Place, Seed, checked
from showerstack.showers.archives.measured import measured_folders
from showerstack.showers.dataset import Dataset
from showerstack.showers.event_files import zero_if_not_finite
from showerstack.showers.kascade import mass_moments
from showerstack.showers.schema import COMPOSITION, LABEL_FILES
from showerstack.stacking.prediction.run import load

LOG = logging.getLogger(__name__)

CHOSEN_EVENTS = 30_000
"""Random data for what cannot be streamed: posteriors and stations."""
LEAST_EVENTS = 200
ALARMS = 0.05
"""Share of samples of the simulation's own world that the whole check may call different."""
ORDERED = ("E", "Ze", "Ne", "Nmu", "ne_minus_nmu", "fit_age")
"""Quantities by which the order of rows is tested: energy, direction and what tells primaries apart."""
TESTS = {
    "features": "distributions of features by energy",
    "stations": "hits of stations",
    "trend": "trend along the rows and from run to run",
    "zenith": "composition in three zenith bands at equal energy",
}


@dataclass(frozen=True)
class DataCheck:
    """All that the check found."""

    run: Path
    data: Path
    n_events: int
    """Data that pass the cuts."""
    n_all: int
    classes: tuple[str, ...]
    fitted: FittedWeights
    n_simulation: int
    p_values: dict[str, float]
    """Per test, the smallest p adjusted within it."""
    alarms: float
    """Stated rate of false alarms of the whole check."""
    histograms: Histograms
    differences: list[Difference]
    stations: StationHits
    order: dict[str, float]
    """Per quantity, the p that rows are in random order."""
    zenith: ZenithTest | None
    """None where classes are not nuclei, or a band has too few events."""
    run_names: tuple[str, ...]
    run_p: np.ndarray
    """(F,) adjusted p of each feature's stability; empty for one run."""
    run_residuals: np.ndarray
    """(runs, F)."""
    remarks: tuple[str, ...]

    @property
    def raised(self) -> list[str]:
        """The tests that raise an alarm; each may do so in alarms / tests of good samples (Bonferroni)."""
        return [name for name, p in self.p_values.items() if p * len(self.p_values) < self.alarms]


@checked
def check_data(
    run: Place,
    data: Place,
    *,
    train: Place | None = None,
    seed: Seed = 1,
    alarms: Annotated[float, Limits(gt=0, lt=1)] = ALARMS,
    chosen: Count = CHOSEN_EVENTS,
    reference: Count = MAX_EVENTS,
    ctx: Context = Context(),
) -> DataCheck:
    """Compare unlabelled data with the simulation that a run was trained on.

    Parameters
    ----------
    run
        Finished run of a benchmark task.
    data
        Dataset folder, or folder of runs; labels are neither needed nor looked at.
    train
        The run's training set, if it has moved.
    alarms
        Rate of false alarms of the whole check on samples of the simulation's own world.
    chosen, reference
        Largest numbers of data for posteriors and stations, and of simulated events.
    """
    opened_run = load(Path(run))
    opened_run.require_showers("a data check")
    for folder_of_data in measured_folders(
        Path(data)
    ):  # what is missing or damaged is said before the training set is read
        refuse_training_set(opened_run, Dataset.open(folder_of_data, labels=False), "DATA")
    simulation = read_reference(opened_run, Path(train) if train else None, seed=seed, max_events=reference, ctx=ctx)
    sample = open_sample(opened_run, Path(data), simulation, ctx)
    if len(sample) < LEAST_EVENTS:
        raise InputError(f"{data}: {len(sample)} events pass the cuts, at least {LEAST_EVENTS} are needed")
    rows = sample.choose_rows(chosen, seed)
    posteriors = predict_rows(opened_run, sample, rows, ctx)
    scalars = [f.data.scalars[r, :2] for f, r in zip(sample.folders, rows, strict=True)]
    energy, zenith = zero_if_not_finite(np.concatenate(scalars).astype(np.float64)).T
    s = simulation
    fitted = fit_weights(s.labels, s.lg_energy, s.reconstructed, s.log_proba, energy, posteriors)
    masked, folder = with_dead_detectors(simulation, sample, ctx)
    histograms, order = _stream(sample, simulation, masked, fitted.weights, ctx.bars)
    stations = compare_stations(
        [(f.data, r) for f, r in zip(sample.folders, rows, strict=True)], s.data, s.rows, fitted.weights
    )
    differences, ordered = histograms.differences(), order.p_values()
    several = len(sample.folders) > 1
    moved = shifts_of_runs(s.values, masked, fitted.weights, folder, len(sample.folders))
    run_p, residuals = histograms.unstable(*moved) if several else (np.zeros(0), np.zeros((1, 0)))
    p_values = {
        "features": min((d.p for d in differences), default=1.0),
        "stations": float(stations.p.min()),
        "trend": min(1.0, 2 * min(*ordered.values(), float(run_p.min()))) if several else min(ordered.values()),
    }
    bands = None
    if opened_run.task.name == COMPOSITION.name and {"E", "Ze"} <= set(s.data.quantities):
        of_data = MassEvents(energy, zenith, mass_moments(posteriors, opened_run.task)[0], np.ones(len(energy)))
        angles = np.asarray(s.data.scalars[s.rows, 1], dtype=np.float64)
        bands = zenith_bands(
            of_data, MassEvents(s.reconstructed, angles, mass_moments(s.log_proba, opened_run.task)[0], fitted.weights)
        )
    if bands is not None:
        p_values["zenith"] = bands.p
    remarks = _remarks(sample, simulation, fitted)
    remark(LOG, remarks)
    return DataCheck(
        run=Path(run),
        data=Path(data),
        n_events=len(sample),
        n_all=sum(len(folder.data) for folder in sample.folders),
        classes=opened_run.task.classes,
        fitted=fitted,
        n_simulation=len(simulation),
        p_values=p_values,
        alarms=alarms,
        histograms=histograms,
        differences=differences,
        stations=stations,
        order=ordered,
        zenith=bands,
        run_names=tuple(folder.name for folder in sample.folders),
        run_p=run_p,
        run_residuals=residuals,
        remarks=remarks,
    )


def _stream(
    sample: DataSample, simulation: Reference, values: np.ndarray, weights: np.ndarray, bars: Bars
) -> tuple[Histograms, RowOrder]:
    """Go once through the data."""
    s, names = simulation, sample.columns
    histograms = Histograms.of(names, values, weights, s.reconstructed, len(sample.folders))
    positions = tuple(names.index(name) for name in ORDERED if name in names)
    order = RowOrder(
        names=tuple(names[k] for k in positions),
        columns=positions,
        lengths=tuple(len(folder.data) for folder in sample.folders),
        centre=np.nanmean(values[:, positions].astype(np.float64), axis=0),
    )
    done = 0
    with bars("data check", "events") as progress:
        for piece in sample.pieces():
            histograms.add(piece)
            order.add(piece)
            done += len(piece.rows)
            progress(done, len(sample))
    return histograms, order


def _remarks(sample: DataSample, simulation: Reference, fitted: FittedWeights) -> tuple[str, ...]:
    remarks = [
        f"{folder.data.path} holds labels ({name}), which measured events cannot have: they were not opened"
        for folder in sample.folders
        for name in LABEL_FILES
        if (folder.data.path / name).exists()
    ]
    if not simulation.true_energy:
        remarks.append(
            "the training set does not tell true energies: spectra were fitted in reconstructed energy, so that "
            "small differences may be migration in energy"
        )
    if fitted.uncovered > 0.001:
        remarks.append(
            f"{100 * fitted.uncovered:.1f} % of the data have energies at which the training set has no events: "
            "nothing can be said of them"
        )
    if fitted.effective < 0.1 * len(simulation):
        remarks.append(
            f"the weighted simulation is worth {fitted.effective:,.0f} of {len(simulation):,} events: "
            "the spectra differ much, and small differences go unnoticed"
        )
    return tuple(remarks)


def as_json(check: DataCheck) -> dict[str, Any]:
    """Return the numbers of a data check for a file."""
    return {
        "run": check.run.name,
        "data": check.data.name,
        "events": check.n_events,
        "events_before_cuts": check.n_all,
        "simulated_events": check.n_simulation,
        "effective_simulated_events": check.fitted.effective,
        "fractions": {name: float(f) for name, f in zip(check.classes, check.fitted.fractions, strict=True)},
        "false_alarm_rate": check.alarms,
        "p_values": check.p_values,
        "alarms": check.raised,
        "differences": [
            {"feature": d.feature, "energy_bin": d.energy_bin, "p": d.p}
            | {"shift": _or_none(d.shift), "sigmas": _or_none(d.sigmas)}
            for d in check.differences[:50]
        ],
        "order": check.order,
        "zenith": None
        if check.zenith is None
        else {"p": check.zenith.p, "effect_mean_ln_a": check.zenith.effect, "error": check.zenith.error},
        "remarks": list(check.remarks),
    }


def _or_none(value: float) -> float | None:
    return value if np.isfinite(value) else None


SMALL_P = 0.001


def verdict(check: DataCheck) -> str:
    """Return in plain words whether the simulation describes the data, and if not, why."""
    limit = check.alarms / len(check.p_values)
    if not check.raised:
        name, p = min(check.p_values.items(), key=lambda item: item[1])
        return (
            f"Nothing in {check.n_events:,} events speaks against the simulation: the smallest of "
            f"{len(check.p_values)} p-values ({name}) is {p:.2g}, an alarm is given below {limit:.2g}."
        )
    return f"The simulation does not describe these events: {'; '.join(reasons(check))}."


def reasons(check: DataCheck) -> list[str]:
    """Return one clause for each test that raises an alarm."""
    clauses = []
    raised = set(check.raised)
    if "features" in raised:
        best = check.differences[0]
        n = len({d.feature for d in check.differences if d.p < SMALL_P})
        unit = CATALOGUE[best.feature].unit if best.feature in CATALOGUE else "1"
        unit = "" if unit == "1" else f" {unit}"
        found = f"{n} feature{' is' if n == 1 else 's are'} distributed otherwise"
        if not n:  # the test of all has a limit of its own
            found = f"no feature has p < {SMALL_P:g}, but p = {check.p_values['features']:.2g} is too small for so many"
        clauses.append(
            f"{found}, most of all {best.feature} (mean shifted by {best.shift:+.3g}{unit}, "
            f"{best.sigmas:+.2f} standard deviations)"
        )
    if "stations" in raised:
        clauses.append(_describe_stations(check))
    if "zenith" in raised and check.zenith is not None:
        clauses.append(
            f"{TESTS['zenith']}: {check.zenith.effect:+.3f} ± {check.zenith.error:.3f} in mean ln A, of one band"
        )
    if "trend" in raised:
        clauses.append(_describe_trend(check))
    return clauses


def _describe_trend(check: DataCheck) -> str:
    """Name what has the smaller p: a quantity along the rows, or a run."""
    name = min(check.order, key=lambda key: check.order[key])
    if not check.run_p.size or check.order[name] < check.run_p.min():
        return f"rows are ordered: {name} of neighbours agrees, or changes along the file"
    run, feature = np.unravel_index(np.abs(check.run_residuals).argmax(), check.run_residuals.shape)
    return f"runs differ from each other, most of all {check.run_names[run]} in {check.histograms.names[feature]}"


def _describe_stations(check: DataCheck) -> str:
    off = np.argwhere(check.stations.p * len(check.p_values) < check.alarms)
    dead = [cell for cell in off if check.stations.data[tuple(cell)] == 0]
    pieces = []
    for number, name in enumerate(CHANNELS):
        of_channel = [cell for cell in off if cell[2] == number]
        silent = sum(1 for cell in dead if cell[2] == number)
        if of_channel:
            row, column, _ = of_channel[0]
            pieces.append(
                f"{len(of_channel)} {name} stations (such as row {row}, column {column}; {silent} of them silent)"
            )
    return f"hit too often or too rarely: {' and '.join(pieces)}"
