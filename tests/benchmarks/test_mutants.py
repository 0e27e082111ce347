"""Mutants change what runs and nothing else; the tests that run a changed line meet it, the cheapest first."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from benchmarks.quality.mutants import Tree, report, statement
from benchmarks.quality.mutator import Mutant, mutants_of

SOURCE = '''"""A module of 3 words."""

import math


def price(n: int, weights: list[float] | None = None) -> float:
    """Return 2 times n."""
    if n > 3:
        raise ValueError(f"more than {3 + 1}")
    if weights:
        n = -n
    return average(2.0 * n, weights=weights) + math.log(n)
'''


def test_what_is_changed_and_what_is_left_alone() -> None:
    mutants = mutants_of("a/b.py", SOURCE)
    call = "average(2.0 * n, weights=weights)"
    assert {(one.was, one.text) for one in mutants} == {
        ("n > 3", "(n >= 3)"),
        ("3", "4"),
        ("weights", "(not weights)"),
        ("-n", "n"),
        (f"{call} + math.log(n)", f"({call} - math.log(n))"),
        (call, "(average(2.0 * n, weights=None))"),
        ("2.0 * n", "(2.0 / n)"),
        ("2.0", "2.5"),
        ("math.log(n)", "math.log10(n)"),
    }
    for one in mutants:
        assert ast.dump(ast.parse(one.of(SOURCE.encode()))) != ast.dump(ast.parse(SOURCE))
    moved = SOURCE.replace("import math", "import math\n\nimport sys")
    assert [one.key for one in mutants] == [one.key for one in mutants_of("a/b.py", moved)], "keys outlive moved lines"


FUNCTIONS = """LIMIT = 3


def double(x):
    return (
        x
        * 2
    )


def half(x):
    if x > LIMIT and (
        x < 9
    ):
        x = x - 1
    return x / 2
"""


@pytest.mark.parametrize(
    ("line", "lines", "inside"),
    [(1, {1}, False), (4, {4}, False), (6, {5, 6, 7, 8}, True), (13, {12, 13, 14}, True), (15, {15}, True)],
)
def test_a_line_belongs_to_its_statement(line: int, lines: set[int], inside: bool) -> None:
    assert statement(FUNCTIONS, line) == (lines, inside)


def _record(name: str, seconds: float, lines: list[int], *shared: str, slow: bool = False) -> dict[str, object]:
    where = {"pkg/a.py": lines} if lines else {}
    return {"name": name, "seconds": seconds, "slow": slow, "shared": list(shared), "lines": where}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    known = object.__new__(Tree)
    known.root, known.work, known.commit = tmp_path, tmp_path, "x"
    for name, text in (("pkg/a.py", FUNCTIONS), ("tests/test_a.py", "from pkg import a"), ("tests/pkg/test_b.py", "")):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    records = [
        _record("fixture tests/test_a.py fit", 4.0, [16]),
        _record("tests/test_a.py::test_fit", 0.1, [], "fixture tests/test_a.py fit"),
        _record("tests/test_a.py::test_fit_again", 0.2, [], "fixture tests/test_a.py fit"),
        _record("tests/pkg/test_b.py::test_half", 0.5, [12, 16]),
        _record("tests/pkg/test_b.py::test_dear", 9.0, [16], slow=True),
    ]
    known.records = {str(one["name"]): one for one in records}
    return known


def _names(found: tuple[list[str], float]) -> list[str]:
    return [name.partition("::")[2] for name in found[0]]


def test_tests_that_run_the_line_by_price_with_what_they_share(tree: Tree) -> None:
    mutant = next(one for one in mutants_of("pkg/a.py", FUNCTIONS) if one.line == 16)
    tests, seconds = tree.tests_of(mutant, 16, 6.0, False)
    assert _names((tests, seconds)) == ["test_half", "test_fit", "test_fit_again"]
    assert seconds == pytest.approx(0.5 + 4.0 + 0.1 + 0.2), "the shared fixture counts once"
    assert _names(tree.tests_of(mutant, 16, 1.0, False)) == ["test_half"], "the fixture costs too much"
    assert _names(tree.tests_of(mutant, 16, 20.0, True)) == ["test_dear"]
    first = tree.tests_of(mutant, 1, 1e9, None)
    assert _names(first) == ["test_fit", "test_fit_again", "test_half", "test_dear"], "its own file, then its package"


@pytest.mark.slow
def test_a_test_that_looks_notices_and_what_runs_is_measured(tmp_path: Path) -> None:
    files = {
        "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["."]\nmarkers = ["slow", "faults"]\n',
        "pkg/a.py": "def half(x):\n    return x / 2\n",
        "tests/test_a.py": "from pkg.a import half\n\n\ndef test_it():\n    assert half(6) == 3\n\n\n"
        "def test_broken():\n    assert half(6) == 4\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    pytest.importorskip("coverage")
    tree, out = object.__new__(Tree), tmp_path / "lines.jsonl"
    tree.root, tree.work, tree.commit = tmp_path, tmp_path, "x"
    tree._start(["tests/test_a.py"], None, out).wait(timeout=60)
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [one["name"] for one in records] == ["tests/test_a.py::test_it"], "what fails unchanged is left out"
    assert not list(tmp_path.rglob("*.pyc")), "a change of the same length in the same second would not be compiled"
    tree.records = {records[0]["name"]: records[0]}
    noticed = {one.text: tree.notices(one, 10.0, None)["noticed"] for one in mutants_of("pkg/a.py", files["pkg/a.py"])}
    assert noticed == {"(x * 2)": True, "3": True}
    assert (tmp_path / "pkg/a.py").read_text() == files["pkg/a.py"]


def test_the_table_counts_what_both_suites_notice() -> None:
    plain = {"path": "a.py", "line": 1, "was": "1", "text": "2"}
    results = [
        plain | {"kind": "numbers", "fast": True, "all": True, "before": True},
        plain | {"kind": "numbers", "fast": False, "all": True, "before": True},
        plain | {"kind": "plumbing", "fast": False, "all": False, "before": None},
    ]
    lines = report(results).splitlines()
    assert lines[2].startswith("| numbers | 1 of 2, 50 %")
    assert lines[4].split(" | ")[2].startswith("2 of 3")
    assert lines[4].split(" | ")[3:] == ["1", "1 |"], "one only by the other commit's tests, one by neither"
    assert [line.rstrip() for line in lines[-2:]] == ["    a.py:1  1 -> 2 *+", "    a.py:1  1 -> 2"]
    assert Mutant("a.py", 1, 0, 1, "2", "1", "x").of(b"1\n") == b"2\n"
