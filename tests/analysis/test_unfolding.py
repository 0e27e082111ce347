"""The truth comes back, and its uncertainty covers."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.spectra.labels import unfold, unfold_composition
from runtime.errors import InputError

CONFUSION = np.array(
    [
        [0.64, 0.23, 0.10, 0.02, 0.01],
        [0.30, 0.35, 0.25, 0.08, 0.02],
        [0.05, 0.22, 0.39, 0.25, 0.09],
        [0.01, 0.04, 0.23, 0.39, 0.33],
        [0.00, 0.01, 0.04, 0.23, 0.72],
    ]
)


def _decided(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return (rng.random((len(labels), 1)) > np.cumsum(CONFUSION[labels], axis=1)).sum(axis=1).clip(max=4)


def test_fractions_come_back_with_errors_that_cover() -> None:
    truth = np.array([0.1, 0.2, 0.4, 0.2, 0.1])
    pulls = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        simulated = rng.integers(0, 5, 200_000)
        response = np.zeros((5, 5))
        np.add.at(response, (simulated, _decided(simulated, rng)), 1)
        sample = rng.choice(5, 50_000, p=truth)
        found = unfold_composition(_decided(sample, rng), response, seed=seed)
        pulls.append((found.fractions - truth) / found.fraction_errors)
    pulls = np.array(pulls)
    assert np.abs(pulls.mean(axis=0)).max() < 0.5, "unbiased"
    assert 0.8 < pulls.std() < 1.25, "errors are neither boasting nor timid"


def test_perfect_response_returns_the_counts() -> None:
    measured = np.array([10.0, 200.0, 0.0, 35.0])
    found = unfold(measured, 1e6 * np.eye(4))
    np.testing.assert_allclose(found.counts, measured, atol=1e-2)
    np.testing.assert_allclose(found.errors, np.sqrt(measured), rtol=0.15, atol=0.3)


def test_steep_spectrum_with_inefficiency_in_few_iterations() -> None:
    rng = np.random.default_rng(3)
    truth = 1e5 * 10.0 ** (-0.5 * np.arange(8))
    smear = np.exp(-0.5 * ((np.arange(8)[:, None] - np.arange(8)) / 0.6) ** 2)
    smear *= np.linspace(0.5, 0.95, 8)[:, None] / smear.sum(axis=1, keepdims=True)
    generated = np.full(8, 200_000)
    response = rng.binomial(200_000, smear)
    measured = rng.poisson(truth @ smear)
    found = unfold(measured, response, generated=generated, prior=10.0 ** (-0.4 * np.arange(8)), iterations=6)
    assert found.iterations == 6
    assert (np.abs(found.counts / truth - 1) < 0.15)[:6].all()
    assert found.counts.sum() == pytest.approx(truth.sum(), rel=0.02), "efficiency is corrected for"
    # Measured directly, the steepness of the spectrum and the inefficiency would mislead by far more.
    assert np.abs(measured / truth - 1)[:4].min() > 0.15


def test_a_bin_without_simulation_is_refused() -> None:
    with pytest.raises(InputError, match="true bin 1"):
        unfold(np.ones(2), np.array([[5, 5], [0, 0]]))
    with pytest.raises(InputError, match="measured bins"):
        unfold(np.ones(3), np.eye(2))
