"""Known spectra come back within their errors, from posteriors, from labels and by unfolding.

Shares of classes are tested by the likelihood's maximum and by what simulation makes of its estimating functions. A
small run and a set without labels are measured as a user does it, and what cannot be is refused.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from analysis.events import model_numbers
from analysis.spectra.errors import (
    Widths,
    all_errors,
    by_model,
    goodness,
    share_covariance,
    shares,
    simulation_covariance,
)
from analysis.spectra.estimate import Setting, estimate, estimating_functions, likelihood_ratios, maximum_likelihood
from analysis.spectra.labels import bayes, by_labels, regularised, unfold, unfold_composition
from analysis.spectra.reading import thrown_primaries
from analysis.spectra.response import Simulated, Thrown, binning, judge_exposure, parse_exposure
from analysis.spectra.run import SpectraOptions, measure_spectra
from commands.physics import numbers
from report.physics_pages import spectra_text, write_spectra_page
from runtime.context import Context, PlainConsole
from runtime.errors import InputError
from runtime.files import read_json
from tests.analysis.skies import CHARGES, EXPOSURE, Sky, measured, simulated, true_flux

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
        result = estimate(
            measured(SKY, seed, exposure=EXPOSURE / 4), events, thrown, replace(SETTING, exposure_m2_sr_s=EXPOSURE / 4)
        )
        covariance = simulation_covariance(result, events, replicas=40, seed=seed)
        variance = np.einsum("bcc->bc", result.events_covariance) * result.flux_per_event**2
        error = np.sqrt(variance + np.diag(covariance).reshape(4, 5))
        pulls.append((result.flux - truth) / error)
        inside.append(np.abs(pulls[-1]) < 1)
    pulls = np.array(pulls)
    assert np.abs(pulls.mean(axis=0)).max() < 1.2, "unbiased: 20 means of 10 pulls"
    assert abs(pulls.mean()) < 0.25
    assert 0.75 < pulls.std() < 1.25
    assert 0.58 < np.mean(inside) < 0.78


def test_every_source_has_a_full_covariance(response: tuple[Simulated, Thrown]) -> None:
    data = measured(SKY, 50, exposure=EXPOSURE / 10)
    result = estimate(data, *response, replace(SETTING, exposure_m2_sr_s=EXPOSURE / 10))
    errors = all_errors(result, data, *response, widths=Widths(), replicas=30)
    assert set(errors.flux) == {"data", "simulation", "hadronic_model", "energy_scale", "muon_scale"}
    for matrix in errors.flux.values():
        assert matrix.shape == (20, 20)
        assert np.linalg.eigvalsh(matrix / np.diag(matrix).max()).min() > -1e-9
        assert (np.diag(matrix) > 0).all()
    # A steep spectrum: energies 0.04 too large in lg E raise all fluxes by about 0.04 * 1.7 in lg J.
    n_bins, total = 4, result.flux.sum(axis=1)
    scale = errors.flux["energy_scale"].reshape(n_bins, 5, n_bins, 5).sum(axis=(1, 3))
    assert np.sqrt(scale[0, 0]) / total[0] == pytest.approx(10 ** (0.04 * 1.8) - 1, rel=0.35)
    covariance = share_covariance(result.flux, errors.total())
    np.testing.assert_allclose(covariance.reshape(4, 5, 4, 5).sum(axis=1), 0, atol=1e-12, err_msg="shares sum to one")
    np.testing.assert_allclose(shares(result.flux).sum(axis=1), 1)
    assert len(by_model(response[0], data, response[1], SETTING, [])) == 2


def test_migration_and_efficiency_matter(response: tuple[Simulated, Thrown]) -> None:
    data, truth = measured(SKY, 60), true_flux(SKY, BINS)
    result = estimate(data, *response, SETTING)
    without = estimate(data, response[0], None, SETTING)
    assert (without.correction == 1).all()
    right, wrong = (np.abs(one.flux.sum(axis=1) / truth.sum(axis=1) - 1)[:3] for one in (result, without))
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
    result = by_labels(hard)
    assert set(result.events) == {"inverse", "clipped", "bayes", "regularised"}
    truth = true_flux(SKY, BINS) / hard.flux_per_event
    for method, events in result.events.items():
        assert np.abs(events - truth)[0].max() / truth[0].sum() < 0.06, method
    assert (result.events["clipped"] >= 0).all()


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
    result = estimate(data.take(data.lg_energy < 16.0), *response, SETTING)
    assert result.usable.tolist() == [True, True, True, False]
    assert np.isnan(result.flux[3]).all()
    assert np.isfinite(result.flux[:3]).all()


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


COMMAND_EDGES = (14.9, 15.4, 16.0)


def _options(run: Path, sky: Path, out: Path, **changes: object) -> SpectraOptions:
    entries = {"exposure": "1e7", "simulation": [], "edges": COMMAND_EDGES, "zenith_max_deg": 30.0, "replicas": 20}
    return SpectraOptions(run, [sky], out=out, **(entries | changes))  # type: ignore[arg-type]


def test_spectra_of_a_small_sky(composition_run: Path, composition_sky: Path, tmp_path: Path) -> None:
    result, remarks = measure_spectra(_options(composition_run, composition_sky, tmp_path), Context(trusted=True))
    table = pl.read_parquet(tmp_path / "spectra.parquet")
    assert table.height == 2 * 6
    assert {"flux_m2_sr_s_eV", "flux_error_total_m2_sr_s_eV", "lg_energy_low_eV"} <= set(table.columns)
    assert pl.read_csv(tmp_path / "spectra.csv").columns == table.columns
    share = table.filter(pl.col("group") != "all")["fraction"].to_numpy()
    error = table.filter(pl.col("group") != "all")["fraction_error_statistical"].to_numpy()
    assert np.abs((share - 0.2) / error).max() < 4, "all groups were thrown alike"
    provenance = read_json(tmp_path / "spectra.json")
    assert provenance["corrected_for_efficiency"]
    assert provenance["exposure_m2_sr_s"] == 1e7
    assert 0 < provenance["goodness_of_fit"]["p_value"] <= 1
    assert any("out-of-fold" in remark for remark in remarks), "too small a holdout is told"
    assert any("knees were not fitted: 2 energy bins" in remark for remark in remarks)
    with np.load(tmp_path / "covariance.npz") as stored:
        assert stored["flux_data_m2_sr_s_eV_squared"].shape == (10, 10)
    page = write_spectra_page(result, tmp_path, remarks).read_text()
    assert page.count("<svg") == 6
    PlainConsole(width=100).print(spectra_text(result))


def test_what_cannot_be_right_is_refused(
    composition_run: Path, composition_sky: Path, tiny_composition: Path, gamma_run: Path, tmp_path: Path
) -> None:
    cases = (
        ({"exposure": "three"}, "--exposure"),
        ({"edges": (17.8, 17.9)}, "hold no proton"),
        ({"zenith_max_deg": -1.0}, "--zenith-max"),
        ({"replicas": 2}, "--replicas"),
        ({"knee_toys": -1}, "--knee-toys"),
        ({"simulation": [tiny_composition / "composition_train"]}, "was trained on"),
        ({"simulation": [composition_sky]}, "label"),
        ({"simulation": [tiny_composition / "composition_test"]}, "both --data and --simulation"),
    )
    for changes, message in cases:
        with pytest.raises(InputError, match=message):
            measure_spectra(_options(composition_run, composition_sky, tmp_path, **changes))
    with pytest.raises(InputError, match="was trained on"):
        measure_spectra(_options(composition_run, tiny_composition / "composition_train", tmp_path))
    with pytest.raises(InputError, match="trained for gamma: spectra needs a run trained for composition"):
        measure_spectra(_options(gamma_run, composition_sky, tmp_path))
    with pytest.raises(InputError, match="numbers with commas"):
        numbers("15,a", "--bins")


def test_thrown_primaries_are_those_of_the_set(tiny_composition: Path) -> None:
    folder = tiny_composition / "composition_test"
    source, truth = read_json(folder / "source.json"), pl.read_parquet(folder / "truth.parquet")
    edges = np.linspace(14, 18, 81)
    thrown = thrown_primaries(source, truth, edges, 90.0).counts
    accepted, _ = np.histogram(truth["lg_energy"].to_numpy(), edges)
    assert (thrown.sum(axis=(0, 1)) >= accepted).all()
    last = int(truth["shower"].max())
    assert thrown.sum() == pytest.approx(last + 1, rel=1e-3), "every primary up to the last event"
    assert thrown_primaries(source, truth, edges, 30.0).counts.sum() < thrown.sum()
    moved = truth.with_columns(pl.col("lg_energy") + 0.01)
    for wrong_source, wrong_truth, message in (
        (source, moved, "code has been changed"),
        (source | {"settings_hash": "0"}, truth, "world"),
        (source | {"generator": "CORSIKA"}, truth, "does not name"),
    ):
        with pytest.raises(InputError, match=message):
            thrown_primaries(wrong_source, wrong_truth, edges, 30.0)


def test_models_of_raw_archives_have_names_and_those_of_simulated_sets_numbers() -> None:
    names = pl.DataFrame({"model": ["qgs-4_gm_pr", "LHC_gm_pr", "qgs-4_gm_pr"]})
    assert model_numbers(names).tolist() == [2, 1, 2]
    assert model_numbers(pl.DataFrame({"model": [0, 2, 1]})).tolist() == [0, 2, 1]


CONFUSION = np.array(
    [
        [0.64, 0.23, 0.10, 0.02, 0.01],
        [0.30, 0.35, 0.25, 0.08, 0.02],
        [0.05, 0.22, 0.39, 0.25, 0.09],
        [0.01, 0.04, 0.23, 0.39, 0.33],
        [0.00, 0.01, 0.04, 0.23, 0.72],
    ]
)


def _decided(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return (rng.random((len(labels), 1)) > np.cumsum(CONFUSION[labels], axis=1)).sum(axis=1).clip(max=4)


def test_fractions_come_back_with_errors_that_cover() -> None:
    truth = np.array([0.1, 0.2, 0.4, 0.2, 0.1])
    pulls = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        simulated = rng.integers(0, 5, 200_000)
        response = np.zeros((5, 5))
        np.add.at(response, (simulated, _decided(simulated, rng)), 1)
        sample = rng.choice(5, 50_000, p=truth)
        result = unfold_composition(_decided(sample, rng), response, seed=seed)
        pulls.append((result.fractions - truth) / result.fraction_errors)
    pulls = np.array(pulls)
    assert np.abs(pulls.mean(axis=0)).max() < 0.5, "unbiased"
    assert 0.8 < pulls.std() < 1.25, "errors are neither boasting nor timid"


def test_perfect_response_returns_the_counts() -> None:
    measured = np.array([10.0, 200.0, 0.0, 35.0])
    result = unfold(measured, 1e6 * np.eye(4))
    np.testing.assert_allclose(result.counts, measured, atol=1e-2)
    np.testing.assert_allclose(result.errors, np.sqrt(measured), rtol=0.15, atol=0.3)


def test_steep_spectrum_with_inefficiency_in_few_iterations() -> None:
    rng = np.random.default_rng(3)
    truth = 1e5 * 10.0 ** (-0.5 * np.arange(8))
    smear = np.exp(-0.5 * ((np.arange(8)[:, None] - np.arange(8)) / 0.6) ** 2)
    smear *= np.linspace(0.5, 0.95, 8)[:, None] / smear.sum(axis=1, keepdims=True)
    generated = np.full(8, 200_000)
    response = rng.binomial(200_000, smear)
    measured = rng.poisson(truth @ smear)
    result = unfold(measured, response, generated=generated, prior=10.0 ** (-0.4 * np.arange(8)), iterations=6)
    assert result.iterations == 6
    assert (np.abs(result.counts / truth - 1) < 0.15)[:6].all()
    assert result.counts.sum() == pytest.approx(truth.sum(), rel=0.02), "efficiency is corrected for"
    # Measured directly, the steepness of the spectrum and the inefficiency would mislead by far more.
    assert np.abs(measured / truth - 1)[:4].min() > 0.15


def test_a_bin_without_simulation_is_refused() -> None:
    with pytest.raises(InputError, match="true bin 1"):
        unfold(np.ones(2), np.array([[5, 5], [0, 0]]))
    with pytest.raises(InputError, match="measured bins"):
        unfold(np.ones(3), np.eye(2))


def _posteriors(labels: np.ndarray, rng: np.random.Generator, prior: np.ndarray, sharper: float = 1.0) -> np.ndarray:
    x = 1.2 * labels + rng.normal(0, 1, len(labels))
    z = -0.5 * sharper * (x[:, None] - 1.2 * np.arange(len(prior))) ** 2 + np.log(prior)
    return z - np.logaddexp.reduce(z, axis=1, keepdims=True)


def test_shares_come_back_whatever_the_training_prior() -> None:
    rng = np.random.default_rng(1)
    truth, prior = np.array([0.1, 0.6, 0.3]), np.array([0.5, 0.2, 0.3])
    labels = rng.choice(3, 40_000, p=truth)
    ratios = likelihood_ratios(_posteriors(labels, rng, prior), prior)
    np.testing.assert_allclose(maximum_likelihood(ratios), truth, atol=0.015)
    wrong = maximum_likelihood(np.exp(_posteriors(labels, np.random.default_rng(2), prior)))
    assert np.abs(wrong - truth).max() > 0.05, "forgetting the prior would be seen"


def test_newton_ends_where_em_would() -> None:
    rng = np.random.default_rng(3)
    ratios = rng.gamma(0.5, size=(500, 4))
    shares = np.full(4, 0.25)
    for _ in range(20_000):
        shares = shares * (ratios / (ratios @ shares)[:, None]).mean(axis=0)
    np.testing.assert_allclose(maximum_likelihood(ratios), shares, atol=1e-5)


def test_a_class_that_is_not_there_gets_nothing() -> None:
    rng = np.random.default_rng(4)
    labels = rng.choice(2, 20_000)
    result = maximum_likelihood(likelihood_ratios(_posteriors(labels, rng, np.full(4, 0.25)), np.full(4, 0.25)))
    assert result[3] < 0.01
    assert result.min() >= 0
    assert result.sum() == pytest.approx(1)


def test_simulation_mends_posteriors_that_are_too_sharp() -> None:
    rng = np.random.default_rng(5)
    prior, truth = np.full(3, 1 / 3), np.array([0.7, 0.2, 0.1])
    known = rng.integers(0, 3, 200_000)
    labels = rng.choice(3, 100_000, p=truth)
    ours = likelihood_ratios(_posteriors(labels, rng, prior, 3.0), prior)
    theirs = likelihood_ratios(_posteriors(known, rng, prior, 3.0), prior)
    plain = maximum_likelihood(ours)
    at = np.maximum(plain, 0.02)
    g, simulated = estimating_functions(ours, at), estimating_functions(theirs, at)
    mixing = np.stack([simulated[known == k].mean(axis=0) for k in range(3)], axis=1)
    checked = np.linalg.solve(mixing, g.mean(axis=0))
    assert np.abs(plain - truth).max() > 0.02, "the posteriors alone mislead"
    np.testing.assert_allclose(checked, truth, atol=0.012)


def test_nothing_and_an_unknown_class_are_refused() -> None:
    with pytest.raises(InputError, match="no event"):
        maximum_likelihood(np.zeros((0, 5)))
    with pytest.raises(InputError, match="class 1 has no training event"):
        likelihood_ratios(np.zeros((2, 2)), np.array([1.0, 0.0]))
