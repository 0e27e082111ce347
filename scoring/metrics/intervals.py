"""Uncertainty of every metric of one system: the exact binomial interval and the basic bootstrap.

All bootstraps resample test events, but through sufficient statistics (confusion matrices, ranks, survivor counts),
which is exact and takes milliseconds. Seeds are fixed: same input, same interval. One system has
:func:`accuracy_interval`, :func:`fraction_error_interval` and :func:`survival_interval`; two systems on the same events
are compared in :mod:`showerstack.scoring.metrics.paired`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv, ndtri, stdtrit

from showerstack.runtime.errors import InputError
from showerstack.scoring.metrics.composition import (
    MIXTURE_SIZE,
    class_fraction_errors,
    confusion_matrix,
    fraction_error,
    mixture_counts,
    mixture_fractions,
)
from showerstack.scoring.metrics.gamma import (
    GAMMA,
    HADRON,
    KEY_EFFICIENCY,
    Numbers,
    area_under_curve,
    hadron_survival,
    threshold_rank,
    weighted_lower,
    weighted_upper,
)
from showerstack.scoring.metrics.level import LEVEL, standard_errors
from showerstack.showers.schema import COMPOSITION

RESAMPLES = 2000
SEED = 2026
GROUP_RESAMPLES = 1000
"""Replicas where every one needs all events."""
RESAMPLED_NUMBERS = 4_000_000
"""Drawn numbers in memory at once."""


@dataclass(frozen=True)
class Interval:
    """A central confidence interval."""

    low: float
    high: float
    level: float = LEVEL
    is_limit: bool = False
    """Whether ``high`` is a one-sided upper limit and no value is to be quoted."""

    def as_dict(self) -> dict[str, float]:
        """Return the interval for JSON."""
        limit = {"is_limit": True} if self.is_limit else {}
        return {"low": self.low, "high": self.high, "level": self.level} | limit


@dataclass(frozen=True)
class Estimate:
    """A number with its confidence interval."""

    value: float
    interval: Interval


def within(value: float, error: float) -> Estimate:
    """Return a number between 0 and 1 with its standard error as an interval."""
    half = standard_errors() * error
    return Estimate(value, Interval(max(value - half, 0.0), min(value + half, 1.0)))


def clopper_pearson(n_hits: int, n_trials: int, level: float = LEVEL) -> Interval:
    """Return the exact interval of a binomial share (C. J. Clopper, E. S. Pearson, Biometrika 26 (1934) 404).

    >>> interval = clopper_pearson(11, 34_237)
    >>> f"{interval.low:.1e} {interval.high:.1e}"
    '1.6e-04 5.7e-04'
    """
    if n_trials < 1 or not 0 <= n_hits <= n_trials:
        raise InputError(f"a share needs 0 <= hits <= trials and at least 1 trial, got {n_hits} of {n_trials}")
    tail = (1 - level) / 2
    low = 0.0 if n_hits == 0 else float(betaincinv(n_hits, n_trials - n_hits + 1, tail))
    high = 1.0 if n_hits == n_trials else float(betaincinv(n_hits + 1, n_trials - n_hits, 1 - tail))
    return Interval(low, high, level)


def linearised(values: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Return values (N,) whose plain mean is the weighted mean, and whose spread gives that mean's standard error.

    They are m + (w / mean w) (v - m) with the weighted mean m: what the ratio sum(w v) / sum(w) is to first order.
    """
    if weights is None:
        return values
    mean = float(np.average(values, weights=weights))
    return np.asarray(mean + weights / weights.mean() * (values - mean))


def grouped_error(values: np.ndarray, groups: np.ndarray) -> tuple[float, int]:
    """Return the standard error of the mean of (N,) values, those of one group (N,) one observation, and the groups.

    Raises
    ------
    InputError
        If there is one group only: it shows no spread.
    """
    names, member = np.unique(groups, return_inverse=True)
    if len(names) < 2:
        raise InputError(f"all {len(values)} events are of one group: an error needs two groups at least")
    sums = np.bincount(member, values - values.mean())
    return float(np.sqrt((sums**2).sum() * len(names) / (len(names) - 1)) / len(values)), len(names)


def share_interval(
    hits: np.ndarray, groups: np.ndarray | None = None, *, weights: np.ndarray | None = None
) -> Interval:
    """Return the interval of the share of true among (N,) bool, by groups (N,) where there are any.

    With groups it is the exact binomial one of the effective number of events, the number of which a binomial share
    would have the error that the groups show (E. L. Korn, B. I. Graubard, Survey Methodology 24 (1998) 193). Where all
    outcomes are alike nothing shows it, and every group counts as one event. One group shows nothing at all. With
    importance weights (N,) the share is one of weight, and its ends are those of :func:`weighted_ends`.
    """
    n_hits, n_events, tail = int(np.count_nonzero(hits)), len(hits), (1 - LEVEL) / 2
    if groups is None and weights is None:
        return clopper_pearson(n_hits, n_events)
    sums = CumulatedWeight.of(hits.astype(np.float64), weights, groups)
    if sums.n_groups < 2:
        return Interval(0.0, 1.0)
    if weights is None:
        trials = sums.effective_number(n_hits)
        low, high = binomial_ends(n_hits / n_events, (trials, trials), tail, 1 - tail)
    else:
        low, high = weighted_ends(sums, n_hits, tail, 1 - tail, student=groups is not None)
    return Interval(float(low), float(high))


def binomial_ends(
    share: Numbers, trials: tuple[Numbers, Numbers], low: Numbers, high: Numbers
) -> tuple[np.ndarray, np.ndarray]:
    """Return the quantiles at two levels of the two Clopper-Pearson laws of a share, each of its number of trials."""
    share = np.asarray(share)
    first = betaincinv(np.maximum(share * trials[0], 1e-300), (1 - share) * trials[0] + 1, low)
    last = betaincinv(share * trials[1] + 1, np.maximum((1 - share) * trials[1], 1e-300), high)
    return np.where(share > 0, first, 0.0), np.where(share < 1, last, 1.0)


@dataclass(frozen=True)
class CumulatedWeight:
    """What the first k of N ordered events weigh, for all k, where events of one group are one observation."""

    ordered: np.ndarray
    """(N,) what the events are ordered by, descending."""
    weight: np.ndarray
    """(N + 1,) sum of the weights of the first k."""
    variance: np.ndarray
    """(N + 1,) of that weight at a fixed sum of all weights: that of the share, times the square of all weight."""
    heaviest: float
    """Largest weight of a group."""
    n_groups: int

    @classmethod
    def of(cls, values: np.ndarray, weights: np.ndarray | None, groups: np.ndarray | None) -> CumulatedWeight:
        """Return it for events with values, weights or None, and groups or None, (N,) each."""
        order = np.argsort(-values, kind="stable")
        w = np.ones(len(values)) if weights is None else weights[order].astype(np.float64)
        if groups is None:
            member, before = np.arange(len(w)), np.zeros(len(w))
        else:
            member = np.unique(groups[order], return_inverse=True)[1]
            together = np.argsort(member, kind="stable")
            reached = np.cumsum(w[together])
            first = np.searchsorted(member[together], member[together], side="left")
            before = np.empty(len(w))
            before[together] = reached - w[together] - (reached - w[together])[first]
        whole = np.bincount(member, w)
        left, squares, cross = (
            np.concatenate([[0.0], np.cumsum(terms)]) for terms in (w, w * (2 * before + w), w * whole[member])
        )
        share = left / left[-1]
        variance = np.maximum(squares - 2 * share * cross + share**2 * (whole**2).sum(), 0.0)
        n_groups = int(np.count_nonzero(whole))
        return cls(values[order], left, variance, float(whole.max()), n_groups)

    def effective_number(self, k: int | np.ndarray, *, one_more: bool = False) -> np.ndarray:
        """Return the number of independent events with which the share of the first k has the error groups show.

        With one more group, of the largest weight, wholly on the side of the fewer: few groups there may hide how much
        alike their events are.
        """
        n, weight = float(len(self.ordered)), self.weight[k]
        fewer, variance = np.minimum(weight, n - weight), self.variance[k]
        if one_more:
            fewer, variance = np.minimum(fewer + self.heaviest, n / 2), variance + self.heaviest**2
        alone = fewer * (1 - fewer / n)
        variance = variance * self.n_groups / (self.n_groups - 1)
        measured = (fewer > 0) & (variance > 1e-12 * alone)
        narrower = (standard_errors() / float(stdtrit(self.n_groups - 1, 0.5 + LEVEL / 2))) ** 2
        trials = np.where(measured, n * alone / np.where(measured, variance, 1.0) * narrower, self.n_groups)
        return np.minimum(trials, n)


def weighted_ends(
    sums: CumulatedWeight,
    k: int | np.ndarray,
    low: Numbers,
    high: Numbers,
    *,
    student: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the quantiles at two levels of the share of weight of the first k events, by M. P. Fay and E. J. Feuer.

    The smaller of the shares of hits and misses is the gamma law's; above, one more event of the heaviest weight could
    have been counted (Stat. Med. 16 (1997) 791). A spread that few groups show is that of Student's law.
    """
    total, weight = sums.weight[-1], sums.weight[k]
    share = weight / total
    none = share * (1 - share) * sums.heaviest * total  # as if every event were of the heaviest weight
    variance = np.where(sums.variance[k] > 1e-12 * none, sums.variance[k], none)
    if student:
        variance = variance * sums.n_groups / (sums.n_groups - 1)
        variance = variance * (float(stdtrit(sums.n_groups - 1, 0.5 + LEVEL / 2)) / standard_errors()) ** 2
    some, rest = np.minimum(weight, total - weight), share > 0.5
    ends = [
        weighted_lower(some, variance, np.where(rest, np.subtract(1, high), low)),
        weighted_upper(some, variance, sums.heaviest, np.where(rest, np.subtract(1, low), high)),
    ]
    first, last = (np.clip(end / total, 0.0, 1.0) for end in ends)
    return np.where(rest, 1 - last, first), np.where(rest, 1 - first, last)


def group_weights(
    labels: np.ndarray, groups: np.ndarray, n_resamples: int, rng: np.random.Generator
) -> tuple[np.ndarray, Iterator[np.ndarray]]:
    """Resample groups, those of each class by themselves; a group is of the class that most of its events have.

    Returns
    -------
    (N,) int64 group number of each event, and blocks (b, G) of how often each group was drawn.
    """
    from scipy.sparse import coo_array  # a fifth of what scoring imports, and few sets have groups

    _, member = np.unique(groups, return_inverse=True)
    n_groups = int(member.max()) + 1
    values = coo_array((np.ones(len(labels)), (member, labels.astype(np.int64)))).toarray()
    main = values.argmax(axis=1)
    at_once = max(1, RESAMPLED_NUMBERS // n_groups)

    def blocks() -> Iterator[np.ndarray]:
        for start in range(0, n_resamples, at_once):
            size = min(at_once, n_resamples - start)
            drawn = np.zeros((size, n_groups))
            for k in np.unique(main):
                inside = np.flatnonzero(main == k)
                drawn[:, inside] = rng.multinomial(len(inside), np.full(len(inside), 1 / len(inside)), size=size)
            yield drawn

    return member, blocks()


def grouped_counts(
    cell: np.ndarray, n_cells: int, labels: np.ndarray, groups: np.ndarray, n_resamples: int, seed: int = SEED
) -> np.ndarray:
    """Return how many events of resampled groups are in each cell, (B, n_cells) float64."""
    from scipy.sparse import coo_array

    member, blocks = group_weights(labels, groups, n_resamples, np.random.default_rng(seed))
    counts = coo_array((np.ones(len(cell)), (member, cell)), shape=(int(member.max()) + 1, n_cells)).tocsr()
    return np.concatenate([drawn @ counts for drawn in blocks])


def widened(deviations: np.ndarray, extra_variance: float) -> np.ndarray:
    """Return bootstrap deviations (B,) stretched so that their variance grows by an independent source's.

    Where the replicas vary less than that source, normal quantiles of both stand in for them: of few replicas that
    differ, stretched, the interval would lie beside the value.
    """
    variance = float(deviations.var())
    if variance > extra_variance:
        return deviations * np.sqrt(1 + extra_variance / variance)
    ranks = np.argsort(np.argsort(deviations, kind="stable"))
    normal = ndtri((ranks + 0.5) / len(deviations))
    return np.sqrt(variance + extra_variance) * normal / normal.std()


def basic_interval(value: float, deviations: np.ndarray, level: float = LEVEL) -> Interval:
    """Return the basic bootstrap interval: the value minus the quantiles of (replica - centre), (B,)."""
    tail = (1 - level) / 2
    low, high = np.quantile(deviations, [tail, 1 - tail])
    return Interval(value - float(high), value - float(low), level)


def draw_variance(probabilities: np.ndarray, weights: np.ndarray) -> float:
    """Return the variance that the benchmark's 5000 draws a mixture add to the mean error.

    To first order the mean error moves by the mean over mixtures g and classes of ``sign * (drawn - expected)``;
    draws are independent between mixtures and classes, so variances of the drawn weights add.

    Parameters
    ----------
    probabilities
        (C, M) probability of each outcome (predicted class, or pair of them) for events of each class.
    weights
        (G, C, M) what drawing the outcome adds to the sum over classes of the signed error.
    """
    counts = mixture_counts(len(probabilities))
    mean = np.einsum("gcm,cm->gc", weights, probabilities)
    spread = np.einsum("gcm,cm->gc", weights**2, probabilities) - mean**2
    total = float((counts * spread).sum()) / MIXTURE_SIZE**2
    return total / (len(counts) * len(probabilities)) ** 2


MIN_CLASS_EVENTS = 20
"""With fewer events of any class (gammas, hadrons) a bin's metric is called unmeasured rather than shown."""


def accuracy_interval(labels: np.ndarray, predicted: np.ndarray) -> Interval:
    """Return the interval of the accuracy.

    Resampling events makes the number of hits binomial, so the exact binomial interval needs no resampling and,
    unlike the bootstrap's, does not collapse to a point at 0 or 1.
    """
    return clopper_pearson(int(np.count_nonzero(labels == predicted)), len(labels))


def fraction_error_interval(labels: np.ndarray, predicted: np.ndarray, groups: np.ndarray | None = None) -> Interval:
    """Return the interval of the fraction error by a bootstrap over test events.

    Parameters
    ----------
    labels, predicted
        (N,) integer class numbers, every class present in ``labels``.
    groups
        (N,) or None: events of one value are resampled together.
    """
    matrix, value = confusion_matrix(labels, predicted), fraction_error(labels, predicted)
    drawn = None if groups is None else confusion_replicas(labels, predicted, groups)
    return confusion_intervals(matrix, value, drawn=drawn)[0]


def confusion_replicas(
    labels: np.ndarray, predicted: np.ndarray, groups: np.ndarray, *, n_resamples: int = RESAMPLES
) -> np.ndarray:
    """Return confusion matrices (B, C, C) of the events (N,) of resampled groups (N,)."""
    n = COMPOSITION.n_classes
    cell = labels.astype(np.int64) * n + predicted
    return grouped_counts(cell, n * n, labels, groups, n_resamples, SEED).reshape(-1, n, n)


def confusion_intervals(
    confusion: np.ndarray,
    value: float,
    per_class: np.ndarray | None = None,
    *,
    n_resamples: int = RESAMPLES,
    drawn: np.ndarray | None = None,
) -> tuple[Interval, list[Interval]]:
    """Return the interval of the fraction error and those of its classes from a confusion matrix.

    The metric depends on the events only through the row-normalised confusion matrix, so drawing each row from its
    multinomial *is* the bootstrap within classes. One pseudo-event a class, spread evenly over the columns, keeps the
    width honest where a cell is empty. The interval is the basic one, value - quantiles of (replica - mean matrix):
    the error is convex in the matrix, replicas are therefore too large on average, and the percentile interval would
    be too. The variance of the benchmark's own draws is added.

    Parameters
    ----------
    confusion
        (C, C) integer counts.
    value
        The benchmark's sampled value, around which the interval is put.
    per_class
        (C,) the sampled errors of the classes; the closed form's if not given.
    drawn
        (B, C, C) matrices of resampled groups of events, in place of those of resampled events.
    """
    n_classes = len(confusion)
    smooth = (confusion + 1 / n_classes) / (confusion.sum(axis=1, keepdims=True) + 1)
    rng = np.random.default_rng(SEED)
    centre = smooth
    if drawn is None:
        drawn = rng.multinomial(confusion.sum(axis=1), smooth, size=(n_resamples, n_classes))
    else:
        centre = confusion / confusion.sum(axis=1, keepdims=True)
    # single precision is good to 1e-6, far below the width of any interval
    replicas = class_fraction_errors((drawn / np.maximum(drawn.sum(axis=2, keepdims=True), 1)).astype(np.float32))
    if per_class is None:
        per_class = class_fraction_errors(confusion / confusion.sum(axis=1, keepdims=True))
    gaps = replicas - class_fraction_errors(centre)
    sign = np.sign(mixture_fractions(n_classes) @ (np.eye(n_classes) - smooth))
    noise = draw_variance(smooth, np.repeat(sign[:, None], n_classes, axis=1))
    overall = _not_negative(basic_interval(value, widened(gaps.mean(axis=1), noise)))
    # for one class alone the draws are binomial
    counts = mixture_counts(n_classes)
    noises = counts.sum(axis=0) @ (smooth * (1 - smooth)) / (MIXTURE_SIZE * len(counts)) ** 2
    classes = [
        _not_negative(basic_interval(float(per_class[k]), widened(gaps[:, k], noises[k]))) for k in range(n_classes)
    ]
    return overall, classes


def _not_negative(interval: Interval) -> Interval:
    return Interval(max(0.0, interval.low), max(0.0, interval.high), interval.level)


def survival_replicas(
    labels: np.ndarray,
    systems: Sequence[np.ndarray],
    efficiency: float,
    groups: np.ndarray,
    n_resamples: int,
    seed: int = SEED,
) -> np.ndarray:
    """Return the hadron survivals (S, B) of the scores (N,) of S systems where groups (N,) are resampled."""
    member, blocks = group_weights(labels, groups, n_resamples, np.random.default_rng(seed))
    gamma, hadron = np.flatnonzero(labels == GAMMA), np.flatnonzero(labels == HADRON)
    order = [gamma[np.argsort(-scores[gamma], kind="stable")] for scores in systems]
    replicas = []
    for weight in (row[member] for drawn in blocks for row in drawn):
        for scores, ordered in zip(systems, order, strict=True):
            reached = np.cumsum(weight[ordered])
            place = int(np.searchsorted(reached, threshold_rank(int(reached[-1]), efficiency)))
            surviving = weight[hadron] @ (scores[hadron] >= scores[ordered[min(place, len(ordered) - 1)]])
            replicas.append(surviving / max(weight[hadron].sum(), 1))
    return np.array(replicas).reshape(-1, len(systems)).T


def _numbered(groups: np.ndarray) -> tuple[np.ndarray, int]:
    names, member = np.unique(groups, return_inverse=True)
    return member, len(names)


def resampled_thresholds(
    labels: np.ndarray,
    systems: Sequence[np.ndarray],
    efficiencies: Sequence[float],
    weights: np.ndarray,
    groups: np.ndarray,
    n_resamples: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return thresholds (S, E, B) of the scores (N,) of S systems where gammas' groups (N,) are resampled.

    A group enters a replica as often as a Poisson number of mean 1 says.
    """
    gamma = np.flatnonzero(labels == GAMMA)
    member, n_groups = _numbered(groups[gamma])
    shares = np.asarray(efficiencies) * (1 - 1e-12)
    order = [np.argsort(-scores[gamma], kind="stable") for scores in systems]
    thresholds = np.empty((len(systems), len(shares), n_resamples))
    for b in range(n_resamples):
        drawn = rng.poisson(1.0, n_groups)[member] * weights[gamma]
        for s, (scores, ordered) in enumerate(zip(systems, order, strict=True)):
            reached = np.cumsum(drawn[ordered])
            place = np.minimum(np.searchsorted(reached, shares * reached[-1]), len(ordered) - 1)
            thresholds[s, :, b] = scores[gamma[ordered[place]]]
    return thresholds


def weighted_replicas(
    labels: np.ndarray,
    systems: Sequence[np.ndarray],
    efficiencies: Sequence[float],
    weights: np.ndarray,
    groups: np.ndarray | None = None,
    n_resamples: int = GROUP_RESAMPLES,
    seed: int = SEED,
) -> np.ndarray:
    """Return weighted hadron survivals (S, E, B) of the scores (N,) of S systems where showers are resampled.

    Every shower, a group (N,) or an event where there are none, enters a replica as often as a Poisson number of mean
    1 says; thresholds are found anew. Of hadrons that reach none of them only the weight is drawn, from its normal law.
    """
    rng = np.random.default_rng(seed)
    groups = np.arange(len(labels)) if groups is None else groups
    hadron = np.flatnonzero(labels == HADRON)
    thresholds = resampled_thresholds(labels, systems, efficiencies, weights, groups, n_resamples, rng)
    near = np.zeros(len(hadron), dtype=bool)
    for scores, lowest in zip(systems, thresholds.min(axis=(1, 2)), strict=True):
        near |= scores[hadron] >= lowest
    inside, outside = hadron[near], hadron[~near]
    far_member, _ = _numbered(groups[outside])
    far = np.bincount(far_member, weights[outside]) if len(outside) else np.zeros(1)
    beyond = np.maximum(far.sum() + np.sqrt((far**2).sum()) * rng.standard_normal(n_resamples), 0.0)
    member, n_groups = _numbered(groups[inside])
    order = [np.argsort(-scores[inside], kind="stable") for scores in systems]
    ascending = [-scores[inside[ordered]] for scores, ordered in zip(systems, order, strict=True)]
    replicas = np.empty_like(thresholds)
    for b in range(n_resamples):
        drawn = rng.poisson(1.0, n_groups)[member] * weights[inside]
        total = max(float(drawn.sum() + beyond[b]), 1e-300)
        for s, (ordered, values) in enumerate(zip(order, ascending, strict=True)):
            reached = np.concatenate([[0.0], np.cumsum(drawn[ordered])])
            replicas[s, :, b] = reached[np.searchsorted(values, -thresholds[s, :, b], side="right")] / total
    return replicas


def survival_interval(
    labels: np.ndarray,
    scores: np.ndarray,
    efficiency: float = KEY_EFFICIENCY,
    groups: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    *,
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
    (:func:`share_interval`), and with weights those of :func:`weighted_ends`. Where the weights do not allow a number
    to be quoted (:attr:`showerstack.scoring.metrics.gamma.SurvivorWeights.quoted`), the interval runs from 0 to the
    upper limit.
    """
    if weights is not None or groups is not None:
        return _shower_interval(labels, scores, efficiency, groups, weights, n_resamples)
    gammas = np.sort(scores[labels == GAMMA])[::-1]
    hadrons = np.sort(scores[labels == HADRON])
    rank = threshold_rank(len(gammas), efficiency)
    rng = np.random.default_rng(SEED)
    share = rng.beta(rank, len(gammas) - rank + 1, size=n_resamples)
    thresholds = gammas[np.clip(np.ceil(len(gammas) * share).astype(int), 1, len(gammas)) - 1]
    surviving = len(hadrons) - np.searchsorted(hadrons, thresholds, side="left")
    # quantile of the mixture, by stratified variates: each replica contributes the whole distribution's levels
    levels = (np.arange(n_resamples) + 0.5) / n_resamples
    shuffled = rng.permutation(levels)
    with np.errstate(divide="ignore"):
        low = np.where(
            surviving == 0, 0.0, betaincinv(np.maximum(surviving, 1), len(hadrons) - surviving + 1, shuffled)
        )
        high = np.where(
            surviving == len(hadrons),
            1.0,
            betaincinv(surviving + 1, np.maximum(len(hadrons) - surviving, 1), shuffled),
        )
    tail = (1 - LEVEL) / 2
    return Interval(float(np.quantile(low, tail)), float(np.quantile(high, 1 - tail)))


def _shower_interval(
    labels: np.ndarray,
    scores: np.ndarray,
    efficiency: float,
    groups: np.ndarray | None,
    weights: np.ndarray | None,
    n_resamples: int,
) -> Interval:
    result, rng = hadron_survival(labels, scores, efficiency, weights), np.random.default_rng(SEED)
    n_resamples, tail, hadron = min(n_resamples, GROUP_RESAMPLES), (1 - LEVEL) / 2, labels == HADRON
    every, each = np.ones(len(labels)) if weights is None else weights, np.arange(len(labels))
    members = each if groups is None else groups
    thresholds = resampled_thresholds(labels, (scores,), (efficiency,), every, members, n_resamples, rng)[0, 0]
    sums = CumulatedWeight.of(
        scores[hadron], None if weights is None else weights[hadron], None if groups is None else groups[hadron]
    )
    if sums.n_groups < 2:
        return Interval(0.0, 1.0)
    above = np.searchsorted(-sums.ordered, -thresholds, side="right")
    levels = rng.permutation((np.arange(n_resamples) + 0.5) / n_resamples)
    if weights is None:
        share = sums.weight[above] / sums.weight[-1]
        measured = sums.effective_number(above)
        wary = np.minimum(measured, sums.effective_number(above, one_more=True))
        trials = np.where(share > 0.5, wary, measured), np.where(share > 0.5, measured, wary)
        low, high = binomial_ends(share, trials, levels, levels)
    else:
        low, high = weighted_ends(sums, above, levels, levels, student=groups is not None)
    if result.weights is not None and not result.weights.quoted:
        return Interval(0.0, float(np.quantile(high, LEVEL)), is_limit=True)
    return Interval(float(np.quantile(low, tail)), float(np.quantile(high, 1 - tail)))


def area(labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None) -> Estimate:
    """Return the area under the ROC curve of gammas against hadrons; ``weights`` (N,) are importance weights."""
    value, error = area_under_curve(labels == GAMMA, scores, weights)
    return within(value, error)
