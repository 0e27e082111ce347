"""Tail probabilities of station signals, against the sum over the number of deposits and against mpmath."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from scipy.special import gammaincc, gammaln, log_ndtr

from showerstack.features.device import namespace
from showerstack.features.stations.compiled import root_lg_tail, tail_place
from showerstack.features.stations.tail import tail_table
from showerstack.showers.response import PUBLISHED
from tests.features.reference import minus_lg_tail

DISPERSIONS = (PUBLISHED.electron_dispersion, PUBLISHED.muon_dispersion)
RELATIVE, ABSOLUTE = 1e-3, 1e-4


def _exact(signal, mean, dispersion):
    """Return -lg P(S >= signal) for deposits of mean 1, by the sum over their number in double precision."""
    n, shape = np.arange(1.0, 900.0 + 2.0 * mean), 1.0 / (dispersion - 1.0)
    poisson = np.exp(n * np.log(mean) - mean - gammaln(n + 1.0))
    return -np.log10(gammaincc(n * shape, shape * signal[:, None]) @ poisson)


def _kernel(signal, mean, variance, dispersion):
    table = tail_table(dispersion).ravel()
    numbers = zip(*(values.astype(np.float32) for values in (signal, mean, variance)), strict=True)
    places = [tail_place(*three, np.float32(dispersion)) for three in numbers]
    return np.array([root_lg_tail(*place, table) ** 2 for place in places])


@pytest.mark.parametrize("dispersion", DISPERSIONS)
@pytest.mark.parametrize("deposit", [0.6, 1.0, 1.4])
def test_whole_range_against_the_sum(backend, dispersion, deposit):
    _, xp = backend
    for mean in np.geomspace(0.008, 900.0, 40):
        root = np.sqrt(mean) + np.linspace(-3.0, 11.0, 57)
        signal = root[root > 0.2] ** 2
        expected = _exact(signal, mean, dispersion)
        signal, expected = signal[expected < 55.0] * deposit, expected[expected < 55.0]
        arguments = [signal, np.full_like(signal, mean * deposit), np.full_like(signal, mean * dispersion * deposit**2)]
        values = np.asarray(minus_lg_tail(*(xp.asarray(a.astype(np.float32)) for a in arguments), dispersion, xp))
        np.testing.assert_allclose(values, expected, rtol=RELATIVE, atol=ABSOLUTE, err_msg=f"mean {mean}")
        np.testing.assert_allclose(_kernel(*arguments, dispersion), values, rtol=RELATIVE, atol=ABSOLUTE)


@pytest.mark.slow
def test_against_mpmath():
    for mean, signal, dispersion in ((0.01, 1.0, 1.17), (0.3, 4.0, 2.1), (12.0, 40.0, 2.1), (150.0, 260.0, 1.17)):
        shape = mpmath.mpf(1) / (mpmath.mpf(dispersion) - 1)
        terms = (
            mpmath.exp(n * mpmath.log(mean) - mean - mpmath.loggamma(n + 1))
            * mpmath.gammainc(n * shape, shape * signal, regularized=True)
            for n in range(1, int(400 + 2 * mean))
        )
        expected = float(-mpmath.log10(mpmath.fsum(terms)))
        one = np.ones(1, np.float32)
        arguments = (one * signal, one * mean, one * (mean * dispersion), dispersion)
        assert minus_lg_tail(*arguments, namespace("cpu"))[0] == pytest.approx(expected, rel=RELATIVE)


def test_one_muon_where_none_is_expected():
    # Wilson and Hilferty's cube root, far outside its range there, gave 6.2.
    one = np.ones(1, np.float32)
    assert minus_lg_tail(one, one * 0.01, one * 0.0117, 1.17, namespace("cpu"))[0] == pytest.approx(2.351, abs=3e-3)


def test_normal_tail_of_bright_stations():
    # The logistic approximation gave 10.8 instead of 9.0 at six standard deviations.
    mean = np.full(1, 4_000.0, np.float32)
    signal = mean + 6.0 * np.sqrt(1.17 * mean)
    normal = -log_ndtr(-6.0) / np.log(10.0)
    assert minus_lg_tail(signal, mean, 1.17 * mean, 1.17, namespace("cpu"))[0] == pytest.approx(normal, rel=0.06)


def test_ends():
    xp = namespace("cpu")
    visited = np.array([0.0, 1e-3, 5_000.0, 3_000.0], np.float32)
    mean = np.array([0.5, 900.0, 0.01, 3_000.0], np.float32)
    result = minus_lg_tail(visited, mean, 2.1 * mean, 2.1, xp)
    np.testing.assert_allclose(result[[0, 1, 3]], [0.0, 0.0, 0.305], atol=5e-3)
    assert result[2] == pytest.approx(60.0, abs=0.3)
