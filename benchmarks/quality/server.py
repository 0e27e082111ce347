"""Runs tests again and again, each time in a fork of one process that has the libraries imported already.

Started by :mod:`benchmarks.quality.mutants`; takes one JSON a line and answers with one. The project itself is imported
in the fork only, from the folder it runs in.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numba
import pytest

POLL_S = 0.02
CRASHED = 70


class Watch:
    """A pytest plug-in: chooses and orders tests, and writes the processor seconds of each that passes."""

    def __init__(self, files: list[str], kept: set[str] | None, times: Path | None) -> None:
        self.place = {file: k for k, file in enumerate(files)}
        self.kept, self.times = kept, times
        self.began, self.passed = 0.0, True

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Keep what is to run, and put the files in the order in which they were named."""
        items[:] = sorted(
            (item for item in items if self.kept is None or item.nodeid in self.kept),
            key=lambda item: self.place[item.nodeid.partition("::")[0]],
        )

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Begin to measure."""
        self.began, self.passed = sum(os.times()[:4]), True

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Remember a failure."""
        self.passed &= not report.failed

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Write what a test that passed has cost, its fixtures included."""
        if self.times is not None and self.passed:
            with self.times.open("a", encoding="utf-8") as file:
                file.write(json.dumps([nodeid, sum(os.times()[:4]) - self.began]) + "\n")


def run_here(asked: dict[str, Any]) -> int:
    """Run tests in this process, which ends afterwards, and return pytest's exit status."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    seconds = int(asked["cpu_s"]) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    os.environ["NUMBA_CACHE_DIR"] = asked["kernels"]
    numba.config.CACHE_DIR = asked["kernels"]  # type: ignore[attr-defined]
    measured = asked.get("times")
    sys.dont_write_bytecode = measured is None
    os.environ["PYTHONDONTWRITEBYTECODE"] = "" if measured else "1"
    kept = asked["kept"]
    watch = Watch(asked["files"], None if kept is None else set(kept), Path(measured) if measured else None)
    stop = [] if measured else ["-x"]
    return int(
        pytest.main(
            [*stop, "-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist", *asked["files"]], plugins=[watch]
        )
    )


def answer(asked: dict[str, Any], parent: int) -> dict[str, Any]:
    """Run tests in a fork, as long as the process that asked lives.

    Returns
    -------
    ``status`` is pytest's, or negative if a signal ended it; ``wall_over`` says that the time by the clock was over.
    """
    began = time.monotonic()
    child = os.fork()
    if not child:
        status = CRASHED
        try:
            os.setsid()
            status = run_here(asked)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    over = False
    while True:
        ended, status, used = os.wait4(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() - began > asked["wall_s"] or os.getppid() != parent:
            over = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
        time.sleep(POLL_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    code = -signal.SIGKILL if over else os.waitstatus_to_exitcode(status)
    return {"status": code, "cpu_s": used.ru_utime + used.ru_stime, "wall_over": over}


def lines() -> Iterator[dict[str, Any]]:
    """Yield what is asked until nobody asks any more."""
    for line in sys.stdin:
        yield json.loads(line)


def main() -> None:
    """Import the libraries that are named, those that are installed, and answer."""
    parent = os.getppid()
    for name in sys.argv[1:]:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for asked in lines():
        fresh = Path(asked["kernels"])
        if asked["from"] != asked["kernels"]:
            shutil.rmtree(fresh, ignore_errors=True)
            shutil.copytree(asked["from"], fresh, copy_function=os.link)
        sys.stdout.write(json.dumps(answer(asked, parent)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
