"""Imports follow the architecture: physics on predictions stands between the runs and the report."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import analysis

ROOT = Path(analysis.__file__).parents[1]


def _imported(package: str) -> set[str]:
    """Return the first parts of all modules that a package's files import."""
    found: set[str] = set()
    for file in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {name.name.split(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("package", ["showers", "features", "models", "stacking", "scoring"])
def test_nothing_before_it_imports_analysis(package: str) -> None:
    assert "analysis" not in _imported(package)


def test_analysis_imports_nothing_after_it() -> None:
    found = _imported("analysis")
    assert "stacking" in found or "showers" in found
    assert not found & {"report", "commands", "cli", "verify", "tests", "benchmarks"}
