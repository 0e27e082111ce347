"""What all exported graphs share: names, versions, the ending that gives log-posteriors, and the refusal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from showerstack.runtime.errors import InputError

COLUMNS, GRID, LOG_PROBABILITY = "columns", "grid", "log_probability"
"""Inputs, (n, F) float32 with NaN where undefined and (n, rows, columns, 2) float32 in MeV; output, (n, C) float32."""
OPSETS = {"": 20, "ai.onnx.ml": 3}
"""Versions of the operators by domain."""


class NotPortable(InputError):
    """A learner that has no ONNX form; the message says why."""


@dataclass(frozen=True)
class Portable:
    """One graph and what it is given."""

    model: Any
    """``onnx.ModelProto``."""
    columns: tuple[str, ...]
    """Names of the F columns."""
    grid_shape: tuple[int, ...] | None = None
    """Shape of one event's grid; None where none is wanted."""


class Nodes:
    """Nodes and constants of a graph that grows from its beginning to its end."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(self, kind: str, inputs: list[str], *, domain: str = "", **attributes: Any) -> str:
        """Add a node; return the name of its output."""
        from onnx import helper

        name = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, domain=domain, **attributes))
        return name

    def constant(self, values: np.ndarray) -> str:
        """Add a constant; return its name."""
        from onnx import numpy_helper

        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def log_softmax(self, name: str) -> str:
        """Return the normalised logarithms."""
        return self.add("LogSoftmax", [name], axis=1)

    def finished(self, name: str, columns: tuple[str, ...], n_classes: int) -> Portable:
        """Return the graph whose output is ``name``, (n, C) float64."""
        import onnx
        from onnx import TensorProto, helper

        self.add("Cast", [name], to=TensorProto.FLOAT)
        self.nodes[-1].output[0] = LOG_PROBABILITY
        graph = helper.make_graph(
            self.nodes,
            "learner",
            [helper.make_tensor_value_info(COLUMNS, TensorProto.FLOAT, ["n", len(columns)])],
            [helper.make_tensor_value_info(LOG_PROBABILITY, TensorProto.FLOAT, ["n", n_classes])],
            initializer=self.constants,
        )
        opsets = [helper.make_opsetid(domain, version) for domain, version in OPSETS.items()]
        model = helper.make_model(graph, opset_imports=opsets, producer_name="showerstack", ir_version=10)
        onnx.checker.check_model(model)
        return Portable(model, columns)


def natural_posterior(nodes: Nodes, log_q: str, class_weights: np.ndarray | None) -> str:
    """Add what :func:`showerstack.models.base.posterior.undo_training_prior` does of class weights; ``log_q`` is (n,
    C) float64."""
    if class_weights is None:
        return log_q
    return nodes.log_softmax(nodes.add("Sub", [log_q, nodes.constant(np.log(class_weights))]))
