"""Mutants change what makes numbers and nothing else; tests that look notice them."""

from __future__ import annotations

import ast
import json
import subprocess
import time
from collections.abc import Iterator

import pytest

from benchmarks.quality import mutants
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


FILES = {
    "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["."]\n',
    "pkg/__init__.py": "",
    "pkg/halves.py": "def half(x):\n    return x / 2\n",
    "pkg/doubles.py": "def double(x):\n    return 2 * x\n",
    "pkg/alone.py": "def third(x):\n    return x / 3\n",
    "pkg/loop.py": "def count(n):\n    while n > 0:\n        n = n - 1\n    return n\n",
    "pkg/through.py": "from pkg.halves import half\n\ndef quarter(x):\n    return half(half(x))\n",
    "tests/test_through.py": """
from pkg.through import quarter

def test_quarter():
    assert quarter(8) == 2
""",
    "tests/test_halves.py": """
import time
from pkg.halves import half

def test_it():
    assert half(6) == 3

def test_broken():
    assert half(6) == 4

def test_dear():
    began = time.process_time()
    while time.process_time() < began + 2.0:
        pass
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
    made = Bench(folder / "project", folder / "copy", 1.0, {})
    made.libraries = ()
    yield made
    made.close()


def test_the_nearest_tests_come_first_and_broken_or_dear_ones_not_at_all(bench: Bench) -> None:
    first, second = bench.chosen("pkg/halves.py")
    assert (first.files, first.kept) == (["tests/test_halves.py"], ["tests/test_halves.py::test_it"])
    assert (second.files, second.kept) == (["tests/test_through.py"], ["tests/test_through.py::test_quarter"])
    assert first.seconds < 1.0
    assert not list(bench.chosen("pkg/alone.py"))


def test_tests_that_look_notice(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutants, "MORE_S", 3.0)
    results = []
    for name, number in (("pkg/halves.py", 0), ("pkg/doubles.py", 0), ("pkg/alone.py", 0), ("pkg/loop.py", 2)):
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
