"""What learners say of events, and the answers made of it: the most probable class, scores of gammas, or estimates.

A posterior over the bins of a target gives its mean as the estimate and its width as the error, for the energy in lg E.
The learner of a run that learns true quantities gives energy and core of a shower directly: every fit gives an estimate
and an error. Shipped is the mean of the estimates; its variance is the mean of the fits' variances plus the variance of
their estimates (moments of an equal mixture), times a factor by which 68 % of the training events that no fit has
learned from lie within one error.

In an energy run both are there: the posterior means of the shipped system and of the learners that it needs, and the
learner's own estimate, which gives distances where the open bins at both ends give none. Shipped is their pool by
squared loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
import polars as pl
from scipy.special import softmax

from showerstack.models.base.inputs import TARGETS
from showerstack.scoring.metrics.classes import gamma_scores, threshold_table
from showerstack.scoring.metrics.residuals import residual_metrics, resolution
from showerstack.showers.schema import GAMMA, TargetQuantity, Task
from showerstack.stacking.events import CONTEXT_SCALARS, Binned
from showerstack.stacking.sample import Sample, cross_fitted

OWN = "own estimate"
"""Name, among the estimates that are pooled, of the one by the learner of true quantities."""
POOL = "pool of estimates"
"""Name of the pool among the rules of a run's systems."""
MAX_LOG_STRENGTH = 12.0
"""Logarithm of a strength, either way, beyond which an estimate's share no longer changes."""
SMALLEST_ERROR = 1e-6
UNITS = {
    "lg_energy": "lg(E/eV)", "lg_energy_error": "lg(E/eV)",
    "core_x_m": "m", "core_x_error_m": "m", "core_y_m": "m", "core_y_error_m": "m",
}  # fmt: skip
"""Arrays of estimates in ``predictions.npz`` and their units."""
OWN_ENERGY, OUTWARD, SIDEWAYS = (
    [target.name for target in TARGETS].index(name) for name in ("lg_energy", "core_outward_m", "core_sideways_m")
)
USED = (OWN_ENERGY, OUTWARD, SIDEWAYS)
MIN_EVENTS = 100
"""Events of known truth without which errors are not measured."""


@dataclass(frozen=True)
class Posterior:
    """What the F fits of a learner, or one of them, say of n events."""

    log_proba: np.ndarray | None
    """(F, n, C) or (n, C) float64 log-probabilities; None where they are not wanted."""
    estimates: np.ndarray | None = None
    """(F, n, T, 2) or (n, T, 2) standardised estimates of true quantities and their errors; None where they are not
    wanted, or the learner gives none."""

    def take(self, rows: slice | np.ndarray) -> Self:
        """Return what the fits say of some of the events."""
        log_proba, estimates = (None if z is None else z[:, rows] for z in (self.log_proba, self.estimates))
        return type(self)(log_proba, estimates)

    @classmethod
    def stacked(cls, fits: Sequence[Self]) -> Self:
        """Return as one what single fits say of the same events."""
        parts = ([fit.log_proba for fit in fits], [fit.estimates for fit in fits])
        log_proba, estimates = (None if part[0] is None else np.stack(part) for part in parts)  # type: ignore[arg-type]
        return cls(log_proba, estimates)


@dataclass(frozen=True)
class PosteriorMean:
    """Mean and width of a posterior over bins, each of which has a mean and a variance of its own."""

    mean: np.ndarray
    """(C,) mean of each bin."""
    variance: np.ndarray
    """(C,) variance inside each bin."""
    scale: float = 1.0
    """Error over the posterior's width, which the open bins at both ends make too large."""

    @classmethod
    def of(cls, values: np.ndarray, bins: np.ndarray, n_bins: int) -> Self:
        """Learn means and variances from values (N,) and their bins (N,), none of which is empty."""
        count = np.bincount(bins, minlength=n_bins)
        mean = np.bincount(bins, values, minlength=n_bins) / count
        variance = np.bincount(bins, (values - mean[bins]) ** 2, minlength=n_bins) / count
        return cls(mean, variance)

    def __call__(self, log_proba: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return estimate and standard deviation, (N,) each, of log-posteriors (N, C)."""
        probability = np.exp(log_proba)
        probability /= probability.sum(axis=1, keepdims=True)
        estimate = probability @ self.mean
        mean_square = probability @ (self.variance + self.mean**2)
        return estimate, self.scale * np.sqrt(np.maximum(mean_square - estimate**2, 0.0))

    def as_json(self) -> dict[str, Any]:
        """Return JSON content."""
        return {"mean": self.mean.tolist(), "variance": self.variance.tolist(), "scale": self.scale}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Read what :meth:`as_json` returned."""
        mean, variance = (np.array(content[name], float) for name in ("mean", "variance"))
        return cls(mean, variance, float(content["scale"]))


def _shares(log_strength: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Return the weights (J, n) in proportion to ``strength_j / error_j^2``, which add up to 1 in each shower."""
    return np.asarray(softmax(log_strength[:, None] - 2.0 * np.log(np.maximum(errors, SMALLEST_ERROR)), axis=0))


@dataclass(frozen=True)
class EstimatePool:
    """One estimate of several.

    In each shower estimate j counts in proportion to ``strength_j / error_j^2``, so that one with a large error there,
    such as a posterior in an open bin, gives way. The strengths minimise the squared loss. The pool's variance is that
    of a weighted mean of correlated estimates, times the square of a factor by which 68 % of the showers lie within one
    error.
    """

    names: tuple[str, ...]
    """Of the J estimates: systems, and :data:`OWN`."""
    strengths: np.ndarray
    """(J,) positive, their mean logarithm 0."""
    biases: np.ndarray
    """(J,) mean of each estimate minus the truth, which is subtracted."""
    correlation: np.ndarray
    """(J, J) of the estimates' deviations, in errors."""
    scale: float = 1.0

    @classmethod
    def of(
        cls,
        names: tuple[str, ...],
        values: np.ndarray,
        errors: np.ndarray,
        truth: np.ndarray,
        importance: np.ndarray | None = None,
    ) -> Self:
        """Learn from showers that no fit has learned from.

        Parameters
        ----------
        values, errors
            (J, n) estimates and their errors.
        truth
            (n,).
        importance
            (n,) importance weights of the showers; None where all count alike.
        """
        biases = np.average(values - truth, axis=1, weights=importance)
        unbiased = values - biases[:, None]

        def loss(log_strength: np.ndarray) -> tuple[float, np.ndarray]:
            shares = _shares(log_strength, errors)
            pooled = (shares * unbiased).sum(axis=0)
            residual = pooled - truth
            slope = 2.0 * np.average(shares * (unbiased - pooled) * residual, axis=1, weights=importance)
            return float(np.average(residual**2, weights=importance)) / spread, slope / spread

        spread = float(np.average((unbiased.mean(axis=0) - truth) ** 2, weights=importance)) or 1.0
        bounds = [(-MAX_LOG_STRENGTH, MAX_LOG_STRENGTH)] * len(names)
        from scipy.optimize import minimize  # predictions need no fit

        best = minimize(loss, np.zeros(len(names)), jac=True, method="L-BFGS-B", bounds=bounds).x
        in_errors = (unbiased - truth) / np.maximum(errors, SMALLEST_ERROR)
        covariance = np.cov(in_errors, aweights=importance).reshape(len(names), -1)
        widths = np.sqrt(np.diag(covariance))
        correlation = np.clip(covariance / np.outer(widths, widths), -1, 1)
        pool = cls(names, np.exp(best - best.mean()), biases, correlation)
        estimate, error = pool(values, errors)
        return replace(pool, scale=resolution((estimate - truth) / error, importance))

    def __call__(self, values: np.ndarray, errors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return estimate and error, (n,) each, of (J, n) estimates and errors."""
        errors = np.maximum(errors, SMALLEST_ERROR)
        shares = _shares(np.log(self.strengths), errors)
        estimate = (shares * (values - self.biases[:, None])).sum(axis=0)
        parts = shares * errors
        variance = np.einsum("jn,jk,kn->n", parts, self.correlation, parts)
        return estimate, self.scale * np.sqrt(np.maximum(variance, SMALLEST_ERROR**2))

    def shares(self, errors: np.ndarray) -> dict[str, float]:
        """Return the mean weight of each estimate over showers with these errors (J, n)."""
        shares = _shares(np.log(self.strengths), errors)
        return dict(zip(self.names, shares.mean(axis=1).tolist(), strict=True))

    def as_json(self) -> dict[str, Any]:
        """Return JSON content."""
        arrays = {name: getattr(self, name).tolist() for name in ("strengths", "biases", "correlation")}
        return {"names": list(self.names), **arrays, "scale": self.scale}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Read what :meth:`as_json` returned."""
        strengths, biases, correlation = (np.array(content[k], float) for k in ("strengths", "biases", "correlation"))
        return cls(tuple(map(str, content["names"])), strengths, biases, correlation, float(content["scale"]))


Rule: TypeAlias = PosteriorMean | EstimatePool
"""How a task makes estimates from posteriors; kept in ``meta/decision.json``."""


def rule_from_json(content: Mapping[str, Any]) -> Rule:
    """Read what a rule's ``as_json`` returned."""
    return EstimatePool.from_json(content) if "strengths" in content else PosteriorMean.from_json(content)


def mixture(fits: np.ndarray) -> np.ndarray:
    """Return mean and standard deviation (n, T, 2) of an equal mixture of the (F, n, T, 2) fits."""
    mean = fits[..., 0].mean(axis=0)
    variance = (fits[..., 1] ** 2).mean(axis=0) + fits[..., 0].var(axis=0)
    return np.stack([mean, np.sqrt(variance)], axis=-1)


def cross_fitted_scale(in_errors: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Return the factor of each event's error, (n,), measured on the half of the events in which it is not.

    Halves are the first and the last rows: rows of one shower follow each other.
    """
    first = np.arange(len(in_errors)) < len(in_errors) // 2
    halves = [resolution(in_errors[half], None if weights is None else weights[half]) for half in (~first, first)]
    return np.where(first, *halves)


@dataclass(frozen=True)
class TargetCalibration:
    """From the fits' standardised estimates to quantities with units."""

    learner: str
    """Whose estimates they are."""
    scale: tuple[float, float, float]
    """Factors of the errors of energy, core outward and core sideways; 0 for what was not learned."""

    @classmethod
    def of(
        cls, learner: str, fits: np.ndarray, targets: np.ndarray, weights: np.ndarray | None = None
    ) -> tuple[Self, dict[str, Any]]:
        """Measure the errors on events that no fit has learned from.

        Parameters
        ----------
        fits
            (F, n, T, 2) standardised estimates and errors.
        targets
            (n, T) standardised truth, NaN where unknown.
        weights
            (n,) importance weights, or None: the errors' factors, bias and resolution are then those of weight.

        Returns
        -------
        TargetCalibration
            With factors of the errors.
        dict
            The manifest's entry: bias and resolution, and those of estimate minus truth in errors, with intervals.
        """
        estimates = mixture(fits)
        record: dict[str, Any] = {"learner": learner, "units": UNITS, "held_out": {}}
        scale = []
        for k in USED:
            known = ~np.isnan(targets[:, k]) & ~np.isnan(estimates[:, k]).any(axis=1)
            if known.sum() < MIN_EVENTS:
                scale.append(0.0)
                continue
            residual = estimates[known, k, 0] - targets[known, k]
            in_errors = residual / estimates[known, k, 1]
            importance = None if weights is None else weights[known]
            scale.append(resolution(in_errors, importance))
            record["held_out"][TARGETS[k].name] = {
                "unit": TARGETS[k].unit,
                **residual_metrics(residual * TARGETS[k].width, importance),
                "in_errors": residual_metrics(in_errors / cross_fitted_scale(in_errors, importance), importance),
                "factor_of_errors": scale[-1],
            }
        return cls(learner, (scale[0], scale[1], scale[2])), record

    def arrays(self, fits: np.ndarray, fitted_core: np.ndarray | None) -> dict[str, np.ndarray]:
        """Return estimates and errors (n,) float64 by the names of :data:`UNITS`.

        Parameters
        ----------
        fits
            (F, n, T, 2).
        fitted_core
            (n, 2) m, from which cores are counted; None where there is none.
        """
        with np.errstate(invalid="ignore"):
            estimates = mixture(fits)
        value, error = [], []
        for k, scale in zip(USED, self.scale, strict=True):
            target = TARGETS[k]
            value.append(estimates[:, k, 0] * target.width + target.centre)
            error.append(estimates[:, k, 1] * target.width * scale)
        (lg_energy, outward, sideways), (lg_energy_error, outward_error, sideways_error) = value, error
        arrays: dict[str, np.ndarray] = {}
        if self.scale[0]:
            arrays |= {"lg_energy": lg_energy, "lg_energy_error": lg_energy_error}
        if self.scale[1] and self.scale[2] and fitted_core is not None:
            x, y = fitted_core.T
            r = np.maximum(np.hypot(x, y), 1e-3)
            cos, sin = x / r, y / r
            arrays |= {
                "core_x_m": x + outward * cos - sideways * sin,
                "core_x_error_m": np.hypot(outward_error * cos, sideways_error * sin),
                "core_y_m": y + outward * sin + sideways * cos,
                "core_y_error_m": np.hypot(outward_error * sin, sideways_error * cos),
            }
        return arrays

    def as_json(self) -> dict[str, Any]:
        """Return JSON content."""
        return {"learner": self.learner, "scale": list(self.scale)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Read what :meth:`as_json` returned."""
        energy, outward, sideways = map(float, content["scale"])
        return cls(str(content["learner"]), (energy, outward, sideways))


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
