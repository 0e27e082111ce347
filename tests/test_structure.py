"""The parts of the project as ``docs/architecture.md`` draws them: names with one meaning, imports in one direction."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ORDER = ("showers", "features", "models", "stacking", "analysis", "report", "commands")
"""Packages; each may import from those before it, and from ``scoring``."""
SCORING_MAY_IMPORT = ("showers.schema", "showers.storage", "showers.execution")
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in (*ORDER, "scoring", "benchmarks")
    for path in sorted((ROOT / package).rglob("*.py"))
}


def _imported(path: Path) -> set[str]:
    """Return the modules of ours that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module, f"{path}: relative import"
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in inner}
    return found & MODULES.keys()


IMPORTS = {module: _imported(path) for module, path in MODULES.items()}


def test_public_classes_have_names_of_their_own() -> None:
    places = defaultdict(list)
    for module, path in MODULES.items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_packages_import_only_from_packages_before_them() -> None:
    wrong = []
    for module, imported in IMPORTS.items():
        package = module.split(".")[0]
        if package == "benchmarks":
            continue
        allowed = (
            (*ORDER[: ORDER.index(package) + 1], "scoring") if package in ORDER else ("scoring", *SCORING_MAY_IMPORT)
        )
        wrong += [
            f"{module} imports {name}"
            for name in imported
            if not any(name == start or name.startswith(f"{start}.") for start in allowed)
        ]
    assert wrong == []


def test_no_module_imports_itself_by_a_detour() -> None:
    # Raises graphlib.CycleError, which names the circle.
    assert len(list(TopologicalSorter(IMPORTS).static_order())) == len(MODULES)


def test_the_architecture_page_names_every_folder_and_nothing_else() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    tree = text.split("## Where is what")[1].split("## Contracts")[0]
    named = set(re.findall(r"`([\w.]+/[\w./]*)`", tree))
    assert len(named) > 60
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []
    folders = {f"{path.parent.relative_to(ROOT)}/" for path in MODULES.values()}
    assert folders - named == set()


def test_files_stay_small() -> None:
    long = {module: len(path.read_text(encoding="utf-8").splitlines()) for module, path in MODULES.items()}
    assert {module: n for module, n in long.items() if n > 330} == {}


def test_folders_stay_small() -> None:
    folders = Counter(
        path.parent.relative_to(ROOT).as_posix()
        for start in (*ORDER, "scoring", "showerstack", "benchmarks", "tests", "docs")
        for path in (ROOT / start).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.name != "__init__.py"
    )
    assert {folder: n for folder, n in folders.items() if n > 12} == {}


def test_benchmarks_are_started_as_scripts() -> None:
    # A script's own folder comes first in the path: helpers are imported by their full names from the checkout's root.
    scripts = [path for name, path in MODULES.items() if name.startswith("benchmarks.")]
    bare = {path.stem for path in scripts}
    for path in scripts:
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        names = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
        assert not names & bare, path
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(ROOT / "benchmarks" / "physics" / "datacheck.py"), "--help"]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert said.stdout.startswith("usage: "), said.stderr
