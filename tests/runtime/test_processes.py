"""Processes of their own end with their user; one that can no longer use its GPU is replaced, and what it did is told.

Errors are those that the libraries raise: CuPy 14, torch 2.13, XGBoost 3.2, CatBoost 1.2.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from showerstack.runtime.errors import FULL_GPU, GPU_FAILED, InputError, explained, remedy_of
from showerstack.runtime.processes import Workers, in_own_process, in_silent_process, in_threads


def numbers(*ends: str) -> Iterator[int]:
    """Yield this process's number twice, then end as told."""
    yield os.getpid()
    yield os.getpid()
    for end in ends:
        if end == "wrong input":
            raise InputError("row 7 is odd")
        if end == "mistake":
            raise ZeroDivisionError("by nothing")
        if end == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(3600)


def test_values_come_from_one_other_process() -> None:
    first, second = in_own_process(numbers)
    assert first == second != os.getpid()


@pytest.mark.parametrize(
    ("end", "kind", "words"),
    [
        ("wrong input", InputError, "^row 7 is odd$"),
        ("mistake", RuntimeError, "ZeroDivisionError: by nothing"),
        ("killed", InputError, "a worker process was lost"),
    ],
)
def test_how_it_ends_is_told(end: str, kind: type[Exception], words: str) -> None:
    there = in_own_process(numbers, end)
    next(there)
    next(there)
    with pytest.raises(kind, match=words):
        next(there)


def test_it_ends_with_its_user() -> None:
    there = in_own_process(numbers, "never")
    number = next(there)
    there.close()
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)


def heard() -> list[int]:
    """Print as Python does and as libraries in C do, and return this process's number."""
    print("heard", flush=True)
    for stream in (1, 2):
        os.write(stream, b"heard")
    return [os.getpid()]


def lost() -> None:
    """End without a value."""
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_silent_process_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    (number,) = in_silent_process(heard)
    assert number != os.getpid()
    assert capfd.readouterr() == ("", "")
    with pytest.raises(InputError, match="a worker process was lost"):
        in_silent_process(lost)


def test_a_silent_process_takes_no_module_from_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise RuntimeError('not this one')")
    monkeypatch.chdir(tmp_path)
    (number,) = in_silent_process(heard)
    assert number != os.getpid()


SPOILT: list[int] = []
"""What has spoilt this process, as an error of CUDA does: whatever it does on the GPU later fails too."""


def on_gpu(number: int, spoils: int, mark: Path) -> tuple[int, int, bool]:
    """Return number, process and whether it failed; ``spoils`` times this number spoils the process."""
    with mark.open("a") as file:
        file.write(f"{number}\n")
    if mark.read_text().split().count(str(number)) <= spoils:
        SPOILT.append(number)
    time.sleep(0.05)
    return number, os.getpid(), bool(SPOILT)


def failed(outcome: tuple[int, int, bool]) -> bool:
    """Return whether it failed."""
    return outcome[2]


@pytest.mark.slow
def test_a_spoilt_process_is_replaced_and_its_work_tried_once_more(tmp_path: Path) -> None:
    work = {
        "cuda": [(k, {1: 1, 3: 2}.get(k, 0), tmp_path / "cuda") for k in range(6)],
        "cpu": [(k, 0, tmp_path / "cpu") for k in range(10, 13)],
    }
    with Workers({"cuda": 1, "cpu": 1}, threads=1) as workers:
        outcomes = list(workers.each(on_gpu, work, spoilt=failed))
    assert sorted(number for number, _, _ in outcomes) == [0, 1, 2, 3, 4, 5, 10, 11, 12]
    assert [number for number, _, lost in outcomes if lost] == [3], "fails in a new process as well"
    processes = {number: process for number, process, _ in outcomes}
    assert len({processes[k] for k in range(6)}) == 4
    assert processes[1] == processes[2] != processes[0]
    assert len({processes[k] for k in range(10, 13)}) == 1, "the CPU's processes work on"
    begun = (tmp_path / "cuda").read_text().split()
    assert (begun.count("1"), begun.count("3")) == (2, 2)


def _like(module: str, name: str, text: str, base: type[Exception] = RuntimeError) -> Exception:
    """Return an error as a library raises it, without the library."""
    kind: type[Exception] = type(name, (base,), {"__module__": module})
    return kind(text)


FULL = [
    _like("cupy.cuda.memory", "OutOfMemoryError", "Out of memory allocating 1,024 bytes", MemoryError),
    _like("torch", "OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB"),
    _like("xgboost.core", "XGBoostError", "cudaErrorMemoryAllocation: out of memory", ValueError),
    _like("_catboost", "CatBoostError", "CUDA error 2: out of memory"),
    RuntimeError("CUDA error: out of memory"),
]
BROKEN = [
    _like("torch", "AcceleratorError", "CUDA error: an illegal memory access was encountered"),
    RuntimeError("CUDA error: device-side assert triggered"),
    _like("cupy_backends.cuda.api.runtime", "CUDARuntimeError", "cudaErrorLaunchFailure: unspecified launch failure"),
    _like("cupy_backends.cuda.api.driver", "CUDADriverError", "CUDA_ERROR_ILLEGAL_ADDRESS"),
    _like("_catboost", "CatBoostError", "CUDA error 46: all CUDA-capable devices are busy or unavailable"),
    RuntimeError("CUBLAS_STATUS_EXECUTION_FAILED when calling cublasSgemm"),
    InputError("device cuda: XGBoost trained on 'cpu' instead; no GPU answered (is the driver installed?)"),
]
OTHERS = [ValueError("label 7 of 5 classes"), RuntimeError("no convergence"), InputError("use --device cuda")]


@pytest.mark.parametrize(
    ("error", "remedy"),
    [*((e, FULL_GPU) for e in FULL), *((e, GPU_FAILED) for e in BROKEN), *((e, None) for e in OTHERS)],
    ids=str,
)
def test_a_gpu_that_fails_is_no_learners_failure(error: Exception, remedy: str | None) -> None:
    assert remedy_of(error) == remedy


def test_a_full_gpu_is_told_as_such() -> None:
    for error in FULL:
        line = explained(error)
        assert line is not None
        assert "the memory of the GPU is full" in line
        assert "--device cpu" in line
    assert "fewer --workers" in str(explained(MemoryError("Unable to allocate 8 TiB")))


def test_threads_give_results_in_order_and_stop_at_the_first_error() -> None:
    begun = []

    def slow_first(k: int) -> int:
        begun.append(k)
        time.sleep(0.05 if k == 0 else 0.0)
        if k == 5:
            raise InputError("the sixth")
        return k

    for workers in (1, 3):
        begun.clear()
        results = []
        with pytest.raises(InputError, match="the sixth"):
            results.extend(in_threads(slow_first, ((k,) for k in range(100)), workers=workers))
        assert results == [0, 1, 2, 3, 4]
        assert max(begun) < 20, "what was not begun is not begun after an error"
    assert list(in_threads(lambda k: k * k, ((k,) for k in range(50)), workers=4)) == [k * k for k in range(50)]


def test_a_process_does_tasks_of_one_kind_and_waits_for_more_of_it() -> None:
    kinds = {"a": [(0,), (0,)], "b": [(1,)], "c": [(1,), (1,)]}
    with Workers({"cpu": 2}, threads=1) as workers:
        processes = {
            kind: {here for _, here in workers.each(where, {"cpu": part}, kind_of=lambda one: one[0])}
            for kind, part in kinds.items()
        }
        assert processes["b"] < processes["c"]
        assert not processes["a"] & processes["c"]
        for ended in processes["a"]:
            with pytest.raises(ProcessLookupError):
                os.kill(ended, 0)
    for ended in processes["c"]:
        with pytest.raises(ProcessLookupError):
            os.kill(ended, 0)


def at_home() -> Iterator[set[int]]:
    """Yield the processes that do work here, and this one."""
    with Workers({"cpu": 2}, threads=1) as workers:
        yield {here for _, here in workers.each(where, {"cpu": [(1,), (2,)]})} | {os.getpid()}


def test_a_process_that_may_have_no_children_does_the_work_itself() -> None:
    (processes,) = in_own_process(at_home)
    assert len(processes) == 1
    assert os.getpid() not in processes


def where(number: int) -> tuple[int, int]:
    """Return the number and this process's, late enough that each process gets one."""
    time.sleep(0.5)
    return number, os.getpid()


@pytest.mark.parametrize("name", ["joblib", "random", "signal"])
def test_workers_import_nothing_from_the_working_folder(name: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.py").write_text("open('ran', 'w')\n")
    program = (
        "from showerstack.runtime.processes import in_processes\n"
        "print(sorted(in_processes(abs, [(-1,), (2,), (-3,)], workers=2)))\n"
        "import os; print(os.environ.get('PYTHONSAFEPATH'))\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "[1, 2, 3]\nNone\n"), done.stderr
    assert not (tmp_path / "ran").exists()
