"""Known spectra come back within their errors, from posteriors.

Shares of classes are tested by the likelihood's maximum and by what simulation makes of its estimating functions. A
small run and a set without labels are measured as a user does it, and what cannot be is refused.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import polars as pl
import pytest

from benchmarks.physics.estimate import estimating_functions, likelihood_ratios, maximum_likelihood
from showerstack.analysis.events import model_numbers
from showerstack.analysis.exposure import EXPOSURE_ERROR
from showerstack.analysis.spectra.files import write_spectra
from showerstack.analysis.spectra.fluxes import STATISTICAL, share_covariance, shares, undetermined
from showerstack.analysis.spectra.folding import PLATEAU_EFFICIENCY, Widths, make_cells
from showerstack.analysis.spectra.knees import HeldScales, _fit_like, _knee, fit_knees, profile_knee
from showerstack.analysis.spectra.likelihood import FoldedFit, FoldingProblem, fit_once
from showerstack.analysis.spectra.published import published_spectra
from showerstack.analysis.spectra.reading import _is_cut, plateau_primaries, thrown_primaries, without_unknown
from showerstack.analysis.spectra.response import FIVE, Binning, MassGroups, Simulated, SpectrumEvents, Thrown, binning
from showerstack.analysis.spectra.result import KNOWN_SOURCES, Spectra
from showerstack.analysis.spectra.run import (
    SpectraOptions,
    cell_binning,
    folded_spectra,
    measure_spectra,
    remarks_on_groups,
    remarks_on_range,
    remarks_on_shares,
)
from showerstack.commands.app import numbers
from showerstack.report.spectra_page import MeasuredSpectra, knee_lines, spectra_text, write_spectra_page
from showerstack.runtime.context import Context, PlainConsole
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import read_json
from showerstack.showers.archives.convert import convert
from showerstack.showers.array import KASCADE, array_entry
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import COMPOSITION
from showerstack.showers.simulation.blocks import PRIMARIES_PER_BLOCK, BlockJob, random_generator
from showerstack.showers.simulation.primaries import throw_primaries
from showerstack.showers.simulation.raw import simulate_raw
from showerstack.showers.simulation.settings import load_settings
from showerstack.stacking.config import StackConfig
from showerstack.stacking.training.train import stack
from tests.analysis.skies import CHARGES, EXPOSURE, Sky, measured, simulated, true_flux

EDGES = (15.2, 15.5, 15.8, 16.2, 16.8)
BINS = cell_binning(EDGES)
SKY = Sky()


@pytest.fixture(scope="module")
def response() -> tuple[Simulated, Thrown]:
    return simulated(400_000, 1, BINS)


def _spectra(
    response: tuple[Simulated, Thrown], seed: int = 3, exposure: float = EXPOSURE / 2, **options: object
) -> Spectra:
    events, thrown = response
    entries = {"widths": Widths(), "sharpness": 1 / SKY.sharpness, "least": (-np.inf, -np.inf)}
    return folded_spectra(
        measured(SKY, seed, exposure=exposure), events, thrown.counts, make_cells(BINS, events), np.array(EDGES),
        exposure, **(entries | options),  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.fixture(scope="module")
def analysed(response: tuple[Simulated, Thrown]) -> Spectra:
    """A sky with its knees at one rigidity, measured."""
    return _spectra(response, knees=True)


def test_fluxes_are_those_of_the_groups_that_the_simulation_holds() -> None:
    events, thrown = simulated(200_000, 4, BINS)
    groups, sky = MassGroups.of(COMPOSITION.with_classes(("proton", "iron"))), Sky(abundances=(0.6, 0.0, 0.0, 0.0, 0.4))

    def among(one: SpectrumEvents) -> dict[str, Any]:
        """Return what a classifier of two groups says of events."""
        log_proba = one.log_proba[:, [0, 4]]
        log_proba = log_proba - np.logaddexp.reduce(log_proba, axis=1, keepdims=True)
        return vars(one) | {"log_proba": log_proba, "predicted": log_proba.argmax(axis=1), "groups": groups}

    two = events.take(np.isin(events.labels, [0, 4]))
    two = Simulated(**among(two) | {"labels": np.searchsorted([0, 4], two.labels)})
    spectra = folded_spectra(
        SpectrumEvents(**among(measured(sky, 3, exposure=EXPOSURE / 2))), two, thrown.counts[:, [0, 4]],
        make_cells(BINS, two), np.array(EDGES), EXPOSURE / 2, widths=Widths(), sharpness=1 / SKY.sharpness, knees=True,
        least=(-np.inf, -np.inf),
    )  # fmt: skip
    truth = true_flux(sky, binning(EDGES))[:, [0, 4]]
    assert np.abs((spectra.flux - truth) / spectra.standard(KNOWN_SOURCES)).max() < 5
    mean = truth @ groups.ln_masses / truth.sum(axis=1)
    masses = spectra.masses()
    known = np.sqrt(sum(masses[f"error_{name}"].to_numpy() ** 2 for name in KNOWN_SOURCES))
    assert np.abs((masses["mean_ln_mass"].to_numpy() - mean) / known).max() < 5
    assert spectra.table()["group"].unique(maintain_order=True).to_list() == ["proton", "iron", "light", "heavy", "all"]
    assert spectra.knees is not None
    assert [one.name for one in spectra.knees.groups] == ["proton", "iron"]
    charges = spectra.knees.fits["rigidity"].likelihood.layout.lg_knees(spectra.knees.fits["rigidity"].parameters)
    assert charges[1] - charges[0] == pytest.approx(np.log10(26))
    (remark,) = remarks_on_groups(groups)
    assert "nature's helium, carbon, silicon are taken for these" in remark
    assert remarks_on_groups(FIVE) == []


def test_sums_of_groups_are_light_and_heavy_where_there_are_both() -> None:
    assert list(MassGroups.of(COMPOSITION.with_classes(("proton", "helium"))).sums) == ["all"]
    assert list(MassGroups.of(COMPOSITION.with_classes(("carbon", "iron"))).sums) == ["all"]
    np.testing.assert_array_equal(
        MassGroups.of(COMPOSITION.with_classes(("helium", "carbon", "iron"))).sums["heavy"], [0, 1, 1]
    )


def test_cells_cover_the_bins_and_what_comes_out_too_high() -> None:
    np.testing.assert_allclose(
        BINS.edges, [15.2, 15.3, 15.4, 15.5, 15.6, 15.7, 15.8, 15.9, 16.0, 16.1, 16.2, 16.4, 16.6, 16.8, 17.0]
    )
    assert np.isin(np.round(EDGES, 6), np.round(BINS.fine, 6)).all(), "bins of the true energy are whole fine ones"
    np.testing.assert_allclose(cell_binning((17.0, 17.9)).edges[-1], 18.0)


@pytest.mark.slow
def test_every_source_has_a_full_covariance(analysed: Spectra) -> None:
    truth = true_flux(SKY, binning(EDGES))
    pull = (analysed.fluxes.flux - truth) / np.sqrt(np.diag(analysed.covariance())).reshape(truth.shape)
    assert np.abs(pull).max() < 5
    assert np.mean(pull**2) < 3
    sources = ("data", "simulation", "scales", "hadronic_model")
    for name in sources:
        matrix = analysed.covariance((name,))
        assert matrix.shape == (20, 20)
        assert np.linalg.eigvalsh(matrix / np.diag(matrix).max()).min() > -1e-9, name
        assert (np.diag(matrix) > 0).all(), name
    np.testing.assert_allclose(analysed.covariance(), sum(analysed.covariance((name,)) for name in sources))


def test_light_heavy_and_all_are_sums_and_masses_have_errors(analysed: Spectra) -> None:
    table = analysed.table()
    flux = {name: part["flux_m2_sr_s_eV"].to_numpy() for (name,), part in table.group_by("group", maintain_order=True)}
    np.testing.assert_allclose(flux["light"], flux["proton"] + flux["helium"])
    np.testing.assert_allclose(flux["all"], flux["light"] + flux["heavy"])
    rows = table.filter(pl.col("group") == "all")
    np.testing.assert_allclose(rows["fraction"], 1)
    np.testing.assert_allclose(rows["fraction_error_data"], 0, atol=1e-7)
    error = rows["flux_error_total_m2_sr_s_eV"].to_numpy()
    truth = true_flux(SKY, binning(EDGES))
    assert (np.abs(flux["all"] - truth.sum(axis=1)) < 6 * error).all()
    masses = analysed.masses()
    true_mass = (truth / truth.sum(axis=1, keepdims=True)) @ np.log([1, 4, 12, 28, 56])
    away = np.abs(masses["mean_ln_mass"].to_numpy() - true_mass)
    assert (away < 6 * masses["error_total"].to_numpy()).all()
    assert (masses["error_total"] > masses["error_statistical"]).all()
    share = truth / truth.sum(axis=1, keepdims=True)
    variance = share @ np.log([1, 4, 12, 28, 56]) ** 2 - true_mass**2
    away = np.abs(masses["variance_of_ln_mass"].to_numpy() - variance)
    assert (away < 6 * masses["variance_error_total"].to_numpy()).all()
    assert masses["correlation"].abs().max() < 1


def test_the_rigidity_is_found_and_its_interval_closes(analysed: Spectra) -> None:
    knees = analysed.knees
    assert knees is not None
    truth = np.log10(SKY.knee_pev * 1e15)
    low, high = knees.rigidity.interval95.low, knees.rigidity.interval95.high
    assert low is not None
    assert high is not None
    assert low < truth < high
    assert high - low < 1.0
    inner = knees.rigidity.interval68
    assert low < inner.low < knees.rigidity.lg_energy < inner.high < high  # type: ignore[operator]
    assert set(knees.rigidity.systematic) == {"hadronic_model", "sharpness"}
    gained = {(one.null, one.other): one for one in knees.comparisons}
    assert gained["none", "rigidity"].gained > 4, "a knee is seen"
    assert gained["rigidity", "free"].gained > -0.1, "the general one fits best"
    assert gained["constant", "rigidity"].gained > 4
    content = knees.as_json()
    assert content["hypotheses"]["none"]["lg_knee_eV"] == [None] * 5


@pytest.mark.slow
def test_spectra_are_written_and_drawn_with_unknown_errors_as_words(
    analysed: Spectra, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_spectra(analysed, tmp_path)
    assert {"group", "lg_knee_eV", "lg_knee_low_68_eV", "lg_knee_error_sharpness"} <= set(
        pl.read_csv(tmp_path / "knees.csv").columns
    )
    assert pl.read_csv(tmp_path / "masses.csv").height == 4
    assert "lg(R/V) 15." in knee_lines(analysed)[5]
    PlainConsole(width=130).print(spectra_text(analysed))
    unknown = replace(analysed, hadronic_model=np.full((20, 20), np.nan))
    row = unknown.table().row(0, named=True)
    assert row["flux_error_hadronic_model_m2_sr_s_eV"] is None
    assert row["flux_error_total_m2_sr_s_eV"] is None
    assert row["flux_error_statistical_m2_sr_s_eV"] > 0
    assert row["used"]
    assert not row["errors_complete"]
    assert analysed.table()["errors_complete"].all()
    cells = [cell for column in spectra_text(unknown).columns[2:] for cell in column.cells]
    assert {str(cell).rsplit("±", 1)[-1] for cell in cells} == {"unknown", "not determined"}
    text = write_spectra_page(unknown, tmp_path).read_text()
    assert ">unknown<" in text
    assert text.count("<svg") == 11
    for words in ("± energy scale", "energy scale</td>", "shift of their lg E", "Scales and cells"):
        assert words in text, words
    assert "KASCADE 2024" in text
    shown = MeasuredSpectra.of(unknown)
    tables = re.findall(r"<table.*?</table>", shown._repr_html_(), re.DOTALL)
    assert len(tables) == 2
    assert all(one in text for one in tables), "a notebook shows the page's tables"
    assert f"p = {unknown.p_value:.3f}" in shown._repr_html_()
    (axes,) = shown.plot().axes
    drawn = [line.get_ydata() for line in axes.lines if line.get_label() in FIVE.names]
    points = unknown.flux * unknown.centres_ev[:, None] ** 2.7
    np.testing.assert_allclose(np.concatenate(drawn), points.T[np.isfinite(points.T)])
    (line,) = [line for line in shown.plot("all").axes[0].lines if line.get_label() == "all"]
    total = unknown.table().filter(pl.col("group") == "all", "used")["flux_m2_sr_s_eV"].to_numpy()
    np.testing.assert_allclose(line.get_ydata(), total * unknown.centres_ev[unknown.used] ** 2.7)
    with pytest.raises(InputError, match="no group 'gold': give one of proton"):
        shown.plot("gold")
    named = np.array([unknown.determined[name] for name in FIVE.names])
    assert (~named).any()
    assert f"{(~named).sum()} of {named.size} fluxes are not determined" in text
    assert ", ".join(name for name in FIVE.members if name != "all" and not unknown.determined[name][-1]) in text
    assert ">not determined</td>" in text
    assert json.loads((tmp_path / "pyhf.json").read_text())["version"] == "1.0.0"
    with monkeypatch.context() as undrawn:
        undrawn.setattr("showerstack.report.spectra_page.as_svg", lambda *_: "")
        assert ">unknown<" not in write_spectra_page(analysed, tmp_path).read_text()


@pytest.mark.slow
def test_bins_without_events_and_refused_fits_are_marked(response: tuple[Simulated, Thrown]) -> None:
    events, thrown = response
    one_model = replace(events, model=np.zeros(len(events), dtype=int))
    few = _spectra((one_model, thrown), exposure=EXPOSURE / 100)
    assert any("no two hadronic models" in remark for remark in few.remarks)
    assert any("fewer than 50,000 events" in remark for remark in few.remarks)
    assert few.knees is None
    data = measured(SKY, 5, exposure=EXPOSURE / 100)
    cut = data.take(data.lg_energy < 16.0)
    result = folded_spectra(
        cut, events, thrown.counts, make_cells(BINS, events), np.array(EDGES), EXPOSURE / 100, widths=Widths(),
        least=(-np.inf, -np.inf),
    )  # fmt: skip
    assert not result.used[3]
    assert np.isnan(result.flux[~result.used]).all()
    assert result.table().filter(~pl.col("used"))["flux_m2_sr_s_eV"].is_null().all()


@pytest.mark.slow
def test_what_so_few_events_cannot_tell_is_not_determined(response: tuple[Simulated, Thrown]) -> None:
    """By the number of events and the simulation, and not by what comes out."""
    few = _spectra(response, exposure=EXPOSURE / 400, knees=False)
    assert few.undetermined is not None
    assert few.undetermined[-1].any()
    assert not few.undetermined.all()
    told = [line for line in few.remarks if "not determined with so few events" in line]
    assert told
    table = few.table()
    unknown = table.filter(pl.col("used") & ~pl.col("determined"))
    assert unknown.height
    for column in ("fraction", "flux_m2_sr_s_eV", "flux_error_total_m2_sr_s_eV"):
        assert unknown[column].is_null().all()
    assert table.filter(pl.col("used") & (pl.col("group") == "all"))["flux_m2_sr_s_eV"].is_not_null().all()
    groups = table.filter(pl.col("group").is_in(FIVE.names) & ~pl.col("determined"))
    assert np.isnan(few.flux).sum() == groups.height
    cells = [str(cell) for column in spectra_text(few).columns[2:] for cell in column.cells]
    assert "not determined" in cells
    likelihood = few.fit.likelihood
    turned = replace(likelihood, counts=likelihood.counts[::-1].copy())
    other = undetermined(replace(few.fit, likelihood=turned), np.array(EDGES), np.eye(5))
    np.testing.assert_array_equal(other, few.undetermined[:, :5], err_msg="another composition is told as badly")
    more = _spectra(response)
    assert more.undetermined is not None
    assert more.undetermined.sum() < 4, "more events tell nearly all"
    assert not more.undetermined[:, 5:].any(), "and light from heavy ones everywhere"


def test_a_share_outside_0_to_1_is_told(analysed: Spectra) -> None:
    assert not [line for line in remarks_on_shares(analysed) if "outside" in line]
    strange = analysed.fluxes.flux.copy()
    strange[1, 1] = -0.5 * (strange[1].sum() - strange[1, 1])
    small = {name: matrix / 100 for name, matrix in analysed.fluxes.covariance.items()}
    fluxes = replace(analysed.fluxes, flux=strange, covariance=small)
    told = remarks_on_shares(replace(analysed, fluxes=fluxes, hadronic_model=analysed.hadronic_model / 100))
    assert any(line.startswith("lg(E/eV) 15.5 to 15.8: the share of helium is") for line in told)


def test_bad_input_is_refused_by_name(response: tuple[Simulated, Thrown]) -> None:
    events, thrown = response
    with pytest.raises(InputError, match="0 simulated carbon events lie in the energy bins"):
        _spectra((events.take(events.labels != 2), thrown))
    with pytest.raises(InputError, match=r"--data: \d+ measured events lie in the energy bins"):
        _spectra(response, exposure=EXPOSURE / 50_000)
    with pytest.raises(InputError, match="rising borders"):
        binning((15.5, 15.2))
    with pytest.raises(InputError, match="must lie in"):
        binning((13.0, 15.0))


def test_a_model_without_a_class_on_its_plateau_is_left_out_for_that_class(
    response: tuple[Simulated, Thrown],
) -> None:
    """Accepted events alone are known; of one model no carbon is there from lg E = 15.6 on."""
    events, _ = response
    assert events.model is not None
    assert events.true_lg_energy is not None
    lost = events.take(~((events.model == 1) & (events.labels == 2) & (events.true_lg_energy > 15.6)))
    thrown = plateau_primaries(lost, BINS)
    assert thrown.counts[0, 2].any()
    assert not thrown.counts[1, 2].any()
    used, remarks = without_unknown(lost, thrown)
    n = int(((lost.model == 1) & (lost.labels == 2)).sum())
    assert len(remarks) == 1
    assert f"hadronic model 1 has no carbon event on the plateau: its {n} carbon events are left out" in remarks[0]
    assert len(used) == len(lost) - n
    result = _spectra((used, thrown), changes=(*thrown.changes, *thrown.common))
    assert any("hadronic model 1 has fewer than 100 events of a class: left out" in line for line in result.remarks)
    assert np.isnan(result.hadronic_model).all(), "unknown, never 0"
    # These showers are accepted to .9 on the plateau, public ones to .98.
    truth = true_flux(SKY, binning(EDGES)) * 0.9 / np.array(PLATEAU_EFFICIENCY)
    error = np.sqrt(np.diag(result.covariance((*STATISTICAL, "scales")))).reshape(truth.shape)
    pull = (result.fluxes.flux - truth) / error
    assert np.abs(pull).max() < 5
    assert np.mean(pull**2) < 3
    # Two equal sets know the efficiency no better than one, and their counts independently.
    both = thrown + thrown
    assert len(both.changes) == 2 * len(thrown.changes)
    for twice, once in zip(both.common, thrown.common, strict=True):
        np.testing.assert_allclose(twice, 2 * once)
    nowhere = lost.take((lost.labels != 2) | (lost.true_lg_energy < 15.6))
    with pytest.raises(InputError, match="no carbon event lies on the plateau"):
        plateau_primaries(nowhere, BINS)


@pytest.mark.slow
def test_a_model_whose_own_fit_is_refused_is_left_out(
    response: tuple[Simulated, Thrown], monkeypatch: pytest.MonkeyPatch
) -> None:
    fit, calls = FoldingProblem.fit, []

    def refused_last(problem: FoldingProblem, hypothesis: str = "rigidity") -> FoldedFit:
        calls.append(hypothesis)
        result = fit(problem, hypothesis)
        return replace(result, chi2=1e4) if len(calls) == 3 else result

    monkeypatch.setattr(FoldingProblem, "fit", refused_last)
    result = _spectra(response, exposure=EXPOSURE / 20)
    assert len(calls) == 3, "both models, then each alone"
    assert any(line.startswith("hadronic model 1 alone: chi-square 10000") for line in result.remarks)
    assert np.isnan(result.hadronic_model).all()
    assert result.used.all()


@pytest.mark.slow
def test_a_lower_minimum_on_the_way_is_the_result(analysed: Spectra, monkeypatch: pytest.MonkeyPatch) -> None:
    fit = analysed.fit
    place = fit.likelihood.layout.names.index("lg_r0")
    away = float(fit.parameters[place]) + 0.25
    cost, parameters = fit.profile("lg_r0", away)
    assert cost > fit.cost + 0.5
    again, (grid, profile) = profile_knee(replace(fit, parameters=parameters, cost=cost), 0)
    assert again.cost < fit.cost + 0.05
    assert again.parameters[place] == pytest.approx(fit.parameters[place], abs=0.03)
    assert profile.min() == 0
    assert abs(grid[profile.argmin()] - fit.parameters[place]) < 0.06
    # Fits of own knees that start beside their minimum end in it, and are compared there.
    made = []

    def beside(problem: FoldingProblem, best: FoldedFit, hypothesis: str) -> FoldedFit:
        result = _fit_like(problem, best, hypothesis)
        if hypothesis == "free":
            cost, parameters = result.profile(
                "lg_r0", float(result.parameters[result.likelihood.layout.knees][0]) + 0.3
            )
            made.append(cost)
            return replace(result, parameters=parameters, cost=cost)
        return result

    monkeypatch.setattr("showerstack.analysis.spectra.knees._fit_like", beside)
    monkeypatch.setattr("showerstack.analysis.spectra.knees.HYPOTHESES", ("rigidity", "free"))
    monkeypatch.setattr("showerstack.analysis.spectra.knees.COMPARED", (("rigidity", "free"),))
    monkeypatch.setattr("showerstack.analysis.spectra.knees.SHARPNESS_RANGE", (fit.likelihood.sharpness,))
    problem = FoldingProblem(
        fit.likelihood.counts, lambda at: fit.likelihood.response, fit.likelihood.exposure_m2_sr_s, 1 / SKY.sharpness
    )
    knees = fit_knees(problem, fit, [])
    assert knees.fits["free"].cost < made[0] - 0.05
    gained = {(one.null, one.other): one.gained for one in knees.comparisons}
    assert gained["rigidity", "free"] > -0.1


def test_energies_outside_and_empty_bins_are_told() -> None:
    simulation = cast("Simulated", SimpleNamespace(lg_energy=np.array([14.8, 16.5])))
    energies, none = np.array([15.3, 15.3, 15.7, 15.0, 16.6]), np.zeros(5)
    data = SpectrumEvents(np.zeros((5, 5)), np.zeros(5, int), energies, none, none, none)
    remarks = remarks_on_range(data, simulation, binning((15.2, 15.4, 15.6, 15.8)))
    assert remarks[0].startswith("1 measured events (20 %) have energies outside those of the simulation")
    assert remarks[1] == "2 of 5 measured events lie outside the energy bins, lg(E/eV) 15.2 to 15.8"
    assert remarks[2:] == ["no measured event in the energy bins 15.4-15.6 of lg(E/eV)"]


def test_a_knee_by_hand() -> None:
    def at(lg_energy: float, noise: float = 0.0) -> FoldedFit:
        likelihood = SimpleNamespace(layout=SimpleNamespace(names=["lg_flux", "lg_r0"]))

        def covariance(*, simulation: bool) -> np.ndarray:
            return np.diag([1.0, 0.3 + noise**2 * simulation])

        return cast(
            "FoldedFit", SimpleNamespace(parameters=[9.0, lg_energy], likelihood=likelihood, covariance=covariance)
        )

    grid = np.linspace(14.0, 16.0, 21)
    parabola = ((grid - 15.0) / 0.2) ** 2
    knee = _knee("proton", at(15.0), (grid, parabola), 0, [at(14.9), at(15.3)], [at(14.8), at(15.2)])
    assert knee.systematic == pytest.approx({"hadronic_model": 0.2 * 3**0.5, "sharpness": 0.3})  # of two models
    noisy = _knee("proton", at(15.0), (grid, parabola), 0, [at(15.0)], [at(14.8, 0.2), at(15.2, 0.2)])
    # Half of the squared distances, 2 * 0.2^2, is what noise of 0.2 makes.
    assert noisy.systematic["hadronic_model"] == pytest.approx(0.2 * 1.5**0.5)
    assert knee.lg_energy == pytest.approx(15.0)
    np.testing.assert_allclose([knee.interval68.low, knee.interval68.high], [14.8, 15.2])
    np.testing.assert_allclose([knee.interval95.low, knee.interval95.high], 15 + 0.2 * 1.959964 * np.array([-1, 1]))
    alone = _knee("iron", at(15.0), (grid, np.minimum(parabola, 2.0)), 0, [at(15.0)], [at(14.8)])
    assert np.isnan(alone.systematic["hadronic_model"])
    assert (alone.interval95.low, alone.interval95.high) == (None, None)


def test_published_spectra_have_sources_and_plausible_heights() -> None:
    spectra = published_spectra()
    assert {"KASCADE 2024", "KASCADE 2005", "LHAASO", "IceTop", "TALE"} <= {one.experiment for one in spectra}
    assert all(one.reference for one in spectra)
    for one in spectra:
        if one.group == "all":
            ratio = one.value / (2.4e-21 * (one.energy_ev / 1e15) ** -2.7)
            inside = one.energy_ev < 4e15
            assert ((ratio > 0.5) & (ratio < 2))[inside].all(), one.name
    sums: dict[str, np.ndarray] = {one.group: one.value for one in spectra if one.experiment == "KASCADE 2024"}
    np.testing.assert_allclose(sum(sums[name] for name in FIVE.names), sums["all"], rtol=0.02)


def test_the_rigidity_sky_is_what_it_says() -> None:
    low, high = SKY.flux(np.array([1e13, 1.01e13])), SKY.flux(np.array([1e19, 1.01e19]))
    np.testing.assert_allclose(np.log(low[:, 1] / low[:, 0]) / np.log(1.01), -2.7, atol=0.01)
    np.testing.assert_allclose(np.log(high[:, 1] / high[:, 0]) / np.log(1.01), -3.3, atol=0.01)
    assert CHARGES[4] == 26


COMMAND_EDGES = (14.9, 15.4, 16.0)


def _options(run: Path, sky: Path, out: Path, **changes: object) -> SpectraOptions:
    entries = {"exposure": "1e7", "simulation": [], "edges": COMMAND_EDGES, "zenith_max_deg": 30.0}
    return SpectraOptions(run, [sky], out=out, **(entries | changes))  # type: ignore[arg-type]


@pytest.mark.slow
def test_spectra_of_a_small_sky(
    composition_run: Path, composition_sky: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = measure_spectra(_options(composition_run, composition_sky, tmp_path, stability=True), Context())
    write_spectra(result, tmp_path)
    assert pl.read_csv(tmp_path / "stability.csv")["variation"].n_unique() >= 2, "one run has no odd and even ones"
    assert ">Stability<" in write_spectra_page(result, tmp_path).read_text()
    table = pl.read_parquet(tmp_path / "spectra.parquet")
    assert table.height == 2 * 8
    assert {"flux_m2_sr_s_eV", "flux_error_total_m2_sr_s_eV", "lg_energy_low_eV"} <= set(table.columns)
    assert pl.read_csv(tmp_path / "spectra.csv").columns == table.columns
    groups = table.filter(pl.col("group").is_in(FIVE.names) & pl.col("used"))
    common = groups["flux_error_exposure_m2_sr_s_eV"] / groups["flux_m2_sr_s_eV"].abs()
    np.testing.assert_allclose(common.drop_nulls().to_numpy(), EXPOSURE_ERROR)
    assert groups["determined"].to_list() == groups["fraction"].is_not_null().to_list()
    assert not groups["determined"].all(), "two thousand simulated showers do not tell five groups"
    share = shares(result.fluxes.flux)
    error = np.sqrt(np.diag(share_covariance(result.fluxes.flux, result.covariance(STATISTICAL)))).reshape(share.shape)
    assert np.abs((share - 0.2) / error).max() < 6, "all groups were thrown alike"
    provenance = read_json(tmp_path / "spectra.json")
    assert provenance["exposure_m2_sr_s"] == 1e7
    assert 0 < provenance["goodness_of_fit"]["p_value"] <= 1
    assert any("out-of-fold" in remark for remark in result.remarks), "too small a holdout is told"
    with np.load(tmp_path / "covariance.npz") as stored:
        assert stored["flux_data_m2_sr_s_eV_squared"].shape == (10, 10)
    monkeypatch.setattr("showerstack.stacking.prediction.predict.PredictionStream.concatenated", None)
    monkeypatch.setattr("showerstack.analysis.spectra.run.fit_knees", lambda *_, **__: None)
    again = measure_spectra(_options(composition_run, composition_sky, tmp_path), Context())
    assert again.remarks == result.remarks
    np.testing.assert_array_equal(again.flux, result.flux, err_msg="predictions are kept between attempts")


def test_what_cannot_be_right_is_refused(
    composition_run: Path, composition_sky: Path, tiny_composition: Path, gamma_run: Path, tmp_path: Path
) -> None:
    cases = (
        ({"exposure": "three"}, "--exposure"),
        ({"edges": (17.8, 17.9)}, "no simulated event|0 simulated proton|simulated proton events"),
        ({"zenith_max_deg": -1.0}, "--zenith-max"),
        ({"knee_sharpness": 0.1}, "--knee-sharpness"),
        ({"simulation": [tiny_composition / "composition_train"]}, "was trained on"),
        ({"simulation": [composition_sky]}, "label"),
        ({"simulation": [tiny_composition / "composition_test"]}, "both --data and --simulation"),
    )  # fmt: skip
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
        (source | array_entry(replace(KASCADE, name="another", x_m=2 * KASCADE.x_m)), truth, "of another array"),
        (source | {"generator": "CORSIKA"}, truth, "not that of a set of the embedded simulation"),
    ):
        with pytest.raises(InputError, match=message):
            thrown_primaries(wrong_source, wrong_truth, edges, 30.0)


def _quick_run(train: Path, run: Path) -> Path:
    stack(
        StackConfig(
            task="composition", data=train, run=run, preset="quick", learners=("quadratic_logit",), folds=2, workers=1,
            device="cpu",
        )
    )  # fmt: skip
    return run


def _thrown_before_the_last(raw: Path, edges: tuple[float, ...]) -> np.ndarray:
    """Return the primaries (K, J) below 30 degrees that the archive of QGSJet's events was accepted from."""
    settings = load_settings("default")
    job = BlockJob(COMPOSITION, "train", 3, "qgs", "none", settings, 1)
    with np.load(raw / "qgs_spectra_true_features.npz") as stored:
        last = stored["true_features"][-1, 0]
    counts = np.zeros((5, len(edges) - 1))
    for block in range(1000):
        primaries = throw_primaries(
            COMPOSITION, PRIMARIES_PER_BLOCK, "qgs", settings.spectrum, random_generator(job, block)
        )
        here = np.flatnonzero(np.abs(primaries.lg_energy - last) < 1e-6)
        used = (np.arange(len(primaries.label)) <= (here[0] if len(here) else np.inf)) & (primaries.zenith_deg < 30)
        for k in range(5):
            counts[k] += np.histogram(primaries.lg_energy[used & (primaries.label == k)], edges)[0]
        if len(here):
            return counts
    raise AssertionError("the last event was not thrown")


@pytest.mark.slow
def test_spectra_with_converted_simulation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raw archives hold accepted events only: the primaries are recovered from the plateau."""
    monkeypatch.setattr("showerstack.analysis.spectra.run.fit_knees", lambda *_, **__: None)
    recovered: list[Thrown] = []

    def noted(accepted: Simulated, bins: Binning) -> Thrown:
        recovered.append(plateau_primaries(accepted, bins))
        return recovered[-1]

    monkeypatch.setattr("showerstack.analysis.spectra.reading.plateau_primaries", noted)
    simulate_raw(COMPOSITION, tmp_path / "raw", 16_000, seed=3, workers=1)
    train, test = convert(tmp_path / "raw", tmp_path / "data", COMPOSITION, protocol="matched")
    run = _quick_run(train.parent, tmp_path / "run")
    edges = (14.9, 15.4, 16.0)
    result = measure_spectra(_options(run, test, tmp_path / "out", edges=edges), Context())
    assert any("recovered from each class's plateau" in remark for remark in result.remarks)
    assert result.used.any()
    thrown = _thrown_before_the_last(tmp_path / "raw", edges)
    measured_share = len(Dataset.open(test)) / (len(Dataset.open(test)) + len(Dataset.open(train)))
    (one,) = recovered
    inside = (one.lg_energy_edges[:-1] > edges[0] - 1e-9) & (one.lg_energy_edges[1:] < edges[-1] + 1e-9)
    errors = [change[0][:, inside].sum(axis=1) for change in (*one.changes, *one.common)]
    away = one.counts[0][:, inside].sum(axis=1) - (1 - measured_share) * thrown.sum(axis=1)
    assert np.abs(away / np.sqrt(np.sum(np.square(errors), axis=0))).max() < 6
    # Some 110 measured events tell little more than the flux of all groups.
    true = measured_share * thrown.sum(axis=0) / (1e7 * np.diff(10.0 ** np.array(edges)))
    rows = result.table().filter(pl.col("group") == "all")
    flux, error = rows["flux_m2_sr_s_eV"].to_numpy(), rows["flux_error_statistical_m2_sr_s_eV"].to_numpy()
    assert (np.abs(flux - true) < 6 * error).all(), flux / true


def test_models_of_raw_archives_have_the_numbers_of_the_simulated_ones() -> None:
    names = pl.DataFrame({"model": ["qgs-4_gm_pr", "LHC_gm_pr", "sibyll-23c_gm_pr", "epos_spectra", "qgs_spectra"]})
    assert model_numbers(names).tolist() == [0, 1, 2, 1, 0]
    assert model_numbers(pl.DataFrame({"model": [0, 2, 1]})).tolist() == [0, 2, 1]
    with pytest.raises(InputError, match="unknown hadronic model 'dpmjet'"):
        model_numbers(pl.DataFrame({"model": ["dpmjet"]}))


def _posteriors(labels: np.ndarray, rng: np.random.Generator, prior: np.ndarray, sharper: float = 1.0) -> np.ndarray:
    x = 1.2 * labels + rng.normal(0, 1, len(labels))
    z = -0.5 * sharper * (x[:, None] - 1.2 * np.arange(len(prior))) ** 2 + np.log(prior)
    return z - np.logaddexp.reduce(z, axis=1, keepdims=True)


def test_shares_come_back_whatever_the_training_prior() -> None:
    rng = np.random.default_rng(1)
    truth, prior = np.array([0.1, 0.6, 0.3]), np.array([0.5, 0.2, 0.3])
    labels = rng.choice(3, 160_000, p=truth)
    ratios = likelihood_ratios(_posteriors(labels, rng, prior), prior)
    np.testing.assert_allclose(maximum_likelihood(ratios), truth, atol=0.02)
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
    known = rng.integers(0, 3, 400_000)
    labels = rng.choice(3, 400_000, p=truth)
    ours = likelihood_ratios(_posteriors(labels, rng, prior, 3.0), prior)
    theirs = likelihood_ratios(_posteriors(known, rng, prior, 3.0), prior)
    plain = maximum_likelihood(ours)
    at = np.maximum(plain, 0.02)
    g, simulated = estimating_functions(ours, at), estimating_functions(theirs, at)
    mixing = np.stack([simulated[known == k].mean(axis=0) for k in range(3)], axis=1)
    checked = np.linalg.solve(mixing, g.mean(axis=0))
    assert np.abs(plain - truth).max() > 0.02, "the posteriors alone mislead"
    np.testing.assert_allclose(checked, truth, atol=0.02)


def test_nothing_and_an_unknown_class_are_refused() -> None:
    with pytest.raises(InputError, match="no event"):
        maximum_likelihood(np.zeros((0, 5)))
    with pytest.raises(InputError, match="class 1 has no training event"):
        likelihood_ratios(np.zeros((2, 2)), np.array([1.0, 0.0]))


@pytest.mark.parametrize(
    ("source", "cut"),
    [
        ({"cuts": "test"}, True), ({"cuts": "none", "protocol": "2026", "split": "test"}, False),
        ({"protocol": "2026", "split": "train"}, True), ({"protocol": "v2", "split": "test"}, True),
        ({"protocol": "v2", "split": "train"}, False), ({}, False),
    ],
)  # fmt: skip
def test_sets_under_the_benchmarks_cuts_are_known(source: dict[str, str], cut: bool) -> None:
    assert _is_cut(source) is cut


def test_scales_that_data_do_not_tell_are_held_and_widen_the_knee(analysed: Spectra) -> None:
    """A toy: the knee's position moves by what its interval is widened with, and no scale is free in the profile."""
    fit = analysed.fit
    response = fit.likelihood.response
    problem = FoldingProblem(fit.likelihood.counts, lambda at: response, fit.likelihood.exposure_m2_sr_s, SKY.sharpness)
    free = HeldScales.of(problem, fit)
    assert fit.tells_scales == (not free.moved), "held where data do not tell them"
    still = replace(response, moved={}, parts={})
    held = HeldScales(problem, fit_once(replace(fit.likelihood, response=still), fit.parameters), ((still, still),))
    assert held.widening(held.fit, 0) == pytest.approx(1.0, abs=1e-6), "a scale that moves nothing adds nothing"
    layout = fit.likelihood.layout
    assert not held.fit.likelihood.free()[layout.scales][1:].any()
    moved = replace(still, accepted=still.accepted * np.linspace(0.8, 1.2, still.accepted.shape[1])[None, :, None])
    back = replace(still, accepted=still.accepted * np.linspace(1.2, 0.8, still.accepted.shape[1])[None, :, None])
    wide = HeldScales(problem, held.fit, ((moved, back),))
    place = layout.names.index("lg_r0")
    positions = [
        fit_once(replace(held.fit.likelihood, response=one), held.fit.parameters).parameters[place]
        for one in (moved, back)
    ]
    variance = held.fit.covariance()[place, place]
    factor = wide.widening(held.fit, 0)
    assert factor == pytest.approx(1 + ((positions[0] - positions[1]) / 2) ** 2 / variance, rel=1e-6)
    narrow, flat = held.profile(held.fit, 0)[1], wide.profile(held.fit, 0)[1]
    at = float(held.fit.parameters[place]) + 0.05
    assert np.interp(at, *narrow) == pytest.approx(factor * np.interp(at, *flat), rel=0.1)
