"""Which tests run a line of code, and what they cost: measured once, kept in a file, one test a line.

What a fixture of several tests runs counts for all of them. Lines that no test runs in its own process (kernels after
their compilation, constants, commands started by a test) go to all tests of the test files that run anything of the
file, else of its folder; first to those of the files that name the module, which are likelier to look at it.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

FIXTURE = "fixture "
"""What names of fixtures begin with."""


@dataclass(frozen=True)
class Record:
    """What one test, or one fixture that tests share, costs and runs."""

    name: str
    """Pytest's name of the test; for fixtures "fixture", where it applies, and its name."""
    seconds: float
    """Of the processor, without those of fixtures that are shared."""
    lines: dict[str, list[int]]
    """By file and its hash (:func:`stamp`)."""
    shared: tuple[str, ...] = ()
    """The shared fixtures that the test needs, by name."""


@dataclass(frozen=True)
class Tests:
    """Tests of one mutant."""

    files: list[str]
    """In the order in which they run."""
    kept: list[str]
    """The tests of these files that run."""
    seconds: float
    """What they take without a mutant, their fixtures included."""


def stamp(root: Path, path: str) -> str:
    """Return a file's path and hash."""
    return f"{path} {hashlib.sha256((root / path).read_bytes()).hexdigest()[:12]}"


def statement(source: str, line: int) -> tuple[set[int], bool]:
    """Return the lines of the statement at a line (of a compound one its head), and whether a function holds it."""
    best: tuple[int, int] | None = None
    inside = False
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.stmt) or not node.lineno <= line <= (node.end_lineno or node.lineno):
            continue
        body = getattr(node, "body", None)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and line >= node.body[0].lineno:
            inside = True
        last = body[0].lineno - 1 if body and line < body[0].lineno else (node.end_lineno or node.lineno)
        last = max(last, node.lineno)
        if best is None or last - node.lineno < best[1] - best[0]:
            best = node.lineno, last
    low, high = best or (line, line)
    return set(range(low, high + 1)), inside


class Choice:
    """Chooses tests by what was measured of them."""

    def __init__(self, root: Path, file: Path) -> None:
        """Read what is known; tests of files that have changed since are forgotten."""
        self.root, self.file = root, file
        self.records: dict[str, Record] = {}
        self.measured: set[str] = set()
        for line in file.read_text("utf-8").splitlines() if file.exists() else []:
            one = json.loads(line)
            self._add(one)

    def _add(self, one: dict) -> None:
        if "measured" not in one:
            self.records[one["name"]] = Record(**one | {"shared": tuple(one["shared"])})
            return
        name = one["measured"].partition(" ")[0]
        if not (self.root / name).is_file() or stamp(self.root, name) != one["measured"]:
            self.records = {key: value for key, value in self.records.items() if key.partition("::")[0] != name}
            return
        self.measured.add(name)

    def missing(self, tests: Iterable[str]) -> list[str]:
        """Return the test files that were not measured as they are now."""
        return [name for name in tests if name not in self.measured]

    def add(self, files: Iterable[str], records: Iterable[Record]) -> None:
        """Keep what was measured of test files, on disk too."""
        # A file's line comes after its tests: what it says decides whether they count.
        lines = [asdict(one) for one in records] + [{"measured": stamp(self.root, name)} for name in files]
        with self.file.open("a", encoding="utf-8") as out:
            out.writelines(json.dumps(one) + "\n" for one in lines)
        for one in lines:
            self._add(one)

    def _running(self, path: str, lines: set[int] | None) -> list[Record]:
        """Return the tests that run one of the lines, or any line of the files whose path begins so."""

        def runs(one: Record) -> bool:
            if lines is None:
                return any(key.startswith(path) for key in one.lines)
            return not lines.isdisjoint(one.lines.get(path, ()))

        running = {name for name, one in self.records.items() if runs(one)}
        return [
            one
            for name, one in self.records.items()
            if not name.startswith(FIXTURE) and (name in running or not running.isdisjoint(one.shared))
        ]

    def of(self, path: str, line: int, limit_s: float) -> Tests:
        """Return the tests of a line that are affordable together, the cheapest first, file by file."""
        lines, inside = statement((self.root / path).read_text("utf-8"), line)
        running = self._running(stamp(self.root, path), lines) if inside else []
        naming: set[str] = set()
        if not running:
            near = self._running(f"{path} ", None) or self._running(f"{path.rpartition('/')[0]}/", None)
            files = {one.name.partition("::")[0] for one in near}
            running = [one for name, one in self.records.items() if name.partition("::")[0] in files]
            naming = {name for name in files if re.search(rf"\b{Path(path).stem}\b", self._text(name))}
        kept: list[Record] = []
        spent, made = 0.0, set[str]()

        def order(one: Record) -> tuple[bool, float]:
            return one.name.partition("::")[0] not in naming, one.seconds + self._seconds(one.shared)

        for one in sorted(running, key=order):
            more = one.seconds + self._seconds(set(one.shared) - made)
            if spent + more <= limit_s:
                spent, made = spent + more, made | set(one.shared)
                kept.append(one)
        by_file: dict[str, float] = {}
        for one in kept:
            file = one.name.partition("::")[0]
            by_file[file] = by_file.get(file, self._seconds(one.shared)) + one.seconds
        return Tests(sorted(by_file, key=lambda name: by_file[name]), [one.name for one in kept], spent)

    def _text(self, name: str) -> str:
        return (self.root / name).read_text("utf-8")

    def _seconds(self, names: Iterable[str]) -> float:
        return sum(self.records[name].seconds for name in names if name in self.records)
