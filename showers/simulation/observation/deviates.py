"""Random numbers inside compiled kernels, from a counter-based generator.

Every station of every event has its own stream, started from a hash of (event key, station). Results therefore do
not depend on the order or the number of workers, and a change of a constant leaves all other stations' numbers alone
(common random numbers, which the calibration needs). The generator is SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)
_TO_UNIT = 1.0 / 9007199254740992.0
"""2^-53."""
INVERSION_LIMIT = 12.0
"""Poisson means below are sampled by inversion, others by transformed rejection."""


@numba.njit(inline="always")
def _mixed(z: Any) -> Any:
    z = (z ^ (z >> _S30)) * _MIX1
    z = (z ^ (z >> _S27)) * _MIX2
    return z ^ (z >> _S31)


def stream_offsets(n: int) -> np.ndarray:
    """Return (n,) uint64 offsets, far apart, of the streams that share an event's key."""
    offsets: np.ndarray = _mixed.py_func(np.arange(1, n + 1, dtype=np.uint64) * _GAMMA)
    return offsets


@numba.njit
def start(state: np.ndarray, key: np.uint64, offset: np.uint64) -> None:
    """Begin the stream with the given offset for the event ``key`` in ``state``, a (1,) uint64 array."""
    state[0] = _mixed(key + offset)


@numba.njit
def uniform(state: np.ndarray) -> float:
    """Return a uniform number in 0 < u < 1 (53 bits, never 0)."""
    state[0] += _GAMMA
    return (np.float64(_mixed(state[0]) >> _S11) + 0.5) * _TO_UNIT


@numba.njit
def exponential(state: np.ndarray) -> float:
    """Return an exponential number of mean 1."""
    return -math.log(uniform(state))


@numba.njit
def normal(state: np.ndarray) -> float:
    """Return a standard normal number (Box and Muller 1958)."""
    radius = math.sqrt(-2.0 * math.log(uniform(state)))
    return radius * math.cos(2.0 * math.pi * uniform(state))


@numba.njit
def gamma(state: np.ndarray, shape: float) -> float:
    """Return a Gamma number of the given shape and scale 1 (Marsaglia and Tsang, ACM TOMS 26 (2000) 363)."""
    boost = 1.0
    if shape < 1.0:
        boost = math.exp(math.log(uniform(state)) / shape)
        shape += 1.0
    d = shape - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    while True:
        x = normal(state)
        v = 1.0 + c * x
        if v <= 0.0:
            continue
        v = v * v * v
        u = uniform(state)
        x_2 = x * x
        # The first condition is the paper's squeeze: it spares the logarithms nearly always.
        if u < 1.0 - 0.0331 * x_2 * x_2 or math.log(u) < 0.5 * x_2 + d - d * v + d * math.log(v):
            return boost * d * v


@numba.njit
def poisson(state: np.ndarray, mean: float) -> int:
    """Return a Poisson number.

    Small means by inversion of one uniform number; large ones by transformed rejection with squeeze
    (PTRS of W. Hörmann, Insurance: Mathematics and Economics 12 (1993) 39).
    """
    if mean <= 0.0:
        return 0
    if mean < INVERSION_LIMIT:
        return poisson_inverse(uniform(state), mean)
    b = 0.931 + 2.53 * math.sqrt(mean)
    a = -0.059 + 0.02483 * b
    inverse_alpha = 1.1239 + 1.1328 / (b - 3.4)
    v_r = 0.9277 - 3.6224 / (b - 2.0)
    log_mean = math.log(mean)
    while True:
        u = uniform(state) - 0.5
        v = uniform(state)
        u_s = 0.5 - abs(u)
        k = math.floor((2.0 * a / u_s + b) * u + mean + 0.43)
        if u_s >= 0.07 and v <= v_r:
            return int(k)
        if k < 0.0 or (u_s < 0.013 and v > u_s):
            continue
        left = math.log(v * inverse_alpha / (a / (u_s * u_s) + b))
        if left <= k * log_mean - mean - math.lgamma(k + 1.0):
            return int(k)


@numba.njit
def poisson_inverse(u: float, mean: float) -> int:
    """Return the Poisson number that belongs to the uniform number ``u``, for means below about 20."""
    term = math.exp(-mean)
    total = term
    k = 0
    while u > total and k < 200:
        k += 1
        term *= mean / k
        total += term
    return k
