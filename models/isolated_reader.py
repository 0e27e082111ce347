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
from models.pretraining.targets import TARGETS
from models.registry import LEARNERS, learner_class, load
from models.saving import read_header
from showers.array import DetectorArray
from showers.execution.processes import end_with_parent
from showers.kascade import KASCADE
from showers.schema import InputError
from showers.storage.files import open_npy

WRITTEN_BYTES = 1 << 16
"""Length of a file that may be written: libraries try out the folder of temporary files."""
PER_FILE_BYTE = 8
"""Memory that a byte of a model file may become."""


def main() -> None:
    """Answer requests until the pipe ends; arguments: the two pipes, the parent's number, threads, extra bytes."""
    requests, replies, parent, threads, extra_bytes = map(int, sys.argv[1:])
    end_with_parent(parent)
    # Files of a model are only read: whatever a parser is led to write stays small, a crash leaves no core file.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (WRITTEN_BYTES, WRITTEN_BYTES))
    held: dict[str, Learner] = {}
    batch: Batch | None = None
    with os.fdopen(requests, "rb") as source, os.fdopen(replies, "wb") as sink, threadpool_limits(threads):
        while line := source.readline():
            request = json.loads(line)
            numbers = None
            answer: dict[str, Any] = {}
            folder, wish = request["folder"], request["do"]
            if "events" in request:
                batch = None  # the earlier events' memory is given back first
                batch = _batch(request["events"], source)
            try:
                _limit_time(request["cpu_s"])
                if wish == "load":
                    limit_memory(Path(folder), extra_bytes)
                    held[folder] = load(Path(folder))
                elif wish == "close":
                    del held[folder]
                elif wish in ("predict", "estimate"):
                    assert batch is not None
                    numbers = _numbers(held[folder], batch, truth=wish == "estimate")
                else:
                    answer["importances"] = held[folder].importances()
            except InputError as error:
                answer, numbers = {"error": str(error)}, None
            except Exception as error:
                what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                answer, numbers = {"error": f"{folder}: the saved learner cannot be used: {what}"}, None
            content = json.dumps(answer).encode()
            sink.write(len(content).to_bytes(4, "little") + content)
            if numbers is not None:
                sink.write(numbers.tobytes())
            sink.flush()


def _numbers(learner: Learner, batch: Batch, *, truth: bool) -> np.ndarray:
    found = learner.predict_truth(batch) if truth else learner.predict_log_proba(batch)
    expected = (len(batch), len(TARGETS), 2) if truth else (len(batch), len(learner.classes))
    if found.shape != expected:
        raise InputError(f"{len(batch)} events got predictions of shape {found.shape}")
    return np.ascontiguousarray(found, dtype="<f8")


def _batch(events: dict[str, Any], source: BinaryIO) -> Batch:
    arrays: dict[str, np.ndarray] = {}
    for name, (kind, shape) in events["arrays"].items():
        content = bytearray(source.read(np.dtype(kind).itemsize * int(np.prod(shape))))
        arrays[name] = np.frombuffer(content, dtype=kind).reshape(shape)
    grids = open_npy(Path(events["grids"])) if events["grids"] else arrays.get("grids")
    return Batch(
        index=arrays["index"],
        table=arrays["table"].T if "table" in arrays else None,
        columns=tuple(events["columns"]),
        grids=grids,
        scalars=arrays.get("scalars"),
        scalar_columns=tuple(events["scalar_columns"]),
        array=KASCADE if events["array"] is None else DetectorArray.from_json(events["array"]),
    )


def _limit_time(cpu_s: float) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = max(0, int(used.ru_utime + used.ru_stime + cpu_s) + 1)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))


def limit_memory(folder: Path, extra_bytes: int) -> None:
    """Bound the memory that this process may write to on top of what its libraries have taken.

    Address space that is only reserved does not count: CUDA reserves it without end.
    """
    status = Path("/proc/self/statm")
    if not status.exists():
        return
    _import_libraries(read_header(folder)["learner"])
    taken = int(status.read_text().split()[5]) * resource.getpagesize()
    files = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    resource.setrlimit(resource.RLIMIT_DATA, (taken + extra_bytes + PER_FILE_BYTE * files, resource.RLIM_INFINITY))


def _import_libraries(name: str) -> None:
    # Loading a library maps gigabytes that are not the model's.
    for entry in LEARNERS.values():
        if entry.learner.endswith(f":{name}"):
            learner_class(entry.learner)
            return
