"""What the package logs, and for whom: lines on standard error, files, or the program that gave work to a process.

Every module logs to ``logging.getLogger(__name__)``, below ``showerstack``: what whoever uses data or a run should know
as a warning, what was done as information, each fit of a learner for debugging. A fit that fails is an error with its
traceback. The import of the package configures nothing: Python then prints warnings and errors on standard error.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from showerstack.runtime.context import screen
from showerstack.runtime.errors import NAME, escaped

LOG = logging.getLogger(NAME)
"""Above the loggers of all modules."""
_STYLES = {logging.WARNING: "yellow", logging.ERROR: "bold red"}
_FORMAT = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")


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


@contextmanager
def logging_to(*handlers: logging.Handler, level: int | str | None = None) -> Iterator[None]:
    """Give what the package logs to handlers as well, and close them at the end.

    ``level`` is what is logged at all meanwhile; None leaves it as it is.
    """
    before = LOG.level
    if level is not None:
        LOG.setLevel(level)
    for handler in handlers:
        LOG.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            LOG.removeHandler(handler)
            handler.close()
        LOG.setLevel(before)


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


@contextmanager
def captured(level: int) -> Iterator[list[logging.LogRecord]]:
    """Keep what is logged in this process instead of handling it; :func:`replay` does that where the work came from."""
    keeper, handlers, propagate, before = _Recorder(), LOG.handlers, LOG.propagate, LOG.level
    LOG.handlers, LOG.propagate = [keeper], False
    LOG.setLevel(level)
    try:
        yield keeper.records
    finally:
        LOG.handlers, LOG.propagate = handlers, propagate
        LOG.setLevel(before)


def replay(records: Iterable[logging.LogRecord]) -> None:
    """Handle what was logged in another process as if it were logged here."""
    for record in records:
        logging.getLogger(record.name).handle(record)
