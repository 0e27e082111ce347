"""The second level: one posterior of many, how sure it may be, and whether it is good enough to ship.

Arrays go in and come out: out-of-fold posteriors of the learners, and a :class:`~showerstack.stacking.sample.Sample`
of the events that they are of.

**Pool.** ``log_softmax(sum_l w_l s_l ln p_l + b)``: each learner has a weight, not negative, and a scale for every
class. Three are tried, the simplest first: the plain average in log-probability; the log-linear pool with weights and
its own sharpness; the same after vector scaling of every learner, for learners that are sharp between some classes and
blurred between others. Of those within one standard error of the best in cross-validation the simplest is taken; one
that is no better than its best learner gives way to it. Before, learners whose absence costs less than a tolerance
leave, since a stack predicts new events as slowly as all its learners together. Entry points ``showerstack.pools`` may
add others: a pool is numbers, however they were found.

**Temperature.** ``log_softmax(z / T)`` (C. Guo et al., ICML 2017), one a system, kept only where it gains. It changes
how sure a system is, never the order of classes or events.

**Gate.** The stack predicts unless the holdout shows it to be worse than its best learner by one standard error, or it
is worse there than every learner: what is combined of few rows may be far worse than all of them, with errors as large.
A holdout of a tenth cannot show gains of a thousandth in log-loss that are there in the mean, and a stack that gains
nothing costs nearly nothing. A gain is claimed only where the holdout shows it by two standard errors.

**Leaks.** A learner that is far surer of training events out-of-fold than of new ones may have learned from their
labels. How sure learners are of two samples differs also where the samples do, by their class mix for instance: then it
differs for all learners alike. So each learner is compared with the others. A suspicion becomes a remark: unlabelled
events that are to be predicted never choose which learner is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache, partial
from operator import attrgetter
from typing import Any, Self, TypeAlias

import numpy as np

from showerstack.models.base.posterior import log_softmax
from showerstack.runtime.code import installed_modules, objects_by_name
from showerstack.runtime.errors import InputError
from showerstack.scoring.metrics.log_survival import paired_log_survival
from showerstack.scoring.metrics.losses import error_of_mean
from showerstack.scoring.metrics.reliability import reliability
from showerstack.showers.schema import GAMMA_CLASS, HADRON
from showerstack.stacking.folds import EVALUATION_FOLDS, Folds, assign_folds, class_counts
from showerstack.stacking.options import TOLERANCE
from showerstack.stacking.sample import MeanAndError, Sample, cross_fitted
from showerstack.stacking.stated import ChosenPool, Diagram, DroppedLearner, Gate, Reliability

POOLS = ("average", "log_pool", "calibrated_pool")
"""Names of our pools, the simplest first."""
MOST_FOLDS = 5
"""More folds of the learners are merged for cross-validation."""
CHOICE_EVENTS = 60_000
"""Events on which learners and pools are compared: their error is then about a third of :data:`TOLERANCE`."""
MOST_STEPS = 200
PRECISION = 1e-9
"""Relative decrease of the loss at which a fit stops."""
RIDGE = 1e-4
"""Pull of a fit's numbers towards its start, in log-loss: it decides only where the events do not."""
WORSE_SIGMA = 1.0
"""Standard errors by which the holdout must show the stack to be worse for its best learner to predict instead."""

LogProba = Mapping[str, np.ndarray]
"""By learner, (N, C) log-probabilities."""


@dataclass(frozen=True)
class Pool:
    """A fitted pool."""

    name: str
    """As in :func:`pool_specs`."""
    learners: tuple[str, ...]
    weights: np.ndarray
    """(L,) not negative."""
    scales: np.ndarray
    """(L, C) of each learner's log-probabilities."""
    bias: np.ndarray
    """(C,)."""

    def __call__(self, log_proba: LogProba) -> np.ndarray:
        """Return (N, C) log-posteriors; a learner of weight zero is not needed."""
        logits = np.broadcast_to(self.bias, log_proba[self.needed[0]].shape)
        for name, weight, scale in zip(self.learners, self.weights, self.scales, strict=True):
            logits = logits + log_proba[name] * (weight * scale) if weight else logits
        return log_softmax(logits)

    @property
    def needed(self) -> tuple[str, ...]:
        """Learners without which it cannot predict: those with a weight, the first where none has."""
        weighted = tuple(name for name, weight in zip(self.learners, self.weights, strict=True) if weight)
        return weighted or self.learners[:1]

    def shares(self) -> dict[str, float]:
        """Return the weights, summing to one."""
        total = self.weights.sum() or 1.0
        return dict(zip(self.learners, (self.weights / total).tolist(), strict=True))

    def as_json(self) -> dict[str, Any]:
        """Return JSON content."""
        arrays = {name: getattr(self, name).tolist() for name in ("weights", "scales", "bias")}
        return {"name": self.name, "learners": list(self.learners), **arrays}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Read what :meth:`as_json` returned."""
        weights, scales, bias = (np.array(content[name], float) for name in ("weights", "scales", "bias"))
        learners = tuple(map(str, content["learners"]))
        if weights.shape != (len(learners),) or bias.ndim != 1 or scales.shape != (len(learners), len(bias)):
            raise ValueError("as many weights as learners, as many scales as learners and classes")
        return cls(str(content["name"]), learners, weights, scales, bias)


Fitted: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Weights (L,), not negative; scales (L, C); bias (C,)."""


@dataclass(frozen=True)
class PoolSpec:
    """How a pool is found."""

    name: str
    fit: Callable[[np.ndarray, Sample], Fitted]
    """Of (L, N, C) out-of-fold log-probabilities and the N events."""
    version: int = 1
    """Raised by hand when the numbers of an installed pool change."""


@cache
def pool_specs() -> dict[str, PoolSpec]:
    """Return all pools by name: ours, the simplest first, then those of entry points ``showerstack.pools``."""
    ours = {name: PoolSpec(name, fit) for name, fit in zip(POOLS, (_average, _log_pool, _calibrated_pool), strict=True)}
    installed = objects_by_name(installed_modules("showerstack.pools").values(), "POOLS", attrgetter("name"))
    if taken := ours.keys() & installed.keys():
        raise ValueError(f"an installed distribution declares the pool {min(taken)!r}, which exists already")
    return ours | installed


def _average(z: np.ndarray, sample: Sample) -> Fitted:
    n_learners, _, n_classes = z.shape
    return np.full(n_learners, 1.0 / n_learners), np.ones((n_learners, n_classes)), np.zeros(n_classes)


def _log_pool(z: np.ndarray, sample: Sample) -> Fitted:
    weights, bias = fit_weights(z, sample)
    return weights, np.ones((len(z), z.shape[2])), bias


def _calibrated_pool(z: np.ndarray, sample: Sample) -> Fitted:
    scales, shifts = map(np.array, zip(*(fit_scaling(of_learner, sample) for of_learner in z), strict=True))
    # What would normalise a scaled posterior is the same for all classes of an event: the pool cancels it.
    weights, bias = fit_weights(z * scales[:, None] + shifts[:, None], sample)
    return weights, scales, bias + weights @ shifts


def fit_pool(name: str, log_proba: LogProba, sample: Sample) -> Pool:
    """Fit one pool of :func:`pool_specs` to out-of-fold log-probabilities of the events of a sample."""
    rows = sample.subsample()
    z = np.stack([of_learner[rows] for of_learner in log_proba.values()])
    weights, scales, bias = (np.asarray(values, float) for values in pool_specs()[name].fit(z, sample.take(rows)))
    n_learners, _, n_classes = z.shape
    shapes = weights.shape, scales.shape, bias.shape
    finite = all(np.isfinite(values).all() for values in (weights, scales, bias))
    if shapes != ((n_learners,), (n_learners, n_classes), (n_classes,)) or not finite or (weights < 0).any():
        raise InputError(
            f"pool {name!r} is not usable: it has to return weights ({n_learners},) of at least 0, scales "
            f"({n_learners}, {n_classes}) and biases ({n_classes},), all finite"
        )
    return Pool(name, tuple(log_proba), weights, scales, bias)


def fit_weights(z: np.ndarray, sample: Sample) -> tuple[np.ndarray, np.ndarray]:
    """Return weights (L,), not negative, and biases (C,) of the log-linear pool of (L, N, C) log-probabilities."""
    n_learners, n_events, n_classes = z.shape
    flat = z.reshape(n_learners, -1)

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        logits = (theta[:n_learners] @ flat).reshape(n_events, n_classes) + theta[n_learners:]
        value, slope = cross_entropy(logits, sample)
        return value, np.concatenate([flat @ slope.ravel(), slope.sum(axis=0)])

    start = np.concatenate([np.full(n_learners, 1.0 / n_learners), np.zeros(n_classes)])
    theta = _minimise(loss, start, [(0.0, 10.0)] * n_learners + [(-10.0, 10.0)] * n_classes)
    return theta[:n_learners], theta[n_learners:]


def fit_scaling(log_proba: np.ndarray, sample: Sample) -> tuple[np.ndarray, np.ndarray]:
    """Return positive scales (C,) and biases (C,) of vector scaling, ``z_c -> a_c z_c + b_c``, of (N, C)."""
    n_classes = log_proba.shape[1]

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = cross_entropy(log_proba * theta[:n_classes] + theta[n_classes:], sample)
        return value, np.concatenate([(slope * log_proba).sum(axis=0), slope.sum(axis=0)])

    start = np.concatenate([np.ones(n_classes), np.zeros(n_classes)])
    theta = _minimise(loss, start, [(0.05, 20.0)] * n_classes + [(-10.0, 10.0)] * n_classes)
    return theta[:n_classes], theta[n_classes:]


def cross_entropy(logits: np.ndarray, sample: Sample) -> tuple[float, np.ndarray]:
    """Return the mean loss and its derivative by the logits, (N, C)."""
    log_proba, events = log_softmax(logits), np.arange(len(sample))
    share = np.full(len(sample), 1.0 / len(sample)) if sample.weights is None else sample.weights / sample.weights.sum()
    slope = np.exp(log_proba)
    slope[events, sample.labels] -= 1.0
    return -float(share @ log_proba[events, sample.labels]), slope * share[:, None]


def _minimise(
    loss: Callable[[np.ndarray], tuple[float, np.ndarray]], start: np.ndarray, bounds: list[tuple[float, float]]
) -> np.ndarray:
    """Return the numbers of least penalised loss; ``loss`` returns the value and its gradient."""

    def penalised(theta: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = loss(theta)
        away = theta - start
        return value + 0.5 * RIDGE * float(away @ away), slope + RIDGE * away

    options = {"maxiter": MOST_STEPS, "ftol": PRECISION}
    from scipy.optimize import minimize  # predictions need no fit

    return np.asarray(minimize(penalised, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x)


def cross_validated(name: str, log_proba: LogProba, sample: Sample) -> np.ndarray:
    """Return (N, C) log-posteriors of each fold by a pool that was fitted on the other folds."""
    folds = sample.folds % MOST_FOLDS
    if len(np.unique(folds)) < 2:
        folds = assign_folds(sample.labels, 2, seed=0, groups=sample.groups)
    return _cross_fitted(partial(fit_pool, name), folds, log_proba, sample)


def _cross_fitted(
    fit: Callable[[LogProba, Sample], Pool], folds: np.ndarray, log_proba: LogProba, sample: Sample
) -> np.ndarray:
    def of(outside: np.ndarray, inside: np.ndarray) -> np.ndarray:
        pool = fit({name: z[outside] for name, z in log_proba.items()}, sample.take(outside))
        return pool({name: z[inside] for name, z in log_proba.items()})

    return cross_fitted(folds, next(iter(log_proba.values())), of)


Dropped: TypeAlias = tuple[DroppedLearner, ...]
"""Learners in the order in which they were left out."""


def left_out(log_proba: LogProba, sample: Sample, tolerance: float, *, survival: bool = False) -> Dropped:
    """Return the learners that the stack does without, in the order in which they were left out.

    The one whose absence costs least goes next, as long as all that went are shown to cost less than the tolerance
    together: cost plus standard error, of the cross-validated log-linear pool, so that few events, which can show
    nothing, leave nothing out. One that is needed is not tried again: what it adds only grows when others go.

    Parameters
    ----------
    tolerance
        Log-loss; 0 keeps every learner.
    survival
        Whether a learner also stays without which more hadrons survive, beyond the error.
    """
    rows = sample.subsample(CHOICE_EVENTS)
    part, kept = sample.take(rows), {name: z[rows] for name, z in log_proba.items()}
    dropped: list[DroppedLearner] = []
    if tolerance == 0 or len(kept) < 2:
        return ()
    whole, candidates = cross_validated("log_pool", kept, part), set(kept)
    while candidates and len(kept) > 1:
        costs: dict[str, MeanAndError] = {}
        for name in (name for name in kept if name in candidates):
            without = cross_validated("log_pool", {other: z for other, z in kept.items() if other != name}, part)
            cost = part.mean_of(part.losses(without) - part.losses(whole))
            if cost.mean + cost.error < tolerance and not (survival and is_worse_in_survival(without, whole, part)):
                costs[name] = cost
        candidates = set(costs)
        if costs:
            cheapest = min(costs, key=lambda name: costs[name].mean)
            cost = costs[cheapest]
            dropped.append(DroppedLearner(name=cheapest, cost=cost.mean, standard_error=cost.error))
            candidates.remove(cheapest)
            del kept[cheapest]
    return tuple(dropped)


@dataclass(frozen=True)
class Stack:
    """A pool of the learners that are worth their time, and how it was found."""

    pool: Pool
    log_proba: np.ndarray
    """(N, C) cross-validated log-posteriors of the chosen pool."""
    log_losses: dict[str, float]
    """Of every pool that was tried, cross-validated."""
    left_out: Dropped

    def entry(self) -> ChosenPool:
        """Return the manifest's entry."""
        pool, left_out = self.pool, list(self.left_out)
        return ChosenPool(chosen=pool.name, weights=pool.shares(), log_losses={**self.log_losses}, left_out=left_out)


def average_of(log_proba: np.ndarray) -> np.ndarray:
    """Return the normalised mean in log-probability over the first axis of (L, N, C)."""
    return log_softmax(log_proba.mean(axis=0))


def combined(learners: Mapping[str, np.ndarray], pool: Pool) -> dict[str, np.ndarray]:
    """Return learners, ``average`` and ``stack``, before calibration: (N, C) log-probabilities each.

    ``average`` is that of the pool's learners and needs all of them, ``stack`` only those with a weight.
    """
    systems = dict(learners)
    if all(name in systems for name in pool.learners):
        systems["average"] = average_of(np.stack([systems[name] for name in pool.learners]))
    if all(name in systems for name in pool.needed):
        systems["stack"] = pool(systems)
    return systems


def fit_stack(
    log_proba: LogProba,
    sample: Sample,
    *,
    tolerance: float = TOLERANCE,
    names: Sequence[str] = POOLS,
    survival: bool = False,
) -> Stack:
    """Leave out learners as :func:`left_out` does, choose one of the pools named, fit it on all events.

    Where the pool is no better than the best of its learners, that one is the stack (:func:`best_alone`).
    """
    dropped = left_out(log_proba, sample, tolerance, survival=survival)
    kept = {name: z for name, z in log_proba.items() if name not in {learner.name for learner in dropped}}
    tried = {name: cross_validated(name, kept, sample) for name in pool_specs() if name in names}
    losses = {name: sample.losses(z) for name, z in tried.items()}
    best = min(losses, key=lambda name: float(losses[name].mean()))
    excess = {name: sample.mean_of(loss - losses[best]) for name, loss in losses.items()}
    # The simplest pool within one standard error of the best: pools are in the order of their simplicity.
    chosen = next(name for name, more in excess.items() if name == best or more.mean <= more.error)
    means = {name: float(loss.mean()) for name, loss in losses.items()}
    stack = Stack(fit_pool(chosen, kept, sample), tried[chosen], means, dropped)
    if tolerance == 0 or len(kept) < 2:
        return stack
    return best_alone(stack, log_proba, sample, next(iter(tried)), survival=survival)


def best_alone(stack: Stack, log_proba: LogProba, sample: Sample, simplest: str, *, survival: bool) -> Stack:
    """Return the best learner of a stack as one where the pool has no lower log-loss in cross-validation.

    Few events cannot show that a learner is worth nothing, so it stays; with a much better one beside it, it may cost
    more than any pool gains. For gammas no more hadrons may survive, beyond the error. ``simplest`` names the pool that
    the one learner then has.
    """
    kept = {name: log_proba[name] for name in stack.pool.learners}
    best = min(kept, key=lambda name: float(sample.losses(kept[name]).mean()))
    alone = cross_validated(simplest, {best: kept[best]}, sample)
    if sample.losses(alone).mean() >= sample.losses(stack.log_proba).mean():
        return stack
    if survival and is_worse_in_survival(alone, stack.log_proba, sample):
        return stack
    whole = cross_validated("log_pool", log_proba, sample)
    cost = sample.mean_of(sample.losses(alone) - sample.losses(whole))
    others = (name for name in kept if name != best)
    gone = tuple(DroppedLearner(name=name, cost=cost.mean, standard_error=cost.error) for name in others)
    pool = fit_pool(simplest, {best: kept[best]}, sample)
    return replace(stack, pool=pool, log_proba=alone, left_out=(*stack.left_out, *gone))


def nested(fit: Callable[[LogProba, Sample], Stack], log_proba: LogProba, sample: Sample) -> np.ndarray:
    """Return (N, C) log-posteriors of each fold by a stack found on the other folds, learners and pool included."""
    return _cross_fitted(lambda z, part: fit(z, part).pool, sample.folds % MOST_FOLDS, log_proba, sample)


def is_worse_in_survival(a: np.ndarray, b: np.ndarray, sample: Sample) -> bool:
    """Return whether more hadrons survive by (N, 2) log-probabilities ``a`` than by ``b``, beyond the error."""
    difference = log_survival_difference(a, b, sample)
    return difference.mean > WORSE_SIGMA * difference.error


def log_survival_difference(a: np.ndarray, b: np.ndarray, sample: Sample) -> MeanAndError:
    """Return the mean ln survival by (N, 2) log-probabilities ``a`` minus that by ``b``, with a paired bootstrap.

    It resamples events within classes, or whole groups; with importance weights all showers.
    """
    scores_a, scores_b = (z[:, GAMMA_CLASS] - z[:, HADRON] for z in (a, b))
    return MeanAndError(*paired_log_survival(sample.labels, scores_a, scores_b, sample.groups, sample.weights))


def fifths_of(sample: Sample, seed: int, energy: np.ndarray | None = None) -> np.ndarray:
    """Divide events on which something is both fitted and scored: their folds, (N,) int8."""
    return assign_folds(sample.labels, EVALUATION_FOLDS, seed=seed, energy=energy, groups=sample.groups)


FIRST_FOLD = 0
MIN_RACED = 20
"""Events of each class in the first fold, or groups that hold it, without which nothing is left out after it."""


def leaving(first: LogProba, sample: Sample, n_classes: int, tolerance: float, seed: int, *, survival: bool) -> Dropped:
    """Return which learners leave the race by their predictions of the first fold, whose events are the sample.

    Most of a run's time goes into fits of learners that the stack then leaves out. So after the first fold of every
    learner a run goes on with those that :func:`left_out` keeps there. The decision depends on these predictions alone:
    a run that was ended repeats it when it goes on.
    """
    if len(first) < 2 or class_counts(sample.labels, sample.groups, n_classes).min() < MIN_RACED:
        return ()
    return left_out(first, replace(sample, folds=fifths_of(sample, seed)), tolerance, survival=survival)


def left_out_remarks(raced: Dropped, dropped: Dropped, judged_on: str) -> list[str]:
    """Return remarks on the learners that left the race, and on those that the stack does without."""
    scored = "" if judged_on == ON_HOLDOUT else "they are scored on it alone; "
    after_one_fold = (
        f"left out after one fold: {{}}; without them the stack's log-loss on that fold is {{}} ({scored}--race off "
        "fits them in full)"
    )
    of_stack = (
        "left out of the stack: {}; without them its log-loss out-of-fold is {}, and predictions are faster "
        "(--prune 0 keeps every learner)"
    )
    remarks = []
    for text, learners in ((after_one_fold, raced), (of_stack, dropped)):
        if learners:
            last, names = learners[-1], ", ".join(learner.name for learner in learners)
            size = f"{abs(last.cost):.5f} ± {last.standard_error:.5f} {'higher' if last.cost > 0 else 'lower'}"
            remarks.append(text.format(names, size))
    return remarks


ON_HOLDOUT, OUT_OF_FOLD = "outer holdout", "out-of-fold"


@dataclass(frozen=True)
class Judged:
    """Labelled events on which the shipped system is chosen and scored, and the posteriors of every system."""

    on: str
    """:data:`ON_HOLDOUT` or :data:`OUT_OF_FOLD`."""
    rows: np.ndarray
    """(N,) bool among the training events; n of them."""
    sample: Sample
    raw: LogProba
    """By system (learners, ``average``, ``stack``), (n, C) log-probabilities before calibration, NaN where a learner
    that left the race predicted no event."""
    seed: int = 0
    """By which the events of one fold are divided anew."""

    def of(self, name: str) -> tuple[np.ndarray, Sample]:
        """Return which events a system predicted, (n,) bool, and those as a sample.

        All of them, but of a learner that left the race without a holdout those of its one fold, divided anew.
        """
        predicted = ~np.isnan(self.raw[name][:, 0])
        if predicted.all():
            return predicted, self.sample
        part = self.sample.take(predicted)
        return predicted, replace(part, folds=fifths_of(part, self.seed))

    @classmethod
    def on_holdout(cls, folds: Folds, holdout: LogProba, pool: Pool, seed: int, energy: np.ndarray | None) -> Self:
        """Return the events of the holdout, predicted by the averages of fits of ``holdout`` as new events are."""
        sample = folds.sample(folds.holdout)
        energy = None if energy is None else energy[folds.holdout]
        divided = replace(sample, folds=fifths_of(sample, seed, energy))
        return cls(ON_HOLDOUT, folds.holdout, divided, combined(holdout, pool), seed)

    @classmethod
    def by_single_fits(cls, folds: Folds, systems: LogProba, seed: int) -> Self:
        """Return the events in the folds, where there is no holdout."""
        return cls(OUT_OF_FOLD, folds.out_of_fold, folds.sample(folds.out_of_fold), systems, seed)


KEEP_SIGMA = 2.0
"""Gain over no calibration, in standard errors, from which a temperature is kept."""
SCALES = (0.05, 20.0)
"""Limits of 1/T."""


def scaled(log_proba: np.ndarray, scale: float) -> np.ndarray:
    """Return ``log_softmax(scale z)`` of (..., C) log-probabilities z; z itself where the scale is 1."""
    return log_proba if scale == 1.0 else log_softmax(scale * log_proba)


def fit_scale(log_proba: np.ndarray, sample: Sample) -> float:
    """Return the scale 1/T of least log-loss."""
    rows = sample.subsample()
    part, z = sample.take(rows), log_proba[rows]
    low, high = np.log(SCALES)
    from scipy.optimize import minimize_scalar

    result = minimize_scalar(lambda t: cross_entropy(np.exp(t) * z, part)[0], bounds=(low, high), method="bounded")
    return float(np.exp(result.x))


def calibrated(log_proba: np.ndarray, sample: Sample) -> tuple[float, np.ndarray]:
    """Return the scale of (N, C) log-probabilities, and (N, C) to score them by, each fold scaled by the other folds.

    The scale is 1 where it does not gain :data:`KEEP_SIGMA` standard errors. No fit learned from the N events.
    """

    def of(outside: np.ndarray, inside: np.ndarray) -> np.ndarray:
        return scaled(log_proba[inside], _useful_scale(log_proba[outside], sample.take(outside)))

    return _useful_scale(log_proba, sample), cross_fitted(sample.folds, log_proba, of)


def _useful_scale(log_proba: np.ndarray, sample: Sample) -> float:
    """Return the scale, or 1 where it gains too little.

    One number fitted to N events gains 1/(2 N) by chance: nothing beside two standard errors of any gain.
    """
    scale = fit_scale(log_proba, sample)
    gain = sample.mean_of(sample.losses(log_proba) - sample.losses(scaled(log_proba, scale)))
    return scale if gain.mean > KEEP_SIGMA * gain.error else 1.0


CLAIM_SIGMA = 2.0
"""Standard errors by which the holdout must show a gain for it to be claimed: 2 of 100 that are none are claimed."""
ROUNDING = 1e-9
"""Log-losses closer than this are the same: a stack of one learner differs from it by last bits alone."""


def decide_gate(
    stacked: np.ndarray, learners: Mapping[str, np.ndarray], sample: Sample, *, survival: bool = False
) -> Gate:
    """Compare the stack with the best of its learners.

    Parameters
    ----------
    stacked
        (N, C) log-probabilities of the stack: the average of fits on the holdout, calibrated as for new events;
        without a holdout nested out-of-fold ones.
    learners
        Per learner, (N, C) log-probabilities of the same events, made in the same way.
    survival
        Whether the gate also closes where more hadrons survive, beyond the error.
    """
    losses = {name: sample.losses(z) for name, z in learners.items()}
    best = min(losses, key=lambda name: float(losses[name].mean()))
    gain = sample.mean_of(losses[best] - sample.losses(stacked))
    more_hadrons = log_survival_difference(stacked, learners[best], sample) if survival else None
    shipped, size = True, f"{abs(gain.mean):.5f} ± {gain.error:.5f}"
    is_last = float(sample.losses(stacked).mean()) > max(float(one.mean()) for one in losses.values()) + ROUNDING
    is_shown = gain.mean > max(CLAIM_SIGMA * gain.error, ROUNDING)
    if len(learners) == 1 and not is_shown:  # of one learner the stack is its temperature alone
        shipped, reason = False, f"{best} is the only learner with all fits"
    elif gain.mean < -max(WORSE_SIGMA * gain.error, ROUNDING):
        shipped, reason = False, f"the log-loss of the stack is {size} higher than that of {best}"
    elif is_last:
        shipped, reason = (
            False,
            f"the log-loss of the stack is {size} higher than that of {best}, and than every learner's",
        )
    elif more_hadrons is not None and more_hadrons.mean > WORSE_SIGMA * more_hadrons.error:
        excess = f"{more_hadrons.mean:.3f} ± {more_hadrons.error:.3f}"
        shipped, reason = False, f"ln survival of the stack is {excess} higher than that of {best}"
    elif is_shown:
        reason = f"the log-loss of the stack is {size} lower than that of {best}"
    elif max(abs(gain.mean), gain.error) < 0.5e-5:
        reason = f"the log-losses of the stack and of {best} differ by less than 0.00001"
    elif gain.mean >= 0:
        reason = f"a lower log-loss of the stack than of {best} is not shown: {size}"
    else:
        reason = f"a lower log-loss of the stack than of {best} is not shown: it is {size} higher"
    log_survival = (
        {"difference": more_hadrons.mean, "standard_error": more_hadrons.error} if more_hadrons is not None else None
    )
    return Gate(
        shipped=shipped,
        claimed=shipped and is_shown,
        reason=reason,
        gain=gain.mean,
        standard_error=gain.error,
        best_learner=best,
        log_survival=log_survival,
    )


LEAK_SIGMA = 5.0
LEAK_SHARE = 0.15
"""A leak must be significant *and* large: a small difference may be an honest one."""
LEAK_EVENTS = 30
"""Fewer new events than this have no spread to measure a difference by."""


def entropy(log_proba: np.ndarray) -> np.ndarray:
    """Return the entropy of (..., C) log-probabilities, (...), with natural logarithms."""
    return -(np.exp(log_proba) * log_proba).sum(axis=-1)


def leak_remarks(entropies: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, str]:
    """Return why learners are suspected of having learned from labels of what they predict, by learner.

    ``entropies`` holds, per learner, those of training events under the evaluation cuts, (N,) out-of-fold, and those of
    events to be predicted under them, (M,), both by single fits. One learner alone cannot be compared.
    """
    shifts = {name: float(new.mean() - known.mean()) for name, (known, new) in entropies.items()}
    remarks = {}
    for name, (known, new) in entropies.items():
        others = [shift for other, shift in shifts.items() if other != name]
        if not others or len(new) < LEAK_EVENTS:
            continue
        usual = float(np.median(others))
        excess = min(shifts[name], shifts[name] - usual)
        error = float(np.hypot(error_of_mean(known), error_of_mean(new)))
        if excess > LEAK_SIGMA * error and excess > LEAK_SHARE * new.mean():
            remarks[name] = (
                f"{name} is more certain of training events (entropy {known.mean():.3f}, out-of-fold) than of new "
                f"ones ({new.mean():.3f} ± {error:.3f}; the other learners differ by {usual:+.3f}): it may have seen "
                "their labels, look for events of the same shower in several folds"
            )
    return remarks


@dataclass(frozen=True)
class SecondLevel:
    """What the second level has found, and how every system predicts the judged events."""

    stack: Stack
    out_of_fold: LogProba
    """By learner, ``average`` and ``stack``, (n, C) log-probabilities of the events in the folds by single fits, NaN
    beyond the first fold for learners that left the race."""
    judged: Judged
    scales: Mapping[str, float]
    """Of every system's log-probabilities."""
    systems: LogProba
    """Per system, (m, C) calibrated log-posteriors of the judged events, as of new ones; NaN as in
    :attr:`Judged.raw`."""
    gate: Gate

    @property
    def shipped(self) -> str:
        """The system that predicts new events."""
        return "stack" if self.gate.shipped else self.gate.best_learner

    @property
    def needed(self) -> tuple[str, ...]:
        """Learners that it needs."""
        return self.stack.pool.needed if self.gate.shipped else (self.shipped,)

    def scored(self) -> dict[str, tuple[Sample, np.ndarray]]:
        """Return by system the judged events that it predicted, m of them, and its (m, C) log-posteriors."""
        scored = {}
        for name, log_proba in self.systems.items():
            predicted, sample = self.judged.of(name)
            scored[name] = sample, log_proba[predicted]
        return scored

    def everywhere(self, folds: Folds) -> dict[str, np.ndarray]:
        """Return every system's (N, C) log-probabilities of all training events, NaN where never predicted.

        Judged events are predicted as new ones are, others by single fits.
        """
        result = {name: np.full((len(folds.labels), z.shape[1]), np.nan) for name, z in self.systems.items()}
        for name, log_proba in self.systems.items():
            result[name][folds.out_of_fold] = self.out_of_fold[name]
            result[name][self.judged.rows] = log_proba
        return result

    def scores(self, name: str, folds: Folds) -> dict[str, float | None]:
        """Return a learner's scores on the judged events, and that of its single fits; None where it failed."""
        single = self.out_of_fold.get(name)
        if single is None:
            return dict.fromkeys(("log_loss", "raw_log_loss", "single_fit_log_loss", "accuracy"))
        predicted = ~np.isnan(single[:, 0])
        losses = folds.sample(folds.out_of_fold).take(predicted).losses(single[predicted])
        judged, sample = self.judged.of(name)
        log_proba = self.systems[name][judged]
        right = log_proba.argmax(axis=1) == sample.labels
        return {
            "log_loss": float(sample.losses(log_proba).mean()),
            "raw_log_loss": float(sample.losses(self.judged.raw[name][judged]).mean()),
            "single_fit_log_loss": float(losses.mean()),
            "accuracy": float(np.average(right, weights=sample.weights)),
        }

    def reliability(self) -> dict[str, Reliability]:
        """Return the reliability of every system, before and after calibration."""
        diagrams = {}
        for name, (sample, log_proba) in self.scored().items():
            raw = self.judged.raw[name][self.judged.of(name)[0]]
            before, after = (Diagram(**reliability(z, sample.labels, sample.weights)) for z in (raw, log_proba))
            diagrams[name] = Reliability(raw=before, calibrated=after)
        return diagrams


def combine(
    folds: Folds,
    out_of_fold: LogProba,
    holdout: LogProba | None,
    first_fold: LogProba,
    *,
    tolerance: float,
    pools: Sequence[str],
    survival: bool,
    seed: int,
    energy: np.ndarray | None,
    step: Callable[[str], AbstractContextManager[None]],
) -> SecondLevel:
    """Find the stack, calibrate every system, pass the gate.

    Parameters
    ----------
    out_of_fold
        By learner with all fits, (n, C) log-probabilities of the events in the folds by single fits.
    holdout
        By learner, (m, C) of the events in the holdout as they are predicted when new; None without a holdout.
    first_fold
        By learner that left the race, (n, C) of the events in the folds, NaN beyond its one fold.
    tolerance, pools, survival
        See :func:`fit_stack`.
    energy
        (N,) lg(E/eV) of all training events, by which the holdout is stratified.
    step
        Surrounds each step, which it is given the name of.
    """
    sample = folds.sample(folds.out_of_fold)
    with step("pool"):
        find = partial(fit_stack, tolerance=tolerance, names=pools, survival=survival)
        stack = find(out_of_fold, sample)
        # Scored are stacks that were found without the event, choice of learners and pool included: only the race knows
        # its fold.
        stacked = stack.log_proba if holdout else nested(find, out_of_fold, sample)
        average = average_of(np.stack([out_of_fold[name] for name in stack.pool.learners]))
        single_fits = {**out_of_fold, **first_fold, "average": average, "stack": stacked}
        if holdout is None:
            judged = Judged.by_single_fits(folds, single_fits, seed)
        else:
            judged = Judged.on_holdout(folds, holdout, stack.pool, seed, energy)
    with step("calibration"):
        scales, systems = dict[str, float](), dict[str, np.ndarray]()
        for name, log_proba in judged.raw.items():
            predicted, events = judged.of(name)
            systems[name] = np.full_like(log_proba, np.nan)
            scales[name], systems[name][predicted] = calibrated(log_proba[predicted], events)
    with step("gate"):
        learners = {name: systems[name] for name in out_of_fold}
        gate = decide_gate(systems["stack"], learners, judged.sample, survival=survival)
    return SecondLevel(stack, single_fits, judged, scales, systems, gate)
