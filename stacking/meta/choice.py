"""Choosing the meta-learner by nested cross-validation, and leaving out learners that the stack can do without.

For every fold k the choice is made by cross-validation among the *other* folds, the chosen meta-learner is fitted on
them, and predicts fold k. So each event's stacked prediction comes from a procedure, choice included, that did not use
its label, and the gain over the learners is the gain to expect on new events.

Learners are left out before that choice, so that predictions cost less: a stack predicts new events as slowly as all
its learners together, while most of what each adds is known from others already. What a learner is worth is measured
with the log-linear pool on out-of-fold predictions, cross-validated.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np

from showerstack.runtime.context import Progress
from showerstack.runtime.cost import Deadline, reached
from showerstack.runtime.processes import in_processes, limited_threads
from showerstack.stacking.fit.folds import subsampled
from showerstack.stacking.meta.base import MetaLearner, StackInputs, meta_learners
from showerstack.stacking.meta.gate import standard_error
from showerstack.stacking.meta.scorers import LogLossScorer, Scorer
from showerstack.stacking.meta.softmax import fit_pool, log_loss_per_event, pooled

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
    """The scorer's loss of each meta-learner's cross-validated predictions."""
    untried: tuple[str, ...] = ()
    """Candidates for which there was no time."""

    def remark(self) -> str | None:
        """Return what the user should know; None where every candidate was tried."""
        if not self.untried:
            return None
        return f"meta-learners that were not tried, to keep the time limit: {', '.join(self.untried)}"


def fit_meta(name: str, inputs: StackInputs, scorer: Scorer, use: np.ndarray) -> MetaLearner:
    """Fit one meta-learner on the events that ``use`` (N,) bool names."""
    part = inputs.take(use)
    meta = meta_learners()[name](inputs.learners)
    meta.fit(replace(part, weights=scorer.weights(part.log_proba, part.labels, part.event_weights)), scorer)
    return meta


def choose_and_fit(
    names: tuple[str, ...],
    inputs: StackInputs,
    scorer: Scorer,
    *,
    workers: int = 1,
    progress: Progress | None = None,
    until: Deadline | None = None,
) -> Stacked:
    """Choose among meta-learners by nested cross-validation and fit the chosen one on everything.

    Parameters
    ----------
    names
        Candidates, in any order: of those within one standard error of the best that of least ``complexity`` is chosen.
    inputs
        Out-of-fold log-probabilities and labels of the events under the evaluation cuts.
    scorer
        What decides.
    until
        When the choice has to end: candidates that are not finished by then are left out, the simplest never is.

    Notes
    -----
    A fit without folds {j, k} serves both "choose for k, scored on j" and the reverse, so K folds need
    K (K - 1) / 2 + K + 1 fits per candidate. With two folds nothing is left to choose on: the simplest is taken.
    """
    names = tuple(sorted(names, key=_complexity))
    folds = inputs.folds % min(MAX_META_FOLDS, int(inputs.folds.max()) + 1)
    n_folds = int(folds.max()) + 1
    left_out = list(_left_out(n_folds))
    jobs = [(name, out) for name in names for out in left_out]
    arguments = [(name, inputs, scorer, folds, out) for name, out in jobs]
    content: dict[tuple[str, frozenset[int]], dict[int, np.ndarray]] = {}
    with closing(in_processes(_fit_and_predict, arguments, workers=workers)) as outcomes:
        for number, (job, outcome) in enumerate(zip(jobs, outcomes, strict=False), start=1):
            content[job] = outcome
            if progress:
                progress(number, len(jobs), job[0])
            if number >= n_folds and reached(until):
                break
    tried = [name for name in names if all((name, out) in content for out in left_out)] or [names[0]]
    untried = tuple(name for name in names if name not in tried)
    names = tuple(tried)
    choosing = n_folds > 2 and len(names) > 1
    by_meta = {name: _assembled(content, name, folds, inputs) for name in names}
    log_proba, chosen = np.empty_like(inputs.log_proba[0]), []
    for k in range(n_folds):
        candidates = {name: _inner(content, name, folds, k, inputs) for name in names} if choosing else {}
        best = _simplest_of_best(candidates, inputs.take(folds != k), scorer) if candidates else names[0]
        chosen.append(best)
        log_proba[folds == k] = content[best, frozenset({k})][k]
    final = _simplest_of_best(by_meta, inputs, scorer) if choosing else names[0]
    meta = fit_meta(final, inputs, scorer, np.ones(len(folds), dtype=bool))
    losses = {name: scorer.loss(predicted, inputs.labels, inputs.event_weights) for name, predicted in by_meta.items()}
    return Stacked(meta, log_proba, by_meta, chosen, losses, untried)


def _left_out(n_folds: int) -> Iterator[frozenset[int]]:
    yield from (frozenset({k}) for k in range(n_folds))
    if n_folds > 2:
        yield from (frozenset(pair) for pair in combinations(range(n_folds), 2))


def _fit_and_predict(
    name: str, inputs: StackInputs, scorer: Scorer, folds: np.ndarray, out: frozenset[int]
) -> dict[int, np.ndarray]:
    predicted = {}
    with limited_threads(1):  # the same last bits in any process
        meta = fit_meta(name, inputs, scorer, ~np.isin(folds, sorted(out)))
        for k in sorted(out):
            part = inputs.take(folds == k)
            predicted[k] = meta.predict(part.log_proba, part.context)
    return predicted


def _assembled(
    content: dict[tuple[str, frozenset[int]], dict[int, np.ndarray]], name: str, folds: np.ndarray, inputs: StackInputs
) -> np.ndarray:
    result = np.empty_like(inputs.log_proba[0])
    for k in range(int(folds.max()) + 1):
        result[folds == k] = content[name, frozenset({k})][k]
    return result


def _inner(
    content: dict[tuple[str, frozenset[int]], dict[int, np.ndarray]],
    name: str,
    folds: np.ndarray,
    outer: int,
    inputs: StackInputs,
) -> np.ndarray:
    """Return predictions of the events outside fold ``outer`` by fits that saw neither that fold nor their own."""
    result = np.empty_like(inputs.log_proba[0])
    for j in range(int(folds.max()) + 1):
        if j != outer:
            result[folds == j] = content[name, frozenset({j, outer})][j]
    return result[folds != outer]


def _simplest_of_best(candidates: dict[str, np.ndarray], inputs: StackInputs, scorer: Scorer) -> str:
    """Return the simplest of those as good as the best; where the scorer's errors are wide, log-loss decides first."""
    good = _as_good_as_the_best(candidates, inputs, scorer)
    return min(_as_good_as_the_best(good, inputs, LogLossScorer()), key=_complexity)


def _complexity(name: str) -> int:
    return meta_learners()[name].complexity


def _as_good_as_the_best(
    candidates: dict[str, np.ndarray], inputs: StackInputs, scorer: Scorer
) -> dict[str, np.ndarray]:
    labels, groups, weights = inputs.labels, inputs.groups, inputs.event_weights
    best = min(candidates, key=lambda name: scorer.loss(candidates[name], labels, weights))

    def within_an_error(name: str) -> bool:
        worse, error = scorer.difference(candidates[name], candidates[best], labels, groups, weights)
        return name == best or worse <= error

    return {name: predicted for name, predicted in candidates.items() if within_an_error(name)}


PRUNING_EVENTS = 60_000
"""Events on which learners are compared, chosen at random: their error is then about a third of :data:`TOLERANCE`."""
PRUNING_FOLDS = 5
"""Folds of the cross-validation at most; more are merged."""
TOLERANCE = 2e-4
"""Log-loss, nats, that all learners left out may cost together."""


@dataclass(frozen=True)
class DroppedLearner:
    """A learner that the stack does without."""

    name: str
    cost: float
    """Log-loss without it and all left out before it, minus that with all learners: nats."""
    standard_error: float
    """Of the cost, paired; copies of one shower are one observation."""


@dataclass(frozen=True)
class Pruning:
    """Which learners the stack uses."""

    tolerance: float
    selected: tuple[str, ...]
    """In the order of the run."""
    left_out: tuple[DroppedLearner, ...]
    """In the order in which they went."""
    in_time: bool = True
    """Whether every learner was tried."""

    def as_json(self) -> dict[str, Any]:
        """Return the manifest's entry."""
        return asdict(self)

    def remark(self) -> str | None:
        """Return what the user should know; None where every learner is used."""
        lines = []
        if self.left_out:
            last = self.left_out[-1]
            names = ", ".join(one.name for one in self.left_out)
            worse = "worse" if last.cost > 0 else "better"
            lines.append(
                f"left out of the stack: {names}; without them its log-loss out-of-fold is {abs(last.cost):.5f} ± "
                f"{last.standard_error:.5f} nats {worse}, and predictions are faster (--prune 0 keeps every learner)"
            )
        if not self.in_time:
            lines.append("to keep the time limit, not every learner was tried for leaving it out of the stack")
        return "; ".join(lines) or None


def prune(
    inputs: StackInputs,
    scorer: Scorer,
    tolerance: float,
    slow: frozenset[str] = frozenset(),
    until: Deadline | None = None,
) -> Pruning:
    """Leave out learners, one by one, as long as all of them together are shown to cost less than the tolerance.

    Parameters
    ----------
    inputs
        Out-of-fold predictions of the events under the evaluation cuts.
    scorer
        One with a veto (the ln survival of gamma sets) also keeps a learner without which the pool is worse by it
        beyond the paired error.
    tolerance
        Log-loss in nats that the cost and its standard error together must stay below, so that few events, which can
        show nothing, leave nothing out; 0 keeps every learner.
    slow
        Learners to be tried first, whatever they cost below the tolerance: networks on grids take much longer to
        predict than tables.
    until
        When it has to end, with what is left out by then.

    Notes
    -----
    A learner found to be needed is not tried again: what it adds only grows when others go.
    """
    left_out: list[DroppedLearner] = []
    in_time = True
    if tolerance > 0 and len(inputs.learners) > 1:
        sample = _Sample.of(inputs, scorer)
        selected = list(inputs.learners)
        for group in ([name for name in selected if name in slow], [name for name in selected if name not in slow]):
            candidates = list(group)
            while candidates and len(selected) > 1:
                entries = {}
                for name in candidates:
                    in_time = in_time and not reached(until)
                    if in_time:
                        entries[name] = sample.cost([k for k in selected if k != name])
                if not in_time:
                    break
                candidates = [name for name in candidates if entries[name].allowed(tolerance)]
                if not candidates:
                    break
                cheapest = min(candidates, key=lambda name: entries[name].mean)
                left_out.append(DroppedLearner(cheapest, entries[cheapest].mean, entries[cheapest].standard_error))
                selected.remove(cheapest)
                candidates.remove(cheapest)
    gone = {one.name for one in left_out}
    return Pruning(tolerance, tuple(name for name in inputs.learners if name not in gone), tuple(left_out), in_time)


@dataclass(frozen=True)
class _Cost:
    mean: float
    standard_error: float
    vetoed: bool

    def allowed(self, tolerance: float) -> bool:
        return self.mean + self.standard_error < tolerance and not self.vetoed


@dataclass(frozen=True)
class _Sample:
    """Events on which sets of learners are compared with all of them."""

    inputs: StackInputs
    scorer: Scorer
    whole: np.ndarray
    """(N, C) pool of all learners, cross-validated."""

    @classmethod
    def of(cls, inputs: StackInputs, scorer: Scorer) -> _Sample:
        use = np.zeros(len(inputs.labels), dtype=bool)
        use[subsampled(len(use), PRUNING_EVENTS)] = True
        part = inputs.take(use)
        part = replace(part, folds=part.folds % min(PRUNING_FOLDS, int(part.folds.max()) + 1))
        return cls(part, scorer, _cross_validated(part))

    def cost(self, names: list[str]) -> _Cost:
        predicted = _cross_validated(self.inputs.only(names))
        labels, weights = self.inputs.labels, self.inputs.event_weights
        each = log_loss_per_event(predicted, labels, weights) - log_loss_per_event(self.whole, labels, weights)
        vetoed = False
        if self.scorer.veto:
            worse, error = self.scorer.difference(predicted, self.whole, labels, self.inputs.groups, weights)
            vetoed = worse > error
        return _Cost(float(each.mean()), standard_error(each, self.inputs.groups), vetoed)


def _cross_validated(inputs: StackInputs) -> np.ndarray:
    result = np.empty_like(inputs.log_proba[0])
    for k in np.unique(inputs.folds):
        inside = inputs.folds == k
        outside = None if inputs.event_weights is None else inputs.event_weights[~inside]
        weights, bias = fit_pool(inputs.log_proba[:, ~inside], inputs.labels[~inside], outside)
        result[inside] = pooled(inputs.log_proba[:, inside], weights, bias)
    return result
