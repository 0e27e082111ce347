"""Fluxes and a knee of known skies come back from folded counts, with errors that cover; and checks that can fail."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from iminuit.cost import template_chi2_da
from scipy.stats import chi2 as chi_square

from showerstack.analysis.spectra.fluxes import (
    covariance_of_sums,
    design_noise,
    free_fluxes,
    mean_ln_mass,
    share_covariance,
    shares,
    spread_of_models,
    variance_of_ln_mass,
    without_noise,
)
from showerstack.analysis.spectra.folding import (
    PLATEAU_EFFICIENCY,
    STEP,
    Cells,
    FoldedResponse,
    MovableEvents,
    Widths,
    corrected_sizes,
    count_parts,
    make_cells,
    make_movable,
    make_response,
    mass_summary,
    plateau_thrown,
)
from showerstack.analysis.spectra.likelihood import (
    FoldedFit,
    FoldedLikelihood,
    FoldingProblem,
    ParameterLayout,
    Priors,
    deviance,
    fit_once,
    inverse_without_noise,
)
from showerstack.analysis.spectra.reading import undo_rounding
from showerstack.analysis.spectra.response import Binning, MassGroups, Simulated, SpectrumEvents, Thrown, binning
from showerstack.runtime.errors import InputError
from showerstack.showers.kascade import LN_MASSES
from showerstack.showers.kascade import reconstructed_energy as lg_energy_of
from tests.analysis.skies import Sky, measured, simulated, true_flux

CELL_EDGES = (15.2, 15.3, 15.4, 15.5, 15.6, 15.7, 15.8, 15.9, 16.0, 16.1, 16.2, 16.4, 16.6, 16.8, 17.0)
BINS = binning(CELL_EDGES)
BANDS = np.array([15.2, 15.5, 15.8, 16.2, 16.8])
SKY = Sky()
SHARPNESS = 1 / SKY.sharpness
LG_RIGIDITY = np.log10(SKY.knee_pev * 1e15)
EXPOSURE = 2e11
"""m2 sr s: some 110,000 events."""


@pytest.fixture(scope="module")
def pool() -> tuple[Simulated, Thrown]:
    return simulated(1_000_000, 1, BINS)


@pytest.fixture(scope="module")
def world(pool: tuple[Simulated, Thrown]) -> tuple[Cells, MovableEvents, np.ndarray]:
    events, thrown = pool
    return make_cells(BINS, events), make_movable(events, BINS, Widths()), thrown.counts.sum(axis=0, dtype=np.float64)


def _problem(
    world: tuple[Cells, MovableEvents, np.ndarray], counts: np.ndarray, exposure: float = EXPOSURE, *,
    scales: bool = False, finite: bool = True,
) -> FoldingProblem:  # fmt: skip
    cells, events, thrown = world
    return FoldingProblem(
        counts, lambda x: make_response(events, cells, thrown, x, scales=scales), exposure, SHARPNESS, finite=finite
    )


def _toy(seed: int, n: int, *, finite: bool = True, summaries: int = 8, exposure: float = EXPOSURE) -> FoldedFit:
    """Draw data, a simulation of n showers, and the centres of the indices' priors; fit with scales held."""
    rng = np.random.default_rng(seed)
    events, thrown = simulated(n, 1000 + seed, BINS)
    cells = make_cells(BINS, events, summaries)
    world = cells, make_movable(events, BINS, Widths()), thrown.counts.sum(axis=0, dtype=np.float64)
    counts = cells.counts(measured(SKY, seed, exposure=exposure))
    problem = _problem(world, counts, exposure, finite=finite)
    return replace(problem, priors=Priors(index=rng.normal(2.7, 0.2, 5))).fit()


def _pulls(fit: FoldedFit) -> tuple[float, np.ndarray]:
    """Return the knee's distance from the truth and those of the fluxes, in their errors."""
    knee = fit.likelihood.layout.names.index("lg_r0")
    fluxes = free_fluxes(fit, BANDS)
    error = np.sqrt(np.diag(sum(fluxes.covariance.values()))).reshape(fluxes.flux.shape)
    away = (fluxes.flux - true_flux(SKY, binning(tuple(BANDS)))) / error
    return float((fit.parameters[knee] - LG_RIGIDITY) / np.sqrt(fit.covariance()[knee, knee])), away


@pytest.mark.slow
@pytest.mark.parametrize("hypothesis", ["rigidity", "free", "none"])
def test_gradient_and_value_are_those_of_differences_and_of_iminuit(
    world: tuple[Cells, MovableEvents, np.ndarray], hypothesis: str
) -> None:
    counts = world[0].counts(measured(SKY, 3, exposure=EXPOSURE))
    problem = _problem(world, counts, scales=True)
    likelihood = replace(problem, priors=Priors(change=(0.5, 0.3))).likelihood(problem.nominal, hypothesis)
    at = likelihood.start() + np.random.default_rng(0).normal(0, 0.1, len(likelihood.layout.names))
    likelihood.hold(at)
    at[0] = -0.3  # expectations near and below zero
    step = 1e-5
    difference = [(likelihood.value(at + h) - likelihood.value(at - h)) / (2 * step) for h in step * np.eye(len(at))]
    slope = likelihood.gradient(at)
    assert np.abs(slope - difference).max() < 1e-7 * np.abs(slope).max()
    at[0] = 0.7
    mean = likelihood.expectation(at)[0]
    used = likelihood.simulated & (mean > likelihood.floor)
    theirs = template_chi2_da(counts[used], mean[used], (mean**2 / likelihood.tau)[used])
    assert likelihood.terms(at)[used].sum() == pytest.approx(theirs, rel=1e-10)


def test_counts_as_expected_give_the_parameters_back(world: tuple[Cells, MovableEvents, np.ndarray]) -> None:
    first = _problem(world, world[0].counts(measured(SKY, 4, exposure=EXPOSURE)), scales=True)
    likelihood = first.likelihood(first.nominal)
    truth = likelihood.start(15.7, 0.5)
    truth[likelihood.layout.heights] = 1.6, 1.7, 0.9, 0.6, 0.5
    likelihood.hold(truth)
    likelihood.counts = likelihood.expectation(truth)[0]
    fit = fit_once(likelihood, likelihood.start())
    assert fit.chi2 < 0.01
    error = np.sqrt(np.diag(fit.covariance()))
    assert (np.abs(fit.parameters - truth) < 0.05 * error).all()
    assert fit.p_value() > 0.99
    assert not fit.refusal


def test_no_particle_is_counted_twice_and_outside_nothing_is(world: tuple[Cells, MovableEvents, np.ndarray]) -> None:
    cells, events, thrown = world
    response = make_response(events, cells, thrown)
    assert response.probability.sum(axis=1).max() <= 1
    assert response.probability.sum(axis=1)[:, 40:50].min() > 0.8, "on the plateau all are accepted, but for a tenth"
    assert cells.cell_of(np.array([15.1, 17.0, 15.2]), np.zeros(3)).tolist() == [-1, -1, 0]
    assert response.active == (0, 1, 2)
    assert make_response(events, cells, thrown, scales=False).active == ()


def test_moved_events_are_those_of_moved_sizes(pool: tuple[Simulated, Thrown]) -> None:
    """Energy by KASCADE's formula, the cut in lg Nmu, and y by the posteriors' slope, event by event."""
    events = pool[0].take(np.arange(4000))
    cells = make_cells(BINS, pool[0])
    ready = make_movable(events, BINS, Widths(0.04, 0.02, 0.03), (-np.inf, 4.0))
    x = np.array([0.5, 2.0, -1.0])

    def energy(lg_ne: np.ndarray, lg_nmu: np.ndarray) -> np.ndarray:
        a, b = corrected_sizes(lg_ne, lg_nmu, events.zenith_deg)
        return 0.25788 * a + 0.66704 * b + 0.07507 * a**2 + 0.09277 * b**2 - 0.16131 * a * b

    lg_ne, lg_nmu = events.lg_ne - 0.03, events.lg_nmu + 0.04
    lg_energy = events.lg_energy + energy(lg_ne, lg_nmu) - energy(events.lg_ne, events.lg_nmu)
    slopes = ready.y_moved
    y = mass_summary(events.log_proba) + slopes[0] * 2 + slopes[1] * 4 - slopes[2] + slopes[3]
    cell = np.where(lg_nmu > 4.0, cells.cell_of(lg_energy, y), -1)
    counts = count_parts(ready, cells, x, parts=1)[0].astype(np.float64)
    np.testing.assert_array_equal(counts.sum(axis=(0, 2)), np.bincount(cell[cell >= 0], minlength=cells.n_cells))
    # More muons at the same electrons are heavier primaries, fewer electrons as well.
    assert np.mean(slopes[0]) > 0.01
    assert np.mean(slopes[2]) < -0.003


@pytest.fixture(scope="module")
def formula_events() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return lg E by KASCADE's formula, lg Ne, lg Nmu and zenith angles of a power law, 400,000 events."""
    rng = np.random.default_rng(12)
    lg_ne = 4.8 + rng.exponential(0.3, 400_000)
    lg_nmu = 0.8 * lg_ne + 0.15 + rng.normal(0, 0.15, len(lg_ne))
    zenith = rng.uniform(0, 30, len(lg_ne))
    return lg_energy_of(lg_ne, lg_nmu, zenith), lg_ne, lg_nmu, zenith


def test_energies_rounded_to_float16_are_taken_back(
    formula_events: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
) -> None:
    exact, *others = formula_events
    short = [one.astype(np.float16) for one in (exact, *others)]
    back = undo_rounding(*(one.astype(np.float32) for one in short))
    assert np.abs(back - exact).max() <= np.abs(short[0] - exact).max() + 0.004
    assert np.std(back - exact) < 0.5 * np.std(short[0] - exact)
    assert (np.abs(back - short[0]) <= np.spacing(short[0]) / 2).all(), "never beyond what rounding leaves open"
    np.testing.assert_array_equal(undo_rounding(exact, *others), exact, "what was not rounded stays")
    strange = short[0].astype(np.float64)
    strange[:2] = np.nan, 17.0
    np.testing.assert_allclose(undo_rounding(strange, *others)[:2], [np.nan, 17.0], atol=0.008)


def test_expectations_do_not_jump_where_a_scale_moves_rounded_energies(
    formula_events: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
) -> None:
    """Counts in bins of .1 as the energy scale moves by hundredths of lg E, beside those of exact energies."""
    exact, *others = formula_events
    short = [one.astype(np.float16).astype(np.float64) for one in (exact, *others)]
    edges = np.arange(15.2, 16.61, 0.1)
    rounded, back = [], []
    for shift in np.linspace(-0.04, 0.04, 9):
        true = np.histogram(exact + shift, edges)[0]
        rounded.append(np.sum((np.histogram(short[0] + shift, edges)[0] - true) ** 2 / true))
        back.append(np.sum((np.histogram(undo_rounding(*short) + shift, edges)[0] - true) ** 2 / true))
    assert np.mean(rounded) > 4 * (len(edges) - 1), "more than the noise of as many data"
    assert np.mean(back) < 0.5 * (len(edges) - 1)


def test_primaries_are_recovered_from_the_plateau() -> None:
    """Thrown as E^-2 with fewer above lg E = 16, one threshold for each group."""
    rng, fine = np.random.default_rng(2), binning((15.2, 16.0, 17.0)).fine
    labels = rng.integers(0, 5, 3_000_000)
    top = np.where(rng.random(len(labels)) < 0.4, 16.0, 18.0)
    lg_energy = 14.9 - np.log10(1 - rng.random(len(labels)) * (1 - 10.0 ** (14.9 - top)))
    thrown = np.stack([np.histogram(lg_energy[labels == k], fine)[0] for k in range(5)])
    efficiency = np.array(PLATEAU_EFFICIENCY)[labels] / (1 + np.exp(-(lg_energy - 14.6 - 0.05 * labels) / 0.05))
    accepted = rng.random(len(labels)) < efficiency
    result, _ = plateau_thrown(labels[accepted], lg_energy[accepted], fine)
    from_15 = fine[:-1] >= 15.0
    for low, high in ((15.0, 15.6), (15.6, 16.0), (16.0, 18.0)):
        inside = from_15 & (fine[:-1] > low - 1e-9) & (fine[1:] < high + 1e-9)
        ratio = result[:, inside].sum(axis=1) / thrown[:, inside].sum(axis=1)
        np.testing.assert_allclose(ratio, 1, atol=0.02 if low < 16 else 0.06)
    few = accepted & ((labels != 2) | (lg_energy < 15.5))
    recovered, _ = plateau_thrown(labels[few], lg_energy[few], fine)
    assert not recovered[2].any(), "a class without an event on the plateau is not known"
    np.testing.assert_allclose(recovered[[0, 1, 3, 4]], result[[0, 1, 3, 4]], rtol=0.02)


def test_recovered_primaries_scatter_as_their_errors_say() -> None:
    fine, n = binning((15.2, 16.0, 17.0)).fine, 800
    below, above = fine[:-1] == 15.7, fine[:-1] == 16.5
    assert below.sum() == above.sum() == 1
    values, errors = [], []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, 5, rng.poisson(n))
        top = np.where(rng.random(len(labels)) < 0.6, 16.0, 17.5)
        lg_energy = 15.6 - np.log10(1 - rng.random(len(labels)) * (1 - 10.0 ** (15.6 - top)))
        thrown, changes = plateau_thrown(labels, lg_energy, fine)
        values.append(thrown[:, below | above])
        errors.append((changes**2).sum(axis=0)[:, below | above])
    ratio = np.std(values, axis=0) / np.sqrt(np.mean(errors, axis=0))
    assert 0.85 < np.sqrt(np.mean(ratio**2, axis=0))[0] < 1.15
    assert 0.85 < np.sqrt(np.mean(ratio**2, axis=0))[1] < 1.15
    relative = (np.sqrt(errors) / np.array(values)).mean(axis=(0, 1))
    assert relative[0] == pytest.approx(1 / np.sqrt(n / 5), rel=0.1)
    assert relative[1] > 1.2 * relative[0], "the step has an error of its own"


@pytest.mark.slow
def test_errors_of_recovered_primaries_are_those_of_fluxes(toys: list[FoldedFit]) -> None:
    fit, thrown = toys[0], toys[0].likelihood.response.thrown
    change = np.zeros_like(thrown)
    change[2] = 0.05 * thrown[2]
    plain, more = free_fluxes(fit, BANDS), free_fluxes(fit, BANDS, [change])
    np.testing.assert_allclose(more.flux, plain.flux)
    away = np.zeros_like(plain.flux)
    away[:, 2] = 0.05 * plain.flux[:, 2]
    added = more.covariance["simulation"] - plain.covariance["simulation"]
    np.testing.assert_allclose(added, np.outer(away.ravel(), away.ravel()), atol=1e-6 * added.max())
    for name in ("data", "scales"):
        np.testing.assert_allclose(more.covariance[name], plain.covariance[name])


@pytest.fixture(scope="module")
def toys() -> list[FoldedFit]:
    return [_toy(seed, 500_000) for seed in range(10)]


def test_knee_and_fluxes_come_back_with_errors_that_cover(toys: list[FoldedFit]) -> None:
    knee = toys[0].likelihood.layout.names.index("lg_r0")
    values = np.array([one.parameters[knee] for one in toys])
    assert abs(values.mean() - LG_RIGIDITY) < 0.17, "less than bin-by-bin factors are off"
    pulls = [_pulls(one) for one in toys]
    knees, fluxes = np.array([one[0] for one in pulls]), np.array([one[1] for one in pulls])
    # Five standard deviations of ten experiments; benchmarks/physics/closure.py states coverage from many.
    assert abs(knees.mean()) < 2
    assert (np.abs(knees) < 1.96).sum() >= 5
    assert 0.5 < fluxes.std() < 1.5
    assert abs(fluxes.mean()) < 0.25
    assert (np.abs(fluxes) < 1).mean() > 0.4
    chi2, ndf = np.mean([one.chi2 for one in toys]), toys[0].ndf
    assert abs(chi2 - ndf) < 6 * np.sqrt(2 * ndf / len(toys))
    assert 0.03 < np.mean([one.p_value() for one in toys]) < 0.97


@pytest.mark.slow
def test_errors_without_those_of_the_simulation_are_too_small() -> None:
    fits = [_toy(seed, 60_000, finite=False) for seed in range(5)]
    fluxes = np.array([_pulls(one)[1] for one in fits])
    assert (np.abs(fluxes) < 1).mean() < 0.65
    assert np.mean([one.chi2 for one in fits]) > 2 * fits[0].ndf
    finite = [_toy(seed, 60_000) for seed in range(5)]
    assert np.mean([one.chi2 for one in finite]) < 1.4 * finite[0].ndf
    assert np.array([_pulls(one)[1] for one in finite]).std() < 1.7


def test_energies_alone_leave_groups_undetermined(toys: list[FoldedFit]) -> None:
    alone = _toy(0, 500_000, summaries=1)
    relative = []
    for fluxes in (free_fluxes(alone, BANDS), free_fluxes(toys[0], BANDS)):
        error = np.sqrt(np.diag(sum(fluxes.covariance.values()))).reshape(fluxes.flux.shape)
        relative.append((error / true_flux(SKY, binning(tuple(BANDS))))[1])
    assert relative[0].min() > 0.3
    assert (relative[0] > 2 * relative[1]).all()


@pytest.mark.slow
def test_a_wrong_scale_is_fitted_and_the_response_made_anew(world: tuple[Cells, MovableEvents, np.ndarray]) -> None:
    cells = world[0]
    data = measured(SKY, 9, exposure=EXPOSURE)
    moved = replace(data, lg_energy=data.lg_energy + 2 * Widths().lg_energy)
    fit = _problem(world, cells.counts(moved), scales=True).fit()
    assert not fit.refusal
    assert fit.chi2 < 1.8 * fit.ndf
    assert fit.likelihood.response.at.any(), "made anew"
    pull, fluxes = _pulls(fit)
    assert abs(pull) < 5
    assert (np.abs(fluxes) < 5).all()
    far = replace(data, lg_energy=data.lg_energy + 5 * Widths().lg_energy)
    held = _problem(world, cells.counts(far)).fit()
    assert np.abs(_pulls(held)[1]).max() > 3, "held, it would be seen in the results"


def test_expectations_move_with_the_scales_as_their_logarithms_do(
    world: tuple[Cells, MovableEvents, np.ndarray],
) -> None:
    """ln m = a x + x q x, the same in all cells, comes back, since many events are in each."""
    cells, events, thrown = world
    one = make_response(events, cells, thrown, scales=False)
    a, q = np.array([0.0, -0.2, 0.5]), np.array([[0.0, 0.0, 0.0], [0.0, -0.3, 0.05], [0.0, 0.05, 0.4]])
    many = np.full_like(one.accepted, 1e9)

    def moved(*scales: int) -> np.ndarray:
        x = STEP * np.array([np.sign(sum(s for s in scales if abs(s) == j + 1)) for j in range(3)])
        return many * np.exp(a @ x + x @ q @ x)

    keys = [(2,), (-2,), (3,), (-3,), (2, 3)]
    response = replace(one, accepted=many, thrown=np.ones_like(one.thrown), moved={key: moved(*key) for key in keys})
    moves = response.moves(np.ones_like(one.thrown))
    np.testing.assert_allclose(moves.linear, np.broadcast_to(a[:, None, None], moves.linear.shape), atol=1e-6)
    np.testing.assert_allclose(moves.quadratic, np.broadcast_to(q[..., None, None], moves.quadratic.shape), atol=1e-5)
    factors, slope = moves.factors(np.array([0.4, -0.3, 0.2]))
    x = np.array([0.4, -0.3, 0.2])
    np.testing.assert_allclose(factors, np.exp(a @ x + x @ q @ x), rtol=1e-5)
    np.testing.assert_allclose(slope, np.broadcast_to((a + 2 * q @ x)[:, None, None], slope.shape), atol=1e-5)


def test_a_group_without_events_does_not_move(world: tuple[Cells, MovableEvents, np.ndarray]) -> None:
    cells, events, thrown = world
    response = make_response(events, cells, thrown)
    accepted = response.accepted * (np.arange(5) != 2)[:, None, None]
    phi = np.ones_like(response.thrown)
    moves, whole = replace(response, accepted=accepted).moves(phi), response.moves(phi)
    assert (moves.linear[:, 2] == 0).all()
    assert (moves.quadratic[:, :, 2] == 0).all()
    np.testing.assert_array_equal(moves.linear[:, :2], whole.linear[:, :2])


def test_moves_are_smoothed_by_a_polynomial_weighted_by_events(world: tuple[Cells, MovableEvents, np.ndarray]) -> None:
    cells, events, thrown = world
    response = make_response(events, cells, thrown, scales=False)
    rng = np.random.default_rng(8)
    values, counts = rng.normal(size=(5, cells.n_cells)), rng.poisson(1.0, (5, cells.n_cells)).astype(float)
    smooth = response._smooth(values, counts, 2).reshape(5, BINS.n_bins, -1)
    x, group, place = np.linspace(-1, 1, BINS.n_bins), 3, 2
    y, n = (one.reshape(5, BINS.n_bins, -1)[group, :, place] for one in (values, counts))
    np.testing.assert_allclose(
        smooth[group, :, place], np.polyval(np.polyfit(x, y, 2, w=np.sqrt(n + 0.5)), x), atol=1e-7
    )


@pytest.mark.parametrize("tau", [1e15, 2e4])
def test_a_p_value_is_that_of_the_chi_square_law(tau: float) -> None:
    """Twenty cells of many events, four fitted parameters; the deviance follows the law whatever the simulation."""
    mean = np.full(20, 1e4)
    likelihood = SimpleNamespace(
        mean=lambda parameters: mean, _soft=lambda m: (m, np.ones_like(m)),
        simulated=np.ones(20, dtype=bool), tau=np.full(20, tau),
    )  # fmt: skip
    for chi2 in (12.0, 20.0):
        fit = SimpleNamespace(parameters=None, likelihood=likelihood, chi2=chi2, ndf=16)
        assert FoldedFit.p_value(cast("FoldedFit", fit)) == pytest.approx(chi_square.sf(chi2 + 4, 20), abs=0.06)


def test_halves_tell_the_noise_of_derivatives() -> None:
    """Two simulations differ in how expectations move by as much as each one's halves say."""
    phi = np.ones((5, len(BINS.fine) - 1)) * 10.0 ** -(BINS.fine[:-1] - 15)
    made = []
    for seed in (31, 32):
        events, thrown = simulated(300_000, seed, BINS)
        cells = (
            Cells(BINS, np.quantile(mass_summary(events.log_proba), np.arange(1, 8) / 8)) if not made else made[0].cells
        )
        made.append(
            make_response(make_movable(events, BINS, Widths()), cells, thrown.counts.sum(axis=0, dtype=np.float64))
        )
    away = made[0].moves(phi).linear - made[1].moves(phi).linear
    noise = [np.mean(one.noise(phi) ** 2, axis=0) for one in made]
    weight = made[0].accepted.sum(axis=2)
    for j in (1, 2):
        expected = np.sum(weight * (noise[0][j] + noise[1][j]))
        assert np.sqrt(np.sum(weight * away[j] ** 2) / expected) == pytest.approx(1, abs=0.4)
    one = made[0]
    np.testing.assert_allclose(one.parts[()].sum(axis=0), one.accepted)
    held = make_response(make_movable(events, BINS, Widths()), one.cells, one.thrown, scales=False)
    assert not held.parts
    assert not held.noise(phi).any()


def test_errors_with_noisy_derivatives_are_those_of_the_scatter() -> None:
    """A linear fit whose derivatives by three scales are noisy, while data follow the true ones."""
    rng = np.random.default_rng(5)
    n_cells, scale = 100, np.arange(6) >= 3
    true = rng.normal(size=(6, n_cells)) * np.where(scale, 0.15, 1.0)[:, None]
    prior = np.diag(scale.astype(float))
    size = 0.15
    noise = np.zeros((6, 6))
    noise[scale, scale] = n_cells * size**2
    scatter, stated, plain = [], [], []
    for _ in range(1500):
        used = true + size * scale[:, None] * rng.normal(size=true.shape)
        start = np.where(scale, rng.normal(size=6), 0.0)  # data are drawn at these scales, expected at 0
        solved = np.linalg.solve(used @ true.T + prior, used @ (true.T @ start + rng.normal(size=n_cells)))
        scatter.append(solved - start)
        information = used @ used.T + prior
        stated.append(np.diag(inverse_without_noise(information, noise, scale)))
        plain.append(np.diag(np.linalg.inv(information)))
    width = np.mean(np.square(scatter), axis=0)
    ratio = np.sqrt(width / np.mean(stated, axis=0))
    assert (np.abs(ratio - 1) < 0.25).all(), ratio
    assert (np.sqrt(width / np.mean(plain, axis=0))[scale] > 1.3).all()
    information = true @ true.T + prior
    np.testing.assert_allclose(inverse_without_noise(information, 0 * noise, scale), np.linalg.inv(information))
    most = np.diag(inverse_without_noise(information, 1e3 * noise, scale))[scale]
    assert np.isfinite(most).all()


def test_groups_that_look_alike_are_covered_though_both_are_simulated() -> None:
    """Two groups that differ by a slope over cells, from as many simulated events as data.

    Their noise makes them look more different than they are: least squares pull their numbers together, with errors
    that are too small. Without what noise adds to the information, neither is the case.
    """
    rng, n_cells, simulated_events = np.random.default_rng(6), 100, 500.0
    heights = np.array([1.6, 0.4])
    tilt = 0.12 * np.linspace(-1, 1, n_cells)
    true = 500.0 * np.stack([1 + tilt, 1 - tilt])
    ones, none = np.ones((2, n_cells)), np.zeros((0, 2, n_cells))
    plain, ours = [], []
    for _ in range(600):
        used = true * rng.poisson(simulated_events, true.shape) / simulated_events
        counts = rng.poisson(heights @ true)
        spread = used**2 / simulated_events
        weight = 1 / (heights @ used + heights**2 @ spread)
        information = (used * weight) @ used.T
        solved = np.linalg.solve(information, used @ (weight * counts))
        noise = design_noise(heights[None], ones, none, spread[None], weight)
        less = without_noise(information, noise, np.zeros((2, 2)))
        known = np.linalg.inv(less)
        plain.append((solved - heights) / np.sqrt(np.diag(np.linalg.inv(information))))
        ours.append(
            (solved + known @ (information - less) @ solved - heights) / np.sqrt(np.diag(known @ information @ known))
        )
    assert (np.abs(plain) < 1).mean() < 0.5
    assert 0.6 < (np.abs(ours) < 1).mean() < 0.76
    assert 0.9 < np.sqrt(np.mean(np.square(ours))) < 1.15


def test_data_that_no_mixture_describes_are_refused(world: tuple[Cells, MovableEvents, np.ndarray]) -> None:
    data = measured(SKY, 10, exposure=EXPOSURE)
    narrow = data.log_proba * np.where(np.arange(len(data)) % 4, 1.0, 0.02)[:, None]
    strange = replace(data, log_proba=narrow - np.logaddexp.reduce(narrow, axis=1, keepdims=True))
    fit = _problem(world, world[0].counts(strange)).fit()
    assert "the simulation does not describe the data" in fit.refusal
    assert fit.p_value() < 0.001
    good = _problem(world, world[0].counts(data)).fit()
    assert not good.refusal
    far = replace(good, parameters=np.where(np.arange(15) == 13, -4.0, good.parameters))
    assert "muon scale is -4.0" in far.refusal


def test_expectations_below_zero_stay_finite(world: tuple[Cells, MovableEvents, np.ndarray]) -> None:
    problem = _problem(world, world[0].counts(measured(SKY, 11, exposure=EXPOSURE)))
    likelihood: FoldedLikelihood = problem.likelihood(problem.nominal)
    at = likelihood.start()
    at[0] = -50.0
    assert np.isfinite(likelihood.value(at))
    assert likelihood.value(at) > likelihood.value(likelihood.start())
    assert np.isfinite(likelihood.gradient(at)).all()


def test_steps_of_any_length_have_a_value(world: tuple[Cells, MovableEvents, np.ndarray]) -> None:
    """Minuit may try an energy scale thousands of widths away, where powers of ten have no number."""
    problem = _problem(world, world[0].counts(measured(SKY, 11, exposure=EXPOSURE)), scales=True)
    likelihood: FoldedLikelihood = problem.likelihood(problem.nominal)
    at, near = likelihood.start(), likelihood.value(likelihood.start())
    for scale in (-1e5, 1e5):
        at[likelihood.layout.scales.start] = scale
        with np.errstate(over="ignore", invalid="ignore"):
            assert near < likelihood.value(at) < np.inf


def test_no_expectation_is_so_large_that_it_looks_likely() -> None:
    """-2 ln L is least where as many are expected as counted, and rises from there to the largest numbers."""
    counts, tau = np.array([0.0, 7.0, 1e5]), np.array([50.0, 2e4, 3e5])
    values = np.array([deviance(counts, np.maximum(counts, 1e-3) * 10.0**k, tau) for k in range(40)])
    assert (np.diff(values, axis=0) > 0).all()
    assert values.min() >= 0


def test_shares_and_masses_carry_their_errors() -> None:
    flux = np.array([[4.0, 3.0, 2.0, 1.0, 2.0], [1.0, 1.0, 1.0, 1.0, 1.0]])
    root = np.random.default_rng(1).normal(size=(10, 10))
    covariance = root @ root.T / 100
    share = share_covariance(flux, covariance)
    np.testing.assert_allclose(share.reshape(2, 5, 2, 5).sum(axis=1), 0, atol=1e-12, err_msg="shares sum to one")
    mean, slope = mean_ln_mass(flux)
    assert mean[1] == pytest.approx(LN_MASSES.mean())
    error = np.sqrt(np.diag(covariance_of_sums(covariance, slope)))
    drawn = np.random.default_rng(2).multivariate_normal(flux.ravel(), covariance / 1e4, 20_000).reshape(-1, 2, 5)
    masses = np.array([shares(one) @ LN_MASSES for one in drawn])
    np.testing.assert_allclose(masses.std(axis=0) * 100, error, rtol=0.035)
    variance, by_flux = variance_of_ln_mass(flux)
    of_toys = np.array([shares(one) @ LN_MASSES**2 for one in drawn]) - masses**2
    assert variance[1] == pytest.approx(LN_MASSES.var())
    of_variance = np.sqrt(np.diag(covariance_of_sums(covariance, by_flux)))
    np.testing.assert_allclose(of_toys.std(axis=0) * 100, of_variance, rtol=0.035)
    two = np.array([[1.0, 0, 0, 0, 1.0], [1.0, 0, 0, 0, 0]])
    assert variance_of_ln_mass(two)[0] == pytest.approx([4.05, 0.0], abs=0.003)
    # Of two models half the difference, times the root of 3: one more model's distance from their mean.
    spread = spread_of_models([flux, flux + 0.2])
    np.testing.assert_allclose(spread, np.full((10, 10), 0.1**2 * 3), rtol=1e-6)
    drawn = np.random.default_rng(3).normal(size=(4000, 4))
    stated = [spread_of_models(list(row[:3, None]))[0, 0] for row in drawn]
    assert np.mean((drawn[:, 3] - drawn[:, :3].mean(axis=1)) ** 2) == pytest.approx(np.mean(stated), rel=0.12)


def test_the_spread_of_models_is_told_from_noise_of_their_responses() -> None:
    rng = np.random.default_rng(11)
    root = rng.normal(size=(20, 20)) * np.geomspace(0.3, 3, 20)[:, None]
    noise, along = root @ root.T, rng.choice([-2, 2], 20) * np.sqrt(np.diag(root @ root.T))
    for models in (2, 4):
        found: dict[str, list[np.ndarray]] = {"none": [], "with noise": [], "spread": []}
        for _ in range(600):
            results = rng.normal(size=(models, 20)) @ root.T
            found["with noise"].append(np.diag(spread_of_models(results)))
            found["none"].append(np.diag(spread_of_models(results, [noise] * models)))
            differ = results + rng.normal(size=(models, 1)) * along
            found["spread"].append(np.diag(spread_of_models(differ, [noise] * models)))
        mean = {name: np.mean(values, axis=0) for name, values in found.items()}
        factor = 1 + 1 / models
        np.testing.assert_allclose(mean["with noise"], factor * np.diag(noise), rtol=0.3)
        assert (mean["none"] < 0.25 * factor * np.diag(noise)).all(), "what is left cannot be below zero"
        assert np.min(found["none"]) == 0
        assert np.mean(mean["spread"] / along**2) == pytest.approx(factor, rel=0.35)
    assert spread_of_models([0.0, 1.0], [[[0.0]], [[0.0]]])[0, 0] == pytest.approx(0.75), "exact responses"


@pytest.mark.slow
def test_responses_of_one_model_differ_by_their_stated_noise() -> None:
    """The same counts, and 12 responses of 40,000 showers of one model: taken by four they show no spread."""
    counts, fits = None, []
    for k in range(12):
        events, thrown = simulated(40_000, 3000 + k, BINS)
        world = (
            make_cells(BINS, events, 8),
            make_movable(events, BINS, Widths()),
            thrown.counts.sum(axis=0, dtype=np.float64),
        )
        if counts is None:
            cells, counts = world[0], world[0].counts(measured(SKY, 5, exposure=EXPOSURE / 4))
        fits.append(free_fluxes(_problem((cells, *world[1:]), counts, EXPOSURE / 4, scales=True).fit(), BANDS))
    values, noise = (np.array([getattr(one, name) for one in fits]) for name in ("flux", "of_response"))
    each = values.reshape(12, -1)
    mean = noise.mean(axis=0)
    # 220 degrees of freedom, a deviation of 0.1; the noise is known to linear order.
    q = np.trace(np.linalg.solve(mean, np.cov(each.T))) / each.shape[1]
    assert 0.6 < q < 1.45
    exact = np.mean([np.diag(spread_of_models(each[k : k + 4])) for k in range(0, 12, 4)], axis=0)
    ours = np.mean([np.diag(spread_of_models(each[k : k + 4], noise[k : k + 4])) for k in range(0, 12, 4)], axis=0)
    assert ours.sum() < 0.3 * exact.sum()
    rng, known = np.random.default_rng(1), 3 * np.sqrt(np.diag(mean))
    back = []
    for _ in range(400):
        taken = rng.choice(12, 4, replace=False)
        back.append(np.diag(spread_of_models(each[taken] + rng.normal(size=(4, 1)) * known, noise[taken])))
    assert np.mean(np.mean(back, axis=0) / known**2) == pytest.approx(1.25, rel=0.35)


def test_sets_that_cannot_be_folded_are_refused(pool: tuple[Simulated, Thrown]) -> None:
    events: SpectrumEvents = pool[0].take(np.arange(1000))
    with pytest.raises(InputError, match=r"without truth\.parquet has no true energies"):
        make_movable(replace(events, true_lg_energy=None), BINS, Widths())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no simulated event lies in the energy bins"):
        make_cells(binning((17.8, 17.9)), replace(events, lg_energy=np.full(1000, 15.0)))  # type: ignore[arg-type]


def _square(n_cells: int, n_true: int = 6) -> tuple[FoldedResponse, np.ndarray]:
    """Return a well conditioned response of one group, and true counts: true bins are those of the energy."""
    fine = np.linspace(15.2, 15.2 + 0.1 * n_true, n_true + 1)
    cells = Cells(Binning(np.linspace(15.2, 15.8, n_cells + 1), fine), np.array([]))
    away = (np.arange(n_cells)[:, None] + 0.5) / n_cells - (np.arange(n_true) + 0.7) / n_true
    probability = np.exp(-0.5 * (away / 0.09) ** 2)
    probability *= np.linspace(0.7, 0.9, n_true) / probability.sum(axis=0)
    thrown = np.full((1, n_true), 1e9)
    response = FoldedResponse(cells, np.zeros(3), probability[None] * 1e9, thrown, {})
    return response, 4e5 * 10.0 ** (-1.7 * np.linspace(0, 0.5, n_true))


def _free_counts(response: FoldedResponse, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return counts (T,) in the fine bins by folding with a factor for each, and their standard deviations."""
    likelihood = FoldedLikelihood(
        counts,
        response,
        1.0,
        1.0,
        ParameterLayout("none", MassGroups(("proton",), ((1,),))),
        priors=Priors(np.array([2.7])),
    )
    likelihood.unit_flux = counts.sum() / likelihood.expectation(likelihood.start())[0].sum()
    likelihood.hold(likelihood.start())
    fine = response.cells.bins.fine
    fluxes = free_fluxes(FoldedFit(likelihood, likelihood.start(), 0.0, 0.0, 1, True), fine)
    width = np.diff(10.0**fine)
    return fluxes.flux[:, 0] * width, np.sqrt(np.diag(sum(fluxes.covariance.values()))) * width


def _bayes(counts: np.ndarray, matrix: np.ndarray, shares: np.ndarray, iterations: int) -> np.ndarray:
    """Return true counts by repeated use of Bayes' theorem (D'Agostini, Nucl. Instrum. Meth. A 362 (1995) 487)."""
    true = counts.sum() * shares
    for _ in range(iterations):
        true = true * (matrix.T @ (counts / (matrix @ true))) / matrix.sum(axis=0)
    return true


def test_counts_as_expected_are_unfolded_to_the_truth() -> None:
    """Eight cells for six true bins: folding and Bayes' theorem, iterated, end where the counts come from."""
    response, truth = _square(8)
    expected = response.probability[0] @ truth
    np.testing.assert_allclose(_free_counts(response, expected)[0], truth, rtol=1e-6)
    matrix = response.probability[0]
    np.testing.assert_allclose(_bayes(expected, matrix, truth / truth.sum(), 50), truth, rtol=1e-9)
    np.testing.assert_allclose(_bayes(expected, matrix, np.full(6, 1 / 6), 3000), truth, rtol=2e-3)


def test_as_many_cells_as_true_bins_give_the_matrix_inverse() -> None:
    """Fluxes in bins and Bayes' theorem to its end; errors are those of the inverse, of expected counts."""
    response, truth = _square(6)
    matrix = response.probability[0]
    assert np.linalg.cond(matrix) < 30
    counts = np.random.default_rng(8).poisson(matrix @ truth).astype(np.float64)
    inverse = np.linalg.inv(matrix)
    folded, error = _free_counts(response, counts)
    np.testing.assert_allclose(folded, inverse @ counts, rtol=1e-4)
    np.testing.assert_allclose(error, np.sqrt(inverse**2 @ counts), rtol=0.01)
    np.testing.assert_allclose(_bayes(counts, matrix, np.full(6, 1 / 6), 20_000), inverse @ counts, rtol=1e-3)


def _moved_flux_counts(response: FoldedResponse, shift: float, events: float) -> tuple[np.ndarray, float]:
    """Return expected counts (C,) of showers that look like those of E 10^shift, and their exposure."""
    fine = response.cells.bins.fine
    middle = (fine[1:] + fine[:-1]) / 2 - shift
    particles = SKY.flux(10.0**middle) * 10.0**middle * np.log(10.0) * np.diff(fine)
    counts = np.einsum("kct,kt->c", response.probability, particles)
    return counts * events / counts.sum(), events / counts.sum()


def test_fluxes_of_few_events_do_not_run_away() -> None:
    """600 events in 112 cells: the true 20 fluxes agree with the found ones and their covariance, in each data set.

    Weights by the expectations of the factors themselves gave chi-squares of up to 310.
    """
    events, thrown = simulated(150_000, 1, BINS)
    world = make_cells(BINS, events), make_movable(events, BINS, Widths()), thrown.counts.sum(axis=0, dtype=np.float64)
    exposure = EXPOSURE / 180
    true = true_flux(SKY, binning(tuple(BANDS)))
    for seed in range(8):
        counts = world[0].counts(measured(SKY, seed, exposure=exposure))
        fluxes = free_fluxes(_problem(world, counts, exposure).fit(), BANDS)
        covariance = np.asarray(sum(fluxes.covariance.values()))
        away = (fluxes.flux - true).ravel()
        assert away @ np.linalg.solve(covariance, away) < 20 + 5 * np.sqrt(2 * 20)
        error = np.sqrt(np.diag(covariance_of_sums(covariance, np.ones_like(true))))
        assert (np.abs((fluxes.flux - true).sum(axis=1)) < 5 * error).all()


def test_energies_that_are_off_are_known_by_their_prior_alone(
    world: tuple[Cells, MovableEvents, np.ndarray],
) -> None:
    """True energies off by one width: no data show it, the error of all particles says it."""
    cells, events, thrown = world
    counts, exposure = _moved_flux_counts(make_response(events, cells, thrown), Widths().lg_energy, 60_000)
    fit = _problem(world, counts, exposure, scales=True).fit()
    fluxes = free_fluxes(fit, BANDS)
    place = fit.likelihood.layout.scales.start
    assert abs(fit.scales[0]) < 0.1
    assert abs(fluxes.scales[0]) < 0.1
    assert np.sqrt(fit.covariance()[place, place]) > 0.9
    each = np.ones_like(fluxes.flux)
    error = np.sqrt(np.diag(covariance_of_sums(np.asarray(sum(fluxes.covariance.values())), each)))
    pull = (fluxes.flux.sum(axis=1) - true_flux(SKY, binning(tuple(BANDS))).sum(axis=1)) / error
    assert (pull > 0.6).all()
    assert (pull < 1.2).all()
    held = _problem(world, counts, exposure).fit()
    assert free_fluxes(held, BANDS).flux.sum() == pytest.approx(fluxes.flux.sum(), rel=0.03), "the scale moves nothing"
    # With an exact simulation the knee lies where the showers look as if it did.
    knee = fit.likelihood.layout.names.index("lg_r0")
    unmoved, moved = (
        _problem(world, *_moved_flux_counts(make_response(events, cells, thrown), shift, 60_000), finite=False)
        .fit()
        .parameters[knee]
        for shift in (0.0, Widths().lg_energy)
    )
    assert moved - unmoved == pytest.approx(Widths().lg_energy, abs=0.01)


def test_a_scale_that_noise_seems_to_tell_is_what_was_expected(
    world: tuple[Cells, MovableEvents, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the noise of the simulation makes most of what data seem to tell, 0 +- 1 is quoted."""
    cells, _, thrown = world
    events = replace(world[1], widths=Widths(lg_electron=0.0))
    response = make_response(events, cells, thrown, np.array([0.0, 1.5, 0.0]))
    counts, exposure = _moved_flux_counts(response, 0.0, 60_000)
    fit = _problem((cells, events, thrown), counts, exposure, scales=True).fit()
    quoted = free_fluxes(fit, BANDS)
    monkeypatch.setattr("showerstack.analysis.spectra.fluxes.LEAST_OVER_NOISE", 0.0)
    told = free_fluxes(fit, BANDS)
    assert (quoted.scales[1], quoted.scale_errors[1]) == (0.0, 1.0)
    assert 0.5 < told.scale_errors[1] < 0.95
    assert abs(told.scales[1] - 1.5) < 2 * told.scale_errors[1]
    np.testing.assert_array_equal(quoted.flux, told.flux, err_msg="fluxes and their errors are as fitted")
    np.testing.assert_array_equal(quoted.covariance["scales"], told.covariance["scales"])


def test_the_cut_moves_with_the_sizes(pool: tuple[Simulated, Thrown]) -> None:
    """Of a set cut at its lowest sizes, those that leave stand for those that would enter."""
    events, thrown = pool
    primaries = thrown.counts.sum(axis=0, dtype=np.float64)
    least = (5.05, 4.2)
    whole = events.take((events.lg_ne > least[0] - 0.2) & (events.lg_nmu > least[1] - 0.2))
    cut = events.take((events.lg_ne > least[0]) & (events.lg_nmu > least[1]))
    mirrored = replace(cut, mirrored=np.ones((len(cut), 2), dtype=bool))
    cells = make_cells(BINS, cut)

    def slopes(some: Simulated) -> np.ndarray:
        """Return d ln n / dx of muons and electrons in the first bins."""
        ready = make_movable(some, BINS, Widths(), least)
        up, down = (
            [count_parts(ready, cells, s * np.eye(3)[j], parts=1)[0].sum(axis=(0, 2), dtype=np.float64) for j in (1, 2)]
            for s in (1, -1)
        )
        first = slice(0, 3 * cells.n_summaries)
        return np.log([a[first].sum() / b[first].sum() for a, b in zip(up, down, strict=True)]) / 2

    known = slopes(whole)
    np.testing.assert_allclose(slopes(mirrored), known, rtol=0.25)
    assert (np.abs(slopes(cut) / known - 1) > 0.4).any(), "without them the cut would not be seen to move"
    copies = make_movable(mirrored, BINS, Widths(), least)
    assert primaries.any()
    more = count_parts(copies, cells, np.array([0.0, 0.0, 1.0])).sum()
    assert more > count_parts(make_movable(cut, BINS, Widths(), least), cells, np.array([0.0, 0.0, 1.0])).sum()


def test_events_move_as_they_were_predicted_again(pool: tuple[Simulated, Thrown]) -> None:
    events = pool[0].take(np.arange(3000))
    y = mass_summary(events.log_proba)
    again = np.stack([y - 0.2, y + 0.3, y + 0.1, y - 0.2], axis=1)
    again[0] = np.nan
    again[1, 0], again[2, 1] = np.nan, np.nan
    moved = make_movable(replace(events, y_again=again), BINS, Widths(0.04, 0.02, 0.01)).y_moved
    ready = make_movable(events, BINS, Widths(0.04, 0.02, 0.01))
    np.testing.assert_array_equal(moved[:, 0], ready.y_moved[:, 0], err_msg="where not known, by regression")
    # .04 in lg are two widths of the muons and four of the electrons.
    np.testing.assert_allclose(moved[:2, 3:], np.array([[0.5 / 4], [0.05 / 4]]) * np.ones(2997), atol=1e-9)
    np.testing.assert_allclose(moved[2:, 3:], np.array([[-0.3 / 8], [-0.05 / 16]]) * np.ones(2997), atol=1e-9)
    np.testing.assert_allclose(moved[:2, 1], [0.3 / 2, 0.0], atol=1e-9, err_msg="one side alone")
    np.testing.assert_allclose(moved[:2, 2], [0.2 / 2, 0.0], atol=1e-9)
