"""The answers of a task: the most probable class, scores of gammas, or estimates of a target.

In an energy run there are the posterior means of the shipped system and of the learners that it needs, and the
learner's own estimate, which gives distances where the open bins at both ends give none. Shipped is their pool by
squared loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import polars as pl

from showerstack.scoring.metrics.classes import gamma_scores, threshold_table
from showerstack.scoring.metrics.residuals import residual_metrics, resolution
from showerstack.showers.schema import GAMMA, TargetQuantity, Task
from showerstack.stacking.estimates import OWN, POOL, EstimatePool, PosteriorMean, Rule
from showerstack.stacking.events import CONTEXT_SCALARS, Binned
from showerstack.stacking.sample import Sample, cross_fitted


@dataclass(frozen=True)
class DecisionSample:
    """Labelled events that no fit has learned from, and every system's posteriors of them, as of new events."""

    systems: Mapping[str, np.ndarray]
    """Per learner, ``average`` and ``stack``: (n, C) log-posteriors, NaN where a learner that left the race predicted
    no event."""
    shipped: str
    """The one that predicts new events."""
    sample: Sample
    """The n events."""
    offsets: np.ndarray | None = None
    """(n,) true value minus reference, where the task has a target."""
    training: Binned | None = None
    """The same of all training events of the kind that predictions are scored on."""
    own: np.ndarray | None = None
    """(2, n) estimate of the target minus reference, and its error, by a learner of true quantities; None without."""
    needed: tuple[str, ...] = ()
    """Learners that the shipped system needs."""


@dataclass(frozen=True)
class Decision:
    """How a task's answers are made, learned from judged events."""

    record: Mapping[str, Any]
    """The manifest's entry."""
    rules: Mapping[str, Rule] = field(default_factory=dict)
    """By system; none for the most probable class."""
    scores: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Of gammas, for thresholds of the user's own: labels, scores and, where there are any, groups and weights."""


class TaskStacking:
    """A task with classes. Other tasks differ in some of the methods; see :func:`stacking_of`."""

    task: Task | None = None
    """Whose labels answers are; None: class numbers."""
    survival: ClassVar[bool] = False
    """Whether learners stay, and the gate closes, where more hadrons survive without or with the stack."""
    outputs: Mapping[str, str] = {"prediction": "number of the most probable class, (n,) int64"}
    """Outputs of an exported run beside the log-probabilities, with their meaning."""

    def decide(self, judged: DecisionSample) -> Decision:
        """Learn from judged events how answers are made."""
        return Decision({"chosen": "argmax"})

    def arrays(self, rule: Rule | None, log_proba: np.ndarray, context: np.ndarray | None) -> dict[str, np.ndarray]:
        """Return the task's arrays in ``predictions.npz``, first of all what is scored.

        Parameters
        ----------
        rule
            Of the system whose posteriors these are.
        log_proba
            (N, C) log-posteriors.
        context
            (N, K) quantities of the events, as :meth:`showerstack.stacking.events.Events.context` returns them.
        """
        numbers = np.argmax(log_proba, axis=1).astype(np.int8)
        return {self.task.output_array: self.task.decoded(numbers)} if self.task else {"predictions": numbers}

    def pooled(
        self,
        rules: Mapping[str, Rule],
        posteriors: Mapping[str, np.ndarray],
        own: Mapping[str, np.ndarray],
        context: np.ndarray | None,
    ) -> dict[str, np.ndarray]:
        """Return arrays that replace those of :meth:`arrays` where true quantities are estimated as well; none here.

        ``rules`` and ``posteriors`` are those of all systems, ``own`` the estimates and their errors, (N,) each.
        """
        return {}

    def test_arrays(
        self, rule: Rule | None, log_proba: np.ndarray, context: np.ndarray | None
    ) -> dict[str, np.ndarray]:
        """Return the arrays of ``test/<system>.npz`` beside the posteriors."""
        return self.arrays(rule, log_proba, context)

    def answers(
        self, log_proba: np.ndarray, stored: Callable[[str], np.ndarray | None]
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the answers to (N, C) posteriors of a system by each of its rules: the rule's name and (N,) values.

        ``stored`` returns one of :meth:`test_arrays` from its file, or None where the file has none of that name.
        """
        yield "argmax", log_proba.argmax(axis=1)

    def columns(self, arrays: Mapping[str, np.ndarray]) -> list[pl.Series]:
        """Return the columns of a table of predictions that replace the most probable class."""
        return []


class GammaStacking(TaskStacking):
    """Scores, higher = more gamma-like."""

    survival = True
    outputs: Mapping[str, str] = {"gamma_score": "ln(p_gamma / p_hadron) + 0.5, higher = more gamma-like, (n,) float32"}

    def decide(self, judged: DecisionSample) -> Decision:
        """Make the table of thresholds and keep the scores, for thresholds of the user's own."""
        scores, sample = gamma_scores(judged.systems[judged.shipped]), judged.sample
        pairs = (("groups", sample.groups), ("weights", sample.weights))
        optional = {name: values for name, values in pairs if values is not None}
        thresholds = threshold_table(sample.labels, scores, groups=sample.groups, weights=sample.weights)
        kept = {"labels": sample.labels.astype(np.int8), "scores": scores, **optional}
        return Decision({"thresholds": thresholds}, scores=kept)

    def arrays(self, rule: Rule | None, log_proba: np.ndarray, context: np.ndarray | None) -> dict[str, np.ndarray]:
        """Return ``gamma_scores``: (N,) float64."""
        return {"gamma_scores": gamma_scores(log_proba)}

    def test_arrays(
        self, rule: Rule | None, log_proba: np.ndarray, context: np.ndarray | None
    ) -> dict[str, np.ndarray]:
        """Return ``scores``: (N,) float64."""
        return {"scores": gamma_scores(log_proba)}

    def answers(
        self, log_proba: np.ndarray, stored: Callable[[str], np.ndarray | None]
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the scores as rule ``score``: (N,) float64."""
        scores = stored("scores")
        yield "score", log_proba[:, 0] - log_proba[:, 1] if scores is None else scores

    def columns(self, arrays: Mapping[str, np.ndarray]) -> list[pl.Series]:
        """Return the scores."""
        return [pl.Series("gamma_score", arrays["gamma_scores"])]


class TargetStacking(TaskStacking):
    """Estimates with errors."""

    def __init__(self, target: TargetQuantity, n_bins: int) -> None:
        self.target, self.n_bins = target, n_bins
        self.outputs = {
            target.name: f"estimate, {target.unit}, (n,) float32",
            f"{target.name}_error": "its standard deviation, (n,) float32",
        }

    def decide(self, judged: DecisionSample) -> Decision:
        """Take bins from the training events, and the scale of the errors from the judged ones."""
        assert judged.training is not None
        assert judged.offsets is not None
        offsets, weights = judged.offsets, judged.sample.weights
        rule = PosteriorMean.of(judged.training.offsets, judged.training.labels, self.n_bins)
        in_widths, rules = {}, dict[str, Rule]()
        for name, log_proba in judged.systems.items():
            estimate, error = rule(log_proba)
            in_widths[name] = (estimate - offsets) / np.maximum(error, 1e-12)
            known = ~np.isnan(in_widths[name])
            scale = resolution(in_widths[name][known], None if weights is None else weights[known])
            rules[name] = replace(rule, scale=scale)
        residual = rule(judged.systems[judged.shipped])[0] - offsets
        record: dict[str, Any] = {
            "chosen": "posterior mean",
            "held_out": residual_metrics(residual, weights),
            "held_out_in_widths": residual_metrics(in_widths[judged.shipped], weights),
        }
        if judged.own is not None:
            names = (*dict.fromkeys((judged.shipped, *judged.needed)), OWN)
            values, errors = _estimates(rules, judged.systems, names, judged.own)
            pool = EstimatePool.of(names, values, errors, offsets, weights)
            rules[POOL] = pool
            record |= {"chosen": POOL, "shares": pool.shares(errors), "posterior_mean": record["held_out"]}
            estimate, error = _cross_fitted(names, values, errors, offsets, judged.sample.folds, weights)
            record["held_out"] = residual_metrics(estimate - offsets, weights)
            record["held_out_in_errors"] = residual_metrics((estimate - offsets) / error, weights)
        return Decision(record, rules)

    def pooled(
        self,
        rules: Mapping[str, Rule],
        posteriors: Mapping[str, np.ndarray],
        own: Mapping[str, np.ndarray],
        context: np.ndarray | None,
    ) -> dict[str, np.ndarray]:
        """Return estimate and error of the pool, if there is one."""
        pool, (name, error_name) = rules.get(POOL), self._array_names
        if not isinstance(pool, EstimatePool) or name not in own:
            return {}
        reference = self._reference(context)
        own_estimate = np.stack([own[name] - reference, own[error_name]])
        estimate, error = pool(*_estimates(rules, posteriors, pool.names, own_estimate))
        return {name: estimate + reference, error_name: error}

    def arrays(self, rule: Rule | None, log_proba: np.ndarray, context: np.ndarray | None) -> dict[str, np.ndarray]:
        """Return estimates and errors: (N,) float64 each."""
        assert isinstance(rule, PosteriorMean)
        estimate, error = rule(log_proba)
        name, error_name = self._array_names
        return {name: estimate + self._reference(context), error_name: error}

    @property
    def _array_names(self) -> tuple[str, str]:
        return self.target.name, f"{self.target.name}_error"

    def _reference(self, context: np.ndarray | None) -> np.ndarray | float:
        if self.target.reference is None:
            return 0.0
        assert context is not None
        return np.asarray(context[:, CONTEXT_SCALARS.index(self.target.reference)])

    def answers(
        self, log_proba: np.ndarray, stored: Callable[[str], np.ndarray | None]
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the estimates as rule ``estimate``."""
        estimate = stored(self.target.name)
        if estimate is not None:
            yield "estimate", estimate

    def columns(self, arrays: Mapping[str, np.ndarray]) -> list[pl.Series]:
        """Return estimates and errors."""
        return [pl.Series(name, values) for name, values in arrays.items()]


def _estimates(
    rules: Mapping[str, Rule], systems: Mapping[str, np.ndarray], names: tuple[str, ...], own: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return estimates and errors, (J, n) each, by name; ``own`` (2, n) has those of :data:`OWN`."""
    pairs = []
    for name in names:
        if name == OWN:
            pairs.append(own)
            continue
        rule = rules[name]
        assert isinstance(rule, PosteriorMean)
        pairs.append(np.stack(rule(systems[name])))
    values, errors = np.stack(pairs, axis=1)
    return values, errors


def _cross_fitted(
    names: tuple[str, ...],
    values: np.ndarray,
    errors: np.ndarray,
    truth: np.ndarray,
    folds: np.ndarray,
    importance: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return estimate and error (n,) of each event by a pool that did not learn from its fold."""

    def of(outside: np.ndarray, inside: np.ndarray) -> np.ndarray:
        weights = None if importance is None else importance[outside]
        pool = EstimatePool.of(names, values[:, outside], errors[:, outside], truth[outside], weights)
        return np.stack(pool(values[:, inside], errors[:, inside]), axis=1)

    estimate, error = np.ascontiguousarray(cross_fitted(folds, np.stack([truth, truth], axis=1), of).T)
    return estimate, error


def stacking_of(task: Task) -> TaskStacking:
    """Return what stacking does for a task: gammas, a target, or classes of any kind."""
    if task == GAMMA:
        return GammaStacking()
    if task.target is not None:
        return TargetStacking(task.target, task.n_classes)
    procedure = TaskStacking()
    procedure.task = task
    return procedure


def own_estimate(task: Task, estimates: Mapping[str, np.ndarray], context: np.ndarray | None) -> np.ndarray | None:
    """Return (2, n) a learner's estimate of the task's target minus its reference, and the error; None without one.

    ``context`` are the (n, K) quantities of :data:`~showerstack.stacking.events.CONTEXT_SCALARS`.
    """
    target = task.target
    if target is None or target.name not in estimates:
        return None
    reference: np.ndarray | float = 0.0
    if target.reference is not None:
        assert context is not None
        reference = context[:, CONTEXT_SCALARS.index(target.reference)]
    return np.stack([estimates[target.name] - reference, estimates[f"{target.name}_error"]])
