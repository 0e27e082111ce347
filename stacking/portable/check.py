"""Exported files beside the run they come from: the same events through both."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from models.base import Batch, Learner
from models.inputs import column_values
from models.portable.graph import COLUMNS, GRID, LOG_PROBABILITY, Portable
from models.posterior import log_softmax
from showers.schema import InputError

TOLERANCE = 1e-5
"""Largest difference of a probability."""
EVENTS = 10_000
AT_ONCE = 1_000
"""Events in one call: attention over all stations takes memory."""


def session(model: bytes | Path) -> Any:
    """Open an ONNX file for this processor, one thread.

    Raises
    ------
    InputError
        If ``onnxruntime`` is not installed.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        raise InputError("running ONNX files needs onnxruntime: pip install 'showerstack[onnx]'")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    given = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])


def run_graph(opened: Any, columns: tuple[str, ...], batch: Batch) -> np.ndarray:
    """Return the (n, C) float32 log-probabilities that a learner's file gives for events."""
    wants_grid = any(one.name == GRID for one in opened.get_inputs())
    parts = []
    for start in range(0, len(batch), AT_ONCE):
        some = batch.take(np.arange(start, min(start + AT_ONCE, len(batch))))
        feed = {COLUMNS: np.column_stack([column_values(some, name) for name in columns]).astype(np.float32)}
        if wants_grid:
            assert some.grids is not None
            feed[GRID] = np.asarray(some.grids[some.index], dtype=np.float32)
        parts.append(opened.run([LOG_PROBABILITY], feed)[0])
    return np.concatenate(parts)


def averaged(each: Sequence[np.ndarray], space: str) -> np.ndarray:
    """Return the (n, C) float64 average of a learner's graphs, ``space`` being ``log`` or ``probability``."""
    stacked = np.stack(each).astype(np.float64)
    if len(stacked) == 1:
        return stacked[0]
    if space == "log":
        return log_softmax(stacked.mean(axis=0))
    found: np.ndarray = np.logaddexp.reduce(stacked, axis=0) - np.log(len(stacked))
    return found


def run_combination(opened: Any, fits: Mapping[str, np.ndarray], context: np.ndarray | None) -> dict[str, np.ndarray]:
    """Return all outputs of the combination by name.

    Parameters
    ----------
    opened
        What :func:`session` returned.
    fits
        (F, n, C) log-probabilities by learner.
    context
        (n, K), where the file wants it.
    """
    wanted = [one.name for one in opened.get_inputs()]
    feed = {name: np.ascontiguousarray(z.transpose(1, 0, 2), dtype=np.float32) for name, z in fits.items()}
    if context is not None:
        feed["context"] = context.astype(np.float32)
    names = [one.name for one in opened.get_outputs()]
    return dict(zip(names, opened.run(names, {name: feed[name] for name in wanted}), strict=True))


def largest_difference(graphs: Sequence[Portable], space: str, learner: Learner, batch: Batch) -> float:
    """Return the largest difference of a probability between a learner and its graphs.

    Raises
    ------
    InputError
        If it is above :data:`TOLERANCE`.
    """
    each = [run_graph(session(one.model.SerializeToString()), one.columns, batch) for one in graphs]
    difference = np.exp(averaged(each, space)) - np.exp(learner.predict_log_proba(batch))
    found = float(np.abs(difference).max(initial=0.0))
    if not found <= TOLERANCE:
        raise InputError(f"the ONNX form differs by {found:.1e} in a probability, more than {TOLERANCE:.0e} is no copy")
    return found
