"""LightGBM's trees from its text file, summed by compiled code: raw scores are those of the library, to the bit.

The library takes one event through one tree after the other, some 30 ns each, and its import takes a second. Here each
border is compared for a block of events at once, as in QuickScorer (C. Lucchese et al., SIGIR 2015, 73): a node whose
condition fails strikes its left leaves from the event's bit mask, and the first leaf left is where the event ends. Sums
are taken in the library's order, so that nothing is rounded otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from showerstack.models.base.learner import Batch, Predictor, select_table
from showerstack.models.base.posterior import log_of_margins, undo_training_prior
from showerstack.models.base.saving import HEADER_FILE, read_header
from showerstack.runtime.errors import InputError
from showerstack.runtime.kernels import kernel_of

MODEL_FILE = "lightgbm.txt"
MOST_LEAVES = 32
"""Bits of a mask."""
AT_ONCE = 128
"""Events whose columns stay in the first-level cache."""
ZERO = 1e-35
"""The library takes values up to this size for 0."""
_CATEGORICAL, _DEFAULT_LEFT, _ZERO_MISSING, _NAN_MISSING = 1, 2, 4, 8
"""Bits of ``decision_type``: kind of split, where missing values go, and which values are missing."""
add_trees = kernel_of("showerstack.models.tables.tree_sums", "add_trees")


class OtherTrees(Exception):
    """The trees need more than plain borders: linear leaves, categories, zeros as missing values, many leaves."""


def float32_below(borders: np.ndarray) -> np.ndarray:
    """Return the largest float32 that are not above the given float64 borders.

    A float32 x is at most a float64 border exactly where it is at most this.
    """
    borders = np.asarray(borders, dtype=np.float64)
    with np.errstate(over="ignore"):
        rounded = borders.astype(np.float32)
        below = np.nextafter(rounded, np.float32(-np.inf))
    return np.where(rounded > borders, below, rounded).astype(np.float32)


@dataclass(frozen=True)
class LightGBMTrees:
    """All trees of a model."""

    n_sums: int
    """Trees of a round, K: one for two classes, else one a class."""
    n_columns: int
    arrays: tuple[np.ndarray, ...]
    """What :func:`add_trees` takes after the columns."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the library's text form.

        Raises
        ------
        OtherTrees
            If the trees are not all plain.
        ValueError, KeyError
            If the text is not such a model.
        """
        head, *parts = text.partition("\nend of trees")[0].split("\nTree=")
        entries = dict(line.split("=", 1) for line in head.splitlines() if "=" in line)
        if not parts or "average_output" in head.splitlines():
            raise OtherTrees
        n_columns = int(entries["max_feature_idx"]) + 1
        trees = [_Tree.parse(part) for part in parts]
        if any(tree.column.size and not 0 <= tree.column.min() <= tree.column.max() < n_columns for tree in trees):
            raise ValueError("a split of a column that is not there")

        def starts(sizes: Iterator[int]) -> np.ndarray:
            return np.concatenate([[0], np.cumsum(list(sizes))]).astype(np.int64)

        def joined(name: str) -> np.ndarray:
            return np.concatenate([getattr(tree, name) for tree in trees])

        arrays = (
            starts(tree.column.size for tree in trees),
            joined("column"),
            float32_below(joined("threshold")),
            joined("missing_left"),
            joined("struck"),
            starts(tree.value.size for tree in trees),
            joined("value"),
        )
        return cls(int(entries["num_tree_per_iteration"]), n_columns, arrays)

    def margins(self, table: np.ndarray) -> np.ndarray:
        """Return raw scores, (n, K) float64, or (n,) where K is 1, of a table (n, F) float32."""
        sums = np.zeros((self.n_sums, len(table)))
        for start in range(0, len(table), AT_ONCE):
            columns = np.ascontiguousarray(table[start : start + AT_ONCE].T)
            columns[np.abs(columns) <= ZERO] = 0.0
            part = np.zeros((self.n_sums, columns.shape[1]))
            add_trees(columns, *self.arrays, np.empty(part.shape[1], np.uint32), part)
            sums[:, start : start + AT_ONCE] = part
        return sums[0] if self.n_sums == 1 else sums.T


@dataclass(frozen=True)
class _Tree:
    """One tree; leaves are numbered from left to right."""

    column: np.ndarray
    threshold: np.ndarray
    missing_left: np.ndarray
    struck: np.ndarray
    value: np.ndarray

    @classmethod
    def parse(cls, text: str) -> Self:
        entries = dict(line.split("=", 1) for line in text.splitlines()[1:] if "=" in line)
        n_leaves = int(entries["num_leaves"])
        if n_leaves > MOST_LEAVES or int(entries["num_cat"]) or int(entries.get("is_linear", "0")):
            raise OtherTrees

        def numbers(name: str, kind: Any, n: int) -> np.ndarray:
            values = np.array(entries[name].split(), dtype=kind)
            if len(values) != n:
                raise ValueError(f"{name} of {len(values)} numbers, expected {n}")
            return values

        value = numbers("leaf_value", np.float64, n_leaves)
        if n_leaves == 1:
            none = np.empty(0)
            return cls(none.astype(np.int64), none, none.astype(bool), none.astype(np.uint32), value)
        n = n_leaves - 1
        kind, threshold = numbers("decision_type", np.int64, n), numbers("threshold", np.float64, n)
        if (kind & (_CATEGORICAL | _ZERO_MISSING)).any():
            raise OtherTrees
        # Without missing values in training the library reads an undefined value as 0.
        missing_left = np.where(kind & _NAN_MISSING, (kind & _DEFAULT_LEFT) > 0, threshold >= 0)
        left, right = numbers("left_child", np.int64, n), numbers("right_child", np.int64, n)
        order, struck = _from_left_to_right(left.tolist(), right.tolist())
        return cls(numbers("split_feature", np.int64, n), threshold, missing_left, struck, value[order])


def _from_left_to_right(left: list[int], right: list[int]) -> tuple[list[int], np.ndarray]:
    """Return the leaves in their order, and by node the mask of those that are not below its left child.

    A child below 0 is the leaf ``~child``.
    """
    order: list[int] = []
    struck = np.zeros(len(left), np.uint32)
    waiting: list[tuple[int, int | None]] = [(0, None)]
    while waiting:
        node, first = waiting.pop()
        if first is not None:  # all leaves below its left child have been met
            struck[node] = ~np.uint32(sum(1 << k for k in range(first, len(order))))
        elif node < 0:
            order.append(~node)
        else:
            waiting += [(right[node], None), (node, len(order)), (left[node], None)]
        if len(order) > len(left) + 1:
            raise ValueError("a tree that is none")
    if sorted(order) != list(range(len(left) + 1)):
        raise ValueError("a tree that is none")
    return order, struck


@dataclass(frozen=True)
class LightGBMPredictor(Predictor):
    """A saved LightGBM learner of plain trees, which can predict without the library and nothing else."""

    classes: tuple[str, ...]
    columns: tuple[str, ...]
    class_weights: np.ndarray | None
    trees: LightGBMTrees

    @classmethod
    def open(cls, folder: Path) -> Self | None:
        """Read a saved learner; None where its trees are not plain or its columns are no numbers alone."""
        header = read_header(folder)
        if "levels" in header:
            return None
        try:
            trees = LightGBMTrees.parse((folder / MODEL_FILE).read_text(encoding="utf-8"))
            weights, columns = header["class_weights"], tuple(map(str, header["columns"]))
            class_weights = None if weights is None else np.asarray(weights, dtype=np.float64)
            if trees.n_columns != len(columns) or trees.n_sums != (
                len(header["classes"]) if len(header["classes"]) > 2 else 1
            ):
                raise ValueError("other columns or classes")
        except OtherTrees:
            return None
        except (KeyError, ValueError, TypeError, OverflowError) as error:
            raise InputError(
                f"{folder / MODEL_FILE} and {HEADER_FILE} beside it are no saved LightGBM model: {error}"
            ) from None
        return cls(tuple(header["classes"]), columns, class_weights, trees)

    def predict_log_proba(self, batch: Batch) -> np.ndarray:
        """Return (n, C) float64 log-posteriors."""
        if not len(batch):
            return np.empty((0, len(self.classes)))
        margins = self.trees.margins(select_table(batch, self.columns))
        return undo_training_prior(log_of_margins(margins), self.class_weights)
