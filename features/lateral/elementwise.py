"""Elementwise pieces of features: NaN where undefined, limits for degenerate events, and small linear systems.

The systems are symmetric and positive definite, one per event, solved on lists of columns. A matrix is the list of its
lower triangle row by row: a00, a10, a11, a20, ... each an array (n,).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

LG_E = 0.4342944819032518
"""lg e"""


def defined(condition: Any, values: Any, xp: ModuleType) -> Any:
    """Return ``values`` where ``condition`` holds and NaN elsewhere."""
    return xp.where(condition, values, float("nan"))


def lg(values: Any, xp: ModuleType) -> Any:
    """Return the decimal logarithm, NaN where the value is not positive."""
    positive = values > 0.0
    return defined(positive, xp.log(xp.where(positive, values, 1.0)) * LG_E, xp)


def within(values: Any, low: float, high: float, xp: ModuleType) -> Any:
    """Return values held within low..high; NaN stays NaN.

    Not by ``clip``: CuPy's, as the array API has it, sets elements by masks, for which the host waits.
    """
    return xp.minimum(xp.maximum(values, low), high)


def clip_symmetric(values: Any, limit: float, xp: ModuleType) -> Any:
    """Return values held within -limit..limit; NaN stays NaN."""
    return within(values, -limit, limit, xp)


def decay(values: Any, xp: ModuleType) -> Any:
    """Return exp(-values) for values >= 0, not below exp(-60): subnormal numbers would cost ten times the time."""
    return xp.exp(-xp.minimum(values, 60.0))


def inverse(matrix: list[Any], size: int, xp: ModuleType) -> list[Any]:
    """Return the inverse (lower triangle)."""
    factor = _cholesky(matrix, size, xp)
    one = xp.ones_like(matrix[0])
    columns = [_solve(factor, [one if i == j else one * 0.0 for i in range(size)]) for j in range(size)]
    return [columns[j][i] for i in range(size) for j in range(i + 1)]


def _cholesky(matrix: list[Any], size: int, xp: ModuleType) -> list[Any]:
    """Return the Cholesky factor (lower triangle); pivots are raised to where there is only rounding."""
    factor: list[Any] = []
    for i in range(size):
        for j in range(i + 1):
            total = matrix[_at(i, j)]
            for k in range(j):
                total = total - factor[_at(i, k)] * factor[_at(j, k)]
            if i == j:
                factor.append(xp.sqrt(xp.maximum(total, matrix[_at(i, i)] * 1e-6 + 1e-30)))
            else:
                factor.append(total / factor[_at(j, j)])
    return factor


def _solve(factor: list[Any], right: list[Any]) -> list[Any]:
    """Return the solution of (L L^T) x = right."""
    size = len(right)
    half: list[Any] = []
    for i in range(size):
        total = right[i]
        for k in range(i):
            total = total - factor[_at(i, k)] * half[k]
        half.append(total / factor[_at(i, i)])
    solution: list[Any] = [None] * size
    for i in reversed(range(size)):
        total = half[i]
        for k in range(i + 1, size):
            total = total - factor[_at(k, i)] * solution[k]
        solution[i] = total / factor[_at(i, i)]
    return solution


def _at(i: int, j: int) -> int:
    return i * (i + 1) // 2 + j
