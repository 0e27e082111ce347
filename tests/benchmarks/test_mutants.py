"""Mutants change what makes numbers and nothing else; tests that look notice them."""

from __future__ import annotations

import ast
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.quality import mutants
from benchmarks.quality.chosen import Choice, Record, stamp, statement
from benchmarks.quality.mutants import EQUIVALENT, PLACES, ROOT, Bench, all_mutants, in_turn, report
from benchmarks.quality.mutator import mutants_of

SOURCE = '''"""A module of 3 words."""

import math


def price(n: int, weights: list[float] | None = None) -> float:
    """Return 2 times n."""
    if n > 3:
        raise ValueError(f"more than {3 + 1}")
    return average(2.0 * n, weights=weights) + math.log(n)
'''


def test_what_is_changed_and_what_is_left_alone() -> None:
    result = {(one.was, one.text) for one in mutants_of("a/b.py", SOURCE)}
    call = "average(2.0 * n, weights=weights)"
    assert result == {
        ("n > 3", "(n >= 3)"),
        ("3", "4"),
        (f"{call} + math.log(n)", f"({call} - math.log(n))"),
        (call, "(average(2.0 * n, weights=None))"),
        ("2.0 * n", "(2.0 / n)"),
        ("2.0", "2.5"),
        ("math.log(n)", "math.log10(n)"),
    }
    for one in mutants_of("a/b.py", SOURCE):
        changed = one.of(SOURCE.encode()).decode()
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(SOURCE))


def test_keys_outlive_lines_that_move() -> None:
    moved = SOURCE.replace("import math", "import math\n\nimport sys")
    assert [one.key for one in mutants_of("a/b.py", SOURCE)] == [one.key for one in mutants_of("a/b.py", moved)]


def test_parts_take_turns_and_a_seed_decides() -> None:
    by_part = all_mutants(ROOT, ("models", "scoring"))
    drawn = list(in_turn(by_part, 1))
    assert [name for name, _ in drawn[:4]] == ["models", "scoring"] * 2
    assert drawn == list(in_turn(by_part, 1)) != list(in_turn(by_part, 2))
    assert len({one.key for _, one in drawn}) == len(drawn) == sum(map(len, by_part.values()))
    assert all((ROOT / place).exists() for places in PLACES.values() for place in places)


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


@pytest.fixture
def known(tmp_path: Path) -> Choice:
    for name in ("pkg/a.py", "pkg/b.py", "tests/test_a.py", "tests/test_b.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(FUNCTIONS)
    key, other = stamp(tmp_path, "pkg/a.py"), stamp(tmp_path, "pkg/b.py")
    records = [
        Record("fixture tests/test_a.py fit", 4.0, {key: [16]}),
        Record("tests/test_a.py::test_fit", 0.1, {}, ("fixture tests/test_a.py fit",)),
        Record("tests/test_a.py::test_fit_again", 0.2, {}, ("fixture tests/test_a.py fit",)),
        Record("tests/test_b.py::test_half", 0.5, {key: [12, 16]}),
        Record("tests/test_b.py::test_other", 0.5, {other: [6]}),
        Record("tests/test_b.py::test_dear", 9.0, {key: [16]}),
    ]
    choice = Choice(tmp_path, tmp_path / "tests.jsonl")
    choice.add(["tests/test_a.py", "tests/test_b.py"], records)
    return choice


def test_tests_that_run_the_line_by_price_with_what_they_share(known: Choice) -> None:
    tests = known.of("pkg/a.py", 16, 6.0)
    assert tests.files == ["tests/test_b.py", "tests/test_a.py"]
    assert [name.partition("::")[2] for name in tests.kept] == ["test_half", "test_fit", "test_fit_again"]
    assert tests.seconds == pytest.approx(0.5 + 4.0 + 0.1 + 0.2)
    assert known.of("pkg/a.py", 16, 1.0).kept == ["tests/test_b.py::test_half"], "the fixture costs too much"
    assert known.of("pkg/a.py", 12, 9.0).kept == ["tests/test_b.py::test_half"]


def test_lines_that_nothing_runs_go_to_the_tests_of_their_file_or_folder(known: Choice) -> None:
    assert len(known.of("pkg/a.py", 1, 99.0).kept) == 5
    names = [name.partition("::")[2] for name in known.of("pkg/b.py", 12, 99.0).kept]
    assert names == ["test_half", "test_other", "test_dear"], "those that call kernels only run no line"
    (known.root / "pkg/c.py").write_text("C = 3\n")
    assert len(known.of("pkg/c.py", 1, 99.0).kept) == 5


def test_of_lines_that_nothing_runs_the_files_that_name_the_module_come_first(known: Choice) -> None:
    assert [name.partition("::")[2] for name in known.of("pkg/a.py", 1, 1.0).kept] == ["test_half", "test_other"]
    (known.root / "tests/test_a.py").write_text("from pkg import a\n")
    assert known.of("pkg/a.py", 1, 4.5).kept[:2] == ["tests/test_a.py::test_fit", "tests/test_a.py::test_fit_again"]
    assert known.of("pkg/a.py", 16, 1.0).kept == ["tests/test_b.py::test_half"], "known lines go by price alone"


def test_changed_tests_are_forgotten_and_changed_code_counts_as_a_file(known: Choice) -> None:
    (known.root / "tests/test_a.py").write_text("")
    (known.root / "pkg/b.py").write_text("\n" + FUNCTIONS)
    again = Choice(known.root, known.file)
    assert again.missing(["tests/test_a.py", "tests/test_b.py"]) == ["tests/test_a.py"]
    assert {name.partition("::")[0] for name in again.of("pkg/a.py", 1, 99.0).kept} == {"tests/test_b.py"}
    assert "tests/test_b.py::test_other" in again.of("pkg/b.py", 13, 99.0).kept


FILES = {
    "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["."]\n',
    "pkg/__init__.py": "",
    "pkg/halves.py": "def half(x):\n    return x / 2\n\n\ndef untold(x):\n    return x / 4\n",
    "pkg/doubles.py": "def double(x):\n    return 2 * x\n",
    "pkg/loop.py": "def count(n):\n    while n > 0:\n        n = n - 1\n    return n\n",
    "other/alone.py": "def third(x):\n    return x / 3\n",
    "tests/test_halves.py": """
import pytest
from pkg.halves import half

@pytest.fixture(scope="module")
def three():
    return half(6)

def test_first(three):
    pass

def test_second(three):
    assert three == 3

def test_broken():
    assert half(6) == 4
""",
    "tests/test_doubles.py": "from pkg.doubles import double\n\ndef test_it():\n    assert double(1) == 2\n",
    "tests/test_loop.py": "from pkg.loop import count\n\ndef test_it():\n    assert count(3) == 0\n",
}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("mutants")
    for name, text in FILES.items():
        (folder / "project" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "project" / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=folder / "project", check=True)
    made = Bench(folder / "project", folder / "work", 30.0)
    made.libraries = ()
    made.measure("tests")
    yield made
    made.close()


def test_fixtures_count_for_all_their_tests_and_broken_tests_for_none(bench: Bench) -> None:
    names = ["tests/test_halves.py::test_first", "tests/test_halves.py::test_second"]
    assert sorted(bench.choice.of("pkg/halves.py", 2, 30.0).kept) == names
    assert bench.choice.of("pkg/doubles.py", 2, 30.0).kept == ["tests/test_doubles.py::test_it"]
    assert Choice(bench.copy, bench.choice.file).records == bench.choice.records


def test_tests_that_look_notice(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutants, "MORE_S", 3.0)
    results = []
    for name, number in (("pkg/halves.py", 0), ("pkg/doubles.py", 0), ("other/alone.py", 0), ("pkg/loop.py", 2)):
        results.append(bench.tried(mutants_of(name, FILES[name])[number], 60.0) | {"part": "pkg", "seed": 1})
        assert (bench.copy / name).read_text() == FILES[name]
    assert [one["outcome"] for one in results] == ["noticed", "survived", "untested", "timed out"]
    lines = report(results, {}).splitlines()
    assert lines[1].split()[:7] == ["pkg", "4", "1", "1", "1", "0", "1"]
    assert "33.3%" in lines[1], "those whose time was over do not count"
    assert "pkg/doubles.py:2" in report(results, {})
    assert "equal: why" in report(results, {str(results[1]["key"]): "why"})


def test_no_mutant_outlives_the_whole_time(bench: Bench) -> None:
    endless = next(one for one in mutants_of("pkg/loop.py", FILES["pkg/loop.py"]) if one.text == "(n + 1)")
    began = time.monotonic()
    assert bench.tried(endless, 0.5)["outcome"] == "cut off"
    assert time.monotonic() < began + 10.0


def test_equivalent_mutants_exist() -> None:
    known = {one.key for some in all_mutants(ROOT, PLACES).values() for one in some}
    assert sorted(set(json.loads(EQUIVALENT.read_text("utf-8"))) - known) == []
