"""Which share of small changes of the code do its tests notice, beside the tests of another commit: a table.

A *mutant* is the code with one place changed: another operator, a constant a quarter or one larger, ln for log10, the
largest for the smallest, weights dropped, a condition turned round. Half of them are drawn where numbers are made, half
in what carries them (files, runs, commands, pages). Only lines that both commits have are changed. The tests that run
the changed line run until one fails, the cheapest first: those of ``make test``; where none of these does, the others,
and all of the other commit, up to ``--limit`` processor seconds each. Which tests run a line, and what they cost, is
measured once (coverage.py; tests that fail unchanged are left out) and kept in ``--work``. Lines that no test runs in
its own process (kernels, constants) meet the tests of files that run anything of the module or name it: first those
called like it or its folder, then those of its package. A mutant whose time is over counts as noticed. Started again
with the same ``--work``, the run goes on.

    pip install --constraint constraints.txt coverage
    python -m benchmarks.quality.mutants --work ../mutants --against 02fe851d
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.quality.mutator import Mutant, mutants_of
from showerstack.scoring.metrics.intervals import clopper_pearson

ROOT = Path(__file__).resolve().parents[2]
RUNNER = Path(__file__).with_name("runner.py")
PACKAGES = ("runtime", "showers", "scoring", "features", "models", "stacking", "analysis", "report", "commands")
NUMBERS = (
    "scoring/", "features/groups/", "features/lateral/", "features/stations/", "models/base/", "models/networks/",
    "models/tables/", "models/pretraining/", "stacking/answers.py", "stacking/estimates.py", "stacking/folds.py",
    "stacking/second_level.py", "showers/simulation/", "analysis/spectra/", "analysis/photons/",
)  # fmt: skip
"""Where numbers are made; whatever else is in the packages carries them."""
MEASURED_S = 5400
"""Seconds by the clock that the tests of a commit may take while they are traced."""
FEW_S = 5.0
"""What the cheapest tests of ``make test`` cost, which run first: most mutants end there, also one that never ends."""
OVER_S = 40.0
"""Seconds by the clock beyond four times what tests take unchanged: the imports, and compiled kernels."""


def statement(source: str, line: int) -> tuple[set[int], bool]:
    """Return the lines of the statement at a line (of a compound one its head), and whether a function holds it."""
    best, inside = (0, sys.maxsize), False
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.stmt) or not node.lineno <= line <= (node.end_lineno or node.lineno):
            continue
        body = getattr(node, "body", None)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and line >= node.body[0].lineno:
            inside = True
        last = body[0].lineno - 1 if body and line < body[0].lineno else (node.end_lineno or node.lineno)
        if last - node.lineno < best[1] - best[0]:
            best = node.lineno, max(last, node.lineno)
    return set(range(best[0], best[1] + 1)), inside


class Tree:
    """A clone of one commit, and which of its tests run which lines."""

    def __init__(self, work: Path, commit: str) -> None:
        """Clone the commit into ``work`` unless it is there, and measure its tests in two processes."""
        self.root, self.work, self.commit = work / f"tree-{commit}", work, commit
        if not self.root.exists():
            subprocess.run(["git", "clone", "-q", str(ROOT), str(self.root)], check=True)
        # Of a run that was killed a mutant may be left.
        subprocess.run(["git", "checkout", "-q", "--force", commit], cwd=self.root, check=True)
        files = sorted(path.relative_to(self.root).as_posix() for path in self.root.glob("tests/**/test_*.py"))
        parts = [(files[k::2], work / f"lines-{commit}-{k}.jsonl") for k in range(2)]
        begun = [self._start(part, None, out) for part, out in parts if not out.exists()]
        for process in begun:
            process.wait(timeout=MEASURED_S)
        lines = [line for _, out in parts for line in out.read_text("utf-8").splitlines()]
        self.records = {one["name"]: one for one in map(json.loads, lines)}

    def _start(self, files: list[str], kept: list[str] | None, lines: Path | None) -> subprocess.Popen[bytes]:
        job = self.work / f"job-{self.commit}-{os.getpid()}-{lines.stem if lines else 'try'}.json"
        job.write_text(json.dumps({"files": files, "kept": kept, "lines": lines and str(lines)}), "utf-8")
        settings = {"PYTHONPATH": str(self.root), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
        settings |= {"NUMBA_CACHE_DIR": str(self.work / "kernels"), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.Popen(
            [sys.executable, str(RUNNER), str(job)], cwd=self.root, env={**os.environ, **settings},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def tests_of(self, mutant: Mutant, line: int, limit_s: float, slow: bool | None) -> tuple[list[str], float]:
        """Return the tests of a line that are affordable together, the cheapest first, and what they cost.

        ``slow`` chooses those of ``make test`` (no), the others (yes) or all (None).
        """
        lines, inside = statement((self.root / mutant.path).read_text("utf-8"), line)
        running = {
            name for name, one in self.records.items()
            if inside and not lines.isdisjoint(one["lines"].get(mutant.path, ()))
        }  # fmt: skip
        running |= {name for name, one in self.records.items() if not running.isdisjoint(one["shared"])}
        package, *parts = Path(mutant.path).with_suffix("").parts
        is_traced, named = bool(running), {f"test_{part}.py" for part in parts}
        if not is_traced:
            files = {_file(name) for name in self.records if not name.startswith("fixture ")}
            touching = {_file(name) for name, one in self.records.items() if mutant.path in one["lines"]}
            naming = re.compile(rf"\b{parts[-1]}\b")
            touching |= {file for file in files if naming.search((self.root / file).read_text("utf-8"))}
            touching |= {file for file in files if Path(file).name in named}
            running = {name for name in self.records if _file(name) in touching}
        kept, spent, made = [], 0.0, set[str]()
        wanted = [one for name, one in self.records.items() if name in running and not name.startswith("fixture ")]

        def place(one: dict[str, Any]) -> tuple[bool, bool, float]:
            folder, _, name = _file(one["name"]).rpartition("/")
            near = name in named, folder == f"tests/{package}"
            return not (is_traced or near[0]), not (is_traced or near[1]), self._price(one, ())

        for one in sorted(wanted, key=place):
            price = self._price(one, made)
            if slow in (None, one["slow"]) and spent + price <= limit_s:
                kept.append(one["name"])
                spent, made = spent + price, made.union(one["shared"])
        return kept, spent

    def _price(self, one: dict[str, Any], made: Iterable[str]) -> float:
        others = set(one["shared"]).difference(made)
        return one["seconds"] + sum(self.records[name]["seconds"] for name in others if name in self.records)

    def notices(self, mutant: Mutant, limit_s: float, slow: bool | None) -> dict[str, Any]:
        """Return whether a test fails with the mutant (None: no test runs the line), and how many there are."""
        file = self.root / mutant.path
        source = file.read_bytes()
        here = next(one for one in mutants_of(mutant.path, source.decode()) if one.key == mutant.key)
        few = self.tests_of(here, here.line, FEW_S, slow)[0] if slow is False else []
        tests, seconds = self.tests_of(here, here.line, limit_s, slow)
        if not tests:
            return {"noticed": None, "tests": 0}
        file.write_bytes(here.of(source))
        try:
            fails = bool(few) and self._fails(few, FEW_S)
            others = [one for one in tests if one not in set(few)]
            fails = fails or (bool(others) and self._fails(others, seconds))
        finally:
            file.write_bytes(source)
        return {"noticed": fails, "tests": len(tests)}

    def _fails(self, tests: list[str], seconds: float) -> bool:
        """Return whether one of the tests fails, or they do not end."""
        process = self._start(list(dict.fromkeys(map(_file, tests))), tests, None)
        try:
            return process.wait(timeout=4 * seconds + OVER_S) != 0
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return True


def _file(name: str) -> str:
    return name.removeprefix("fixture ").partition(" ")[0].partition("::")[0]


def drawn(first: Path, second: Path, seed: int, number: int) -> list[tuple[str, Mutant]]:
    """Return mutants of lines that both trees have, half of them where numbers are made, in turn."""
    both: dict[str, list[Mutant]] = {"numbers": [], "plumbing": []}
    for package in PACKAGES:
        for file in sorted((first / package).rglob("*.py")):
            path = file.relative_to(first).as_posix()
            if (second / path).is_file():
                keys = {one.key for one in mutants_of(path, (second / path).read_text("utf-8"))}
                kind = "numbers" if path.startswith(NUMBERS) else "plumbing"
                both[kind] += [one for one in mutants_of(path, file.read_text("utf-8")) if one.key in keys]
    halves = [random.Random(f"{seed} {kind}").sample(some, number // 2) for kind, some in both.items()]
    return [(kind, one) for pair in zip(*halves, strict=True) for kind, one in zip(both, pair, strict=True)]


def report(results: list[dict[str, Any]]) -> str:
    """Return the table, and the mutants that are not noticed by ``make test``."""

    def share(some: list[dict[str, Any]], key: str) -> str:
        told = sum(bool(one[key]) for one in some)
        share, interval = told / len(some), clopper_pearson(told, len(some))
        return f"{told} of {len(some)}, {100 * share:.0f} % [{100 * interval.low:.0f}, {100 * interval.high:.0f}]"

    heads = ("", "`make test`", "`make test-all`", "not by `make test`, but by the other commit's", "by neither")
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for kind in ("numbers", "plumbing", "all"):
        mine = [one for one in results if kind in (one["kind"], "all")]
        missed = [one for one in mine if not one["fast"]]
        lost = sum(bool(one["before"]) for one in missed)
        cells = [*(share(mine, key) for key in ("fast", "all")), f"{lost}", f"{len(missed) - lost}"]
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    lines += ["", "Not noticed by `make test` (* by the others, + by the other commit's):", ""]
    for one in results:
        if not one["fast"]:
            change = " ".join(f"{one['was']} -> {one['text']}".split())
            marks = "*" * bool(one["all"]) + "+" * bool(one["before"])
            lines.append(f"    {one['path']}:{one['line']}  {change} {marks}".rstrip())
    return "\n".join(lines)


def main() -> None:
    """Draw, try and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", required=True, help="the commit whose tests stand beside")
    parser.add_argument("--mutants", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=15.0, help="processor seconds of one mutant's tests, unchanged")
    parser.add_argument("--work", type=Path, required=True, help="folder outside the repository")
    given = parser.parse_args()
    work = given.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    here = subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    now, before = Tree(work, here.stdout.strip()), Tree(work, given.against)
    out = work / f"results-{now.commit}-{given.against}-{given.seed}.jsonl"
    results = [json.loads(line) for line in out.read_text("utf-8").splitlines()] if out.exists() else []
    known = {one["key"] for one in results}
    for kind, mutant in drawn(now.root, before.root, given.seed, given.mutants):
        if mutant.key in known:
            continue
        fast = now.notices(mutant, given.limit, slow=False)
        rest = fast if fast["noticed"] else now.notices(mutant, given.limit, slow=True)
        other = before.notices(mutant, given.limit, slow=None) if not fast["noticed"] else {"noticed": None, "tests": 0}
        one = {"kind": kind, "key": mutant.key, **asdict(mutant)}
        one |= {"fast": fast["noticed"], "all": fast["noticed"] or rest["noticed"], "before": other["noticed"]}
        results.append(one | {"tests": [fast["tests"], rest["tests"], other["tests"]]})
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(results[-1]) + "\n")
        said = " ".join(str(one[name]) for name in ("fast", "all", "before"))
        print(f"{len(results):>4} {said}  {mutant.path}:{mutant.line}", file=sys.stderr, flush=True)
    shutil.rmtree(work / "kernels", ignore_errors=True)
    print(report(results))


if __name__ == "__main__":
    main()
