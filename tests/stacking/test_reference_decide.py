"""Every number of folds, decisions and the chain to a prediction, beside the numbers they gave before."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from showerstack.models.base.inputs import TARGETS
from showerstack.models.base.posterior import log_softmax
from showerstack.runtime.checksums import Checksums, write_checksums
from showerstack.runtime.errors import InputError
from showerstack.showers.schema import ENERGY, GAMMA
from showerstack.stacking.answers import DecisionSample, TargetStacking, stacking_of
from showerstack.stacking.chain import Chain, concatenated
from showerstack.stacking.estimates import (
    OWN,
    POOL,
    EstimatePool,
    Posterior,
    PosteriorMean,
    TargetCalibration,
    mixture,
    rule_from_json,
)
from showerstack.stacking.events import Binned, Events
from showerstack.stacking.folder import RunFolder
from showerstack.stacking.folds import (
    assign_folds,
    choose_holdout,
    class_counts,
    early_stopping_rows,
    evaluation_events,
)
from showerstack.stacking.prediction.predictable import read_chain
from showerstack.stacking.sample import Sample, subsampled
from showerstack.stacking.second_level import Pool, average_of, combined
from tests.references import condensed

Reference = Callable[..., None]


def sample(n: int, n_classes: int, shipped: str = "stack", *, weighted: bool = True) -> DecisionSample:
    """Return events of classes on a line and what three systems say of them."""
    rng = np.random.default_rng(n)
    labels = rng.choice(n_classes, n, p=np.arange(n_classes, 0, -1) / np.arange(1, n_classes + 1).sum())
    systems = {}
    for name, spread in (("a", 1.1), ("average", 1.0), ("stack", 0.8)):
        seen = labels + spread * rng.normal(size=n)
        systems[name] = log_softmax(-((seen[:, None] - np.arange(n_classes)) ** 2) / 1.5)
    groups = np.where(np.arange(n) % 3 == 0, np.arange(n) // 6, np.arange(n))
    weights = np.exp(rng.normal(0, 0.5, n)) if weighted else None
    return DecisionSample(systems, shipped, Sample(labels, groups % 4, groups if weighted else None, weights))


def written(folder: Path) -> list[str]:
    """Return the files below a folder."""
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*.*"))


def test_gammas(reference: Reference) -> None:
    stacking, result = stacking_of(GAMMA), {}
    for weighted in (False, True):
        events = sample(500, 2, weighted=weighted)
        decision = stacking.decide(events)
        assert not decision.rules
        z, kept = events.systems["stack"], dict(decision.scores)
        assert set(kept) == {"labels", "scores"} | ({"groups", "weights"} if weighted else set())
        result[f"{weighted}"] = {
            "record": decision.record["thresholds"][1::3],
            "kept": kept,
            "arrays": stacking.arrays(None, z, None),
            "tests": stacking.test_arrays(None, z, None),
            "answers": [dict(stacking.answers(z, cast(Any, one))) for one in ({}.get, {"scores": z[:, 0]}.get)],
            "columns": stacking.columns({"gamma_scores": z[:, 0]})[0].to_numpy(),
        }
    reference(result)


def of_energy(n: int, *, weighted: bool, own: bool) -> DecisionSample:
    """Return events whose bins of true minus reconstructed lg energy are told by three systems."""
    rng = np.random.default_rng(11)
    offsets = rng.normal(0.03, 0.25, n)
    training = rng.normal(0.03, 0.25, 4 * n)
    edges = np.quantile(training, np.arange(1, 12) / 12)
    bins, middle = np.digitize(training, edges), np.digitize(offsets, edges)
    systems = {}
    for name, spread in (("a", 2.0), ("b", 1.5), ("average", 1.3), ("stack", 1.0)):
        seen = middle + spread * rng.normal(size=n)
        systems[name] = log_softmax(-((seen[:, None] - np.arange(12)) ** 2) / (2 * spread**2))
    errors = rng.uniform(0.03, 0.3, n)
    estimate = offsets + 0.05 + errors * rng.normal(size=n)
    weights = np.exp(rng.normal(0, 0.5, n)) if weighted else None
    kept = np.stack([estimate, errors]) if own else None
    return DecisionSample(
        systems,
        "stack",
        Sample(middle, np.arange(n) % 3, None, weights),
        offsets,
        Binned(training, bins),
        kept,
        ("a", "stack"),
    )


@pytest.mark.parametrize("weighted", [False, True])
def test_energies(weighted: bool, reference: Reference) -> None:
    stacking = cast(TargetStacking, stacking_of(ENERGY))
    context = np.random.default_rng(12).uniform(14, 18, (300, 4))
    result: dict[str, Any] = {}
    for own in (False, True):
        events = of_energy(300, weighted=weighted, own=own)
        decision = stacking.decide(events)
        record, rules = decision.record, decision.rules
        assert record["chosen"] == (POOL if own else "posterior mean")
        again = {name: rule_from_json(json.loads(json.dumps(rule.as_json()))) for name, rule in rules.items()}
        told = np.zeros((2, 300)) if events.own is None else events.own
        mine = {"lg_energy": told[0] + context[:, 0], "lg_energy_error": told[1]}
        arrays = stacking.arrays(again["stack"], events.systems["stack"], context)
        result[f"own {own}"] = {
            "record": {name: condensed(part) if "_in_" in name else part for name, part in record.items()},
            "rules": {name: condensed(rule.as_json()) for name, rule in rules.items()},
            "arrays": arrays,
            "pooled": stacking.pooled(again, events.systems, mine, context),
            "not asked": stacking.pooled(again, events.systems, {}, context),
            "columns": [series.to_numpy() for series in stacking.columns(arrays)],
            "answers": [dict(stacking.answers(told, cast(Any, one))) for one in (arrays.get, {}.get)],
        }
    reference(result)


@pytest.mark.parametrize("weighted", [False, True])
def test_errors_of_a_learner_that_left_the_race_are_measured_on_its_fold(weighted: bool) -> None:
    stacking = stacking_of(ENERGY)
    events = of_energy(300, weighted=weighted, own=False)
    inside = events.sample.folds == 0
    partly = np.where(inside[:, None], events.systems["b"], np.nan)
    whole, part = (stacking.decide(one) for one in (events, replace(events, systems={**events.systems, "b": partly})))
    assert part.record == whole.record
    assert [name for name in whole.rules if repr(whole.rules[name]) != repr(part.rules[name])] == ["b"]
    alone = replace(events, sample=events.sample.take(inside), offsets=events.offsets[inside], shipped="b")
    alone = replace(alone, systems={name: z[inside] for name, z in events.systems.items()})
    assert repr(part.rules["b"]) == repr(stacking.decide(alone).rules["b"])


def test_estimates(reference: Reference) -> None:
    rng = np.random.default_rng(13)
    truth, errors = rng.normal(0, 0.3, 250), rng.uniform(0.02, 0.4, (3, 250))
    errors[1, :4] = (0.0, 1e-9, 1e-6, 2e-6)
    values = (
        truth + np.array([[0.1], [-0.02], [0.0]]) + errors * (rng.normal(size=(3, 250)) + 0.4 * rng.normal(size=250))
    )
    weights = np.exp(rng.normal(0, 0.5, 250))
    result: dict[str, Any] = {}
    for name, some in (("three", slice(None)), ("one", slice(1)), ("two", slice(0, 3, 2))):
        for w in (None, weights):
            parts = ("a", "b", OWN)[some]
            pool = EstimatePool.of(parts, values[some], errors[some], truth, w)
            again = EstimatePool.from_json(json.loads(json.dumps(pool.as_json())))
            result[f"{name} {w is not None}"] = {
                "learned": pool.as_json(),
                "shares": pool.shares(errors[some]),
                "says": again(values[some], errors[some]),
            }
    same = EstimatePool(("a", "b"), np.ones(2), np.zeros(2), np.array([[1.0, -1.0], [-1.0, 1.0]]))
    result["opposite errors"] = same(np.ones((2, 3)), np.array([[0.1, 0.0, 2e-6], [0.1, 0.0, 2e-6]]))
    rule = PosteriorMean(np.array([0.0, 1.0]), np.array([0.0, 0.0]), 2.0)
    result["sure"] = rule(np.log(np.array([[1.0, 1e-300], [0.3, 0.9], [0.5, 0.5]])))
    fits = np.stack([rng.normal(0, 1, (3, 120, len(TARGETS))), rng.uniform(0.1, 0.5, (3, 120, len(TARGETS)))], axis=-1)
    targets = fits[..., 0].mean(axis=0) + rng.normal(0, 0.7, (120, len(TARGETS)))
    result["mixture"] = mixture(fits)
    core = np.stack([rng.uniform(-80, 80, 120), rng.uniform(-80, 80, 120)], axis=1)
    core[:2] = (0.0, 0.0), (1e-4, 0.0)
    for unknown, missing in ((90, 0), (91, 0), (0, 91), (0, 0)):
        some, own = targets.copy(), fits.copy()
        some[:unknown, 6], own[:, :missing, 0] = np.nan, np.nan
        for w in (None, weights[:120]):
            calibration, record = TargetCalibration.of("net", own, some, w)
            assert TargetCalibration.from_json(json.loads(json.dumps(calibration.as_json()))) == calibration
            name = f"{unknown} {missing} {w is not None}"
            result[name] = {"scale": calibration.scale, "arrays": calibration.arrays(own, core)}
            if missing or w is not None:
                result[name] |= {"record": {part: condensed(one) for part, one in record["held_out"].items()}}
            result[name] |= {"no core": len(calibration.arrays(own, None))}
    reference(result)


def test_folds(reference: Reference) -> None:
    rng = np.random.default_rng(14)
    n = 900
    labels, energy = rng.choice(3, n, p=[0.2, 0.3, 0.5]), rng.uniform(14.5, 17.5, n)
    energy[:5] = (15.0, 15.5, 16.0, 16.5, 17.0)
    groups = np.where(np.arange(n) % 4 == 0, np.arange(n) // 8, np.arange(n))
    result: dict[str, Any] = {
        "folds": [
            assign_folds(labels, k, seed=s, energy=e, groups=g)
            for k, s in ((2, 0), (5, 3))
            for e in (None, energy)
            for g in (None, groups)
        ],
        "counts": [class_counts(labels, g, c) for g in (None, groups) for c in (0, 5)],
        "subsampled": [subsampled(90, 17), subsampled(200_002), len(cast(np.ndarray, subsampled(200_001)))],
    }
    assert subsampled(200_000) == slice(None)
    passing = rng.random(n) < 0.7
    for kept in (99, 100, 101):
        few = passing & ((labels != 0) | (np.cumsum(passing & (labels == 0)) <= kept))
        for usable in (None, energy > 15):
            events, remark = evaluation_events(few, labels, 3, usable)
            result[f"evaluation {kept} {usable is not None}"] = [events, len(remark) > 0]
    every = evaluation_events(np.ones(50, bool), np.zeros(50, int), 1)
    result["evaluation of all"] = [every[0], len(every[1]) > 0]
    for share in (0.0, 0.1, 0.25, 0.5):
        for g in (None, groups):
            outer, remark = choose_holdout(passing, labels, share, seed=4, energy=energy, groups=g, least=15)
            result[f"holdout {share} {g is not None}"] = [outer, len(remark) > 0]
    result["holdout"] = [len(choose_holdout(passing, labels, share, seed=4)[1]) > 0 for share in (0.1, 0.5)]
    result["holdout without energies"] = choose_holdout(passing, labels, 0.3, seed=5, groups=groups, least=5)[0]
    # Of one class there are 4 or 5 groups of 30 events in the holdout.
    big = np.arange(n) // 30
    of_groups = np.where(np.arange(n // 30) < 20, 0, 1)[big]
    for share in (0.40, 0.45, 0.5):
        outer, remark = choose_holdout(np.ones(n, bool), of_groups, share, seed=1, groups=big, least=1)
        result[f"groups of the holdout {share}"] = [outer, len(remark) > 0]
    rows = np.sort(rng.choice(n, 600, replace=False))
    for fraction in (0.05, 0.1, 0.3, 0.5, 0.7):
        for e, g in ((None, None), (energy, None), (energy, groups)):
            name = f"stopping {fraction} {e is not None} {g is not None}"
            result[name] = early_stopping_rows(rows, labels, fraction, seed=6, energy=e, groups=g)
    result["one shower"] = early_stopping_rows(
        np.arange(9), np.array([0] * 4 + [1] * 5), 0.5, seed=1, groups=np.array([0] * 4 + [1] * 5)
    )
    reference(result)


def test_a_class_without_events_needs_no_folds() -> None:
    assert sorted(assign_folds(np.array([0, 0, 2, 2]), 2, seed=0).tolist()) == [0, 0, 1, 1]
    with pytest.raises(InputError, match="class '1' has 1 events, fewer than the 2 folds"):
        assign_folds(np.array([0, 0, 1]), 2, seed=0)
    with pytest.raises(InputError, match="class 'b' has 0 events"):
        assign_folds(np.array([0, 0, 2, 2]), 2, seed=0, classes=("a", "b", "c"))


class _Shown:
    """What the chain needs of events: their quantities, which are usable, their fitted cores, their fingerprint."""

    def __init__(self, usable: np.ndarray | None) -> None:
        rng = np.random.default_rng(15)
        self._context, self._usable, self._core = rng.uniform(14, 18, (60, 4)), usable, rng.uniform(-60, 60, (60, 2))

    def context(self, rows: slice) -> np.ndarray:
        return self._context[rows]

    def usable(self, rows: slice) -> np.ndarray | None:
        return None if self._usable is None else self._usable[rows]

    def fitted_core(self, rows: slice) -> np.ndarray:
        return self._core[rows]

    def events_fingerprint(self) -> str:
        return "print"


def chain_of_energy() -> tuple[Chain, DecisionSample]:
    """Return a chain with a meta-learner that does without one learner, a pool of estimates and calibrated targets."""
    events = of_energy(300, weighted=True, own=True)
    rules = stacking_of(ENERGY).decide(events).rules
    bias = 0.02 * np.arange(12)
    pool = Pool("log_pool", ("a", "b", "c"), np.array([0.6, 0.7, 0.0]), np.ones((3, 12)), bias)
    scales = {"a": 1.0, "b": 1.0, "c": 1.0, "average": 1.0, "stack": 0.8}
    shares = (0.0, *(float(k) for k in range(2, 13)))
    calibration = TargetCalibration("a", (1.2, 0.9, 1.1))
    return Chain(ENERGY, scales, pool, rules, "stack", "hash", 2, calibration, ("b",), shares), events


def test_chain(tmp_path: Path, reference: Reference) -> None:
    chain, events = chain_of_energy()
    rng = np.random.default_rng(16)
    log_proba = {
        name: np.stack([log_softmax(z[:60] + rng.normal(0, 0.2, (60, 12))) for _ in range(2)])
        for name, z in events.systems.items()
        if name in "ab"
    }
    estimates = np.stack([rng.normal(0, 1, (2, 60, 8)), rng.uniform(0.1, 0.5, (2, 60, 8))], axis=-1)
    fits = {name: Posterior(z, estimates if name == "a" else None) for name, z in log_proba.items()}
    usable = np.arange(60) % 7 > 0

    def shown(some: Chain, which: np.ndarray | None) -> Mapping[str, Any]:
        pieces = [(slice(k, k + 30), {name: of.take(slice(k, k + 30)) for name, of in fits.items()}) for k in (0, 30)]
        parts = list(some.stream(pieces, cast(Events, _Shown(which))))
        whole = concatenated(parts)
        assert (whole.config_hash, whole.test_fingerprint, whole.scores) == ("hash", "print", None)
        return {"log_proba": whole.log_proba, "arrays": whole.arrays, "labels": whole.labels, "by_name": whole.by_name}

    without = replace(chain, target_calibration=None)
    posteriors = without.posteriors(fits)
    RunFolder(tmp_path).write_chain(chain)
    write_checksums(tmp_path, written(tmp_path))
    again = read_chain(Checksums.open(tmp_path), ENERGY, list(chain.scales), "hash")
    np.testing.assert_array_equal(shown(again, usable)["log_proba"], shown(chain, usable)["log_proba"])
    three = {**{name: z[0] for name, z in log_proba.items()}, "c": log_proba["a"][1]}
    reference(
        {
            "average": average_of(log_proba["a"]),
            "posteriors": posteriors,
            "combined": combined(three, chain.pool),
            "all usable": shown(chain, None),
            "some usable": shown(again, usable),
            "no prior": shown(replace(chain, prior=None), usable)["log_proba"],
            "every one usable": shown(chain, np.ones(60, bool))["log_proba"],
            "ships a learner": shown(replace(chain, shipped="a"), usable)["arrays"],
            "other": [again.n_fits, *cast(tuple[float, ...], again.prior)],
        }
    )


def test_what_a_chain_needs() -> None:
    chain, _ = chain_of_energy()
    assert chain.learners == ("a", "b", "c")
    assert chain.needed == ("a", "b")
    assert replace(chain, shipped="c").needed == ("c",)
    assert (list(chain.fits("a")), list(chain.fits("b"))) == ([0, 1], [None])
    one = Posterior(np.zeros((1, 2, 12)))
    only = {"a": one}
    assert set(chain.posteriors(only)) == {"a"}
    assert set(chain.posteriors(only | {"b": one})) == {"a", "b", "stack"}
    with_zero = chain.posteriors({**only, "b": one, "c": one})
    assert set(with_zero) == {"a", "b", "c", "average", "stack"}
