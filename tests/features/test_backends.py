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
from features.lateral.fit import RawFit, fit_fused
from features.stations.compiled import sum_fused
from features.stations.sums import sum_reference
from runtime.errors import InputError

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


def _compute(xp, drawn, rows=slice(0, 150), groups=ALL):
    grids = decode_float16(drawn.matrices[rows].copy())
    columns = compute.compute_chunk(xp, grids, drawn.scalars[rows], groups)
    return {name: np.asarray(to_host(values)) for name, values in columns.items()}


@pytest.fixture(scope="module")
def expected(drawn):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitted, "fit_showers", _fit_on_the_host)
        patch.setattr(fitted, "sum_stations", sum_reference)
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
