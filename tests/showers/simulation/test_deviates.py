"""Random numbers of the compiled kernels: moments, distributions and independence of streams."""

import numba
import numpy as np
import pytest
from scipy import stats

from showers.simulation import deposits

N = 20_000
OFFSETS = deposits.stream_offsets(800)


@numba.njit
def _sample(kind: int, parameter: float, n: int, offsets: np.ndarray) -> np.ndarray:
    state = np.empty(1, dtype=np.uint64)
    values = np.empty(n)
    for k in range(n):
        deposits.start(state, np.uint64(k), offsets[k % len(offsets)])
        if kind == 0:
            values[k] = deposits.uniform(state)
        elif kind == 1:
            values[k] = deposits.normal(state)
        elif kind == 2:
            values[k] = deposits.exponential(state)
        elif kind == 3:
            values[k] = deposits.gamma(state, parameter)
        else:
            values[k] = deposits.poisson(state, parameter)
    return values


@pytest.mark.parametrize(
    ("kind", "parameter", "law"),
    [
        (0, 0.0, stats.uniform()),
        (1, 0.0, stats.norm()),
        (2, 0.0, stats.expon()),
        (3, 0.72, stats.gamma(0.72)),
        (3, 1.0, stats.gamma(1.0)),
        (3, 37.0, stats.gamma(37.0)),
    ],
)
def test_continuous_laws(kind: int, parameter: float, law: stats.rv_continuous) -> None:
    # The first number of 20,000 different streams: a bad hash would show here.
    assert stats.kstest(_sample(kind, parameter, N, OFFSETS), law.cdf).pvalue > 1e-3


@pytest.mark.parametrize("mean", [0.003, 0.7, 5.0, 11.9, 12.1, 60.0, 4e4])
def test_poisson(mean: float) -> None:
    counts = _sample(4, mean, N, OFFSETS)
    assert counts.mean() == pytest.approx(mean, abs=4.5 * np.sqrt(mean / N))
    law = stats.poisson(mean)
    edges = np.unique(law.ppf(np.linspace(0.05, 0.95, 10)))
    found = np.searchsorted(np.sort(counts), edges, side="right") / N
    assert found == pytest.approx(law.cdf(edges), abs=4.5 * 0.5 / np.sqrt(N))


def test_no_particles_without_expectation() -> None:
    assert not _sample(4, 0.0, 100, OFFSETS).any()


def test_streams_of_one_event_are_uncorrelated() -> None:
    @numba.njit
    def pairs(n: int, offsets: np.ndarray) -> np.ndarray:
        state = np.empty(1, dtype=np.uint64)
        values = np.empty((n, 2))
        for k in range(n):
            for stream in range(2):
                deposits.start(state, np.uint64(k), offsets[stream])
                values[k, stream] = deposits.uniform(state)
        return values

    correlation = np.corrcoef(pairs(N, OFFSETS).T)[0, 1]
    assert abs(correlation) < 4.5 / np.sqrt(N)
    assert len(np.unique(OFFSETS)) == len(OFFSETS)
