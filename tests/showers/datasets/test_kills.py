"""Killed at any change of a file, started again: the same bytes as without the kill, and nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.showers.datasets.kills import COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_killed_commands_go_on_or_start_over(command: str, tmp_path: Path) -> None:
    stride = os.environ.get("KILL_STRIDE", "12")
    driver = [sys.executable, "-m", "tests.showers.datasets.kills", command, str(tmp_path), stride]
    done = subprocess.run(driver, cwd=Path(__file__).parents[3], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) >= 30 // int(stride), "the command was not killed often enough to tell"
