"""Names of our packages and of the libraries that each part needs, for messages where a library is not installed.

Imports nothing but the standard library.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OWN = ("runtime", "showers", "scoring", "features", "models", "stacking", "analysis", "report", "commands")
"""The packages beside ``showerstack``; each may import from those before it (``tests/test_structure.py``)."""


@contextmanager
def libraries() -> Iterator[None]:
    """Say in one line which library is missing and how it is installed, and exit with code 2."""
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").split(".")[0]
        if not name or name in (*OWN, "showerstack"):
            raise
        venv = Path(__file__).resolve().parents[1] / ".venv"
        ready = (venv / "bin" / "python").exists() and Path(sys.prefix).resolve() != venv
        todo = f"source {venv}/bin/activate" if ready else "make env, then source .venv/bin/activate"
        print(
            f"error: {sys.executable or 'this Python'} has no library {name!r}: activate the environment of this "
            f"project ({todo}) or install it (python -m pip install --constraint constraints.txt --editable .)",
            file=sys.stderr,
        )
        raise SystemExit(2) from None
