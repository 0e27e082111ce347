"""Known spectra come back within their errors, from posteriors and from labels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from analysis.spectra.errors import (
    Widths,
    all_errors,
    by_model,
    goodness,
    share_covariance,
    shares,
    simulation_covariance,
)
from analysis.spectra.estimate import Setting, estimate
from analysis.spectra.labels import bayes, by_labels, regularised
from analysis.spectra.response import Simulated, Thrown, binning, judge_exposure, parse_exposure
from runtime.errors import InputError
from tests.analysis.sky import CHARGES, EXPOSURE, Sky, measured, simulated, true_flux

EDGES = (15.2, 15.5, 15.8, 16.1, 16.4)
BINS = binning(EDGES)
SETTING = Setting(BINS, EXPOSURE, np.full((4, 5), 0.2))
SKY = Sky()


@pytest.fixture(scope="module")
def response() -> tuple[Simulated, Thrown]:
    return simulated(150_000, 1, BINS)


def test_fluxes_come_back_with_errors_that_cover() -> None:
    """Every toy has its own simulation: data and simulation errors together must cover."""
    truth, pulls, inside = true_flux(SKY, BINS), [], []
    for seed in range(10):
        events, thrown = simulated(60_000, 100 + seed, BINS)
        found = estimate(
            measured(SKY, seed, exposure=EXPOSURE / 4), events, thrown, replace(SETTING, exposure_m2_sr_s=EXPOSURE / 4)
        )
        covariance = simulation_covariance(found, events, replicas=40, seed=seed)
        variance = np.einsum("bcc->bc", found.events_covariance) * found.flux_per_event**2
        error = np.sqrt(variance + np.diag(covariance).reshape(4, 5))
        pulls.append((found.flux - truth) / error)
        inside.append(np.abs(pulls[-1]) < 1)
    pulls = np.array(pulls)
    assert np.abs(pulls.mean(axis=0)).max() < 1.2, "unbiased: 20 means of 10 pulls"
    assert abs(pulls.mean()) < 0.25
    assert 0.75 < pulls.std() < 1.25
    assert 0.58 < np.mean(inside) < 0.78


def test_every_source_has_a_full_covariance(response: tuple[Simulated, Thrown]) -> None:
    data = measured(SKY, 50, exposure=EXPOSURE / 10)
    found = estimate(data, *response, replace(SETTING, exposure_m2_sr_s=EXPOSURE / 10))
    errors = all_errors(found, data, *response, widths=Widths(), replicas=30)
    assert set(errors.flux) == {"data", "simulation", "hadronic_model", "energy_scale", "muon_scale"}
    for matrix in errors.flux.values():
        assert matrix.shape == (20, 20)
        assert np.linalg.eigvalsh(matrix / np.diag(matrix).max()).min() > -1e-9
        assert (np.diag(matrix) > 0).all()
    # A steep spectrum: energies 0.04 too large in lg E raise all fluxes by about 0.04 * 1.7 in lg J.
    n_bins, total = 4, found.flux.sum(axis=1)
    scale = errors.flux["energy_scale"].reshape(n_bins, 5, n_bins, 5).sum(axis=(1, 3))
    assert np.sqrt(scale[0, 0]) / total[0] == pytest.approx(10 ** (0.04 * 1.8) - 1, rel=0.35)
    covariance = share_covariance(found.flux, errors.total())
    np.testing.assert_allclose(covariance.reshape(4, 5, 4, 5).sum(axis=1), 0, atol=1e-12, err_msg="shares sum to one")
    np.testing.assert_allclose(shares(found.flux).sum(axis=1), 1)
    assert len(by_model(response[0], data, response[1], SETTING, [])) == 2


def test_migration_and_efficiency_matter(response: tuple[Simulated, Thrown]) -> None:
    data, truth = measured(SKY, 60), true_flux(SKY, BINS)
    found = estimate(data, *response, SETTING)
    without = estimate(data, response[0], None, SETTING)
    assert (without.correction == 1).all()
    right, wrong = (np.abs(one.flux.sum(axis=1) / truth.sum(axis=1) - 1)[:3] for one in (found, without))
    assert right.max() < 0.03
    assert wrong.max() > 0.06


def test_fit_is_judged_honestly(response: tuple[Simulated, Thrown]) -> None:
    exposure = EXPOSURE / 10
    setting = replace(SETTING, exposure_m2_sr_s=exposure)
    p_values = []
    for seed in range(6):
        data = measured(SKY, 200 + seed, exposure=exposure)
        p_values.append(goodness(estimate(data, *response, setting), data, response[0], toys=40, seed=seed).p_value)
    assert 0.15 < np.mean(p_values) < 0.85
    assert min(p_values) > 0.02
    data = measured(SKY, 300, exposure=exposure)
    strange = replace(data, lg_ne=data.lg_ne + 0.05 * np.where(np.arange(len(data)) % 5, 0.0, 3.0))
    assert goodness(estimate(data, *response, setting), strange, response[0], toys=60).p_value < 0.03


def test_labels_give_the_same_with_larger_errors(response: tuple[Simulated, Thrown]) -> None:
    data = measured(SKY, 70)
    soft, hard = estimate(data, *response, SETTING), estimate(data, *response, replace(SETTING, functions="label"))
    soft_error = np.sqrt(np.einsum("bcc->bc", soft.events_covariance))
    hard_error = np.sqrt(np.einsum("bcc->bc", hard.events_covariance))
    assert np.median(hard_error / soft_error) > 1.05
    found = by_labels(hard)
    assert set(found.events) == {"inverse", "clipped", "bayes", "regularised"}
    truth = true_flux(SKY, BINS) / hard.flux_per_event
    for method, events in found.events.items():
        assert np.abs(events - truth)[0].max() / truth[0].sum() < 0.06, method
    assert (found.events["clipped"] >= 0).all()


def test_bayes_and_likelihood_reach_the_inverse() -> None:
    response = np.array([[[0.8, 0.3], [0.2, 0.7]]] * 3)
    truth = np.array([[100.0, 300.0], [50.0, 60.0], [5.0, 40.0]])
    counts = np.einsum("bjc,bc->bj", response, truth)
    np.testing.assert_allclose(bayes(counts, response, 500), truth, rtol=1e-3)
    np.testing.assert_allclose(regularised(counts, response, 0.0), truth, rtol=0.02)
    stiff = regularised(counts, response, 1e7)
    shares_found = stiff / counts.sum(axis=1, keepdims=True)
    assert np.abs(np.diff(shares_found, 2, axis=0)).max() < 0.02


def test_bad_input_is_refused_by_name(response: tuple[Simulated, Thrown]) -> None:
    data = measured(SKY, 80, exposure=EXPOSURE / 100)
    events, thrown = response
    with pytest.raises(InputError, match="hold no carbon"):
        estimate(data, events.take(events.labels != 2), thrown, SETTING)
    with pytest.raises(InputError, match="no energy bin has 10 measured events"):
        estimate(data.take(np.arange(5)), events, thrown, SETTING)
    with pytest.raises(InputError, match="rising borders"):
        binning((15.5, 15.2))
    with pytest.raises(InputError, match="must lie in"):
        binning((13.0, 15.0))


def test_empty_bins_are_left_out(response: tuple[Simulated, Thrown]) -> None:
    data = measured(SKY, 81, exposure=EXPOSURE / 100)
    found = estimate(data.take(data.lg_energy < 16.0), *response, SETTING)
    assert found.usable.tolist() == [True, True, True, False]
    assert np.isnan(found.flux[3]).all()
    assert np.isfinite(found.flux[:3]).all()


def test_exposure_units() -> None:
    assert parse_exposure("6.2e12") == 6.2e12
    assert parse_exposure("2 km2_sr_yr") == pytest.approx(2 * 3.15576e13)
    for text in ("", "-3", "nan", "6 h", "1e12 m2", "inf", "1e"):
        with pytest.raises(InputError, match="--exposure"):
            parse_exposure(text)
    energy = np.array([1e15, 3e15])
    right = 2.4e-21 * np.array([1.0, 3.0**-2.7])
    assert judge_exposure(right, energy, simulated=False) == []
    assert "3.9 times" in judge_exposure(3.9 * right, energy, simulated=False)[0]
    with pytest.raises(InputError, match="times the published one"):
        judge_exposure(1e-4 * right, energy, simulated=False)
    assert judge_exposure(1e-4 * right, energy, simulated=True)


def test_the_rigidity_sky_is_what_it_says() -> None:
    low, high = SKY.flux(np.array([1e13, 1.01e13])), SKY.flux(np.array([1e19, 1.01e19]))
    np.testing.assert_allclose(np.log(low[:, 1] / low[:, 0]) / np.log(1.01), -2.7, atol=0.01)
    np.testing.assert_allclose(np.log(high[:, 1] / high[:, 0]) / np.log(1.01), -3.3, atol=0.01)
    assert CHARGES[4] == 26
