"""Chunks of events on their way to the device that computes.

On a CPU nothing travels: cells are decoded in place. To a GPU they go as they are stored, from page-locked memory and
on a stream of their own, so that the next chunk travels while the present one is computed; the GPU decodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from features.device import decoded
from showers.datasets.dataset import Chunk


def on_device(chunks: Iterable[Chunk], device: str) -> Iterator[tuple[Chunk, Any]]:
    """Yield each chunk with its cells as (n, rows, columns, 2) float32 on the device.

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
        yield chunk, decoded(chunk.matrices)


def prefetched(chunks: Iterable[Chunk], cupy: Any) -> Iterator[tuple[Chunk, Any]]:
    """Yield chunks with their cells on the GPU, always one chunk ahead; see :func:`on_device`."""
    stream = cupy.cuda.Stream(non_blocking=True)
    slots = [_Slot(cupy, stream), _Slot(cupy, stream)]
    waiting: tuple[Chunk, _Slot] | None = None
    for number, chunk in enumerate(chunks):
        slot = slots[number % 2]
        slot.send(chunk.matrices)
        if waiting is not None:
            yield waiting[0], waiting[1].decoded()
        waiting = (chunk, slot)
    if waiting is not None:
        yield waiting[0], waiting[1].decoded()


class _Slot:
    """A page-locked buffer and one on the device, used again and again, with the events that order their use.

    Both streams share the device's buffer, so neither may rely on what the memory pool knows of the other: the host
    waits until the last copy has left its buffer, the copy until the last content has been decoded.
    """

    def __init__(self, cupy: Any, stream: Any) -> None:
        self.cupy, self.stream = cupy, stream
        self.here: np.ndarray | None = None
        self.there: Any = None
        self.sent: Any = None
        self.used: Any = None
        self.content: Any = None

    def send(self, cells: np.ndarray) -> None:
        """Start the copy of (n, rows, columns, 2) float16 or float32 cells to the device."""
        if self.sent is not None:
            self.sent.synchronize()
        if self.here is None or len(self.here) < len(cells) or self.here.dtype != cells.dtype:
            if self.used is not None:
                # The old buffer goes back to the pool here.
                self.used.synchronize()
            memory = self.cupy.cuda.alloc_pinned_memory(cells.nbytes)
            self.here = np.frombuffer(memory, cells.dtype, cells.size).reshape(cells.shape)
            with self.stream:
                self.there = self.cupy.empty(cells.shape, cells.dtype)
        staged = self.here[: len(cells)]
        staged[...] = cells
        if self.used is not None:
            self.stream.wait_event(self.used)
        self.content = self.there[: len(cells)]
        self.content.set(staged, stream=self.stream)
        self.sent = self.stream.record()

    def decoded(self) -> Any:
        """Return what was sent as float32, in the order of the computing stream; the host does not wait."""
        compute = self.cupy.cuda.get_current_stream()
        compute.wait_event(self.sent)
        cells = self.content.astype(self.cupy.float32)  # a copy: the buffer is used again
        self.used = compute.record()
        return cells
