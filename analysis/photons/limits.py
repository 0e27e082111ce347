"""One count above a background known with an error: upper limits on a signal by CLs.

The number of events n is Poisson with mean s + b. What is known of b is a Gamma distribution of stated mean and error,
over which n is averaged (R. Cousins, V. Highland, Nucl. Instrum. Meth. A 320 (1992) 331): for s = 0 that is a negative
binomial distribution, so that no number has to be drawn. CLs: A. Read, J. Phys. G 28 (2002) 2693. It chooses thresholds
and judges the background from simulation; limits from data are in :mod:`showerstack.analysis.photons.on_off`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import gammaln, logsumexp, pdtr, xlog1py, xlogy

from showerstack.analysis.options import SearchOptions
from showerstack.runtime.errors import InputError

LEVEL = SearchOptions.level
"""Confidence level of the field's limits on photons."""
BAND = (0.025, 0.16, 0.5, 0.84, 0.975)
"""Quantiles of the expected limits."""
FAR = 8.0
"""Standard deviations beyond which numbers of events are not considered."""


@dataclass(frozen=True)
class Background:
    """Expected background events and the standard deviation of that expectation."""

    mean: float
    error: float = 0.0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.mean) and self.mean >= 0 and np.isfinite(self.error) and self.error >= 0):
            raise InputError(f"background {self.mean:g} ± {self.error:g}: both must be finite and not negative")

    def log_pmf(self, n: np.ndarray) -> np.ndarray:
        """Return logarithms of the probabilities of numbers of background events: Poisson, or negative binomial."""
        if self.error <= 1e-6 * self.mean or self.mean == 0:
            return np.asarray(xlogy(n, self.mean) - gammaln(n + 1) - self.mean)
        ratio = self.error**2 / self.mean
        size, share = self.mean / ratio, 1.0 / (1.0 + ratio)
        ways = gammaln(size + n) - gammaln(n + 1) - gammaln(size)
        return np.asarray(ways + size * np.log(share) + xlog1py(n, -share))

    def pmf(self, n: np.ndarray) -> np.ndarray:
        """Return probabilities of numbers of background events."""
        return np.exp(self.log_pmf(n))

    def largest(self) -> int:
        """Return a number of events that is hardly ever passed."""
        return int(np.ceil(self.mean + FAR * np.sqrt(self.mean + self.error**2) + 20))


def cls_limit(n: int, background: Background, level: float = LEVEL, *, efficiency_error: float = 0.0) -> float:
    """Return the signal above which ``P(at most n | s + b) < (1 - level) P(at most n | b)``."""
    numbers = np.arange(n + 1)
    # Logarithms throughout: far below the background both probabilities are too small for a number.
    log_background = background.log_pmf(numbers)
    below = logsumexp(log_background)
    factors, shares = _factors(efficiency_error)

    def distance(signal: float) -> float:
        with np.errstate(divide="ignore"):
            at_most = np.log(pdtr(n - numbers, signal * factors[:, None]))
        return float(
            logsumexp(log_background + logsumexp(at_most, axis=0, b=shares[:, None])) - below - np.log(1 - level)
        )

    highest = 10.0 + n + FAR * np.sqrt(n + 1.0)
    while distance(highest) > 0:
        highest *= 2
    return float(brentq(distance, 0.0, highest, xtol=1e-6))


def _factors(error: float) -> tuple[np.ndarray, np.ndarray]:
    """Return factors of mean one and relative error ``error``, and their weights (Gauss and Hermite)."""
    if error <= 0:
        return np.ones(1), np.ones(1)
    nodes, weights = np.polynomial.hermite_e.hermegauss(7)
    width = np.sqrt(np.log1p(error**2))
    factors, weights = np.exp(width * nodes), weights / weights.sum()
    return factors / (weights @ factors), weights


def expected_limits(
    background: Background,
    level: float = LEVEL,
    *,
    efficiency_error: float = 0.0,
    shares: tuple[float, ...] = BAND,
) -> np.ndarray:
    """Return the limits by CLs, one for each of some quantiles, that are expected without a signal."""
    numbers = np.arange(background.largest() + 1)
    reached = np.cumsum(background.pmf(numbers))
    many = [int(np.searchsorted(reached, share)) for share in shares]
    return np.array([cls_limit(n, background, level, efficiency_error=efficiency_error) for n in many])
