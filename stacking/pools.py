"""The pool: from the posteriors of the learners to one posterior.

A pool is ``log_softmax(sum_l w_l s_l ln p_l + b)``: each learner has a weight, not negative, and a scale for every
class. Three are tried, the simplest first: the plain average in log-probability; the log-linear pool with weights and
its own sharpness; the same after vector scaling of every learner, for learners that are sharp between some classes and
blurred between others. Of those within one standard error of the best in cross-validation the simplest is taken.
Before, learners whose absence costs less than a tolerance leave, since a stack predicts new events as slowly as all its
learners together. Entry points ``showerstack.pools`` may add others: a pool is numbers, however they were found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from operator import attrgetter
from typing import Any, Self, TypeAlias

import numpy as np

from showerstack.models.base.posterior import log_softmax
from showerstack.runtime.code import installed_modules, objects_by_name
from showerstack.runtime.errors import InputError
from showerstack.stacking.folds import assign_folds
from showerstack.stacking.gate import is_worse_in_survival
from showerstack.stacking.options import TOLERANCE
from showerstack.stacking.sample import MeanAndError, Sample, cross_fitted

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


@dataclass(frozen=True)
class DroppedLearner:
    """A learner that the stack does without."""

    name: str
    cost: float
    """Log-loss without it and all left out before it, minus that with all learners."""
    standard_error: float


def left_out(
    log_proba: LogProba, sample: Sample, tolerance: float, *, survival: bool = False
) -> tuple[DroppedLearner, ...]:
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
            dropped.append(DroppedLearner(cheapest, costs[cheapest].mean, costs[cheapest].error))
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
    left_out: tuple[DroppedLearner, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the manifest's entry."""
        return {
            "chosen": self.pool.name,
            "weights": self.pool.shares(),
            "log_losses": self.log_losses,
            "left_out": [asdict(learner) for learner in self.left_out],
        }

    def remark(self) -> str | None:
        """Return a remark on the learners that are left out; None where every learner is used."""
        if not self.left_out:
            return None
        last, names = self.left_out[-1], ", ".join(learner.name for learner in self.left_out)
        return (
            f"left out of the stack: {names}; without them its log-loss out-of-fold is {abs(last.cost):.5f} ± "
            f"{last.standard_error:.5f} {'higher' if last.cost > 0 else 'lower'}, and predictions are faster "
            "(--prune 0 keeps every learner)"
        )


def fit_stack(
    log_proba: LogProba,
    sample: Sample,
    *,
    tolerance: float = TOLERANCE,
    names: Sequence[str] = POOLS,
    survival: bool = False,
) -> Stack:
    """Leave out learners as :func:`left_out` does, choose one of the pools named, fit it on all events."""
    dropped = left_out(log_proba, sample, tolerance, survival=survival)
    kept = {name: z for name, z in log_proba.items() if name not in {learner.name for learner in dropped}}
    tried = {name: cross_validated(name, kept, sample) for name in pool_specs() if name in names}
    losses = {name: sample.losses(z) for name, z in tried.items()}
    best = min(losses, key=lambda name: float(losses[name].mean()))
    excess = {name: sample.mean_of(loss - losses[best]) for name, loss in losses.items()}
    # The simplest pool within one standard error of the best: pools are in the order of their simplicity.
    chosen = next(name for name, more in excess.items() if name == best or more.mean <= more.error)
    means = {name: float(loss.mean()) for name, loss in losses.items()}
    return Stack(fit_pool(chosen, kept, sample), tried[chosen], means, dropped)


def nested(fit: Callable[[LogProba, Sample], Stack], log_proba: LogProba, sample: Sample) -> np.ndarray:
    """Return (N, C) log-posteriors of each fold by a stack found on the other folds, learners and pool included."""
    return _cross_fitted(lambda z, part: fit(z, part).pool, sample.folds % MOST_FOLDS, log_proba, sample)
