"""What processes of tests work on: a module that imports little, since every process imports it anew."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from showerstack.models.base.learner import Batch
from showerstack.runtime.context import Progress
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import atomic_path
from tests.stacking.fakes import Linear


def end(*given: object) -> None:
    """End this process at once, as a system short of memory does."""
    os.kill(os.getpid(), signal.SIGKILL)


def meet(mine: Path, other: Path) -> bool:
    """Return whether the other device is at work while this one is."""
    mine.touch()
    over = time.monotonic() + 600
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


class Marking(Linear):
    """Says in which process it learns."""

    def fit(
        self, train: Batch, valid: Batch, *, seed: int, device: str = "cpu", progress: Progress | None = None
    ) -> Self:
        with Path(self.settings["mark"]).open("a", encoding="utf-8") as file:
            file.write(f"{os.getpid()}\n")
        return super().fit(train, valid, seed=seed, device=device, progress=progress)


class FullDisk(Linear):
    """Fails for a reason that is not its own as soon as the other one is at work."""

    def fit(
        self, train: Batch, valid: Batch, *, seed: int, device: str = "cpu", progress: Progress | None = None
    ) -> Self:
        over = time.monotonic() + 600
        while not Path(self.settings["mark"]).exists() and time.monotonic() < over:
            time.sleep(0.02)
        raise OSError(errno.ENOSPC, "No space left on device")


class Unlucky(Linear):
    """Fails for the reason that its settings name, once or, where they say so, always."""

    def fit(
        self, train: Batch, valid: Batch, *, seed: int, device: str = "cpu", progress: Progress | None = None
    ) -> Self:
        mark = Path(self.settings["mark"])
        if not mark.exists() or "always" in self.settings:
            mark.touch()
            REASONS[self.settings["reason"]]()
        return super().fit(train, valid, seed=seed, device=device, progress=progress)


def _raises(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def _wrapped() -> None:
    try:
        raise OSError(errno.ENOSPC, "No space left on device")
    except OSError as error:
        raise InputError("the model cannot be written") from error


REASONS: dict[str, Callable[[], None]] = {
    "disk": _raises(OSError(errno.ENOSPC, "No space left on device")),
    "memory": _raises(MemoryError("Unable to allocate 8 TiB")),
    "torch": _raises(RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")),
    "gpu": _raises(RuntimeError("CUDA error: an illegal memory access was encountered")),
    "booster": _raises(RuntimeError("std::bad_alloc")),
    "wrapped": _wrapped,
    "lost": end,
}
