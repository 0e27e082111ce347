"""Degenerate and hostile events: defined where they can be, NaN where not, never a crash, a warning or an infinity."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from features import compute
from features.catalogue import CATALOGUE, GROUPS
from features.device import decode_float16, namespace

XP = namespace("cpu")
ALL = frozenset(GROUPS)
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
