"""What a finished run answers at once: the table of its end, if command, data and code are still the same.

``outcome.json`` beside the report keeps the lines that ended the run, with the options of the command and the state of
the files it used. Whatever differs, the run is done in full. Nothing slow is imported for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from showerstack.runtime.errors import InputError
from showerstack.runtime.files import file_state, read_json, write_json

OUTCOME_FILE = "outcome.json"
_KEPT = ("manifest.json", "checksums.json", "predictions.npz", "report.html")
"""Files of a finished run that the answer is about."""


def keep_outcome(run: Path, requested: Mapping[str, Any], inputs: list[Path], lines: str) -> None:
    """Write what a finished run answers.

    Parameters
    ----------
    requested
        Options of the command, as JSON content.
    inputs
        Files and folders that the run used.
    lines
        What was printed at its end.
    """
    content = {
        "asked": dict(requested),
        "state": _state(run, inputs),
        "code": _code(),
        "lines": lines,
    }
    write_json(run / OUTCOME_FILE, content)


def kept_outcome(run: Path, requested: Mapping[str, Any], inputs: list[Path]) -> str | None:
    """Return what a finished run printed at its end; None if anything has changed since, or it is not finished."""
    if not (run / OUTCOME_FILE).is_file():
        return None
    try:
        content = read_json(run / OUTCOME_FILE)
    except InputError:
        return None
    wanted = _circumstances(run, requested, inputs)
    same = isinstance(content, dict) and all(content.get(key) == value for key, value in wanted.items())
    return str(content["lines"]) if same and "lines" in content else None


def _circumstances(run: Path, requested: Mapping[str, Any], inputs: list[Path]) -> dict[str, Any]:
    return {"asked": dict(requested), "state": _state(run, inputs), "code": _code()}


def _code() -> str:
    """Return a hash of the learners' and the stacking's source as it stands: its meaning would take half a second."""
    root, digest = Path(__file__).resolve().parents[1], hashlib.sha256()
    for file in sorted(file for name in ("models", "stacking") for file in (root / name).rglob("*.py")):
        digest.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def _state(run: Path, inputs: list[Path]) -> dict[str, list[int]]:
    """Return the state of every file: what changes when one is written again or replaced."""
    files = [run / name for name in _KEPT]
    for place in inputs:
        files += sorted(place.iterdir()) if place.is_dir() else [place]
    return {str(file): list(file_state(file) or ()) for file in files}
