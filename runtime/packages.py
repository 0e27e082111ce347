"""Names of our packages, of the libraries that each extra installs, and the line where a library is not installed.

Imports nothing but the standard library.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

OWN = ("runtime", "showers", "scoring", "features", "models", "stacking", "analysis", "report", "commands")
"""The packages inside of ``showerstack``; each may import from those before it (``tests/test_structure.py``)."""

EXTRAS: dict[str, tuple[str, ...]] = {
    "train": ("catboost", "lightgbm", "sklearn", "skops", "torch", "xgboost"),
    "report": ("jinja2", "matplotlib"),
    "physics": ("iminuit",),
    "onnx": ("onnxruntime",),
    "export": ("onnx", "onnxscript"),
    "files": ("corsikaio", "h5py", "uproot"),
    "sky": ("astropy", "astropy_healpix"),
    "gpu": ("cupy",),
    "cluster": ("distributed",),
}
"""What ``pip install 'showerstack[EXTRA]'`` adds to the core, by the names under which it is imported."""


def lacking(*names: str) -> list[str]:
    """Return the libraries that are not installed, of extras (or libraries) given by name; nothing is imported."""
    wanted = [library for name in names for library in EXTRAS.get(name, (name,))]
    return [library for library in wanted if find_spec(library) is None]


def how_to_install(libraries: list[str]) -> str:
    """Return the command that installs libraries of the extras; empty if none of them is of an extra.

    >>> how_to_install(["torch", "matplotlib"])
    "pip install 'showerstack[train,report]'"
    """
    extras = [extra for extra, content in EXTRAS.items() if set(content) & set(libraries)]
    return f"pip install 'showerstack[{','.join(extras)}]'" if extras else ""


def listed(names: list[str]) -> str:
    """Return names as they stand in a sentence.

    >>> listed(["catboost", "sklearn", "torch"])
    'catboost, sklearn and torch'
    """
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


NOT_ON_WINDOWS = ("fcntl", "resource")
"""Modules of Python's own that are there under Unix alone."""


@contextmanager
def libraries() -> Iterator[None]:
    """Say in one line which library of the core is missing and how it is installed, and exit with code 2.

    Ctrl-C while they are imported is a line too, with the exit code of :data:`showerstack.runtime.errors.INTERRUPTED`.
    """
    try:
        yield
    except KeyboardInterrupt:
        print("interrupted before anything was begun", file=sys.stderr)
        raise SystemExit(130) from None
    except ModuleNotFoundError as error:
        name = (error.name or "").split(".")[0]
        if name in ("", "showerstack"):
            raise
        if name in NOT_ON_WINDOWS:
            print("error: showerstack needs Linux or macOS: on Windows use WSL (wsl --install)", file=sys.stderr)
            raise SystemExit(2) from None
        checkout = Path(__file__).resolve().parents[1]
        venv, todo = checkout / ".venv", "python -m pip install showerstack installs what it needs"
        if (checkout / "pyproject.toml").exists():
            ready = (venv / "bin" / "python").exists() and Path(sys.prefix).resolve() != venv
            todo = f"source {venv}/bin/activate" if ready else "make env, then source .venv/bin/activate"
            todo = f"activate the environment of this project ({todo}) or install it (python -m pip install "
            todo += "--constraint constraints.txt --editable .)"
        print(f"error: {sys.executable or 'this Python'} has no library {name!r}: {todo}", file=sys.stderr)
        raise SystemExit(2) from None
