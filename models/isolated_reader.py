"""The process that opens learners for :mod:`models.isolated`: limited in memory, processor time and writing.

It reads requests (a line of JSON, then the bytes of the arrays it names) from one pipe and answers on another: four
bytes of length, that much JSON, then the float64 log-probabilities.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from threadpoolctl import threadpool_limits

from models.base import Batch, Learner
from models.registry import LEARNERS, learner_class, load
from models.saving import read_header
from showers.array import DetectorArray
from showers.files import open_npy
from showers.kascade import KASCADE
from showers.processes import end_with_parent
from showers.schema import InputError

EXTRA_BYTES = 8 << 30
"""Address space that a learner may take on top of what the libraries and its own files take."""
PER_FILE_BYTE = 8
"""Memory that a byte of a model file may become."""


def main() -> None:
    """Answer requests until the pipe ends; arguments: the two pipes, the parent's process number, threads."""
    requests, replies, parent, threads = map(int, sys.argv[1:])
    end_with_parent(parent)
    # Files of a model are only read: whatever a parser is led to write stays empty, a crash leaves no core file.
    for limit in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        resource.setrlimit(limit, (0, 0))
    learner: Learner | None = None
    with os.fdopen(requests, "rb") as source, os.fdopen(replies, "wb") as sink, threadpool_limits(threads):
        while line := source.readline():
            request = json.loads(line)
            numbers = None
            answer: dict[str, Any] = {}
            batch = _batch(request, source) if request["do"] == "predict" else None
            try:
                _limit_time(request["cpu_s"])
                if request["do"] == "load":
                    learner = None
                    _limit_memory(Path(request["folder"]))
                    learner = load(Path(request["folder"]))
                assert learner is not None
                if batch is not None:
                    numbers = np.ascontiguousarray(learner.predict_log_proba(batch), dtype="<f8")
                    if numbers.shape != (len(batch), len(learner.classes)):
                        raise InputError(f"{len(batch)} events got predictions of shape {numbers.shape}")
                elif request["do"] == "importances":
                    answer["importances"] = learner.importances()
            except InputError as error:
                answer, numbers = {"error": str(error)}, None
            except Exception as error:
                what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                answer, numbers = {"error": f"the saved learner cannot be used: {what}"}, None
            content = json.dumps(answer).encode()
            sink.write(len(content).to_bytes(4, "little") + content)
            if numbers is not None:
                sink.write(numbers.tobytes())
            sink.flush()


def _batch(request: dict[str, Any], source: BinaryIO) -> Batch:
    arrays: dict[str, np.ndarray] = {}
    for name, (kind, shape) in request["arrays"].items():
        content = bytearray(source.read(np.dtype(kind).itemsize * int(np.prod(shape))))
        arrays[name] = np.frombuffer(content, dtype=kind).reshape(shape)
    grids = open_npy(Path(request["grids"])) if request["grids"] else arrays.get("grids")
    return Batch(
        index=arrays["index"],
        table=arrays["table"].T if "table" in arrays else None,
        columns=tuple(request["columns"]),
        grids=grids,
        scalars=arrays.get("scalars"),
        scalar_columns=tuple(request["scalar_columns"]),
        array=KASCADE if request["array"] is None else DetectorArray.from_json(request["array"]),
    )


def _limit_time(cpu_s: float) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = max(0, int(used.ru_utime + used.ru_stime + cpu_s) + 1)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))


def _limit_memory(folder: Path) -> None:
    header = read_header(folder)
    status = Path("/proc/self/statm")
    if not status.exists() or header.get("device") == "cuda":
        return  # CUDA reserves address space without end
    _import_libraries(header["learner"])
    taken = int(status.read_text().split()[0]) * resource.getpagesize()
    files = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    resource.setrlimit(resource.RLIMIT_AS, (taken + EXTRA_BYTES + PER_FILE_BYTE * files, resource.RLIM_INFINITY))


def _import_libraries(name: str) -> None:
    # Loading a library maps gigabytes that are not the model's.
    for entry in LEARNERS.values():
        if entry.learner.endswith(f":{name}"):
            learner_class(entry.learner)
            return
