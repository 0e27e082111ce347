"""What scoring adds to the public keys: intervals everywhere, thin bins named, valid JSON always.

Q-factor, efficiency at a fixed survival, bins at one threshold and balanced accuracy are held against plain counting.
Bias and resolution of estimates have known values and honest intervals; unusable estimates are refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from showerstack.runtime.errors import InputError
from showerstack.scoring.metrics.classes import (
    balanced_accuracy,
    bins_at_threshold,
    efficiency_at_survival,
    q_factor,
)
from showerstack.scoring.metrics.composition import (
    composition_metrics,
    confusion_matrix,
    expected_fraction_error,
    share_errors,
)
from showerstack.scoring.metrics.gamma import gamma_area, gamma_metrics, hadron_survival
from showerstack.scoring.metrics.intervals import clopper_pearson
from showerstack.scoring.metrics.residuals import (
    paired_resolution,
    residual_metrics,
    resolution,
    resolution_interval,
    shown_median,
)
from showerstack.scoring.score import score_arrays, score_file
from showerstack.scoring.tasks import scoring_of
from showerstack.scoring.tasks.gamma import sense_warnings, tie_warnings
from showerstack.scoring.tasks.truth import Truth, read_truth
from showerstack.showers.schema import COMPOSITION, ENERGY, GAMMA, SCALARS_FILE


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
        return own + [result for value in content.values() for result in spans(value)]
    return [result for value in content for result in spans(value)] if isinstance(content, list) else []


def test_composition_keeps_the_public_keys_and_adds_intervals() -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 5, 2000)
    guess = np.where(rng.random(2000) < 0.5, labels, rng.integers(0, 5, 2000))
    truth = truth_of(labels, rng)
    result = score_arrays(truth, guess, COMPOSITION)
    assert contains(result, composition_metrics(truth.labels, guess, truth.energy))
    json.dumps(result, allow_nan=False)
    assert all(0 <= span["low"] <= span["high"] <= 1 for span in spans(result))
    assert result["energy_binned"]["17.0-18.0"]["too_few_events"]
    assert not result["energy_binned"]["15.0-15.5"]["too_few_events"]
    for name, (low, high) in {"0-10": (0, 10), "20-30": (20, 30)}.items():
        inside = (truth.zenith_deg >= low) & (truth.zenith_deg < high)
        row = result["zenith_binned"][name]
        assert row["count"] == inside.sum()
        assert row["accuracy"] == np.mean(labels[inside] == guess[inside])
        assert row["expected_fraction_error"] == expected_fraction_error(
            confusion_matrix(labels[inside], guess[inside])
        )


def test_gamma_keeps_the_public_keys_and_adds_intervals() -> None:
    rng = np.random.default_rng(2)
    labels = (rng.random(3000) > 0.1).astype(int)
    scores = rng.normal(1.5 * (labels == 0), 1.0)
    truth = truth_of(labels, rng)
    result = score_arrays(truth, scores, GAMMA)
    assert contains(result, gamma_metrics(truth.labels, scores, truth.energy, truth.zenith_deg))
    json.dumps(result, allow_nan=False)
    rate = result["survival_rates"]["75%"]
    assert rate["interval"]["low"] <= rate["hadron_survival"] <= rate["interval"]["high"]
    wide, narrow = (rate[key]["high"] - rate[key]["low"] for key in ("interval", "interval_at_threshold"))
    assert wide > narrow
    assert result["energy_binned"]["17.0-18.0"]["too_few_events"]
    assert all("interval" in cell for row in result["energy_zenith_grid"].values() for cell in row.values())
    assert result["warnings"] == []


def test_without_intervals_only_the_public_keys_are_computed() -> None:
    rng = np.random.default_rng(3)
    labels = np.arange(50) % 5
    truth = truth_of(labels, rng)
    result = score_arrays(truth, labels, COMPOSITION, intervals=False)
    assert set(result) - set(composition_metrics(truth.labels, labels, truth.energy)) == {"n_events", "warnings"}


def test_scores_and_labels_of_another_sense_are_told() -> None:
    rng = np.random.default_rng(2)
    labels = (rng.random(3000) > 0.1).astype(int)
    scores, truth = rng.normal(1.0 * (labels == 0), 1.0), truth_of(labels, rng)
    (said,) = sense_warnings(truth, -scores)
    assert "give them with the other sign" in said
    assert score_arrays(truth, -scores, GAMMA)["warnings"] == [said]
    five = np.arange(500) % 5
    truth = truth_of(five, rng)
    (said,) = score_arrays(truth, (five + 1) % 5, COMPOSITION, intervals=False)["warnings"]
    assert said.startswith("0.0 % of the labels are right, by chance 20 % would be")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_said_of_scores_that_know_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, 400)
    assert sense_warnings(truth_of(labels, rng), rng.normal(size=400)) == []
    five = rng.integers(0, 5, 400)
    guessed = rng.integers(0, 5, 400)
    assert score_arrays(truth_of(five, rng), guessed, COMPOSITION, intervals=False)["warnings"] == []


def test_ties_that_cost_nothing_are_not_warned_of() -> None:
    labels = np.repeat([0, 1], [100, 1000])
    assert tie_warnings(labels, np.where(labels == 0, 1.0, 0.0)) == []
    saturated = np.where(np.arange(1100) < 150, 1.0, 0.0)  # 50 hadrons share the gammas' score
    assert len(tie_warnings(labels, saturated)) == 5
    assert "50 hadrons" in tie_warnings(labels, saturated)[0]


def test_intervals_of_gamma_are_those_of_its_counts() -> None:
    # 40 gammas, of which 32 score above one half; 60 hadrons, of which 3 do.
    scores = np.concatenate(
        [np.linspace(0.6, 0.9, 32), np.linspace(0.1, 0.4, 8), [0.8, 0.7, 0.55], np.linspace(0, 0.4, 57)]
    )
    labels = np.repeat([0, 1], [40, 60]).astype(np.int8)
    truth = Truth(Path("nowhere"), labels, np.full(100, 15.2, np.float32), np.full(100, 12.0, np.float32))
    metrics = scoring_of(GAMMA).metrics(truth, scores, intervals=True)
    assert metrics["intervals"]["accuracy_at_0.5"] == clopper_pearson(32 + 57, 100).as_dict()
    for share, n_surviving in (("75%", 2), ("50%", 1)):
        result = metrics["survival_rates"][share]
        assert result["interval_at_threshold"] == clopper_pearson(n_surviving, 60).as_dict()
        assert result["interval"]["low"] <= n_surviving / 60 <= result["interval"]["high"]
    assert metrics["intervals"]["key_metric"] == metrics["survival_rates"]["75%"]["interval"]
    binned = [result for result in metrics["energy_binned"].values() if result]
    assert [result["too_few_events"] for result in binned] == [False]
    assert binned[0]["interval_at_threshold"] == clopper_pearson(2, 60).as_dict()


@pytest.mark.parametrize("kind", [0, 1], ids=["gammas", "hadrons"])
def test_one_kind_alone_has_no_survival(kind: int) -> None:
    with pytest.raises(InputError, match="needs gammas and hadrons"):
        hadron_survival(np.full(5, kind), np.linspace(0, 1, 5))


def test_precision_and_recall_of_one_event_a_class() -> None:
    # The fifth is taken for the fourth: one of two claims is right there, and the fifth is never claimed.
    per_class = composition_metrics(np.arange(5), np.array([0, 1, 2, 3, 3]), np.full(5, 15.2, np.float32))["per_class"]
    values = [[one["precision"], one["recall"], one["f1"], one["support"]] for one in per_class.values()]
    np.testing.assert_allclose(values, [[1, 1, 1, 1]] * 3 + [[0.5, 1, 2 / 3, 1], [0, 0, 0, 1]])


@pytest.fixture
def events() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    labels = (rng.random(4000) > 0.2).astype(int)
    return labels, rng.normal(size=4000) + 2.0 * (labels == 0)


def test_q_factor_and_its_interval(events: tuple[np.ndarray, np.ndarray]) -> None:
    labels, scores = events
    result, survival = q_factor(labels, scores), hadron_survival(labels, scores)
    assert result.value == pytest.approx(survival.gamma_efficiency / np.sqrt(survival.hadron_survival))
    assert result.interval.low < result.value < result.interval.high
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
    result = gamma_area(labels, scores)
    assert result.value == pytest.approx(pairs.mean())
    assert result.interval.low < result.value < result.interval.high


def test_bins_at_one_threshold_add_up_to_the_whole(events: tuple[np.ndarray, np.ndarray]) -> None:
    labels, scores = events
    rng = np.random.default_rng(1)
    energy, zenith = rng.uniform(14, 18, 4000).astype(np.float32), rng.uniform(0, 30, 4000).astype(np.float32)
    whole = hadron_survival(labels, scores)
    result = bins_at_threshold(labels, scores, whole.threshold, energy=energy, zenith_deg=zenith)
    for rows in result.values():
        assert sum(row.n_surviving for row in rows) == whole.n_surviving
        assert sum(row.n_kept for row in rows) == round(whole.gamma_efficiency * whole.n_gamma)
        assert sum(row.n_gamma + row.n_hadron for row in rows) == 4000
    own = gamma_metrics(labels, scores, energy, zenith)["energy_binned"]
    assert {row.name: row.n_hadron for row in result["energy"]} == {name: row["n_hadron"] for name, row in own.items()}


def test_balanced_accuracy() -> None:
    matrix = np.array([[800, 200], [10, 90]])
    result = balanced_accuracy(matrix)
    assert result.value == pytest.approx((0.8 + 0.9) / 2)
    assert 0.7 < result.interval.low < result.value < result.interval.high <= 1
    # One event more on either side: 9 of 10 for a class without an error, 6 of 12 for the other.
    few = balanced_accuracy(np.array([[8, 0], [5, 5]]))
    assert few.value - few.interval.low == pytest.approx(1.959964 * np.sqrt(0.09 / 8 + 0.25 / 10) / 2)
    rng = np.random.default_rng(2)
    drawn = [0.5 * (rng.binomial(1000, 0.8) / 1000 + rng.binomial(100, 0.9) / 100) for _ in range(4000)]
    assert (result.interval.high - result.interval.low) / 3.92 == pytest.approx(np.std(drawn), rel=0.1)


def targets_of(n: int, rng: np.random.Generator) -> Truth:
    energy = rng.uniform(14.5, 16.5, n).astype(np.float32)
    reconstructed = (energy + rng.normal(0.1, 0.2, n)).astype(np.float32)
    zenith_deg = rng.uniform(0, 30, n).astype(np.float32)
    return Truth(Path("nowhere"), energy, reconstructed, zenith_deg, reference=reconstructed)


def test_a_gaussian_has_its_width() -> None:
    residuals = np.random.default_rng(1).normal(0.05, 0.1, 200_000)
    result = residual_metrics(residuals)
    assert result["bias"] == pytest.approx(0.05, abs=0.0015)
    assert result["resolution"] == pytest.approx(0.1, abs=0.001)
    assert result["rms"] == pytest.approx(np.hypot(0.05, 0.1), abs=0.001)
    far = np.where(np.arange(len(residuals)) % 100 == 0, 5.0, residuals)
    assert resolution(far) == pytest.approx(0.1, rel=0.03), "one per cent of outliers leaves the central 68 % alone"


@pytest.mark.slow
@pytest.mark.parametrize("n", [150, 1200])
def test_intervals_cover(n: int) -> None:
    rng = np.random.default_rng(2)
    inside = []
    for _ in range(100):
        intervals = residual_metrics(rng.normal(0.0, 1.0, n))["intervals"]
        inside.append([intervals[name]["low"] < true < intervals[name]["high"] for name, true in TRUE.items()])
    share = np.mean(inside, axis=0)
    assert (share > 0.79).all(), dict(zip(TRUE, share, strict=True))


@pytest.mark.slow
def test_rare_events_count_by_their_weight() -> None:
    rng = np.random.default_rng(8)
    inside, widths = [], []
    for _ in range(40):
        # As many rare events as others, each worth a thousandth, five times as wide and off by 3.
        rare = np.arange(1000) % 2 == 1
        residuals = np.where(rare, rng.normal(3.0, 5.0, 1000), rng.normal(0.0, 1.0, 1000))
        weights = np.where(rare, 1e-3, 1.0) * rng.uniform(0.5, 1.5, 1000)
        result = residual_metrics(residuals, weights)
        intervals = result["intervals"]
        inside.append([intervals[name]["low"] < true < intervals[name]["high"] for name, true in TRUE.items()])
        widths.append([result["resolution"], residual_metrics(residuals)["resolution"]])
    assert (np.mean(inside, axis=0) > 0.75).all()
    assert np.mean(widths, axis=0) == pytest.approx([1.0, 3.5], rel=0.1), "without weights the rare ones rule"
    alike = np.random.default_rng(9).normal(0.0, 1.0, 4000)
    equal, plain = (residual_metrics(alike, w) for w in (np.full(4000, 0.7), None))
    for name in TRUE:
        assert equal[name] == pytest.approx(plain[name], abs=3e-3)
        widths = [one["intervals"][name]["high"] - one["intervals"][name]["low"] for one in (equal, plain)]
        assert widths[0] == pytest.approx(widths[1], rel=0.3), name


TRUE = {"bias": 0.0, "resolution": 1.0, "rms": 1.0, "mean_absolute_error": np.sqrt(2 / np.pi)}


def test_paired_differences_are_sharper_than_the_intervals() -> None:
    rng = np.random.default_rng(3)
    common = rng.normal(0, 0.1, 10_000)
    a, b = common + rng.normal(0, 0.02, 10_000), common + rng.normal(0, 0.04, 10_000)
    result = paired_resolution(a, b)
    assert result.interval.high < 0
    widths = [single.high - single.low for single in map(resolution_interval, (a, b))]
    assert result.interval.high - result.interval.low < 0.85 * np.hypot(*widths)
    assert paired_resolution(a, a).p_value == 1.0


def test_metrics_by_true_energy_and_of_the_reconstruction() -> None:
    rng = np.random.default_rng(4)
    truth = targets_of(4000, rng)
    estimate = truth.labels + np.where(truth.labels < 15.5, 0.2, 0.0) + rng.normal(0, 0.05, 4000)
    result = score_arrays(truth, estimate, ENERGY)
    json.dumps(result, allow_nan=False)
    assert result["true_binned"]["15 to 15.25"]["bias"] == pytest.approx(0.2, abs=0.02)
    assert result["true_binned"]["16 to 16.5"]["bias"] == pytest.approx(0.0, abs=0.02)
    assert sum(row["count"] for row in result["true_binned"].values()) == 4000
    assert result["reconstruction"]["resolution"] == pytest.approx(0.2, abs=0.03)
    assert result["minus_reconstruction"]["interval"]["high"] < 0
    value, interval = scoring_of(ENERGY).headline(result)
    losses = scoring_of(ENERGY).losses(np.array([15.0, 16.0]), np.empty((2, 0)), np.array([15.5, 15.8]))
    assert losses == pytest.approx([0.5, 0.2])
    assert interval is not None
    assert interval.low < value < interval.high
    bare = score_arrays(truth, estimate, ENERGY, intervals=False)
    assert "intervals" not in str(bare)
    assert bare["resolution"] == result["resolution"]


def test_an_energy_that_nobody_reconstructed_is_not_compared(tmp_path: Path) -> None:
    rng, scalars = np.random.default_rng(8), np.full((80, 5), 5.0, np.float32)
    np.save(tmp_path / "labels_energy.npy", rng.uniform(14, 17, 80).astype(np.float32))
    np.save(tmp_path / "features.npy", scalars)
    assert read_truth(tmp_path, ENERGY).reference is not None
    scalars[:, 0] = np.nan
    np.save(tmp_path / "features.npy", scalars)
    truth = read_truth(tmp_path, ENERGY)
    result = score_arrays(truth, truth.labels + 0.1, ENERGY)
    json.dumps(result, allow_nan=False)
    assert "reconstruction" not in result


def test_a_median_counts_from_two_standard_errors_on() -> None:
    noise = np.random.default_rng(3).normal(0, 1, (2000, 100))
    medians = np.array([shown_median(one) for one in noise])
    # 4.6 % beyond two errors, if these were known exactly.
    assert 0.02 < np.mean(medians != 0) < 0.11
    assert shown_median(noise[0] + 1.0) == np.median(noise[0] + 1.0)
    moved = noise[0] - np.median(noise[0]) + 0.5
    assert shown_median(moved) == np.median(moved)
    assert shown_median(moved, groups=np.arange(100) // 10) == 0.0, "a hundred uses of ten showers show less"
    weights = np.repeat([1.0, 1e-6], [40, 60])
    assert shown_median(np.repeat([0.0, 9.0], [40, 60]) + noise[0], weights) == shown_median(noise[0, :40])


def test_thin_bins_are_named() -> None:
    truth = targets_of(60, np.random.default_rng(5))
    result = score_arrays(truth, truth.labels + 0.1, ENERGY)
    assert all(row["too_few_events"] for row in result["true_binned"].values())


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
    np.save(folder / SCALARS_FILE, np.full((40, 6), 15.0, np.float16))
    assert score_file(tmp_path / "p.npz", tmp_path, ENERGY)["bias"] == scored["bias"], "a sixth column is the age"
    assert "minus_reconstruction" in scored, "the reconstructed energy is judged beside the estimates"
    np.save(folder / "labels_energy.npy", np.arange(40, dtype=np.int8))
    with pytest.raises(InputError, match=r"int8, expected \(N,\) float32"):
        score_file(tmp_path / "p.npz", tmp_path, ENERGY)


def test_errors_of_shares_are_those_of_repeated_samples() -> None:
    rng = np.random.default_rng(12)
    response = np.array([[0.7, 0.2, 0.1], [0.2, 0.5, 0.3], [0.1, 0.2, 0.7]])  # P(cell | class)
    posterior = (response / response.sum(axis=0)).T  # (cell, class) at equal shares
    counts = np.array([400_000, 100_000, 250_000])
    labels = np.repeat(np.arange(3), counts)
    cells = np.concatenate([rng.choice(3, n, p=response[k]) for k, n in enumerate(counts)])
    n = 400
    errors = share_errors(np.log(posterior[cells]), labels, n)
    # The best that anybody can do: inverse Fisher information of two free shares at equal ones.
    ratios = response / response.mean(axis=0)
    free = (ratios[:2] - ratios[2]) @ np.diag(response.mean(axis=0)) @ (ratios[:2] - ratios[2]).T
    bound = np.linalg.inv(n * free)
    expected = np.sqrt([bound[0, 0], bound[1, 1], bound.sum()])
    np.testing.assert_allclose(errors, expected, rtol=0.03)
    drawn = rng.multinomial(n, response.mean(axis=0), 20_000) / n
    np.testing.assert_allclose(errors, (drawn @ np.linalg.inv(response)).std(axis=0), rtol=0.06)
    assert np.isinf(share_errors(np.full((750, 3), -np.log(3)), labels[::1000], n)).all(), "nothing is told apart"
    with pytest.raises(InputError, match=r"none of class \[1\]"):
        share_errors(np.log(posterior[cells])[labels != 1], labels[labels != 1], n)
