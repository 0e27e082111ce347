"""Any learner as ONNX graphs, or a refusal in one line.

Networks and logistic regressions go through torch, with the preparation of their inputs inside.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from showerstack.models.base.average import LearnerAverage
from showerstack.models.base.inputs import AZIMUTH, CLIP, CUT, SOFT_FROM, VECTOR_SCALE_M, ZENITH, InputTransform
from showerstack.models.base.learner import Learner
from showerstack.models.base.posterior import PROBABILITY_FLOOR
from showerstack.models.networks.learner import NetworkLearner
from showerstack.models.onnx.graph import (
    COLUMNS,
    GRID,
    LOG_PROBABILITY,
    OPSETS,
    Nodes,
    NotPortable,
    Portable,
    natural_posterior,
)
from showerstack.models.onnx.trees import (
    catboost_margins,
    forest_log_proba,
    hist_boosting_margins,
    lightgbm_margins,
    margins_to_log,
    xgboost_margins,
)
from showerstack.models.tables.base import TableLearner
from showerstack.models.tables.catboost import CatBoost
from showerstack.models.tables.categories import AsNumbers
from showerstack.models.tables.lightgbm import LightGBM
from showerstack.models.tables.logit import QuadraticLogit
from showerstack.models.tables.sklearn import HistBoosting, RandomForest
from showerstack.models.tables.xgboost import XGBoost
from showerstack.runtime.errors import need
from showerstack.runtime.shared import Setting, ignored

EXAMPLES = 3
"""Events that the exporter is shown; their number stays open in the graph."""
TOKEN = "showerstack"


def is_number(values: torch.Tensor) -> torch.Tensor:
    """Return where values are no NaN, before anything is made of them.

    OpenVINO 2026.4 makes a number of NaN in Clip, and tract 0.23 has no type for the result of IsNaN.
    """
    return torch.abs(values) <= torch.inf


class InputModule(nn.Module):
    """:meth:`showerstack.models.base.inputs.InputTransform.apply` for tensors (n, F) of the columns in
    :attr:`columns`."""

    def __init__(self, inputs: InputTransform) -> None:
        super().__init__()
        self.columns = tuple(name for name in inputs.columns if name not in inputs.absent)
        position = {name: k for k, name in enumerate(self.columns)}
        self.vectors = [(pair, position[pair[0]], position[pair[1]]) for pair in inputs.vectors]
        # An absent column is read from anywhere and then set to 0, or flagged.
        self.plain = [position.get(name, 0) for name in inputs.plain]
        self.flagged = [position.get(name, 0) for name in inputs.flagged]
        self.cut = inputs.tail == CUT

        def add_buffer(name: str, values: Any, kind: torch.dtype = torch.float64) -> None:
            self.register_buffer(name, torch.as_tensor(np.asarray(values), dtype=kind), persistent=False)

        add_buffer("scale", np.where(inputs.log_scale > 0, inputs.log_scale, 1.0))
        add_buffer("is_log", inputs.log_scale > 0, torch.bool)
        add_buffer("centre", inputs.centre)
        add_buffer("width", inputs.width)
        add_buffer("present", [name not in inputs.absent for name in inputs.plain], torch.bool)
        add_buffer("always", [name in inputs.absent for name in inputs.flagged], torch.bool)

    scale: torch.Tensor
    is_log: torch.Tensor
    centre: torch.Tensor
    width: torch.Tensor
    present: torch.Tensor
    always: torch.Tensor

    def forward(self, columns: torch.Tensor) -> torch.Tensor:
        """Return (n, S) float32, finite."""
        wide = columns.double()
        parts = []
        if self.plain:
            raw = wide[:, self.plain]
            known = self.present & is_number(raw)
            values = torch.where(known, raw, 0.0)
            squeezed = torch.sign(values) * torch.log(1.0 + torch.abs(values) / self.scale)
            values = torch.where(self.is_log, squeezed, values)
            values = (values - self.centre) / self.width
            if self.cut:
                values = torch.clamp(values, -CLIP, CLIP)
            else:
                size = torch.abs(values)
                tail = torch.log(1.0 + torch.clamp(size - SOFT_FROM, min=0.0))
                values = torch.sign(values) * (torch.clamp(size, max=SOFT_FROM) + tail)
            parts.append(torch.where(known, values, 0.0))
        for pair, first, second in self.vectors:
            parts.append(self._vector(pair, wide[:, first], wide[:, second]))
        if self.flagged:
            parts.append((~is_number(wide[:, self.flagged]) | self.always).double())
        return torch.cat(parts, dim=1).float()

    def _vector(self, pair: tuple[str, str], first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        both = torch.stack([first, second], dim=1)
        known = is_number(both)
        first, second = torch.where(known, both, 0.0).unbind(dim=1)
        if pair == (ZENITH, AZIMUTH):
            known = known.all(dim=1, keepdim=True)
            zenith, azimuth = torch.deg2rad(first), torch.deg2rad(second)
            size = 2.0 * torch.sin(zenith)
            components = torch.stack([size * torch.cos(azimuth), size * torch.sin(azimuth)], dim=1)
        else:
            components = torch.clamp(torch.stack([first, second], dim=1) / VECTOR_SCALE_M, -CLIP, CLIP)
        return torch.where(known, components, 0.0)


class PosteriorModule(nn.Module):
    """Columns (and grids) to log-posteriors with natural priors, (n, C) float32."""

    def __init__(self, inputs: InputModule, class_weights: np.ndarray | None, label_smoothing: float) -> None:
        super().__init__()
        self.inputs = inputs
        self.label_smoothing = label_smoothing
        weights = None if class_weights is None else torch.as_tensor(np.log(class_weights))
        self.register_buffer("log_weights", weights, persistent=False)

    log_weights: torch.Tensor | None

    def logits(self, columns: torch.Tensor, grid: torch.Tensor | None) -> torch.Tensor:
        """Return (n, C)."""
        raise NotImplementedError

    def forward(self, columns: torch.Tensor, grid: torch.Tensor | None = None) -> torch.Tensor:
        """Return (n, C) float32; see :func:`showerstack.models.base.posterior.undo_training_prior`."""
        log_q = torch.log_softmax(self.logits(columns, grid).double(), dim=1)
        if self.log_weights is not None:
            log_q = torch.log_softmax(log_q - self.log_weights, dim=1)
        if self.label_smoothing:
            share = self.label_smoothing / log_q.shape[1]
            probability = (torch.exp(log_q) - share) / (1.0 - self.label_smoothing)
            log_q = torch.log_softmax(torch.log(torch.clamp(probability, min=PROBABILITY_FLOOR)), dim=1)
        return log_q.float()


class _NetworkPosterior(PosteriorModule):
    def __init__(self, learner: NetworkLearner) -> None:
        assert learner.inputs_ is not None
        super().__init__(InputModule(learner.inputs_), learner.class_weights_, learner.training.label_smoothing)
        self.network = learner.network_

    def logits(self, columns: torch.Tensor, grid: torch.Tensor | None) -> torch.Tensor:
        result: torch.Tensor = self.network(grid, self.inputs(columns)).logits
        return result


class _LogitPosterior(PosteriorModule):
    """Linear terms, squares and products, as :class:`showerstack.models.tables.logit.QuadraticLogit` makes them."""

    def __init__(self, learner: QuadraticLogit) -> None:
        super().__init__(InputModule(learner.inputs_), learner.class_weights_, 0.0)
        self.n_squares = learner.n_squares(learner.inputs_.n_inputs)
        self.first, self.second = learner.products(learner.inputs_.n_inputs)
        self.degree = int(learner.chosen["degree"])
        self.register_buffer("weights", torch.as_tensor(learner.weights_.T.copy()), persistent=False)
        self.register_buffer("bias", torch.as_tensor(learner.bias_), persistent=False)

    weights: torch.Tensor
    bias: torch.Tensor

    def logits(self, columns: torch.Tensor, grid: torch.Tensor | None) -> torch.Tensor:
        x = self.inputs(columns).double()
        if self.degree != 1:
            products = [x[:, self.first.tolist()] * x[:, self.second.tolist()]] if len(self.first) else []
            squared = x[:, : self.n_squares]
            x = torch.cat([x, squared * squared, *products], dim=1)
        margins = x @ self.weights + self.bias
        if margins.shape[1] == 1:
            margins = torch.cat([torch.zeros_like(margins), margins], dim=1)
        return margins


def _graph(module: PosteriorModule, grid_shape: tuple[int, ...] | None = None) -> Portable:
    """Return everything between columns (and grids) and log-posteriors."""
    columns = module.inputs.columns
    examples: dict[str, torch.Tensor] = {COLUMNS: torch.linspace(0, 1, EXAMPLES * len(columns)).reshape(EXAMPLES, -1)}
    if grid_shape is not None:
        examples[GRID] = torch.ones(EXAMPLES, *grid_shape)
    return Portable(export_module(module, examples, [LOG_PROBABILITY]), columns, grid_shape)


def _quiet(position: bool) -> Callable[[], None]:
    """Let the exporter trace none of its steps into the log, which takes longer than the steps."""
    loggers = [logging.getLogger(name) for name in ("torch", "onnxscript", "onnx_ir")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)

    def undo() -> None:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)

    return undo


_QUIET = Setting(_quiet)


def export_module(
    module: nn.Module, examples: dict[str, torch.Tensor], outputs: list[str], *, in_one: bool = False
) -> Any:
    """Return a module as ``onnx.ModelProto``; the first axis of every input stays open."""
    import onnx

    events = torch.export.Dim("n")
    shapes: tuple[Any, ...] = tuple({0: events} for _ in examples)
    with (
        _QUIET.held(True),
        # What the exporter's own libraries are about to change is no matter of ours.
        ignored(DeprecationWarning),
        ignored(FutureWarning),
        # Grids and columns share the one name of the number of events.
        ignored(UserWarning, "# The axis name: n will not be used"),
        torch.inference_mode(False),
        torch.no_grad(),
    ):
        program = torch.onnx.export(
            module.eval(),
            tuple(examples.values()),
            input_names=list(examples),
            output_names=outputs,
            opset_version=OPSETS[""],
            dynamo=True,
            dynamic_shapes=(shapes,) if in_one else shapes,
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    _remove_traces(model)
    onnx.checker.check_model(model)
    return model


def _remove_traces(model: Any) -> None:
    """Remove what the exporter writes of the source code it has passed: paths of this machine among it."""
    model.producer_name, model.producer_version, model.doc_string = TOKEN, "", ""
    del model.metadata_props[:]
    for part in (model.graph, *model.functions):
        part.doc_string = ""
        del part.metadata_props[:]
        for node in part.node if hasattr(part, "node") else ():
            node.doc_string = ""
            del node.metadata_props[:]
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info, *model.graph.initializer):
        del value.metadata_props[:]
    del model.graph.value_info[:]


def graphs_of(learner: Learner) -> list[Portable]:
    """Return the graphs of a fitted learner; several for an average, whose ``space`` says how they are averaged."""
    need("export", what="ONNX export")
    # A kind of average that makes columns of its own is more than its members.
    if type(learner) is LearnerAverage:
        return [graph for member in learner.members for graph in graphs_of(member)]
    if isinstance(learner, AsNumbers):
        return [_of_numbers(learner)]
    if isinstance(learner, NetworkLearner):
        return [_graph(_NetworkPosterior(learner), tuple(learner.array_.grid_shape) if learner.needs_grid else None)]
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
    column_of = dict(
        zip((f"x{k}" for k in range(len(learner.numbers_.columns))), learner.numbers_.columns, strict=True)
    )
    return Portable(graph.model, tuple(column_of[name] for name in graph.columns), graph.grid_shape)


MARGINS: dict[type[Learner], Callable[[Any, Nodes], tuple[str, int]]] = {
    LightGBM: lightgbm_margins,
    XGBoost: xgboost_margins,
    CatBoost: catboost_margins,
    HistBoosting: hist_boosting_margins,
}


def _of_table(learner: TableLearner) -> Portable:
    if learner.levels_.codes:
        raise NotPortable(f"columns of categories ({', '.join(learner.levels_.codes)}) have no ONNX form")
    if isinstance(learner, QuadraticLogit):
        return _graph(_LogitPosterior(learner))
    nodes = Nodes()
    if isinstance(learner, RandomForest):
        log_q = forest_log_proba(learner, nodes)
    else:
        margins = next((margins for kind, margins in MARGINS.items() if isinstance(learner, kind)), None)
        if margins is None:
            raise NotPortable(f"{type(learner).__name__} has no ONNX form")
        log_q = margins_to_log(nodes, *margins(learner, nodes))
    return nodes.finished(
        natural_posterior(nodes, log_q, learner.class_weights_), learner.columns_, len(learner.classes)
    )
