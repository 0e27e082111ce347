"""The one numeric source gives the same features on every array library."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from features import compute
from features import groups as fitted
from features.catalogue import CATALOGUE, GROUPS
from features.device import (
    CPU_CHUNK,
    GPU_CHUNK,
    chunk_size,
    decode_float16,
    namespace,
    resolve_device,
    to_host,
)
from features.lateral.events import make_events, signals
from features.lateral.fit import RawFit, fit_fused
from features.stations.compiled import sum_fused
from features.stations.grid import grid_fused, grid_reference, order_fused, order_reference
from features.stations.sums import PARTS, PATTERNS, RINGS, sum_reference
from runtime.errors import InputError
from showers.array import KASCADE

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
    monkeypatch.setattr(fitted, "grid_fused", grid_reference)
    monkeypatch.setattr(fitted, "order_fused", order_reference)


def _compute(xp, drawn, rows=slice(0, 150), groups=ALL):
    grids = decode_float16(drawn.matrices[rows].copy())
    columns = compute.compute_chunk(xp, grids, drawn.scalars[rows], groups)
    return {name: np.asarray(to_host(values)) for name, values in columns.items()}


@pytest.fixture(scope="module")
def expected(drawn):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitted, "fit_showers", _fit_on_the_host)
        patch.setattr(fitted, "sum_stations", sum_reference)
        patch.setattr(fitted, "grid_fused", grid_reference)
        patch.setattr(fitted, "order_fused", order_reference)
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


def test_devices(monkeypatch):
    assert resolve_device("cpu") == "cpu"
    with pytest.raises(InputError, match="unknown device 'gpu'"):
        resolve_device("gpu")
    monkeypatch.setattr("features.device._find_gpu", lambda: "no CUDA device answers")
    assert resolve_device("auto") == "cpu"
    with pytest.raises(InputError, match="no CUDA device answers"):
        resolve_device("cuda")
    monkeypatch.setattr("features.device._find_gpu", lambda: None)
    assert resolve_device("auto") == resolve_device("cuda") == "cuda"
    assert (chunk_size("cpu"), chunk_size("cuda")) == (CPU_CHUNK, GPU_CHUNK)


def test_compiled_sums_agree_with_the_reference(drawn):
    events = drawn.events(namespace("cpu"), slice(0, 300))
    fit = fit_fused(events)
    reference, fused = sum_reference(events, fit), sum_fused(events, fit)
    assert set(reference) == set(fused)
    for name, values in reference.items():
        for ours, theirs in zip(*((v if isinstance(v, list) else [v]) for v in (fused[name], values)), strict=True):
            scale = np.abs(theirs).max() + 1e-3
            # A station on a ring's edge may fall on either side.
            assert np.mean(np.abs(ours.astype(np.float64) - theirs) > 2e-4 * scale) <= 0.005, name


def test_only_the_sums_asked_for_are_made(drawn, monkeypatch):
    events = drawn.events(namespace("cpu"), slice(0, 20))
    fit = fit_fused(events)
    for parts in (frozenset(), frozenset({RINGS}), frozenset({PATTERNS}), PARTS):
        reference, fused = sum_reference(events, fit, parts), sum_fused(events, fit, parts)
        assert set(reference) == set(fused)
        assert (RINGS in parts, PATTERNS in parts) == ("ring_mu" in fused, "lcm_mu" in fused)
    asked = []
    monkeypatch.setattr(fitted, "sum_stations", lambda *given: asked.append(given[2]) or sum_fused(*given))
    for group, parts in (("electron-fit", set()), ("profile", {RINGS}), ("asymmetry", {PATTERNS})):
        _compute(namespace("cpu"), drawn, slice(0, 5), frozenset({group}))
        assert asked.pop() == parts


@pytest.mark.parametrize("scale", [1.0, 6e-8, 0.0])
def test_compiled_sums_over_the_grid_agree_with_the_reference(drawn, scale):
    events = drawn.events(namespace("cpu"), slice(0, 300))
    events = replace(events, electron_mev=events.electron_mev * np.float32(scale))
    for reference, fused in (
        (grid_reference(events), grid_fused(events)),
        (order_reference(events), order_fused(events)),
    ):
        assert set(reference) == set(fused)
        for name, theirs in reference.items():
            tolerance = 2e-5 * (np.nanmax(np.abs(theirs)) if np.isfinite(theirs).any() else 0.0)
            np.testing.assert_allclose(fused[name], theirs, rtol=2e-5, atol=tolerance, err_msg=name)


def test_another_number_of_cells_takes_the_same_path(drawn):
    part, xp = slice(0, 11), namespace("cpu")
    planes = {name: getattr(KASCADE, name)[part, part] for name in ("x_m", "y_m", "electron_area_m2", "muon_area_m2")}
    corner = replace(KASCADE, name="corner", cluster=KASCADE.cluster[part, part], **planes)
    cells = np.ascontiguousarray(drawn.matrices[:200, part, part])
    events = make_events(xp, cells, drawn.scalars[:200], array=corner)
    fit = fit_fused(events)
    assert np.nanmean(fit.electron_converged) > 0.98
    for reference, fused in (
        (sum_reference(events, fit), sum_fused(events, fit)),
        (grid_reference(events), grid_fused(events)),
        (order_reference(events), order_fused(events)),
    ):
        for name, values in reference.items():
            for ours, theirs in zip(*((v if isinstance(v, list) else [v]) for v in (fused[name], values)), strict=True):
                rows = reference.get("fitted", slice(None))
                far = np.abs(ours[rows].astype(np.float64) - theirs[rows]) > 2e-4 * (np.nanmax(np.abs(theirs)) + 1e-3)
                assert np.mean(far) <= 0.005, name


@pytest.mark.parametrize(("channel", "limit"), [("electron", 30_000.0), ("muon", 15_000.0)])
def test_a_deposit_at_the_limit_is_a_lower_limit(channel, limit):
    cells = np.zeros((1, 16, 16, 2), np.float32)
    cells[0, 0, :3] = np.array([[limit - 1.0], [limit], [limit + 1.0]])
    measured = signals(make_events(namespace("cpu"), cells, np.zeros((1, 5), np.float32)))
    signal = getattr(measured, channel)[0, :3]
    assert getattr(measured, f"{channel}_saturated")[0, :3].tolist() == [0.0, 1.0, 1.0]
    assert signal[0] < signal[1] == signal[2]
