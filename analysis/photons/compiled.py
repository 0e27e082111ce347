"""Compiled loops of the on/off model: the nuisances of many experiments side by side.

Almost all of the time goes into the bisection of one derivative in each bin of each experiment (:func:`_solve`): bins
of many experiments lie in one block, whose places are constants of the compiler, and each step is taken for all of
them, so that LLVM makes vectors of it. Every bin is treated as it is alone, to the bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from showerstack.analysis.photons.work import LANES
from showerstack.runtime.kernels import kernel

STEPS = 60


@njit(error_model="numpy")
def _solve(counts: Any, of_bins: Any, factor: float, n_rows: int, work: Any) -> None:
    """Fill h, u and v of the largest likelihood in all bins of some experiments, for their signals.

    The derivatives by ln u, ln v and ln h are 0 where u = k + z, v = l - z, z = h (1 - m / (S c + h)) and
    z = (n / (S a + B) - 1) B, with B = g u h / v. The last one is negative for small h and positive for large ones:
    that is where it changes its sign.
    """
    n, m, k, l = counts  # noqa: E741 - the letters of the formula
    g, a, c = of_bins
    block = work.block
    n_bins = len(g)
    total = n_rows * n_bins
    for start in range(0, total, LANES):
        for j in range(LANES):
            place = min(start + j, total - 1)  # the last block repeats the last bin
            i, b = place // n_bins, place % n_bins
            row, signal = work.rows[i], work.signals[i]
            block[j] = n[row, b]
            block[LANES + j] = m[row, b]
            block[2 * LANES + j] = k[row, b]
            block[3 * LANES + j] = l[row, b]
            block[4 * LANES + j] = factor * g[b]
            block[5 * LANES + j] = signal * a[b]
            block[6 * LANES + j] = signal * c[b]
            block[7 * LANES + j] = 0.0
            block[8 * LANES + j] = m[row, b] + l[row, b] + 1.0
        for _ in range(STEPS):
            for j in range(LANES):
                seen, side, left, right = block[j], block[LANES + j], block[2 * LANES + j], block[3 * LANES + j]
                step, on, beside = block[4 * LANES + j], block[5 * LANES + j], block[6 * LANES + j]
                low, high = block[7 * LANES + j], block[8 * LANES + j]
                h = (low + high) / 2
                missing = 1 - side / (beside + h)
                z = h * missing
                ratio = step * max(left + z, 0.0) / (right - z)
                expected = on + ratio * h
                there = seen / expected if expected > 0 else 0.0
                slope = missing + ratio * (1 - there)
                slope = -1.0 if (seen > 0) & (expected <= 0) else slope
                is_low = (z < right) & (slope < 0)
                block[7 * LANES + j] = h if is_low else low
                block[8 * LANES + j] = high if is_low else h
        for j in range(min(LANES, total - start)):
            i, b = (start + j) // n_bins, (start + j) % n_bins
            h, side, left, right = block[8 * LANES + j], block[LANES + j], block[2 * LANES + j], block[3 * LANES + j]
            z = h * (1 - side / (block[6 * LANES + j] + h)) if h > 0 else 0.0
            z = min(max(z, -left), right * (1 - 1e-12))
            work.h[i, b], work.u[i, b], work.v[i, b] = h, max(left + z, 0.0), right - z


@njit(error_model="numpy")
def _term(count: float, mean: float) -> float:
    """Return -2 ln of a Poisson probability, less that of the count itself as its mean."""
    if count <= 0:
        return 2 * mean
    if mean <= 0:
        return 1e30
    return float(2 * (mean - count + count * np.log(count / mean)))


@njit(error_model="numpy")
def _deviance(counts: Any, of_bins: Any, factor: float, i: int, work: Any) -> float:
    """Return -2 ln L of one experiment that is solved."""
    n, m, k, l = counts  # noqa: E741
    g, a, c = of_bins
    row, signal, total = work.rows[i], work.signals[i], 0.0
    for b in range(len(g)):
        h, u, v = work.h[i, b], work.u[i, b], work.v[i, b]
        on, beside = signal * a[b] + factor * g[b] * h * u / v, signal * c[b] + h
        total += _term(n[row, b], on) + _term(m[row, b], beside) + _term(k[row, b], u) + _term(l[row, b], v)
    return total


@njit(error_model="numpy")
def _slope(counts: Any, of_bins: Any, factor: float, i: int, work: Any) -> float:
    """Return half the derivative of :func:`_deviance` by the signal."""
    n, m = counts[0], counts[1]
    g, a, c = of_bins
    row, signal, slope = work.rows[i], work.signals[i], 0.0
    for b in range(len(g)):
        h, u, v = work.h[i, b], work.u[i, b], work.v[i, b]
        on, beside = signal * a[b] + factor * g[b] * h * u / v, signal * c[b] + h
        slope += a[b] * (1 - (n[row, b] / on if on > 0 else (1e30 if n[row, b] > 0 else 0.0)))
        slope += c[b] * (1 - (m[row, b] / beside if beside > 0 else (1e30 if m[row, b] > 0 else 0.0)))
    return slope


@kernel(nogil=True, error_model="numpy")
def estimates(counts: Any, of_bins: Any, factor: float, work: Any, out: np.ndarray) -> None:
    """Fill (T,): the likeliest signals from 0 on, by the derivative of the profiled likelihood (Illinois method)."""
    n, m = counts[0], counts[1]
    n_open = 0
    for row in range(len(out)):
        work.rows[row], work.signals[row] = row, 0.0
    _solve(counts, of_bins, factor, len(out), work)
    for row in range(len(out)):
        out[row] = 0.0
        below = _slope(counts, of_bins, factor, row, work)
        if below < 0:
            work.below[row] = below
            work.rows[n_open] = row
            n_open += 1
    for i in range(n_open):
        row = work.rows[i]
        work.low[row], work.high[row], work.side[row] = 0.0, n[row].sum() + m[row].sum() + 1.0, 0
        work.signals[i] = work.high[row]
    _solve(counts, of_bins, factor, n_open, work)
    still = 0
    for i in range(n_open):
        row = work.rows[i]
        work.above[row] = _slope(counts, of_bins, factor, i, work)
        if work.above[row] <= 0:
            out[row] = work.high[row]
        else:
            work.rows[still] = row
            still += 1
    n_open = still
    for step in range(STEPS + 1):
        still = 0
        for i in range(n_open):
            row = work.rows[i]
            low, high, below, above = work.low[row], work.high[row], work.below[row], work.above[row]
            if step == STEPS or high - low < 1e-6 * (1 + high):
                out[row] = (low + high) / 2
                continue
            # A derivative that is almost infinite at 0 tells nothing: halve.
            tried = (low + high) / 2 if below < -1e6 else (low * above - high * below) / (above - below)
            work.rows[still], work.signals[still] = row, tried
            still += 1
        n_open = still
        if not n_open:
            break
        _solve(counts, of_bins, factor, n_open, work)
        still = 0
        for i in range(n_open):
            row, tried = work.rows[i], work.signals[i]
            slope = _slope(counts, of_bins, factor, i, work)
            if abs(slope) < 1e-10:
                out[row] = tried
                continue
            if slope > 0:
                work.high[row], work.above[row] = tried, slope
                if work.side[row] == 1:
                    work.below[row] /= 2
                work.side[row] = 1
            else:
                work.low[row], work.below[row] = tried, slope
                if work.side[row] == -1:
                    work.above[row] /= 2
                work.side[row] = -1
            work.rows[still] = row
            still += 1
        n_open = still


@kernel(nogil=True, error_model="numpy")
def deviances(counts: Any, of_bins: Any, factor: float, work: Any, out: np.ndarray) -> None:
    """Fill (T,): -2 ln L of the experiments, profiled, at their signals in ``work``."""
    for row in range(len(out)):
        work.rows[row] = row
    _solve(counts, of_bins, factor, len(out), work)
    for row in range(len(out)):
        out[row] = _deviance(counts, of_bins, factor, row, work)
