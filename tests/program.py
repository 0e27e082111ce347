"""The program called in this process: what a command prints, without the seconds that a process takes to begin."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import cli
import verify

ENTRIES = {"cli.py": cli.main, "verify.py": verify.main}


@dataclass(frozen=True)
class Shown:
    """What a command wrote."""

    stdout: str
    stderr: str


def call(entry: str, *arguments: str | Path, code: int = 0) -> Shown:
    """Call ``python <entry> ...`` and check its exit code; an exception is never acceptable.

    Parameters
    ----------
    entry
        ``cli.py`` or ``verify.py``.
    """
    out, err = io.StringIO(), io.StringIO()
    status: object
    with patch.object(sys, "argv", [entry, *map(str, arguments)]), redirect_stdout(out), redirect_stderr(err):
        try:
            status = ENTRIES[entry]()
        except SystemExit as ended:
            status = ended.code
    shown = Shown(out.getvalue(), err.getvalue())
    assert (status or 0) == code, shown.stdout + shown.stderr
    return shown
