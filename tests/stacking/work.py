"""What processes of tests work on: a module that imports little, since every process imports it anew."""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path
from typing import Self

from models.base.learner import Batch
from runtime.context import Progress
from runtime.files import atomic_path
from tests.stacking.fakes import Linear


def end(*given: object) -> None:
    """End this process at once, as a system short of memory does."""
    os.kill(os.getpid(), signal.SIGKILL)


def meet(mine: Path, other: Path) -> bool:
    """Return whether the other device is at work while this one is."""
    mine.touch()
    over = time.monotonic() + 30
    while not other.exists() and time.monotonic() < over:
        time.sleep(0.02)
    return other.exists()


def slow_or_lost(lost: bool, file: Path) -> None:
    """End this process, or say which it is and work on."""
    if lost:
        end()
    file.write_text(str(os.getpid()))
    time.sleep(60)


class Sleeping(Linear):
    """Says who it is and never ends to learn."""

    def fit(
        self, train: Batch, valid: Batch, *, seed: int, device: str = "cpu", progress: Progress | None = None
    ) -> Self:
        with atomic_path(Path(self.settings["mark"])) as temporary:
            temporary.write_text(str(os.getpid()))
        time.sleep(60)
        return self


class FullDisk(Linear):
    """Fails for a reason that is not its own as soon as the other one is at work."""

    def fit(
        self, train: Batch, valid: Batch, *, seed: int, device: str = "cpu", progress: Progress | None = None
    ) -> Self:
        over = time.monotonic() + 30
        while not Path(self.settings["mark"]).exists() and time.monotonic() < over:
            time.sleep(0.02)
        raise OSError(errno.ENOSPC, "No space left on device")
