"""The parts of the project as ``docs/architecture.md`` draws them: names with one meaning, imports in one direction."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import defaultdict
from graphlib import TopologicalSorter
from pathlib import Path

from runtime.packages import OWN

ROOT = Path(__file__).resolve().parents[1]
ORDER = (*OWN, "showerstack")
"""Packages; each may import from those before it."""
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in (*ORDER, "benchmarks")
    for path in sorted((ROOT / package).rglob("*.py"))
}


def _imported(path: Path) -> set[str]:
    """Return the modules of ours that a file imports, anywhere in it."""
    imported = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module, f"{path}: relative import"
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            imported |= {name if name in MODULES else node.module for name in inner}
    return imported & MODULES.keys()


IMPORTS = {module: _imported(path) for module, path in MODULES.items()}


def test_public_classes_have_names_of_their_own() -> None:
    places = defaultdict(list)
    for module, path in MODULES.items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module)
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}


def test_packages_import_only_from_packages_before_them() -> None:
    wrong = []
    for module, imported in IMPORTS.items():
        package = module.split(".")[0]
        allowed = ORDER[: ORDER.index(package) + 1] if package in ORDER else (*ORDER, "benchmarks")
        wrong += [f"{module} imports {name}" for name in imported if name.split(".")[0] not in allowed]
    assert wrong == []


def test_no_two_folders_import_each_other() -> None:
    """Modules beside sub-folders are above all of them or below all."""
    arrows = defaultdict(list)
    for module, imported in IMPORTS.items():
        for name in imported:
            arrows[MODULES[module].parent, MODULES[name].parent].append(f"{module} imports {name}")
    pairs = [arrows[a, b] + arrows[b, a] for a, b in list(arrows) if a < b and (b, a) in arrows]
    assert pairs == []


def test_no_module_imports_itself_by_a_detour() -> None:
    # Raises graphlib.CycleError, which names the circle.
    assert len(list(TopologicalSorter(IMPORTS).static_order())) == len(MODULES)


def test_the_architecture_page_names_every_module_and_nothing_else() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    tree, questions = text.split("## Where is what")[1].split("## Contracts")[0].split("Questions, answered:")
    for path in re.findall(r"`([\w.]+/[\w./]*)`", tree + questions):
        assert (ROOT / path).exists(), path
    named = set()
    for paragraph in tree.split("**`")[1:]:
        folder, _, words = paragraph.partition("`**")
        named.add(folder)
        named |= {folder + file for file in re.findall(r"`(\w+\.py)`", words)}
    ours = [path for name, path in MODULES.items() if not name.startswith(("benchmarks", "report.public.scripts"))]
    files = {path.relative_to(ROOT).as_posix() for path in ours if path.name != "__init__.py"}
    assert {name for name in named if name.endswith(".py") and "__init__" not in name} == files
    assert {f"{path.parent.relative_to(ROOT)}/" for path in ours} - named == set()


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
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("usage: "), done.stderr
