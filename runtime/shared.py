"""What all threads of a process share: settings that work changes for a while and gives back as they were.

Numbers of threads of BLAS, the modes of torch and the filters of warnings exist once in a process. A thread that puts
back what it found would put back what another had set. So every such switch has one :class:`Setting`: the first to
need it changes it, those who need it alike share it, those who need it otherwise wait, the last one gives it back.
``docs/threads.md`` lists all of it.
"""

from __future__ import annotations

import contextvars
import re
import threading
import warnings
from collections.abc import Callable, Generator, Hashable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from typing import Any, TypeVar

Step = TypeVar("Step")


class Setting:
    """A switch of the whole process that pieces of work need in one position each.

    Who holds it may ask for another position meanwhile, and gets his own back afterwards. Threads to which the work is
    given out (:func:`showerstack.runtime.processes.in_threads`) share the position of the work, whatever they ask for:
    they cannot wait for it to end.

    Parameters
    ----------
    change
        Called with the position; returns a function that undoes it.
    """

    def __init__(self, change: Callable[[Any], Callable[[], None]]) -> None:
        self._change = change
        self._free = threading.Condition()
        self._position: Hashable = None
        self._undo: Callable[[], None] | None = None
        self._holders = 0
        self._mine: contextvars.ContextVar[tuple[int, Hashable] | None] = contextvars.ContextVar("mine", default=None)
        """Thread and position of the innermost holder in this chain of work."""

    @contextmanager
    def held(self, position: Hashable) -> Iterator[None]:
        """Hold the switch in a position."""
        outer, thread = self._mine.get(), threading.get_ident()
        if outer is not None and (outer[0] != thread or outer[1] == position):
            yield
            return
        if outer is not None:
            self._leave()
        self._enter(position)
        self._mine.set((thread, position))
        try:
            yield
        finally:
            self._mine.set(outer)
            self._leave()
            if outer is not None:
                self._enter(outer[1])

    def _enter(self, position: Hashable) -> None:
        with self._free:
            self._free.wait_for(lambda: not self._holders or self._position == position)
            if not self._holders:
                self._undo, self._position = self._change(position), position
            self._holders += 1

    def _leave(self) -> None:
        with self._free:
            self._holders -= 1
            if not self._holders and self._undo is not None:
                self._undo()
                self._free.notify_all()


def each_within(
    held: Callable[[], AbstractContextManager[Any]], steps: Generator[Step, None, None]
) -> Generator[Step, None, None]:
    """Yield what ``steps`` yields, each made while something is held, which whoever takes it does not hold."""
    end = object()
    with closing(steps):
        while True:
            with held():
                step: Any = next(steps, end)
            if step is end:
                return
            yield step


class _Messages:
    """In a filter's place for a pattern: matches what work in this thread, or any, asked to be ignored."""

    def __init__(self) -> None:
        self.here: contextvars.ContextVar[tuple[re.Pattern[str], ...]] = contextvars.ContextVar("here", default=())
        self.everywhere: list[re.Pattern[str]] = []

    def match(self, text: str) -> bool:
        """Return whether a message is ignored."""
        return any(pattern.match(text) for pattern in (*self.here.get(), *self.everywhere))

    @property
    def pattern(self) -> str:
        """All of it as one regular expression: libraries (scikit-learn) repeat a filter in threads of their own."""
        return "|".join(f"(?:{one.pattern})" for one in (*self.here.get(), *self.everywhere)) or "(?!)"


class _Filter(Setting):
    """A filter of warnings of one category, in front of all others."""

    def __init__(self, category: type[Warning]) -> None:
        super().__init__(self._put)
        self.messages = _Messages()
        self._entry: Any = ("ignore", self.messages, category, None, 0)

    def _put(self, position: bool) -> Callable[[], None]:
        self._remove()
        warnings.filters.insert(0, self._entry)  # type: ignore[attr-defined]
        return self._remove

    def _remove(self) -> None:
        # Whoever catches warnings meanwhile works with a copy of the list: the filter may be gone, or there again.
        with suppress(ValueError):
            while True:
                warnings.filters.remove(self._entry)  # type: ignore[attr-defined]


_FILTERS: dict[type[Warning], _Filter] = {}
_FIRST = threading.Lock()


@contextmanager
def ignored(category: type[Warning], message: str = "", *, everywhere: bool = False) -> Iterator[None]:
    """Ignore warnings whose message begins with a regular expression, where this thread (or any) raises them.

    ``warnings.catch_warnings`` would take away what other threads filter meanwhile, and ignore what they are to see.
    """
    pattern = re.compile(message, re.IGNORECASE)
    with _FIRST:
        one = _FILTERS.setdefault(category, _Filter(category))
    with one.held(True):
        before = one.messages.here.get()
        if everywhere:
            one.messages.everywhere.append(pattern)
        else:
            one.messages.here.set((*before, pattern))
        try:
            yield
        finally:
            if everywhere:
                one.messages.everywhere.remove(pattern)
            else:
                one.messages.here.set(before)
