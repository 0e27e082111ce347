"""Work in a process of its own: values come as they are made, errors are told, and the process ends with its user."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from showerstack.runtime.errors import InputError
from showerstack.runtime.processes import in_own_process


def numbers(*ends: str) -> Iterator[int]:
    """Yield this process's number twice, then end as told."""
    yield os.getpid()
    print("heard", flush=True)
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


@pytest.mark.parametrize("silenced", [True, False])
def test_it_can_be_silenced(silenced: bool, capfd: pytest.CaptureFixture[str]) -> None:
    assert len(list(in_own_process(numbers, silenced=silenced))) == 2
    assert ("heard" in capfd.readouterr().out) is not silenced
