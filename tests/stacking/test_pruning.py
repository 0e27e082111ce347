"""Learners that a stack can do without are left out of it, those that it needs are not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import stacking
from models.base.posterior import log_softmax
from stacking.meta.base import StackInputs
from stacking.meta.choice import DroppedLearner, Pruning, confirmed, prune
from stacking.meta.scorers import GammaScorer, LogLossScorer
from stacking.meta.softmax import fit_pool, log_loss_per_event, pooled
from stacking.predict import predict_table
from stacking.run.config import TableConfig
from stacking.train import StackResult, stack_table


def _problem(n: int = 20_000, n_classes: int = 3) -> StackInputs:
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


def test_what_others_say_already_is_left_out_within_the_tolerance() -> None:
    problem = _problem()
    found = prune(problem, LogLossScorer(), 2e-4)
    assert set(found.kept) == {"left", "right"}
    total = found.left_out[-1].cost
    assert total < 2e-4
    # The stated cost is that of all left out together.
    pools = [fit_pool(part.log_proba, part.labels) for part in (problem, problem.only(found.kept))]
    losses = [
        log_loss_per_event(pooled(part.log_proba, *pool), problem.labels).mean()
        for part, pool in zip((problem, problem.only(found.kept)), pools, strict=True)
    ]
    assert total == pytest.approx(losses[1] - losses[0], abs=1e-4)


def _parts(problem: StackInputs, n: int) -> tuple[StackInputs, StackInputs]:
    first = np.arange(len(problem.labels)) < n
    return problem.take(first), problem.take(~first)


def test_what_the_holdout_misses_comes_back_and_nothing_else() -> None:
    problem, held_out = _parts(_problem(40_000), 20_000)
    said = dict(zip(held_out.learners, held_out.log_proba, strict=True))
    pruned = prune(problem, LogLossScorer(), 2e-4)
    same = confirmed(pruned, problem, LogLossScorer(), said, held_out.labels)
    assert (same.kept, [one.name for one in same.left_out]) == (pruned.kept, [one.name for one in pruned.left_out])
    one = replace(prune(problem, LogLossScorer(), 10.0), tolerance=2e-4)
    assert len(one.kept) == 1
    found = confirmed(one, problem, LogLossScorer(), said, held_out.labels)
    assert set(found.kept) in ({"left", "right"}, {"twin", "right"})
    assert found.left_out[-1].cost < 2e-4, "stated is the cost of what stays out"
    few = held_out.take(np.arange(len(held_out.labels)) < 30)
    little = confirmed(
        pruned, problem, LogLossScorer(), dict(zip(few.learners, few.log_proba, strict=True)), few.labels
    )
    assert little.kept == pruned.kept, "few events show nothing"


def test_slow_learners_go_first_and_nothing_goes_unasked() -> None:
    problem = _problem()
    slow_first = prune(problem, LogLossScorer(), 2e-4, frozenset({"left"}))
    assert slow_first.left_out[0].name == "left"
    assert set(slow_first.kept) == {"twin", "right"}
    assert prune(problem, LogLossScorer(), 0.0).kept == problem.learners
    assert prune(problem.only(["noise"]), LogLossScorer(), 1.0).kept == ("noise",)
    assert len(prune(problem, LogLossScorer(), 10.0).kept) == 1, "one learner always stays"


def test_a_veto_keeps_what_the_log_loss_would_not() -> None:
    problem = _problem(n_classes=2)
    vetoing = GammaScorer()
    vetoing.difference = lambda a, b, labels: (1.0, 0.5)  # type: ignore[method-assign]
    assert prune(problem, vetoing, 2e-4).kept == problem.learners
    vetoing.difference = lambda a, b, labels: (0.1, 0.5)  # type: ignore[method-assign]
    assert set(prune(problem, vetoing, 2e-4).kept) == {"left", "right"}


def _run(two_gaussians: tuple[Path, Path], run: Path, **options: object) -> StackResult:
    train, test = two_gaussians
    standard = {
        "run": run, "table": train, "test_table": test, "label": "kind", "preset": "quick", "folds": 2, "workers": 1,
        "learners": ("fake_linear", "fake_noisy", "fake_useless"), "metas": ("log_pool",),
        "fast": False,
    }  # fmt: skip
    return stack_table(TableConfig(**({"repeats": 1, "holdout": 0.1} | standard | options)))


@pytest.mark.usefixtures("fakes")
def test_a_run_says_what_it_left_out_and_its_bundle_does_without(
    two_gaussians: tuple[Path, Path], tmp_path: Path
) -> None:
    result = _run(two_gaussians, tmp_path / "run", prune=0.05)
    pruning = result.manifest["pruning"]
    gone = [one["name"] for one in pruning["left_out"]]
    assert len(gone) == 2
    assert list(pruning["kept"]) == list(result.manifest["meta"]["weights"])
    remark = next(line for line in result.manifest["remarks"] if "left out of the stack" in line)
    assert all(name in remark for name in gone)
    assert {row["name"] for row in result.manifest["learners"]} == {"fake_linear", "fake_noisy", "fake_useless"}
    chain = stacking.load(result.run).chain
    assert set(replace(chain, shipped="stack").needed) == set(pruning["kept"])
    assert result.predictions is not None
    found, _ = predict_table(stacking.load(result.run, trusted=True), two_gaussians[1])
    np.testing.assert_array_equal(found.log_proba, result.predictions.log_proba)


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
    assert "+0.00001 ± 0.00002" in one
    both = Pruning(2e-4, ("kept",), gone).remark()
    assert both is not None
    assert "first, second" in both
    assert "+0.00012 ± 0.00003" in both


def test_copies_of_a_shower_make_the_cost_no_more_certain() -> None:
    single, held_out = _parts(_problem(3_000), 2_000)
    copies = single.take(np.repeat(np.arange(2_000), 4))
    grouped = replace(copies, groups=np.repeat(np.arange(2_000), 4))
    alone, ungrouped, found = (prune(part, LogLossScorer(), 10.0).left_out[0] for part in (single, copies, grouped))
    assert found.standard_error == pytest.approx(alone.standard_error, rel=0.02)
    assert ungrouped.standard_error == pytest.approx(alone.standard_error / 2, rel=0.02)
    # On the holdout: a cost that its copies would make certain takes nothing back.
    part = held_out.take(np.arange(1_000) < 60)
    times = np.repeat(np.arange(60), 50)
    said = {name: z[times] for name, z in zip(part.learners, part.log_proba, strict=True)}
    everything = Pruning(0.02, ("twin",), (DroppedLearner("right", 0.0, 0.0),))
    sure = confirmed(everything, single.only(["twin", "right"]), LogLossScorer(), said, part.labels[times])
    uncertainty = confirmed(
        everything, single.only(["twin", "right"]), LogLossScorer(), said, part.labels[times], times
    )
    assert (set(sure.kept), set(uncertainty.kept)) == ({"twin", "right"}, {"twin"})


def test_copies_of_events_do_not_make_a_cost_certain() -> None:
    """A hundred copies of few events, each a group, show no more than the events: nothing is left out for sure."""
    few = _problem(200)
    copies = 100
    many = StackInputs(
        few.learners,
        np.repeat(few.log_proba, copies, axis=1),
        np.repeat(few.labels, copies),
        np.repeat(few.folds, copies),
    )
    grouped = replace(many, groups=np.repeat(np.arange(200), copies))
    assert "noise" not in prune(many, LogLossScorer(), 5e-6).kept
    assert "noise" in prune(grouped, LogLossScorer(), 5e-6).kept
