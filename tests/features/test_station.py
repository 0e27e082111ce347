"""The station model is written once: arrays, compiled code and C give what the formulas give as they stand.

What the compiled fit minimises has the derivatives that it claims.
"""

from __future__ import annotations

import ast
import ctypes
import inspect
import shutil
import subprocess

import array_api_strict
import numpy as np
import pytest
from numba import njit

from showerstack.features.device import namespace
from showerstack.features.lateral import native, station, translate
from showerstack.features.lateral.compiled import (
    electron_hessian,
    electron_terms,
    expect_electrons,
    expect_muons,
    freeze_electron,
    freeze_muon,
    load,
    load_muons,
    muon_terms,
)
from showerstack.features.lateral.fit import fit_fused, kernel_source
from showerstack.features.lateral.native import vexp2, vlog2
from showerstack.features.lateral.planes import planes_of
from showerstack.features.stations import on_cpu
from showerstack.showers.array import KASCADE
from showerstack.showers.response import PUBLISHED

NAMES = [node.name for node in translate.formulas()]
N = 40


def _arguments(name):
    """Return (n, arguments) values that make sense for any of the formulas, and whether ``res`` comes first."""
    names = list(inspect.signature(getattr(station, name)).parameters)
    rng = np.random.default_rng(len(name))
    ranges = {"u": (-0.4, 0.4), "v": (-0.4, 0.4), "dx": (-90, 90), "dy": (-90, 90), "r": (0.6, 150), "floor": (0, 1)}
    ranges |= {"level": (-3, 3), "age": (0.5, 1.5), "muon_age": (0.9, 1.7), "cosine": (0.7, 1), "base": (-2, 2)}
    values = np.stack([rng.uniform(*ranges.get(n, (0.05, 3.0)), N) for n in names if n != "res"], axis=1)
    if "floor" in names:
        column = [n for n in names if n != "res"].index("floor")
        values[:, column] = np.where(values[:, column] > 0.5, 0.0, -np.inf)
    return values.astype(np.float32), names[0] == "res"


def _expected(name, values, with_response):
    head = (PUBLISHED,) if with_response else ()
    results = [getattr(station, name)(*head, *map(float, row)) for row in values]
    return np.array([result if isinstance(result, tuple) else (result,) for result in results])


def _assert_close(result, expected):
    scale = np.abs(expected).max(axis=0) + 1e-3
    assert (np.abs(result - expected) / scale).max() < 2e-5


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("xp", [namespace("cpu"), array_api_strict])
def test_arrays(name, xp):
    values, with_response = _arguments(name)
    head = (PUBLISHED,) if with_response else ()
    result = getattr(translate.on_arrays(xp), name)(*head, *(xp.asarray(np.ascontiguousarray(c)) for c in values.T))
    results = result if isinstance(result, tuple) else (result,)
    columns = [np.broadcast_to(np.asarray(column), N) for column in results]
    assert all(column.dtype in (np.float32, np.float64) for column in columns)
    _assert_close(np.stack(columns, axis=1), _expected(name, values, with_response))


@pytest.mark.parametrize("name", NAMES)
def test_compiled(name):
    values, with_response = _arguments(name)
    count = values.shape[1]
    inner = getattr(native.compiled(), name)
    given = ", ".join([*(["PUBLISHED"] if with_response else []), *(f"row[{k}]" for k in range(count))])
    space = {"inner": inner, "PUBLISHED": PUBLISHED}
    exec(f"def call(row):\n    return inner({given})", space)
    call = njit(error_model="numpy")(space["call"])
    result = np.array([np.atleast_1d(call(row)) for row in values])
    assert result.shape[0] == N
    _assert_close(result, _expected(name, values, with_response))


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The C++ of the GPU kernel, with a C function that calls each formula."""
    callers = []
    for name in NAMES:
        values, with_response = _arguments(name)
        outputs = _expected(name, values[:1], with_response).shape[1]
        given = ", ".join(f"in[{k}]" for k in range(values.shape[1]))
        callers.append(f'extern "C" void call_{name}(const float *in, float *out) {{')
        callers.append(f"    const auto result = {name}({given});")
        callers.append(f"    for (int k = 0; k < {outputs}; k++) out[k] = ((const float *)&result)[k];\n}}")
    folder = tmp_path_factory.mktemp("station")
    source, built = folder / "station.cpp", folder / "station.so"
    source.write_text("\n".join([kernel_source(PUBLISHED).text, *callers]))
    subprocess.run(["g++", "-O1", "-std=c++17", "-shared", "-fPIC", "-o", built, source], check=True)
    return ctypes.CDLL(str(built))


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here")
@pytest.mark.parametrize("name", NAMES)
def test_c(name, library):
    values, with_response = _arguments(name)
    expected = _expected(name, values, with_response)
    result = np.zeros(expected.shape, np.float32)
    for row, out in zip(values, result, strict=True):
        getattr(library, f"call_{name}")(row.ctypes.data_as(ctypes.c_void_p), out.ctypes.data_as(ctypes.c_void_p))
    _assert_close(result, expected)


def test_what_cannot_be_translated_is_refused():
    with pytest.raises(TypeError, match="is not part of the station model's language"):
        translate._in_c(ast.parse("x ** 2", mode="eval").body)


@njit(error_model="numpy")
def _fill(x, logarithms, powers):
    for k in range(x.size):
        logarithms[k] = vlog2(x[k])
    for k in range(x.size):
        powers[k] = vexp2(x[k])


def test_binary_logarithm_and_exponential():
    x = np.concatenate([np.geomspace(1e-37, 126, 20_001), np.linspace(0.7, 1.5, 20_001)]).astype(np.float32)
    logarithms, powers, negative = np.empty_like(x), np.empty_like(x), np.empty_like(x)
    _fill(-x, logarithms, negative)
    _fill(x, logarithms, powers)
    exact = np.log2(x.astype(np.float64))
    assert np.all(np.abs(logarithms - exact) <= 1.5e-6 * np.abs(exact))
    np.testing.assert_allclose(powers, np.exp2(x.astype(np.float64)), rtol=2.5e-7)
    np.testing.assert_allclose(negative, np.exp2(np.maximum(-x.astype(np.float64), -86.0)), rtol=2.5e-7)


def test_integer_parts_stay_in_vectors_of_32_bits():
    x = np.ones(1, np.float32)
    _fill(x, x.copy(), x.copy())
    (text,) = _fill.inspect_llvm().values()
    assert "x i32>" in text
    assert "x i64>" not in text


XP = namespace("cpu")
N_POINTS = 30


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
    events = drawn.events(XP, slice(0, N_POINTS))
    raw, here = fit_fused(events), events.stations
    where = np.flatnonzero(here.has_muon)
    result = []
    for k in range(N_POINTS):
        z = planes_of(here.x_m, here.y_m, here.electron_area_m2, here.muon_area_m2, where)
        p, q = (np.array([float(c[k]) for c in parameters]) for parameters in (raw.electron, raw.muon))
        z["p"], z["q"] = p, q
        axis = events.direction[0][k], events.direction[1][k]
        _freeze(events.electron_mev[k], events.muon_mev[k], where, events.cos_zenith[k], *axis, z)
        result.append((p + np.array([3.0, 2.0, 0.2, -0.1]), q + np.array([0.2, 0.1]), z, axis))
    return result


def test_arrays_of_up_to_256_cells_share_machine_code():
    arrays = [KASCADE, KASCADE.without([20, 105], [3, 200]), KASCADE.without((), np.arange(KASCADE.n_cells))]
    geometry = [[a.x_m, a.y_m, a.electron_area_m2, a.muon_area_m2, a.has_muon] for a in arrays]
    geometry = [list(map(np.ravel, given)) for given in geometry]
    geometry.append([values[20:33] for values in geometry[0]])
    for *given, has_muon in geometry:
        lateral, sums = planes_of(*given, np.flatnonzero(has_muon)), on_cpu.planes_of(*given)
        assert lateral.dtype == planes_of(*geometry[0][:4], np.flatnonzero(geometry[0][4])).dtype
        assert sums.dtype == on_cpu.planes_of(*geometry[0][:4]).dtype
        for record, name, area_m2 in ((lateral, "area_m2", given[2]), (sums, "area_m_m2", given[3])):
            assert record[name].sum() == pytest.approx(area_m2.sum())
        assert np.count_nonzero(lateral["m_area_m2"]) == has_muon.sum()


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


@pytest.mark.slow
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


@pytest.mark.parametrize("r_m", [3.0, 12.0, 80.0])
def test_curvature_of_the_electron_signal_is_that_of_differences(r_m):
    """Second derivatives of its logarithm by core x, y and age, near the axis and far from it."""
    u, v, age, step = 0.2, -0.3, 1.1, 1e-3

    def signal(x, y, s):
        return station.electron_signal(PUBLISHED, 0.6 * r_m - x, 0.8 * r_m - y, u, v, 1.3, 0.7, s)

    _, by_x, by_y, by_age = signal(0.0, 0.0, age)
    moves = step * np.eye(3)
    at = np.array([0.0, 0.0, age])
    numeric = [(np.log(signal(*(at + m))[0]) - np.log(signal(*(at - m))[0])) / (2 * step) for m in moves]
    np.testing.assert_allclose([by_x, by_y, by_age], numeric, rtol=1e-5, atol=1e-8)
    slopes = np.array([np.subtract(signal(*(at + m))[1:], signal(*(at - m))[1:]) / (2 * step) for m in moves])
    numeric = [slopes[0, 0], slopes[0, 1], slopes[1, 1], slopes[2, 0], slopes[2, 1]]
    curvature = station.electron_curvature(PUBLISHED, 0.6 * r_m, 0.8 * r_m, u, v, age, 1.7)
    np.testing.assert_allclose(curvature, 1.7 * np.array(numeric), rtol=1e-5, atol=1e-8)


def test_the_muon_age_that_is_expected_by_hand():
    level = 4.8 / station.LG_E - station.MUON_LEVEL_TO_LN_N
    expected = PUBLISHED.muon_age_mean + 0.3 * PUBLISHED.muon_age_size + 0.1 * PUBLISHED.muon_age_inclination
    assert station.muon_age_mean(PUBLISHED, level, 1 / 1.135) == pytest.approx(expected)
