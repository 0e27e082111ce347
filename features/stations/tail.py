"""How improbable a station's signal is: -lg P(S >= seen) of a compound Poisson sum, looked up in a table.

A signal S is the sum of N deposits, N Poisson with mean k, each deposit Gamma distributed with mean m. The deposits'
relative variance D - 1 is that of the channel's own particles (D: variance over mean of the sum, in deposits); k and m
follow from mean and variance of S,

    m = variance / (D mean),  k = D mean^2 / variance,  P(S >= s) = sum_n Poisson(n; k) Q(n a, a s / m),  a = 1/(D - 1),

with Q the regularised upper incomplete Gamma function. The sum is exact up to k = 20. Above, the normal tail of O. E.
Barndorff-Nielsen's r* (Biometrika 73 (1986) 307) takes its place, which agrees with the sum there within 1e-3: its
saddle point is known in closed form for Gamma distributed deposits.

The table holds the square root of -lg P over ln k and sqrt(s/m) - sqrt(k), in which it is nearly linear; between its
nodes it is interpolated linearly, within 1e-3 of -lg P.
"""

from __future__ import annotations

import math
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np

from showerstack.features.lateral.elementwise import LG_E
from showerstack.runtime.kernels import cached_table

MIN_MEAN, MAX_MEAN = 2e-3, 1.2e4
"""Range of k, beyond which it counts as its limit: half the strays of a station alone, twice the s/m of a saturated
station, which is largest (5,526) where muons dominate the e/gamma channel.
"""
MEAN_STEP = 0.05
"""Step in ln k."""
LOW, HIGH, STEP = -3.6, 12.0, 0.03
"""Range and step of sqrt(s/m) - sqrt(k); below it P is 1, above it -lg P is at its limit."""
MAX_LG = 60.0
"""Limit of -lg P."""
N_MEANS = math.ceil(math.log(MAX_MEAN / MIN_MEAN) / MEAN_STEP) + 1
N_STEPS = round((HIGH - LOW) / STEP) + 1
EXACT_MEAN, MOST_DEPOSITS = 20.0, 150
"""Largest k of the exact sum, and its terms: 150 deposits have a probability below 1e-70."""


def summed(tails: np.ndarray, mean: float) -> np.ndarray:
    """Return ln P(S >= s) by the sum over n.

    Parameters
    ----------
    tails
        (s, n) float64: Q(n a, a s) for n = 1, 2, ...
    mean
        Mean number of deposits, k.
    """
    from scipy.special import gammaln  # imported to make a table alone, which is kept

    n = np.arange(1.0, tails.shape[1] + 1.0)
    return np.log(np.maximum(tails @ np.exp(n * math.log(mean) - mean - gammaln(n + 1.0)), 1e-300))


def asymptotic(signal: np.ndarray, mean: float, shape: float) -> np.ndarray:
    """Return ln P(S >= signal) by the normal tail at r* = w + ln(u/w)/w.

    Parameters
    ----------
    signal
        (s,) float64, in mean deposits, above 0.
    mean, shape
        Mean number of deposits, k, and the shape a of their Gamma distribution.
    """
    from scipy.special import log_ndtr

    d = np.log(signal / mean) / (shape + 1.0)
    # Where signal and mean agree, w and u vanish together: r* is smooth, so a line bridges that place.
    near = 0.02 / math.sqrt(mean * shape * (shape + 1.0))
    bridge = _r_star(np.array([-near, near]), mean, shape)
    r = np.where(np.abs(d) < near, np.interp(d, [-near, near], bridge), 0.0)
    away = np.abs(d) >= near
    r[away] = _r_star(d[away], mean, shape)
    return log_ndtr(-r)


def _r_star(d: np.ndarray, mean: float, shape: float) -> np.ndarray:
    half_square = mean * (shape * np.exp((shape + 1.0) * d) - (shape + 1.0) * np.exp(shape * d) + 1.0)
    w = np.sign(d) * np.sqrt(2.0 * half_square)
    u = -shape * np.expm1(-d) * np.sqrt(mean * (1.0 + 1.0 / shape) * np.exp((shape + 2.0) * d))
    return w + np.log(u / w) / w


@cached_table("numpy", "scipy")
def tail_table(dispersion: float) -> np.ndarray:
    """Return the table, (means, steps) float32: sqrt(-lg P) for deposits of variance over mean ``dispersion``."""
    from scipy.interpolate import CubicSpline
    from scipy.special import gammaincc

    shape = 1.0 / (dispersion - 1.0)
    means = MIN_MEAN * np.exp(MEAN_STEP * np.arange(N_MEANS))
    steps = LOW + STEP * np.arange(N_STEPS)
    roots = np.arange(0.0, math.sqrt(EXACT_MEAN) + HIGH + 2 * STEP, STEP)
    tails = gammaincc(np.arange(1.0, MOST_DEPOSITS + 1.0) * shape, shape * roots[:, None] ** 2)
    rows = []
    for mean in means.tolist():
        root = np.maximum(steps + math.sqrt(mean), 0.0)
        if mean <= EXACT_MEAN:
            minus_ln = np.maximum(CubicSpline(roots, -summed(tails, mean))(root), 0.0)
        else:
            minus_ln = -asymptotic(root * root, mean, shape)
        rows.append(np.sqrt(np.minimum(minus_ln * LG_E, MAX_LG)))
    return np.ascontiguousarray(rows, dtype=np.float32)


@lru_cache(maxsize=16)
def flat_table(dispersion: float, xp: ModuleType) -> Any:
    """Return :func:`tail_table` as (means * steps,) of an array library."""
    return xp.asarray(tail_table(dispersion).ravel())
