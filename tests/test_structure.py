"""The parts of the project as the architecture page draws them: names with one meaning, imports in one direction."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in (
        "showers",
        "scoring",
        "features",
        "models",
        "stacking",
        "analysis",
        "report",
        "commands",
        "benchmarks",
    )
    for path in sorted((ROOT / package).rglob("*.py"))
}


def test_public_classes_have_names_of_their_own() -> None:
    places = defaultdict(list)
    for module, path in MODULES.items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
