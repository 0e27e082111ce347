"""Small symmetric positive-definite systems, one per event, as elementwise operations on lists of columns.

A matrix is the list of its lower triangle row by row: a00, a10, a11, a20, ... each an array (n,).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any


def cholesky(matrix: list[Any], least: list[Any], xp: ModuleType) -> tuple[list[Any], Any]:
    """Return the Cholesky factor (lower triangle), and where (n,) no pivot had to be raised to its ``least`` value."""
    factor: list[Any] = []
    safe = xp.isfinite(least[0])
    for i, floor in enumerate(least):
        for j in range(i + 1):
            total = matrix[_at(i, j)]
            for k in range(j):
                total = total - factor[_at(i, k)] * factor[_at(j, k)]
            if i == j:
                safe = safe & (total >= floor)
                factor.append(xp.sqrt(xp.maximum(total, floor)))
            else:
                factor.append(total / factor[_at(j, j)])
    return factor, safe


def rounded(matrix: list[Any], size: int) -> list[Any]:
    """Return pivots below which there is only rounding."""
    return [unit * 1e-6 + 1e-30 for unit in diagonal(matrix, size)]


def solve(factor: list[Any], right: list[Any]) -> list[Any]:
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


def inverse(matrix: list[Any], size: int, xp: ModuleType) -> list[Any]:
    """Return the inverse (lower triangle)."""
    factor, _ = cholesky(matrix, rounded(matrix, size), xp)
    one = xp.ones_like(matrix[0])
    columns = [solve(factor, [one if i == j else one * 0.0 for i in range(size)]) for j in range(size)]
    return [columns[j][i] for i in range(size) for j in range(i + 1)]


def diagonal(matrix: list[Any], size: int) -> list[Any]:
    """Return the diagonal."""
    return [matrix[_at(i, i)] for i in range(size)]


def damped(matrix: list[Any], scale: list[Any], damping: Any) -> list[Any]:
    """Return the matrix with ``damping * scale`` added to its diagonal."""
    result = list(matrix)
    for i, unit in enumerate(scale):
        result[_at(i, i)] = result[_at(i, i)] + unit * damping
    return result


def _at(i: int, j: int) -> int:
    return i * (i + 1) // 2 + j
