"""Every number of calibration, meta-learners, their choice and the gate, beside the numbers they gave before."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from zlib import crc32

import numpy as np
import pytest

from showerstack.models.base.posterior import log_softmax
from showerstack.runtime.cost import Deadline
from showerstack.scoring.metrics.gamma import hadron_survival
from showerstack.stacking.fit.folds import assign_folds
from showerstack.stacking.meta.base import StackInputs, meta_from_json, meta_learners, meta_to_json, metas_of
from showerstack.stacking.meta.calibration import KINDS, Calibrator, cross_fit, fit_calibrator, reliability
from showerstack.stacking.meta.choice import PRUNING_EVENTS, _Sample, choose_and_fit, fit_meta, prune
from showerstack.stacking.meta.gate import (
    decide_gate,
    entropy,
    leak_remarks,
    standard_error,
)
from showerstack.stacking.meta.scorers import (
    CompositionScorer,
    GammaScorer,
    LogLossScorer,
    OrderedScorer,
    Scorer,
    gamma_scores,
    log_survivals,
    mean_log_survival,
    paired_log_survival,
    threshold_table,
)
from showerstack.stacking.meta.softmax import (
    _cross_entropy,
    _curvature,
    fit_linear,
    fit_pool,
    fit_scaling,
    log_loss_per_event,
)
from tests.references import condensed

Reference = Callable[..., None]


def words(text: str | None) -> float:
    """Return a number that changes with a text."""
    return float(crc32((text or "").encode()))


def drawn(n: int = 500, n_classes: int = 3, sharp: tuple[float, ...] = (1.0, 1.6, 0.5), seed: int = 1) -> StackInputs:
    """Return learners that share a part of their errors, each too sure or not sure enough by its own factor.

    A third of the events come in pairs, the last class is the most frequent, and the context tells a little.
    """
    rng = np.random.default_rng(seed)
    labels = np.minimum(rng.integers(0, n_classes + 1, n), n_classes - 1)
    true = np.eye(n_classes)[labels] * 1.3
    shared, tilt = rng.normal(size=(n, n_classes)), rng.normal(0, 0.3, (len(sharp), 1, n_classes))
    own = rng.normal(size=(len(sharp), n, n_classes))
    factor = np.array(sharp)[:, None, None]
    log_proba = np.stack([log_softmax(z) for z in factor * (true + 0.6 * shared + 0.6 * own) + tilt])
    groups = np.where(np.arange(n) % 3 == 0, np.arange(n) // 6, np.arange(n))
    context = np.stack([labels + rng.normal(0, 2, n), rng.normal(5, 3, n)], axis=1)
    folds = groups % 7
    names = tuple("abcdefg"[: len(sharp)])
    weights = np.exp(rng.normal(0, 0.6, n))
    return StackInputs(names, log_proba, labels, folds, context, weights, None, groups)


def plain(inputs: StackInputs) -> StackInputs:
    """Return the same events without groups, weights and context."""
    return replace(inputs, context=None, event_weights=None, groups=None)


@pytest.mark.parametrize("weighted", [False, True])
def test_meta_learners(weighted: bool, reference: Reference) -> None:
    inputs = drawn(1000)
    inputs = inputs if weighted else plain(inputs)
    gamma = drawn(1000, 2, (1.0, 1.6))
    gamma = gamma if weighted else plain(gamma)
    result: dict[str, Any] = {}
    for name in meta_learners():
        for kind, some, scorer in (("classes", inputs, CompositionScorer()), ("gamma", gamma, GammaScorer())):
            meta = fit_meta(name, some, scorer, some.folds != 3)
            predicted = meta.predict(some.log_proba, some.context)
            again = meta_from_json(json.loads(json.dumps(meta_to_json(meta))))
            np.testing.assert_allclose(again.predict(some.log_proba, some.context), predicted, rtol=1e-12)
            if name == "boosted":  # The last bit of an input can flip a tree's split.
                assert LogLossScorer().loss(predicted, some.labels) < LogLossScorer().loss(
                    some.log_proba[0], some.labels
                )
                continue
            result[f"{kind} {name}"] = {
                "predicted": predicted,
                "loss": LogLossScorer().loss(predicted, some.labels),
                "importance": meta.importance(),
                "learned": condensed(meta.as_json()),
            }
    reference(result)


def test_which_presets_choose_from_which_meta_learners() -> None:
    everything = ("average", "log_pool", "greedy", "calibrated_pool", "logistic", "boosted")
    assert tuple(meta_learners()) == everything
    assert len({kind.complexity for kind in meta_learners().values()}) == len(everything)
    assert (metas_of("quick"), metas_of("good"), metas_of("best")) == (everything[:-1], everything, everything)


class _Share(LogLossScorer):
    """Wants the first of two learners to have a certain share."""

    def __init__(self, wanted: float) -> None:
        self.wanted = wanted

    def metric(self, log_proba: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> float:
        """Return how far its share is from the one that is wanted."""
        return abs(float((log_proba[0, 1] - log_proba[0, 0]) / 2) - self.wanted)


@pytest.mark.parametrize(("wanted", "reached"), [(12 / 25, 12 / 25), (0.0196, 0.0), (0.0202, 1 / 25)])
def test_greedy_selection_has_five_and_twenty_rounds(wanted: float, reached: float) -> None:
    labels = np.resize([0, 1, 1, 0, 1], 50)
    log_proba = np.stack([np.tile(log_softmax(np.array([[0.0, step]])), (50, 1)) for step in (2.0, 0.0)])
    log_proba[:, 1:] += log_softmax(np.random.default_rng(1).normal(size=(49, 2)) + np.eye(2)[labels[1:]])
    greedy = meta_learners()["greedy"](("a", "b"))
    greedy.fit(StackInputs(("a", "b"), log_proba, labels, np.arange(50) % 2), _Share(wanted))
    assert greedy.importance()["a"] == pytest.approx(reached)


def test_a_choice_says_how_far_it_is() -> None:
    said: list[tuple[float, float, str]] = []
    inputs = plain(drawn(60, 2, (1.0, 1.5)))
    inputs = replace(inputs, folds=inputs.folds % 2)
    choose_and_fit(("log_pool", "average"), inputs, LogLossScorer(), progress=lambda *one: said.append(one))
    assert said == [(1, 4, "average"), (2, 4, "average"), (3, 4, "log_pool"), (4, 4, "log_pool")]


@pytest.mark.parametrize("kind", ["composition", "gamma", "ordered"])
def test_choice_of_the_meta_learner(kind: str, reference: Reference) -> None:
    scorer: Scorer = {"composition": CompositionScorer(), "gamma": GammaScorer(), "ordered": OrderedScorer()}[kind]
    inputs = drawn(420, 2 if kind == "gamma" else 3, (1.0, 2.0))
    inputs = plain(inputs) if kind == "composition" else inputs
    names = ("logistic", "average", "log_pool", "greedy") if kind == "gamma" else ("log_pool", "average", "logistic")
    two = replace(inputs, folds=inputs.folds % 2)
    result = {}
    for name, some in (("seven folds", inputs), ("two folds", two)):
        stacked = choose_and_fit(names, some, scorer)
        result[name] = {
            "log_proba": stacked.log_proba,
            "by_meta": stacked.by_meta,
            "losses": stacked.losses,
            "chosen": [names.index(one) for one in (*stacked.chosen_by_fold, stacked.meta.name)],
            "importance": stacked.meta.importance(),
            "untried": len(stacked.untried),
        }
    late = choose_and_fit(names, inputs, scorer, until=Deadline(0.0))
    result["no time"] = {"untried": [names.index(one) for one in late.untried], "log_proba": late.log_proba}
    result["no time"]["remark"] = words(late.remark())
    reference(result)


def similar(n: int = 420, n_classes: int = 3) -> StackInputs:
    """Return four learners: a good one, nearly its copy, one that knows something else, one that knows nothing."""
    inputs = drawn(n, n_classes, (1.0, 1.2, 0.7))
    rng = np.random.default_rng(5)
    copy = log_softmax(inputs.log_proba[0] + rng.normal(0, 0.05, inputs.log_proba[0].shape))
    nothing = log_softmax(rng.normal(0, 0.1, copy.shape))
    return replace(
        inputs, learners=("a", "b", "c", "copy", "nothing"), log_proba=np.stack([*inputs.log_proba, copy, nothing])
    )


@pytest.mark.parametrize("kind", ["plain", "weighted", "gamma"])
def test_pruning(kind: str, reference: Reference) -> None:
    inputs = similar(n_classes=2 if kind == "gamma" else 3)
    inputs = plain(inputs) if kind == "plain" else inputs
    scorer = GammaScorer() if kind == "gamma" else LogLossScorer()
    names, result = inputs.learners, {}
    for tolerance, slow in ((0.003, ()), (0.05, ("a", "copy")), (1.0, ()), (0.0, ())):
        pruning = prune(inputs, scorer, tolerance, frozenset(slow))
        result[f"{tolerance}"] = {
            "cost": pruning.as_json(),
            "selected": [names.index(name) for name in pruning.selected],
            "left out": [names.index(other.name) for other in pruning.left_out],
            "remark": words(pruning.remark()),
        }
    late = prune(inputs, scorer, 1.0, until=Deadline(0.0))
    assert (late.selected, late.in_time) == (names, False)
    only = prune(inputs.only(["a"]), scorer, 1.0)
    assert (only.selected, only.left_out) == (("a",), ())
    result["late"] = words(late.remark())
    reference(result)


def test_pruning_compares_learners_on_so_many_events() -> None:
    inputs = plain(drawn(PRUNING_EVENTS // 100 + 1, 2, (1.0, 1.5)))
    many = inputs.take(np.resize(np.arange(len(inputs.labels)), 60_001))
    assert len(_Sample.of(replace(many, folds=many.folds % 2), LogLossScorer()).inputs.labels) == 60_000


def gate_inputs(n_classes: int) -> tuple[StackInputs, np.ndarray]:
    """Return three learners and a stack that is a little better than they are."""
    inputs = drawn(400, n_classes, (1.0, 1.3, 0.6), seed=3)
    return inputs, log_softmax(1.4 * inputs.log_proba.mean(axis=0))


@pytest.mark.parametrize("kind", ["classes", "gamma"])
def test_gate(kind: str, reference: Reference) -> None:
    scorer: Scorer = GammaScorer() if kind == "gamma" else LogLossScorer()
    inputs, stacked = gate_inputs(2 if kind == "gamma" else 3)
    learners = dict(zip(inputs.learners, inputs.log_proba, strict=True))
    rng, groups, weights = np.random.default_rng(8), inputs.groups, inputs.event_weights
    worse = log_softmax(0.2 * stacked)
    cases = {
        "plain": (stacked, learners, None, None),
        "groups": (stacked, learners, groups, None),
        "weights": (stacked, learners, groups, weights),
        "worse": (worse, learners, None, None),
        "the same": (learners["a"], learners, None, None),
        "nearly the same": (learners["a"] + 1e-7 * rng.normal(size=stacked.shape), learners, None, None),
        "a little better": (log_softmax(0.97 * learners["a"] + 0.03 * learners["c"]), learners, None, None),
        "one learner": (stacked, {"a": learners["a"]}, None, None),
    }
    result = {}
    for name, (stack, others, g, w) in cases.items():
        gate = decide_gate(stack, others, inputs.labels, scorer, g, w)
        result[name] = gate.as_json() | {"words": words(gate.reason)}
    reference(result)


def test_a_veto_closes_the_gate(reference: Reference) -> None:
    """The stack is better by log-loss, but lets more hadrons survive."""
    rng = np.random.default_rng(2)
    labels = (np.arange(600) % 3 > 0).astype(int)
    logit = np.where(labels == 0, 1.0, -1.0) * 1.2 + rng.normal(0, 0.8, 600)
    learner = log_softmax(0.6 * np.stack([logit, 0 * logit], axis=1))
    sure = np.where((labels == 1) & (np.arange(600) % 20 == 1), 3.0, 2 * logit)
    stack = log_softmax(np.stack([sure, 0 * sure], axis=1))
    gates = {
        scorer.name: decide_gate(stack, {"a": learner, "b": 0.9 * learner}, labels, scorer)
        for scorer in (GammaScorer(), LogLossScorer())
    }
    assert not gates["mean_log_survival"].shipped
    assert gates["log_loss"].shipped
    reference({name: gate.as_json() | {"words": words(gate.reason)} for name, gate in gates.items()})


def test_a_gain_of_nothing_is_not_called_worse() -> None:
    learner = np.log(np.array([[0.75, 0.25], [0.5, 0.5]]))
    gate = decide_gate(learner[::-1], {"a": learner, "b": learner - 1.0}, np.zeros(2, dtype=int), LogLossScorer())
    assert (gate.gain, gate.shipped, gate.claimed) == (0.0, True, False)
    assert gate.reason == f"a gain of the stack over a, 0.00000 ± {gate.standard_error:.5f} nats, is not shown"


def test_errors_and_leaks(reference: Reference) -> None:
    rng = np.random.default_rng(4)
    values, groups = rng.normal(0.2, 1, 90), np.arange(90) // 2
    result: dict[str, Any] = {
        "errors": [standard_error(values, g) for g in (None, groups)],
        "entropy": entropy(log_softmax(rng.normal(0, 2, (4, 3))).reshape(2, 2, 3)).ravel(),
    }

    def around(mean: float, n: int) -> np.ndarray:
        return mean + 0.1 * np.linspace(-1, 1, n)

    # One leaks; the others differ by +0.02 (median), one of them has lower entropies for new events.
    leaky = {"leaks": (around(0.40, 400), around(0.62, 200)), "plain": (around(0.60, 300), around(0.62, 200))}
    leaky |= {"odd": (around(0.60, 300), around(0.55, 200)), "more": (around(0.6, 300), around(0.65, 200))}
    shares = {}
    for share in (0.145, 0.155, 0.185, 0.19):
        case = {"a": (around(1 - share, 4000), around(1.0, 4000)), "b": (around(1.0, 4000), around(1.0, 4000))}
        shares[f"{share}"] = len(leak_remarks(case))
    sigmas = {}
    for sigma in (4.9, 5.1, 6.2, 6.3):
        spread = np.resize([-1.0, 1.0], 100)
        gap = sigma * 0.5 * np.sqrt(2) / 10
        case = {"a": (1.5 - gap + 0.5 * spread, 1.5 + 0.5 * spread), "b": (1.5 + spread, 1.5 + spread)}
        sigmas[f"{sigma}"] = len(leak_remarks(case))
    few = {
        n: len(leak_remarks({"a": (around(0.2, 90), around(1.0, n)), "b": (around(1.0, 90), around(1.0, n))}))
        for n in (29, 30, 31)
    }
    result |= {"leaks": {name: words(text) for name, text in leak_remarks(leaky).items()}, "few": few}
    result |= {"shares": shares, "sigmas": sigmas, "alone": len(leak_remarks({"leaks": leaky["leaks"]}))}
    reference(result)


def test_calibration(reference: Reference) -> None:
    """The numbers of each kind are kept; which one is chosen may be within its error, and has to gain."""
    inputs, result = drawn(900, 3, (2.5,), seed=6), {}
    z, labels = inputs.log_proba[0], inputs.labels
    folds = inputs.folds % 3
    other = drawn(600, 2, (0.4,), seed=7)
    tilted = log_softmax(1.8 * z + np.array([1.0, -0.5, 0.0]))
    blurred = log_softmax(0.6 * z @ np.array([[1.0, 0.3, 0.0], [0.2, 1.2, -0.4], [0.0, -0.5, 0.4]]))
    samples = {"sure": z, "tilted": tilted, "blurred": blurred}
    for name, sample in samples.items():
        for weighted in (False, True):
            g, w = (inputs.groups, inputs.event_weights) if weighted else (None, None)
            calibrator, calibrated = cross_fit(sample, labels, folds, g, w)
            again = Calibrator.from_json(calibrator.as_json())
            assert again.kind == calibrator.kind
            np.testing.assert_allclose(again(sample), calibrator(sample), rtol=1e-12)
            gain = log_loss_per_event(sample, labels, w) - log_loss_per_event(calibrated, labels, w)
            assert gain.mean() > 0, (name, weighted)
    for kind, fit in KINDS.items():
        result[kind] = [condensed(fit(blurred, labels, w).as_json()) for w in (None, inputs.event_weights)]
    assert fit_calibrator(tilted, labels, np.zeros(len(labels), int), inputs.groups).kind in ("vector", "matrix")
    assert fit_calibrator(other.log_proba[0], other.labels, other.folds).kind in ("temperature", "vector")
    right = log_softmax(np.log(np.array([[0.6, 0.4], [0.4, 0.6]])))[np.arange(400) % 2]
    result["right already"] = fit_calibrator(
        right, np.resize([0, 1, 0, 1, 0, 1, 1, 0, 1, 0], 400), np.arange(400) // 80
    ).as_json()
    sure = np.concatenate([z, np.log(np.maximum(np.eye(3), 1e-300))])
    all_labels, all_weights = np.append(labels, [0, 1, 1]), np.append(inputs.event_weights, [2.0, 0.0, 0.5])
    result["reliability"] = [condensed(reliability(sure, all_labels, w)) for w in (None, all_weights)]
    result["few bins"] = reliability(sure, all_labels, n_bins=4)
    reference(result)


def test_kinds_of_calibration_are_compared_on_so_many_events(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def noted(log_proba: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> Calibrator:
        seen.append(len(labels))
        return Calibrator("temperature", 2.0 * np.eye(log_proba.shape[1]), np.zeros(log_proba.shape[1]))

    monkeypatch.setattr("showerstack.stacking.meta.calibration.KINDS", {"temperature": noted, "matrix": noted})
    for n_classes, fits in ((2, 1), (3, 2), (20, 2), (21, 1)):
        seen.clear()
        labels = np.arange(20_002) % n_classes
        log_proba = log_softmax(0.5 * np.eye(n_classes)[labels])
        fit_calibrator(log_proba, labels, np.arange(20_002) % 2)
        # The fits that are compared leave out one half each, in turn; what ships sees all events.
        assert len(seen) == 2 * fits + 1
        assert (sum(seen[:-1]), seen[-1]) == (20_000 * fits, 20_002)


def test_convex_fits(reference: Reference) -> None:
    inputs = drawn(400, 3, (1.2, 0.7), seed=9)
    z, labels, weights = inputs.log_proba, inputs.labels, inputs.event_weights
    columns = np.concatenate([*z, inputs.context], axis=1)
    centre = np.vstack([np.tile(np.eye(3) / 2, (2, 1)), np.zeros((2, 3))])
    result: dict[str, Any] = {}
    for name, w in (("plain", None), ("weighted", weights)):
        result[name] = {
            "pool": [fit_pool(z, labels, w), fit_pool(z, labels, w, l2=0.5)],
            "scaling": [fit_scaling(z[0], labels, w, per_class=p, l2=k) for p in (False, True) for k in (1e-4, 0.3)],
            "linear": [fit_linear(columns, labels, centre, w, l2=k) for k in (1e-6, 0.3)],
            "loss": _cross_entropy(z[0], labels, w),
            "curvature": _curvature(columns[:, :2], np.exp(z[0]), w),
            "losses": log_loss_per_event(z[0], labels, w),
        }
    # Numbers at their bounds: no weight for the one that says the opposite, and scales beyond 0.05 .. 20.
    says = np.eye(3)[labels] * 2.0
    result["opposite"] = fit_pool(np.stack([log_softmax(1e-2 * says), log_softmax(-says)]), labels)
    result["bounds"] = [
        fit_scaling(log_softmax(factor * says), labels, per_class=False, l2=0.0)[0] for factor in (1e-3, -1.0)
    ]
    with_bias = np.resize([0, 0, 0, 1], 200)
    # Classes part at 3, and biases cannot go as far as weights could.
    sharp = np.linspace(1, 5, 40)
    apart = log_softmax(np.stack([0 * sharp, sharp], axis=1))
    for sign in (slice(None), slice(None, None, -1)):
        y = (sharp > 3).astype(int) if sign == slice(None) else (sharp < 3).astype(int)
        result[f"bias at its bound {sign.step}"] = [
            fit_pool(apart[None, :, sign], y, l2=0.0),
            fit_scaling(apart[:, sign], y, per_class=True, l2=0.0),
        ]
    result["biases"] = fit_scaling(log_softmax(np.tile([-40.0, 0.0], (200, 1))), with_bias, per_class=True, l2=0.0)
    # Many numbers go by another method: 20 classes of 19 columns and a bias are the most that do not.
    for n_columns in (19, 20):
        rng = np.random.default_rng(1)
        x, y = rng.normal(size=(150, n_columns)), np.arange(150) % 20
        result[f"{n_columns} columns"] = fit_linear(x, y, np.zeros((n_columns, 20)), l2=0.05)
    many = np.random.default_rng(2).normal(size=(16_386, 1))
    result["many events"] = _curvature(many, np.exp(log_softmax(np.concatenate([many, 0 * many], axis=1))), None)
    # The loss is far from quadratic where the start is: whole steps of Newton's method lead astray.
    far = np.array([[0.0], [1.0], [2.0], [3.0]])
    result["far start"] = fit_linear(far, np.array([0, 1, 0, 1]), np.array([[30.0, -30.0]]), l2=1e-3)
    reference(result)


def test_fits_are_minima() -> None:
    """Whatever the numbers are: moved a little either way, the penalised loss is larger."""
    inputs = drawn(300, 3, (1.2, 0.7), seed=10)
    x, labels, weights = np.concatenate([*inputs.log_proba], axis=1), inputs.labels, inputs.event_weights
    centre = np.tile(np.eye(3) / 2, (2, 1))
    matrix, bias = fit_linear(x, labels, centre, weights, l2=0.1)

    def penalised(w: np.ndarray, b: np.ndarray) -> float:
        return _cross_entropy(x @ w + b, labels, weights)[0] + 0.05 * float(((w - centre) ** 2).sum() + (b**2).sum())

    least = penalised(matrix, bias)
    for k in range(matrix.size):
        for sign in (-1e-3, 1e-3):
            moved = matrix.copy()
            moved.flat[k] += sign
            assert penalised(moved, bias) > least


def test_scorers(reference: Reference) -> None:
    gamma, classes = drawn(500, 2, (1.0, 1.6)), drawn(500, 4, (1.0, 1.6))
    labels, groups, weights = gamma.labels, gamma.groups, gamma.event_weights
    a, b = (gamma_scores(z) for z in gamma.log_proba)
    few = np.array([0, 1, 1, 0, 1] * 4)
    result: dict[str, Any] = {
        "scores": a,
        "log survivals": [log_survivals(labels, a, w) for w in (None, weights)],
        "none left": log_survivals(few, np.where(few == 0, 5.0, -5.0) + np.arange(20) * 1e-3),
        "mean": [mean_log_survival(labels, a, w) for w in (None, weights)],
        "paired": [
            paired_log_survival(labels, a, b, g, w, n_samples=30, seed=s)
            for g in (None, groups)
            for w in (None, weights)
            for s in (0, 3)
        ],
        "few paired": paired_log_survival(few, np.arange(20.0) % 7, np.arange(20.0) % 3, n_samples=30),
        "nothing near": paired_log_survival(few, 9.0 * (few == 0), 7.0 * (few == 0), n_samples=10),
        "default": paired_log_survival(labels, a, b),
        "table": [
            threshold_table(labels, a, (0.25, 0.75), groups=g, weights=w)
            for g, w in ((None, None), (groups, None), (None, weights))
        ],
        "whole table": [
            [row["threshold"] for row in threshold_table(labels, b)],
            threshold_table(labels, b, (0.9,), (2.0,)),
        ],
        "no survivor": threshold_table(few, np.where(few == 0, 5.0, -5.0), (0.5,)),
    }
    for scorer in (LogLossScorer(), CompositionScorer(), OrderedScorer(), GammaScorer()):
        some = gamma if scorer.veto else classes
        first, second = some.log_proba
        g, w, y = some.groups, some.event_weights, some.labels
        result[type(scorer).__name__] = {
            "loss": [scorer.loss(first, y, one) for one in (None, w)],
            "difference": [scorer.difference(first, second, y, *more) for more in ((None, None), (g, None), (g, w))],
            "metric": [scorer.metric(first, y, one) for one in (None, w)],
            "weights": [scorer.weights(some.log_proba, y, one) for one in (None, w)],
        }
    reference(result)


def test_a_sum_over_pieces_of_events_is_the_sum() -> None:
    """Curvature is summed over pieces of events; so is that of the same events in two parts."""
    rng = np.random.default_rng(3)
    x, p = rng.normal(size=(20_000, 2)), np.exp(log_softmax(rng.normal(size=(20_000, 2))))
    halves = [_curvature(x[k::2], p[k::2], None) for k in (0, 1)]
    np.testing.assert_allclose(_curvature(x, p, None), np.mean(halves, axis=0), rtol=1e-10)


def test_a_hadron_at_the_threshold_survives() -> None:
    labels = np.array([0] * 100 + [1] * 100)
    scores = np.concatenate([np.arange(100.0), np.arange(100.0)])
    for k, share in enumerate((0.65, 0.70, 0.75, 0.80, 0.85)):
        survivors = hadron_survival(labels, scores, share).hadron_survival * 100
        assert log_survivals(labels, scores)[k] == pytest.approx(np.log((survivors + 0.5) / 101))


def test_folds_of_a_choice_are_merged_to_five() -> None:
    inputs = plain(drawn(300, 2, (1.0, 1.5)))
    ten = replace(inputs, folds=assign_folds(inputs.labels, 10, seed=0).astype(int))
    five = replace(ten, folds=ten.folds % 5)
    stacked = [choose_and_fit(("log_pool",), one, LogLossScorer()) for one in (ten, five)]
    assert len(stacked[0].chosen_by_fold) == 5
    np.testing.assert_array_equal(stacked[0].log_proba, stacked[1].log_proba)
