"""Trees of LightGBM, XGBoost, CatBoost and scikit-learn as one table of nodes, and that table as an ONNX ensemble.

A float32 value x is compared with float32 borders. Where a library compares with a float64 border t, ``x <= t`` is the
same as ``x <= t'`` with the largest float32 t' that is not above t, so that every event ends in the same leaf.
"""

from __future__ import annotations

import json
import math
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from showerstack.models.onnx.graph import COLUMNS, Nodes, NotPortable
from showerstack.models.tables.catboost import CatBoost
from showerstack.models.tables.lightgbm import LightGBM
from showerstack.models.tables.lightgbm_trees import float32_below
from showerstack.models.tables.sklearn import HistBoosting, RandomForest, RegressionForest
from showerstack.models.tables.xgboost import XGBoost

LESS_EQUAL, LESS, GREATER, LEAF = "BRANCH_LEQ", "BRANCH_LT", "BRANCH_GT", "LEAF"
NODE_ATTRIBUTES = (
    *("nodes_treeids", "nodes_nodeids", "nodes_featureids", "nodes_values", "nodes_modes"),
    *("nodes_truenodeids", "nodes_falsenodeids", "nodes_missing_value_tracks_true"),
)
LEAF_ATTRIBUTES = ("target_treeids", "target_nodeids", "target_ids", "target_weights")
"""Attributes of ONNX's ensemble, in the order of :class:`TreeTable`'s rows."""


@dataclass
class TreeTable:
    """Nodes of all trees and the numbers that their leaves add to T sums."""

    n_sums: int
    nodes: list[tuple[int, int, int, float, str, int, int, int]] = field(default_factory=list)
    """Tree, number, column, border, mode, node where met, node where not, whether a missing value meets."""
    leaves: list[tuple[int, int, int, float]] = field(default_factory=list)
    """Tree, number, sum, what is added to it."""

    def split(
        self, tree: int, number: int, column: int, border: float, mode: str, met: int, unmet: int, *, missing: bool
    ) -> None:
        """Add a node; ``missing`` says whether an undefined value goes where the condition is met."""
        self.nodes.append((tree, number, int(column), float(border), mode, int(met), int(unmet), int(missing)))

    def leaf(self, tree: int, number: int, values: dict[int, float]) -> None:
        """Add a leaf and what it adds, by sum."""
        self.nodes.append((tree, number, 0, 0.0, LEAF, 0, 0, 0))
        # A leaf without any number is not found by every program.
        self.leaves += [(tree, number, sum_number, float(value)) for sum_number, value in (values or {0: 0.0}).items()]

    def sums(self, nodes: Nodes, offset: np.ndarray) -> str:
        """Add the ensemble to a graph; return the name of its (n, T) float64 sums, each with its (T,) offset."""
        from onnx import TensorProto

        of_nodes = zip(NODE_ATTRIBUTES, zip(*self.nodes, strict=True), strict=True)
        of_leaves = zip(LEAF_ATTRIBUTES, zip(*self.leaves, strict=True), strict=True)
        sums = nodes.add(
            "TreeEnsembleRegressor",
            [COLUMNS],
            domain="ai.onnx.ml",
            n_targets=self.n_sums,
            post_transform="NONE",
            **{name: list(values) for name, values in (*of_nodes, *of_leaves)},
        )
        wide = nodes.add("Cast", [sums], to=TensorProto.DOUBLE)
        return nodes.add("Add", [wide, nodes.constant(np.asarray(offset, dtype=np.float64))])


def margins_to_log(nodes: Nodes, margins: str, n_margins: int) -> str:
    """Add :func:`showerstack.models.base.posterior.log_of_margins`: one margin is the logit of the second of two
    classes."""
    if n_margins == 1:
        margins = nodes.add("Concat", [nodes.add("Sub", [margins, margins]), margins], axis=1)
    return nodes.log_softmax(margins)


def lightgbm_margins(learner: LightGBM, nodes: Nodes) -> tuple[str, int]:
    """Add LightGBM's raw scores; return their name and number.

    Trees with linear leaves add their coefficients, summed over trees, to a matrix that then meets the columns.
    """
    model = learner.booster_.dump_model()
    per_round, n_columns = int(model["num_tree_per_iteration"]), len(learner.columns_)
    if model.get("average_output"):
        raise NotPortable("LightGBM averages its trees (boosting 'rf'), which is not supported")
    linear = bool(learner.chosen["linear_tree"])
    width = n_columns + 1 if linear else 1
    table = TreeTable(per_round * width)
    for k, tree in enumerate(model["tree_info"]):
        _LightGBMTree(table, k, (k % per_round) * width, linear).add(tree["tree_structure"])
    sums = table.sums(nodes, np.zeros(table.n_sums))
    return (_linear_margins(nodes, sums, per_round, n_columns) if linear else sums), per_round


def _linear_margins(nodes: Nodes, sums: str, per_round: int, n_columns: int) -> str:
    from onnx import TensorProto

    matrix = nodes.add("Reshape", [sums, nodes.constant(np.array([-1, per_round, n_columns + 1]))])
    undefined = nodes.add("IsNaN", [COLUMNS])
    plain = nodes.add("Where", [undefined, nodes.constant(np.zeros((), np.float32)), COLUMNS])
    wide = nodes.add("Cast", [plain], to=TensorProto.DOUBLE)
    one = nodes.add("Slice", [wide, *(nodes.constant(np.array([k])) for k in (0, 1, 1))])
    one = nodes.add("Add", [nodes.add("Sub", [one, one]), nodes.constant(np.ones(()))])
    concatenated = nodes.add("Concat", [one, wide], axis=1)
    column = nodes.add("Unsqueeze", [concatenated, nodes.constant(np.array([2]))])
    return nodes.add("Squeeze", [nodes.add("MatMul", [matrix, column]), nodes.constant(np.array([2]))])


class _LightGBMTree:
    """Nodes of one tree, numbered as they are met."""

    def __init__(self, table: TreeTable, tree: int, first_sum: int, linear: bool) -> None:
        self.table, self.tree, self.first_sum, self.linear = table, tree, first_sum, linear
        self.numbers = 0

    def next_number(self) -> int:
        self.numbers += 1
        return self.numbers - 1

    def add(self, root: dict[str, Any]) -> None:
        waiting = [(self.next_number(), root)]
        while waiting:
            number, node = waiting.pop()
            if "split_feature" not in node:
                self._leaf(number, node)
                continue
            if node["decision_type"] != "<=" or node["missing_type"] == "Zero":
                raise NotPortable("LightGBM splits on categories or takes zeros as missing, which is not supported")
            left, right = self.next_number(), self.next_number()
            # Without missing values in training the library reads an undefined value as 0.
            missing = node["default_left"] if node["missing_type"] == "NaN" else node["threshold"] >= 0
            border = float(float32_below(np.array(node["threshold"])))
            self.table.split(
                self.tree, number, node["split_feature"], border, LESS_EQUAL, left, right, missing=bool(missing)
            )
            waiting += [(left, node["left_child"]), (right, node["right_child"])]

    def _leaf(self, number: int, node: dict[str, Any]) -> None:
        value = {self.first_sum: float(node["leaf_value"])}
        if not self.linear or not node.get("leaf_features"):
            if self.linear and "leaf_const" in node:
                value = {self.first_sum: float(node["leaf_const"])}
            self.table.leaf(self.tree, number, value)
            return
        # One undefined column makes the library return the leaf's plain value.
        for column in node["leaf_features"]:
            defined, plain = self.next_number(), self.next_number()
            largest = float(np.finfo(np.float32).max)
            self.table.split(self.tree, number, column, largest, LESS_EQUAL, defined, plain, missing=False)
            self.table.leaf(self.tree, plain, value)
            number = defined
        coefficients = {self.first_sum: float(node["leaf_const"])}
        for column, slope in zip(node["leaf_features"], node["leaf_coeff"], strict=True):
            coefficients[self.first_sum + 1 + int(column)] = float(slope)
        self.table.leaf(self.tree, number, coefficients)


def xgboost_margins(learner: XGBoost, nodes: Nodes) -> tuple[str, int]:
    """Add XGBoost's margins; return their name and number."""
    content = json.loads(bytes(learner.booster_.save_raw("json")))["learner"]
    booster = content["gradient_booster"]
    # DART's trees have weights, which newer versions keep in a booster called gbtree, 3.4 in its model.
    if (
        booster["name"] != "gbtree"
        or booster.get("weight_drop")
        or booster["model"].get("weight_drop")
        or int(content["learner_model_param"]["num_target"]) > 1
    ):
        raise NotPortable(f"XGBoost's booster {booster['name']!r} is not supported: only gbtree with single outputs")
    n_margins = max(1, int(content["learner_model_param"]["num_class"]))
    table = TreeTable(n_margins)
    for k, (tree, sum_number) in enumerate(zip(booster["model"]["trees"], booster["model"]["tree_info"], strict=True)):
        if any(tree["split_type"]):
            raise NotPortable("XGBoost splits on categories, which is not supported")
        if int(tree["tree_param"]["size_leaf_vector"]) > 1:
            raise NotPortable("XGBoost's leaves hold vectors (multi_strategy), which is not supported")
        for number, left in enumerate(tree["left_children"]):
            border, right = tree["split_conditions"][number], tree["right_children"][number]
            if left == -1:
                table.leaf(k, number, {int(sum_number): border})
            else:
                column, missing = tree["split_indices"][number], bool(tree["default_left"][number])
                table.split(k, number, column, border, LESS, left, right, missing=missing)
    start = np.atleast_1d(np.array(json.loads(content["learner_model_param"]["base_score"]), dtype=np.float64))
    if content["objective"]["name"] == "binary:logistic":
        start = np.array([math.log(p / (1.0 - p)) for p in start])
    return table.sums(nodes, np.broadcast_to(start, (n_margins,)).copy()), n_margins


def catboost_margins(learner: CatBoost, nodes: Nodes) -> tuple[str, int]:
    """Add CatBoost's raw values; return their name and number."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.json"
        learner.booster_.save_model(str(file), format="json")
        model = json.loads(file.read_text(encoding="utf-8"))
    if "oblivious_trees" not in model:
        raise NotPortable("CatBoost grew trees that are not symmetric, which is not supported")
    scale, start = model["scale_and_bias"]
    start = np.atleast_1d(np.array(start, dtype=np.float64))
    column_and_missing = {
        int(one["feature_index"]): (int(one["flat_feature_index"]), one["nan_value_treatment"] == "AsTrue")
        for one in model["features_info"]["float_features"]
    }
    n_margins = 1 if len(learner.classes) == 2 else len(learner.classes)
    table = TreeTable(n_margins)
    for k, tree in enumerate(model["oblivious_trees"]):
        splits, values = tree["splits"] or [], np.array(tree["leaf_values"]).reshape(-1, n_margins) * scale
        inner = (1 << len(splits)) - 1
        for number in range(inner):
            depth = (number + 1).bit_length() - 1
            split = splits[len(splits) - 1 - depth]
            if split["split_type"] != "FloatFeature":
                raise NotPortable("CatBoost splits on categories, which is not supported")
            column, missing = column_and_missing[int(split["float_feature_index"])]
            left, right = 2 * number + 1, 2 * number + 2
            table.split(k, number, column, float(split["border"]), GREATER, right, left, missing=missing)
        for leaf, value in enumerate(values):
            table.leaf(k, inner + leaf, dict(enumerate(value)))
    return table.sums(nodes, np.broadcast_to(start, (n_margins,)).copy()), n_margins


def forest_log_proba(learner: RandomForest, nodes: Nodes) -> str:
    """Add the logarithm of a forest's mean leaf frequencies, normalised; return its name."""
    regression = isinstance(learner, RegressionForest)
    n_sums, trees = 1 if regression else len(learner.classes), learner.forest_.estimators_
    table = TreeTable(n_sums)
    for k, estimator in enumerate(trees):
        tree = estimator.tree_
        borders = float32_below(tree.threshold)
        values = tree.value[:, 0, :] / len(trees)
        for number, left in enumerate(tree.children_left):
            if left < 0:
                table.leaf(k, number, dict(enumerate(values[number])))
            else:
                right, missing = int(tree.children_right[number]), bool(tree.missing_go_to_left[number])
                column = int(tree.feature[number])
                table.split(k, number, column, float(borders[number]), LESS_EQUAL, left, right, missing=missing)
    mean_frequencies = table.sums(nodes, np.zeros(n_sums))
    if regression:
        mean_frequencies = nodes.add(
            "Concat", [nodes.add("Sub", [nodes.constant(np.ones(())), mean_frequencies]), mean_frequencies], axis=1
        )
    return nodes.log_softmax(nodes.add("Log", [mean_frequencies]))


def hist_boosting_margins(learner: HistBoosting, nodes: Nodes) -> tuple[str, int]:
    """Add the raw scores of scikit-learn's histogram boosting; return their name and number."""
    model = learner.model_
    start = np.atleast_1d(np.asarray(model._baseline_prediction, dtype=np.float64).ravel())
    table = TreeTable(len(start))
    flat = [(sum_number, tree) for trees in model._predictors for sum_number, tree in enumerate(trees)]
    for k, (sum_number, tree) in enumerate(flat):
        for number, node in enumerate(tree.nodes):
            if node["is_leaf"]:
                table.leaf(k, number, {sum_number: node["value"]})
                continue
            if node["is_categorical"]:
                raise NotPortable("histogram boosting splits on categories, which is not supported")
            border, missing = float(float32_below(node["num_threshold"])), bool(node["missing_go_to_left"])
            left, right = int(node["left"]), int(node["right"])
            table.split(k, number, int(node["feature_idx"]), border, LESS_EQUAL, left, right, missing=missing)
    return table.sums(nodes, start), len(start)
