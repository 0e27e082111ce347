"""Killed at any change of a file, started again: the same bytes as without the kill, and nothing left behind."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.showers.datasets.kills import COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("stride", [12, pytest.param(3, marks=pytest.mark.faults)])
def test_killed_commands_go_on_or_start_over(stride: int, command: str, tmp_path: Path, survived: Counter[str]) -> None:
    driver = [sys.executable, "-m", "tests.showers.datasets.kills", command, str(tmp_path), str(stride)]
    done = subprocess.run(driver, cwd=Path(__file__).parents[3], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    kills = int(done.stdout.split()[-1])
    assert kills >= 30 // stride, "the command was not killed often enough to tell"
    survived[f"kills of {command} at a change of a file"] += kills
