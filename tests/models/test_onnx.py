"""Learners as ONNX graphs: the same probabilities to 1e-5 over 10,000 events, or a refusal that says why.

Networks of grids are compared on 300: each event takes a millisecond.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from showerstack.models import registry
from showerstack.models.base.average import LearnerAverage
from showerstack.models.base.inputs import InputTransform
from showerstack.models.base.learner import Batch, Learner
from showerstack.models.onnx.graph import NotPortable, Portable
from showerstack.models.onnx.learners import InputModule, graphs_of, space_of
from showerstack.models.onnx.predictor import averaged, feed_of, run_graph, session
from showerstack.models.onnx.runtimes import RUNTIMES, Feed, Runner, by_onnxruntime, largest_difference_in
from showerstack.models.pretraining.learner import PretrainedLearner
from showerstack.models.tables.catboost import CatBoost
from showerstack.models.tables.categories import AsNumbers
from showerstack.models.tables.lightgbm import LightGBM
from showerstack.models.tables.lightgbm_trees import float32_below
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import hash_file
from showerstack.showers.schema import COMPOSITION
from showerstack.stacking.export.writer import TOLERANCE, largest_difference
from tests.models.conftest import CLASSES, gaussian_events, toy_showers
from tests.models.test_pretraining import small_weights, toy_events, without

# The exporter silences its libraries, but another thread that does the same may undo it.
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
    pytest.mark.usefixtures("one_registry"),
]

EVENTS, GRIDS = 10_000, 300
GAMMAS = ("gamma", "hadron")
PRIORS = np.array([0.06, 0.94])
SMALL: dict[str, dict[str, Any]] = {
    "lightgbm": {"rounds": 60},
    "lightgbm_linear": {"rounds": 40},
    "xgboost": {"rounds": 60},
    "catboost": {"rounds": 60},
    "hist_boosting": {"rounds": 40},
    "random_forest": {"trees": 30},
    "extra_trees": {"trees": 30},
    "quadratic_logit": {"max_iterations": 10},
    "mlp": {"epochs": 1, "blocks": 1},
    "lenet_fits": {"epochs": 1},
    "physics": {"epochs": 1, "blocks": 1, "widths": (8, 8)},
    "set_transformer": {"epochs": 1, "blocks": 1, "seeds": 4, "width": 16},
    "vit": {"epochs": 1, "layers": 1, "width": 32},
}
OF_GRIDS = ("lenet_fits", "physics", "set_transformer", "vit")
OF_TREES = ("lightgbm", "lightgbm_linear", "xgboost", "catboost", "hist_boosting", "random_forest", "extra_trees")


def fitted(name: str, classes: tuple[str, ...] = CLASSES, **settings: Any) -> tuple[Learner, Batch]:
    """Return a small learner, and events to compare it on."""
    entry = registry.LEARNERS[name]
    if name in OF_GRIDS:
        train, valid, test = (toy_showers(n, seed, len(classes)) for n, seed in ((300, 1), (100, 2), (GRIDS, 3)))
        assert test.grids is not None
        assert test.scalars is not None
        test.grids[:2] = 0
        test.scalars[1:3] = np.nan
    else:
        priors = PRIORS if len(classes) == 2 else None
        train, valid, test = (gaussian_events(n, seed, priors).batch for n, seed in ((2000, 1), (500, 2), (EVENTS, 3)))
    learner = registry.create(entry, classes, overrides={**SMALL.get(name, {}), **settings})
    return learner.fit(train, valid, seed=1), test


@pytest.mark.parametrize("tail", ["cut", "logarithm"])
def test_a_graphs_inputs_are_the_networks(tail: str) -> None:
    table = np.asfortranarray(np.random.default_rng(0).standard_t(2.0, (2000, 2)).astype(np.float32))
    events = Batch(index=np.arange(2000), table=table, columns=("a", "b"))
    inputs = InputTransform.fit(events, events.columns, tail=tail)
    expected = inputs.apply(events)
    assert (np.abs(expected).max() > 4.0) == (tail == "logarithm")
    np.testing.assert_array_equal(InputModule(inputs)(torch.as_tensor(table)).numpy(), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_probabilities_are_those_of_the_learner(name: str) -> None:
    learner, test = fitted(name)
    assert largest_difference(graphs_of(learner), space_of(learner), learner, test) < TOLERANCE / 10


@pytest.mark.parametrize("name", OF_TREES)
def test_two_classes_with_weights(name: str) -> None:
    learner, test = fitted(name, GAMMAS, class_weights="balanced")
    assert largest_difference(graphs_of(learner), space_of(learner), learner, test) < TOLERANCE / 10


@pytest.mark.slow
def test_class_weights_and_label_smoothing_of_networks_are_undone() -> None:
    learner, test = fitted("mlp", GAMMAS, class_weights="balanced", label_smoothing=0.05)
    assert largest_difference(graphs_of(learner), space_of(learner), learner, test) < TOLERANCE / 10


@pytest.mark.parametrize("native", [{"multi_strategy": "multi_output_tree"}, {"booster": "dart", "rate_drop": 0.5}])
def test_trees_of_another_kind_are_refused_not_written_as_others(native: dict[str, Any]) -> None:
    learner, _ = fitted("xgboost", native=native)
    with pytest.raises(NotPortable, match=r"not supported"):
        graphs_of(learner)


def test_another_graph_is_noticed() -> None:
    learner, test = fitted("xgboost")
    other, _ = fitted("xgboost", rounds=3)
    with pytest.raises(InputError, match="differs by"):
        largest_difference(graphs_of(other), "log", learner, test)


def test_averages_have_a_graph_a_member() -> None:
    trees = "showerstack.models.tables.xgboost:XGBoost"
    members = [{"learner": trees, "settings": {"rounds": rounds}} for rounds in (5, 20)]
    for space in ("log", "probability"):
        learner, test = fitted("mlp_bag", members=members, space=space, common={})
        graphs = graphs_of(learner)
        assert len(graphs) == 2
        assert space_of(learner) == space
        assert largest_difference(graphs, space, learner, test) < TOLERANCE / 10


@pytest.mark.slow
def test_columns_that_a_pretrained_network_lacks_are_no_inputs(tmp_path: Path) -> None:
    file = small_weights(tmp_path)
    settings = {"weights": str(file), "weights_sha256": hash_file(file), "width": 16, "blocks": 1, "hidden": 16}
    train, valid, test = (without(toy_events(number), "Age", "fit_minus_age") for number in (1, 2, 3))
    learner = PretrainedLearner(COMPOSITION.classes, {**settings, "epochs": 1, "batch_size": 64})
    learner.fit(train, valid, seed=1)
    assert learner.inputs_ is not None
    assert learner.inputs_.absent
    (result,) = graphs_of(learner)
    assert not set(learner.inputs_.absent) & set(result.columns)
    assert largest_difference([result], "log", learner, test) < TOLERANCE / 10


@pytest.fixture(scope="module")
def simple() -> tuple[list[Portable], Batch]:
    """Two exports of one logistic regression, and events."""
    learner, test = fitted("quadratic_logit", degree=1)
    return [graphs_of(learner)[0] for _ in range(2)], test


def test_graphs_hold_no_path_of_this_machine(simple: tuple[list[Portable], Batch]) -> None:
    first, second = (one.model.SerializeToString(deterministic=True) for one in simple[0])
    assert first == second
    assert b".py" not in first
    assert b"site-packages" not in first


def test_number_of_events_is_open(simple: tuple[list[Portable], Batch]) -> None:
    (result, _), test = simple
    opened = session(result.model.SerializeToString())
    one, many = (run_graph(opened, result.columns, test.take(np.arange(n))) for n in (1, 2500))
    np.testing.assert_allclose(one, many[:1], atol=1e-6)
    assert averaged([one], "log").dtype == np.float64


def test_borders_below() -> None:
    borders = np.array([0.1, 0.5, -0.1, 1e308, 1.0 + 1e-12, 1.0 - 1e-12])
    result = float32_below(borders)
    assert result.dtype == np.float32
    assert (result <= borders).all()
    with np.errstate(over="ignore"):
        assert (np.nextafter(result, np.float32(np.inf)) > borders).all()


def test_columns_of_categories_are_refused_by_name() -> None:
    train, valid = (gaussian_events(n, seed).batch for n, seed in ((600, 1), (200, 2)))
    marked = []
    for batch in (train, valid):
        assert batch.table is not None
        table = batch.table.copy()
        table[:, 3] = np.arange(len(table)) % 4
        marked.append(replace(batch, table=table, categories=("noise",)))
    for learner in (
        LightGBM(CLASSES, {"rounds": 5}),
        CatBoost(CLASSES, {"rounds": 5}),
        AsNumbers(CLASSES, {"learner": "showerstack.models.tables.sklearn:RandomForest", "trees": 5}),
    ):
        learner.fit(marked[0], marked[1], seed=1)
        with pytest.raises(NotPortable, match=r"columns of categories \(noise\) have no ONNX form"):
            graphs_of(learner)


def test_numbers_that_were_numbers_before_keep_their_names() -> None:
    train, valid, test = (gaussian_events(n, seed).batch for n, seed in ((600, 1), (200, 2), (500, 3)))
    learner = AsNumbers(CLASSES, {"learner": "showerstack.models.tables.sklearn:RandomForest", "trees": 5})
    learner.fit(train, valid, seed=1)
    graphs = graphs_of(learner)
    assert graphs[0].columns == train.columns
    assert largest_difference(graphs, "log", learner, test) < TOLERANCE / 10


class OwnLightGBM(LightGBM):
    """A booster of a distribution of the user's own."""


def test_a_booster_made_from_ours_has_a_graph() -> None:
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 3, 300)
    table = np.asfortranarray(rng.normal(size=(300, 2)) + labels[:, None], dtype=np.float32)
    rows = Batch(index=np.arange(300), table=table, columns=("a", "b"), labels=labels)
    learner = OwnLightGBM(("a", "b", "c"), {"rounds": 5}).fit(rows, rows, seed=1)
    assert largest_difference(graphs_of(learner), space_of(learner), learner, rows) < TOLERANCE


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(InputError, match=r"ONNX export needs onnxscript: pip install 'showerstack\[export\]'"):
        graphs_of(LightGBM(CLASSES))


def test_learners_of_a_class_that_is_not_known_are_refused() -> None:
    class Own(LearnerAverage):
        pass

    member = {"learner": "showerstack.models.tables.sklearn:RandomForest"}
    with pytest.raises(NotPortable, match="Own has no ONNX form"):
        graphs_of(Own(COMPOSITION.classes, {"members": [member]}))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["quadratic_logit", "mlp", "lenet_fits"])
def test_graphs_look_for_missing_values_before_all_else(name: str) -> None:
    """Elsewhere Clip makes numbers of NaN, and the result of IsNaN has no type."""
    learner, _ = fitted(name)
    for graph in graphs_of(learner):
        nodes = graph.model.graph.node
        kinds = [node.op_type for node in nodes]
        assert "IsNaN" not in kinds
        assert kinds.index("LessOrEqual") < kinds.index("Log")


@pytest.mark.slow
@pytest.mark.parametrize(("package", "how", "run"), RUNTIMES[1:])
def test_other_runtimes_give_the_same(package: str, how: str, run: Runner, tmp_path: Path) -> None:
    pytest.importorskip(package)
    learner, test = fitted("mlp")
    (graph,) = graphs_of(learner)
    (tmp_path / "m.onnx").write_bytes(graph.model.SerializeToString())
    feed = feed_of(graph.columns, test.take(np.arange(500)), grid=False)
    feed["columns"].ravel()[::7] = np.nan
    found = largest_difference_in(run, tmp_path / "m.onnx", [feed])
    assert isinstance(found, float)
    assert found < 1e-3


@pytest.mark.slow
def test_what_another_runtime_says_is_told(tmp_path: Path) -> None:
    learner, test = fitted("mlp")
    (graph,) = graphs_of(learner)
    (tmp_path / "m.onnx").write_bytes(graph.model.SerializeToString())
    feeds = [feed_of(graph.columns, test.take(np.arange(10)), grid=False)]

    def lost(model: Path, feeds: list[Feed]) -> list[np.ndarray]:
        return [np.full((10, 5), np.nan)]

    def refused(model: Path, feeds: list[Feed]) -> list[np.ndarray]:
        raise NotImplementedError

    assert largest_difference_in(by_onnxruntime, tmp_path / "m.onnx", feeds) == 0.0
    assert largest_difference_in(lost, tmp_path / "m.onnx", feeds) == np.inf
    assert largest_difference_in(refused, tmp_path / "m.onnx", feeds) == "NotImplementedError"
