"""What reaches the terminal: names as they are, never as markup, never as commands to the terminal."""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories that steer a terminal or reorder what is read: control, format, surrogates, separators."""


def escaped(text: str, keep: str = "") -> str:
    """Return text in which every character that would steer a terminal is written as an escape, line ends included.

    >>> print(escaped("a" + chr(27) + "[31m" + chr(10) + "b"))
    a\\x1b[31m\\nb
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        c if c in keep or unicodedata.category(c) not in _UNSAFE else c.encode("unicode_escape").decode() for c in text
    )


def as_called(text: str) -> str:
    """Return text in which our commands are called as the user called the program: in a checkout, or installed.

    An installation has no ``cli.py``: its console script is ``showerstack``.
    """
    called = Path(sys.argv[0])
    if called.stem != NAME and (called.name, called.parent.name) != ("__main__.py", NAME):
        return text
    return text.replace("python cli.py", NAME).replace("python verify.py", f"{NAME} verify")


NAME = "showerstack"
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
