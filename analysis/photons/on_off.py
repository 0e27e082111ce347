"""The likelihood of counts in two regions, for data and for simulation, and what it says about a signal.

In each energy bin n measured events lie above the threshold and m in the sideband; k and l are the simulated hadrons
there, in events of equal weight. With a signal of S events above all thresholds together,

    n ~ Poisson(S a + g h u / v),  m ~ Poisson(S c + h),  k ~ Poisson(u),  l ~ Poisson(v),

where a and c are the signal's shares, h the hadrons of the sideband, and g turns the ratio of simulated events into one
of measured ones. u, v and h are nuisances, profiled bin by bin. They are those of T.-P. Li, Y.-Q. Ma, Astrophys. J. 272
(1983) 317, where u and v are known. No simulated event above the threshold means that none is the likeliest
expectation, with the likelihood to say how many more there may be.

Errors common to all bins, of the step between the regions and of the efficiency, are averaged over when experiments are
drawn (R. Cousins, V. Highland, Nucl. Instrum. Meth. A 320 (1992) 331). Test statistics are those of G. Cowan et al.,
Eur. Phys. J. C 71 (2011) 1554; their distributions come from drawn experiments, so that few events are no exception.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from scipy.optimize import minimize_scalar

from showerstack.analysis.photons.limits import BAND, Background, cls_limit, expected_limits
from showerstack.analysis.photons.work import Work
from showerstack.runtime.kernels import kernel_of

_COMPILED = "showerstack.analysis.photons.compiled"
_estimates, _compiled_deviances = kernel_of(_COMPILED, "estimates"), kernel_of(_COMPILED, "deviances")
Counted: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""n, m, k and l of experiments, (T, B) float64 each."""

FAR, NEAR, POINTS = 6.0, 4.0, 21
"""Signals are tried from so many errors below the estimate to so many above it, at so many points."""
FEWEST = 8.0
"""The largest signal tried is at least this one."""
REACH = 50
"""Drawn experiments without a signal that must be at least as low as the data; below, the counting formula serves."""
AROUND = 1.5
"""Chances are smoothed where their logarithms are so close to the one that is looked for."""
TIE = 1e-7
EXCESS = 3.0
"""So many errors above the background, counts no longer tell what would be expected without a signal."""


@dataclass(frozen=True)
class OnOff:
    """Counts by bin, (B,) float64 each."""

    n: np.ndarray
    """Measured events above the threshold."""
    m: np.ndarray
    """Measured events in the sideband."""
    k: np.ndarray
    """Simulated hadrons above the threshold, in events of equal weight."""
    l: np.ndarray  # noqa: E741 - the letter of the formula
    """The same in the sideband; above 0."""
    g: np.ndarray
    """Simulated events that stand for one measured event: sideband over signal region."""
    a: np.ndarray
    """Share of the signal above the thresholds that lies in each bin; sums to 1."""
    c: np.ndarray
    """Signal in the sideband for one event above all thresholds."""

    @property
    def background(self) -> np.ndarray:
        """(B,) likeliest background above the threshold without a signal in the sideband."""
        return np.asarray(self.m * self.g * self.k / self.l)

    @property
    def background_error(self) -> np.ndarray:
        """(B,) errors of the background from all counts; a count of 0 has the error .5 of its likelihood."""
        slopes = [
            (self.m, self.g * self.k / self.l),
            (self.k, self.m * self.g / self.l),
            (self.l, self.m * self.g * self.k / self.l**2),
        ]
        return np.asarray(np.sqrt(sum(slope**2 * np.where(count > 0, count, 0.25) for count, slope in slopes)))

    def deviance(self, signal: float, factor: float = 1.0) -> float:
        """Return -2 ln L, profiled, but for a constant; ``factor`` multiplies the step between the regions."""
        return float(_deviances(self._alone, self._of_bins, np.full(1, float(signal)), factor)[0])

    def estimate(self, factor: float = 1.0) -> float:
        """Return the likeliest signal that is not negative."""
        return float(_likeliest(self._alone, self._of_bins, factor)[0])

    def nuisances(self, signal: float) -> np.ndarray:
        """Return (4, B): expectations above the threshold, in the sideband, and of both simulated counts."""
        work = Work.of(1, len(self.n))
        work.signals[:] = signal
        _compiled_deviances(self._alone, self._of_bins, 1.0, work, np.empty(1))
        h, u, v = work.h[0], work.u[0], work.v[0]
        return np.stack([self.g * h * u / v, h, u, v])

    @property
    def _alone(self) -> Counted:
        return self.n[None], self.m[None], self.k[None], self.l[None]

    @property
    def _of_bins(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.g, self.a, self.c


@dataclass(frozen=True)
class Common:
    """Relative errors that all bins share, and how many experiments are drawn."""

    transfer: float = 0.0
    """Of the step from sideband to signal region."""
    efficiency: float = 0.0
    """Of the efficiency for the signal."""
    toys: int = 1000
    """For each signal that is tried."""
    seed: int = 1


@dataclass(frozen=True)
class SignalLimits:
    """What is said about the signal, in events above the thresholds."""

    limit: float
    """By CLs."""
    expected: np.ndarray
    """(5,) limits expected without a signal, at the quantiles of :data:`showerstack.analysis.photons.limits.BAND`."""
    interval: tuple[float, float]
    """Signals that a test by the likelihood ratio accepts: unified, with 0 for its lower limit where nothing is
    found (G. Feldman, R. Cousins, Phys. Rev. D 57 (1998) 3873)."""


def significance(counts: OnOff, transfer: float = 0.0) -> float:
    """Return the significance of a signal in standard deviations: the root of the likelihood ratio.

    0 where fewer events than expected are counted, since a signal cannot be negative. A common error of the step
    between the regions is profiled with a normal law of its logarithm.
    """

    def profiled(signal: float | None) -> float:
        def deviance(x: float) -> float:
            factor = float(np.exp(transfer * x))
            return counts.deviance(counts.estimate(factor) if signal is None else signal, factor) + x**2

        if not transfer:
            return deviance(0.0)
        return float(minimize_scalar(deviance, bounds=(-10.0, 10.0), method="bounded", options={"xatol": 1e-4}).fun)

    return float(np.sqrt(max(profiled(0.0) - profiled(None), 0.0)))


def signal_limits(counts: OnOff, level: float, common: Common | None = None) -> SignalLimits:
    """Return limits and interval of the signal from drawn experiments.

    Experiments are drawn with the nuisances that fit the data best for the signal in question. With 1,000 of them a
    limit at 90 % has a random error of some 3 %. Where hardly any experiment without a signal is as low as the data,
    limits are those of one averaged count (:func:`showerstack.analysis.photons.limits.cls_limit`).

    Parameters
    ----------
    level
        Confidence level, between .5 and 1.
    common
        Errors that bins share, and how many experiments are drawn.
    """
    errors = common or Common()
    rng = np.random.default_rng(errors.seed)
    observed, expected = counts.n.sum(), counts.background.sum()
    background_error = float(np.hypot(np.sqrt((counts.background_error**2).sum()), errors.transfer * expected))
    width = np.sqrt(
        observed + expected + background_error**2 + (errors.efficiency * max(observed - expected, 0)) ** 2 + 1
    )
    top = max(max(observed - expected, 0.0) + FAR * width, FEWEST)
    first = max(observed - expected - NEAR * width, 0.0)
    signals = np.unique([0.0, *np.linspace(first, top, POINTS)])

    without = _draw_experiments(counts, 0.0, errors, rng)
    best_without = _likeliest(without, counts._of_bins)
    best = counts.estimate()
    sums, alone, inside = (np.empty(len(signals)) for _ in range(3))
    bands, bands_alone = np.empty((2, len(BAND), len(signals)))
    for i, signal in enumerate(signals):
        drawn = _draw_experiments(counts, signal, errors, rng)
        best_drawn = _likeliest(drawn, counts._of_bins)
        with_signal, nothing = (
            _statistic(counts, sample, at, signal) for sample, at in ((drawn, best_drawn), (without, best_without))
        )
        mine = max(counts.deviance(signal) - counts.deviance(best), 0.0)
        inside[i] = (with_signal >= mine - TIE).mean()
        low, low_without = (
            np.where(at <= signal, q, 0.0) for q, at in ((with_signal, best_drawn), (nothing, best_without))
        )
        one_sided = mine if best <= signal else 0.0
        sums[i], alone[i] = ((q >= one_sided - TIE).mean() for q in (low, low_without))
        for j, value in enumerate(np.quantile(low_without, 1 - np.array(BAND), method="higher")):
            bands[j, i], bands_alone[j, i] = ((q >= value - TIE).mean() for q in (low, low_without))
    counted = Background(float(expected), background_error)

    error = errors.efficiency

    def limit(chance: np.ndarray, chance_without: np.ndarray, share: float | None = None) -> float:
        if chance_without[1:].min() * errors.toys >= REACH:
            return _crossing(signals, chance / chance_without, 1 - level, errors.toys * chance)
        if share is None:
            return cls_limit(round(observed), counted, level, efficiency_error=error)
        return float(expected_limits(counted, level, efficiency_error=error, shares=(share,))[0])

    if observed - expected > EXCESS * np.sqrt(expected + background_error**2 + 1.0):
        # What fits the data best without a signal takes an excess for background.
        band = expected_limits(counted, level, efficiency_error=error)
    else:
        # Limits by both ways cross by their random errors alone.
        chances = zip(bands, bands_alone, BAND, strict=True)
        band = np.maximum.accumulate([limit(one, none, share) for one, none, share in chances])
    return SignalLimits(
        limit(sums, alone),
        band,
        _accepted_interval(signals, inside, 1 - level, errors.toys),
    )


def _draw_experiments(counts: OnOff, signal: float, common: Common, rng: np.random.Generator) -> Counted:
    """Return n, m, k and l (T, B) of drawn experiments."""
    background, beside, u, v = counts.nuisances(signal)
    size = (common.toys, len(counts.n))
    step, efficiency = (
        np.exp(error * rng.standard_normal((common.toys, 1)) - error**2 / 2)
        for error in (np.sqrt(np.log1p(common.transfer**2)), np.sqrt(np.log1p(common.efficiency**2)))
    )
    means = (
        signal * efficiency * counts.a + background * step, signal * efficiency * counts.c + beside,
        np.broadcast_to(u, size), np.broadcast_to(v, size),
    )  # fmt: skip
    n, m, k, l = (rng.poisson(mean, size).astype(np.float64) for mean in means)  # noqa: E741
    return n, m, k, np.maximum(l, 1.0)


def _likeliest(drawn: Counted, of_bins: tuple[np.ndarray, np.ndarray, np.ndarray], factor: float = 1.0) -> np.ndarray:
    """Return the likeliest signals (T,) of experiments that are not negative."""
    out = np.empty(len(drawn[0]))
    _estimates(drawn, of_bins, factor, Work.of(*drawn[0].shape), out)
    return out


def _deviances(
    drawn: Counted, of_bins: tuple[np.ndarray, np.ndarray, np.ndarray], signals: np.ndarray, factor: float = 1.0
) -> np.ndarray:
    """Return -2 ln L (T,) of experiments at signals (T,), profiled, but for a constant."""
    work, out = Work.of(*drawn[0].shape), np.empty(len(drawn[0]))
    work.signals[:] = signals
    _compiled_deviances(drawn, of_bins, factor, work, out)
    return out


def _statistic(counts: OnOff, drawn: Counted, best: np.ndarray, signal: float) -> np.ndarray:
    """Return (T,): what the deviance at a signal is above its smallest, which lies at ``best`` (T,)."""
    at, least = (_deviances(drawn, counts._of_bins, each) for each in (np.full(len(best), signal), best))
    return np.maximum(at - least, 0.0)


def _crossing(signals: np.ndarray, chance: np.ndarray, wanted: float, drawn: np.ndarray) -> float:
    """Return the signal from which on a falling chance stays below what is wanted.

    Around it the logarithm of the chance is smoothed by a parabola.

    Parameters
    ----------
    signals, chance
        (P,) points, the signals increasing.
    drawn
        (P,) experiments that each chance was counted from.
    """
    above = np.flatnonzero(chance >= wanted)
    last = int(above[-1]) if len(above) else 0
    if last == len(signals) - 1:
        return float(signals[-1])
    lg, target = np.log(np.maximum(chance, 1e-4)), np.log(wanted)
    near = (np.abs(lg - target) < AROUND) & (drawn >= 2)
    if near.sum() > 3:
        x = signals[near]
        curve = np.polynomial.Polynomial.fit(x, lg[near], 2, w=np.sqrt(drawn[near]))
        tried = np.linspace(x[0], x[-1], 2001)
        below = np.flatnonzero(curve(tried) < target)
        if len(below) and below[0]:
            return float(tried[below[0]])
    share = float(np.clip((lg[last] - target) / max(lg[last] - lg[last + 1], 1e-12), 0.0, 1.0))
    return float(signals[last] + share * (signals[last + 1] - signals[last]))


def _accepted_interval(signals: np.ndarray, chance: np.ndarray, wanted: float, toys: int) -> tuple[float, float]:
    """Return the lowest and the highest signal whose chance is above what is wanted."""
    above = np.flatnonzero(chance > wanted)
    if not len(above):
        return 0.0, 0.0
    first, best = int(above[0]), int(np.argmax(chance))
    low = float(signals[first])
    if first:
        left, right = chance[first - 1 : first + 1]
        low -= float((right - wanted) / (right - left) * (signals[first] - signals[first - 1]))
    return low, _crossing(signals[best:], chance[best:], wanted, toys * chance[best:])
