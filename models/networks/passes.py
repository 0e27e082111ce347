"""Passes over the units of a network, compiled by Numba, for :mod:`showerstack.models.networks.forward`.

The error function is that of Abramowitz and Stegun, *Handbook of Mathematical Functions* (1964), 7.1.26, whose error is
below 1.5e-7.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from showerstack.features.lateral.native import f32, full_vectors, vexp2
from showerstack.runtime.kernels import FAST, kernel

NORM_EPSILON = f32(1e-5)
"""What torch's layer norm adds to a variance."""
ROOT_HALF, LOG2_E = f32(0.7071067811865476), f32(1.4426950408889634)


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def _gelu_of(x: Any) -> Any:
    """Return x Phi(x) with Phi the normal distribution: x - x (1 - Phi(x)) for x > 0, and x Phi(x) for x < 0."""
    a = abs(x) * ROOT_HALF
    t = f32(1.0) / (f32(1.0) + f32(0.3275911) * a)
    p = f32(1.061405429)
    p = p * t + f32(-1.453152027)
    p = p * t + f32(1.421413741)
    p = p * t + f32(-0.284496736)
    p = p * t + f32(0.254829592)
    tail = f32(0.5) * p * t * vexp2(a * a * -LOG2_E)
    return max(x, f32(0.0)) - abs(x) * tail


@kernel(fastmath=FAST, error_model="numpy", nogil=True)
def gelu(x: np.ndarray, bias: np.ndarray) -> None:
    """Replace x (n, m) by gelu(x + bias)."""
    full_vectors()
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            x[i, j] = _gelu_of(x[i, j] + bias[j])


@kernel(fastmath=FAST, error_model="numpy", nogil=True)
def normalise(x: np.ndarray, scale: np.ndarray, shift: np.ndarray, out: np.ndarray) -> None:
    """Fill ``out`` (n, m) with the rows of x, each with mean 0 and variance 1, times ``scale``, plus ``shift``."""
    full_vectors()
    n, m = x.shape
    for i in range(n):
        total = f32(0.0)
        for j in range(m):
            total += x[i, j]
        mean = total / f32(m)
        squares = f32(0.0)
        for j in range(m):
            squares += (x[i, j] - mean) * (x[i, j] - mean)
        per_width = f32(1.0) / np.sqrt(squares / f32(m) + NORM_EPSILON)
        for j in range(m):
            out[i, j] = (x[i, j] - mean) * per_width * scale[j] + shift[j]


@kernel(fastmath=FAST, error_model="numpy", nogil=True)
def add(x: np.ndarray, y: np.ndarray, bias: np.ndarray) -> None:
    """Add y (n, m) and ``bias`` to x."""
    full_vectors()
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            x[i, j] += y[i, j] + bias[j]
