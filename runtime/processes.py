"""Work in threads and in other processes of this machine: results as they come.

No worker outlives the process that started it. Where some tasks run on a GPU and others on the CPU, each device has
workers of its own, and both work side by side.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from contextvars import copy_context
from functools import lru_cache, partial
from multiprocessing import current_process
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

from showerstack.runtime.cost import now_s
from showerstack.runtime.errors import InputError, explained
from showerstack.runtime.shared import Setting

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

_PR_SET_PDEATHSIG = 1
_WATCH_EVERY_S = 1.0
_LOST = (
    "a worker process was lost (killed, or out of memory): nothing that was finished is lost; "
    "start the same command again, with fewer workers if memory is short"
)
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


@lru_cache(maxsize=1)
def _thread_pools(n_modules: int) -> ThreadpoolController:
    """Return the thread pools of all libraries of this process, in which so many modules are imported."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def _limit_blas(threads: int) -> Callable[[], None]:
    pools = [pool for pool in _thread_pools(len(sys.modules)).lib_controllers if pool.user_api == "blas"]
    before = [pool.get_num_threads() for pool in pools]

    def give(numbers: Iterable[int]) -> None:
        for pool, number in zip(pools, numbers, strict=True):
            # threadpoolctl lets the thread that set a number first set others, and does nothing for all other threads.
            forget = getattr(pool, "clear_controlling_thread", None)
            if forget:
                forget(force=True)
            pool.set_num_threads(number)
            if forget:
                forget(force=True)

    give([threads] * len(pools))
    return partial(give, before)


_BLAS = Setting(_limit_blas)


@contextmanager
def limited_threads(threads: int, user_api: str | None = None) -> Iterator[None]:
    """Limit the threads of BLAS and OpenMP, or of one of both.

    Those of BLAS are a setting of the process, those of OpenMP of each thread. Only an import lets libraries be looked
    for again, which takes 10 ms.
    """
    with ExitStack() as stack:
        if user_api != "openmp":
            stack.enter_context(_BLAS.held(threads))
        if user_api != "blas":
            # Of these alone: a limit on one of both gives back the numbers of all pools that it was asked of.
            stack.enter_context(_thread_pools(len(sys.modules)).select(user_api="openmp").limit(limits=threads))
        yield


def _set_safe_path(position: bool) -> Callable[[], None]:
    name, before = "PYTHONSAFEPATH", os.environ.get("PYTHONSAFEPATH")
    os.environ[name] = "1"

    def undo() -> None:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before

    return undo


_SAFE_PATH = Setting(_set_safe_path)


def safe_path() -> AbstractContextManager[None]:
    """Let processes that begin meanwhile import nothing from the working folder: a file there may be called random.py.

    Workers, and the trackers of their resources, begin with ``python -m`` or ``-c``, which look there first.
    """
    return _SAFE_PATH.held(True)


def set_openmp_threads(threads: int) -> None:
    """Set the threads of OpenMP of this thread, for good."""
    _thread_pools(len(sys.modules)).limit(limits=threads, user_api="openmp")


def in_threads(
    function: Callable[..., Any], arguments: Iterable[tuple[Any, ...]], *, workers: int
) -> Generator[Any, None, None]:
    """Yield ``function(*one)`` of each tuple in their order, made by threads of this process.

    For compiled work, which releases the interpreter's lock: a thread needs no imports and no copies of arrays. At
    most one result more than there are threads waits to be taken.
    """
    if workers == 1:
        yield from (function(*one) for one in arguments)
        return
    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[Future[Any]] = deque()
        try:
            for one in arguments:
                # What is logged there, and the settings that are held, are those of this work.
                waiting.append(pool.submit(copy_context().run, function, *one))
                if len(waiting) > workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


class _Worker:
    """A process that calls functions, one after the other, and sends what they yield."""

    def __init__(self, threads: int | None = None, *, kind: Hashable = None, daemon: bool = True) -> None:
        from joblib.externals.loky.backend import get_context

        context = get_context("loky")
        self.pipe, theirs = context.Pipe()
        self.kind = kind
        env = dict.fromkeys(_THREADS, str(threads)) if threads else None
        self._process = context.Process(target=_answer, args=(theirs, os.getpid()), daemon=daemon, env=env)
        with safe_path():
            self._process.start()
        theirs.close()

    def ask(self, function: Callable[..., Iterable[Any]], *arguments: Any) -> None:
        """Let the process call a function; :meth:`answers` has what it yields."""
        from joblib.externals.loky.backend.reduction import dumps  # as joblib's: a class of a user's script too

        with suppress(OSError):  # a process that is lost answers with its loss
            self.pipe.send_bytes(dumps((function, arguments)))

    def answers(self) -> Iterator[Any]:
        """Yield what the function yields, or raise how it ended."""
        try:
            while (answer := self.pipe.recv())[0] == "value":
                yield answer[1]
        except (EOFError, OSError):
            raise InputError(_LOST) from None
        if answer[0] == "error":
            _raise(*answer[1])

    def end(self) -> None:
        """End the process at once, whatever it does."""
        if self._process.is_alive():
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.join()
        self.pipe.close()


def _answer(pipe: Any, parent: int) -> None:
    """Do what is asked for until nobody asks any more; see :class:`_Worker`."""
    end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent, which got the same, ends this process
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            return
        except Exception as error:  # it was sent by other code than is here
            pipe.send(_failed(error))
            continue
        try:
            for value in function(*arguments):
                pipe.send(("value", value))
        except Exception as error:
            pipe.send(_failed(error))
        else:
            pipe.send(("end", None))


def _failed(error: Exception) -> tuple[str, tuple[str | None, str]]:
    return "error", (explained(error), "".join(traceback.format_exception(error)))


def _once(function: Callable[..., Any], one: tuple[Any, ...]) -> Iterator[Any]:
    yield function(*one)


class Workers:
    """Processes that do tasks of several devices side by side; a context, which ends them however it is left.

    A process ends before another kind of task begins in its place, since libraries keep much of the memory that they
    once had. One for the CPU alone, with tasks of one kind, is this process; so it is where it may have no children.
    """

    def __init__(self, number: Mapping[str, int], threads: int) -> None:
        """Begin none yet: at most ``number`` of them by device, of so many threads each."""
        self.number, self.threads = dict(number), threads
        self._free: dict[str, list[_Worker]] = {device: [] for device in number}
        self._busy: dict[Any, tuple[_Worker, str, tuple[Any, ...], bool]] = {}
        """By pipe: the worker, its device, what it does, and whether for the second time."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def end(self) -> None:
        """End all processes at once, whatever they do."""
        for worker, *_ in self._busy.values():
            worker.end()
        self._busy.clear()
        for free in self._free.values():
            while free:
                free.pop().end()

    def each(
        self,
        function: Callable[..., Any],
        arguments: Mapping[str, Sequence[tuple[Any, ...]]],
        *,
        kind_of: Callable[[tuple[Any, ...]], Hashable] | None = None,
        spoilt: Callable[[Any], bool] = lambda result: False,
    ) -> Iterator[Any]:
        """Yield ``function(*one)`` of each tuple as they finish; those of a device begin in their order.

        Parameters
        ----------
        kind_of
            The kind of a tuple; all are of one where it is None.
        spoilt
            Whether a result shows that its process can no longer use the device, as after an error of CUDA. The process
            is then replaced, and the tuple tried once more.

        Raises
        ------
        InputError
            If a worker of any device is lost: killed by somebody or by the system.
        """
        if current_process().daemon or (kind_of is None and self.number == {"cpu": 1}):
            yield from (function(*one) for part in arguments.values() for one in part)
            return
        waiting = {device: deque(part) for device, part in arguments.items()}

        def begin(device: str, one: tuple[Any, ...], *, again: bool = False) -> None:
            worker = self._worker(device, kind_of(one) if kind_of else None)
            worker.ask(_once, function, one)
            self._busy[worker.pipe] = worker, device, one, again

        for device, part in waiting.items():
            for _ in range(min(self.number[device], len(part))):
                begin(device, part.popleft())
        while self._busy:
            for pipe in wait(list(self._busy)):
                worker, device, one, again = self._busy[pipe]
                (result,) = worker.answers()
                del self._busy[pipe]
                if spoilt(result):
                    worker.end()
                    if not again:
                        begin(device, one, again=True)
                        continue
                else:
                    self._free[device].append(worker)
                if waiting[device]:
                    begin(device, waiting[device].popleft())
                yield result

    def _worker(self, device: str, kind: Hashable) -> _Worker:
        free = self._free[device]
        for worker in free:
            if worker.kind == kind:
                free.remove(worker)
                return worker
        if free:
            free.pop(0).end()
        # What a user's own learner does in its process may begin others, which a daemon may not.
        return _Worker(self.threads, kind=kind, daemon=False)


def in_processes(
    function: Callable[..., Any], arguments: Iterable[tuple[Any, ...]], *, workers: int
) -> Generator[Any, None, None]:
    """Yield ``function(*one)`` of each tuple as they finish, by processes that end with the last; by this one if alone.

    They are processes of this machine; a cluster is reached by ``--scheduler`` alone.
    """
    with Workers({"cpu": workers}, threads=1) as processes:
        yield from processes.each(function, {"cpu": list(arguments)})


def in_own_process(function: Callable[..., Iterable[Any]], *arguments: Any) -> Generator[Any, None, None]:
    """Yield what ``function(*arguments)`` yields in a new process, which ends with it.

    The context of a GPU, some hundred MB that a library gives back with the end of its process alone, never is in this
    one: a GPU that takes one process at a time stays free for the workers.

    Parameters
    ----------
    function
        Of a module, with arguments that can be pickled.

    Raises
    ------
    InputError
        If the function raised what the user can mend, or the process was lost.
    RuntimeError
        With the traceback, for every other error of the function.
    """
    worker = _Worker()
    try:
        worker.ask(function, *arguments)
        yield from worker.answers()
    finally:
        worker.end()


def _raise(line: str | None, text: str) -> NoReturn:
    raise RuntimeError(text) if line is None else InputError(line)


def in_silent_process(function: Callable[[], Any]) -> Any:
    """Return ``function()``, of a module, from a new process whose output, that of libraries in C too, is thrown away.

    Raises
    ------
    InputError, RuntimeError
        As :func:`in_own_process`.
    """
    (value,) = in_own_process(_silently, function)
    return value


def _silently(function: Callable[[], Any]) -> Iterator[Any]:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    yield function()


def end_with_parent(parent: int) -> None:
    """Make this process end when its parent, of process number ``parent``, does: however that ends.

    Without it a worker of a killed run would finish its work beside the run started next, or wait for ever to hand
    its result to nobody. Linux sends the signal itself (prctl(2), PR_SET_PDEATHSIG), whatever native code runs;
    elsewhere a thread watches the parent's number.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        threading.Thread(target=_end_when_orphaned, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it has ended already
        os.kill(os.getpid(), signal.SIGKILL)


def _end_when_orphaned(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_WATCH_EVERY_S)
    os.kill(os.getpid(), signal.SIGKILL)


def process_began() -> float:
    """Return when this process was started, in seconds of :func:`showerstack.runtime.cost.now_s`; the present where the
    system does not record it.

    Linux has it in /proc/self/stat, field 22 (proc(5)): clock ticks from the start of the machine to that of the
    process.
    """
    now = now_s()
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        return min(now, int(fields[19]) / os.sysconf("SC_CLK_TCK")) if hasattr(time, "CLOCK_BOOTTIME") else now
    except (OSError, IndexError, ValueError):
        return now


Work = TypeVar("Work")


def by_device(
    work: Iterable[Work], pools: Mapping[str, int], device_of: Callable[[Work], str]
) -> dict[str, list[Work]]:
    """Return the work by device, in its order; that of a device without a pool goes to the first."""
    first = next(iter(pools))
    parts: dict[str, list[Work]] = {device: [] for device in pools}
    for one in work:
        parts[device if (device := device_of(one)) in pools else first].append(one)
    return parts
