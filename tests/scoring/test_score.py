"""What scoring adds to the public keys: intervals everywhere, thin bins named, valid JSON always."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from scoring.metrics.composition import composition_metrics, confusion_matrix, expected_fraction_error
from scoring.metrics.gamma import gamma_metrics
from scoring.score import score_arrays
from scoring.tasks.gamma import tie_warnings
from scoring.tasks.truth import Truth
from showers.schema import COMPOSITION, GAMMA


def truth_of(labels: np.ndarray, rng: np.random.Generator) -> Truth:
    n = len(labels)
    energy = rng.choice([14.5, 15.2, 15.7, 17.5], n, p=[0.2, 0.5, 0.28, 0.02]).astype(np.float32)
    return Truth(Path("nowhere"), labels.astype(np.int8), energy, rng.uniform(0, 30, n).astype(np.float32))


def contains(whole: Any, part: Any) -> bool:
    """Whether every key of ``part`` is in ``whole`` with the same value."""
    if isinstance(part, dict):
        return all(key in whole and contains(whole[key], part[key]) for key in part)
    return whole == part


def spans(content: Any) -> list[dict[str, float]]:
    """All intervals anywhere inside."""
    if isinstance(content, dict):
        own = [content] if {"low", "high", "level"} <= set(content) else []
        return own + [found for value in content.values() for found in spans(value)]
    return [found for value in content for found in spans(value)] if isinstance(content, list) else []


def test_composition_keeps_the_public_keys_and_adds_intervals() -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 5, 2000)
    guess = np.where(rng.random(2000) < 0.5, labels, rng.integers(0, 5, 2000))
    truth = truth_of(labels, rng)
    found = score_arrays(truth, guess, COMPOSITION)
    assert contains(found, composition_metrics(truth.labels, guess, truth.energy))
    json.dumps(found, allow_nan=False)
    assert all(0 <= span["low"] <= span["high"] <= 1 for span in spans(found))
    assert found["energy_binned"]["17.0-18.0"]["too_few_events"]
    assert not found["energy_binned"]["15.0-15.5"]["too_few_events"]
    for name, (low, high) in {"0-10": (0, 10), "20-30": (20, 30)}.items():
        inside = (truth.zenith_deg >= low) & (truth.zenith_deg < high)
        row = found["zenith_binned"][name]
        assert row["count"] == inside.sum()
        assert row["accuracy"] == np.mean(labels[inside] == guess[inside])
        assert row["expected_fraction_error"] == expected_fraction_error(
            confusion_matrix(labels[inside], guess[inside])
        )


def test_gamma_keeps_the_public_keys_and_adds_intervals() -> None:
    rng = np.random.default_rng(2)
    labels = (rng.random(3000) > 0.1).astype(int)
    scores = rng.normal(3.0 * (labels == 0), 1.0)
    truth = truth_of(labels, rng)
    found = score_arrays(truth, scores, GAMMA)
    assert contains(found, gamma_metrics(truth.labels, scores, truth.energy, truth.zenith_deg))
    json.dumps(found, allow_nan=False)
    rate = found["survival_rates"]["75%"]
    assert rate["interval"]["low"] <= rate["hadron_survival"] <= rate["interval"]["high"]
    wide, narrow = (rate[key]["high"] - rate[key]["low"] for key in ("interval", "interval_at_threshold"))
    assert wide > narrow
    assert found["energy_binned"]["17.0-18.0"]["too_few_events"]
    assert all("interval" in cell for row in found["energy_zenith_grid"].values() for cell in row.values())
    assert found["warnings"] == []


def test_without_intervals_only_the_public_keys_are_computed() -> None:
    rng = np.random.default_rng(3)
    labels = np.arange(50) % 5
    truth = truth_of(labels, rng)
    found = score_arrays(truth, labels, COMPOSITION, intervals=False)
    assert set(found) - set(composition_metrics(truth.labels, labels, truth.energy)) == {"n_events", "warnings"}


def test_ties_that_cost_nothing_are_not_warned_of() -> None:
    labels = np.repeat([0, 1], [100, 1000])
    assert tie_warnings(labels, np.where(labels == 0, 1.0, 0.0)) == []
    saturated = np.where(np.arange(1100) < 150, 1.0, 0.0)  # 50 hadrons share the gammas' score
    assert len(tie_warnings(labels, saturated)) == 5
    assert "50 hadrons" in tie_warnings(labels, saturated)[0]
