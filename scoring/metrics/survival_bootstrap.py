"""Uncertainty of the hadron survival by resampled test events: of one system, and of the difference of two.

Gammas move the threshold and hadrons survive it; both are resampled, by whole groups or showers where there are any.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import betaincinv

from showerstack.scoring.metrics.gamma import KEY_EFFICIENCY, hadron_survival, threshold_rank
from showerstack.scoring.metrics.intervals import (
    BOOTSTRAP_SEED,
    GROUP_RESAMPLES,
    RESAMPLES,
    CumulatedWeight,
    Interval,
    binomial_ends,
    number_groups,
    resample_groups,
    weighted_ends,
    widened,
)
from showerstack.scoring.metrics.level import LEVEL
from showerstack.scoring.metrics.paired import Paired, compare_replicas
from showerstack.showers.schema import GAMMA_CLASS, HADRON


def survival_interval(
    labels: np.ndarray,
    scores: np.ndarray,
    groups: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    *,
    efficiency: float = KEY_EFFICIENCY,
    n_resamples: int = RESAMPLES,
) -> Interval:
    """Return the interval of the hadron survival, with the uncertainty of the threshold.

    Resampling the gammas moves the threshold: the k-th largest of a bootstrap sample of n is the J-th largest of the
    original, ``J = ceil(n U)`` with U ~ Beta(k, n - k + 1), exactly. For each such threshold the survivors' count h of
    n_h hadrons gives the two Clopper-Pearson variates Beta(h, n_h - h + 1) and Beta(h + 1, n_h - h); the interval
    runs from the lower quantile of the first to the upper quantile of the second. With a certain threshold it is
    the Clopper-Pearson interval itself.

    With groups (N,) or importance weights (N,) whole showers of gammas are resampled, and thresholds found anew. At
    each threshold the two laws are, with groups alone, those of the effective number of hadrons
    (:func:`showerstack.scoring.metrics.intervals.share_interval`), and with weights those of
    :func:`showerstack.scoring.metrics.intervals.weighted_ends`. Where the weights do not allow a number to be quoted
    (:attr:`showerstack.scoring.metrics.gamma.SurvivorWeights.quoted`), the interval runs from 0 to the upper limit.
    """
    if weights is not None or groups is not None:
        return _shower_interval(labels, scores, groups, weights, efficiency, n_resamples)
    gammas = np.sort(scores[labels == GAMMA_CLASS])[::-1]
    hadrons = np.sort(scores[labels == HADRON])
    rank = threshold_rank(len(gammas), efficiency)
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    share = rng.beta(rank, len(gammas) - rank + 1, size=n_resamples)
    thresholds = gammas[np.clip(np.ceil(len(gammas) * share).astype(int), 1, len(gammas)) - 1]
    n_surviving = len(hadrons) - np.searchsorted(hadrons, thresholds, side="left")
    n_rejected = len(hadrons) - n_surviving
    # quantile of the mixture, by stratified variates: each replica contributes the whole distribution's levels
    levels = rng.permutation((np.arange(n_resamples) + 0.5) / n_resamples)
    with np.errstate(divide="ignore"):
        low = np.where(n_surviving == 0, 0.0, betaincinv(np.maximum(n_surviving, 1), n_rejected + 1, levels))
        high = np.where(n_rejected == 0, 1.0, betaincinv(n_surviving + 1, np.maximum(n_rejected, 1), levels))
    return _outer_interval(low, high)


def _outer_interval(low: np.ndarray, high: np.ndarray) -> Interval:
    """Return the interval between the outer quantiles of lower and upper ends, (B,) each."""
    tail = (1 - LEVEL) / 2
    return Interval(float(np.quantile(low, tail)), float(np.quantile(high, 1 - tail)))


def _shower_interval(
    labels: np.ndarray,
    scores: np.ndarray,
    groups: np.ndarray | None,
    weights: np.ndarray | None,
    efficiency: float,
    n_resamples: int,
) -> Interval:
    """Return the interval of the survival where events have groups or weights; see :func:`survival_interval`."""
    survivors, rng = hadron_survival(labels, scores, efficiency, weights).weights, np.random.default_rng(BOOTSTRAP_SEED)
    n_resamples, hadron = min(n_resamples, GROUP_RESAMPLES), labels == HADRON
    thresholds = resample_thresholds(labels, (scores,), (efficiency,), weights, groups, n_resamples, rng)[0, 0]
    cumulated = CumulatedWeight.of(
        scores[hadron], None if weights is None else weights[hadron], None if groups is None else groups[hadron]
    )
    if cumulated.n_groups < 2:
        return Interval(0.0, 1.0)
    n_surviving = np.searchsorted(-cumulated.ordered, -thresholds, side="right")
    levels = rng.permutation((np.arange(n_resamples) + 0.5) / n_resamples)
    if weights is None:
        share = cumulated.weight[n_surviving] / cumulated.weight[-1]
        measured = cumulated.effective_number(n_surviving)
        wary = np.minimum(measured, cumulated.effective_number(n_surviving, one_more=True))
        trials = np.where(share > 0.5, wary, measured), np.where(share > 0.5, measured, wary)
        low, high = binomial_ends(share, trials, levels, levels)
    else:
        low, high = weighted_ends(cumulated, n_surviving, levels, levels, student=groups is not None)
    if survivors is not None and not survivors.quoted:
        return Interval(0.0, float(np.quantile(high, LEVEL)), is_limit=True)
    return _outer_interval(low, high)


def resample_thresholds(
    labels: np.ndarray,
    systems: Sequence[np.ndarray],
    efficiencies: Sequence[float],
    weights: np.ndarray | None,
    groups: np.ndarray | None,
    n_resamples: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return thresholds (S, E, B) of the scores (N,) of S systems where gammas are resampled, by groups (N,) if any.

    A group enters a replica as often as a number drawn from Poisson's law of mean 1.
    """
    gamma = np.flatnonzero(labels == GAMMA_CLASS)
    member, n_groups = number_groups(gamma if groups is None else groups[gamma])
    gamma_weights = np.ones(len(gamma)) if weights is None else weights[gamma]
    shares = np.asarray(efficiencies) * (1 - 1e-12)
    orders = [np.argsort(-scores[gamma], kind="stable") for scores in systems]
    thresholds = np.empty((len(systems), len(shares), n_resamples))
    for b in range(n_resamples):
        drawn = rng.poisson(1.0, n_groups)[member] * gamma_weights
        for s, (scores, order) in enumerate(zip(systems, orders, strict=True)):
            reached = np.cumsum(drawn[order])
            place = np.minimum(np.searchsorted(reached, shares * reached[-1]), len(order) - 1)
            thresholds[s, :, b] = scores[gamma[order[place]]]
    return thresholds


def grouped_replicas(
    labels: np.ndarray, systems: Sequence[np.ndarray], efficiency: float, groups: np.ndarray
) -> np.ndarray:
    """Return the hadron survivals (S, B) of the scores (N,) of S systems where groups (N,) are resampled."""
    member, blocks = resample_groups(labels, groups, GROUP_RESAMPLES, np.random.default_rng(BOOTSTRAP_SEED))
    gamma, hadron = np.flatnonzero(labels == GAMMA_CLASS), np.flatnonzero(labels == HADRON)
    orders = [gamma[np.argsort(-scores[gamma], kind="stable")] for scores in systems]
    replicas = []
    for drawn in (row[member] for block in blocks for row in block):
        for scores, order in zip(systems, orders, strict=True):
            reached = np.cumsum(drawn[order])
            place = int(np.searchsorted(reached, threshold_rank(int(reached[-1]), efficiency)))
            surviving = drawn[hadron] @ (scores[hadron] >= scores[order[min(place, len(order) - 1)]])
            replicas.append(surviving / max(drawn[hadron].sum(), 1))
    return np.array(replicas).reshape(-1, len(systems)).T


def weighted_replicas(
    labels: np.ndarray,
    systems: Sequence[np.ndarray],
    efficiencies: Sequence[float],
    weights: np.ndarray,
    groups: np.ndarray | None = None,
    n_resamples: int = GROUP_RESAMPLES,
    seed: int = BOOTSTRAP_SEED,
) -> np.ndarray:
    """Return weighted hadron survivals (S, E, B) of the scores (N,) of S systems where showers are resampled.

    Every shower, a group (N,) or an event where there are none, enters a replica as often as a number drawn from
    Poisson's law of mean 1; thresholds are found anew. Of hadrons that reach none of them only the weight is drawn,
    from its normal law.
    """
    rng = np.random.default_rng(seed)
    groups = np.arange(len(labels)) if groups is None else groups
    hadron = np.flatnonzero(labels == HADRON)
    thresholds = resample_thresholds(labels, systems, efficiencies, weights, groups, n_resamples, rng)
    reaches = np.zeros(len(hadron), dtype=bool)
    for scores, lowest in zip(systems, thresholds.min(axis=(1, 2)), strict=True):
        reaches |= scores[hadron] >= lowest
    near, far = hadron[reaches], hadron[~reaches]
    far_member, _ = number_groups(groups[far])
    far_weights = np.bincount(far_member, weights[far]) if len(far) else np.zeros(1)
    far_error = np.sqrt((far_weights**2).sum())
    far_total = np.maximum(far_weights.sum() + far_error * rng.standard_normal(n_resamples), 0.0)
    member, n_groups = number_groups(groups[near])
    orders = [np.argsort(-scores[near], kind="stable") for scores in systems]
    negated = [-scores[near[order]] for scores, order in zip(systems, orders, strict=True)]
    replicas = np.empty_like(thresholds)
    for b in range(n_resamples):
        drawn = rng.poisson(1.0, n_groups)[member] * weights[near]
        total = max(float(drawn.sum() + far_total[b]), 1e-300)
        for s, (order, ascending) in enumerate(zip(orders, negated, strict=True)):
            reached = np.concatenate([[0.0], np.cumsum(drawn[order])])
            replicas[s, :, b] = reached[np.searchsorted(ascending, -thresholds[s, :, b], side="right")] / total
    return replicas


def paired_survival(
    labels: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    groups: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    *,
    efficiency: float = KEY_EFFICIENCY,
    n_resamples: int = RESAMPLES,
) -> Paired:
    """Compare the hadron survivals of two sets of scores; gammas and hadrons are resampled, thresholds recomputed.

    One more hadron, with weights the heaviest, with groups a shower, keeps the width honest where both systems have
    next to no survivors.

    Parameters
    ----------
    labels
        (N,) integers: 0 gamma, 1 hadron.
    a, b
        (N,) finite scores.
    groups
        (N,) or None: events of one value are resampled together.
    weights
        (N,) importance weights, or None.
    """
    of_a, of_b = (hadron_survival(labels, scores, efficiency, weights) for scores in (a, b))
    if weights is not None:
        assert of_a.weights is not None
        replicas_a, replicas_b = weighted_replicas(labels, (a, b), (efficiency,), weights, groups)[:, 0]
        gaps, one_more = replicas_a - replicas_b, (of_a.weights.heaviest / of_a.weights.total) ** 2
    elif groups is not None:
        replicas_a, replicas_b = grouped_replicas(labels, (a, b), efficiency, groups)
        gaps, one_more = replicas_a - replicas_b, 1 / len(np.unique(groups[labels == HADRON])) ** 2
    else:
        gaps = _event_gaps(labels, a, b, efficiency, n_resamples)
        one_more = 1 / of_a.n_hadron**2
    return compare_replicas(of_a.hadron_survival - of_b.hadron_survival, widened(gaps - gaps.mean(), one_more))


def _event_gaps(labels: np.ndarray, a: np.ndarray, b: np.ndarray, efficiency: float, n_resamples: int) -> np.ndarray:
    """Return the difference of two systems' survivals in each bootstrap sample of single events, (B,)."""
    rng, gamma, hadron = np.random.default_rng(BOOTSTRAP_SEED), labels == GAMMA_CLASS, labels == HADRON
    n_gamma, n_hadron = int(gamma.sum()), int(hadron.sum())
    rank = threshold_rank(n_gamma, efficiency)
    gammas = [scores[gamma] for scores in (a, b)]
    orders = [np.argsort(-scores, kind="stable") for scores in gammas]
    thresholds = np.empty((2, n_resamples))
    for k in range(n_resamples):
        drawn = np.bincount(rng.integers(0, n_gamma, n_gamma), minlength=n_gamma)
        for s, (order, scores) in enumerate(zip(orders, gammas, strict=True)):
            thresholds[s, k] = scores[order[np.searchsorted(np.cumsum(drawn[order]), rank)]]
    # hadrons below both lowest thresholds never survive: only the number of the others is random
    near = (a[hadron] >= thresholds[0].min()) | (b[hadron] >= thresholds[1].min())
    near_a, near_b = a[hadron][near], b[hadron][near]
    n_near = len(near_a)
    gaps = np.empty(n_resamples)
    for k, n_drawn in enumerate(rng.binomial(n_hadron, n_near / n_hadron, n_resamples)):
        drawn = np.bincount(rng.integers(0, max(n_near, 1), n_drawn), minlength=n_near)[:n_near]
        gaps[k] = drawn @ ((near_a >= thresholds[0, k]).astype(np.int64) - (near_b >= thresholds[1, k])) / n_hadron
    return gaps
