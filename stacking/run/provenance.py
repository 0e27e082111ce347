"""Where a result comes from: versions, commit, and the code that made it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from showers.execution.source_hash import source_hash

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
