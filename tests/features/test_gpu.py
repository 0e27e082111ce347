"""Which device computes: a GPU counts once CuPy has run on it, and the log says why one is left alone."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace

import pytest

from showerstack.features import device
from showerstack.features.device import CPU_CHUNK, GPU_CHUNK, chunk_size, resolve_device
from showerstack.runtime.errors import InputError


def test_devices(monkeypatch):
    assert resolve_device("cpu") == "cpu"
    with pytest.raises(InputError, match="unknown device 'gpu'"):
        resolve_device("gpu")
    monkeypatch.setattr(device, "gpu_answers", lambda: True)
    monkeypatch.setattr(device, "cupy_obstacle", lambda: None)
    assert resolve_device("auto") == resolve_device("cuda") == "cuda"
    assert (chunk_size("cpu"), chunk_size("cuda")) == (CPU_CHUNK, GPU_CHUNK)


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
