"""Knees of known positions come back, with intervals that cover, and hypotheses are told apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from analysis.spectra.errors import Widths, all_errors, goodness
from analysis.spectra.estimate import Setting, estimate
from analysis.spectra.knees import fit_knees
from analysis.spectra.labels import by_labels
from analysis.spectra.power_law import KneeData, fit, knee_data
from analysis.spectra.response import binning
from analysis.spectra.run import Spectra
from report.physics_pages import knee_lines, spectra_text, write_spectra_page
from runtime.files import read_json
from tests.analysis.skies import CHARGES, EDGES, EXPOSURE, Sky, measured, simulated, true_flux

BINS = binning(EDGES)
SKY = Sky()
SHARPNESS = 1 / SKY.sharpness


def _data(rng: np.random.Generator, *, knees_pev: np.ndarray | None = None, relative: float = 0.05) -> KneeData:
    """Fluxes of the sky with Gaussian errors; other knees by one sky for each."""
    truth = true_flux(SKY, BINS)
    if knees_pev is not None:
        for k, knee in enumerate(knees_pev):
            truth[:, k] = true_flux(replace(SKY, knee_pev=knee / CHARGES[k]), BINS)[:, k]
    error = relative * truth.sum(axis=1)[:, None] / 3 * np.geomspace(0.3, 2.0, len(truth))[:, None]
    covariance = np.eye(5) * (error**2 * np.ones((1, 5)))[:, :, None]
    edges = np.stack([BINS.edges[:-1], BINS.edges[1:]], axis=1)
    return KneeData(
        edges, truth + rng.normal(size=truth.shape) * error, covariance, np.zeros_like(covariance),
        1e4 / truth, (1e4 * np.ones(truth.shape)).sum(axis=1), SHARPNESS,
    )  # fmt: skip


def test_the_rigidity_comes_back_unbiased() -> None:
    values = np.array([fit(_data(np.random.default_rng(seed)), "rigidity").lg_knee[0] for seed in range(12)])
    error = values.std(ddof=1) / np.sqrt(len(values))
    assert error < 0.03
    assert abs(values.mean() - np.log10(4.4e15)) < 3 * error


def test_a_steeper_derivative_is_the_functions_own() -> None:
    data = _data(np.random.default_rng(3))
    index, knees, step = np.full(5, 2.6), np.linspace(15.3, 16.5, 5), 1e-5
    value, slopes = data.shapes(index, 0.4, knees)
    moved = (
        data.shapes(index + step, 0.4, knees)[0],
        data.shapes(index, 0.4 + step, knees)[0],
        data.shapes(index, 0.4, knees + step)[0],
    )
    for slope, other in zip(slopes, moved, strict=True):
        np.testing.assert_allclose(slope, (other - value) / step, rtol=1e-3, atol=1e-4 * np.abs(value).max())


@pytest.fixture(scope="module", autouse=True)
def few_points() -> Iterator[None]:
    """Profiles of fewer points, beside those near the minimum."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("analysis.spectra.knees.PROFILE_POINTS", 13)
        yield


@pytest.fixture(scope="module")
def analysed() -> Spectra:
    """A sky with its knees at one rigidity, measured."""
    events, thrown = simulated(150_000, 1, BINS)
    data = measured(SKY, 1)
    setting = Setting(BINS, EXPOSURE, np.full((BINS.n_bins, 5), 0.2))
    result = estimate(data, events, thrown, setting)
    errors = all_errors(result, data, events, thrown, widths=Widths(), replicas=30)
    labels = by_labels(estimate(data, events, thrown, replace(setting, functions="label")))
    knees = fit_knees(result, errors, sharpness=SHARPNESS, toys=9)
    assert not isinstance(knees, str)
    return Spectra(result, errors, labels, goodness(result, data, events, toys=20), knees)


def test_a_sky_of_one_rigidity_is_recognised(analysed: Spectra) -> None:
    knees = analysed.knees
    assert knees is not None
    truth = np.log10(4.4e15)
    low, high = knees.rigidity.interval95.low, knees.rigidity.interval95.high
    assert low is not None
    assert high is not None
    assert low - 0.05 < truth < high + 0.05, "95 %, and a little for the finite simulation between bins"
    assert high - low < 0.8
    gained = {(one.null, one.other): one for one in knees.comparisons}
    assert gained["none", "rigidity"].p_value == pytest.approx(1 / 10), "a knee is seen"
    assert gained["none", "rigidity"].gained > 25
    assert gained["rigidity", "free"].p_value > 0.05
    assert gained["constant", "rigidity"].gained > 4
    assert all(one.gained > -0.5 for key, one in gained.items() if key[1] == "free"), "the general one fits best"
    table = knees.table()
    assert table["group"].to_list() == ["proton", "helium", "carbon", "silicon", "iron", "rigidity"]
    assert set(knees.rigidity.systematic) == {"hadronic_model", "energy_scale", "muon_scale", "sharpness"}
    assert 0.005 < knees.rigidity.systematic["energy_scale"] < 0.2
    assert knees.as_json()["hypotheses"]["none"]["lg_knee_eV"] == [None] * 5


def test_knees_at_one_energy_are_recognised() -> None:
    data = _data(np.random.default_rng(5), knees_pev=np.full(5, 4.4), relative=0.03)
    fits = {name: fit(data, name) for name in ("rigidity", "constant", "free")}
    assert fits["constant"].chi2 < fits["rigidity"].chi2 - 9
    assert fits["constant"].chi2 < fits["free"].chi2 + 12
    assert fits["constant"].lg_knee[0] == pytest.approx(np.log10(4.4e15), abs=0.06)


def test_knees_are_written_and_drawn(analysed: Spectra, tmp_path: Path) -> None:
    analysed.write(tmp_path, {})
    written = pl.read_csv(tmp_path / "knees.csv")
    assert {"group", "lg_knee_eV", "lg_knee_low_68_eV", "lg_knee_error_energy_scale"} <= set(written.columns)
    assert read_json(tmp_path / "spectra.json")["knees"]["toys"] == 9
    text = write_spectra_page(analysed, tmp_path, []).read_text()
    assert text.count("<svg") == 8
    assert "each group its own knee" in text
    lines = knee_lines(analysed)
    assert len(lines) == 7
    assert "lg(R/V) 15." in lines[5]


def test_too_few_energies_are_told(analysed: Spectra) -> None:
    result, errors = analysed.estimate, analysed.errors
    few = replace(result, usable=np.arange(BINS.n_bins) < 3)
    assert "knees were not fitted: 3 energy bins" in str(knee_data(few, errors))
    assert "knees were not fitted" in str(fit_knees(few, errors))


def test_an_error_that_is_not_known_is_unknown_and_never_zero(analysed: Spectra, tmp_path: Path) -> None:
    result, errors = analysed.estimate, analysed.errors
    unknown = np.full_like(errors.flux["hadronic_model"], np.nan)
    knees = fit_knees(result, replace(errors, flux={**errors.flux, "hadronic_model": unknown}), toys=1)
    assert not isinstance(knees, str)
    assert np.isnan(knees.rigidity.systematic["hadronic_model"])
    row = knees.table().row(5, named=True)
    assert row["lg_knee_error_hadronic_model"] is None
    assert row["lg_knee_error_all_systematic"] is None
    assert row["lg_knee_error_energy_scale"] == pytest.approx(
        analysed.knees.rigidity.systematic["energy_scale"], rel=0.5
    )  # type: ignore[union-attr]
    whole = replace(analysed, errors=replace(errors, flux={**errors.flux, "hadronic_model": unknown}), knees=knees)
    assert "± unknown systematic" in knee_lines(whole)[5]
    cells = [cell for column in spectra_text(whole).columns[2:] for cell in column.cells]
    assert {"unknown", "not used"} >= {str(cell).rsplit("±", 1)[-1] for cell in cells}
    assert ">unknown<" in write_spectra_page(whole, tmp_path, []).read_text()


@pytest.mark.parametrize("source", ["data", "simulation"])
def test_bins_without_statistical_errors_have_no_part_in_the_fit(analysed: Spectra, source: str) -> None:
    result, errors = analysed.estimate, analysed.errors
    whole = knee_data(result, errors)
    assert not isinstance(whole, str)
    broken = errors.flux[source].copy()
    first = np.flatnonzero(np.isin(BINS.edges[:-1], whole.edges[:, 0]))[0]
    broken[5 * first, 5 * first] = np.nan
    data = knee_data(result, replace(errors, flux={**errors.flux, source: broken}))
    assert not isinstance(data, str)
    np.testing.assert_array_equal(data.edges, whole.edges[1:])
    assert fit(data, "rigidity").chi2 > 0
