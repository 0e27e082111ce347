"""Meta-learners recover a known mixture, ignore noise, and are chosen by nested cross-validation, not by their own fit.

Calibration undoes a known distortion, and does nothing where nothing is wrong. Learners that a stack can do without are
left out of it, those that it needs are not.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from showerstack import stacking
from showerstack.models.base.posterior import log_softmax
from showerstack.runtime.context import Context
from showerstack.runtime.cost import Deadline
from showerstack.stacking.meta.base import StackInputs, meta_from_json, meta_learners, meta_to_json
from showerstack.stacking.meta.calibration import Calibrator, cross_fit, fit_calibrator, identity, reliability
from showerstack.stacking.meta.choice import DroppedLearner, Pruning, choose_and_fit, fit_meta, prune
from showerstack.stacking.meta.gate import decide_gate
from showerstack.stacking.meta.pools import LogPool
from showerstack.stacking.meta.scorers import HADRON_WEIGHT, CompositionScorer, GammaScorer, LogLossScorer
from showerstack.stacking.meta.softmax import fit_pool, fit_scaling, log_loss_per_event, pooled
from showerstack.stacking.predict import predict
from showerstack.stacking.run.config import TableConfig
from showerstack.stacking.train import StackResult, stack

N = 5000


def _problem(n_classes: int = 3, n: int = N, seed: int = 0, prior: list[float] | None = None) -> StackInputs:
    """Return two learners that each see an independent half of the evidence, and one that knows nothing.

    The exact posterior is the pool with weights (1, 1, 0).
    """
    rng = np.random.default_rng(seed)
    share = np.array(prior or [1 / n_classes] * n_classes)
    labels = rng.choice(n_classes, n, p=share)
    evidence = [
        -((rng.normal(size=(n, 1)) + 1.3 * labels[:, None] - 1.3 * np.arange(n_classes)) ** 2) / 2 for _ in range(2)
    ]
    noise = np.log(rng.dirichlet(5 * np.ones(n_classes), n))
    z = np.stack([*(log_softmax(e + 0.5 * np.log(share)) for e in evidence), noise])
    return StackInputs(("left", "right", "noise"), z, labels, np.arange(n) % 3, rng.normal(size=(n, 2)))


OVER = Deadline(0.0)


def test_what_has_no_time_is_not_tried_and_said() -> None:
    problem = _problem(n=600)
    names = ("average", "log_pool", "calibrated_pool")
    stacked = choose_and_fit(names, problem, LogLossScorer(), until=OVER)
    alone = choose_and_fit(("average",), problem, LogLossScorer())
    assert stacked.meta.name == "average"
    assert np.array_equal(stacked.log_proba, alone.log_proba)
    assert stacked.untried == ("log_pool", "calibrated_pool")
    assert stacked.remark() == "meta-learners that were not tried, to keep the time limit: log_pool, calibrated_pool"
    assert alone.remark() is None
    assert "noise" in {one.name for one in prune(_problem(), LogLossScorer(), 5e-3).left_out}
    pruning = prune(_problem(), LogLossScorer(), 5e-3, until=OVER)
    assert (pruning.selected, pruning.in_time) == (problem.learners, False)
    assert "to keep the time limit" in str(pruning.remark())


def test_candidates_that_are_finished_in_time_are_chosen_among(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter(range(1000))
    monkeypatch.setattr("showerstack.stacking.meta.choice.reached", lambda until: next(calls) >= 9)
    stacked = choose_and_fit(("average", "log_pool", "calibrated_pool"), _problem(), LogLossScorer(), until=OVER)
    assert (stacked.meta.name, stacked.untried) == ("log_pool", ("calibrated_pool",))


LEARNING = [name for name in meta_learners() if name != "average"]


@pytest.mark.parametrize("name", LEARNING)
def test_each_meta_learner_finds_the_known_pool(name: str) -> None:
    train, new = _problem(), _problem(seed=1)
    meta = meta_learners()[name](train.learners)
    meta.fit(train, LogLossScorer())
    exact = log_softmax(new.log_proba[0] + new.log_proba[1])
    loss = log_loss_per_event(meta.predict(new.log_proba, new.context), new.labels).mean()
    best = log_loss_per_event(exact, new.labels).mean()
    average = log_loss_per_event(log_softmax(new.log_proba.mean(axis=0)), new.labels).mean()
    assert loss < best + 0.012
    assert loss < average - 0.02
    shares = meta.importance()
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares["noise"] == min(shares.values())
    again = meta_from_json(json.loads(json.dumps(meta_to_json(meta))))
    np.testing.assert_array_equal(again.predict(new.log_proba, new.context), meta.predict(new.log_proba, new.context))


def test_pool_weights_are_recovered_and_never_negative() -> None:
    problem = _problem(n=40_000)
    weights, bias = fit_pool(problem.log_proba, problem.labels)
    np.testing.assert_allclose(weights, [1, 1, 0], atol=0.06)
    np.testing.assert_allclose(bias - bias.mean(), 0, atol=0.06)
    hostile = np.stack([problem.log_proba[0], -3 * problem.log_proba[0]])
    assert fit_pool(hostile, problem.labels)[0].min() >= 0


def test_learners_with_errors_of_their_own_are_worth_more_calibrated() -> None:
    # Each is right about one class and vague about the others: no single weight makes up for that.
    def spoiled(problem: StackInputs) -> StackInputs:
        blurred = np.array([[2.0, 0.3, 0.3], [0.3, 0.3, 2.0], [1.0, 1.0, 1.0]])
        return replace(
            problem, log_proba=np.stack([log_softmax(z * b) for z, b in zip(problem.log_proba, blurred, strict=True)])
        )

    train, new = spoiled(_problem(n=5_000)), spoiled(_problem(n=5_000, seed=1))
    losses = {}
    for name in ("log_pool", "calibrated_pool"):
        meta = meta_learners()[name](train.learners)
        meta.fit(train, LogLossScorer())
        losses[name] = log_loss_per_event(meta.predict(new.log_proba), new.labels)
    gain = losses["log_pool"] - losses["calibrated_pool"]
    assert gain.mean() > 5 * gain.std() / np.sqrt(len(gain))
    assert choose_and_fit(("log_pool", "calibrated_pool"), train, LogLossScorer()).meta.name == "calibrated_pool"


def test_greedy_selection_serves_the_real_metric() -> None:
    problem = _problem(n_classes=5, n=4000)
    scorer = CompositionScorer()
    greedy = meta_learners()["greedy"](problem.learners)
    greedy.fit(problem, scorer)
    errors = [scorer.metric(z, problem.labels) for z in problem.log_proba]
    assert scorer.metric(greedy.predict(problem.log_proba), problem.labels) < min(errors)
    assert greedy.importance()["noise"] < 0.15


@pytest.mark.parametrize("name", LEARNING)
def test_weighted_hadrons_do_not_shift_the_posterior(name: str) -> None:
    train, new = _problem(2, 8000, 2, [0.1, 0.9]), _problem(2, 8000, 3, [0.1, 0.9])
    scorer = GammaScorer()
    weights = scorer.weights(train.log_proba, train.labels)
    assert weights is not None
    assert set(np.unique(weights)) == {1.0, HADRON_WEIGHT}
    assert (weights[train.labels == 0] == 1).all()
    meta = meta_learners()[name](train.learners)
    meta.fit(replace(train, weights=weights), scorer)
    predicted = meta.predict(new.log_proba, new.context)
    assert np.exp(predicted[:, 0]).mean() == pytest.approx(0.1, abs=0.012)
    exact = log_softmax(new.log_proba[0] + new.log_proba[1])
    excess = log_loss_per_event(predicted, new.labels).mean() - log_loss_per_event(exact, new.labels).mean()
    assert excess < 0.02


def test_nested_prediction_of_a_fold_ignores_that_folds_labels() -> None:
    problem = _problem(n=900)
    names = ("log_pool", "greedy")
    stacked = choose_and_fit(names, problem, LogLossScorer())
    inside = problem.folds == 1
    labels = problem.labels.copy()
    labels[inside] = np.random.default_rng(5).permutation(labels[inside])
    poisoned = StackInputs(problem.learners, problem.log_proba, labels, problem.folds, problem.context)
    again = choose_and_fit(names, poisoned, LogLossScorer())
    np.testing.assert_array_equal(stacked.log_proba[inside], again.log_proba[inside])
    assert np.abs(stacked.log_proba[~inside] - again.log_proba[~inside]).max() > 1e-3
    assert len(stacked.chosen_by_fold) == 3


def test_simplest_within_an_error_is_chosen() -> None:
    stacked = choose_and_fit(tuple(meta_learners()), _problem(n=1500), LogLossScorer())
    assert stacked.meta.name == "log_pool", "the truth is a pool: nothing more is needed"
    turned = choose_and_fit(tuple(meta_learners())[::-1], _problem(n=1500), LogLossScorer())
    assert turned.meta.name == "log_pool", "by declared complexity, not by the order given"
    assert turned.chosen_by_fold == stacked.chosen_by_fold
    assert set(stacked.losses) == set(meta_learners())


def test_average_is_kept_where_nothing_can_be_learned() -> None:
    problem = _problem(n=3000)
    same = replace(problem, log_proba=np.repeat(log_softmax(problem.log_proba[:2].sum(axis=0))[None], 3, axis=0))
    assert choose_and_fit(tuple(meta_learners()), same, LogLossScorer()).meta.name == "average"


def test_log_loss_decides_where_survival_cannot() -> None:
    # Two equally good learners: their average has the right order of events, but is only half as sure as it should be.
    problem = _problem(2, 3000, 4, [0.1, 0.9])
    problem = replace(problem, learners=("left", "right"), log_proba=problem.log_proba[:2])
    stacked = choose_and_fit(("average", "log_pool"), problem, GammaScorer())
    assert abs(stacked.losses["average"] - stacked.losses["log_pool"]) < 0.05
    assert stacked.meta.name == "log_pool"


def test_many_folds_are_merged_and_two_leave_no_choice() -> None:
    problem = _problem(n=1200)
    many = StackInputs(problem.learners, problem.log_proba, problem.labels, np.arange(1200) % 12, None)
    assert len(choose_and_fit(("log_pool",), many, LogLossScorer()).chosen_by_fold) == 5
    two = StackInputs(problem.learners, problem.log_proba, problem.labels, np.arange(1200) % 2, None)
    assert choose_and_fit(("log_pool", "logistic"), two, LogLossScorer()).meta.name == LogPool.name


def test_parallel_choice_gives_the_same_bits() -> None:
    problem = _problem(n=600)
    one = choose_and_fit(("log_pool", "logistic"), problem, LogLossScorer(), workers=1)
    two = choose_and_fit(("log_pool", "logistic"), problem, LogLossScorer(), workers=2)
    np.testing.assert_array_equal(one.log_proba, two.log_proba)


N_CALIBRATION = 6000


def _random(n_classes: int = 3, n: int = N_CALIBRATION) -> np.ndarray:
    return log_softmax(1.5 * np.random.default_rng(5).normal(size=(n, n_classes)))


def _labels(log_proba: np.ndarray) -> np.ndarray:
    """Draw labels from exact log-posteriors."""
    uniform = np.random.default_rng(6).random((len(log_proba), 1))
    labels = (uniform > np.cumsum(np.exp(log_proba), axis=1)).sum(axis=1)
    return np.minimum(labels, log_proba.shape[1] - 1)


def _truth(n_classes: int = 3, n: int = N_CALIBRATION) -> tuple[np.ndarray, np.ndarray]:
    """Return exact log-posteriors and labels drawn from them."""
    log_proba = _random(n_classes, n)
    return log_proba, _labels(log_proba)


CORRECTIONS = {
    "temperature": lambda z: log_softmax(0.4 * z),
    "vector": lambda z: log_softmax(z * [0.4, 1.3, 1.0] + [0.9, 0.0, -0.9]),
    "matrix": lambda z: log_softmax(z @ np.array([[0.9, 0.6, 0.0], [0.0, 0.9, 0.6], [0.6, 0.0, 0.9]])),
}


@pytest.mark.parametrize("kind", CORRECTIONS)
def test_each_kind_finds_its_own_correction(kind: str) -> None:
    wrong = _random()
    exact = CORRECTIONS[kind](wrong)
    labels = _labels(exact)
    calibrator = fit_calibrator(wrong, labels, np.arange(N_CALIBRATION) % 3)
    kinds = ["identity", *CORRECTIONS]
    assert kinds.index(calibrator.kind) >= kinds.index(kind), "never one that cannot do it"
    excess = (log_loss_per_event(calibrator(wrong), labels) - log_loss_per_event(exact, labels)).mean()
    assert abs(excess) < 0.003, "as good as the exact posterior"
    assert log_loss_per_event(wrong, labels).mean() - log_loss_per_event(exact, labels).mean() > 0.03


def test_a_calibrated_learner_is_left_alone() -> None:
    exact, labels = _truth()
    calibrator = fit_calibrator(exact, labels, np.arange(N_CALIBRATION) % 3)
    assert calibrator.kind == "identity"
    assert calibrator(exact) is exact


def test_two_classes_keep_the_order_of_events() -> None:
    exact, labels = _truth(2)
    distorted = log_softmax(exact * [3.0, 1.0] + [0.5, 0.0])
    calibrator = fit_calibrator(distorted, labels, np.arange(N_CALIBRATION) % 3)
    assert calibrator.kind in ("temperature", "vector")
    before, after = distorted[:, 0] - distorted[:, 1], calibrator(distorted)
    order = np.argsort(before)
    assert (np.diff((after[:, 0] - after[:, 1])[order]) >= 0).all()


def test_a_matrix_of_many_classes_helps_with_few_events() -> None:
    # Neighbours of twelve classes mixed: 156 free numbers gain on 2,000 events only where the pull grows with them.
    wrong = _random(12, 3000)
    exact = log_softmax(wrong @ (np.eye(12) + 0.3 * np.roll(np.eye(12), 1, axis=1)))
    labels = _labels(exact)
    folds = np.arange(len(labels)) % 3
    assert fit_calibrator(wrong, labels, folds).kind == "matrix"
    _, calibrated = cross_fit(wrong, labels, folds)
    before, after, best = (log_loss_per_event(z, labels).mean() for z in (wrong, calibrated, exact))
    assert before - after > 0.2 * (before - best)


def test_cross_fitting_calibrates_each_fold_without_its_labels() -> None:
    exact, labels = _truth(n=1500)
    distorted, folds = log_softmax(3 * exact), np.arange(1500) % 3
    calibrator, calibrated = cross_fit(distorted, labels, folds)
    # Other labels in fold 0 must not change what fold 0 gets.
    poisoned = labels.copy()
    poisoned[folds == 0] = (labels[folds == 0] + 1) % 3
    again, recalibrated = cross_fit(distorted, poisoned, folds)
    np.testing.assert_array_equal(calibrated[folds == 0], recalibrated[folds == 0])
    assert not np.allclose(calibrated[folds == 1], recalibrated[folds == 1])
    assert not np.allclose(calibrator.matrix, again.matrix), "what ships is fitted on all events"


def test_reliability_measures_overconfidence_and_json_round_trips() -> None:
    exact, labels = _truth()
    good, bad = reliability(exact, labels), reliability(log_softmax(3 * exact), labels)
    assert good["expected_calibration_error"] < 3 * good["of_perfect_posteriors"]
    assert good["expected_calibration_error"] < 0.012 < 0.05 < bad["expected_calibration_error"]
    assert sum(row["entries"] for row in good["bins"]) == 3 * N_CALIBRATION
    calibrator = fit_calibrator(log_softmax(3 * exact), labels, np.arange(N_CALIBRATION) % 2)
    again = Calibrator.from_json(calibrator.as_json())
    np.testing.assert_array_equal(again(exact), calibrator(exact))
    assert identity(3)(exact) is exact


def _twin_problem(n: int = 20_000, n_classes: int = 3) -> StackInputs:
    """Return two learners with half the evidence each, one of them twice, and one that knows nothing."""
    rng = np.random.default_rng(5)
    labels = rng.integers(0, n_classes, n)
    left, right = (
        log_softmax(-((rng.normal(size=(n, 1)) + 1.3 * labels[:, None] - 1.3 * np.arange(n_classes)) ** 2) / 2)
        for _ in range(2)
    )
    twin = log_softmax(left + 0.003 * rng.normal(size=left.shape))
    noise = np.log(rng.dirichlet(5 * np.ones(n_classes), n))
    return StackInputs(
        ("left", "noise", "twin", "right"), np.stack([left, noise, twin, right]), labels, np.arange(n) % 5
    )


@pytest.mark.parametrize("n", [500, 3_000])
def test_right_posteriors_have_a_calibration_error_of_so_many_events(n: int) -> None:
    rng, found = np.random.default_rng(8), []
    for _ in range(200):
        proba = rng.dirichlet(np.full(5, 0.4), n)
        labels = (rng.random((n, 1)) < np.cumsum(proba, axis=1)).argmax(axis=1)
        result = reliability(np.log(np.maximum(proba, 1e-300)), labels)
        found.append((result["expected_calibration_error"], result["of_perfect_posteriors"]))
    errors, expected = np.array(found).T
    assert expected.mean() == pytest.approx(errors.mean(), rel=0.1)


def test_what_others_say_already_is_left_out_within_the_tolerance() -> None:
    problem = _twin_problem()
    result = prune(problem, LogLossScorer(), 2e-4)
    assert set(result.selected) == {"left", "right"}
    total = result.left_out[-1].cost
    assert total < 2e-4
    # The stated cost is that of all left out together.
    pools = [fit_pool(part.log_proba, part.labels) for part in (problem, problem.only(result.selected))]
    losses = [
        log_loss_per_event(pooled(part.log_proba, *pool), problem.labels).mean()
        for part, pool in zip((problem, problem.only(result.selected)), pools, strict=True)
    ]
    assert total == pytest.approx(losses[1] - losses[0], abs=1e-4)


def test_slow_learners_go_first_and_nothing_goes_unasked() -> None:
    problem = _twin_problem()
    slow_first = prune(problem, LogLossScorer(), 2e-4, frozenset({"left"}))
    assert slow_first.left_out[0].name == "left"
    assert set(slow_first.selected) == {"twin", "right"}
    assert prune(problem, LogLossScorer(), 0.0).selected == problem.learners
    assert prune(problem.only(["noise"]), LogLossScorer(), 1.0).selected == ("noise",)
    assert len(prune(problem, LogLossScorer(), 10.0).selected) == 1, "one learner always stays"


def test_a_veto_keeps_what_the_log_loss_would_not() -> None:
    problem = _twin_problem(n_classes=2)
    vetoing = GammaScorer()
    vetoing.difference = lambda a, b, labels, groups=None, weights=None: (1.0, 0.5)  # type: ignore[method-assign]
    assert prune(problem, vetoing, 2e-4).selected == problem.learners
    vetoing.difference = lambda a, b, labels, groups=None, weights=None: (0.1, 0.5)  # type: ignore[method-assign]
    assert set(prune(problem, vetoing, 2e-4).selected) == {"left", "right"}


def _run(two_gaussians: tuple[Path, Path], run: Path, **options: object) -> StackResult:
    train, test = two_gaussians
    standard = {
        "run": run, "table": train, "test_table": test, "label": "kind", "preset": "quick", "folds": 2, "workers": 1,
        "learners": ("fake_linear", "fake_noisy", "fake_useless"), "metas": ("log_pool",),
        "fast": False,
    }  # fmt: skip
    return stack(TableConfig(**({"repeats": 1, "holdout": 0.1} | standard | options)))


@pytest.mark.usefixtures("fakes")
def test_a_run_says_what_it_left_out_and_does_without(two_gaussians: tuple[Path, Path], tmp_path: Path) -> None:
    result = _run(two_gaussians, tmp_path / "run", prune=0.05)
    pruning = result.manifest["pruning"]
    gone = [one["name"] for one in pruning["left_out"]]
    assert len(gone) == 2
    assert list(pruning["selected"]) == list(result.manifest["meta"]["weights"])
    remark = next(line for line in result.manifest["remarks"] if "left out of the stack" in line)
    assert all(name in remark for name in gone)
    assert {row["name"] for row in result.manifest["learners"]} == {"fake_linear", "fake_noisy", "fake_useless"}
    chain = stacking.load(result.run).chain
    assert set(replace(chain, shipped="stack").needed) == set(pruning["selected"])
    assert result.predictions is not None
    values = predict(stacking.load(result.run), two_gaussians[1], Context(trusted=True)).concatenated()
    np.testing.assert_array_equal(values.log_proba, result.predictions.log_proba)


@pytest.mark.usefixtures("fakes")
def test_pruning_can_be_switched_off(two_gaussians: tuple[Path, Path], tmp_path: Path) -> None:
    result = _run(two_gaussians, tmp_path / "run", prune=0.0)
    assert result.manifest["pruning"]["left_out"] == ()
    assert len(result.manifest["meta"]["weights"]) == 3
    assert not any("left out of the stack" in line for line in result.manifest["remarks"])


def test_the_remark_states_the_cost_of_all_that_went() -> None:
    gone = (DroppedLearner("first", 1e-5, 2e-5), DroppedLearner("second", 1.2e-4, 3e-5))
    assert Pruning(2e-4, ("kept",), ()).remark() is None
    one = Pruning(2e-4, ("kept", "second"), gone[:1]).remark()
    assert one is not None
    assert "left out of the stack: first; " in one
    assert "0.00001 ± 0.00002 nats worse" in one
    both = Pruning(2e-4, ("kept",), gone).remark()
    assert both is not None
    assert "first, second" in both
    assert "0.00012 ± 0.00003 nats worse" in both


def test_copies_of_a_shower_make_the_cost_no_more_certain() -> None:
    problem = _twin_problem(3_000)
    single = problem.take(np.arange(3_000) < 2_000)
    copies = single.take(np.repeat(np.arange(2_000), 4))
    grouped = replace(copies, groups=np.repeat(np.arange(2_000), 4))
    alone, ungrouped, result = (prune(part, LogLossScorer(), 10.0).left_out[0] for part in (single, copies, grouped))
    assert result.standard_error == pytest.approx(alone.standard_error, rel=0.02)
    assert ungrouped.standard_error == pytest.approx(alone.standard_error / 2, rel=0.02)


def test_copies_of_events_do_not_make_a_cost_certain() -> None:
    """A hundred copies of few events, each a group, show no more than the events: nothing is left out for sure."""
    few = _twin_problem(200)
    copies = 100
    many = StackInputs(
        few.learners,
        np.repeat(few.log_proba, copies, axis=1),
        np.repeat(few.labels, copies),
        np.repeat(few.folds, copies),
    )
    grouped = replace(many, groups=np.repeat(np.arange(200), copies))
    assert "noise" not in prune(many, LogLossScorer(), 5e-6).selected
    assert "noise" in prune(grouped, LogLossScorer(), 5e-6).selected


def _copies(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return whole-numbered weights of n events, and the events repeated so often."""
    weights = np.random.default_rng(5).integers(0, 4, n).astype(np.float64)
    return weights, np.repeat(np.arange(n), weights.astype(int))


def test_importance_weights_count_as_copies_in_every_fit_and_loss() -> None:
    """A weight of k is an event k times over, wherever an average over events is taken or fitted."""
    problem = _problem(2, 4000, 6, [0.3, 0.7])
    weights, many = _copies(4000)
    z, labels, folds = problem.log_proba, problem.labels, problem.folds
    for ours, theirs in (
        (fit_pool(z, labels, weights), fit_pool(z[:, many], labels[many])),
        (
            fit_scaling(z[0], labels, weights, per_class=True),
            fit_scaling(z[0][many], labels[many], per_class=True),
        ),
    ):
        np.testing.assert_allclose(np.concatenate(ours), np.concatenate(theirs), atol=2e-4)
    wrong = log_softmax(0.4 * z[0] + [0.5, 0.0])
    calibrator, copied = (
        fit_calibrator(wrong, labels, folds, None, weights),
        fit_calibrator(wrong[many], labels[many], folds[many]),
    )
    assert calibrator.kind == copied.kind != "identity"
    np.testing.assert_allclose(calibrator(wrong), copied(wrong), atol=1e-3)
    before, after = reliability(wrong, labels, weights), reliability(wrong[many], labels[many])
    assert before["expected_calibration_error"] == pytest.approx(after["expected_calibration_error"])
    scorer = LogLossScorer()
    assert scorer.loss(z[0], labels, weights) == pytest.approx(scorer.loss(z[0][many], labels[many]))
    gap, error = scorer.difference(z[0], z[1], labels, None, weights)
    grouped_gap, grouped_error = scorer.difference(z[0][many], z[1][many], labels[many], many)
    assert gap == pytest.approx(grouped_gap)
    assert error == pytest.approx(grouped_error, rel=0.03), "copies of one event are one observation"


@pytest.mark.parametrize("name", LEARNING)
def test_meta_learners_give_the_posterior_of_the_weighted_events(name: str) -> None:
    """Half of the hadrons are hard ones of small weight: by number they are common, in nature rare."""
    rng = np.random.default_rng(7)

    def drawn(n: int, natural: bool) -> tuple[StackInputs, np.ndarray]:
        labels = (rng.random(n) < 0.8).astype(int)
        hard = (labels == 1) & (rng.random(n) < (0.02 if natural else 0.5))
        x = rng.normal(np.where(labels == 0, 2.0, np.where(hard, 1.5, -1.0)), 1.0)
        weights = np.where(labels == 0, 1.0, np.where(hard, 0.02 / 0.5, 0.98 / 0.5))
        gamma, hadron = 0.2 * _normal(x, 2.0), 0.8 * (0.02 * _normal(x, 1.5) + 0.98 * _normal(x, -1.0))
        exact = log_softmax(np.log(np.column_stack([gamma, hadron])))
        z = np.stack([log_softmax(0.7 * exact), exact])
        inputs = StackInputs(("flat", "exact"), z, labels, np.arange(n) % 3, x[:, None], event_weights=weights)
        return inputs, exact

    train, new, exact = *drawn(12_000, natural=False)[:1], *drawn(12_000, natural=True)
    scorer = GammaScorer()
    meta = fit_meta(name, train, scorer, np.ones(len(train.labels), dtype=bool))
    predicted = meta.predict(new.log_proba, new.context)
    excess = log_loss_per_event(predicted, new.labels).mean() - log_loss_per_event(exact, new.labels).mean()
    unweighted = fit_meta(name, replace(train, event_weights=None), scorer, np.ones(len(train.labels), dtype=bool))
    ignoring = log_loss_per_event(unweighted.predict(new.log_proba, new.context), new.labels).mean()
    assert excess < 0.02
    assert ignoring - log_loss_per_event(exact, new.labels).mean() > excess + 0.01


def _normal(x: np.ndarray, mean: float) -> np.ndarray:
    return np.asarray(np.exp(-0.5 * (x - mean) ** 2))


def test_systems_are_level_only_where_the_error_is_small_too() -> None:
    labels = np.tile([0, 1], 500)
    sure = log_softmax(np.where(labels[:, None] == np.arange(2), 1.0, -1.0))
    half = np.arange(1000)[:, None] < 500
    a, b = np.where(half, sure, np.log(0.5)), np.where(half, np.log(0.5), sure)
    assert decide_gate(b, {"a": a}, labels, LogLossScorer()).reason == "a is the only learner"
    systems = {"a": a, "c": np.full((1000, 2), np.log(0.5))}
    # Each is better by the same in one half: the mean is 0, its error sqrt(1000) times smaller than the difference.
    gain = np.log(2.0) + sure[0, 0]
    error = f"{gain / np.sqrt(999):.5f}"
    assert f"0.00000 ± {error} nats, is not shown" in decide_gate(b, systems, labels, LogLossScorer()).reason
    level = "the stack and a are level, less than 0.00001 nats apart"
    assert decide_gate(a, systems, labels, LogLossScorer()).reason == level


def test_gate_and_pruning_go_by_weights() -> None:
    """The learner that is right on heavy events is the better one, though it is wrong on more of them."""
    labels, weights = np.tile([0, 1], 500), np.repeat([10.0, 0.1], [200, 800])
    right = log_softmax(np.where(labels[:, None] == np.arange(2), 1.0, -1.0))
    wrong = log_softmax(np.where(labels[:, None] == np.arange(2), -0.5, 0.5))
    heavy = weights > 1
    a, b = np.where(heavy[:, None], right, wrong), np.where(heavy[:, None], wrong, right)
    systems = {"a": a, "b": b}
    assert decide_gate(a, systems, labels, LogLossScorer()).best_learner == "b"
    assert decide_gate(a, systems, labels, LogLossScorer(), weights=weights).best_learner == "a"
    z = np.stack([a, b])
    inputs = StackInputs(("a", "b"), z, labels, np.arange(1000) // 2 % 3, event_weights=weights)
    assert prune(inputs, LogLossScorer(), 0.2).selected == ("a",)
