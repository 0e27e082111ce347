"""What the compiled fit minimises has the derivatives that it says it has."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from features.device import namespace
from features.lateral.compiled import Electrons, Muons, StationPositions, electron_hessian, electron_terms, muon_terms
from features.lateral.events import distances, electron_density, freeze_electron, freeze_muon, muon_density, signals
from features.lateral.fit import fit_fused
from features.lateral.response import PUBLISHED
from features.lateral.translate import on_arrays

XP = namespace("cpu")
N = 30


@njit(error_model="numpy")
def _electron_terms(p, u, v, places, electrons, out):
    electron_terms(PUBLISHED, p, u, v, places, electrons, out)
    electron_hessian(PUBLISHED, p, u, v, places, electrons, out)


@njit(error_model="numpy")
def _muon_terms(q, mean_age, muons, out):
    muon_terms(PUBLISHED, q, mean_age, muons, out)


@pytest.fixture(scope="module")
def channels(drawn):
    """Both channels of some events, frozen at their fits, with parameters beside the minimum."""
    events = drawn.events(XP, slice(0, N))
    raw, here, measured = fit_fused(events), events.stations, signals(events)
    r_m = distances(events, *raw.electron[:2])
    electrons = electron_density(r_m, raw.electron[2][:, None], raw.electron[3][:, None], XP)
    muons = muon_density(r_m, raw.muon[0][:, None], raw.muon[1][:, None], XP)
    frozen, frozen_m = (freeze(measured, r_m, electrons, muons, XP) for freeze in (freeze_electron, freeze_muon))
    g, base = on_arrays(XP).muon_age_terms(r_m)
    places = StationPositions(np.arange(here.x_m.size), here.x_m, here.y_m, here.electron_area_m2)
    found = []
    for k in range(N):
        area = measured.electron_area_m2[k]
        full, full_m = (s[k].astype(np.float32) for s in (measured.electron_saturated, measured.muon_saturated))
        e = Electrons(measured.electron[k], full, area, frozen.area_m2[k], frozen.background[k], frozen.weight[k])
        area = measured.muon_area_m2[k]
        m = Muons(measured.muon[k], full_m, area, frozen_m.background[k], frozen_m.weight[k], g[k], base[k])
        p = np.array([float(c[k]) for c in raw.electron]) + np.array([3.0, 2.0, 0.2, -0.1])
        q = np.array([float(c[k]) for c in raw.muon]) + np.array([0.2, 0.1])
        found.append((p, q, e, m, (events.direction[0][k], events.direction[1][k], places)))
    return found


def _electron(p, e, axis):
    out = np.zeros(25)
    _electron_terms(p, *axis, e, out)
    return out


def _muon(q, m):
    out = np.zeros(25)
    _muon_terms(q, 1.3, m, out)
    return out


def _slopes(terms_of, p, steps):
    moves = np.diag(steps)
    return np.array([(terms_of(p + move) - terms_of(p - move)) / (2 * move.sum()) for move in moves])


def test_gradient_is_the_derivative_of_the_deviance(channels):
    for p, q, e, m, axis in channels:
        numeric = _slopes(lambda p, e=e, axis=axis: _electron(p, e, axis), p, (0.05, 0.05, 5e-3, 5e-3))[:, 0]
        np.testing.assert_allclose(_electron(p, e, axis)[1:5], numeric, rtol=0.02, atol=0.3)
        numeric = _slopes(lambda q, m=m: _muon(q, m), q, (5e-3, 5e-3))[:, 0]
        np.testing.assert_allclose(_muon(q, m)[1:3], numeric, rtol=0.01, atol=0.1)


def test_hessian_is_the_derivative_of_the_gradient_where_all_is_signal(channels):
    # Without background and thresholds the Hessian is exact; with them, their own curvature is left out.
    rows, columns = np.tril_indices(4)
    for p, _, e, _, axis in channels:
        bare = e._replace(background=e.background * 0)
        terms = _electron(p, bare, axis)
        unit = np.sqrt(terms[5:15][[0, 2, 5, 9]])
        slopes = _slopes(lambda p, e=bare, axis=axis: _electron(p, e, axis), p, (0.05, 0.05, 0.01, 0.01))[:, 1:5]
        gap = (terms[15:25] - slopes[rows, columns]) / (unit[rows] * unit[columns])
        assert np.abs(gap).max() < 0.02
