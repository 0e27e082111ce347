"""What the interval of any metric is made of: exact binomial laws, weighted counts, and the basic bootstrap.

Events of one group are one observation, wherever there are groups. Bootstraps resample test events through sufficient
statistics (confusion matrices, ranks, survivor counts), which is exact and takes milliseconds. Seeds are fixed: same
input, same interval. The metrics' own intervals stand beside them in :mod:`showerstack.scoring.metrics.composition`,
``gamma`` and ``residuals``; two systems on the same events are compared in :mod:`showerstack.scoring.metrics.paired`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv, gammaincinv, ndtri, stdtrit

from showerstack.runtime.errors import InputError
from showerstack.scoring.metrics.level import LEVEL, standard_errors

Numbers = float | np.ndarray

RESAMPLES = 2000
GROUP_RESAMPLES = 1000
"""Replicas where every one needs all events."""
BOOTSTRAP_SEED = 2026
DRAWN_AT_ONCE = 4_000_000
"""Drawn numbers in memory at once."""
MIN_CLASS_EVENTS = 20
"""With fewer events of any class (gammas, hadrons) a bin's metric is called unmeasured rather than shown."""


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


def student_half_width(n_groups: int) -> float:
    """Return the half width of Student's central interval of the mean of groups, in standard errors."""
    return float(stdtrit(n_groups - 1, 0.5 + LEVEL / 2))


def share_estimate(value: float, error: float) -> Estimate:
    """Return a number between 0 and 1, the interval from its standard error."""
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


def number_groups(groups: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the group of each event (N,) as a number from 0 on, and how many groups there are."""
    names, member = np.unique(groups, return_inverse=True)
    return member, len(names)


def grouped_error(values: np.ndarray, groups: np.ndarray) -> tuple[float, int]:
    """Return the standard error of the mean of (N,) values, those of one group (N,) one observation, and the groups.

    Raises
    ------
    InputError
        If there is one group only: it shows no spread.
    """
    member, n_groups = number_groups(groups)
    if n_groups < 2:
        raise InputError(f"all {len(values)} events are of one group: an error needs two groups at least")
    sums = np.bincount(member, values - values.mean())
    return float(np.sqrt((sums**2).sum() * n_groups / (n_groups - 1)) / len(values)), n_groups


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
    cumulated = CumulatedWeight.of(hits.astype(np.float64), weights, groups)
    if cumulated.n_groups < 2:
        return Interval(0.0, 1.0)
    if weights is None:
        trials = cumulated.effective_number(n_hits)
        low, high = binomial_ends(n_hits / n_events, (trials, trials), tail, 1 - tail)
    else:
        low, high = weighted_ends(cumulated, n_hits, tail, 1 - tail, student=groups is not None)
    return Interval(float(low), float(high))


def binomial_ends(
    share: Numbers, trials: tuple[Numbers, Numbers], low: Numbers, high: Numbers
) -> tuple[np.ndarray, np.ndarray]:
    """Return the quantiles at two levels of the two Clopper-Pearson laws of a share, each of its number of trials."""
    share = np.asarray(share)
    first = betaincinv(np.maximum(share * trials[0], 1e-300), (1 - share) * trials[0] + 1, low)
    last = betaincinv(share * trials[1] + 1, np.maximum((1 - share) * trials[1], 1e-300), high)
    return np.where(share > 0, first, 0.0), np.where(share < 1, last, 1.0)


def weighted_lower(weight: Numbers, variance: Numbers, level: Numbers) -> Numbers:
    """Return the quantile at a level of the gamma law whose mean and variance are those of a weighted count; 0 of none.

    See M. P. Fay, E. J. Feuer, Stat. Med. 16 (1997) 791.
    """
    mean, variance = np.asarray(weight, np.float64), np.asarray(variance, np.float64)
    counted = mean > 0
    mean, variance = np.where(counted, mean, 1.0), np.where(counted, variance, 1.0)
    return np.where(counted, variance / mean * gammaincinv(mean**2 / variance, level), 0.0)


def weighted_upper(weight: Numbers, variance: Numbers, heaviest: float, level: Numbers) -> Numbers:
    """Return the same where one more event, of the heaviest weight there is, could have been counted."""
    return weighted_lower(np.add(weight, heaviest), np.add(variance, heaviest**2), level)


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
            before = _weight_before(w, member)
        of_group = np.bincount(member, w)
        weight, squares, cross = (
            np.concatenate([[0.0], np.cumsum(terms)]) for terms in (w, w * (2 * before + w), w * of_group[member])
        )
        share = weight / weight[-1]
        variance = np.maximum(squares - 2 * share * cross + share**2 * (of_group**2).sum(), 0.0)
        return cls(values[order], weight, variance, float(of_group.max()), int(np.count_nonzero(of_group)))

    def effective_number(self, k: int | np.ndarray, *, one_more: bool = False) -> np.ndarray:
        """Return the number of independent events with which the share of the first k has the error groups show.

        ``one_more`` adds one group, of the largest weight, wholly on the side of the fewer: few groups there may hide
        how much alike their events are.
        """
        n, weight = float(len(self.ordered)), self.weight[k]
        fewer, variance = np.minimum(weight, n - weight), self.variance[k]
        if one_more:
            fewer, variance = np.minimum(fewer + self.heaviest, n / 2), variance + self.heaviest**2
        independent = fewer * (1 - fewer / n)
        variance = variance * self.n_groups / (self.n_groups - 1)
        measured = (fewer > 0) & (variance > 1e-12 * independent)
        narrower = (standard_errors() / student_half_width(self.n_groups)) ** 2
        trials = np.where(measured, n * independent / np.where(measured, variance, 1.0) * narrower, self.n_groups)
        return np.minimum(trials, n)


def _weight_before(weights: np.ndarray, member: np.ndarray) -> np.ndarray:
    """Return how much of its own group (N,) comes before each event, by weight, (N,)."""
    together = np.argsort(member, kind="stable")
    reached = np.cumsum(weights[together])
    first = np.searchsorted(member[together], member[together], side="left")
    before = np.empty(len(weights))
    before[together] = reached - weights[together] - (reached - weights[together])[first]
    return before


def weighted_ends(
    cumulated: CumulatedWeight, k: int | np.ndarray, low: Numbers, high: Numbers, *, student: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return the quantiles at two levels of the share of weight of the first k events, by M. P. Fay and E. J. Feuer.

    The smaller of the shares of hits and misses is the gamma law's; above, one more event of the heaviest weight could
    have been counted (Stat. Med. 16 (1997) 791). ``student``: the spread, which groups show, is that of Student's law.
    """
    total, weight = cumulated.weight[-1], cumulated.weight[k]
    share = weight / total
    largest = share * (1 - share) * cumulated.heaviest * total  # as if every event were of the heaviest weight
    variance = np.where(cumulated.variance[k] > 1e-12 * largest, cumulated.variance[k], largest)
    if student:
        variance = variance * cumulated.n_groups / (cumulated.n_groups - 1)
        variance = variance * (student_half_width(cumulated.n_groups) / standard_errors()) ** 2
    smaller, mirrored = np.minimum(weight, total - weight), share > 0.5
    lower = weighted_lower(smaller, variance, np.where(mirrored, np.subtract(1, high), low))
    upper = weighted_upper(smaller, variance, cumulated.heaviest, np.where(mirrored, np.subtract(1, low), high))
    first, last = (np.clip(end / total, 0.0, 1.0) for end in (lower, upper))
    return np.where(mirrored, 1 - last, first), np.where(mirrored, 1 - first, last)


def resample_groups(
    labels: np.ndarray, groups: np.ndarray, n_resamples: int, rng: np.random.Generator
) -> tuple[np.ndarray, Iterator[np.ndarray]]:
    """Resample groups, those of each class by themselves; a group is of the class that most of its events have.

    Returns
    -------
    (N,) int64 group number of each event, and blocks (b, G) of how often each group was drawn.
    """
    from scipy.sparse import coo_array  # a fifth of what scoring imports, and few sets have groups

    member, n_groups = number_groups(groups)
    n_events = coo_array((np.ones(len(labels)), (member, labels.astype(np.int64)))).toarray()
    group_class = n_events.argmax(axis=1)
    at_once = max(1, DRAWN_AT_ONCE // n_groups)

    def blocks() -> Iterator[np.ndarray]:
        for start in range(0, n_resamples, at_once):
            size = min(at_once, n_resamples - start)
            drawn = np.zeros((size, n_groups))
            for k in np.unique(group_class):
                inside = np.flatnonzero(group_class == k)
                drawn[:, inside] = rng.multinomial(len(inside), np.full(len(inside), 1 / len(inside)), size=size)
            yield drawn

    return member, blocks()


def grouped_counts(
    cell: np.ndarray,
    n_cells: int,
    labels: np.ndarray,
    groups: np.ndarray,
    n_resamples: int,
    weights: np.ndarray | None = None,
) -> np.ndarray:
    """Return how many events of resampled groups, or how much of their weights, are in each cell, (B, n_cells)."""
    from scipy.sparse import coo_array

    member, blocks = resample_groups(labels, groups, n_resamples, np.random.default_rng(BOOTSTRAP_SEED))
    worth = np.ones(len(cell)) if weights is None else weights
    counts = coo_array((worth, (member, cell)), shape=(int(member.max()) + 1, n_cells)).tocsr()
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
