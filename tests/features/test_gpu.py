"""Which device computes, and how much a GPU is given to do, without a GPU.

A GPU counts once CuPy has run on it, and the log says why one is left alone. What a chunk of events costs there is
counted on arrays that stand for a GPU's.
"""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.speed.gpu import column_agreement
from showerstack.features import device
from showerstack.features.catalogue import GROUPS
from showerstack.features.compute import compute_chunk
from showerstack.features.device import (
    CPU_CHUNK,
    GPU_CHUNK,
    LARGE_GPU_BYTES,
    LARGE_GPU_CHUNK,
    chunk_size,
    columns_to_host,
    decode_float16,
    namespace,
    resolve_device,
)
from showerstack.features.lateral import cuda, events
from showerstack.runtime.errors import InputError
from tests.features.device_arrays import DeviceArray, DeviceNamespace, on_device, on_host


def test_devices(monkeypatch):
    assert resolve_device("cpu") == "cpu"
    with pytest.raises(InputError, match="unknown device 'gpu'"):
        resolve_device("gpu")
    monkeypatch.setattr(device, "gpu_answers", lambda: True)
    monkeypatch.setattr(device, "cupy_obstacle", lambda: None)
    assert resolve_device("auto") == resolve_device("cuda") == "cuda"


def test_a_gpu_with_much_memory_gets_more_at_once_whatever_of_it_is_free(monkeypatch):
    sizes = []
    for total in (LARGE_GPU_BYTES - 1, LARGE_GPU_BYTES):
        runtime = SimpleNamespace(memGetInfo=lambda total=total: (1 << 30, total))
        monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))
        sizes.append(chunk_size("cuda"))
    assert (chunk_size("cpu"), *sizes) == (CPU_CHUNK, GPU_CHUNK, LARGE_GPU_CHUNK)


def test_a_gpu_that_cupy_cannot_use_is_left_alone_and_the_log_says_why(monkeypatch, caplog):
    monkeypatch.setattr(device, "gpu_answers", lambda: True)
    monkeypatch.setattr(device, "cupy_obstacle", lambda: "CuPy finds no headers")
    device._say_once.cache_clear()
    assert resolve_device("auto") == resolve_device("auto") == "cpu"
    assert [record.getMessage() for record in caplog.records] == [
        "features are computed on the CPU although a GPU answers: CuPy finds no headers"
    ]
    with pytest.raises(InputError, match="asked for, but CuPy finds no headers; or use --device cpu"):
        resolve_device("cuda")
    monkeypatch.setattr(device, "gpu_answers", lambda: False)
    monkeypatch.setattr(device, "cupy_obstacle", lambda: pytest.fail("asked"))
    assert resolve_device("auto") == "cpu"


def test_a_gpu_counts_once_cupy_has_run_on_it(monkeypatch):
    pytest.importorskip("cupy")
    if device.gpu_answers():
        pytest.skip("a GPU answers")
    monkeypatch.setattr(device, "gpu_answers", lambda: True)  # the driver seems to know one, CuPy meets none
    device.cupy_obstacle.cache_clear()
    try:
        obstacle = device.cupy_obstacle()
    finally:
        device.cupy_obstacle.cache_clear()
    assert re.match(r"CuPy cannot use the GPU: CUDARuntimeError: .*showerstack\[gpu13\]", obstacle)


def test_memory_that_libraries_keep_is_given_back(monkeypatch):
    freed = []
    pool = SimpleNamespace(free_all_blocks=lambda: freed.append("cupy"))
    cuda = SimpleNamespace(is_initialized=lambda: True, empty_cache=lambda: freed.append("torch"))
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(get_default_memory_pool=lambda: pool))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    device.free_gpu_memory()
    assert freed == ["cupy", "torch"]
    monkeypatch.delitem(sys.modules, "cupy")
    cuda.is_initialized = lambda: False
    device.free_gpu_memory()
    assert freed == ["cupy", "torch"]


@pytest.fixture
def gpu(on_the_host, monkeypatch):
    """Return the namespace of a GPU whose work is counted, kernels as plain C++."""

    def launch(kernels, name, n_events, arguments):
        DeviceArray.launches[name] += 1
        on_the_host(kernels, name, n_events, on_host(list(arguments)))

    monkeypatch.setattr(cuda, "launch", launch)
    monkeypatch.setattr(events, "is_cupy_namespace", lambda xp: True)
    DeviceArray.launches.clear()
    return DeviceNamespace("gpu")


N = 200
MOST_LAUNCHES = 1_450
"""A chunk of events: a launch takes the host 8 to 10 microseconds, whatever the number of events."""


def test_a_chunk_takes_few_launches_and_never_waits(draw, gpu):
    showers = draw(N, seed=4)
    cells = decode_float16(showers.matrices.copy())
    compute_chunk(gpu, on_device(cells), showers.scalars, frozenset(GROUPS))  # geometry and tables go there once
    DeviceArray.launches.clear()
    there = compute_chunk(gpu, on_device(cells), showers.scalars, frozenset(GROUPS))
    launches = DeviceArray.launches.copy()
    assert {name: n for name, n in launches.items() if name.endswith(("_events", "_grids", "_cells"))} == {
        "fit_events": 1, "sum_events": 1, "sum_grids": 1, "order_cells": 2,
    }  # fmt: skip
    assert launches.total() <= MOST_LAUNCHES, launches.most_common(12)
    assert all(isinstance(values, DeviceArray) and values.dtype == np.float32 for values in there.values())
    arrived = columns_to_host(there, gpu)
    assert DeviceArray.launches - launches == {"stack": 1, "get": 1}
    here = compute_chunk(namespace("cpu"), cells, showers.scalars, frozenset(GROUPS))
    words, ok = column_agreement(arrived, here)
    assert ok, words
