"""Progress of long work: one callable that packages call and entry points draw.

Library functions with one long step take ``progress: Progress | None = None`` and call ``progress(done, total, note)``;
those with several steps take ``bars: Bars = silent`` and open one bar a step, as in
``with bars("features", "events") as progress:``. Only entry points pass :func:`bar`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console

PATIENCE_S = 2.0
"""Work shorter than this shows nothing."""
LINE_EVERY_S = 20.0
"""Without a terminal, a plain line at most this often."""


class Progress(Protocol):
    """What long work calls to say how far it is."""

    def __call__(self, done: float, total: float, note: str = "") -> None:
        """Report that ``done`` of ``total`` units are done; ``note`` is a short remark such as a validation loss."""


Bars = Callable[[str, str], AbstractContextManager[Progress]]
"""Opens a progress bar from its title and the unit that is counted."""


@contextmanager
def silent(title: str, unit: str = "events") -> Iterator[Progress]:
    """Open a progress bar that draws nothing."""

    def report(done: float, total: float, note: str = "") -> None:
        return

    yield report


@contextmanager
def bar(title: str, unit: str = "events", *, console: Console | None = None) -> Iterator[Progress]:
    """Draw a progress bar named ``title`` with rate and time left on standard error.

    In a terminal the bar appears after :data:`PATIENCE_S`; elsewhere (a log file, continuous integration)
    plain lines are printed, at most one per :data:`LINE_EVERY_S`.
    """
    # Imported here: who asks only for help does not wait for it.
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    from showers.execution.terminal import PlainConsole, escaped

    console = console or PlainConsole(stderr=True)
    started = time.monotonic()
    columns = [
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    ]
    drawn = RichProgress(*columns, console=console, transient=True)
    task = drawn.add_task(title, total=None, rate="", note="")
    live = False
    last_line = started

    def report(done: float, total: float, note: str = "") -> None:
        nonlocal live, last_line
        now = time.monotonic()
        elapsed = max(now - started, 1e-9)
        rate = f"{done / elapsed:,.0f} {unit}/s" if done >= elapsed else f"{elapsed / max(done, 1e-9):,.0f} s/{unit}"
        if console.is_terminal:
            if not live and elapsed > PATIENCE_S:
                drawn.start()
                live = True
            drawn.update(task, completed=done, total=total, rate=rate if done else "", note=note)
        elif now - last_line >= LINE_EVERY_S and total:
            last_line = now
            left = (total - done) / done * elapsed if done else float("nan")
            text = f"{title}: {100 * done / total:.0f} %, {rate}, {left:,.0f} s left" if done else f"{title}: working"
            print(escaped(f"{text}{', ' + note if note else ''}"), file=sys.stderr, flush=True)

    try:
        yield report
    finally:
        if live:
            drawn.stop()
