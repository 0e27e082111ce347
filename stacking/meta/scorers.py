"""What a choice is made by: a loss a task, used by meta-learners, their nested choice and the gate; and gamma scores.

The gamma score is the float64 logit of the gamma posterior plus one half: strictly monotone, never saturated
(probabilities near one tie, and tied hadrons survive), and a score of 0.5 means p = 0.5.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from showerstack.scoring.metrics.composition import confusion_matrix, expected_fraction_error
from showerstack.scoring.metrics.gamma import GAMMA, HADRON, Survival, hadron_survival
from showerstack.scoring.metrics.intervals import Interval, group_weights, share_interval, weighted_replicas
from showerstack.scoring.metrics.paired import paired_log_loss
from showerstack.stacking.meta.softmax import log_loss_per_event

SCORED_EFFICIENCIES = (0.65, 0.70, 0.75, 0.80, 0.85)
"""Gamma efficiencies around the benchmark's 75 % over which ln(survival) is averaged."""
TABLE_EFFICIENCIES = (0.25, 0.50, 0.60, 0.75, 0.90, 0.95, 0.99)
REAL_RATIOS = (1e-4, 1e-5, 1e-6)
"""Gammas per hadron that a telescope of cosmic rays may meet."""

SCORE_OF_HALF = 0.5
"""Score of an event of probability one half."""


def gamma_scores(log_proba: np.ndarray) -> np.ndarray:
    """Return ``logit(p_gamma) + 0.5``, (N,) float64, from (N, 2) log-probabilities (gamma, hadron)."""
    return np.asarray(log_proba[:, GAMMA] - log_proba[:, HADRON] + SCORE_OF_HALF, dtype=np.float64)


def log_survivals(labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Return ``ln((n + 0.5) / (N + 1))`` of surviving hadrons at each of :data:`SCORED_EFFICIENCIES`.

    The half survivor keeps "none left" finite. With importance weights (N,) n and N are sums of them, and in place of 1
    stands the weight of a survivor at the highest of these efficiencies.
    """
    if weights is not None:
        results = [hadron_survival(labels, scores, share, weights) for share in SCORED_EFFICIENCIES]
        return _weighted_log(np.array([one.hadron_survival for one in results]), results[-1])
    gammas, hadrons = np.sort(scores[labels == GAMMA])[::-1], scores[labels == HADRON]
    return _log_survival(hadrons, gammas[_ranks(len(gammas))], len(hadrons))


def _weighted_log(survivals: np.ndarray, widest: Survival) -> np.ndarray:
    assert widest.weights is not None
    one = widest.weights.scale / widest.weights.total
    return np.asarray(np.log((survivals + 0.5 * one) / (1.0 + one)))


def mean_log_survival(labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Return the mean of :func:`log_survivals` (lower is better)."""
    return float(log_survivals(labels, scores, weights).mean())


def paired_log_survival(
    labels: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    groups: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    *,
    n_samples: int = 100,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the difference of mean ln survival, a minus b, and its standard error from a paired bootstrap.

    It resamples events within classes, or whole groups (N,); with importance weights (N,) all showers.
    """
    if weights is not None:
        replicas = weighted_replicas(labels, (a, b), SCORED_EFFICIENCIES, weights, groups, n_samples, seed)
        widest = [hadron_survival(labels, scores, SCORED_EFFICIENCIES[-1], weights) for scores in (a, b)]
        first, second = map(_weighted_log, replicas, widest)
        difference = mean_log_survival(labels, a, weights) - mean_log_survival(labels, b, weights)
        return difference, float(np.std((first - second).mean(axis=0)))
    rng = np.random.default_rng(seed)
    if groups is not None:
        member, blocks = group_weights(labels, groups, n_samples, rng)
        resampled = (np.repeat(np.arange(len(labels)), row[member].astype(int)) for drawn in blocks for row in drawn)
        gaps = [
            mean_log_survival(labels[rows], a[rows]) - mean_log_survival(labels[rows], b[rows]) for rows in resampled
        ]
        return mean_log_survival(labels, a) - mean_log_survival(labels, b), float(np.std(gaps))
    gammas, hadrons = np.flatnonzero(labels == GAMMA), np.flatnonzero(labels == HADRON)
    rank = _ranks(len(gammas))
    drawn = [rng.choice(gammas, len(gammas)) for _ in range(n_samples)]
    thresholds = [[np.sort(score[some])[::-1][rank] for some in drawn] for score in (a, b)]
    # Hadrons below the lowest thresholds of both never survive: they enter as a number, not as a sort.
    floor = [np.min(values) for values in thresholds]
    near = hadrons[(a[hadrons] >= floor[0]) | (b[hadrons] >= floor[1])]
    differences = []
    for at_a, at_b in zip(*thresholds, strict=True):
        n_near = rng.binomial(len(hadrons), len(near) / len(hadrons))
        some = rng.choice(near, n_near) if len(near) else near
        differences.append(
            _log_survival(a[some], at_a, len(hadrons)).mean() - _log_survival(b[some], at_b, len(hadrons)).mean()
        )
    return mean_log_survival(labels, a) - mean_log_survival(labels, b), float(np.std(differences))


def _ranks(n_gamma: int) -> np.ndarray:
    """Return which of the descending gamma scores are the thresholds, counted from 0."""
    return np.ceil(np.array(SCORED_EFFICIENCIES) * n_gamma).astype(int) - 1


def _log_survival(hadrons: np.ndarray, thresholds: np.ndarray, n_hadrons: int) -> np.ndarray:
    surviving = len(hadrons) - np.searchsorted(np.sort(hadrons), thresholds, side="left")
    return np.asarray(np.log((surviving + 0.5) / (n_hadrons + 1.0)))


def threshold_table(
    labels: np.ndarray,
    scores: np.ndarray,
    efficiencies: tuple[float, ...] = TABLE_EFFICIENCIES,
    ratios: tuple[float, ...] = REAL_RATIOS,
    groups: np.ndarray | None = None,
    weights: np.ndarray | None = None,
) -> list[dict[str, Any]]:
    """Return thresholds for chosen gamma efficiencies, with what survives them and the purity to expect.

    Parameters
    ----------
    labels
        (N,) 0 gamma, 1 hadron: held-out events that pass the evaluation cuts.
    scores
        (N,) gamma scores of the same events.
    efficiencies
        Wanted shares of gammas.
    ratios
        Gammas per hadron among the events that will be selected from.
    groups
        (N,) or None: events of one value are one observation; see
        :func:`showerstack.scoring.metrics.intervals.share_interval`.
    weights
        (N,) importance weights, or None.

    Returns
    -------
    One row per efficiency: threshold, gamma efficiency and hadron survival with their Clopper-Pearson
    intervals, with weights how well the survival is determined (where it is not quoted the interval ends at the upper
    limit), and per ratio r the expected purity ``e r / (e r + s)`` with the interval that follows from that of
    the survival s.
    """
    table, of_class = [], (labels == 0, labels == 1)
    for efficiency in efficiencies:
        result = hadron_survival(labels, scores, efficiency, weights)
        kept = scores >= result.threshold
        gammas, left = (
            share_interval(
                kept[c], None if groups is None else groups[c], weights=None if weights is None else weights[c]
            )
            for c in of_class
        )
        more = {}
        if result.weights is not None:
            more = result.weights.as_dict()
            if not result.weights.quoted:
                left = Interval(0.0, result.weights.limit(), is_limit=True)
        survival = result.hadron_survival
        table.append(
            {
                "efficiency": efficiency,
                "threshold": result.threshold,
                "gamma_efficiency": result.gamma_efficiency,
                "gamma_efficiency_interval": _as_list(gammas),
                "hadron_survival": survival,
                "hadron_survival_interval": _as_list(left),
                "n_surviving": result.n_surviving,
                **more,
                "purity": {
                    f"{ratio:g}": {
                        "purity": _purity(result.gamma_efficiency, survival, ratio),
                        "interval": [
                            _purity(result.gamma_efficiency, left.high, ratio),
                            _purity(result.gamma_efficiency, left.low, ratio),
                        ],
                    }
                    for ratio in ratios
                },
            }
        )
    return table


def _purity(efficiency: float, survival: float, ratio: float) -> float:
    selected = efficiency * ratio
    return selected / (selected + survival) if selected + survival > 0 else 0.0


def _as_list(interval: Interval) -> list[float]:
    return [interval.low, interval.high]


HADRON_WEIGHT = 7.0
"""Weight of hadrons near the operating point in the fit of gamma meta-learners."""
NEAR_EFFICIENCY = 0.90
"""Hadrons above the threshold that keeps this share of the gammas are near the operating point."""


class Scorer(ABC):
    """Orders sets of log-probabilities of the same labelled events; lower is better."""

    name: str
    veto: bool = False
    """Whether the stack must not be worse by this loss than its best learner, beyond the error, to ship."""

    @abstractmethod
    def loss(self, log_proba: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> float:
        """Return the loss of (N, C) log-probabilities; ``weights`` (N,) are importance weights, here and below."""

    @abstractmethod
    def difference(
        self,
        a: np.ndarray,
        b: np.ndarray,
        labels: np.ndarray,
        groups: np.ndarray | None = None,
        weights: np.ndarray | None = None,
    ) -> tuple[float, float]:
        """Return loss(a) - loss(b) and its paired standard error; events of one group (N,) are one observation."""

    def metric(self, log_proba: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> float:
        """Return the real metric, or what stands for it: what greedy selection minimises."""
        return self.loss(log_proba, labels, weights)

    def weights(
        self, log_proba: np.ndarray, labels: np.ndarray, event_weights: np.ndarray | None = None
    ) -> np.ndarray | None:
        """Return the weights (N,) of events in fits of meta-learners, None for one each.

        Parameters
        ----------
        log_proba
            (L, N, C) of the learners.
        event_weights
            (N,) importance weights, which they are multiplied by, or None.
        """
        return event_weights


class LogLossScorer(Scorer):
    """Mean ``-log p`` of the true class, nats."""

    name = "log_loss"

    def loss(self, log_proba: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> float:
        """Return the mean log-loss."""
        return float(log_loss_per_event(log_proba, labels, weights).mean())

    def difference(
        self,
        a: np.ndarray,
        b: np.ndarray,
        labels: np.ndarray,
        groups: np.ndarray | None = None,
        weights: np.ndarray | None = None,
    ) -> tuple[float, float]:
        """Return the paired difference and its standard error."""
        result = paired_log_loss(labels, a, b, groups, weights)
        return result.difference, result.standard_error


class CompositionScorer(LogLossScorer):
    """Log-loss decides; greedy selection minimises the closed form of the fraction error."""

    def metric(self, log_proba: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> float:
        """Return the expected fraction error of ``argmax p / prior``; composition has no importance weights."""
        n_classes = log_proba.shape[1]
        prior = np.bincount(labels, minlength=n_classes) / len(labels)
        predicted = np.argmax(log_proba - np.log(np.maximum(prior, 1e-12)), axis=1)
        return expected_fraction_error(confusion_matrix(labels, predicted, n_classes))


class OrderedScorer(LogLossScorer):
    """Bins of a quantity: log-loss decides; greedy selection minimises the ranked probability score."""

    def metric(self, log_proba: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> float:
        """Return the mean of (P(below) - below)^2 over borders (E. S. Epstein, J. Appl. Meteor. 8 (1969) 985)."""
        below = np.cumsum(np.exp(log_proba), axis=1)[:, :-1]
        return float(np.mean((below - (labels[:, None] <= np.arange(below.shape[1]))) ** 2))


class GammaScorer(Scorer):
    """Mean ln of the hadron survival at gamma efficiencies 65..85 %."""

    name = "mean_log_survival"
    veto = True

    def loss(self, log_proba: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> float:
        """Return the mean ln survival."""
        return mean_log_survival(labels, gamma_scores(log_proba), weights)

    def difference(
        self,
        a: np.ndarray,
        b: np.ndarray,
        labels: np.ndarray,
        groups: np.ndarray | None = None,
        weights: np.ndarray | None = None,
    ) -> tuple[float, float]:
        """Return the difference and its bootstrap standard error."""
        return paired_log_survival(labels, gamma_scores(a), gamma_scores(b), groups, weights)

    def weights(self, log_proba: np.ndarray, labels: np.ndarray, event_weights: np.ndarray | None = None) -> np.ndarray:
        """Let hadrons near the operating point count several times."""
        score = gamma_scores(log_proba.mean(axis=0))
        threshold = np.quantile(score[labels == GAMMA], 1 - NEAR_EFFICIENCY)
        emphasis = np.where((labels == HADRON) & (score >= threshold), HADRON_WEIGHT, 1.0)
        return emphasis if event_weights is None else emphasis * event_weights
