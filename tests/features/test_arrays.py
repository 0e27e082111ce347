"""Fits and columns of arrays that are not KASCADE: without muon detectors, of these alone, sparse, small, high up.

Showers are drawn with the lateral distributions that the fits assume, in the array's own unit of length, and found
again; the emulated CUDA kernels give what the CPU gives.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from showerstack.features.available import is_available
from showerstack.features.build import build_table
from showerstack.features.catalogue import CATALOGUE, GROUPS
from showerstack.features.compute import column_names, compute_events
from showerstack.features.device import namespace
from showerstack.features.groups import fit_showers
from showerstack.features.lateral import cuda
from showerstack.features.lateral.events import make_events
from showerstack.features.lateral.fit import fit_cuda, fit_fused
from showerstack.features.lateral.recipe import RECIPE, recipe_of
from showerstack.features.table import fit_remark
from showerstack.showers.array import KASCADE, DetectorArray
from showerstack.showers.card import ArrayCard
from showerstack.showers.lateral import axis_distance, rho_electron, rho_muon
from showerstack.showers.schema import SCALAR_NAMES
from showerstack.showers.writer import write_dataset
from tests.features.test_warp import Warp

XP = namespace("cpu")
ALL = frozenset(GROUPS)
NO_MUONS = replace(KASCADE, muon_area_m2=0.0 * KASCADE.muon_area_m2)


def triangular(pitch_m: float, card: ArrayCard = KASCADE.card, muons: float = 0.0, area: float = 3.0, side: int = 12):
    """Return side x side stations on a triangular lattice about the origin, in KASCADE's cells."""
    i, j = np.meshgrid(np.arange(16.0), np.arange(16.0))
    x, y = pitch_m * (i + 0.5 * (j % 2)), pitch_m * np.sqrt(3) / 2 * j
    there = (i < side) & (j < side)
    x, y = np.where(there, x - x[there].mean(), 0.0), np.where(there, y - y[there].mean(), 0.0)
    planes = {"electron_area_m2": area * there, "muon_area_m2": muons * there, "cluster": 0 * there}
    return DetectorArray("own", pitch_m, x, y, **planes, card=replace(card, fit={}))


def drawn(array: DetectorArray, n: int, lg_ne: tuple[float, float], seed: int = 1, lg_nmu_shift: float = -0.25):
    """Return grids, scalars and truth of showers: Poisson numbers and Gamma deposits, as the fits assume."""
    rng, response, unit = np.random.default_rng(seed), array.response, array.fit_unit_m
    half = 0.8 * array.half_side_m
    core = rng.uniform(-half, half, (n, 2))
    size, zenith, azimuth = (
        rng.uniform(*lg_ne, n),
        np.rad2deg(np.arcsin(0.5 * np.sqrt(rng.random(n)))),
        360 * rng.random(n),
    )
    age, lg_nmu = np.clip(rng.normal(1.0, 0.12, n), 0.5, 1.4), 0.9 * size + lg_nmu_shift
    x, y, cosine = array.x_m.ravel(), array.y_m.ravel(), np.cos(np.deg2rad(zenith))[:, None]
    r = axis_distance(x, y, core[:, :1], core[:, 1:], zenith[:, None], azimuth[:, None]) / unit
    s_mu = np.clip(1.3 - 0.094 * (lg_nmu - 4.5) + 0.45 * (1 / cosine[:, 0] - 1.035), 0.9, 1.7)
    electrons = rho_electron(r, 10 ** size[:, None], age[:, None]) / unit**2
    muons = rho_muon(r, 10 ** lg_nmu[:, None], s_mu[:, None]) / unit**2
    area_e, area_m = array.electron_area_m2.ravel() * cosine, array.muon_area_m2.ravel() * cosine
    a = response.gamma_fraction + response.core_excess * np.exp(-r / response.core_excess_scale_m)
    n_e, n_m, below = rng.poisson(electrons * area_e), rng.poisson(muons * area_e), rng.poisson(muons * area_m)
    per_e, per_m = response.electron_deposit_mev / cosine, response.muon_deposit_mev / cosine
    gamma = lambda k: rng.gamma(np.maximum(k, 1e-9))  # noqa: E731
    e = np.where(n_e > 0, gamma(n_e / 1.1) * 1.1 * per_e * a, 0) + np.where(n_m > 0, gamma(5.0 * n_m) / 5.0 * per_e, 0)
    m = np.where(below > 0, gamma(below / 0.17) * 0.17 * per_m, 0)
    e, m = np.where(e < 3.0, 0, e), np.where(m < 3.9, 0, m)
    shape = (n, *array.grid_shape[:2])
    grids = np.stack([e.reshape(shape), m.reshape(shape)], axis=-1).astype(np.float32)
    scalars = np.stack([0.9 * size + 10.8, zenith, azimuth, size, lg_nmu], axis=1).astype(np.float32)
    return grids, scalars, {"core": core, "lg_ne": size, "lg_nmu": lg_nmu, "age": age}


def table_of(array, showers, quantities=ALL):
    grids, scalars, _ = showers
    frame = compute_events(grids, scalars, None, quantities | {"position"}, array)
    return {name: frame[name].to_numpy() for name in frame.columns}


def core_errors(table, truth):
    return np.hypot(table["fit_core_x_m"] - truth["core"][:, 0], table["fit_core_y_m"] - truth["core"][:, 1])


@pytest.fixture(scope="module")
def kascade_showers():
    return drawn(KASCADE, 300, (5.0, 6.0))


@pytest.mark.parametrize("muons", [0.0, 3.0])
def test_cells_that_fill_up_the_planes_add_nothing(muons):
    """The same 16 stations in 25 cells, and in KASCADE's 256: few cells, or none, are filled up."""
    whole = triangular(30.0, muons=muons, side=4)
    names = ("x_m", "y_m", "electron_area_m2", "muon_area_m2", "cluster")
    few = replace(whole, **{name: getattr(whole, name)[:5, :5] for name in names})
    grids, scalars, truth = drawn(whole, 300, (5.5, 6.5))
    expected, found = table_of(whole, (grids, scalars, truth)), table_of(few, (grids[:, :5, :5], scalars, truth))
    assert set(expected) == set(found)
    of_all_cells = {name for name in expected if name.startswith("grid_") and name.endswith(("_mean", "_std"))}
    for name in expected.keys() - of_all_cells:
        known = np.isfinite(expected[name])
        np.testing.assert_array_equal(np.isfinite(found[name]), known, name)
        values, others = expected[name][known], found[name][known]
        # Sums in another order: a fit in a flat minimum may end elsewhere.
        off = np.abs(others - values) > 1e-3 * (np.abs(values) + values.std()) + 1e-6 if known.any() else np.zeros(1)
        assert off.mean() < 0.05, name


def test_kascade_has_every_column_and_its_own_recipe():
    missing = [name for name in CATALOGUE if not is_available(name, KASCADE, (*SCALAR_NAMES, "Age"))]
    assert missing == ["fit_lg_rho_opt", "fit_lg_rho_opt_err"]  # of stations far apart
    assert recipe_of(KASCADE) == RECIPE
    assert KASCADE.fit_unit_m == 1.0


@pytest.mark.slow
def test_kascade_without_muon_detectors_is_fitted_as_well(kascade_showers):
    grids, scalars, truth = kascade_showers
    with_muons = table_of(KASCADE, kascade_showers)
    alone = table_of(NO_MUONS, (grids * [1, 0], scalars, truth))
    assert alone["fit_converged"].mean() > 0.99
    assert np.median(core_errors(alone, truth)) < 1.15 * np.median(core_errors(with_muons, truth)) < 2.0
    # Muons in the e/gamma detectors count as electrons: some per cent, on average less than 0.05 in the logarithm.
    gap = alone["fit_lg_ne"] - truth["lg_ne"]
    assert abs(np.median(gap)) < 0.06
    assert np.isfinite(gap).all()


def test_columns_of_muons_are_absent_by_name_without_muon_detectors(kascade_showers):
    grids, scalars, truth = kascade_showers
    alone = table_of(NO_MUONS, (grids * [1, 0], scalars, truth))
    assert not [name for name in alone if "mu_" in name and name not in ("nmu_vertical", "nmu_minus_proton")]
    assert {"fit_lg_ne", "fit_converged", "prof_e_10_16", "Nmu", "fit_minus_ne"} <= alone.keys()
    assert not alone.keys() & {"fit_lg_nmu", "fit_muon_age", "e_outer_lg", "both_hits", "fit_minus_nmu"}
    assert not [name for name, values in alone.items() if np.isnan(values).all()]
    assert tuple(name for name in alone) == column_names(ALL | {"position"}, NO_MUONS, SCALAR_NAMES)


def test_one_silent_muon_detector_says_the_same_as_none(kascade_showers):
    grids, scalars, truth = kascade_showers
    one = NO_MUONS.muon_area_m2.copy()
    one[0, 0] = 3.24
    with_one, alone = (
        table_of(a, (grids * [1, 0], scalars, truth)) for a in (replace(KASCADE, muon_area_m2=one), NO_MUONS)
    )
    error = np.hypot(*(with_one[f"fit_core_{c}_m"] - alone[f"fit_core_{c}_m"] for c in "xy"))
    assert np.median(error) < 0.1


def test_muon_detectors_alone_find_core_and_number():
    array = replace(KASCADE, electron_area_m2=0.0 * KASCADE.electron_area_m2, muon_area_m2=np.full((16, 16), 12.0))
    showers = drawn(array, 200, (6.0, 7.0), lg_nmu_shift=0.0)
    table, truth = table_of(array, showers), showers[2]
    assert table["fit_converged"].mean() > 0.97
    inside = np.abs(truth["core"]).max(axis=1) < 60
    assert np.median(core_errors(table, truth)[inside]) < 6.0
    gap = (table["fit_lg_nmu"] - truth["lg_nmu"])[inside]
    assert abs(np.median(gap)) < 5 * gap.std() / np.sqrt(inside.sum()) + 0.03
    assert np.std(gap) < 0.1
    pull = core_errors(table, truth)[inside] / table["fit_core_err_m"][inside]
    assert 0.8 < np.sqrt(np.mean(pull**2)) < 1.25
    assert not table.keys() & {"fit_lg_ne", "e_hits", "prof_e_10_16", "mu_e_fit", "fit_age"}
    assert {"fit_lg_nmu", "mu_hits", "fit_core_err_m", "prof_mu_10_16", "dipole_mu"} <= table.keys()
    assert not [name for name, values in table.items() if np.isnan(values).all()]


def test_sparse_array_is_searched_to_its_own_limits():
    array = triangular(125.0, muons=3.0)
    showers = drawn(array, 200, (7.0, 8.0))
    table, truth = table_of(array, showers), showers[2]
    assert table["fit_converged"].mean() > 0.98
    assert np.abs(truth["core"]).max() > 300  # beyond what KASCADE's limit allows
    assert np.median(core_errors(table, truth)) < 0.1 * 125
    assert abs(np.median(table["fit_lg_ne"] - truth["lg_ne"])) < 0.05
    rho = rho_electron(array.optimum_m / array.fit_unit_m, 10 ** truth["lg_ne"], truth["age"]) / array.fit_unit_m**2
    gap = table["fit_lg_rho_opt"] - np.log10(rho)
    assert abs(np.median(gap)) < 0.015
    assert 0.8 < np.std(gap / table["fit_lg_rho_opt_err"]) < 1.25
    assert not table.keys() & {"prof_e_0_10", "prof_e_10_16", "res_mu_0_10", "slope_e_16_25"}
    assert not [name for name, values in table.items() if np.isnan(values).all()]


@pytest.mark.parametrize(("share", "spacings"), [(0.4, 0.1), (1.0, 0.2)])
def test_saturated_stations_far_apart_are_limits_not_a_wrong_core(share, spacings):
    array = triangular(1500.0, area=10.0)
    grids, scalars, truth = drawn(array, 100, (8.7, 9.7))
    limit_mev = float(np.quantile(grids[..., 0].max(axis=(1, 2)), 1.0 - share))
    array = replace(array, card=replace(array.card, response={"saturation_mev": limit_mev}))
    saturated = grids[..., 0].max(axis=(1, 2)) >= limit_mev
    table = table_of(array, (grids, scalars, truth))
    assert table["fit_converged"][saturated].mean() > 0.9  # 0.7 where limits count in the level of the start
    assert np.median(core_errors(table, truth)[saturated]) < spacings * 1500


def test_small_array_with_muon_detectors_near_the_core_alone():
    array = triangular(2.5, muons=0.5, area=0.5)
    showers = drawn(array, 200, (5.0, 6.0))
    table, truth = table_of(array, showers), showers[2]
    assert table["fit_converged"].mean() > 0.9
    assert np.median(core_errors(table, truth)) < 2.0
    assert np.isfinite(table["fit_lg_nmu"]).mean() > 0.5


def test_lengths_follow_the_density_of_the_air():
    card = replace(KASCADE.card, depth_g_cm2=700.0)
    high = triangular(20.0, card, muons=3.0)
    assert high.fit_unit_m == pytest.approx(1.36, abs=0.03)
    showers = drawn(high, 200, (5.5, 6.5))
    table, truth = table_of(high, showers), showers[2]
    assert table["fit_converged"].mean() > 0.98
    assert abs(np.median(table["fit_lg_ne"] - truth["lg_ne"])) < 0.03
    assert abs(np.median(table["fit_age"] - truth["age"])) < 0.05
    pull = core_errors(table, truth) / table["fit_core_err_m"]
    assert 0.7 < np.sqrt(np.mean(pull**2)) < 1.4


ARRAYS = {
    "no muons": NO_MUONS,
    "sparse, high": triangular(125.0, replace(KASCADE.card, depth_g_cm2=700.0), muons=3.0),
    "near muons": triangular(2.5, muons=0.5, area=0.5),
    "muons alone": triangular(30.0, muons=12.0, area=0.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ARRAYS)
def test_cuda_gives_what_the_cpu_gives(name, compiled, monkeypatch):
    array = ARRAYS[name]
    grids, scalars, _ = drawn(array, 12, (6.0, 7.0))
    events = make_events(XP, grids, scalars, array=array)
    here = fit_showers(events)
    warp = Warp(compiled)
    monkeypatch.setattr(cuda, "launch", warp.launch)
    monkeypatch.setattr("showerstack.features.lateral.muons_alone.fit_fused", fit_cuda)
    monkeypatch.setattr("showerstack.features.groups.fit_fused", fit_cuda)
    there = fit_showers(events)
    assert warp.faults["fit_events"] == 0
    assert fit_fused is not fit_cuda
    for ours, theirs, scale in (
        *((here.electron[k], there.electron[k], (0.2, 0.2, 0.05, 0.02)[k]) for k in range(4)),
        *((here.muon[k], there.muon[k], (0.05, 0.02)[k]) for k in range(2)),
    ):
        assert np.array_equal(np.isnan(ours), np.isnan(theirs))
        assert np.nanmedian(np.abs(ours - theirs)) < scale
    assert np.array_equal(here.electron_converged, there.electron_converged, equal_nan=True)
    assert np.array_equal(here.muon_converged, there.muon_converged, equal_nan=True)


def test_quantities_that_a_set_lacks_take_their_features_away():
    names = column_names(ALL, KASCADE, ("Ze", "Az"))
    assert {"sec_zenith", "fit_lg_ne", "fit_ne_vertical"} <= set(names)
    assert not set(names) & {
        "E",
        "Ne",
        "Nmu",
        "ne_vertical",
        "fit_minus_ne",
        "mu_far_empty_reco",
        "fit_nmu_minus_proton",
    }


def test_a_remark_where_fewer_than_half_of_the_fits_converge():
    assert fit_remark("mine", np.array([1.0, 1.0, 0.0])) is None
    few = fit_remark("mine", np.array([1.0, 0.0, 0.0, np.nan]))
    assert few == (
        "mine: the lateral fit converged in 25 % of 4 events (25 % had fewer than 3 hit stations: "
        "look at units, areas and array.toml with doctor)"
    )
    assert fit_remark("mine", np.full(3, np.nan)).endswith("(100 % had fewer than 3 hit stations)")


def test_tables_of_an_array_that_is_hardly_hit_say_so(tmp_path, caplog):
    grids, scalars, _ = drawn(NO_MUONS, 40, (5.0, 5.5))
    source = {"generator": "test", "array": NO_MUONS.as_json(), "evaluation_cuts": "none"}
    with write_dataset(tmp_path / "set", 40, None, source=source) as writer:
        writer.put(0, np.where(np.arange(40)[:, None, None, None] < 30, 0, grids), scalars, None)
    table = build_table(tmp_path / "set")
    assert [line.split(" (")[0] for line in table.remarks] == [
        "set.features: the lateral fit converged in 25 % of 40 events"
    ]
    assert any("converged in 25 %" in record.message for record in caplog.records)
