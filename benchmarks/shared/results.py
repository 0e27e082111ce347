"""Stored results: what a script printed, in ``benchmarks/results/``, below a head that says how it was made."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path

from showerstack.runtime.code import git_revision
from showerstack.runtime.files import atomic_path, read_json
from showerstack.showers.simulation import load_settings

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks" / "results"
WEIGHTS = {"shipped": "showers.json", "any-array": "any.json"}
"""Cards of released weights."""
HELP = "also write the tables to benchmarks/results/"


def store(
    name: str, title: str, text: str, *, worlds: Iterable[str] = ("default",), weights: str = "",
    folder: Path = FOLDER,
) -> Path:  # fmt: skip
    """Write ``folder/name.md`` and return its path.

    Parameters
    ----------
    name, title
        Name of the file without its ending, and its heading.
    text
        Markdown below the head.
    worlds
        Names of simulated worlds; the head holds the hash of the settings of each.
    weights
        Pretrained weights that were used, a name in :data:`WEIGHTS`; the head then holds their hash.
    """
    rows = [("command", f"`{_command()}`"), ("commit", (git_revision() or "unknown")[:9])]
    rows += [(f"world `{world}`", f"settings {load_settings(world).digest()[:8]}") for world in worlds]
    if weights:
        card = files("showerstack.models.pretraining") / "weights" / WEIGHTS[weights]
        rows.append(("pretrained weights", str(read_json(Path(str(card)))["sha256"])[:8]))
    head = ["| made by | |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows)]
    file = folder / f"{name}.md"
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(file) as temporary:
        temporary.write_text("\n".join([f"# {title}", "", *head, "", text.strip(), ""]), encoding="utf-8")
    return file


def _command() -> str:
    """Return the command line, its program as a module of the repository."""
    program = Path(sys.argv[0]).resolve()
    if not program.is_relative_to(ROOT):
        return shlex.join(["python", program.name, *sys.argv[1:]])
    return shlex.join(["python", "-m", ".".join(program.relative_to(ROOT).with_suffix("").parts), *sys.argv[1:]])
