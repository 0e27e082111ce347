"""Mutants change what makes numbers and nothing else; tests that look notice them."""

from __future__ import annotations

import ast
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

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
    found = {(one.was, one.text) for one in mutants_of("a/b.py", SOURCE)}
    call = "average(2.0 * n, weights=weights)"
    assert found == {
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
    mutants = all_mutants(ROOT, ("models", "scoring"))
    drawn = list(in_turn(mutants, 1))
    assert [name for name, _ in drawn[:4]] == ["models", "scoring"] * 2
    assert drawn == list(in_turn(mutants, 1)) != list(in_turn(mutants, 2))
    assert len({one.key for _, one in drawn}) == len(drawn) == sum(map(len, mutants.values()))
    assert all((ROOT / place).exists() for places in PLACES.values() for place in places)


FILES = {
    "pkg/__init__.py": "",
    "pkg/seen.py": "def half(x):\n    return x / 2\n",
    "tests/test_seen.py": "from pkg.seen import half\n\ndef test_it():\n    assert half(6) == 3\n",
    "pkg/missed.py": "def double(x):\n    return 2 * x\n",
    "tests/test_missed.py": "from pkg.missed import double\n\ndef test_it():\n    assert double(1) == 2\n",
    "pkg/alone.py": "def third(x):\n    return x / 3\n",
}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    project = tmp_path / "project"
    for name, text in FILES.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    return Bench(project, tmp_path / "copy", 60.0)


def test_tests_that_look_notice(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(tests: list[Path]) -> tuple[str, float]:
        names: dict[str, Any] = {}
        for test in tests:
            module = bench.copy / "pkg" / test.name.removeprefix("test_")
            exec(module.read_text() + test.read_text().partition("\n")[2], names)
            try:
                names["test_it"]()
            except AssertionError:
                return "noticed", 0.1
        return "passed", 0.1

    monkeypatch.setattr(bench, "run", run)
    results = []
    for name in ("pkg/seen.py", "pkg/missed.py", "pkg/alone.py"):
        results.append(bench.scorer(mutants_of(name, FILES[name])[0]) | {"part": "pkg", "seed": 1})
        assert (bench.copy / name).read_text() == FILES[name]
    assert [one["outcome"] for one in results] == ["noticed", "survived", "untested"]
    table = report(results, {})
    assert "pkg/missed.py:2" in table
    assert "33.3%" in table
    assert "equal: why" in report(results, {str(results[1]["key"]): "why"})


def test_what_pytest_says_is_understood(bench: Bench) -> None:
    (bench.copy / "pkg/seen.py").write_text("def half(x):\n    return x / 3\n")
    assert bench.run([bench.copy / "tests/test_seen.py"])[0] == "noticed"


@pytest.mark.parametrize("key", json.loads(EQUIVALENT.read_text("utf-8")))
def test_equivalent_mutants_exist(key: str) -> None:
    assert key in {one.key for some in all_mutants(ROOT, PLACES).values() for one in some}
