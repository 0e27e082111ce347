"""Features: the same on every array library, unchanged by symmetries, defined where they can be, as declared.

Nothing but the azimuth itself and the core's coordinates changes when array and azimuth are turned or mirrored.
Degenerate and hostile events give NaN where undefined, never a crash, a warning or an infinity. What is declared is
what is computed; the documentation is the catalogue.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.speed.gpu import column_agreement
from showerstack.features import compute
from showerstack.features import groups as fitted
from showerstack.features.build import build_table
from showerstack.features.catalogue import CATALOGUE, FIT_GROUPS, GROUPS, NOT_LEARNED, SETS, feature_set, listing
from showerstack.features.compute import column_names
from showerstack.features.device import (
    decode_float16,
    namespace,
    to_host,
)
from showerstack.features.groups import profile, times
from showerstack.features.groups.lateral import POSITION_GROUP
from showerstack.features.lateral.events import make_events
from showerstack.features.lateral.fit import RawFit, fit_cuda, fit_fused
from showerstack.features.stations.cuda import grid_cuda, order_cuda, sum_cuda
from showerstack.features.stations.grid import grid_fused, order_fused
from showerstack.features.stations.on_cpu import sum_fused
from showerstack.features.stations.sums import PARTS, PATTERNS, RINGS
from showerstack.runtime.errors import InputError
from showerstack.showers.array import KASCADE
from tests.features.reference import grid_reference, order_reference, signals, sum_reference

ALL = frozenset(GROUPS)
PLANES = ("electron_mev", "muon_mev", "zenith_deg", "azimuth_deg", "lg_n_mu")


def _fit_on_the_host(events):
    """Return the compiled fit in arrays of any library: only NumPy and CuPy have a kernel."""
    planes = {name: np.asarray(to_host(getattr(events, name))) for name in PLANES}
    fit = fit_fused(replace(events, xp=namespace("cpu"), **planes))
    return RawFit.from_numbers(events.xp.asarray(np.stack(fit.columns(), axis=1)))


@pytest.fixture
def like_with_like(monkeypatch):
    """Let every library start from the same fits and use the array-API sums."""
    monkeypatch.setattr(fitted, "fit_showers", _fit_on_the_host)
    monkeypatch.setattr(fitted, "sum_stations", sum_reference)
    monkeypatch.setattr(fitted, "sum_grid", grid_reference)
    monkeypatch.setattr(fitted, "order_deposits", order_reference)


def _compute(xp, drawn, rows=slice(0, 150), groups=ALL):
    grids = decode_float16(drawn.matrices[rows].copy())
    columns = compute.compute_chunk(xp, grids, drawn.scalars[rows], groups)
    return {name: np.asarray(to_host(values)) for name, values in columns.items()}


@pytest.fixture(scope="module")
def expected(drawn):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitted, "fit_showers", _fit_on_the_host)
        patch.setattr(fitted, "sum_stations", sum_reference)
        patch.setattr(fitted, "sum_grid", grid_reference)
        patch.setattr(fitted, "order_deposits", order_reference)
        return _compute(namespace("cpu"), drawn)


def test_all_libraries_agree(backend, drawn, expected, like_with_like, tolerance):
    name, xp = backend
    columns = _compute(xp, drawn)
    assert list(columns) == list(expected)
    for column, values in columns.items():
        assert values.dtype == np.float32, column
        np.testing.assert_array_equal(np.isnan(values), np.isnan(expected[column]), err_msg=column)
        spread = float(np.nanstd(expected[column])) or 1.0
        limit = tolerance.get(("numpy", name), 0.0) * spread
        gap = np.abs(values - expected[column])
        # A station on a ring's edge may fall on either side: one event in a hundred is allowed to.
        assert np.nanquantile(gap, 0.99) <= limit + 1e-6 * np.nanmax(np.abs(values)), column


def test_every_computed_column_is_declared(expected):
    assert set(expected) <= set(CATALOGUE)


def test_decode_is_exact():
    bits = np.arange(0x7C00, dtype=np.uint16)
    values = bits.view(np.float16)
    np.testing.assert_array_equal(decode_float16(values), values.astype(np.float32))
    assert decode_float16(np.array([-0.0], np.float16))[0] == 0.0
    assert decode_float16(np.array([65_504.0], np.float16))[0] == 65_504.0


def test_float16_cells_become_the_same_planes(drawn):
    cells, xp = drawn.matrices[:20].copy(), namespace("cpu")
    cells.reshape(-1)[: 0x7C00 // 16] = np.arange(0, 0x7C00, 16, dtype=np.uint16).view(np.float16)
    cells[1] = -0.0
    at_once = make_events(xp, cells, drawn.scalars[:20])
    decoded = make_events(xp, cells.astype(np.float32) + np.float32(0.0), drawn.scalars[:20])
    for name in ("electron_mev", "muon_mev"):
        ours, theirs = getattr(at_once, name), getattr(decoded, name)
        np.testing.assert_array_equal(ours.view(np.uint32), theirs.view(np.uint32))


def _assert_same_sums(ours, theirs, rows=slice(None)):
    assert set(ours) == set(theirs)
    for name, values in theirs.items():
        assert ours[name].shape == values.shape, name
        scale = np.nanmax(np.abs(values)) + 1e-3
        # A station on a ring's edge may fall on either side.
        assert np.mean(np.abs(ours[name][rows].astype(np.float64) - values[rows]) > 2e-4 * scale) <= 0.005, name


def test_compiled_sums_agree_with_the_reference(drawn):
    events = drawn.events(namespace("cpu"), slice(0, 300))
    fit = fit_fused(events)
    _assert_same_sums(sum_fused(events, fit), sum_reference(events, fit))


@pytest.mark.parametrize("parts", [frozenset(), frozenset({RINGS}), frozenset({PATTERNS}), PARTS])
def test_sums_of_the_cuda_kernel_agree_with_the_cpu(drawn, parts, cuda_on_the_host):
    cells = drawn.matrices[:300].copy()
    cells[7] = 0
    cells[8, 0, :5] = 40_000.0
    cells[9, 5, 5, 1] = 20_000.0  # an inner station, without a muon detector
    assert not KASCADE.has_muon[5, 5]
    assert KASCADE.has_station[5, 5]
    events = make_events(namespace("cpu"), cells, drawn.scalars[:300])
    fit = fit_fused(events)
    ours, theirs = sum_cuda(events, fit, parts), sum_fused(events, fit, parts)
    assert ours["fitted"].sum() == 299
    np.testing.assert_array_equal(ours["fitted"], theirs["fitted"])
    _assert_same_sums(ours, theirs)


@pytest.mark.parametrize("scale", [1.0, 6e-8, 0.0])
def test_sums_over_the_grid_of_the_cuda_kernel_agree_with_the_cpu(drawn, scale, cuda_on_the_host):
    events = drawn.events(namespace("cpu"), slice(0, 300))
    events = replace(events, electron_mev=events.electron_mev * np.float32(scale))
    for ours, theirs in ((grid_cuda(events), grid_fused(events)), (order_cuda(events), order_fused(events))):
        _assert_same_grids(ours, theirs)


def test_sort_of_the_cuda_kernel_is_exact(drawn, cuda_on_the_host):
    cells = np.zeros((258, 16, 16, 2), np.float32)
    order = np.random.default_rng(3).permutation(256)
    for hits in range(257):  # every number of stations hit
        cells[hits].reshape(256, 2)[order[:hits], 0] = np.arange(1, hits + 1)
    cells[257, ..., 0] = 1.0  # all alike
    events = make_events(namespace("cpu"), cells, drawn.scalars[:258])
    ours, theirs = order_cuda(events), order_fused(events)
    for name, values in theirs.items():
        np.testing.assert_array_equal(ours[name], values, err_msg=name)


def test_columns_by_the_cuda_kernels_are_the_cpus(drawn, cuda_on_the_host, monkeypatch):
    rows = slice(0, 400)
    ours = _compute(namespace("cpu"), drawn, rows)
    asked = []
    places = {"fit_fused": fit_cuda, "sum_fused": sum_cuda, "grid_fused": grid_cuda, "order_fused": order_cuda}
    for name, there in places.items():
        monkeypatch.setattr(fitted, name, lambda *given, there=there: asked.append(there) or there(*given))
    theirs = _compute(namespace("cpu"), drawn, rows)
    assert set(asked) == set(places.values())
    words, same = column_agreement(theirs, ours)
    assert same, words


def test_a_gpu_takes_the_cuda_kernels(drawn, monkeypatch):
    events, given = drawn.events(namespace("cpu"), slice(0, 3)), []
    cupy = replace(events, xp=ModuleType("cupy"))
    for name in ("fit_cuda", "sum_cuda", "grid_cuda", "order_cuda"):
        monkeypatch.setattr(fitted, name, lambda *arguments, name=name: given.append(name))
    fitted.fit_showers(cupy)
    fitted.sum_stations(cupy, None)
    fitted.sum_grid(cupy)
    fitted.order_deposits(cupy)
    assert given == ["fit_cuda", "sum_cuda", "grid_cuda", "order_cuda"]


def test_only_the_sums_asked_for_are_made(drawn, monkeypatch):
    events = drawn.events(namespace("cpu"), slice(0, 20))
    fit = fit_fused(events)
    for parts in (frozenset(), frozenset({RINGS}), frozenset({PATTERNS}), PARTS):
        reference, fused = sum_reference(events, fit, parts), sum_fused(events, fit, parts)
        assert set(reference) == set(fused)
        assert (RINGS in parts, PATTERNS in parts) == ("ring_mu_seen" in fused, "lcm_mu_seen" in fused)
    asked = []
    monkeypatch.setattr(fitted, "sum_stations", lambda *given: asked.append(given[2]) or sum_fused(*given))
    for group, parts in (("electron-fit", set()), ("profile", {RINGS}), ("asymmetry", {PATTERNS})):
        _compute(namespace("cpu"), drawn, slice(0, 5), frozenset({group}))
        assert asked.pop() == parts


@pytest.mark.parametrize("scale", [1.0, 6e-8, 0.0])
def test_compiled_sums_over_the_grid_agree_with_the_reference(drawn, scale):
    events = drawn.events(namespace("cpu"), slice(0, 300))
    events = replace(events, electron_mev=events.electron_mev * np.float32(scale))
    _assert_same_grids(grid_fused(events), grid_reference(events))
    _assert_same_grids(order_fused(events), order_reference(events))


def _assert_same_grids(ours, theirs):
    assert set(ours) == set(theirs)
    for name, values in theirs.items():
        tolerance = 2e-5 * (np.nanmax(np.abs(values)) if np.isfinite(values).any() else 0.0)
        np.testing.assert_allclose(ours[name], values, rtol=2e-5, atol=tolerance, err_msg=name)


def test_another_number_of_cells_takes_the_same_path(drawn, cuda_on_the_host):
    # As many cells as the other arrays of the tests have, with both detectors in each: compiled once for all of them.
    part, xp = slice(0, 12), namespace("cpu")
    planes = {name: getattr(KASCADE, name)[part, part] for name in ("x_m", "y_m")}
    planes |= {name: np.full((12, 12), getattr(KASCADE, name).max()) for name in ("electron_area_m2", "muon_area_m2")}
    corner = replace(KASCADE, name="corner", cluster=KASCADE.cluster[part, part], **planes)
    cells = np.ascontiguousarray(drawn.matrices[:200, part, part])
    lacking = KASCADE.muon_area_m2[part, part] == 0
    cells[:, 7:9, 7:9] = cells[:, 6:7, 6:7]
    cells[:, lacking, 1] = 8.4 * np.random.default_rng(0).poisson(0.5, (200, lacking.sum()))
    events = make_events(xp, cells, drawn.scalars[:200], array=corner)
    fit = fit_fused(events)
    assert np.nanmean(fit.electron_converged) > 0.98
    sums = sum_reference(events, fit)
    rows = sums["fitted"]
    for of_stations, of_grid, order in ((sum_fused, grid_fused, order_fused), (sum_cuda, grid_cuda, order_cuda)):
        _assert_same_sums(of_stations(events, fit), sums, rows)
        _assert_same_sums(of_grid(events), grid_reference(events), rows)
        _assert_same_sums(order(events), order_reference(events), rows)


@pytest.mark.parametrize(("channel", "limit"), [("electron", 30_000.0), ("muon", 15_000.0)])
def test_a_deposit_at_the_limit_is_a_lower_limit(channel, limit):
    cells = np.zeros((1, 16, 16, 2), np.float32)
    cells[0, 0, :3] = np.array([[limit - 1.0], [limit], [limit + 1.0]])
    measured = signals(make_events(namespace("cpu"), cells, np.zeros((1, 5), np.float32)))
    signal = getattr(measured, channel)[0, :3]
    assert getattr(measured, f"{channel}_saturated")[0, :3].tolist() == [0.0, 1.0, 1.0]
    assert signal[0] < signal[1] == signal[2]


XP = namespace("cpu")
N = 40


def _turn(matrices, scalars, quarter_turns, mirror):
    """Turn the grid by quarter turns, clockwise seen from above, and mirror it in x."""
    turned = np.rot90(matrices, quarter_turns, axes=(1, 2))
    azimuth = scalars[:, 2] - 90.0 * quarter_turns
    if mirror:
        turned, azimuth = turned[:, :, ::-1], 180.0 - azimuth
    changed = scalars.copy()
    changed[:, 2] = azimuth % 360.0
    return np.ascontiguousarray(turned), changed


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(start=st.integers(0, 3_900), symmetry=st.sampled_from(list(product(range(4), (False, True)))[1:]))
def test_features_are_invariant(drawn, start, symmetry):
    rows = slice(start, start + N)
    matrices, scalars = drawn.matrices[rows].copy(), drawn.scalars[rows]
    before = compute.compute_chunk(XP, decode_float16(matrices), scalars, ALL)
    turned = _turn(matrices, scalars, *symmetry)
    after = compute.compute_chunk(XP, decode_float16(turned[0]), turned[1], ALL)
    for name, values in before.items():
        group = CATALOGUE[name].group
        if group == POSITION_GROUP:
            continue
        scale = np.nanmax(np.abs(values)) + 1.0
        gap = np.abs(values - after[name])
        if group in FIT_GROUPS:
            # Sums run in another order: a fit stops elsewhere within its tolerance, a station crosses a ring's edge.
            assert np.mean(gap[np.isfinite(gap)] > 2e-3 * scale) <= 0.05, name
        else:
            np.testing.assert_array_equal(np.isnan(values), np.isnan(after[name]), err_msg=name)
            assert np.all(gap[np.isfinite(gap)] < 1e-4 * scale), name


def test_the_core_turns_along(drawn):
    matrices, scalars = drawn.matrices[:N].copy(), drawn.scalars[:N]
    before = compute.compute_chunk(XP, decode_float16(matrices), scalars, ALL)
    turned = _turn(matrices, scalars, 1, False)
    after = compute.compute_chunk(XP, decode_float16(turned[0]), turned[1], ALL)
    np.testing.assert_allclose(after["fit_core_x_m"], before["fit_core_y_m"], atol=0.05)
    np.testing.assert_allclose(after["fit_core_y_m"], -before["fit_core_x_m"], atol=0.05)


TYPICAL = np.array([15.0, 20.0, 100.0, 5.0, 4.3], np.float32)


def _features(matrices, scalars=None):
    matrices = np.asarray(matrices, np.float16)
    scalars = np.tile(TYPICAL, (len(matrices), 1)) if scalars is None else np.asarray(scalars, np.float32)
    return compute.compute_chunk(XP, decode_float16(matrices), scalars, ALL)


def _check_ranges(columns):
    for name, values in columns.items():
        assert not np.isinf(values).any(), name
        defined = values[~np.isnan(values)]
        feature = CATALOGUE[name]
        assert np.all((defined >= feature.low) & (defined <= feature.high)), (name, defined)


def test_nothing_hit():
    columns = _features(np.zeros((2, 16, 16, 2)))
    _check_ranges(columns)
    assert columns["e_hits"][0] == 0
    for name in (
        "e_sum_lg",
        "e_q50_lg",
        "mu_centroid_r_m",
        "fit_lg_ne",
        "fit_age",
        "mu_far",
        "prof_e_0_10",
        "lcm_e_30_60",
    ):
        assert np.isnan(columns[name]).all(), name


def test_one_station():
    matrices = np.zeros((1, 16, 16, 2))
    matrices[0, 3, 5, 0] = 50.0
    columns = _features(matrices)
    _check_ranges(columns)
    assert columns["e_hits"][0] == 1
    assert columns["e_sum_lg"][0] == pytest.approx(np.log10(50), abs=1e-3)
    assert columns["e_centroid_r_m"][0] == pytest.approx(13 * np.hypot(2.5, 4.5), rel=1e-4)
    assert np.isnan(columns["fit_lg_ne"][0])


def test_three_stations_are_fitted():
    matrices = np.zeros((1, 16, 16, 2))
    for row, column in ((3, 5), (3, 6), (4, 5)):
        matrices[0, row, column, 0] = 50.0
    columns = _features(matrices)
    _check_ranges(columns)
    assert np.isfinite(columns["fit_lg_ne"][0])
    assert columns["fit_lg_ne_err"][0] > 0.05


def test_saturation_everywhere():
    columns = _features(np.full((1, 16, 16, 2), 65_504.0))
    _check_ranges(columns)
    assert columns["e_saturated"][0] == 252
    assert columns["e_sum_lg"][0] == pytest.approx(np.log10(252 * 65_504.0), abs=1e-4)


def test_smallest_deposits():
    columns = _features(np.full((1, 16, 16, 2), 6e-8))
    _check_ranges(columns)
    assert columns["e_hits"][0] == 252


def test_cells_without_a_station_are_ignored():
    matrices = np.zeros((1, 16, 16, 2))
    matrices[0, 7, 7] = 100.0  # the centre has no station
    matrices[0, 5, 5, 1] = 100.0  # inner stations have no muon detector
    columns = _features(matrices)
    assert columns["e_hits"][0] == 0
    assert columns["mu_hits"][0] == 0


def test_core_outside_the_array(draw):
    far = draw(100, seed=3, lg_ne=(5.6, 6.0), max_core_m=120.0)
    columns = _features(far.matrices, far.scalars)
    _check_ranges(columns)
    assert np.isfinite(columns["fit_lg_ne"]).all()


def test_horizontal_showers():
    matrices = np.full((3, 16, 16, 2), 20.0)
    scalars = np.tile(TYPICAL, (3, 1))
    scalars[:, 1] = (60.0, 85.0, 90.0)
    _check_ranges(_features(matrices, scalars))


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    share=st.floats(0, 1),
    scale=st.sampled_from([1e-7, 1e-3, 1.0, 1e3, 6.5e4]),
    zenith=st.floats(0, 60),
)
def test_random_grids(seed, share, scale, zenith):
    rng = np.random.default_rng(seed)
    matrices = rng.random((4, 16, 16, 2)) * scale * (rng.random((4, 16, 16, 2)) < share)
    scalars = np.tile(TYPICAL, (4, 1))
    scalars[:, 1] = zenith
    _check_ranges(_features(matrices, scalars))


DOCS = Path(__file__).parents[2] / "docs" / "methods" / "feature_catalogue.md"


def test_table_holds_every_declared_feature_within_its_range(write, draw):
    showers = draw(2_000, seed=4)
    table = build_table(write(showers, age=showers.truth["age"].to_numpy().astype(np.float32)))
    with_times = tuple(name for name in CATALOGUE if not name.startswith("fit_lg_rho_opt"))
    without_times = tuple(name for name in with_times if CATALOGUE[name].group != times.GROUP)
    assert table.columns == column_names(frozenset(GROUPS)) == without_times
    assert column_names(frozenset(GROUPS), has_times=True) == with_times
    values = table.matrix(table.columns)
    for k, name in enumerate(table.columns):
        column = values[:, k]
        assert not np.isinf(column).any(), name
        defined = column[~np.isnan(column)]
        assert defined.size > 0.5 * len(column), name
        assert defined.min() >= CATALOGUE[name].low, (name, defined.min())
        assert defined.max() <= CATALOGUE[name].high, (name, defined.max())
        assert np.ptp(defined) > 0 or name in ("mu_saturated", "fit_converged"), f"{name} is constant"
    assert _same_columns(values.astype(np.float64), table.columns) == []


def _same_columns(values, names):
    """Return pairs of columns of which one is the other times a constant plus a constant."""
    pairs = []
    for i, j in combinations(range(len(names)), 2):
        both = np.isfinite(values[:, i]) & np.isfinite(values[:, j])
        x, y = (values[both, k] - values[both, k].mean() for k in (i, j))
        norm = np.sqrt((x @ x) * (y @ y))
        if norm > 0.0 and abs(x @ y) > (1.0 - 1e-10) * norm:
            pairs.append((names[i], names[j]))
    return pairs


def test_declarations_are_complete():
    for feature in CATALOGUE.values():
        assert feature.group in GROUPS
        for text in (feature.unit, feature.meaning, feature.formula, feature.source):
            assert text
        assert feature.low < feature.high


def test_sets():
    assert not set(SETS) & set(GROUPS)
    for name in SETS:
        columns = feature_set(name, CATALOGUE)
        assert len(set(columns)) == len(columns)
        assert not NOT_LEARNED & set(columns)
    assert set(feature_set("scalars", CATALOGUE)) < set(feature_set("fits", CATALOGUE))
    assert set(feature_set("fits", CATALOGUE)) < set(feature_set("fits+profile", CATALOGUE))
    for name in ("published-grid", "fits", "fits+profile"):
        assert 30 <= len(feature_set(name, CATALOGUE)) <= 100, name
    assert all(CATALOGUE[name].group != POSITION_GROUP for name in feature_set("all", CATALOGUE))
    assert "Age" not in feature_set("scalars", set(CATALOGUE) - {"Age"})
    assert feature_set("muon-fit", CATALOGUE)[0] == "fit_lg_nmu"
    assert feature_set("e_hits", CATALOGUE) == ("e_hits",)
    assert {"e_hits", "mu_hits"} < set(feature_set("published-grid", CATALOGUE))
    with pytest.raises(InputError, match="unknown feature set 'fit'"):
        feature_set("fit", CATALOGUE)
    with pytest.raises(InputError, match="no column of feature set"):
        feature_set("profile", ["E"])


def test_listing():
    text = listing()
    assert all(name in text for name in CATALOGUE)
    assert "fit_age" not in listing("size")
    assert listing("size", "md").startswith("## size")
    with pytest.raises(InputError, match="unknown format"):
        listing(format="html")
    with pytest.raises(InputError, match="unknown feature group"):
        listing("sizes")


def test_documentation_is_the_catalogue():
    command = "python cli.py features --list --format md > docs/methods/feature_catalogue.md"
    assert DOCS.read_text(encoding="utf-8").strip() == listing(format="md").strip(), f"out of date, run: {command}"


def test_namespace_is_numpy():
    assert namespace("cpu").asarray([1.0]).sum() == 1.0


def test_rings_by_hand():
    """Densities, residuals, slopes and radii of two channels; a ring without a detector has none, a small one has."""
    signal = np.array([[4.0, 2.0, 2.0, 1.0, 0.0, 1.0, 0.0], [0.0] * 7])
    area = np.array([[2.0, 0.1, 4.0, 2.0, 2.0, 0.0, 1.0], [1.0] * 7])
    expected, variance = signal - np.arange(7), np.array([[4.0, 1.0, 4.0, 1.0, 1e-4, 1.0, 9.0], [1.0] * 7])
    ring = {"seen": signal, "area": area, "expected": expected, "variance": variance}
    sums = {f"ring_{channel}_{name}": values for channel in ("e", "mu") for name, values in ring.items()}
    sums["fitted"] = np.array([True, False])
    columns = profile._compute_profile(SimpleNamespace(sums=sums, xp=namespace("cpu")))
    rings = [profile.ring_name(k) for k in range(7)]
    for channel in ("e", "mu"):
        density = np.log10(signal[0] / np.where(area[0] > 0, area[0], np.nan) + 1e-3)
        np.testing.assert_allclose([columns[f"prof_{channel}_{ring}"][0] for ring in rings], density)
        residual = [0.0, 1.0, 1.0, 3.0, 100.0, np.nan, 2.0]  # the fifth would be 398
        np.testing.assert_allclose([columns[f"res_{channel}_{ring}"][0] for ring in rings], residual, rtol=1e-5)
        # Ten in all: half of them at 10 + 6 / 2 m, nine tenths where the fourth ring ends.
        assert columns[f"prof_{channel}_r50_m"][0] == pytest.approx(13.0)
        assert columns[f"prof_{channel}_r90_m"][0] == pytest.approx(40.0)
        assert columns[f"prof_{channel}_in25"][0] == pytest.approx(0.8)
    middle = 0.5 * np.log10([10.0 * 16, 16 * 25, 25 * 40, 40 * 63, 63 * 90, 90 * 130])
    slopes = (density[2:] - density[1:-1]) / np.diff(middle)
    np.testing.assert_allclose([columns[f"slope_e_{ring}"][0] for ring in rings[2:]], slopes)
    assert all(np.isnan(values[1]) for values in columns.values()), "nothing was fitted"
