"""The whole data check: weights, six tests in one pass over the data, and what follows from them in sentences."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from showerstack.analysis.datacheck.physics import CheckedEvents, Consistency, consistency
from showerstack.analysis.datacheck.sample import MAX_EVENTS, Reference, Sample, open_sample, predicted, read_reference
from showerstack.analysis.datacheck.streamed import (
    CHANNELS,
    Difference,
    Histograms,
    RowOrder,
    StationHits,
    compare_stations,
)
from showerstack.analysis.datacheck.tests import ClassifierTest, Distance, Tail, classify
from showerstack.analysis.datacheck.weights import FittedWeights, fit_weights
from showerstack.features.catalogue import CATALOGUE
from showerstack.runtime.context import Bars, Context
from showerstack.runtime.errors import InputError
from showerstack.showers.archives.measured import measured_folders
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import COMPOSITION, TASKS, Task
from showerstack.stacking.run.read import load

CHOSEN_EVENTS = 30_000
"""Random data for what cannot be streamed: posteriors, classifier, stations."""
LEAST_EVENTS = 200
ALARMS = 0.05
"""Share of samples of the simulation's own world that the whole check may call different."""
ORDERED = ("E", "Ze", "Ne", "Nmu", "ne_minus_nmu", "fit_age")
"""Quantities by which the order of rows is tested: energy, direction and what tells primaries apart."""
TESTS = {
    "features": "distributions of features by energy",
    "classifier": "classifier between data and simulation",
    "distance": "distance of single events to the training sample",
    "stations": "hits of stations",
    "order": "order of rows",
    "runs": "stability from run to run",
    "zenith": "composition in three zenith bands at equal energy",
    "muons": "composition by muons alone against electrons and age",
    "tail": "slope of the muon-poor tail at equal lg Ne",
}
LN_A = np.log([1.0, 4.0, 12.0, 28.0, 56.0])
"""Of the composition classes, in label order."""


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
    classifier: ClassifierTest
    tails: list[Tail]
    farthest: list[tuple[float, str, int]]
    """Distance, folder and row of the events farthest from the training sample."""
    stations: StationHits
    order: dict[str, float]
    physics: dict[str, Consistency]
    """What has to agree if the simulation is right, by name."""
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

    @property
    def not_trusted(self) -> float:
        """Least share of the data that the simulation does not describe, as far as it can be told; 0 without alarm."""
        if not self.raised:
            return 0.0
        beyond = [(t.observed - t.expected) / (1 - t.expected) for t in self.tails] if "distance" in self.raised else []
        return max([self.classifier.at_least if "classifier" in self.raised else 0.0, *beyond, 0.0])


def check_data(
    run: Path,
    data: Path,
    *,
    train: Path | None = None,
    seed: int = 1,
    alarms: float = ALARMS,
    chosen: int = CHOSEN_EVENTS,
    reference: int = MAX_EVENTS,
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
    seed
        Of random choices and of the classifier.
    alarms
        Rate of false alarms of the whole check on samples of the simulation's own world.
    chosen, reference
        Largest numbers of data for posteriors, classifier and stations, and of simulated events.
    ctx
        As in :func:`showerstack.stacking.predict.predict`.

    Raises
    ------
    InputError
        If run, training set or data cannot be used, or too few data pass the cuts.
    """
    if not 0.0 < alarms < 1.0:
        raise InputError(f"alarms must be between 0 and 1, got {alarms:g}")
    opened = load(run)
    opened.require_showers("a data check")
    for place in measured_folders(Path(data)):  # what is missing or damaged is said before the training set is read
        Dataset.open(place, labels=False)
    simulation = read_reference(opened, train, seed=seed, max_events=reference, ctx=ctx)
    sample = open_sample(Path(data), simulation, ctx)
    if len(sample) < LEAST_EVENTS:
        raise InputError(f"{data}: {len(sample)} events pass the cuts, at least {LEAST_EVENTS} are needed")
    rows = sample.chosen(chosen, seed)
    posteriors = predicted(opened, sample, rows, ctx)
    energy = np.concatenate([f.data.scalars[r, 0] for f, r in zip(sample.folders, rows, strict=True)]).astype(
        np.float64
    )
    s = simulation
    fitted = fit_weights(s.labels, s.lg_energy, s.reconstructed, s.log_proba, energy, posteriors)
    histograms, distance, order = _streamed(sample, simulation, fitted.weights, ctx.bars)
    values = np.concatenate(
        [f.table.matrix(sample.columns, r) for f, r in zip(sample.folders, rows, strict=True)], dtype=np.float32
    )
    result = classify(sample.columns, values, s.values, fitted.weights, s.groups, seed=seed)
    stations = compare_stations(
        [(f.data, r) for f, r in zip(sample.folders, rows, strict=True)], s.data, s.rows, fitted.weights
    )
    differences, tails, ordered = histograms.differences(), distance.tails(), order.p_values()
    several = len(sample.folders) > 1
    run_p, residuals = histograms.unstable() if several else (np.zeros(0), np.zeros((1, 0)))
    p_values = {
        "features": min((d.p for d in differences), default=1.0),
        "classifier": result.p,
        "distance": min(1.0, len(tails) * min(t.p for t in tails)),
        "stations": float(stations.p.min()),
        "order": min(ordered.values()),
    }
    if several:
        p_values["runs"] = float(run_p.min())
    of_data = _checked(sample.columns, values, posteriors, opened.task, np.ones(len(values)))
    of_simulation = _checked(s.columns, s.values, s.log_proba, opened.task, fitted.weights)
    nuclei = of_data.mean_ln_a is not None
    physics = consistency(of_data, of_simulation, LN_A[s.labels] if nuclei else None)
    p_values |= {name: one.p for name, one in physics.items()}
    return DataCheck(
        run=Path(run),
        data=Path(data),
        n_events=len(sample),
        n_all=sum(len(folder.data) for folder in sample.folders),
        classes=opened.task.classes,
        fitted=fitted,
        n_simulation=len(simulation),
        p_values=p_values,
        alarms=alarms,
        histograms=histograms,
        differences=differences,
        classifier=result,
        tails=tails,
        farthest=[(d, sample.folders[k].name, row) for d, k, row in distance.farthest],
        stations=stations,
        order=ordered,
        physics=physics,
        run_names=tuple(folder.name for folder in sample.folders),
        run_p=run_p,
        run_residuals=residuals,
        remarks=_remarks(sample, simulation, fitted),
    )


def _checked(
    names: tuple[str, ...], values: np.ndarray, log_proba: np.ndarray, task: Task, weight: np.ndarray
) -> CheckedEvents:
    """Return what the physical checks need, from features (N, F) and posteriors (N, C)."""
    e, ze, ne, nmu, age = (
        values[:, names.index(name)].astype(np.float64) for name in ("E", "Ze", "Ne", "Nmu", "fit_age")
    )
    mean_ln_a = np.exp(log_proba) @ LN_A if task.name == COMPOSITION.name else None
    return CheckedEvents(e, ze, ne, nmu, age, mean_ln_a, weight)


def _streamed(
    sample: Sample, simulation: Reference, weights: np.ndarray, bars: Bars
) -> tuple[Histograms, Distance, RowOrder]:
    """Go once through the data."""
    s, names = simulation, sample.columns
    histograms = Histograms.of(names, s.values, weights, s.reconstructed, len(sample.folders))
    distance = Distance.of(s.values, weights)
    places = tuple(names.index(name) for name in ORDERED if name in names)
    order = RowOrder(
        names=tuple(names[k] for k in places),
        columns=places,
        lengths=tuple(len(folder.data) for folder in sample.folders),
        centre=np.nanmean(s.values[:, places].astype(np.float64), axis=0),
    )
    done = 0
    with bars("data check", "events") as progress:
        for piece in sample.pieces():
            histograms.add(piece)
            distance.add(piece.run, piece.rows, piece.values)
            order.add(piece)
            done += len(piece.rows)
            progress(done, len(sample))
    return histograms, distance, order


def _remarks(sample: Sample, simulation: Reference, fitted: FittedWeights) -> tuple[str, ...]:
    entries = [
        f"{folder.data.path} holds labels ({task.label_file}), which measured events cannot have: they were not opened"
        for folder in sample.folders
        for task in TASKS.values()
        if task.label_file and (folder.data.path / task.label_file).exists()
    ]
    if not simulation.true_energy:
        entries.append(
            "the training set does not tell true energies: spectra were fitted in reconstructed energy, so that "
            "small differences may be migration in energy"
        )
    if fitted.uncovered > 0.001:
        entries.append(
            f"{100 * fitted.uncovered:.1f} % of the data have energies at which the training set has no events: "
            "nothing can be said of them"
        )
    if fitted.effective < 0.1 * len(simulation):
        entries.append(
            f"the weighted simulation is worth {fitted.effective:,.0f} of {len(simulation):,} events: "
            "the spectra differ much, and small differences go unnoticed"
        )
    return tuple(entries)


def as_json(check: DataCheck) -> dict[str, Any]:
    """Return the numbers of a data check for a file."""
    c = check.classifier
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
        "not_trusted_at_least": check.not_trusted,
        "classifier": {
            "auc": c.auc,
            "interval": [c.low, c.high],
            "giving_away": dict(c.giving_away),
            "exchanged_at_least": c.at_least,
        },
        "tails": [{"quantile": t.quantile, "expected": t.expected, "seen": t.observed, "p": t.p} for t in check.tails],
        "farthest": [{"distance": d, "folder": folder, "row": row} for d, folder, row in check.farthest],
        "differences": [
            {"feature": d.feature, "energy_bin": d.energy_bin, "p": d.p}
            | {"shift": _or_none(d.shift), "sigmas": _or_none(d.sigmas)}
            for d in check.differences[:50]
        ],
        "order": check.order,
        "physics": {
            name: {"p": one.p, "effect": one.effect, "effect_error": one.error, "unit": one.unit}
            for name, one in check.physics.items()
        },
        "remarks": list(check.remarks),
    }


def _or_none(value: float) -> float | None:
    return value if np.isfinite(value) else None


SMALL_P = 0.001


def verdict(check: DataCheck) -> str:
    """Return what share of the data should not be trusted, and why, in plain words."""
    limit = check.alarms / len(check.p_values)
    if not check.raised:
        name, p = min(check.p_values.items(), key=lambda item: item[1])
        return (
            f"Nothing in {check.n_events:,} events speaks against the simulation: the smallest of "
            f"{len(check.p_values)} p-values ({name}) is {p:.2g}, an alarm is given below {limit:.2g}."
        )
    share = check.not_trusted
    start = (
        f"At least {100 * share:.1f} % of the events are not described by the simulation and should not be trusted"
        if share > 0
        else "The simulation does not describe these events; how many of them cannot be told"
    )
    return f"{start}: {'; '.join(reasons(check))}."


def reasons(check: DataCheck) -> list[str]:
    """Return one clause for each test that raises an alarm."""
    result = []
    raised = set(check.raised)
    if "features" in raised:
        best = check.differences[0]
        n = len({d.feature for d in check.differences if d.p < SMALL_P})
        unit = CATALOGUE[best.feature].unit if best.feature in CATALOGUE else ""
        result.append(
            f"{n} features are distributed otherwise, most of all {best.feature} (mean shifted by {best.shift:+.3g} "
            f"{unit}, {best.sigmas:+.2f} standard deviations)"
        )
    if "classifier" in raised:
        c = check.classifier
        names = ", ".join(name for name, _ in c.giving_away[:3])
        result.append(f"a classifier tells them apart (AUC {c.auc:.3f} [{c.low:.3f}, {c.high:.3f}]) by {names}")
    if "distance" in raised:
        tail = min(check.tails, key=lambda t: t.p)
        result.append(
            f"{100 * tail.observed:.2f} % lie farther out than the {100 * tail.quantile:g} % quantile of the "
            "simulation, "
            f"where {100 * tail.expected:.2f} % are expected"
        )
    if "stations" in raised:
        result.append(_stations(check))
    for name in (name for name in check.physics if name in raised):
        one = check.physics[name]
        result.append(f"{TESTS[name]}: {one.effect:+.3f} ± {one.error:.3f} {one.unit}")
    if "order" in raised:
        name = min(check.order, key=lambda key: check.order[key])
        result.append(f"rows are ordered: {name} of neighbours agrees, or changes along the file")
    if "runs" in raised:
        worst, feature = np.unravel_index(np.abs(check.run_residuals).argmax(), check.run_residuals.shape)
        result.append(
            f"runs differ from each other, most of all {check.run_names[worst]} in {check.histograms.names[feature]}"
        )
    return result


def _stations(check: DataCheck) -> str:
    off = np.argwhere(check.stations.p * len(check.p_values) < check.alarms)
    dead = [place for place in off if check.stations.data[tuple(place)] == 0]
    pieces = []
    for number, name in enumerate(CHANNELS):
        mine = [place for place in off if place[2] == number]
        silent = sum(1 for place in dead if place[2] == number)
        if mine:
            row, column, _ = mine[0]
            pieces.append(f"{len(mine)} {name} stations (such as row {row}, column {column}; {silent} of them silent)")
    return f"hit too often or too rarely: {' and '.join(pieces)}"
