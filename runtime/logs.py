"""What the package logs, and for whom: lines on standard error, files, or the program that gave work to a process.

Every module logs to ``logging.getLogger(__name__)``, below ``showerstack``: what whoever uses data or a run should know
as a warning, what was done as information, each fit of a learner for debugging. A fit that fails is an error with its
traceback. The import of the package configures nothing: Python then prints warnings and errors on standard error.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from showerstack.runtime.context import screen
from showerstack.runtime.errors import NAME, escaped

LOG = logging.getLogger(NAME)
"""Above the loggers of all modules."""
_STYLES = {logging.WARNING: "yellow", logging.ERROR: "bold red"}


class _Plain(logging.Formatter):
    """One line a record, then its traceback; what would steer a terminal or begin a line of its own is escaped."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        return escaped(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        """Return the line and the lines of its traceback."""
        return escaped(super().format(record), keep="\n")


_FORMAT = _Plain("%(asctime)s %(levelname)s %(name)s: %(message)s")


class Lines(logging.Handler):
    """Prints what is logged, without tracebacks; a warning once, however many steps repeat it."""

    def __init__(self, level: int | str = logging.INFO) -> None:
        super().__init__(level)
        self.printed: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        line = record.getMessage()
        if record.levelno == logging.WARNING:
            line = f"warning: {line}"
            if line in self.printed:
                return
            self.printed.add(line)
        screen().print(escaped(line), style=_STYLES.get(record.levelno), soft_wrap=True)


class LogFile(logging.FileHandler):
    """Appends what is logged, with time, level, module and traceback.

    Parameters
    ----------
    file
        Where to; made with the first line.
    """

    def __init__(self, file: Path) -> None:
        super().__init__(file, encoding="utf-8", delay=True)
        self.setFormatter(_FORMAT)

    def handleError(self, record: logging.LogRecord) -> None:
        """Go on: the disk may be what failed."""


def remark(log: logging.Logger, lines: Iterable[str]) -> None:
    """Log what whoever uses data or a run should know."""
    for line in lines:
        log.warning("%s", line)


_WORK: ContextVar[tuple[str, ...]] = ContextVar("work", default=())
"""Which calls of :func:`logging_to` what is logged in this thread belongs to, the outermost first."""


class _Router(logging.Handler):
    """Gives every record to the handlers of the work that it belongs to; there while there are any."""

    def __init__(self) -> None:
        super().__init__()
        self.of_work: dict[str, tuple[logging.Handler, ...]] = {}
        self.levels: dict[str, int | str] = {}
        self.level_before = LOG.level
        self.changing = threading.Lock()

    def handle(self, record: logging.LogRecord) -> bool:
        """Give a record on; one that is nobody's goes where it would go without this handler."""
        handlers = [handler for work in _WORK.get() for handler in self.of_work.get(work, ())]
        others = any(handler is not self for handler in LOG.handlers) or (LOG.propagate and logging.root.handlers)
        if not handlers and not others and logging.lastResort is not None:
            handlers = [logging.lastResort]
        for handler in handlers:
            if record.levelno >= handler.level:
                handler.handle(record)
        return True

    def begin(self, work: str, handlers: tuple[logging.Handler, ...], level: int | str | None) -> None:
        """Give records of this work to handlers."""
        with self.changing:
            if level is not None:
                self.level_before = self.level_before if self.levels else LOG.level
                self.levels[work] = level
                LOG.setLevel(level)
            if handlers:
                self.of_work = {**self.of_work, work: handlers}
                LOG.addHandler(self)

    def end(self, work: str) -> None:
        """Forget this work, and close its handlers."""
        with self.changing:
            handlers = self.of_work.get(work, ())
            self.of_work = {other: theirs for other, theirs in self.of_work.items() if other != work}
            if not self.of_work:
                LOG.removeHandler(self)
            if self.levels.pop(work, None) is not None:
                LOG.setLevel(list(self.levels.values())[-1] if self.levels else self.level_before)
        for handler in handlers:
            handler.close()


_ROUTER = _Router()


@contextmanager
def logging_to(*handlers: logging.Handler, level: int | str | None = None) -> Iterator[None]:
    """Give what the work inside logs to handlers as well, and close them at the end.

    What other threads log meanwhile is not theirs, except where :func:`showerstack.runtime.processes.in_threads` gave
    them this work. ``level`` is what is logged at all meanwhile; None leaves it as it is.
    """
    work, before = secrets.token_hex(8), _WORK.get()
    _ROUTER.begin(work, handlers, level)
    _WORK.set((*before, work))
    try:
        yield
    finally:
        _WORK.set(before)
        _ROUTER.end(work)


class _Recorder(logging.Handler):
    """Keeps records in a form that can be sent to another process."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one record, its message and traceback as text."""
        self.format(record)  # writes the traceback into exc_text
        record.msg, record.args, record.exc_info = record.getMessage(), None, None
        self.records.append(record)


_PROCESS = secrets.token_hex(16)
"""Of this process; one that was forked from it has a number of its own besides."""


@dataclass(frozen=True)
class Caller:
    """Where work comes from that is done in other processes or threads, and what is to be logged of it."""

    process: tuple[str, int]
    work: tuple[str, ...]
    level: int

    @classmethod
    def here(cls) -> Self:
        """Return that of the work of this thread."""
        return cls((_PROCESS, os.getpid()), _WORK.get(), LOG.getEffectiveLevel())


@contextmanager
def captured(caller: Caller) -> Iterator[list[logging.LogRecord]]:
    """Keep what is logged instead of handling it; :func:`replay` does that in the process where the work came from.

    In that process itself nothing is kept: all of it is handled at once, as part of the work. Elsewhere one piece of
    work at a time may be captured.
    """
    if caller.process == (_PROCESS, os.getpid()):
        work = _WORK.get()
        _WORK.set(caller.work)
        try:
            yield []
        finally:
            _WORK.set(work)
        return
    keeper, handlers, propagate, before = _Recorder(), LOG.handlers, LOG.propagate, LOG.level
    LOG.handlers, LOG.propagate = [keeper], False
    LOG.setLevel(caller.level)
    try:
        yield keeper.records
    finally:
        LOG.handlers, LOG.propagate = handlers, propagate
        LOG.setLevel(before)


def replay(records: Iterable[logging.LogRecord]) -> None:
    """Handle what was logged in another process as if it were logged here."""
    for record in records:
        logging.getLogger(record.name).handle(record)
