"""Runs chosen tests in the current folder; on demand writes which lines each test runs, and its processor seconds.

Started by :mod:`benchmarks.quality.mutants` with one JSON: ``files``, ``kept`` (names of tests, or null for all),
``lines`` (file for what is measured, or null). What a fixture of several tests runs is an entry of its own.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coverage
import pytest


class Chosen:
    """Keep the named tests, their files in the given order."""

    def __init__(self, files: list[str], kept: list[str] | None) -> None:
        self.place = {file: k for k, file in enumerate(files)}
        self.kept = None if kept is None else set(kept)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Keep and order."""
        items[:] = sorted(
            (item for item in items if self.kept is None or item.nodeid in self.kept),
            key=lambda item: self.place[item.nodeid.partition("::")[0]],
        )


class Measure:
    """Write processor seconds and lines of each test that passes and of each shared fixture."""

    def __init__(self, out: Path) -> None:
        self.out, self.root = out, Path.cwd()
        self.coverage = coverage.Coverage(
            data_file=None, config_file=False, source_dirs=[str(self.root)],
            omit=[str(self.root / part / "*") for part in ("tests", "benchmarks", ".venv")],
        )  # fmt: skip
        self.coverage.start()
        self.account, self.began = "", sum(os.times()[:4])
        self.seconds, self.fixtures = Counter[str](), dict[str, list[str]]()
        self.slow, self.failed = set[str](), set[str]()

    def _turn_to(self, account: str) -> str:
        now = sum(os.times()[:4])
        self.seconds[self.account] += now - self.began
        before, self.account, self.began = self.account, account, now
        self.coverage.switch_context(account)
        return before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        """Measure a test."""
        self.fixtures[item.nodeid] = list(item.fixturenames)
        if any(item.get_closest_marker(name) for name in ("slow", "faults")):
            self.slow.add(item.nodeid)
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
        """Remember what does not pass."""
        if report.outcome != "passed":
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write one line for every test and shared fixture."""
        self._turn_to("")
        self.coverage.stop()
        data = self.coverage.get_data()
        lines: dict[str, dict[str, list[int]]] = defaultdict(dict)
        for path in data.measured_files():
            for line, accounts in data.contexts_by_lineno(path).items():
                for name in filter(None, accounts):
                    lines[name].setdefault(Path(path).relative_to(self.root).as_posix(), []).append(line)
        shared = [name.split(" ") for name in self.seconds if name.startswith("fixture ")]
        with self.out.open("w", encoding="utf-8") as out:
            for name, seconds in self.seconds.items():
                if not name or name in self.failed:
                    continue
                mine = [
                    " ".join(one) for one in shared if name.startswith(one[1]) and one[2] in self.fixtures.get(name, ())
                ]
                one = {"name": name, "seconds": round(seconds, 3), "slow": name in self.slow, "shared": mine}
                out.write(json.dumps(one | {"lines": lines[name]}) + "\n")


def main() -> int:
    """Run pytest and return its exit status."""
    asked = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    sys.path[0] = str(Path.cwd())
    plugins: list[object] = [Chosen(asked["files"], asked["kept"])]
    plugins += [Measure(Path(asked["lines"]))] if asked["lines"] else []
    options = ["-q", "--tb=no", "-p", "no:cacheprovider", "-m", ""]
    return int(pytest.main([*options, *([] if asked["lines"] else ["-x"]), *asked["files"]], plugins=plugins))


if __name__ == "__main__":
    raise SystemExit(main())
