"""Upper limits on a signal above a background known with an error: CLs, and the intervals of Feldman and Cousins.

The number of events n is Poisson with mean s + b. What is known of b is a Gamma distribution of stated mean and error,
over which n is averaged (R. Cousins, V. Highland, Nucl. Instrum. Meth. A 320 (1992) 331; for intervals J. Conrad et
al., Phys. Rev. D 67 (2003) 012002): for s = 0 that is a negative binomial distribution, so that no number has to be
drawn. Intervals: G. Feldman, R. Cousins, Phys. Rev. D 57 (1998) 3873. CLs: A. Read, J. Phys. G 28 (2002) 2693.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.stats import nbinom, norm, poisson

from runtime.errors import InputError

LEVEL = 0.90
"""Confidence level of the field's limits on photons."""
BAND = (0.025, 0.16, 0.5, 0.84, 0.975)
"""Quantiles of the expected limits."""
STEPS = 2000
"""Signals tried for an interval."""
HARDLY_DISCRETE = 20.0
"""Backgrounds above which steps of the interval from number to number no longer matter."""
SMOOTHED = 0.2
"""Error of the background above which there are no such steps."""
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

    def pmf(self, n: np.ndarray) -> np.ndarray:
        """Return probabilities of numbers of background events."""
        if self.error <= 1e-6 * self.mean or self.mean == 0:
            return np.asarray(poisson.pmf(n, self.mean))
        ratio = self.error**2 / self.mean
        return np.asarray(nbinom.pmf(n, self.mean / ratio, 1.0 / (1.0 + ratio)))

    def largest(self, extra: float = 0.0) -> int:
        """Return a number of events that is hardly ever passed."""
        return int(np.ceil(self.mean + extra + FAR * np.sqrt(self.mean + extra + self.error**2) + 20))


def counted(signal: np.ndarray | float, background: Background, n_max: int) -> np.ndarray:
    """Return probabilities (S, n_max + 1) of 0 .. n_max events for signals (S,)."""
    n = np.arange(n_max + 1)
    ours = poisson.pmf(n, np.atleast_1d(np.asarray(signal, dtype=np.float64))[:, None])
    theirs = background.pmf(n)
    size = 2 * len(n)
    together = np.fft.irfft(np.fft.rfft(ours, size) * np.fft.rfft(theirs, size), size)[:, : len(n)]
    return np.asarray(np.maximum(together, 0.0))


def cls_limit(n: int, background: Background, level: float = LEVEL, *, efficiency_error: float = 0.0) -> float:
    """Return the signal above which ``P(at most n | s + b) < (1 - level) P(at most n | b)``.

    Parameters
    ----------
    efficiency_error
        Relative error of the efficiency for the signal; averaged over as log-normal.
    """
    numbers = np.arange(n + 1)
    theirs = background.pmf(numbers)
    below = theirs.sum()
    factors, shares = _factors(efficiency_error)

    def distance(signal: float) -> float:
        below_n = shares @ poisson.cdf(n - numbers, signal * factors[:, None])
        return float((theirs * below_n).sum() / below - (1 - level))

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


def feldman_cousins(
    n: int, background: Background, level: float = LEVEL, *, efficiency_error: float = 0.0
) -> tuple[float, float]:
    """Return the interval of the signal: the unified one, whose lower limit is 0 where nothing is seen.

    Numbers of events are accepted in the order of ``P(n | s) / P(n | best s)`` until they hold ``level``. As
    published, the upper limit must not rise with the background: the largest for any larger background counts.
    """
    low, high = _unified(n, background, level, efficiency_error)
    if n < background.mean < HARDLY_DISCRETE and background.error < SMOOTHED:
        for more in np.arange(0.02, 1.0, 0.02):
            high = max(high, _unified(n, Background(background.mean + more, background.error), level, 0.0)[1])
    return low, high


def _unified(n: int, background: Background, level: float, efficiency_error: float) -> tuple[float, float]:
    top = max(n - background.mean, 0.0) + 5.0 * np.sqrt(n + background.mean + background.error**2 + 1.0) + 5.0
    top *= 1.0 + 4.0 * efficiency_error
    power = 10.0 ** np.floor(np.log10(top / STEPS))
    step = power * (5 if top / STEPS > 5 * power else 1)
    signals = np.arange(0.0, top + step, step)
    n_max = max(background.largest(top), n)
    factors, shares = _factors(efficiency_error)
    chance = sum(share * counted(factor * signals, background, n_max)
                 for factor, share in zip(factors, shares, strict=True))  # fmt: skip
    ratio = chance / np.maximum(chance.max(axis=0), 1e-300)
    order = np.argsort(-ratio, axis=1, kind="stable")
    before = np.cumsum(np.take_along_axis(chance, order, axis=1), axis=1)
    before -= np.take_along_axis(chance, order, axis=1)
    accepted = np.zeros(chance.shape, dtype=bool)
    np.put_along_axis(accepted, order, before < level, axis=1)
    mine = signals[accepted[:, n]]
    return (float(mine.min()), float(mine.max())) if len(mine) else (0.0, 0.0)


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


def significance(n: int, background: Background) -> float:
    """Return how many standard deviations above the background ``n`` is, by the probability of at least ``n``."""
    at_least = 1.0 - background.pmf(np.arange(n)).sum() if n else 1.0
    return float(norm.isf(min(max(at_least, 1e-300), 1.0 - 1e-16)))
