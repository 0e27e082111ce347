"""Q-factor, efficiency at a fixed survival, bins at one threshold, balanced accuracy: against plain counting."""

from __future__ import annotations

import numpy as np
import pytest

from scoring.metrics.classes import area, balanced_accuracy, bins_at_threshold, efficiency_at_survival, q_factor
from scoring.metrics.gamma import gamma_metrics, hadron_survival


@pytest.fixture
def events() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    labels = (rng.random(4000) > 0.2).astype(int)
    return labels, rng.normal(size=4000) + 2.0 * (labels == 0)


def test_q_factor_and_its_interval(events: tuple[np.ndarray, np.ndarray]) -> None:
    labels, scores = events
    found, survival = q_factor(labels, scores), hadron_survival(labels, scores)
    assert found.value == pytest.approx(survival.gamma_efficiency / np.sqrt(survival.hadron_survival))
    assert found.interval.low < found.value < found.interval.high
    perfect = np.where(labels == 0, 1.0, -1.0)
    assert np.isfinite(q_factor(labels, perfect).interval.high)


@pytest.mark.parametrize("survival", [0.0, 1e-3, 0.013, 0.2])
def test_efficiency_at_a_fixed_survival(events: tuple[np.ndarray, np.ndarray], survival: float) -> None:
    labels, scores = events
    gammas, hadrons = scores[labels == 0], scores[labels == 1]
    best = max(np.mean(gammas > t) for t in np.append(hadrons, np.inf) if np.mean(hadrons > t) <= survival)
    assert efficiency_at_survival(labels, scores, survival).value == best


def test_area_agrees_with_all_pairs(events: tuple[np.ndarray, np.ndarray]) -> None:
    labels, scores = events
    pairs = scores[labels == 0][:, None] > scores[labels == 1][None]
    found = area(labels, scores)
    assert found.value == pytest.approx(pairs.mean())
    assert found.interval.low < found.value < found.interval.high


def test_bins_at_one_threshold_add_up_to_the_whole(events: tuple[np.ndarray, np.ndarray]) -> None:
    labels, scores = events
    rng = np.random.default_rng(1)
    energy, zenith = rng.uniform(14, 18, 4000).astype(np.float32), rng.uniform(0, 30, 4000).astype(np.float32)
    whole = hadron_survival(labels, scores)
    found = bins_at_threshold(labels, scores, whole.threshold, energy=energy, zenith_deg=zenith)
    for rows in found.values():
        assert sum(row.n_surviving for row in rows) == whole.n_surviving
        assert sum(row.n_kept for row in rows) == round(whole.gamma_efficiency * whole.n_gamma)
        assert sum(row.n_gamma + row.n_hadron for row in rows) == 4000
    own = gamma_metrics(labels, scores, energy, zenith)["energy_binned"]
    assert {row.name: row.n_hadron for row in found["energy"]} == {name: row["n_hadron"] for name, row in own.items()}


def test_balanced_accuracy() -> None:
    matrix = np.array([[800, 200], [10, 90]])
    found = balanced_accuracy(matrix)
    assert found.value == pytest.approx((0.8 + 0.9) / 2)
    assert 0.7 < found.interval.low < found.value < found.interval.high <= 1
    rng = np.random.default_rng(2)
    drawn = [0.5 * (rng.binomial(1000, 0.8) / 1000 + rng.binomial(100, 0.9) / 100) for _ in range(4000)]
    assert (found.interval.high - found.interval.low) / 3.92 == pytest.approx(np.std(drawn), rel=0.1)
