"""The program called in this process: what a command prints, without the seconds that a process takes to begin."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import cli
import verify

ROOT = Path(cli.__file__).resolve().parent
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


def environment(folder: Path, libraries: Iterable[str]) -> dict[str, str]:
    """Return the environment of processes that lack some libraries."""
    lines = "import sys\n" + "".join(f"sys.modules[{name!r}] = None\n" for name in libraries)
    (folder / "sitecustomize.py").write_text(lines)
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))}


@contextmanager
def pictures_undrawn() -> Iterator[None]:
    """Leave the pictures of pages empty; those in files are drawn."""
    from matplotlib.figure import Figure

    from showerstack.report.pictures import style

    drawn = Figure.savefig

    def saved(figure: Figure, target: object, **options: object) -> None:
        if isinstance(target, io.StringIO):
            target.write('<svg viewBox="0 0 1 1"></svg>')
        else:
            drawn(figure, target, **options)

    # Without its own layout a figure is laid out by matplotlib, when it is saved.
    with patch.object(Figure, "savefig", saved), patch.object(style, "_lay_out", lambda figure: None):
        yield
