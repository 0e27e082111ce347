"""Runs tests again and again, each time in a fork of one process that has the libraries imported already.

Started by :mod:`benchmarks.quality.mutants`; takes one JSON a line and answers with one. The project itself is imported
in the fork only, from the folder it runs in.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coverage
import numba
import pytest

POLL_S = 0.02
CRASHED = 70


class Watch:
    """A pytest plug-in that chooses tests and orders their files."""

    def __init__(self, files: list[str], kept: list[str] | None) -> None:
        self.place = {file: k for k, file in enumerate(files)}
        self.kept = None if kept is None else set(kept)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Keep what is to run, and put the files in the order in which they were named."""
        items[:] = sorted(
            (item for item in items if self.kept is None or item.nodeid in self.kept),
            key=lambda item: self.place[item.nodeid.partition("::")[0]],
        )


class Measure:
    """A pytest plug-in that writes processor seconds and lines of each test that passes and of shared fixtures."""

    def __init__(self, out: Path) -> None:
        """Begin to trace the project, tests excepted."""
        self.out, self.root = out, Path.cwd()
        self.coverage = coverage.Coverage(
            data_file=None, config_file=False, source=[str(self.root)], omit=[str(self.root / "tests" / "*")]
        )
        self.coverage.start()
        self.account, self.began = "", sum(os.times()[:4])
        self.seconds, self.shared = Counter[str](), dict[str, list[str]]()
        self.failed = set[str]()

    def _turn_to(self, account: str) -> str:
        """Let what follows count for a test or fixture, and return whose turn it was."""
        now = sum(os.times()[:4])
        self.seconds[self.account] += now - self.began
        before, self.account, self.began = self.account, account, now
        self.coverage.switch_context(account)
        return before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        """Measure a test."""
        self.shared[item.nodeid] = list(item.fixturenames)
        before = self._turn_to(item.nodeid)
        try:
            return (yield)
        finally:
            self._turn_to(before)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        """Measure a fixture that is made for several tests apart from the first of them."""
        if fixturedef.scope == "function":
            return (yield)
        before = self._turn_to(f"fixture {fixturedef.baseid} {fixturedef.argname}")
        try:
            return (yield)
        finally:
            self._turn_to(before)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Remember a failure."""
        if report.failed:
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write a record for every test and fixture (:class:`benchmarks.quality.chosen.Record`)."""
        self._turn_to("")
        self.coverage.stop()
        data = self.coverage.get_data()
        lines: dict[str, dict[str, list[int]]] = {name: {} for name in self.seconds}
        for path in data.measured_files():
            file = Path(path)
            key = f"{file.relative_to(self.root).as_posix()} {hashlib.sha256(file.read_bytes()).hexdigest()[:12]}"
            for line, accounts in data.contexts_by_lineno(path).items():
                for name in filter(None, accounts):
                    lines[name].setdefault(key, []).append(line)
        fixtures = [name for name in self.seconds if name.startswith("fixture ")]
        with self.out.open("w", encoding="utf-8") as out:
            for name, seconds in self.seconds.items():
                if not name or name in self.failed:
                    continue
                mine = [
                    one
                    for one in fixtures
                    if name.startswith(one.split(" ")[1]) and one.split(" ")[2] in self.shared.get(name, ())
                ]
                one = {"name": name, "seconds": round(seconds, 3), "lines": lines[name], "shared": mine}
                out.write(json.dumps(one) + "\n")


def run_here(asked: dict[str, Any]) -> int:
    """Run tests in this process, which ends afterwards, and return pytest's exit status."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    seconds = int(asked["cpu_s"]) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    os.environ["NUMBA_CACHE_DIR"] = asked["kernels"]
    numba.config.CACHE_DIR = asked["kernels"]  # type: ignore[attr-defined]
    measured = asked["measured"]
    sys.dont_write_bytecode = not measured
    os.environ["PYTHONDONTWRITEBYTECODE"] = "" if measured else "1"
    plugins: list[object] = [Watch(asked["files"], asked["kept"])]
    plugins += [Measure(Path(measured))] if measured else []
    stop = [] if measured else ["-x"]
    options = [*stop, "-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist"]
    return int(pytest.main([*options, *asked["files"]], plugins=plugins))


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
