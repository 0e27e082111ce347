"""Runs to be killed, each a process of its own: ``python -m tests.faults.commands WHAT MARKS cli-arguments...``.

WHAT names the step that stands still. Each of its workers leaves a file named by its process number in MARKS.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any, Self

import numpy as np

import cli
from showerstack.models.base.learner import Batch
from showerstack.models.base.spec import LearnerSpec
from showerstack.models.registry import LEARNERS
from showerstack.runtime.context import Progress
from showerstack.stacking.meta import choice
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


def large_result(*arguments: Any) -> Any:
    """Stand in for the fits of meta-learners: hand back more than fits into a pipe that nobody reads."""
    (Path(os.environ[MARKS]) / str(os.getpid())).touch()
    time.sleep(1.0)
    return np.random.default_rng(0).bytes(30_000_000)


def main() -> None:
    """Run the command line with a step that stands still."""
    what, os.environ[MARKS], *arguments = sys.argv[1:]
    LEARNERS.update(FAKES)
    LEARNERS["fake_waiting"] = LearnerSpec(
        "fake_waiting", "tests.faults.commands:Waiting", "", "scalars", source="test"
    )
    if what == "meta-learners":
        choice._fit_and_predict = large_result
    sys.argv = ["cli.py", *arguments]
    cli.main()


if __name__ == "__main__":
    main()
