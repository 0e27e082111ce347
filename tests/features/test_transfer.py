"""The order of copies to a GPU, played with a stand-in for CuPy that logs what it is asked to do."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from features.transfer import on_device, prefetched
from showers.dataset import Chunk


class _Stream:
    def __init__(self, log, non_blocking=False):
        self.log, self.count = log, 0
        log.append(f"stream non_blocking={non_blocking}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def record(self):
        number, self.count = self.count, self.count + 1
        return SimpleNamespace(number=number, synchronize=lambda: self.log.append(f"buffer free after {number}"))

    def wait_event(self, event):
        self.log.append(f"compute waits for {event.number}")


class _Array:
    def __init__(self, shape, dtype):
        self.content = np.empty(shape, dtype)

    def set(self, host, stream):
        stream.log.append(f"copy {len(host)}")
        self.content[...] = host

    def astype(self, dtype):
        return self.content.astype(dtype)


def _stand_in(log):
    compute = _Stream([])
    compute.log = log
    cuda = SimpleNamespace(
        Stream=lambda non_blocking: _Stream(log, non_blocking),
        alloc_pinned_memory=lambda size: bytearray(size),
        get_current_stream=lambda: compute,
    )
    return SimpleNamespace(cuda=cuda, empty=_Array, float16=np.float16, float32=np.float32)


def _chunks(sizes):
    rng = np.random.default_rng(1)
    return [
        Chunk(k, rng.random((n, 16, 16, 2)).astype(np.float16), np.zeros((n, 5), np.float32))
        for k, n in enumerate(sizes)
    ]


def test_next_chunk_travels_before_the_present_one_is_computed():
    log, chunks = [], _chunks([4, 4, 4, 2])
    for chunk, cells in prefetched(iter(chunks), _stand_in(log)):
        np.testing.assert_array_equal(cells, chunk.matrices.astype(np.float32))
        log.append(f"computed {chunk.start}")
    steps = [entry for entry in log if not entry.startswith(("stream", "compute waits"))]
    assert steps[:3] == ["copy 4", "copy 4", "computed 0"]
    assert steps[3:] == [
        "buffer free after 0",
        "copy 4",
        "computed 1",
        "buffer free after 1",
        "copy 2",
        "computed 2",
        "computed 3",
    ]
    assert [entry for entry in log if entry.startswith("compute waits")] == [f"compute waits for {k}" for k in range(4)]
    assert log[0] == "stream non_blocking=True"


def test_no_events():
    assert list(prefetched(iter([]), _stand_in([]))) == []


def test_cpu_decodes_in_place():
    chunks = _chunks([3])
    ((chunk, cells),) = on_device(chunks, "cpu")
    np.testing.assert_array_equal(cells, chunk.matrices.astype(np.float32))
