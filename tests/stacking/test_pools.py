"""Pools recover a known mixture and ignore noise; the simplest as good as the best is taken; needless learners leave.

Calibration undoes a known distortion, and does nothing where nothing is wrong.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from showerstack.models.base.posterior import log_softmax
from showerstack.runtime.context import Context
from showerstack.scoring.metrics.reliability import reliability
from showerstack.stacking.config import TableConfig
from showerstack.stacking.options import TOLERANCE
from showerstack.stacking.prediction.predict import predict
from showerstack.stacking.prediction.run import load
from showerstack.stacking.sample import Sample
from showerstack.stacking.second_level import (
    ON_HOLDOUT,
    POOLS,
    DroppedLearner,
    Pool,
    calibrated,
    cross_validated,
    decide_gate,
    fit_pool,
    fit_scale,
    fit_stack,
    left_out,
    left_out_remarks,
    nested,
    scaled,
)
from showerstack.stacking.training.train import StackResult, stack

LogProba = dict[str, np.ndarray]


def _evidence(labels: np.ndarray, n_classes: int, rng: np.random.Generator) -> np.ndarray:
    seen = rng.normal(size=(len(labels), 1)) + 1.3 * labels[:, None]
    return np.asarray(-((seen - 1.3 * np.arange(n_classes)) ** 2) / 2)


def _problem(n: int = 5_000, n_classes: int = 3, seed: int = 0) -> tuple[LogProba, Sample]:
    """Return two learners that each see an independent half of the evidence, and one that knows nothing.

    The exact posterior is the pool with weights (1, 1, 0).
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_classes, n)
    left, right = (log_softmax(_evidence(labels, n_classes, rng)) for _ in range(2))
    noise = np.log(rng.dirichlet(5 * np.ones(n_classes), n))
    return {"left": left, "right": right, "noise": noise}, Sample(labels, np.arange(n) % 3)


@pytest.mark.parametrize("name", [name for name in POOLS if name != "average"])
def test_each_pool_finds_the_known_one(name: str) -> None:
    (train, sample), (new, other) = _problem(20_000), _problem(20_000, seed=1)
    pool = fit_pool(name, train, sample)
    exact = other.losses(log_softmax(new["left"] + new["right"])).mean()
    assert other.losses(pool(new)).mean() < exact + 0.012
    shares = pool.shares()
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares["noise"] == min(shares.values())
    again = Pool.from_json(json.loads(json.dumps(pool.as_json())))
    np.testing.assert_array_equal(again(new), pool(new))


def test_weights_are_recovered_never_negative_and_those_of_zero_not_needed() -> None:
    log_proba, sample = _problem(40_000)
    pool = fit_pool("log_pool", log_proba, sample)
    np.testing.assert_allclose(pool.weights, [1, 1, 0], atol=0.08)
    np.testing.assert_allclose(pool.bias - pool.bias.mean(), 0, atol=0.06)
    hostile = {"left": log_proba["left"], "wrong": -3 * log_proba["left"]}
    assert fit_pool("log_pool", hostile, sample).weights.min() >= 0
    pool = replace(pool, weights=np.array([1.0, 0.0, 0.0]))
    assert pool.needed == ("left",)
    np.testing.assert_array_equal(pool({"left": log_proba["left"]}), pool(log_proba))


def test_learners_with_errors_of_their_own_are_worth_more_calibrated() -> None:
    # Each is right about one class and vague about the others: no single weight makes up for that.
    def spoiled(log_proba: LogProba) -> LogProba:
        blurred = {"left": [2.0, 0.3, 0.3], "right": [0.3, 0.3, 2.0], "noise": [1.0, 1.0, 1.0]}
        return {name: log_softmax(z * np.array(blurred[name])) for name, z in log_proba.items()}

    (train, sample), (new, other) = _problem(), _problem(seed=1)
    pools = {name: fit_pool(name, spoiled(train), sample)(spoiled(new)) for name in ("log_pool", "calibrated_pool")}
    gain = other.losses(pools["log_pool"]) - other.losses(pools["calibrated_pool"])
    assert gain.mean() > 5 * other.error(gain)
    assert fit_stack(spoiled(train), sample).pool.name == "calibrated_pool"


def test_the_simplest_within_an_error_is_chosen() -> None:
    log_proba, sample = _problem(1_500)
    found = fit_stack(log_proba, sample, tolerance=0.0)
    assert found.pool.name == "log_pool", "the truth is a pool: nothing more is needed"
    assert set(found.log_losses) == set(POOLS)
    same = dict.fromkeys("abc", log_softmax(log_proba["left"] + log_proba["right"]))
    same = {name: z.copy() for name, z in same.items()}
    assert fit_stack(same, sample, tolerance=0.0).pool.name == "average", "nothing can be learned"
    assert fit_stack(log_proba, sample, names=("average",), tolerance=0.0).pool.name == "average"


def test_a_fold_is_predicted_without_its_labels() -> None:
    log_proba, sample = _problem(900)
    inside = sample.folds == 1
    labels = sample.labels.copy()
    labels[inside] = np.random.default_rng(5).permutation(labels[inside])
    poisoned = replace(sample, labels=labels)
    for found in (partial(cross_validated, "log_pool"), partial(nested, fit_stack)):
        before, after = found(log_proba, sample), found(log_proba, poisoned)
        np.testing.assert_array_equal(before[inside], after[inside])
        assert np.abs(before[~inside] - after[~inside]).max() > 1e-3


def test_two_folds_can_be_nested() -> None:
    log_proba, sample = _problem(400)
    result = nested(fit_stack, log_proba, replace(sample, folds=sample.folds % 2))
    np.testing.assert_allclose(np.exp(result).sum(axis=1), 1.0)


def _twins(n: int = 20_000, n_classes: int = 3) -> tuple[LogProba, Sample]:
    """Return two learners with half the evidence each, one of them twice, and one that knows nothing."""
    log_proba, sample = _problem(n, n_classes, seed=5)
    rng = np.random.default_rng(6)
    twin = log_softmax(log_proba["left"] + 0.003 * rng.normal(size=log_proba["left"].shape))
    return log_proba | {"twin": twin}, sample


@pytest.mark.slow
def test_what_others_say_already_is_left_out_within_the_tolerance() -> None:
    log_proba, sample = _twins(60_000)
    found = fit_stack(log_proba, sample)
    assert set(found.pool.learners) in ({"left", "right"}, {"twin", "right"})
    total = found.left_out[-1].cost
    assert total < 2e-4
    whole = fit_pool("log_pool", log_proba, sample)
    cost = sample.losses(fit_pool("log_pool", {n: log_proba[n] for n in found.pool.learners}, sample)(log_proba)).mean()
    assert total == pytest.approx(cost - sample.losses(whole(log_proba)).mean(), abs=1e-4), (
        "that of all left out together"
    )
    assert left_out(log_proba, sample, 0.0) == ()
    assert left_out({"noise": log_proba["noise"]}, sample, 1.0) == ()
    assert len(left_out(log_proba, sample, 10.0)) == 3, "one learner always stays"


def test_a_learner_that_keeps_hadrons_out_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    log_proba, sample = _twins(4_000, 2)
    monkeypatch.setattr("showerstack.stacking.second_level.is_worse_in_survival", lambda *given: True)
    assert left_out(log_proba, sample, 10.0, survival=True) == ()
    assert len(left_out(log_proba, sample, 10.0)) == 3


def _echoed(n: int, n_classes: int, seed: int) -> tuple[LogProba, Sample]:
    """Return an exact posterior, and the same with noise of its own: nothing is gained by a pool of both."""
    log_proba, sample = _problem(n, n_classes, seed)
    noise = np.random.default_rng(seed + 1).normal(size=log_proba["left"].shape)
    return {"left": log_proba["left"], "echo": log_softmax(log_proba["left"] + 0.7 * noise)}, sample


def test_the_best_learner_stands_alone_where_no_pool_is_better() -> None:
    log_proba, sample = _echoed(300, 3, 25)
    assert left_out(log_proba, sample, TOLERANCE) == (), "few events show nothing"
    found = fit_stack(log_proba, sample)
    assert found.pool.learners == ("left",)
    np.testing.assert_allclose(found.pool(log_proba), log_proba["left"], atol=1e-12)
    np.testing.assert_array_equal(found.log_proba, found.pool(log_proba))
    (gone,) = found.left_out
    assert gone.name == "echo"
    whole = cross_validated("log_pool", log_proba, sample)
    assert gone.cost == pytest.approx((sample.losses(log_proba["left"]) - sample.losses(whole)).mean(), rel=1e-9)
    assert set(fit_stack(log_proba, sample, tolerance=0.0).pool.learners) == {"left", "echo"}
    both, sample = _problem(300, seed=25)
    assert set(fit_stack({name: both[name] for name in ("left", "right")}, sample).pool.learners) == {"left", "right"}


def test_a_pool_that_keeps_hadrons_out_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    log_proba, sample = _echoed(300, 2, 23)
    assert fit_stack(log_proba, sample, survival=True).pool.learners == ("left",)
    monkeypatch.setattr("showerstack.stacking.second_level.is_worse_in_survival", lambda *given: True)
    assert set(fit_stack(log_proba, sample, survival=True).pool.learners) == {"left", "echo"}


def test_copies_of_a_shower_make_the_cost_no_more_certain() -> None:
    log_proba, sample = _twins(2_000)
    rows = np.repeat(np.arange(2_000), 4)
    many = {name: z[rows] for name, z in log_proba.items()}
    alone, copies, grouped = (
        left_out(z, part, 10.0)[0].standard_error
        for z, part in (
            (log_proba, sample),
            (many, sample.take(rows)),
            (many, replace(sample.take(rows), groups=rows)),
        )
    )
    assert grouped == pytest.approx(alone, rel=0.02)
    assert copies == pytest.approx(alone / 2, rel=0.02)


def test_the_remark_states_the_cost_of_all_that_went() -> None:
    gone = (
        DroppedLearner(name="first", cost=1e-5, standard_error=2e-5),
        DroppedLearner(name="second", cost=1.2e-4, standard_error=3e-5),
    )
    assert left_out_remarks((), (), ON_HOLDOUT) == []
    (both,) = left_out_remarks((), gone, ON_HOLDOUT)
    assert "first, second; " in both
    assert "0.00012 ± 0.00003 higher" in both


def test_importance_weights_count_as_copies() -> None:
    """A weight of k is an event k times over, wherever an average over events is taken or fitted."""
    log_proba, sample = _problem(4_000, 2)
    weights = np.random.default_rng(5).integers(0, 4, 4_000).astype(float)
    rows = np.repeat(np.arange(4_000), weights.astype(int))
    weighted, copied = replace(sample, weights=weights), sample.take(rows)
    many = {name: z[rows] for name, z in log_proba.items()}
    for name in POOLS:
        ours, theirs = fit_pool(name, log_proba, weighted), fit_pool(name, many, copied)
        np.testing.assert_allclose(ours(log_proba), theirs(log_proba), atol=2e-3)
    wrong = log_softmax(0.4 * log_proba["left"])
    assert fit_scale(wrong, weighted) == pytest.approx(fit_scale(wrong[rows], copied), rel=1e-4)
    ours, theirs = (reliability(z, of.labels, of.weights) for z, of in ((wrong, weighted), (wrong[rows], copied)))
    assert ours["expected_calibration_error"] == pytest.approx(theirs["expected_calibration_error"])
    assert weighted.losses(wrong).mean() == pytest.approx(copied.losses(wrong[rows]).mean())


def test_rare_events_of_small_weight_stay_rare_in_the_posterior() -> None:
    """Half of the hadrons are hard ones of small weight: by number they are common, in nature rare."""
    rng = np.random.default_rng(7)

    def normal(x: np.ndarray, mean: float) -> np.ndarray:
        return np.asarray(np.exp(-0.5 * (x - mean) ** 2))

    def drawn(n: int, hard_share: float) -> tuple[LogProba, np.ndarray, Sample]:
        labels = (rng.random(n) < 0.8).astype(int)
        hard = (labels == 1) & (rng.random(n) < hard_share)
        x = rng.normal(np.where(labels == 0, 2.0, np.where(hard, 1.5, -1.0)), 1.0)
        weights = np.where(labels == 0, 1.0, np.where(hard, 0.02 / 0.5, 0.98 / 0.5))
        hadron = 0.8 * (0.02 * normal(x, 1.5) + 0.98 * normal(x, -1.0))
        exact = log_softmax(np.log(np.column_stack([0.2 * normal(x, 2.0), hadron])))
        return {"flat": log_softmax(0.7 * exact), "exact": exact}, exact, Sample(labels, labels * 0, None, weights)

    (train, _, sample), (new, exact, natural) = drawn(12_000, 0.5), drawn(12_000, 0.02)
    natural = replace(natural, weights=None)
    best = natural.losses(exact).mean()
    for name in ("log_pool", "calibrated_pool"):
        weighted = natural.losses(fit_pool(name, train, sample)(new)).mean()
        ignoring = natural.losses(fit_pool(name, train, replace(sample, weights=None))(new)).mean()
        assert weighted - best < 0.02
        assert ignoring > weighted + 0.01


N_CALIBRATION = 20_000


def _truth(n_classes: int = 3, n: int = N_CALIBRATION) -> tuple[np.ndarray, Sample]:
    """Return exact log-posteriors and labels drawn from them."""
    rng = np.random.default_rng(5)
    log_proba = log_softmax(1.5 * rng.normal(size=(n, n_classes)))
    labels = (rng.random((n, 1)) > np.cumsum(np.exp(log_proba), axis=1)).sum(axis=1)
    return log_proba, Sample(np.minimum(labels, n_classes - 1), np.arange(n) % 3)


def test_a_temperature_is_found_and_a_calibrated_system_left_alone() -> None:
    exact, sample = _truth()
    for sureness in (0.4, 3.0):
        scale, _ = calibrated(log_softmax(sureness * exact), sample)
        assert scale == pytest.approx(1 / sureness, rel=0.06)
    assert calibrated(exact, sample)[0] == 1.0
    assert scaled(exact, 1.0) is exact


def test_cross_fitting_calibrates_each_fold_without_its_labels() -> None:
    exact, sample = _truth(n=1_500)
    distorted, inside = log_softmax(3 * exact), sample.folds == 0
    labels = np.where(inside, (sample.labels + 1) % 3, sample.labels)
    (scale, before), (other, after) = (calibrated(distorted, one) for one in (sample, replace(sample, labels=labels)))
    np.testing.assert_array_equal(before[inside], after[inside])
    assert not np.allclose(before[~inside], after[~inside])
    assert scale != pytest.approx(other, rel=0.01), "what ships is fitted on all events"


def test_reliability_measures_overconfidence() -> None:
    exact, sample = _truth()
    good, bad = (reliability(log_proba, sample.labels) for log_proba in (exact, log_softmax(3 * exact)))
    assert good["expected_calibration_error"] < 0.012 < 0.05 < bad["expected_calibration_error"]
    assert sum(row["entries"] for row in good["bins"]) == 3 * N_CALIBRATION


def test_the_gate_goes_by_weights_and_says_what_is_level() -> None:
    """The learner that is right on heavy events is the better one, though it is wrong on more of them."""
    labels, weights = np.tile([0, 1], 500), np.repeat([10.0, 0.1], [200, 800])
    right = log_softmax(np.where(labels[:, None] == np.arange(2), 1.0, -1.0))
    wrong = log_softmax(np.where(labels[:, None] == np.arange(2), -0.5, 0.5))
    heavy = weights[:, None] > 1
    systems = {"a": np.where(heavy, right, wrong), "b": np.where(heavy, wrong, right)}
    sample = Sample(labels, np.arange(1000) // 2 % 3)
    assert decide_gate(systems["a"], systems, sample).best_learner == "b"
    gate = decide_gate(systems["a"], systems, replace(sample, weights=weights))
    assert (gate.best_learner, gate.reason) == ("a", "the log-losses of the stack and of a differ by less than 0.00001")
    assert decide_gate(systems["a"], {"a": systems["a"]}, sample).reason == "a is the only learner with all fits"
    # One learner that is too sure by far: its pool, which is its temperature, is used where that is shown.
    sure = {"a": 8.0 * systems["a"] - np.log(np.exp(8.0 * systems["a"]).sum(axis=1, keepdims=True))}
    gate = decide_gate(systems["a"], sure, replace(sample, weights=None))
    assert gate.shipped
    assert gate.reason.endswith("lower than that of a")
    kept = {one.name for one in left_out(systems, replace(sample, weights=weights), 0.2)}
    assert kept == {"b"}


def test_a_stack_that_is_worse_than_every_learner_does_not_ship() -> None:
    """One row that is sure and wrong makes errors as large as the excess: the rule of one error lets it pass."""
    labels, systems = np.tile([0, 1], 150), {}
    right = log_softmax(np.where(labels[:, None] == np.arange(2), 3.0, 0.0))
    for name, sure in (("a", 0.2), ("b", 1.1)):
        systems[name] = log_softmax(sure * right)
    stacked = log_softmax(20.0 * right)
    stacked[0] = [-400.0, 0.0]
    sample = Sample(labels, np.arange(300) % 3)
    excess = sample.mean_of(sample.losses(stacked) - sample.losses(systems["b"]))
    assert 0 < excess.mean < excess.error
    gate = decide_gate(stacked, systems, sample)
    assert not gate.shipped
    assert gate.reason.endswith("higher than that of b, and than every learner's")
    between = systems["b"].copy()
    between[[4, 6], 0] += [-0.1, 0.05]  # worse than b by less than the error, better than a
    assert decide_gate(between, systems, sample).shipped


def _run(two_gaussians: tuple[Path, Path], run: Path, **options: object) -> StackResult:
    train, test = two_gaussians
    standard = {
        "run": run, "table": train, "test_table": test, "label": "kind", "preset": "quick", "folds": 2, "workers": 1,
        "learners": ("fake_linear", "fake_noisy", "fake_useless"), "pools": ("log_pool",),
    }  # fmt: skip
    return stack(TableConfig(**({"repeats": 1, "holdout": 0.1} | standard | options)))


@pytest.mark.usefixtures("fakes")
def test_a_run_says_what_it_left_out_and_does_without(two_gaussians: tuple[Path, Path], tmp_path: Path) -> None:
    result = _run(two_gaussians, tmp_path / "run", prune=0.05, race="off")
    found = result.manifest.pool
    gone = [one.name for one in found.left_out]
    assert len(gone) == 2
    assert len(found.weights) == 1
    remark = next(line for line in result.manifest.remarks if "left out of the stack" in line)
    assert all(name in remark for name in gone)
    assert {row.name for row in result.manifest.learners} == {"fake_linear", "fake_noisy", "fake_useless"}
    chain = load(result.run).chain
    assert set(replace(chain, shipped="stack").needed) == set(found.weights)
    assert result.predictions is not None
    values = predict(load(result.run), two_gaussians[1], Context()).concatenated()
    np.testing.assert_array_equal(values.log_proba, result.predictions.log_proba)
    kept = _run(two_gaussians, tmp_path / "all", prune=0.0).manifest
    assert kept.pool.left_out == []
    assert not any("left out of the stack" in line for line in kept.remarks)
