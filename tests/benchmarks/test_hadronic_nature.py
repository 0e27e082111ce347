"""Shares measured with a response: right where nature is what was simulated, wrong where it is not, errors as wide."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.physics.hadronic_nature import share_bias

pytestmark = pytest.mark.slow

CENTRES = np.arange(5.0) * 1.2


def _showers(n: int, shift: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return log-posteriors, (n, 5), of one measured number that a model shifts, and the classes."""
    labels = rng.integers(0, 5, n)
    x = CENTRES[labels] + shift + rng.standard_normal(n)
    log = -0.5 * (x[:, None] - CENTRES) ** 2
    return log - np.log(np.exp(log).sum(axis=1, keepdims=True)), labels


def test_biases_and_their_errors() -> None:
    rng = np.random.default_rng(1)
    prior = np.full(5, 0.2)
    pulls = []
    for _ in range(60):
        bias, error = share_bias(*_showers(2000, 0.0, rng), *_showers(4000, 0.0, rng), prior)
        pulls.append(bias / error)
    # 300 pulls that are correlated by fives and add up to zero: their spread is 1 within some 0.07.
    assert abs(np.std(pulls) - 1.0) < 0.35
    bias, error = share_bias(*_showers(20_000, 0.15, rng), *_showers(20_000, 0.0, rng), prior)
    assert np.abs(bias / error).max() > 5.0
    assert bias[0] < 0 < bias[4], "a shift towards the heavy ones"
