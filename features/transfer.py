"""Chunks of events on their way to the device that computes.

On a CPU nothing travels: cells are decoded in place. To a GPU they go as float16, from page-locked memory and on a
stream of their own, so that the next chunk travels while the present one is computed; the GPU decodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from features.device import decode_float16
from showers.dataset import Chunk


def on_device(chunks: Iterable[Chunk], device: str) -> Iterator[tuple[Chunk, Any]]:
    """Yield each chunk with its cells as (n, 16, 16, 2) float32 on the device.

    Parameters
    ----------
    chunks
        Consecutive events.
    device
        ``"cpu"`` or ``"cuda"``, resolved.
    """
    if device == "cuda":
        import cupy

        yield from prefetched(chunks, cupy)
        return
    for chunk in chunks:
        yield chunk, decode_float16(np.ascontiguousarray(chunk.matrices))


def prefetched(chunks: Iterable[Chunk], cupy: Any) -> Iterator[tuple[Chunk, Any]]:
    """Yield chunks with their cells on the GPU, always one chunk ahead; see :func:`on_device`."""
    stream = cupy.cuda.Stream(non_blocking=True)
    slots: list[_Slot] = [_Slot(cupy, stream), _Slot(cupy, stream)]
    waiting: tuple[Chunk, _Slot, Any] | None = None
    for number, chunk in enumerate(chunks):
        slot = slots[number % 2]
        cells = slot.send(chunk.matrices)
        if waiting is not None:
            yield _arrived(*waiting, cupy)
        waiting = (chunk, slot, cells)
    if waiting is not None:
        yield _arrived(*waiting, cupy)


def _arrived(chunk: Chunk, slot: _Slot, cells: Any, cupy: Any) -> tuple[Chunk, Any]:
    # Only the computing stream waits, not the host.
    cupy.cuda.get_current_stream().wait_event(slot.sent)
    return chunk, cells.astype(cupy.float32)


class _Slot:
    """One page-locked buffer, reused as soon as its last content has left."""

    def __init__(self, cupy: Any, stream: Any) -> None:
        self.cupy, self.stream = cupy, stream
        self.buffer: np.ndarray | None = None
        self.sent: Any = None

    def send(self, cells: np.ndarray) -> Any:
        """Start the copy of (n, 16, 16, 2) float16 cells to the device and return the array they will be in."""
        if self.sent is not None:
            self.sent.synchronize()
        if self.buffer is None or self.buffer.size < cells.size:
            memory = self.cupy.cuda.alloc_pinned_memory(cells.nbytes)
            self.buffer = np.frombuffer(memory, np.float16, cells.size)
        staged = self.buffer[: cells.size].reshape(cells.shape)
        staged[...] = cells
        with self.stream:
            there = self.cupy.empty(cells.shape, self.cupy.float16)
            there.set(staged, stream=self.stream)
            self.sent = self.stream.record()
        return there
