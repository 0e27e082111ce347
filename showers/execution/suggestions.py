"""What was probably meant: names and paths that resemble a mistyped one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

LIKENESS = 0.8
"""Least ratio of equal letters (difflib) of a name that is suggested."""


def like(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that resembles ``name`` most; None if none does.

    >>> like("lightgm", ["lightgbm", "xgboost"])
    'lightgbm'
    """
    found = difflib.get_close_matches(name, known, 1, LIKENESS)
    return found[0] if found else None


def did_you_mean(path: Path) -> str:
    """Return ``" (did you mean X?)"`` for a path that does not exist beside one of a similar name; else nothing."""
    try:
        found = _near(path)
    except (OSError, ValueError):  # a folder that may not be read, a name that no file can have
        return ""
    return "" if found in (None, path) else f" (did you mean {found}?)"


def _near(path: Path) -> Path | None:
    found = Path(path.anchor)
    for part in path.relative_to(found).parts:
        step = found / part
        if not step.exists():
            near = like(part, [entry.name for entry in found.iterdir()])
            if near is None:
                return None
            step = found / near
        found = step
    return found
