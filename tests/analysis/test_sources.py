"""Tables behind spectra: cells, nuisances, what sources of error change, and spectra that others published."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from showerstack.analysis.spectra.files import write_spectra
from showerstack.analysis.spectra.fluxes import covariance_of_sums
from showerstack.analysis.spectra.folding import make_cells, models_spread
from showerstack.analysis.spectra.published import PublishedSpectrum, global_spline_fit, published_spectra
from showerstack.analysis.spectra.response import FIVE, Simulated, Thrown
from showerstack.analysis.spectra.run import Spectra, Widths, cell_binning, folded_spectra, widths_of_models
from showerstack.analysis.spectra.sources import compare_with, narrow_scales
from tests.analysis.skies import EXPOSURE, Sky, measured, simulated

EDGES = (15.2, 15.5, 15.8, 16.2)
BINS = cell_binning(EDGES)


@pytest.fixture(scope="module")
def response() -> tuple[Simulated, Thrown]:
    return simulated(150_000, 1, BINS)


@pytest.fixture(scope="module")
def analysed(response: tuple[Simulated, Thrown]) -> Spectra:
    events, thrown = response
    data = measured(Sky(), 3, exposure=EXPOSURE / 8)
    result = folded_spectra(
        data, events, thrown.counts, make_cells(BINS, events), np.array(EDGES), EXPOSURE / 8, widths=Widths(),
        least=(-np.inf, -np.inf),
    )  # fmt: skip
    return replace(result, exposure_error=0.05)


def test_cells_add_up_and_scatter_as_they_should(analysed: Spectra) -> None:
    cells = analysed.sources()["cells.csv"]
    assert cells["events"].sum() == analysed.fit.likelihood.counts.sum()
    assert cells["expected"].sum() == pytest.approx(cells["events"].sum(), rel=0.02)
    pulls = cells["pull"].to_numpy()
    assert np.sqrt(np.mean(pulls**2)) == pytest.approx(1, abs=5 / np.sqrt(2 * len(pulls)))
    assert cells.filter(pl.col("y_low").is_null()).height == cells.filter(pl.col("y_high").is_null()).height


def test_nuisances_have_widths_pulls_and_impacts(analysed: Spectra) -> None:
    table = analysed.sources()["nuisances.csv"]
    assert table["nuisance"].to_list() == ["energy_scale", "muon_scale", "electron_scale"]
    assert table["width_lg"].to_list() == [0.04, 0.02, 0.02]
    energy = table.row(0, named=True)
    assert energy["error_in_widths"] > 0.9
    # Showers that look as if they had 10 % more energy: a flux as E^-2.7 to E^-3.1 is 16 to 19 % lower than it seems.
    assert energy["impact_all"] == pytest.approx(-0.18, abs=0.03)
    assert (table["error_in_widths"] > 0).all()
    narrow = replace(analysed.fluxes, scale_errors=np.array([1.0, 0.2, 0.9]))
    (told,) = narrow_scales(narrow)
    assert told.startswith("the muon scale comes out as")


def test_changes_by_source_are_those_of_fits_with_the_scale_held(analysed: Spectra) -> None:
    table = analysed.sources()["systematics.csv"]
    assert set(table["group"]) <= {*FIVE.names, "light", "heavy", "all"}
    rows = table.filter(pl.col("group") == "all")
    relative = (rows["change_energy_scale_m2_sr_s_eV"] / rows["flux_m2_sr_s_eV"]).to_numpy()
    np.testing.assert_allclose(relative, -0.175, atol=0.03)
    exposure = (rows["change_exposure_m2_sr_s_eV"] / rows["flux_m2_sr_s_eV"]).to_numpy()
    np.testing.assert_allclose(exposure, -0.05)
    assert {"change_response_of_qgs_m2_sr_s_eV", "change_response_of_epos_m2_sr_s_eV"} <= set(table.columns)
    # Together the scales' changes make their covariance, but for what data tell of them.
    joint = analysed.fluxes.joint
    size = len(joint.information)
    of_scales = joint.covariance[size - 2 :, size - 2 :]
    energy, changes = analysed.fluxes.per_width[0].ravel(), analysed.fluxes.per_width[1:].reshape(2, -1)
    made = np.sqrt(np.diag(changes.T @ of_scales @ changes) + energy**2)
    stated = np.sqrt(np.diag(analysed.fluxes.covariance["scales"]))
    assert len(stated) == joint.inner.stop - joint.inner.start
    assert np.median(made / stated) == pytest.approx(1, abs=0.3)


def test_a_published_spectrum_with_other_energies_is_found_again(analysed: Spectra) -> None:
    energy = 10.0 ** np.linspace(14.8, 17.0, 45)
    flux = Sky().flux(energy).sum(axis=0)
    shift = 0.05  # theirs lie lower in energy: dJ/dE of E 10^-.05

    def published(factor: float) -> PublishedSpectrum:
        moved = flux * 10.0**shift * factor
        return PublishedSpectrum("x", "", "all", energy * 10.0**-shift, moved, np.tile(0.02 * moved, (2, 1)), "doi")

    bad = PublishedSpectrum("y", "", "iron", energy, flux, np.tile(flux, (2, 1)), "doi")
    covariance = analysed.covariance(("data", "simulation", "scales", "exposure"))
    table = compare_with((published(1.0), bad), analysed.centres_ev, analysed.fluxes, covariance)
    assert table.height == 1
    row = table.row(0, named=True)
    assert row["degrees_of_freedom"] == row["bins"] - 1
    error = np.sqrt(np.diag(covariance_of_sums(covariance, np.ones_like(analysed.fluxes.flux))))
    assert row["chi2"] < 15
    assert row["shift_of_published_lg_energy"] == pytest.approx(shift, abs=5 * 0.02)
    assert (error > 0).all()
    far = compare_with((published(3.0),), analysed.centres_ev, analysed.fluxes, covariance).row(0, named=True)
    assert far["chi2_unshifted"] > row["chi2_unshifted"] + 10


def test_the_global_spline_fit_is_in_the_units_of_the_others() -> None:
    """Fluxes per eV: within the differences between experiments, 10 % in energy or 17 % in flux, it is LHAASO's."""
    pytest.importorskip("globalsplinefit")
    (spline,) = global_spline_fit()
    lhaaso = next(one for one in published_spectra() if one.experiment == "LHAASO" and one.group == "all")
    ratio = np.exp(np.interp(np.log(lhaaso.energy_ev), np.log(spline.energy_ev), np.log(spline.value))) / lhaaso.value
    np.testing.assert_allclose(ratio, 1.0, atol=0.3)
    assert (spline.error < 0.2 * spline.value).all()


def test_the_global_spline_fit_is_named_with_its_version() -> None:
    """That of simweights 0.1.3 (per cm2) and fluxcomp 0.1.6 is of 2017, with 12 to 23 % fewer particles."""
    pytest.importorskip("globalsplinefit")
    other = pytest.importorskip("simweights").GlobalSplineFit()
    (spline,) = global_spline_fit()
    assert spline.experiment.startswith("GSF 20")
    if spline.experiment != "GSF 2026.1":
        pytest.skip(f"{spline.experiment} has other fluxes")
    energy = np.array([1e15, 1e16, 1e17])
    ours = np.exp(np.interp(np.log(energy), np.log(spline.energy_ev), np.log(spline.value)))
    theirs = sum(np.asarray(other(energy / 1e9, np.full(3, int(one)))) for one in other.pdgids) * 1e4 / 1e9
    np.testing.assert_allclose(ours / theirs, [1.12, 1.21, 1.23], atol=0.02)


def test_models_that_differ_widen_the_scales(response: tuple[Simulated, Thrown]) -> None:
    events, _ = response
    assert events.model is not None
    assert (models_spread(events, BINS) < 0.004).all(), "these models are alike"
    other = replace(events, lg_nmu=events.lg_nmu + 0.06 * (events.model == 1))
    spread = models_spread(other, BINS)
    assert spread[0] == pytest.approx(0.06 / np.sqrt(2), abs=0.004)
    widths, (told,) = widths_of_models(Widths(), other, BINS)
    assert widths.lg_muon == pytest.approx(spread[0])
    assert (widths.lg_electron, widths.lg_energy) == (0.02, 0.04)
    assert "muon scale has a width of 0.04" in told
    exact, none = widths_of_models(Widths(0.0, 0.0, 0.0), other, BINS)
    assert (exact, none) == (Widths(0.0, 0.0, 0.0), [])
    alone = other.take(other.model == 1)
    assert not models_spread(alone, BINS).any()


def test_tables_are_written_and_earlier_ones_removed(analysed: Spectra, tmp_path: Path) -> None:
    write_spectra(replace(analysed, knees=None, stability=pl.DataFrame({"chi2": [1.0]})), tmp_path)
    for name in ("cells", "nuisances", "systematics", "comparison", "stability"):
        assert pl.read_csv(tmp_path / f"{name}.csv").height
    earlier, users = tmp_path / "hepdata" / "flux_gold.yaml", tmp_path / "hepdata" / "thumbnail.png"
    for file in (earlier, users, tmp_path / "knees.csv"):
        file.write_text("of an earlier analysis")
    write_spectra(replace(analysed, knees=None, muons=None, stability=None), tmp_path)
    assert not [name for name in ("knees", "muons", "stability") if (tmp_path / f"{name}.csv").exists()]
    assert users.exists()
    assert not earlier.exists()
