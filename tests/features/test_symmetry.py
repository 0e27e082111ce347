"""Nothing but the azimuth itself and the core's coordinates changes when array and azimuth are turned or mirrored."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from features import compute
from features.catalogue import CATALOGUE, FIT_GROUPS, GROUPS
from features.device import decode_float16, namespace
from features.groups.lateral import POSITION_GROUP

XP = namespace("cpu")
ALL = frozenset(GROUPS)
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
