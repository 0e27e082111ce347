"""Predictions of ONNX files by onnxruntime, in place of the learner that they were made of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from showerstack.models.base.inputs import column_values
from showerstack.models.base.learner import Batch, Predictor
from showerstack.models.base.posterior import log_softmax
from showerstack.models.onnx.graph import COLUMNS, GRID, LOG_PROBABILITY
from showerstack.runtime.errors import need

BATCH_EVENTS = 1_000
"""Events in one call: attention over all stations takes memory."""


def session(model: bytes | Path) -> Any:
    """Open an ONNX file for this processor, one thread."""
    need("onnx", what="running ONNX files")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    source = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def run_graph(opened: Any, columns: tuple[str, ...], batch: Batch) -> np.ndarray:
    """Return the (n, C) float32 log-probabilities that a learner's file gives for events."""
    needs_grid = any(graph_input.name == GRID for graph_input in opened.get_inputs())
    parts = []
    for start in range(0, len(batch), BATCH_EVENTS):
        part = batch.take(np.arange(start, min(start + BATCH_EVENTS, len(batch))))
        parts.append(opened.run([LOG_PROBABILITY], feed_of(columns, part, grid=needs_grid))[0])
    return np.concatenate(parts)


def feed_of(columns: tuple[str, ...], batch: Batch, *, grid: bool) -> dict[str, np.ndarray]:
    """Return the inputs of a learner's file for events: the columns (n, F), and the grids where it needs them."""
    feed = {COLUMNS: np.column_stack([column_values(batch, name) for name in columns]).astype(np.float32)}
    if grid:
        assert batch.grids is not None
        feed[GRID] = np.asarray(batch.grids[batch.index], dtype=np.float32)
    return feed


def averaged(log_proba: Sequence[np.ndarray], space: str) -> np.ndarray:
    """Return the (n, C) float64 average of a learner's graphs, ``space`` being ``log`` or ``probability``."""
    of_graphs = np.stack(log_proba).astype(np.float64)
    if len(of_graphs) == 1:
        return of_graphs[0]
    if space == "log":
        return log_softmax(of_graphs.mean(axis=0))
    return np.asarray(np.logaddexp.reduce(of_graphs, axis=0) - np.log(len(of_graphs)))


class GraphPredictor(Predictor):
    """A fit as ONNX files, each with the names of its columns, whose log-probabilities are averaged."""

    def __init__(self, classes: tuple[str, ...], files: Sequence[tuple[Path, tuple[str, ...]]], space: str) -> None:
        self.classes, self.space = classes, space
        self.graphs = [(session(file), columns) for file, columns in files]

    def predict_log_proba(self, batch: Batch) -> np.ndarray:
        """Return (n, C) float64; the files compute float32."""
        return averaged([run_graph(opened, columns, batch) for opened, columns in self.graphs], self.space)
