"""Where and how work is done, progress drawn by entry points alone, and text safe for a terminal.

Library functions with one long step take ``progress: Progress | None = None`` and call ``progress(done, total, note)``;
those with several steps take ``bars: Bars = silent`` and open one bar a step, as in ``with bars("features", "events")
as progress:``; those that also need processes or a device take a :class:`Context`. Only entry points pass :func:`bar`,
or :func:`also_calling`. What there is to say beside is logged (:mod:`showerstack.runtime.logs`). Names reach the
terminal as they are, never as markup or as commands to the terminal.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from showerstack.runtime.errors import as_called, escaped

NO_VALUES: Mapping[str, float] = MappingProxyType({})
LINE_EVERY_S = 20.0
"""Without a terminal, a plain line at most this often."""
DRAWN_EVERY_S = 0.5
"""In a notebook, a bar is drawn anew at most this often."""


class Progress(Protocol):
    """What long work calls to say how far it is."""

    def __call__(self, done: float, total: float, note: str = "", values: Mapping[str, float] = NO_VALUES) -> None:
        """Report that ``done`` of ``total`` units are done.

        ``note`` is a short remark such as a validation loss, ``values`` are its numbers by name.
        """


Bars = Callable[[str, str], AbstractContextManager[Progress]]
"""Opens a progress bar from its title and the unit that is counted."""


@contextmanager
def silent(title: str, unit: str = "events") -> Iterator[Progress]:
    """Open a progress bar that draws nothing."""

    def report(done: float, total: float, note: str = "", values: Mapping[str, float] = NO_VALUES) -> None:
        return

    yield report


@contextmanager
def bar(title: str, unit: str = "events", *, console: Console | None = None) -> Iterator[Progress]:
    """Draw a progress bar named ``title`` with rate and time left on standard error.

    In a terminal and in a notebook the bar is there from the start, and gone at the end of a terminal's; elsewhere (a
    log file, continuous integration) plain lines are printed, at most one per :data:`LINE_EVERY_S`, the first at once
    where it says what is running.
    """
    # Imported here: who asks only for help does not wait for it.
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    console = console or screen()
    started = time.monotonic()
    columns = [
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    ]
    rich_bar = RichProgress(*columns, console=console, transient=True)
    task = rich_bar.add_task(title, total=None, rate="", note="")
    last_line = -math.inf
    cell = _show_in_cell(rich_bar) if console.is_jupyter else None
    if console.is_terminal:
        rich_bar.start()

    n_lines, last_total = 0, 0.0

    def report(done: float, total: float, note: str = "", values: Mapping[str, float] = NO_VALUES) -> None:
        nonlocal last_line, n_lines, last_total
        last_total = total
        now = time.monotonic()
        elapsed = max(now - started, 1e-9)
        time_each = f"{elapsed / max(done, 1e-9):,.0f} s a {_one_of(unit)}"
        rate = f"{done / elapsed:,.0f} {unit} a second" if done >= elapsed else time_each
        rate = rate if unit else ""  # work of unlike pieces: how much is done and left says it all
        if cell is not None or console.is_terminal:
            rich_bar.update(task, completed=done, total=total, rate=rate if done else "", note=note)
            if cell is not None and (now - last_line >= DRAWN_EVERY_S or done >= total):
                last_line = now
                cell.update(rich_bar)
        elif total and now - (max(last_line, started) if done or not note else last_line) >= LINE_EVERY_S:
            last_line = now
            left = (total - done) / done * elapsed if done else float("nan")
            text = (
                f"{title}: {100 * done / total:.0f} %, {rate}{', ' if rate else ''}{left:,.0f} s left"
                if done
                else f"{title}: started"
            )
            print(escaped(f"{text}{', ' + note if note else ''}"), file=sys.stderr, flush=True)
            n_lines += bool(0 < done < total)

    try:
        yield report
        # Work may end early, such as rounds that gain nothing: what is over is shown as done.
        if cell is not None and last_total:
            rich_bar.update(task, completed=last_total)
            cell.update(rich_bar)
        elif n_lines:
            print(f"{title}: 100 %, {time.monotonic() - started:,.0f} s", file=sys.stderr, flush=True)
    finally:
        if console.is_terminal:
            rich_bar.stop()


def _one_of(unit: str) -> str:
    """Return the singular of what is counted: energies, predictions of fits."""
    noun, of, others = unit.partition(" of ")
    return (f"{noun[:-3]}y" if noun.endswith("ies") else noun.removesuffix("s")) + of + others


def _show_in_cell(drawn: Any) -> Any:
    """Show something in the output of a notebook's cell; return what replaces it there."""
    from IPython.display import display  # a notebook has it

    return display(drawn, display_id=True)


Callback: TypeAlias = Callable[[str, float, float, str, Mapping[str, float]], None]
"""Called with the step, how much of it is done, how much there is, a short remark, and its numbers by name."""


def also_calling(callback: Callback, bars: Bars = silent) -> Bars:
    """Return bars that also call a function with every progress; what it raises ends the work."""

    @contextmanager
    def opened(title: str, unit: str = "events") -> Iterator[Progress]:
        with bars(title, unit) as progress:

            def report(done: float, total: float, note: str = "", values: Mapping[str, float] = NO_VALUES) -> None:
                progress(done, total, note, values)
                callback(title, done, total, note, values)

            yield report

    return opened


@dataclass(frozen=True)
class Context:
    """Where and how something is done: nothing of it changes what a task, run or table is."""

    bars: Bars = silent
    """Opens progress bars."""
    device: str = "auto"
    """Where features of showers are computed: ``auto``, ``cpu`` or ``cuda``."""
    workers: int | None = None
    """Processes; one a core if None."""
    threads: int = 1
    """Numerical threads of each process."""
    scheduler: str | None = None
    """Address of a Dask scheduler whose workers make features and predictions in parts; None: this machine."""
    began: float | None = None
    """From when a time limit counts, seconds of :func:`showerstack.runtime.cost.now_s`; by default from the first step
    of the work."""


FILE_WIDTH = 120
"""Characters a line where output goes into a file or a pipe, unless COLUMNS says otherwise."""


class PlainConsole(Console):
    """A console on which square brackets are brackets, and control characters appear as escapes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **options})
        if options.get("width") is None and "COLUMNS" not in os.environ and not self.is_terminal:
            self.width = FILE_WIDTH  # 80, what is assumed otherwise, cuts numbers off

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of anything that can be printed, escaped."""
        for segment in super().render(renderable, options):
            text = as_called(escaped(segment.text, keep="\n"))
            yield segment if segment.control else segment._replace(text=text)


@cache
def screen() -> PlainConsole:
    """Return the console on standard error, one for bars and lines: a line is printed above a bar, not into it."""
    return PlainConsole(stderr=True)
