"""Choosing the meta-learner without believing its own fit: nested cross-validation.

For every fold k the choice is made by cross-validation among the *other* folds, the chosen meta-learner is fitted on
them, and predicts fold k. So each event's stacked prediction comes from a procedure, choice included, that has not
seen its label, and the gain over the learners is the gain to expect on new events.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
from threadpoolctl import threadpool_limits

from showers.execution.processes import in_processes
from showers.execution.progress import Progress
from stacking.combine.judges import Judge, LogLossJudge
from stacking.combine.meta import MetaLearner, StackInputs
from stacking.combine.meta_registry import META_LEARNERS

MAX_META_FOLDS = 5
"""More learner folds are merged: meta-learners have few parameters, and the fits grow with the square."""


@dataclass(frozen=True)
class Stacked:
    """The outcome of the nested choice."""

    meta: MetaLearner
    """The chosen meta-learner, fitted on all events."""
    log_proba: np.ndarray
    """(N, C): nested predictions of the whole procedure."""
    by_meta: dict[str, np.ndarray]
    """Per meta-learner, (N, C) cross-validated predictions, for the table that shows all."""
    chosen_by_fold: list[str] = field(default_factory=list)
    losses: dict[str, float] = field(default_factory=dict)
    """Judge's loss of each meta-learner's cross-validated predictions."""


def fit_meta(name: str, inputs: StackInputs, judge: Judge, use: np.ndarray) -> MetaLearner:
    """Fit one meta-learner on the events that ``use`` (N,) bool names."""
    part = inputs.take(use)
    meta = META_LEARNERS[name](inputs.learners)
    meta.fit(replace(part, weights=judge.weights(part.log_proba, part.labels)), judge)
    return meta


def choose_and_fit(
    names: tuple[str, ...],
    inputs: StackInputs,
    judge: Judge,
    *,
    workers: int = 1,
    progress: Progress | None = None,
) -> Stacked:
    """Choose among meta-learners by nested cross-validation and fit the chosen one on everything.

    Parameters
    ----------
    names
        Candidates, in any order: of those within one standard error of the best that of least ``complexity`` is chosen.
    inputs
        Out-of-fold log-probabilities and labels of the judged events.
    judge
        What decides.

    Notes
    -----
    A fit without folds {j, k} serves both "choose for k, judged on j" and the reverse, so K folds need
    K (K - 1) / 2 + K + 1 fits per candidate. With two folds nothing is left to choose on: the simplest is taken.
    """
    names = tuple(sorted(names, key=_complexity))
    folds = inputs.folds % min(MAX_META_FOLDS, int(inputs.folds.max()) + 1)
    n_folds = int(folds.max()) + 1
    left_out = list(_left_out(n_folds))
    jobs = [(name, out) for name in names for out in left_out]
    arguments = [(name, inputs, judge, folds, out) for name, out in jobs]
    outcomes = in_processes(_fit_and_predict, arguments, workers=workers)
    found: dict[tuple[str, frozenset[int]], dict[int, np.ndarray]] = {}
    for number, (job, outcome) in enumerate(zip(jobs, outcomes, strict=True), start=1):
        found[job] = outcome
        if progress:
            progress(number, len(jobs), job[0])
    by_meta = {name: _assembled(found, name, folds, inputs) for name in names}
    log_proba, chosen = np.empty_like(inputs.log_proba[0]), []
    for k in range(n_folds):
        candidates = {name: _inner(found, name, folds, k, inputs) for name in names} if n_folds > 2 else {}
        rest = folds != k
        best = _simplest_of_best(candidates, inputs.labels[rest], judge) if candidates else names[0]
        chosen.append(best)
        log_proba[folds == k] = found[best, frozenset({k})][k]
    final = _simplest_of_best(by_meta, inputs.labels, judge) if n_folds > 2 else names[0]
    meta = fit_meta(final, inputs, judge, np.ones(len(folds), dtype=bool))
    losses = {name: judge.loss(predicted, inputs.labels) for name, predicted in by_meta.items()}
    return Stacked(meta, log_proba, by_meta, chosen, losses)


def _left_out(n_folds: int) -> Iterator[frozenset[int]]:
    yield from (frozenset({k}) for k in range(n_folds))
    if n_folds > 2:
        yield from (frozenset(pair) for pair in combinations(range(n_folds), 2))


def _fit_and_predict(
    name: str, inputs: StackInputs, judge: Judge, folds: np.ndarray, out: frozenset[int]
) -> dict[int, np.ndarray]:
    predicted = {}
    with threadpool_limits(1):  # the same last bits in any process
        meta = fit_meta(name, inputs, judge, ~np.isin(folds, sorted(out)))
        for k in sorted(out):
            part = inputs.take(folds == k)
            predicted[k] = meta.predict(part.log_proba, part.context)
    return predicted


def _assembled(
    found: dict[tuple[str, frozenset[int]], dict[int, np.ndarray]], name: str, folds: np.ndarray, inputs: StackInputs
) -> np.ndarray:
    result = np.empty_like(inputs.log_proba[0])
    for k in range(int(folds.max()) + 1):
        result[folds == k] = found[name, frozenset({k})][k]
    return result


def _inner(
    found: dict[tuple[str, frozenset[int]], dict[int, np.ndarray]],
    name: str,
    folds: np.ndarray,
    outer: int,
    inputs: StackInputs,
) -> np.ndarray:
    """Return predictions of the events outside fold ``outer`` by fits that saw neither that fold nor their own."""
    result = np.empty_like(inputs.log_proba[0])
    for j in range(int(folds.max()) + 1):
        if j != outer:
            result[folds == j] = found[name, frozenset({j, outer})][j]
    return result[folds != outer]


def _simplest_of_best(candidates: dict[str, np.ndarray], labels: np.ndarray, judge: Judge) -> str:
    """Return the simplest of those as good as the best; where the judge's errors are wide, log-loss decides first."""
    good = _as_good_as_the_best(candidates, labels, judge)
    return min(_as_good_as_the_best(good, labels, LogLossJudge()), key=_complexity)


def _complexity(name: str) -> int:
    return META_LEARNERS[name].complexity


def _as_good_as_the_best(candidates: dict[str, np.ndarray], labels: np.ndarray, judge: Judge) -> dict[str, np.ndarray]:
    best = min(candidates, key=lambda name: judge.loss(candidates[name], labels))

    def within_an_error(name: str) -> bool:
        worse, error = judge.difference(candidates[name], candidates[best], labels)
        return name == best or worse <= error

    return {name: predicted for name, predicted in candidates.items() if within_an_error(name)}
