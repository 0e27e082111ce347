"""Other programs than onnxruntime that run ONNX files, where they are installed."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from showerstack.models.onnx.graph import LOG_PROBABILITY
from showerstack.models.onnx.predictor import session

Feed = dict[str, np.ndarray]
"""(n, ...) float32 by name of an input."""
Runner = Callable[[Path, list[Feed]], list[np.ndarray]]


def by_onnxruntime(model: Path, feeds: list[Feed]) -> list[np.ndarray]:
    """Return the log-probabilities (n, C) of each feed by onnxruntime."""
    opened = session(model)
    return [opened.run([LOG_PROBABILITY], feed)[0] for feed in feeds]


def by_openvino(model: Path, feeds: list[Feed], **hints: str) -> list[np.ndarray]:
    """The same by OpenVINO, which takes bfloat16 where the processor has it."""
    import openvino

    opened = openvino.Core().compile_model(str(model), "CPU", hints)
    return [np.array(opened(feed)[LOG_PROBABILITY]) for feed in feeds]


def by_openvino_in_float32(model: Path, feeds: list[Feed]) -> list[np.ndarray]:
    """The same, asked for float32."""
    return by_openvino(model, feeds, INFERENCE_PRECISION_HINT="f32")


def by_tract(model: Path, feeds: list[Feed]) -> list[np.ndarray]:
    """The same by tract."""
    import tract

    asked: Any = session(model)
    names, outputs = ([one.name for one in of] for of in (asked.get_inputs(), asked.get_outputs()))
    opened = tract.onnx().load(str(model)).into_model().into_runnable()
    place = outputs.index(LOG_PROBABILITY)
    return [opened.run([feed[name] for name in names])[place].to_numpy() for feed in feeds]


RUNTIMES: tuple[tuple[str, str, Runner], ...] = (
    ("openvino", "", by_openvino),
    ("openvino", " in float32", by_openvino_in_float32),
    ("tract", "", by_tract),
)
"""Package, how it is asked, and how it is run."""


def runtimes() -> Iterator[tuple[str, Runner]]:
    """Yield the name of each runtime that is installed, with its version, and how it is run."""
    for package, how, run in RUNTIMES:
        try:
            yield f"{package} {importlib.metadata.version(package)}{how}", run
        except importlib.metadata.PackageNotFoundError:
            continue


def largest_difference_in(run: Runner, model: Path, feeds: list[Feed]) -> float | str:
    """Return the largest difference of a log-probability from onnxruntime's, NaN counting as infinite; or the kind of
    error of a runtime that does not run the file."""
    ours = by_onnxruntime(model, feeds)
    try:
        theirs = run(model, feeds)
    except Exception as error:  # each has its own
        return type(error).__name__
    pairs = zip(ours, theirs, strict=True)
    return max(float(np.where(np.isnan(a - b), np.inf, np.abs(a - b)).max(initial=0.0)) for a, b in pairs)
