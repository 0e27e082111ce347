"""Torch as a network needs it: GPU, threads, determinism and random generators, which the whole process shares."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from showerstack.runtime.errors import InputError
from showerstack.runtime.processes import limited_threads, set_openmp_threads
from showerstack.runtime.shared import Setting


def torch_obstacle() -> str | None:
    """Return why torch has no GPU here; None if it has one."""
    if torch.cuda.is_available():
        return None
    if torch.version.cuda is None:
        return "this torch is a CPU build: install a CUDA build of torch"
    return f"torch, built for CUDA {torch.version.cuda}, finds no GPU: its driver may be missing or too old"


def _set_torch(position: tuple[int, bool]) -> Callable[[], None]:
    threads, deterministic = position
    threads_before, determinism_before = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    benchmark, tf32 = torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32
    memory: Any = torch.utils.deterministic  # a module whose switch is a property
    fill_before = memory.fill_uninitialized_memory
    torch.set_num_threads(threads)
    # ``use_deterministic_algorithms`` does the same and imports torch's compiler, two seconds of processor time.
    torch.set_deterministic_debug_mode("warn" if deterministic else "default")
    torch.backends.cudnn.benchmark = not deterministic
    # By default convolutions of float32 round to 10 bits of mantissa: predictions would differ by 1e-3 from a CPU's.
    torch.backends.cudnn.allow_tf32 = False
    # Determinism fills every new tensor once more, which nobody reads.
    memory.fill_uninitialized_memory = False

    def undo() -> None:
        torch.set_num_threads(threads_before)
        torch.set_deterministic_debug_mode(determinism_before)
        torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = benchmark, tf32
        memory.fill_uninitialized_memory = fill_before

    return undo


_TORCH = Setting(_set_torch)


@contextmanager
def torch_as_asked(device: str, threads: int, *, deterministic: bool) -> Iterator[None]:
    """Have torch's threads, determinism and full float32 as asked; who asks otherwise meanwhile waits."""
    if device == "cuda":
        if obstacle := torch_obstacle():
            raise InputError(f"device cuda: {obstacle}")
        # Without it cuBLAS may sum in another order each time. It is read once, when a process first uses the GPU.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    own = torch.get_num_threads()
    try:
        with _TORCH.held((threads, deterministic)), limited_threads(threads, user_api="openmp"):
            yield
    finally:
        # Torch keeps one number for new threads, which is given back with the rest, and one in each thread.
        if torch.get_num_threads() != own:
            set_openmp_threads(own)


_DRAWN: frozenset[Callable[..., Any]] = frozenset(
    {
        *(getattr(nn.init, name) for name in ("uniform_", "normal_", "kaiming_uniform_")),
        *(getattr(torch.Tensor, name) for name in ("uniform_", "normal_")),
        torch.rand,
        torch.randn,
    }
)  # fmt: skip
"""What new weights are drawn by."""


class OwnDraws(TorchFunctionMode):
    """Inside, this thread draws new weights from a generator of its own: those of torch's own, seeded alike.

    Torch has one generator for the whole process. Who seeds it, or draws from it, changes what others draw.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Give the generator to a function that draws."""
        kwargs = kwargs or {}
        return func(*args, **(kwargs | {"generator": self.generator} if func in _DRAWN else kwargs))


_DRAWING = threading.RLock()


@contextmanager
def one_drawing() -> Iterator[None]:
    """Let one network at a time draw from torch's own generators: dropout knows no others."""
    with _DRAWING:
        yield
