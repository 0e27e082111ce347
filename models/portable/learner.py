"""Any learner as ONNX graphs, or a refusal in one line."""

from __future__ import annotations

from models.base import Learner
from models.catalogue.average import LearnerAverage
from models.networks.learner import NetworkLearner
from models.portable.boosters import catboost_margins, lightgbm_margins, xgboost_margins
from models.portable.forests import forest_log_proba, hist_boosting_margins
from models.portable.graph import Nodes, NotPortable, Portable, check_packages, natural_posterior
from models.portable.networks import logit_graph, network_graph
from models.portable.trees import margins_to_log
from models.tables.as_numbers import AsNumbers
from models.tables.base import TableLearner
from models.tables.catboost import CatBoost
from models.tables.forest import RandomForest
from models.tables.hist_boosting import HistBoosting
from models.tables.lightgbm import LightGBM
from models.tables.quadratic import QuadraticLogit
from models.tables.xgboost import XGBoost


def graphs_of(learner: Learner) -> list[Portable]:
    """Return the graphs of a fitted learner; several for an average, whose ``space`` says how they are averaged.

    Raises
    ------
    NotPortable
        If the learner, or one of its settings, has no ONNX form.
    InputError
        If a package is missing.
    """
    check_packages()
    # A kind of average that makes columns of its own is more than its members.
    if type(learner) is LearnerAverage:
        return [graph for member in learner.members for graph in graphs_of(member)]
    if isinstance(learner, AsNumbers):
        return [_of_numbers(learner)]
    if isinstance(learner, NetworkLearner):
        return [network_graph(learner)]
    if isinstance(learner, TableLearner):
        return [_of_table(learner)]
    raise NotPortable(f"{type(learner).__name__} has no ONNX form")


def space_of(learner: Learner) -> str:
    """Return in what the graphs of a learner are averaged: ``log`` or ``probability``."""
    return str(learner.chosen["space"]) if isinstance(learner, LearnerAverage) else "log"


def _of_numbers(learner: AsNumbers) -> Portable:
    assert learner.numbers_ is not None
    if learner.numbers_.levels.codes:
        raise NotPortable(f"columns of categories ({', '.join(learner.numbers_.levels.codes)}) have no ONNX form")
    (graph,) = graphs_of(learner.inner)
    own = dict(zip((f"x{k}" for k in range(len(learner.numbers_.columns))), learner.numbers_.columns, strict=True))
    return Portable(graph.model, tuple(own[name] for name in graph.columns), graph.grid_shape)


def _of_table(learner: TableLearner) -> Portable:
    if learner.levels_.codes:
        raise NotPortable(f"columns of categories ({', '.join(learner.levels_.codes)}) have no ONNX form")
    if isinstance(learner, QuadraticLogit):
        return logit_graph(learner)
    nodes = Nodes()
    if isinstance(learner, RandomForest):
        log_q = forest_log_proba(learner, nodes)
    elif isinstance(learner, LightGBM):
        log_q = margins_to_log(nodes, *lightgbm_margins(learner, nodes))
    elif isinstance(learner, XGBoost):
        log_q = margins_to_log(nodes, *xgboost_margins(learner, nodes))
    elif isinstance(learner, CatBoost):
        log_q = margins_to_log(nodes, *catboost_margins(learner, nodes))
    elif isinstance(learner, HistBoosting):
        log_q = margins_to_log(nodes, *hist_boosting_margins(learner, nodes))
    else:
        raise NotPortable(f"{type(learner).__name__} has no ONNX form")
    return nodes.finished(
        natural_posterior(nodes, log_q, learner.class_weights_), learner.columns_, len(learner.classes)
    )
