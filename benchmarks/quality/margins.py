"""How far the assertions of tests are from failing, in standard deviations over seeds: a table, the thinnest first.

The tests run once for each number from 1 to ``--seeds``, each time in a process of its own and with fixtures made anew.
``np.random.default_rng`` and ``np.random.SeedSequence`` add the number to the seed that they are given there, and
``torch.manual_seed`` does. An assertion that compares numbers or arrays (``<``, ``>``, ``pytest.approx``,
``assert_allclose``; within ``all`` and ``and`` too) notes its distance from the limit and lets the test go on. The
margin is the mean of this distance over its standard deviation. Under five, another seed, processor or version of a
library may make the test fail. Assertions of another kind are listed with the number of seeds for which they fail.
Tests that compare with kept numbers (fixture ``reference``) depend on their seed by intent and do not run.

    python -m benchmarks.quality.margins tests/analysis/test_sky.py --seeds 50
"""

from __future__ import annotations

import argparse
import ast
import builtins
import importlib.abc
import importlib.util
import linecache
import multiprocessing
import operator
import os
import sys
from collections import defaultdict
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
NOTES = "_margins"
"""Name of :class:`Notes` in tests."""
SYMBOLS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "=="}
_OPERATIONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq}
ENOUGH = 5.0
"""Standard deviations that a test should have."""


class Notes:
    """The smallest distance of each assertion from its limit in one run; also the plug-in that knows which test runs.

    Keys are a test's name, which of several limits, and the file and line of the assertion.
    """

    def __init__(self) -> None:
        self.test = ""
        self.distances: dict[str, float] = {}
        self.broken: dict[str, str] = {}
        self.noted = False

    def add(self, where: str, *distances: object) -> None:
        """Note distances from each limit of an assertion; one that is not a number is infinitely far beyond it."""
        for number, distance in enumerate(distances):
            values = np.nan_to_num(np.asarray(distance, dtype=float), nan=-np.inf, posinf=np.inf, neginf=-np.inf)
            if values.size:
                self.noted = True
                key = f"{self.test} {number} {where}"
                self.distances[key] = min(self.distances.get(key, np.inf), float(values.min()))

    def compare(self, where: str, symbols: Sequence[str], *values: Any) -> Any:
        """Note the distances of a chain of comparisons and return what it says."""
        said: Any = True
        for place, (left, symbol, right) in enumerate(zip(values, symbols, values[1:], strict=False)):
            said = _OPERATIONS[symbol](left, right)
            try:
                if symbol != "==":
                    gap = np.asarray(right, dtype=float) - np.asarray(left, dtype=float)
                    self.add(f"{place} {where}", gap if symbol[0] == "<" else -gap)
                elif hasattr(right, "tolerance"):
                    self.add(where, *_sides((left - right.expected) / right.tolerance))
                elif hasattr(right, "_yield_comparisons"):
                    for one, expected in right._yield_comparisons(left):
                        self.add(where, *_sides((one - expected) / right._approx_scalar(expected).tolerance))
            except (TypeError, ValueError):
                pass
            if not np.all(said):
                break
        return said

    def within(self, where: str, value: Any, limit: Any) -> Any:
        """Note the distances of a value from both limits and return whether it lies between them."""
        self.add(where, *_sides(np.asarray(value, dtype=float) / limit))
        return np.abs(value) < limit

    def held(self, where: str, said: object) -> None:
        """End the test where an assertion fails of which no distance is known."""
        noted, self.noted = self.noted, False
        if not said and not noted:
            raise AssertionError(where)

    def close(self, actual: Any, desired: Any, rtol: float = 1e-7, atol: float = 0.0, **_: object) -> None:
        """Take the place of ``np.testing.assert_allclose``."""
        caller = sys._getframe(1)
        actual, desired = np.broadcast_arrays(np.asarray(actual, dtype=float), np.asarray(desired, dtype=float))
        known = np.isfinite(actual) & np.isfinite(desired)
        np.testing.assert_array_equal(actual[~known], desired[~known])
        tolerance = np.maximum(atol + rtol * np.abs(desired[known]), 1e-300)
        sides = _sides((actual[known] - desired[known]) / tolerance)
        self.add(f"{caller.f_code.co_filename}:{caller.f_lineno}", *sides)
        self.noted = False

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out tests that compare with kept numbers."""
        items[:] = [item for item in items if "reference" not in getattr(item, "fixturenames", ())]

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Remember which test runs."""
        self.test = item.nodeid

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember that a test did not come to its end."""
        if report.failed:
            self.broken[report.nodeid] = str(report.longrepr).strip().splitlines()[-1]


class Instrumented(SourceFileLoader):
    """Loads a module of the tests with its assertions replaced."""

    def get_code(self, fullname: str) -> CodeType:
        """Compile the source anew."""
        tree = Assertions(self.path).visit(ast.parse(self.get_data(self.path)))
        return compile(ast.fix_missing_locations(tree), self.path, "exec")


class Finder(importlib.abc.MetaPathFinder):
    """Finds the modules under ``tests/``."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return a module with instrumented assertions, None for all others."""
        file = ROOT / f"{fullname.replace('.', '/')}.py"
        if not fullname.startswith("tests.") or not file.is_file():
            return None
        return importlib.util.spec_from_file_location(fullname, file, loader=Instrumented(fullname, str(file)))


class Assertions(ast.NodeTransformer):
    """Lets comparisons note their distances, and assertions with a distance pass."""

    def __init__(self, path: str) -> None:
        self.path = path

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        """Replace ``assert TEST`` by a call."""
        where = f"{self.path}:{node.lineno}"
        call = _call("held", ast.Constant(where), self._noting(node.test, where))
        return ast.copy_location(ast.Expr(call), node)

    def _noting(self, test: ast.expr, where: str) -> ast.expr:
        """Return an expression whose comparisons note their distances, wherever all of them must hold."""
        match test:
            case ast.Compare(ast.Call(ast.Name("abs") | ast.Attribute(attr="abs"), [value]), [ast.Lt()], [limit]):
                return _call("within", ast.Constant(where), value, limit)
            case ast.Compare(left, ops, comparators) if all(type(op) in SYMBOLS for op in ops):
                symbols = ast.Tuple([ast.Constant(SYMBOLS[type(op)]) for op in ops], ast.Load())
                return _call("compare", ast.Constant(where), symbols, left, *comparators)
            case ast.BoolOp(ast.And(), values):
                return ast.BoolOp(test.op, [self._noting(value, where) for value in values])
            case ast.BinOp(left, ast.BitAnd(), right):
                return ast.BinOp(self._noting(left, where), test.op, self._noting(right, where))
            case ast.Call(ast.Attribute(value, "all"), args, keywords):
                return ast.Call(ast.Attribute(self._noting(value, where), "all", ast.Load()), args, keywords)
            case ast.Call(ast.Name("all"), [ast.GeneratorExp(element, generators)]):
                return ast.Call(test.func, [ast.GeneratorExp(self._noting(element, where), generators)], [])
        return test


def _call(method: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Attribute(ast.Name(NOTES, ast.Load()), method, ast.Load()), list(arguments), [])


def _sides(share: Any) -> tuple[Any, Any]:
    """Return the distances from both limits of what may lie between -1 and 1."""
    return 1 - share, 1 + share


def shift_seeds(number: int) -> None:
    """Let NumPy and torch add a number to each seed from now on, in this process and those that it forks."""
    plain, generator, manual_seed = np.random.SeedSequence, np.random.default_rng, torch.manual_seed

    class Shifted(plain):  # type: ignore[misc, valid-type]
        def __init__(self, entropy: Any = None, **options: Any) -> None:
            flat = [] if entropy is None else np.atleast_1d(np.asarray(entropy, dtype=object)).tolist()
            super().__init__([*flat, number] if flat else None, **options)

    def shifted(seed: Any = None) -> np.random.Generator:
        known = isinstance(seed, plain | np.random.BitGenerator | np.random.Generator)
        return generator(seed if seed is None or known else Shifted(seed))

    np.random.SeedSequence, np.random.default_rng = Shifted, shifted  # type: ignore[misc, assignment]
    torch.manual_seed = lambda seed: manual_seed(seed + number)  # type: ignore[assignment]


def run_once(tests: list[str], number: int, answer: Connection) -> None:
    """Run the tests with one number added to their seeds and send the notes."""
    notes = Notes()
    setattr(builtins, NOTES, notes)
    np.testing.assert_allclose = notes.close
    shift_seeds(number)
    sys.meta_path.insert(0, Finder())
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    pytest.main(["--assert=plain", "-p", "no:cacheprovider", "--tb=line", *tests], plugins=[notes])
    answer.send((notes.distances, notes.broken))


def margins(tests: list[str], seeds: int) -> tuple[dict[str, list[float]], dict[str, list[str]]]:
    """Return each assertion's distances and each broken test's last lines, one a seed."""
    distances: dict[str, list[float]] = defaultdict(list)
    broken: dict[str, list[str]] = defaultdict(list)
    fork = multiprocessing.get_context("fork")
    for number in range(1, seeds + 1):
        here, there = fork.Pipe(duplex=False)
        process = fork.Process(target=run_once, args=(tests, number, there))
        process.start()
        there.close()
        for all_of_them, some in zip((distances, broken), here.recv(), strict=True):
            for key, value in some.items():
                all_of_them[key].append(value)  # type: ignore[attr-defined]
        process.join()
    return distances, broken


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="+", help="what pytest is to run")
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--below", type=float, default=ENOUGH, help="margin from which an assertion is not listed")
    options = parser.parse_args()
    distances, broken = margins(options.tests, options.seeds)
    rows = []
    for key, values in distances.items():
        spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
        if spread > 0 or min(values) < 0:
            rows.append((float(np.mean(values)) / spread if spread else -np.inf, sum(v < 0 for v in values), key))
    listed = sorted(row for row in rows if row[0] < options.below or np.isnan(row[0]))
    print(f"{len(rows)} assertions depend on a seed; {len(listed)} are within {options.below:g} standard deviations")
    for margin, failed, key in listed:
        file, line = key.rsplit(" ", 1)[1].rsplit(":", 1)
        text = linecache.getline(file, int(line)).strip()
        print(f"{margin:7.1f}  {failed:3d} of {len(distances[key])}  {key.split(' ')[0]}:{line}  {text}")
    for test, lines in sorted(broken.items()):
        print(f"         {len(lines):3d} of {options.seeds}  {test}  {max(set(lines), key=lines.count)}")


if __name__ == "__main__":
    main()
