"""The mean logarithm of the hadrons that survive a cut on gamma scores, over efficiencies around the benchmark's."""

from __future__ import annotations

import numpy as np

from showerstack.scoring.metrics.gamma import Survival, hadron_survival
from showerstack.scoring.metrics.intervals import resample_groups
from showerstack.scoring.metrics.survival_bootstrap import weighted_replicas
from showerstack.showers.schema import GAMMA_CLASS, HADRON

SCORED_EFFICIENCIES = (0.65, 0.70, 0.75, 0.80, 0.85)
"""Gamma efficiencies around the benchmark's 75 % over which ln(survival) is averaged."""
RESAMPLES = 100


def log_survivals(labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Return ``ln((n + 0.5) / (N + 1))`` of surviving hadrons at each of :data:`SCORED_EFFICIENCIES`.

    The half survivor keeps "none left" finite. With importance weights (N,) n and N are sums of them, and in place of 1
    stands the weight of a survivor at the highest of these efficiencies.
    """
    if weights is not None:
        survivals = [hadron_survival(labels, scores, efficiency, weights) for efficiency in SCORED_EFFICIENCIES]
        return _weighted_log(np.array([survival.hadron_survival for survival in survivals]), survivals[-1])
    gammas, hadrons = np.sort(scores[labels == GAMMA_CLASS])[::-1], scores[labels == HADRON]
    return _log_survival(hadrons, gammas[_ranks(len(gammas))], len(hadrons))


def _weighted_log(survivals: np.ndarray, widest: Survival) -> np.ndarray:
    assert widest.weights is not None
    one_survivor = widest.weights.scale / widest.weights.total
    return np.asarray(np.log((survivals + 0.5 * one_survivor) / (1.0 + one_survivor)))


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
    n_samples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the difference of mean ln survival, a minus b, and its standard error from a paired bootstrap.

    It resamples events within classes, or whole groups (N,); with importance weights (N,) all showers.
    """
    if weights is not None:
        replicas = weighted_replicas(labels, (a, b), SCORED_EFFICIENCIES, weights, groups, n_samples, seed)
        widest = [hadron_survival(labels, scores, SCORED_EFFICIENCIES[-1], weights) for scores in (a, b)]
        logs_a, logs_b = map(_weighted_log, replicas, widest)
        difference = mean_log_survival(labels, a, weights) - mean_log_survival(labels, b, weights)
        return difference, float(np.std((logs_a - logs_b).mean(axis=0)))
    rng = np.random.default_rng(seed)
    if groups is not None:
        member, blocks = resample_groups(labels, groups, n_samples, rng)
        resampled = (np.repeat(np.arange(len(labels)), row[member].astype(int)) for drawn in blocks for row in drawn)
        differences = [
            mean_log_survival(labels[rows], a[rows]) - mean_log_survival(labels[rows], b[rows]) for rows in resampled
        ]
        return mean_log_survival(labels, a) - mean_log_survival(labels, b), float(np.std(differences))
    gammas, hadrons = np.flatnonzero(labels == GAMMA_CLASS), np.flatnonzero(labels == HADRON)
    ranks = _ranks(len(gammas))
    replicas_of_gammas = [rng.choice(gammas, len(gammas)) for _ in range(n_samples)]
    thresholds_a, thresholds_b = (
        [np.sort(scores[rows])[::-1][ranks] for rows in replicas_of_gammas] for scores in (a, b)
    )
    # Hadrons below the lowest thresholds of both never survive: they enter as a number, not as a sort.
    near = hadrons[(a[hadrons] >= np.min(thresholds_a)) | (b[hadrons] >= np.min(thresholds_b))]
    differences = []
    for at_a, at_b in zip(thresholds_a, thresholds_b, strict=True):
        n_near = rng.binomial(len(hadrons), len(near) / len(hadrons))
        rows = rng.choice(near, n_near) if len(near) else near
        differences.append(
            _log_survival(a[rows], at_a, len(hadrons)).mean() - _log_survival(b[rows], at_b, len(hadrons)).mean()
        )
    return mean_log_survival(labels, a) - mean_log_survival(labels, b), float(np.std(differences))


def _ranks(n_gamma: int) -> np.ndarray:
    """Return which of the descending gamma scores are the thresholds, counted from 0."""
    return np.ceil(np.array(SCORED_EFFICIENCIES) * n_gamma).astype(int) - 1


def _log_survival(hadrons: np.ndarray, thresholds: np.ndarray, n_hadrons: int) -> np.ndarray:
    surviving = len(hadrons) - np.searchsorted(np.sort(hadrons), thresholds, side="left")
    return np.asarray(np.log((surviving + 0.5) / (n_hadrons + 1.0)))
