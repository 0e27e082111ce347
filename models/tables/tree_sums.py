"""Sums over trees compiled by Numba, for :mod:`showerstack.models.tables.lightgbm_trees`."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from showerstack.features.lateral.native import full_vectors
from showerstack.runtime.kernels import kernel


def _make_first_bit(typing_context: Any, mask: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.IntType(1)(1))

    return types.uint32(types.uint32), generate


_first_bit: Any = intrinsic(_make_first_bit)
"""Number of the lowest bit that is set, of at least one."""


@kernel(error_model="numpy", nogil=True)
def add_trees(
    columns: np.ndarray,
    node_start: np.ndarray,
    node_column: np.ndarray,
    border: np.ndarray,
    missing_left: np.ndarray,
    struck: np.ndarray,
    leaf_start: np.ndarray,
    leaf_value: np.ndarray,
    masks: np.ndarray,
    out: np.ndarray,
) -> None:
    """Add the trees' values to ``out`` (K, n) float64; tree t belongs to its row t % K.

    Parameters
    ----------
    columns
        (F, n) float32.
    node_start, leaf_start
        (T + 1,) int64: nodes and leaves of each tree.
    node_column, border, missing_left, struck
        Of each node: column, float32 border, whether an undefined value goes left, mask of the leaves that remain where
        the condition fails.
    leaf_value
        float64.
    masks
        (n,) uint32, to work in.
    """
    full_vectors()
    n_sums, n = out.shape
    every = ~np.uint32(0)
    for tree in range(node_start.size - 1):
        for i in range(n):
            masks[i] = every
        for node in range(node_start[tree], node_start[tree + 1]):
            values, top, rest = columns[node_column[node]], border[node], struck[node]
            if missing_left[node]:
                for i in range(n):
                    masks[i] &= rest if values[i] > top else every
            else:
                for i in range(n):
                    masks[i] &= every if values[i] <= top else rest
        sums, first = out[tree % n_sums], leaf_start[tree]
        for i in range(n):
            sums[i] += leaf_value[first + _first_bit(masks[i])]
