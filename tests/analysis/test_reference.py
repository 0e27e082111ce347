"""Every number of the spectra, beside the numbers they gave before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from benchmarks.physics.estimate import estimating_functions, likelihood_ratios, maximum_likelihood
from showerstack.analysis.spectra import knees, reading
from showerstack.analysis.spectra.counting import count_moved
from showerstack.analysis.spectra.fluxes import (
    covariance_of_sums,
    free_fluxes,
    mean_ln_mass,
    share_covariance,
    shares,
    spread_of_models,
)
from showerstack.analysis.spectra.folding import (
    Cells,
    FoldedResponse,
    MovableEvents,
    Widths,
    corrected_sizes,
    make_cells,
    make_movable,
    make_response,
    plateau_thrown,
)
from showerstack.analysis.spectra.knees import crossing
from showerstack.analysis.spectra.likelihood import (
    HYPOTHESES,
    FoldedFit,
    FoldedLikelihood,
    FoldingProblem,
    ParameterLayout,
    Priors,
    fit_once,
)
from showerstack.analysis.spectra.reading import MODELS, plateau_primaries, without_unknown
from showerstack.analysis.spectra.response import Simulated, Thrown, binning
from showerstack.analysis.spectra.result import Spectra
from showerstack.analysis.spectra.run import SpectraOptions, cell_binning, remarks_on_range
from showerstack.scoring.metrics.level import CHI_SQUARE_LEVELS
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import COMPOSITION
from tests.analysis.skies import EDGES, EXPOSURE, Sky, measured, simulated

Reference = Callable[..., None]
AT = (np.zeros(3), np.array([0.6, -0.4, 0.3]))
SKY = Sky()
WIDE = np.array([15.2, 15.6, 16.0, 16.6])


@pytest.fixture(scope="module")
def world() -> tuple[Cells, MovableEvents, Thrown, Simulated]:
    bins = cell_binning(EDGES)
    events, thrown = simulated(30_000, 11, bins)
    cells = make_cells(bins, events, 6)
    return cells, make_movable(events, bins, Widths(0.05, 0.03, 0.025), (-np.inf, 4.2)), thrown, events


@pytest.fixture(scope="module")
def responses(world: tuple[Cells, MovableEvents, Thrown, Simulated]) -> list[FoldedResponse]:
    cells, events, thrown, _ = world
    return [make_response(events, cells, thrown.counts.sum(axis=0), at) for at in AT]


@pytest.fixture(scope="module")
def counts(world: tuple[Cells, MovableEvents, Thrown, Simulated]) -> np.ndarray:
    return world[0].counts(measured(SKY, 5, exposure=EXPOSURE / 5))


def likelihoods(counts: np.ndarray, response: FoldedResponse) -> dict[str, tuple[FoldedLikelihood, np.ndarray]]:
    """Return a likelihood of every hypothesis, and a place where nothing is as expected."""
    rng = np.random.default_rng(3)
    result = {}
    for name in HYPOTHESES:
        priors = Priors(index=np.linspace(2.6, 2.8, 5), change=(0.5, 0.3) if name != "free" else None)
        one = FoldedLikelihood(
            counts, response, EXPOSURE / 5, 2e-22, ParameterLayout(name), 4.0, priors, finite=name != "mass"
        )
        at = one.start(15.7, 0.6)
        at[one.layout.heights] *= [1.2, 0.9, 0.6, 0.4, -0.02]
        at += rng.normal(0, 0.05, len(at))
        one.hold(at)
        result[name] = one, at
    return result


def test_bins_events_and_moves(world: tuple[Cells, MovableEvents, Thrown, Simulated], reference: Reference) -> None:
    cells, events, _, pool = world
    bins = binning((15.0, 15.13, 15.4, 16.0))
    at = np.array([14.9, 15.0, 15.05, 15.13, 15.399, 15.4, 15.99, 16.0, 17.0])
    reference({
        "bins": bins,
        "properties": [bins.n_bins, bins.widths_ev, bins.centres_ev, bins.bins_of_fine()],
        "places": [bins.bin_of(at), bins.fine_bin_of(at)],
        "cells": [cells.borders, cells.n_cells, cells.bins, cells.cell_of(pool.lg_energy, pool.log_proba[:, 0])],
        "cells of bins": [cell_binning((15.2, 15.5, 16.2, 16.8)).edges, cell_binning((15.2, 17.9)).edges],
        "events": events,
        "sizes": corrected_sizes(np.array([5.0, 6.0]), np.array([4.0, 4.7]), np.array([10.0, 70.0])),
        "outside": len(" ".join(remarks_on_range(measured(SKY, 2, exposure=EXPOSURE / 50), pool, cells.bins))),
    })  # fmt: skip


def test_counted_as_moved(world: tuple[Cells, MovableEvents, Thrown, Simulated], reference: Reference) -> None:
    cells, e, thrown, _ = world
    result = {}
    # The compiled function's own Python, so that its lines are seen where they run.
    count = getattr(count_moved, "py_func", count_moved)
    few = e.take(np.arange(2_000))
    for k, scales in enumerate(AT):
        into = np.zeros((2, 5, cells.n_cells, thrown.counts.shape[2]))
        columns = (few.labels, few.fine, few.lg_energy, few.measured, few.sizes, few.y, few.y_moved, few.mirrored)
        of_sizes = [2, 1]  # electrons, muons
        shifts = (scales * few.widths.values)[of_sizes]
        place = np.empty(len(few.labels), np.int64)
        count(*columns, scales[of_sizes], shifts, np.array(few.least), cells.bins.edges, cells.borders, into, place)
        assert np.count_nonzero(place >= 0) == into.sum()
        result[f"at {k}"] = [into.sum(axis=(1, 2, 3)), into.sum(axis=(0, 2, 3)), into]
    reference(result)


def test_responses(responses: list[FoldedResponse], reference: Reference) -> None:
    result: dict[str, Any] = {}
    for k, one in enumerate(responses):
        phi = np.linspace(1, 3, one.thrown.size).reshape(one.thrown.shape)
        moves = one.moves(phi)
        result[f"at {k}"] = {
            "accepted": one.accepted,
            "probability": one.probability,
            "variance": one.variance,
            "moves": [moves.linear, moves.quadratic, *moves.factors(np.array([0.4, -0.7, 1.1]))],
            "active": one.active,
        }
    reference(result)


def test_likelihoods(counts: np.ndarray, responses: list[FoldedResponse], reference: Reference) -> None:
    result: dict[str, Any] = {}
    for k, response in enumerate(responses):
        for name, (one, at) in likelihoods(counts, response).items():
            result[f"{name} at {k}"] = {
                "names": [len(one.layout.names), one.layout.n_knees, one.layout.lg_knees(at), one.free()],
                "start": one.start(),
                "tau": one.tau,
                "expectation": [*one.expectation(at), one.particles(at), one.flux(at, np.linspace(15, 17, 5))],
                "value": [one.value(at), one.terms(at), one.gradient(at)],
                "information": [one.information(at), one.information(at, simulation=False)],
            }
    reference(result)


def test_errors_of_a_fit(counts: np.ndarray, responses: list[FoldedResponse], reference: Reference) -> None:
    result: dict[str, Any] = {}
    for name, (one, at) in likelihoods(counts, responses[1]).items():
        fit = FoldedFit(one, at, one.value(at), float(one.terms(at).sum()), 60, True)
        covariances = [fit.covariance(), fit.covariance(simulation=False), fit.covariance(scales=False)]
        expected = replace(fit, chi2=58.0)
        far = replace(fit, parameters=np.where(np.arange(len(at)) == len(at) - 1, -3.6, at), chi2=50.0)
        result[name] = {
            "covariances": covariances,
            "p": expected.p_value(4),
            "refused": [bool(one.refusal) for one in (replace(fit, chi2=125.7), replace(fit, chi2=125.8), far)],
        }
        if name in ("rigidity", "mass"):
            thrown = one.response.thrown
            fluxes = free_fluxes(fit, WIDE, [0.01 * thrown, 0.02 * thrown * (np.arange(5) < 2)[:, None]])
            models = spread_of_models([fluxes.flux, np.linspace(0.9, 1.1, 5) * fluxes.flux])
            spectra = Spectra(fit, fluxes, models, np.array([True, True, False]), np.array([30, 20, 10]), 0.3)
            tables = {"table": spectra.table(), "masses": spectra.masses()}
            result[name] |= {"fluxes": fluxes, "centres": spectra.centres_ev}
            # The share of all groups together has no error: what is left is rounding.
            kept = {key: frame.filter("used") for key, frame in tables.items()}
            kept["table"] = kept["table"].filter(pl.col("group") != "all")
            result[name] |= {key: frame.to_dict(as_series=False) for key, frame in kept.items()}
    reference(result, rtol=1e-5)


def test_a_fit_from_one_start(counts: np.ndarray, responses: list[FoldedResponse], reference: Reference) -> None:
    problem = FoldingProblem(counts, lambda at: responses[0], EXPOSURE / 5, 4.0)
    fit = fit_once(problem.likelihood(responses[0], "none"), problem.likelihood(responses[0], "none").start())
    assert fit.ndf == int(fit.likelihood.simulated.sum()) - 10, "five heights and five indices are fitted"
    exactly = [replace(problem, counts=np.full(8, n / 8)).few for n in (50_000 - 8, 50_000)]
    assert exactly == [True, False]
    # Minuit ends within a small part of an error of the minimum.
    reference({"unit": problem.unit_flux, "cost": fit.cost, "chi2": fit.chi2}, rtol=1e-4)


def test_cut_sets_are_known() -> None:
    sources = [{"cuts": "none"}, {"cuts": "test"}, {"protocol": "matched"}, {"protocol": "2026"}, {"protocol": "v2"},
               {"split": "test"}, {"cuts": "none", "split": "test"}, {}]  # fmt: skip
    assert [reading._is_cut(one) for one in sources] == [False, True, True, True, False, True, False, False]


def test_estimators(reference: Reference) -> None:
    rng = np.random.default_rng(8)
    log_proba = np.log(rng.dirichlet([2, 1, 1, 0.5, 1], 400))
    prior = np.array([0.3, 0.2, 0.2, 0.1, 0.2])
    ratios = likelihood_ratios(log_proba, prior)
    results = {
        "ratios": ratios,
        "shares": maximum_likelihood(ratios),
        "functions": estimating_functions(ratios, prior),
    }
    reference(results)


def test_sums_over_groups(reference: Reference) -> None:
    rng = np.random.default_rng(9)
    flux = rng.uniform(1, 3, (3, 5))
    root = rng.normal(size=(15, 15))
    covariance = root @ root.T / 100
    reference({
        "shares": shares(flux),
        "covariance": share_covariance(flux, covariance),
        "combined": covariance_of_sums(covariance, rng.uniform(0, 1, (3, 5))),
        "mass": mean_ln_mass(flux),
        "models": spread_of_models([flux, flux * 1.1, flux + 0.2]),
    })  # fmt: skip


def test_primaries_from_the_plateau(reference: Reference) -> None:
    pool = simulated(20_000, 4)[0]
    bins = cell_binning((15.2, 15.6, 16.0, 16.6))
    few = pool.take((pool.labels != 2) | (pool.model == 1) | (pool.true_lg_energy < 15.5))
    thrown = plateau_primaries(few, bins)
    near, remarks = without_unknown(few, thrown)
    joined = Simulated.joined([near.take(np.arange(50)), few.take(np.arange(30))])
    reference({
        "law": plateau_thrown(pool.labels, pool.true_lg_energy, bins.fine),
        "low": plateau_thrown(pool.labels, np.minimum(pool.true_lg_energy, 15.95), bins.fine),
        "primaries": [thrown.counts, *thrown.changes, *thrown.common],
        "sum": thrown + Thrown(bins.fine, thrown.counts / 2, thrown.changes, thrown.common),
        "known": [len(MODELS), len(near), len(remarks), joined.lg_energy],
    })  # fmt: skip


def test_simulated_sets_add_up(tiny_composition: Path, monkeypatch: pytest.MonkeyPatch, reference: Reference) -> None:
    folder = tiny_composition / "composition_test"
    log_proba = np.log(np.random.default_rng(2).dirichlet(np.ones(5), len(Dataset.open(folder))))
    predicted = SimpleNamespace(log_proba=log_proba, labels=log_proba.argmax(axis=1), remarks=["one"])
    monkeypatch.setattr(reading, "predict_folder", lambda *_: predicted)
    monkeypatch.setattr(reading, "refuse_training_set", lambda *_: None)
    moved = np.tile(np.linspace(0.5, 2.5, len(log_proba))[:, None], (1, 4))
    monkeypatch.setattr(reading, "moved_summaries", lambda *_: (moved, reading.DEPOSITS))
    run: Any = SimpleNamespace(task=COMPOSITION)
    bins = cell_binning((14.9, 15.4, 16.0))
    once, twice = (reading.read_response(run, [folder] * n, [], bins, 25.0) for n in (1, 2))
    np.testing.assert_array_equal(twice.thrown.counts, 2 * once.thrown.counts)
    assert len(twice.events) == 2 * len(once.events)
    assert len(np.unique(twice.events.group)) == 2 * len(np.unique(once.events.group))
    assert len(twice.remarks) == 2 * len(once.remarks)
    assert once.events.mirrored is not None
    assert once.events.mirrored[:, 0].all(), "this set was cut in lg Ne"
    assert not once.events.mirrored[:, 1].any()
    reference({"events": once.events, "thrown": once.thrown, "all": len(log_proba)}, rtol=1e-4)


@dataclass(frozen=True)
class Profiled:
    """What profiles need of a fit: -2 ln L is known at every place of the knee, lowest at ``lowest``."""

    parameters: np.ndarray
    cost: float
    lowest: float = 15.7
    width: float = 0.1
    spread: float = 1.0
    chi2: float = 0.0
    valid: bool = True

    @property
    def likelihood(self) -> Any:
        """Parameters of a common knee, and what is left at a place."""
        return SimpleNamespace(layout=ParameterLayout("rigidity"), terms=lambda at: at[:2])

    def covariance(self, *, simulation: bool = True) -> np.ndarray:
        return (1.0 if simulation else 0.7) * self.spread * np.diag(np.linspace(0.01, 0.02, len(self.parameters)))

    def at(self, position: float) -> float:
        # Steeper above than below, and no higher than 20.
        away = (position - self.lowest) / (self.width if position < self.lowest else self.width / 2)
        return 10.0 + 20.0 * float(-np.expm1(-(away**2) / 20.0))

    def profile(self, name: str, value: float, start: np.ndarray) -> tuple[float, np.ndarray]:
        assert name == "lg_r0"
        moved = start.copy()
        moved[self.likelihood.layout.names.index(name)] = value
        return self.at(value), moved


def test_profiles_of_a_known_curve(monkeypatch: pytest.MonkeyPatch, reference: Reference) -> None:
    column = ParameterLayout("rigidity").names.index("lg_r0")

    def at(position: float, **changes: Any) -> Any:
        parameters = np.linspace(0.1, 1.4, 15)
        parameters[column] = position
        one = Profiled(parameters, 0.0, **changes)
        return replace(one, cost=one.at(position))

    monkeypatch.setattr(
        knees, "minimise", lambda likelihood, start: (10.0, np.where(np.arange(15) == column, 15.7, start), True)
    )
    start = at(15.7)
    fit, (grid, profile) = knees.profile_knee(start, 0)
    assert fit is start
    lower, (low_grid, low_profile) = knees.profile_knee(at(15.9), 0)
    assert (lower.cost, lower.parameters[column]) == (10.0, 15.7), "a lower place on the way is the fit"
    near = at(15.7)
    near = replace(near, cost=near.cost + 0.019)
    assert knees.profile_knee(near, 0)[0] is near, "a hundredth lower is no new minimum"
    fine, coarse = (knees.profile_knee(at(15.7, width=w, spread=s), 0)[1] for w, s in ((0.02, 1e-4), (0.4, 1e2)))
    wide, wide_profile = knees.profile_knee(at(15.7, width=3.0), 0)
    sharp, models = [at(15.66), at(15.75)], [at(15.5), at(15.6), at(15.9)]
    found = [
        knees._knee("all", fit, (grid, profile), 0, sharp, models),
        knees._knee("one", fit, (grid, profile), 0, sharp, models[:1]),
        knees._knee("open", wide, wide_profile, 0, sharp, models),
    ]
    # The curve's own crossings: 20 (1 - exp(-x^2 / 20)) is 1 and 3.841459.
    ends = [np.sqrt(-20 * np.log1p(-level / 20)) for level in CHI_SQUARE_LEVELS]
    for interval, end in zip((found[0].interval68, found[0].interval95), ends, strict=True):
        assert (interval.low, interval.high) == pytest.approx((15.7 - 0.1 * end, 15.7 + 0.05 * end), abs=0.004)
    assert (found[2].interval95.low, found[2].interval95.high) == (None, None)
    reference({"knees": found, "grids": [grid, profile, low_grid, low_profile, *wide_profile, *fine, *coarse]})


def test_what_is_taken_where_nothing_is_said(reference: Reference) -> None:
    reference({
        "priors": Priors(),
        "widths": Widths(),
        "options": SpectraOptions(Path(), [], None, Path(), []),
        "cuts": [reading.spectra_cuts(18.0).cuts, reading.spectra_cuts(18.0, 0.15).cuts],
    })  # fmt: skip


def test_where_a_profile_crosses_a_level() -> None:
    grid = np.linspace(-3, 5, 81)
    # A parabola of width 1.3 about .4 crosses 1 and 3.84 at .4 +- 1.3 and .4 +- 1.96 * 1.3.
    profile = ((grid - 0.4) / 1.3) ** 2
    for level in (1.0, 3.841459):
        interval = crossing(grid, profile, 0.4, level)
        assert (interval.low, interval.high) == pytest.approx(
            (0.4 - 1.3 * level**0.5, 0.4 + 1.3 * level**0.5), abs=0.002
        )
    assert crossing(grid, profile, 0.4, 13.0).low is None
    assert crossing(grid, profile, 0.4, 12.0).high is not None
