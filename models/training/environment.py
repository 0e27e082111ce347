"""Torch as a learner asks for it: GPU, threads, determinism; given back afterwards as it was."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch

from showers.schema import InputError


def torch_obstacle() -> str | None:
    """Return why torch has no GPU here; None if it has one."""
    if torch.cuda.is_available():
        return None
    if torch.version.cuda is None:
        return "this torch is a CPU build: install a CUDA build of torch"
    return f"torch, built for CUDA {torch.version.cuda}, finds no GPU: its driver may be missing or too old"


@contextlib.contextmanager
def torch_as_asked(device: str, threads: int, *, deterministic: bool) -> Iterator[None]:
    """Set torch's threads and determinism, and give them back afterwards.

    Raises
    ------
    InputError
        If the device is ``"cuda"`` and torch has none.
    """
    if device == "cuda" and (obstacle := torch_obstacle()):
        raise InputError(f"device cuda: {obstacle}")
    before, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    benchmark = torch.backends.cudnn.benchmark
    torch.set_num_threads(threads)
    # Without it cuBLAS may sum in another order each time; it has no effect on a CPU.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic, warn_only=True)
    torch.backends.cudnn.benchmark = not deterministic
    try:
        yield
    finally:
        torch.set_num_threads(before)
        torch.use_deterministic_algorithms(strict)
        torch.backends.cudnn.benchmark = benchmark
