"""The order of copies to a GPU, played with a stand-in for CuPy whose streams run as late or as early as is allowed."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest

from features.device import on_device, prefetched
from showers.dataset import Chunk


class _Event:
    """A place in a stream's queue; whoever waits for it makes the stream run up to there."""

    def __init__(self, stream):
        self.stream, self.reached = stream, False

    def reach(self):
        while not self.reached:
            self.stream.queue.popleft()()

    synchronize = reach


class _Stream:
    """A queue of work: done at once when ``eager``, otherwise only when somebody has to wait for it."""

    def __init__(self, device, eager):
        self.device, self.eager, self.queue = device, eager, deque()

    def do(self, work):
        self.queue.append(work)
        while self.eager and self.queue:
            self.queue.popleft()()

    def record(self):
        event = _Event(self)
        self.do(lambda: setattr(event, "reached", True))
        return event

    def wait_event(self, event):
        self.do(event.reach)

    def __enter__(self):
        self.device.allocating = self

    def __exit__(self, *_):
        self.device.allocating = self.device.compute


class _Array:
    """Memory of the device, of the pool of the stream that was current; freed blocks are handed out again at once."""

    def __init__(self, device, shape, dtype):
        self.device, self.pool = device, device.pools.setdefault(id(device.allocating), [])
        fitting = [k for k, block in enumerate(self.pool) if block.shape == shape and block.dtype == dtype]
        self.block = self.pool.pop(fitting[0]) if fitting else np.empty(shape, dtype)
        self.owner = None

    def __del__(self):
        if self.owner is None:
            self.pool.append(self.block)

    def __getitem__(self, rows):
        part = object.__new__(_Array)
        part.device, part.block, part.owner = self.device, self.block[rows], self
        return part

    def set(self, host, stream):
        self.device.log.append(f"copy {len(host)}")
        block = self.block
        stream.do(lambda: block.__setitem__(..., host))

    def astype(self, dtype):
        result, block = np.full(self.block.shape, np.nan, dtype), self.block
        self.device.compute.do(lambda: result.__setitem__(..., block))
        return result


class _Device:
    """Stands in for CuPy; of its two streams one is always early, the other late."""

    def __init__(self, early_copies):
        self.log, self.pools = [], {}
        self.compute = self.allocating = _Stream(self, not early_copies)
        self.cuda = SimpleNamespace(
            Stream=lambda non_blocking: _Stream(self, early_copies),
            alloc_pinned_memory=lambda size: bytearray(size),
            get_current_stream=lambda: self.compute,
        )
        self.float16, self.float32 = np.float16, np.float32

    def empty(self, shape, dtype):
        return _Array(self, shape, dtype)

    def finish(self):
        while self.compute.queue:
            self.compute.queue.popleft()()


def _chunks(sizes):
    rng = np.random.default_rng(1)
    return [
        Chunk(k, rng.random((n, 16, 16, 2)).astype(np.float16), np.zeros((n, 5), np.float32))
        for k, n in enumerate(sizes)
    ]


@pytest.mark.parametrize("early_copies", [True, False])
@pytest.mark.parametrize("sizes", [[4] * 7 + [2], [2, 4, 4, 4, 3], [1, 2, 3, 4, 4, 4]])
def test_nothing_is_overwritten_before_it_was_used(sizes, early_copies):
    device, chunks = _Device(early_copies), _chunks(sizes)
    arrived = [cells for _, cells in prefetched(iter(chunks), device)]
    device.finish()
    for chunk, cells in zip(chunks, arrived, strict=True):
        np.testing.assert_array_equal(cells, chunk.matrices.astype(np.float32))


def test_next_chunk_travels_before_the_present_one_is_computed():
    device, chunks = _Device(True), _chunks([4, 4, 4, 2])
    for chunk, _ in prefetched(iter(chunks), device):
        device.log.append(f"computed {chunk.start}")
    assert device.log == [
        "copy 4",
        "copy 4",
        "computed 0",
        "copy 4",
        "computed 1",
        "copy 2",
        "computed 2",
        "computed 3",
    ]


def test_no_events():
    assert list(prefetched(iter([]), _Device(True))) == []


def test_cpu_decodes_in_place():
    chunks = _chunks([3])
    ((chunk, cells),) = on_device(chunks, "cpu")
    np.testing.assert_array_equal(cells, chunk.matrices.astype(np.float32))
