"""Where a result comes from: versions, commit, and the code that made it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from models.spec import LearnerSpec
from showers.execution.source_hash import imported_files, source_hash

TASK_MODULE, CODE_OF_FITS = "stacking.tasks.oof", ("models", "stacking")
REGISTRY = "models.registry"
"""Knows all learners; what it says of one is counted by itself."""
LIBRARIES = {
    "lightgbm": "lightgbm", "xgboost": "xgboost", "catboost": "catboost", "torch": "torch", "sklearn": "scikit-learn",
    "scipy": "scipy",
}  # fmt: skip
"""Packages whose version can change a fit, by the name under which they are imported."""
PACKAGES = ("numpy", "scipy", "polars", "scikit-learn", "lightgbm", "xgboost", "catboost", "torch", "showerstack")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that decide a result."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def started() -> str:
    """Return the present time, UTC, to the minute."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def machine() -> str:
    """Return what the machine is: system, processor type and cores; not its name."""
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"


def command() -> str | None:
    """Return the command line; None in a program that is not one of ours."""
    program = Path(sys.argv[0]).name
    if program not in ("cli.py", "showerstack"):
        return None
    return shlex.join([*(("python",) if program == "cli.py" else ()), program, *sys.argv[1:]])


def git_revision() -> str | None:
    """Return the commit of the source, with ``+`` if it has been changed; None outside a checkout."""
    source = Path(__file__).parents[2]
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=source, capture_output=True, text=True, check=True
        ).stdout.strip()
        changes = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"],
            cwd=source,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit + ("+" if changes.strip() else "")


@cache
def stacking_code_version() -> str:
    """Return a hash of the source of learners and stacking: finished tasks of other code are done again."""
    source = Path(__file__).parents[2]
    return source_hash([source / "models", source / "stacking"])[:16]


def fit_code_version(spec: LearnerSpec) -> str:
    """Return a hash of the code of a learner's fits, and of the libraries that they are done with.

    Counted are the modules of ours that the learner and the task around it import, directly or not: a change of another
    learner, of a meta-learner or of what follows leaves finished fits as they are.
    """
    members = [str(member.get("learner", "")) for member in spec.settings.get("members", ())]
    modules = [path.partition(":")[0] for path in (spec.learner, *members)]
    files = {file for module in (TASK_MODULE, *modules) for file in imported_files(module, CODE_OF_FITS, (REGISTRY,))}
    libraries = [name for start, name in LIBRARIES.items() if any(_uses(file, start) for file in files)]
    return source_hash(sorted(files), ("numpy", *libraries))


@cache
def _uses(file: Path, library: str) -> bool:
    return bool(re.search(rf"^\s*(import|from) {library}\b", file.read_text(encoding="utf-8"), re.MULTILINE))
