"""Trees of any library as one table of nodes, and that table as an ONNX tree ensemble.

A float32 value x is compared with float32 borders. Where a library compares with a float64 border t, ``x <= t`` is
the same as ``x <= t'`` with the largest float32 t' that is not above t, so that every event ends in the same leaf.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from models.portable.graph import COLUMNS, Nodes

LESS_EQUAL, LESS, GREATER, LEAF = "BRANCH_LEQ", "BRANCH_LT", "BRANCH_GT", "LEAF"


def float32_below(borders: np.ndarray) -> np.ndarray:
    """Return the largest float32 that are not above the given float64 borders."""
    borders = np.asarray(borders, dtype=np.float64)
    with np.errstate(over="ignore"):
        found = borders.astype(np.float32)
        below = np.nextafter(found, np.float32(-np.inf))
    return np.where(found > borders, below, found).astype(np.float32)


@dataclass
class TreeTable:
    """Nodes of all trees and the numbers that their leaves add to T sums."""

    n_sums: int
    trees: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    borders: list[float] = field(default_factory=list)
    modes: list[str] = field(default_factory=list)
    met: list[int] = field(default_factory=list)
    unmet: list[int] = field(default_factory=list)
    missing_meets: list[int] = field(default_factory=list)
    leaf_trees: list[int] = field(default_factory=list)
    leaf_ids: list[int] = field(default_factory=list)
    leaf_sums: list[int] = field(default_factory=list)
    leaf_values: list[float] = field(default_factory=list)

    def split(
        self, tree: int, number: int, column: int, border: float, mode: str, met: int, unmet: int, *, missing: bool
    ) -> None:
        """Add a node; ``missing`` says whether an undefined value goes where the condition is met."""
        self._node(tree, number, column, border, mode, met, unmet, missing)

    def leaf(self, tree: int, number: int, values: dict[int, float]) -> None:
        """Add a leaf and what it adds, by sum."""
        self._node(tree, number, 0, 0.0, LEAF, 0, 0, False)
        # A leaf without any number is not found by every program.
        for place, value in (values or {0: 0.0}).items():
            self.leaf_trees.append(tree)
            self.leaf_ids.append(number)
            self.leaf_sums.append(place)
            self.leaf_values.append(float(value))

    def _node(
        self, tree: int, number: int, column: int, border: float, mode: str, met: int, unmet: int, missing: bool
    ) -> None:
        self.trees.append(tree)
        self.ids.append(number)
        self.columns.append(int(column))
        self.borders.append(float(border))
        self.modes.append(mode)
        self.met.append(int(met))
        self.unmet.append(int(unmet))
        self.missing_meets.append(int(missing))

    def sums(self, nodes: Nodes, offset: np.ndarray) -> str:
        """Add the ensemble to a graph; return the name of its (n, T) float64 sums.

        Parameters
        ----------
        nodes
            The graph.
        offset
            (T,) float64 that is added to the sums.
        """
        from onnx import TensorProto

        found = nodes.add(
            "TreeEnsembleRegressor",
            [COLUMNS],
            domain="ai.onnx.ml",
            n_targets=self.n_sums,
            nodes_treeids=self.trees,
            nodes_nodeids=self.ids,
            nodes_featureids=self.columns,
            nodes_values=self.borders,
            nodes_modes=self.modes,
            nodes_truenodeids=self.met,
            nodes_falsenodeids=self.unmet,
            nodes_missing_value_tracks_true=self.missing_meets,
            target_treeids=self.leaf_trees,
            target_nodeids=self.leaf_ids,
            target_ids=self.leaf_sums,
            target_weights=self.leaf_values,
            post_transform="NONE",
        )
        wide = nodes.add("Cast", [found], to=TensorProto.DOUBLE)
        return nodes.add("Add", [wide, nodes.constant(np.asarray(offset, dtype=np.float64))])


def margins_to_log(nodes: Nodes, margins: str, n_margins: int) -> str:
    """Add what :func:`models.posterior.log_of_margins` does: one margin is the logit of the second of two classes."""
    if n_margins == 1:
        margins = nodes.add("Concat", [nodes.add("Sub", [margins, margins]), margins], axis=1)
    return nodes.log_softmax(margins)
