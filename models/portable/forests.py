"""Trees of scikit-learn as tables of nodes: forests and histogram boosting."""

from __future__ import annotations

import numpy as np

from models.portable.graph import Nodes, NotPortable
from models.portable.trees import LESS_EQUAL, TreeTable, float32_below
from models.tables.forest import RandomForest, RegressionForest
from models.tables.hist_boosting import HistBoosting


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
    found = table.sums(nodes, np.zeros(n_sums))
    if regression:
        found = nodes.add("Concat", [nodes.add("Sub", [nodes.constant(np.ones(())), found]), found], axis=1)
    return nodes.log_softmax(nodes.add("Log", [found]))


def hist_boosting_margins(learner: HistBoosting, nodes: Nodes) -> tuple[str, int]:
    """Add the raw scores of scikit-learn's histogram boosting; return their name and number."""
    model = learner.model_
    start = np.atleast_1d(np.asarray(model._baseline_prediction, dtype=np.float64).ravel())
    table = TreeTable(len(start))
    flat = [(place, tree) for trees in model._predictors for place, tree in enumerate(trees)]
    for k, (place, tree) in enumerate(flat):
        for number, node in enumerate(tree.nodes):
            if node["is_leaf"]:
                table.leaf(k, number, {place: node["value"]})
                continue
            if node["is_categorical"]:
                raise NotPortable("histogram boosting splits on categories, which is not supported")
            border, missing = float(float32_below(node["num_threshold"])), bool(node["missing_go_to_left"])
            left, right = int(node["left"]), int(node["right"])
            table.split(k, number, int(node["feature_idx"]), border, LESS_EQUAL, left, right, missing=missing)
    return table.sums(nodes, start), len(start)
