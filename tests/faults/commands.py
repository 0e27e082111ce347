"""Runs to be killed, each a process of its own: ``python -m tests.faults.commands WHAT MARKS cli-arguments...``.

WHAT names the step that stands still. Each of its workers leaves a file named by its process number in MARKS.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Self

import cli
from showerstack.models.base.learner import Batch
from showerstack.models.base.spec import LearnerSpec
from showerstack.models.registry import LEARNERS
from showerstack.runtime.context import Progress
from tests.stacking.fakes import FAKES, Linear

MARKS = "FAULT_TEST_MARKS"


def mark_and_wait() -> None:
    """Leave a file named by this process's number, then stand still."""
    (Path(os.environ[MARKS]) / str(os.getpid())).touch()
    time.sleep(36_000)


class Waiting(Linear):
    """Never ends to learn."""

    def fit(
        self, train: Batch, valid: Batch, *, seed: int, device: str = "cpu", progress: Progress | None = None
    ) -> Self:
        mark_and_wait()
        return self


def main() -> None:
    """Run the command line with a step that stands still."""
    _, os.environ[MARKS], *arguments = sys.argv[1:]
    LEARNERS.update(FAKES)
    LEARNERS["fake_waiting"] = LearnerSpec(
        "fake_waiting", "tests.faults.commands:Waiting", "", "scalars", source="test"
    )
    sys.argv = ["cli.py", *arguments]
    cli.main()


if __name__ == "__main__":
    main()
