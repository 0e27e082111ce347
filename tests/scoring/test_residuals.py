"""Bias and resolution of estimates: known values, honest intervals, unusable estimates refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from runtime.errors import InputError
from scoring.metrics.residuals import paired_resolution, residual_metrics, resolution, resolution_interval
from scoring.score import score_arrays, score_file
from scoring.tasks.base import scoring_of
from scoring.tasks.truth import Truth
from showers.schema import ENERGY, SCALARS_FILE


def truth_of(n: int, rng: np.random.Generator) -> Truth:
    energy = rng.uniform(14.5, 16.5, n).astype(np.float32)
    reconstructed = (energy + rng.normal(0.1, 0.2, n)).astype(np.float32)
    zenith_deg = rng.uniform(0, 30, n).astype(np.float32)
    return Truth(Path("nowhere"), energy, reconstructed, zenith_deg, reference=reconstructed)


def test_a_gaussian_has_its_width() -> None:
    residuals = np.random.default_rng(1).normal(0.05, 0.1, 200_000)
    found = residual_metrics(residuals)
    assert found["bias"] == pytest.approx(0.05, abs=0.001)
    assert found["resolution"] == pytest.approx(0.1, abs=0.001)
    assert found["rms"] == pytest.approx(np.hypot(0.05, 0.1), abs=0.001)
    far = np.where(np.arange(len(residuals)) % 100 == 0, 5.0, residuals)
    assert resolution(far) == pytest.approx(0.1, rel=0.03), "one per cent of outliers leaves the central 68 % alone"


@pytest.mark.parametrize("n", [150, 1200])
def test_intervals_cover(n: int) -> None:
    rng = np.random.default_rng(2)
    inside = []
    for _ in range(100):
        found = residual_metrics(rng.normal(0.0, 1.0, n))["intervals"]
        inside.append([found[name]["low"] < true < found[name]["high"] for name, true in TRUE.items()])
    share = np.mean(inside, axis=0)
    assert (share > 0.87).all(), dict(zip(TRUE, share, strict=True))


TRUE = {"bias": 0.0, "resolution": 1.0, "rms": 1.0, "mean_absolute_error": np.sqrt(2 / np.pi)}


def test_paired_differences_are_sharper_than_the_intervals() -> None:
    rng = np.random.default_rng(3)
    common = rng.normal(0, 0.1, 4000)
    a, b = common + rng.normal(0, 0.02, 4000), common + rng.normal(0, 0.04, 4000)
    found = paired_resolution(a, b)
    assert found.interval.high < 0
    widths = [single.high - single.low for single in map(resolution_interval, (a, b))]
    assert found.interval.high - found.interval.low < 0.7 * np.hypot(*widths)
    assert paired_resolution(a, a).p_value == 1.0


def test_metrics_by_true_energy_and_of_the_reconstruction() -> None:
    rng = np.random.default_rng(4)
    truth = truth_of(4000, rng)
    estimate = truth.labels + np.where(truth.labels < 15.5, 0.2, 0.0) + rng.normal(0, 0.05, 4000)
    found = score_arrays(truth, estimate, ENERGY)
    json.dumps(found, allow_nan=False)
    assert found["true_binned"]["15 to 15.25"]["bias"] == pytest.approx(0.2, abs=0.02)
    assert found["true_binned"]["16 to 16.5"]["bias"] == pytest.approx(0.0, abs=0.02)
    assert sum(row["count"] for row in found["true_binned"].values()) == 4000
    assert found["reconstruction"]["resolution"] == pytest.approx(0.2, abs=0.02)
    assert found["minus_reconstruction"]["interval"]["high"] < 0
    value, interval = scoring_of(ENERGY).headline(found)
    assert interval is not None
    assert interval.low < value < interval.high
    bare = score_arrays(truth, estimate, ENERGY, intervals=False)
    assert "intervals" not in str(bare)
    assert bare["resolution"] == found["resolution"]


def test_thin_bins_are_named() -> None:
    truth = truth_of(60, np.random.default_rng(5))
    found = score_arrays(truth, truth.labels + 0.1, ENERGY)
    assert all(row["too_few_events"] for row in found["true_binned"].values())


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (np.arange(40), "expected real numbers"),
        (np.where(np.arange(40) == 7, np.nan, 15.0), "first at index 7"),
        (np.full(39, 15.0), "39 events, but the test set has 40"),
    ],
    ids=["whole numbers", "not a number", "one too few"],
)
def test_unusable_estimates_are_refused(output: np.ndarray, message: str, tmp_path: Path) -> None:
    folder = tmp_path / "energy_test"
    folder.mkdir()
    np.save(folder / "labels_energy.npy", np.linspace(14.5, 16, 40, dtype=np.float32))
    np.save(folder / SCALARS_FILE, np.full((40, 5), 15.0, np.float16))
    np.savez(tmp_path / "p.npz", lg_energy=output)
    with pytest.raises(InputError, match=message):
        score_file(tmp_path / "p.npz", tmp_path, ENERGY)
    np.savez(tmp_path / "p.npz", lg_energy=np.linspace(14.6, 16.1, 40))
    scored = score_file(tmp_path / "p.npz", tmp_path, ENERGY)
    assert scored["bias"] == pytest.approx(0.1, abs=1e-3)
    assert "minus_reconstruction" in scored, "the reconstructed energy is judged beside the estimates"
    np.save(folder / "labels_energy.npy", np.arange(40, dtype=np.int8))
    with pytest.raises(InputError, match=r"int8, expected \(N,\) float32"):
        score_file(tmp_path / "p.npz", tmp_path, ENERGY)
