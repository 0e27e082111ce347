"""Learners of somebody else, opened in a process of their own that hands back numbers.

The libraries' parsers of model files are not memory-safe: a damaged or hostile file of LightGBM, XGBoost, CatBoost or
skops can end the process that reads it. :class:`Isolated` starts one whose memory, processor time and writing are
limited; if it ends, the caller learns which file it was. That process reads requests (a line of JSON, then the bytes of
the arrays it names) from one pipe and answers on another: four bytes of length, that much JSON, then the float64
log-probabilities. What comes back is read as JSON and as plain numbers of known count. This keeps accidents away; it is
no prison for a file made to break out.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, Self

import numpy as np

from showerstack.models.base.inputs import TARGETS
from showerstack.models.base.learner import Batch, Learner
from showerstack.models.base.saving import read_header
from showerstack.models.registry import LEARNERS, learner_class, load
from showerstack.runtime.context import Progress
from showerstack.runtime.errors import InputError, session_limits
from showerstack.runtime.processes import end_with_parent, limited_threads
from showerstack.showers.array import KASCADE, DetectorArray
from showerstack.showers.event_files import open_grids

ROOT = Path(__file__).parents[2]
START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from showerstack.models.isolated import main; main()"
EXTRA_BYTES = 8 << 30
"""Memory that a learner may take on top of what the libraries and its own files take."""
HELD_BYTES = 1 << 30
"""Model files of the learners that a process keeps open at once, at most."""
MAX_LINE = 1 << 20
"""Bytes of one line from the reader at most."""
LOAD_S, PREDICT_S, EVENT_S = 120.0, 120.0, 0.1
"""Processor time allowed to load a learner, to predict, and in addition for each event."""
PATIENCE = 10.0
"""How many times the allowed processor time is waited for."""


@contextmanager
def learners_of(*, trusted: bool, threads: int = 1) -> Iterator[Callable[[Path], Learner]]:
    """Yield what opens saved learners: in this process if they are trusted, else in one of their own."""
    if trusted:
        yield load
        return
    with Isolated(threads) as reader:
        yield reader.load


class Isolated:
    """A process that opens learners; a context manager."""

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads
        self._open_bytes: dict[Path, int] = {}
        self._batch: Batch | None = None

    def __enter__(self) -> Self:
        requests, self._requests = os.pipe()
        self._replies, replies = os.pipe()
        arguments = [str(ROOT), str(requests), str(replies), str(os.getpid()), str(self._threads), str(EXTRA_BYTES)]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", START, *arguments],
            pass_fds=(requests, replies),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for descriptor in (requests, replies):
            os.close(descriptor)
        self._out = os.fdopen(self._requests, "wb")
        self._in = os.fdopen(self._replies, "rb", buffering=0)
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        self._in.close()
        try:
            self._out.close()
        except BrokenPipeError:
            return

    def load(self, folder: Path) -> IsolatedLearner:
        """Open a saved learner.

        Raises
        ------
        InputError
            If the folder holds no learner, or its reader ends, runs out of its limits or refuses the files.
        """
        header = read_header(Path(folder))
        learner = IsolatedLearner(self, Path(folder), header)
        self.ask(learner.folder, {"do": "importances"})
        return learner

    def ask(self, folder: Path, request: dict[str, Any], arrays: tuple[np.ndarray, ...] = ()) -> Any:
        """Send a request about a learner and return the answer; learners stay open as far as memory goes."""
        if folder not in self._open_bytes:
            self._make_room(folder)
            self._exchange(folder, {"do": "load", "folder": str(folder.absolute())}, (), LOAD_S)
        self._open_bytes[folder] = self._open_bytes.pop(folder, 0) or _bytes(folder)  # the last used is the last to go
        n_events = request.get("n_events", 0)
        request = {**request, "folder": str(folder.absolute())}
        return self._exchange(folder, request, arrays, PREDICT_S + EVENT_S * n_events)

    def _make_room(self, folder: Path) -> None:
        size = _bytes(folder)
        while self._open_bytes and sum(self._open_bytes.values()) + size > HELD_BYTES:
            oldest = next(iter(self._open_bytes))
            self._exchange(folder, {"do": "close", "folder": str(oldest.absolute())}, (), PREDICT_S)
            del self._open_bytes[oldest]

    def predict(self, folder: Path, batch: Batch, n_columns: int, do: str = "predict") -> np.ndarray:
        """Return a learner's (n, C) predictions, its (n, 2 T) estimates (``estimate``), or ``both`` side by side.

        Events that were sent last are not sent again.
        """
        arrays: dict[str, np.ndarray] = {}
        request: dict[str, Any] = {"do": do, "n_events": len(batch)}
        if batch is not self._batch:
            self._batch = None
            events, arrays = _described(batch)
            request["events"] = events
        self.ask(folder, request, tuple(arrays.values()))
        self._batch = batch
        return self.numbers(folder, (len(batch), n_columns))

    def numbers(self, folder: Path, shape: tuple[int, ...]) -> np.ndarray:
        """Read the float64 numbers that follow an answer."""
        content = self._read(folder, 8 * int(np.prod(shape)), PREDICT_S)
        return np.frombuffer(content, dtype="<f8").reshape(shape)

    def _exchange(self, folder: Path, request: dict[str, Any], arrays: tuple[np.ndarray, ...], cpu_s: float) -> Any:
        line = json.dumps({**request, "cpu_s": cpu_s}).encode() + b"\n"
        try:
            self._out.write(line)
            for array in arrays:
                self._out.write(array.tobytes())
            self._out.flush()
        except BrokenPipeError:
            self._ended(folder)
        size = int.from_bytes(self._read(folder, 4, cpu_s), "little")
        if size > MAX_LINE:
            self._refuse(folder, "gave an answer that is none")
        try:
            answer = json.loads(self._read(folder, size, cpu_s))
            refusal = answer.get("error")
        except (ValueError, AttributeError, RecursionError):
            self._refuse(folder, "gave an answer that is none")
        if refusal is not None:
            raise InputError(str(refusal))
        return answer

    def _read(self, folder: Path, size: int, cpu_s: float) -> bytes:
        content = bytearray()
        while len(content) < size:
            wait_s = PATIENCE * max(cpu_s, 1.0)
            ready, _, _ = select.select([self._in], [], [], wait_s)
            if not ready:
                self._refuse(folder, f"gave no answer within {wait_s:.0f} s")
            part = self._in.read(min(size - len(content), 1 << 20))
            if not part:
                self._ended(folder)
            content += part
        return bytes(content)

    def _ended(self, folder: Path) -> NoReturn:
        code = self._process.wait()
        if code == -signal.SIGXCPU:
            self._refuse(folder, "took more processor time than it may")
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        limits = session_limits()
        if code in (-signal.SIGKILL, errno.ENOMEM) or (code > 0 and limits):
            bounds = f"ulimit {', '.join(limits or ('-t', '-d'))}"
            raise InputError(
                f"{folder}: the process that read this learner's model was ended from outside ({name}), for want of "
                f"memory or by a limit of this session ({bounds}): give it more, or use fewer --workers"
            )
        self._refuse(folder, f"crashed ({name})")

    def _refuse(self, folder: Path, what: str) -> NoReturn:
        files = ", ".join(read_header(folder)["files"]) or "its members"
        raise InputError(
            f"{folder}: the process that read this learner's model ({files}) {what}: the file is damaged or was made "
            "to do that; take the run from another copy"
        )


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _described(batch: Batch) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return what a batch is, as JSON content, and the arrays that are sent after it."""
    arrays: dict[str, np.ndarray] = {"index": batch.index.astype("<i8")}
    if batch.table is not None:
        arrays["table"] = batch.table.astype("<f4", copy=False).T  # stored by columns
    if batch.scalars is not None:
        arrays["scalars"] = batch.scalars.astype("<f4", copy=False)
    file = None
    if batch.grids is not None:
        file = getattr(batch.grids, "filename", None)
        if file is None:
            arrays["grids"] = np.asarray(batch.grids[batch.index])
            arrays["index"] = np.arange(len(batch), dtype="<i8")
    events = {
        "array": None if batch.array == KASCADE else batch.array.as_json(),
        "columns": list(batch.columns),
        "scalar_columns": list(batch.scalar_columns),
        "arrays": {name: [array.dtype.str, list(array.shape)] for name, array in arrays.items()},
        "grids": None if file is None else str(Path(file).absolute()),
    }
    return events, arrays


class IsolatedLearner(Learner):
    """A learner in another process: it predicts and tells its importances, no more."""

    def __init__(self, reader: Isolated, folder: Path, header: dict[str, Any]) -> None:
        super().__init__(tuple(header["classes"]), threads=int(header["threads"]))
        self.reader, self.folder = reader, folder

    def predict_log_proba(self, batch: Batch) -> np.ndarray:
        """Return (n, C) float64 natural logarithms of the posterior, as the other process gives them."""
        if not len(batch):
            return np.empty((0, len(self.classes)))
        return self.reader.predict(self.folder, batch, len(self.classes))

    def predict_targets(self, batch: Batch) -> np.ndarray:
        """Return (n, T, 2) float64 estimates, as the other process gives them."""
        if not len(batch):
            return np.empty((0, len(TARGETS), 2))
        return self.reader.predict(self.folder, batch, 2 * len(TARGETS), "estimate").reshape(len(batch), -1, 2)

    def predict_both(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Return both, as the other process gives them."""
        if not len(batch):
            return self.predict_log_proba(batch), self.predict_targets(batch)
        n_classes = len(self.classes)
        numbers = self.reader.predict(self.folder, batch, n_classes + 2 * len(TARGETS), "both")
        return numbers[:, :n_classes], numbers[:, n_classes:].reshape(len(batch), -1, 2)

    def importances(self) -> dict[str, float] | None:
        """Return the gain of each table column, where the learner has such a thing."""
        value = self.reader.ask(self.folder, {"do": "importances"}).get("importances")
        return None if value is None else {str(name): float(share) for name, share in value.items()}

    def fit(
        self, train: Batch, valid: Batch, *, seed: int, device: str = "cpu", progress: Progress | None = None
    ) -> Self:
        """Refuse: what is opened in another process only predicts."""
        raise TypeError("a learner in another process cannot be trained")

    def save(self, folder: Path) -> None:
        """Refuse: what is opened in another process only predicts."""
        raise TypeError("a learner in another process cannot be saved")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Refuse: see :meth:`Isolated.load`."""
        raise TypeError("open it with Isolated.load")


WRITTEN_BYTES = 1 << 16
"""Length of a file that may be written: libraries try out the folder of temporary files."""
PER_FILE_BYTE = 8
"""Memory that a byte of a model file may become."""


def main() -> None:
    """Answer requests until the pipe ends; arguments: the two pipes, the parent's number, threads, extra bytes.

    The exit code is that of ENOMEM where the events of a request do not fit into the memory.
    """
    requests, replies, parent, threads, extra_bytes = map(int, sys.argv[1:])
    end_with_parent(parent)
    # Files of a model are only read: whatever a parser is led to write stays small, a crash leaves no core file.
    limit(resource.RLIMIT_CORE, 0, for_good=True)
    limit(resource.RLIMIT_FSIZE, WRITTEN_BYTES, for_good=True)
    open_fits: dict[str, Learner] = {}
    batch: Batch | None = None
    with os.fdopen(requests, "rb") as source, os.fdopen(replies, "wb") as sink, limited_threads(threads):
        while line := source.readline():
            request = json.loads(line)
            numbers = None
            answer: dict[str, Any] = {}
            folder, wish = request["folder"], request["do"]
            if "events" in request:
                batch = None  # the earlier events' memory is given back first
                try:
                    batch = _batch(request["events"], source)
                except MemoryError:
                    sys.exit(errno.ENOMEM)
            try:
                _limit_time(request["cpu_s"])
                if wish == "load":
                    limit_memory(Path(folder), extra_bytes)
                    open_fits[folder] = load(Path(folder))
                elif wish == "close":
                    del open_fits[folder]
                elif wish in ("predict", "estimate", "both"):
                    assert batch is not None
                    numbers = _numbers(open_fits[folder], batch, wish)
                else:
                    answer["importances"] = open_fits[folder].importances()
            except InputError as error:
                answer, numbers = {"error": str(error)}, None
            except Exception as error:
                what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                why = _why(error)
                answer, numbers = {"error": f"{folder}: {why}: {what}"}, None
            content = json.dumps(answer).encode()
            sink.write(len(content).to_bytes(4, "little") + content)
            if numbers is not None:
                sink.write(numbers.tobytes())
            sink.flush()


def _why(error: Exception) -> str:
    short = isinstance(error, MemoryError) or "bad_alloc" in str(error)
    options = [option for option in session_limits() if option != "-t"]
    if short and options:
        return f"this session may not take the memory that its learner needs (ulimit {', '.join(options)})"
    return "the saved learner cannot be used"


def _numbers(learner: Learner, batch: Batch, wish: str) -> np.ndarray:
    """Return what is wished for, (n, numbers of an event) float64."""
    results: tuple[np.ndarray, ...]
    if wish == "both":
        results = learner.predict_both(batch)
    else:
        results = (learner.predict_targets(batch) if wish == "estimate" else learner.predict_log_proba(batch),)
    classes, targets = (len(batch), len(learner.classes)), (len(batch), len(TARGETS), 2)
    expected = {"predict": [classes], "estimate": [targets], "both": [classes, targets]}[wish]
    if [result.shape for result in results] != expected:
        raise InputError(f"{len(batch)} events got predictions of shapes {[result.shape for result in results]}")
    return np.hstack([np.asarray(result, dtype="<f8").reshape(len(batch), -1) for result in results])


def _batch(events: dict[str, Any], source: BinaryIO) -> Batch:
    arrays: dict[str, np.ndarray] = {}
    for name, (kind, shape) in events["arrays"].items():
        content = bytearray(source.read(np.dtype(kind).itemsize * int(np.prod(shape))))
        arrays[name] = np.frombuffer(content, dtype=kind).reshape(shape)
    grids = open_grids(Path(events["grids"])) if events["grids"] else arrays.get("grids")
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
    limit(resource.RLIMIT_CPU, seconds)


def limit(kind: int, value: int, *, for_good: bool = False) -> None:
    """Bound what this process may take; a lower hard limit that it was started with (``ulimit``) stays.

    With ``for_good`` it cannot be raised again.
    """
    _, most = resource.getrlimit(kind)
    bound = value if most == resource.RLIM_INFINITY else min(value, most)
    resource.setrlimit(kind, (bound, bound if for_good else most))


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
    limit(resource.RLIMIT_DATA, taken + extra_bytes + PER_FILE_BYTE * files)


def _import_libraries(name: str) -> None:
    # Loading a library maps gigabytes that are not the model's.
    for entry in LEARNERS.values():
        if entry.learner.endswith(f":{name}"):
            learner_class(entry.learner)
            return
