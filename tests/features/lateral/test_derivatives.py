"""What the compiled fit minimises has the derivatives that it says it has."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from features.device import namespace
from features.lateral.compiled import (
    electron_hessian,
    electron_terms,
    expect_electrons,
    expect_muons,
    freeze_electron,
    freeze_muon,
    load,
    load_muons,
    muon_terms,
    planes_of,
)
from features.lateral.fit import fit_fused
from features.lateral.response import PUBLISHED

XP = namespace("cpu")
N = 30


@njit(error_model="numpy")
def _freeze(electron_mev, muon_mev, where, cosine, u, v, planes):
    z, res = planes[0], PUBLISHED
    load(electron_mev, cosine, res.electron_deposit_mev, res.saturation_mev, z)
    load_muons(muon_mev, where, cosine, res.muon_deposit_mev, res.muon_saturation_mev, z)
    freeze_electron(res, u, v, z)
    freeze_muon(res, u, v, z)


@njit(error_model="numpy")
def _electron_terms(p, u, v, planes, out):
    z = planes[0]
    expect_electrons(PUBLISHED, p, u, v, z)
    electron_terms(PUBLISHED, p, z, out)
    electron_hessian(PUBLISHED, p, u, v, z, out)


@njit(error_model="numpy")
def _muon_terms(q, mean_age, planes, out):
    expect_muons(q, planes[0])
    muon_terms(PUBLISHED, q, mean_age, planes[0], out)


@pytest.fixture(scope="module")
def channels(drawn):
    """Both channels of some events, frozen at their fits, with parameters beside the minimum."""
    events = drawn.events(XP, slice(0, N))
    raw, here = fit_fused(events), events.stations
    where = np.flatnonzero(here.has_muon)
    found = []
    for k in range(N):
        z = planes_of(here.x_m, here.y_m, here.electron_area_m2, here.muon_area_m2, where)
        p, q = (np.array([float(c[k]) for c in parameters]) for parameters in (raw.electron, raw.muon))
        z["p"], z["q"] = p, q
        axis = events.direction[0][k], events.direction[1][k]
        _freeze(events.electron_mev[k], events.muon_mev[k], where, events.cos_zenith[k], *axis, z)
        found.append((p + np.array([3.0, 2.0, 0.2, -0.1]), q + np.array([0.2, 0.1]), z, axis))
    return found


def _electron(p, z, axis):
    out = np.zeros(25)
    _electron_terms(p, *axis, z, out)
    return out


def _muon(q, z):
    out = np.zeros(25)
    _muon_terms(q, 1.3, z, out)
    return out


def _slopes(terms_of, p, steps):
    moves = np.diag(steps)
    return np.array([(terms_of(p + move) - terms_of(p - move)) / (2 * move.sum()) for move in moves])


def test_gradient_is_the_derivative_of_the_deviance(channels):
    for p, q, z, axis in channels:
        numeric = _slopes(lambda p, z=z, axis=axis: _electron(p, z, axis), p, (0.05, 0.05, 5e-3, 5e-3))[:, 0]
        np.testing.assert_allclose(_electron(p, z, axis)[1:5], numeric, rtol=0.02, atol=0.3)
        numeric = _slopes(lambda q, z=z: _muon(q, z), q, (5e-3, 5e-3))[:, 0]
        np.testing.assert_allclose(_muon(q, z)[1:3], numeric, rtol=0.01, atol=0.1)


def test_hessian_is_the_derivative_of_the_gradient_where_all_is_signal(channels):
    # Without background and thresholds the Hessian is exact; with them, their own curvature is left out.
    rows, columns = np.tril_indices(4)
    for p, _, z, axis in channels:
        bare = z.copy()
        bare["background"] = 1e-12
        terms = _electron(p, bare, axis)
        unit = np.sqrt(terms[5:15][[0, 2, 5, 9]])
        slopes = _slopes(lambda p, z=bare, axis=axis: _electron(p, z, axis), p, (0.05, 0.05, 0.01, 0.01))[:, 1:5]
        gap = (terms[15:25] - slopes[rows, columns]) / (unit[rows] * unit[columns])
        assert np.abs(gap).max() < 0.02
