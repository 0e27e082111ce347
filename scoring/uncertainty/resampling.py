"""What all intervals are made of: the interval itself, the exact binomial one, and the basic bootstrap."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv, ndtri

from scoring.metrics.composition import MIXTURE_SIZE, mixture_counts
from showers.schema import InputError

LEVEL = 0.95
RESAMPLES = 2000
SEED = 2026


@dataclass(frozen=True)
class Interval:
    """A central confidence interval."""

    low: float
    high: float
    level: float = LEVEL

    def as_dict(self) -> dict[str, float]:
        """Return the interval for JSON."""
        return {"low": self.low, "high": self.high, "level": self.level}


def clopper_pearson(n_hits: int, n_trials: int, level: float = LEVEL) -> Interval:
    """Return the exact interval of a binomial share (C. J. Clopper, E. S. Pearson, Biometrika 26 (1934) 404).

    >>> found = clopper_pearson(11, 34_237)
    >>> f"{found.low:.1e} {found.high:.1e}"
    '1.6e-04 5.7e-04'
    """
    if n_trials < 1 or not 0 <= n_hits <= n_trials:
        raise InputError(f"a share needs 0 <= hits <= trials and at least 1 trial, got {n_hits} of {n_trials}")
    tail = (1 - level) / 2
    low = 0.0 if n_hits == 0 else float(betaincinv(n_hits, n_trials - n_hits + 1, tail))
    high = 1.0 if n_hits == n_trials else float(betaincinv(n_hits + 1, n_trials - n_hits, 1 - tail))
    return Interval(low, high, level)


def widened(deviations: np.ndarray, extra_variance: float) -> np.ndarray:
    """Return bootstrap deviations (B,) stretched so that their variance grows by an independent source's.

    Where the replicas do not vary at all, normal quantiles of that source stand in for them.
    """
    variance = float(deviations.var())
    if variance > 0:
        return deviations * np.sqrt(1 + extra_variance / variance)
    levels = (np.arange(len(deviations)) + 0.5) / len(deviations)
    return np.sqrt(extra_variance) * ndtri(levels)


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
