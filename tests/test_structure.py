"""The parts of the project as ``docs/architecture.md`` draws them: names with one meaning, imports in one direction.

Links in the documentation lead to what exists, and every page can be reached from the README. Numbers of docs/data.md
are those of the code and of files on disk.
"""

from __future__ import annotations

import ast
import doctest
import importlib
import re
from collections import defaultdict
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import numpy as np
import pytest

from showerstack.features.build import build_table
from showerstack.runtime.context import Context
from showerstack.runtime.packages import OWN
from showerstack.scoring.tasks.truth import TEST_CLASSES

ROOT = Path(__file__).resolve().parents[1]
ORDER = (*OWN, "api", "estimators", "__main__", "")
"""What is inside of ``showerstack``, the package itself last; each may import from those before it."""


def _modules() -> dict[str, Path]:
    """Return the files of all modules by dotted name, those of packages where they stand in the checkout."""
    places = {package: ROOT / package for package in (*OWN, "benchmarks")} | {"": ROOT / "showerstack"}
    modules = {}
    for package, place in places.items():
        for path in place.glob("*.py" if package == "" else "**/*.py"):
            name = ".".join((package, *path.relative_to(place).with_suffix("").parts)).strip(".")
            if package != "benchmarks":
                name = f"showerstack.{name}"
            modules[name.removesuffix(".__init__")] = path
    return dict(sorted(modules.items()))


MODULES = _modules()


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


@cache
def _imports() -> dict[str, set[str]]:
    return {module: _imported(path) for module, path in MODULES.items()}


@pytest.mark.slow
def test_public_classes_have_names_of_their_own() -> None:
    places = defaultdict(list)
    for module, path in MODULES.items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module)
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}


def _package(module: str) -> str:
    first, _, rest = module.partition(".")
    return rest.partition(".")[0] if first == "showerstack" else first


def test_nothing_imports_a_package_by_its_bare_name() -> None:
    """An installation has ``showerstack`` alone."""
    bare = re.compile(rf"^\s*(?:from|import) (?:{'|'.join(OWN)})\b", re.MULTILINE)
    others = [path for folder in ("tests", "docs") for path in (ROOT / folder).rglob("*.*")]
    files = [*MODULES.values(), *(path for path in others if path.suffix in (".py", ".md", ".ipynb"))]
    assert [str(file) for file in files if bare.search(file.read_text(encoding="utf-8"))] == []


@pytest.mark.slow
def test_packages_import_only_from_packages_before_them() -> None:
    wrong = []
    for module, imported in _imports().items():
        package = _package(module)
        allowed = ORDER[: ORDER.index(package) + 1] if package in ORDER else (*ORDER, "benchmarks")
        wrong += [f"{module} imports {name}" for name in imported if _package(name) not in allowed]
    assert wrong == []


def test_no_two_folders_import_each_other() -> None:
    """Modules beside sub-folders are above all of them or below all."""
    arrows = defaultdict(list)
    for module, imported in _imports().items():
        for name in imported:
            arrows[MODULES[module].parent, MODULES[name].parent].append(f"{module} imports {name}")
    pairs = [arrows[a, b] + arrows[b, a] for a, b in list(arrows) if a < b and (b, a) in arrows]
    assert pairs == []


def test_no_module_imports_itself_by_a_detour() -> None:
    # Raises graphlib.CycleError, which names the circle.
    assert len(list(TopologicalSorter(_imports()).static_order())) == len(MODULES)


def test_the_second_level_knows_no_files() -> None:
    """Arrays in, arrays out: from folds to the chain nothing reads or writes."""
    files = {"pathlib", *(f"showerstack.{name}" for name in ("runtime.files", "runtime.checksums", "stacking.layout"))}
    for name in ("sample", "folds", "second_level", "estimates", "chain"):
        tree = ast.parse(MODULES[f"showerstack.stacking.{name}"].read_text(encoding="utf-8"))
        imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not imported & files, name


def _file_names(module: str) -> set[str]:
    """Return the texts of a module that end as names of files do."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return {text for text in texts if re.fullmatch(r"\w[\w.-]*\.(json|npy|npz|parquet|toml)", text)}


def test_the_layout_alone_names_the_files_of_a_run() -> None:
    own = _file_names("showerstack.stacking.layout")
    assert {"task.json", "folds.npy", "config.toml"} <= own
    others = [name for name in MODULES if _package(name) == "stacking" and name != "showerstack.stacking.layout"]
    assert {name: found for name in others if (found := _file_names(name) & own)} == {}


EXAMPLES = {name for name, path in MODULES.items() if "\n    >>> " in path.read_text(encoding="utf-8")}


@pytest.mark.parametrize("module", sorted(EXAMPLES - {"showerstack.api", "showerstack.estimators"}))
def test_examples_in_docstrings_give_what_they_say(module: str) -> None:
    """Those of the api and the estimators need data and run in test_api.py."""
    outcome = doctest.testmod(importlib.import_module(module), optionflags=doctest.ELLIPSIS)
    assert outcome.attempted
    assert not outcome.failed


def test_paths_on_the_architecture_page_exist() -> None:
    paths = re.findall(r"`([\w.]+/[\w./]*)`", (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert {f"{package}/" for package in OWN} <= set(paths)


@pytest.mark.slow
def test_the_confidence_level_is_written_in_one_place() -> None:
    # Contours and bands at 68 and 95 % are what papers draw, whatever the level of ours.
    contours = {
        "showerstack.analysis.photons.limits",
        "showerstack.report.spectra_page",
        "showerstack.report.pictures.physics",
    }
    wrong = []
    for module in MODULES.keys() - contours - {"showerstack.scoring.metrics.level"}:
        if not module.startswith("benchmarks"):
            code = ast.parse(MODULES[module].read_text(encoding="utf-8"))
            prose = {id(node.value) for node in ast.walk(code) if isinstance(node, ast.Expr)}
            values = [node.value for node in ast.walk(code) if isinstance(node, ast.Constant) and id(node) not in prose]
            words = [value for value in values if isinstance(value, str | float)]
            wrong += [
                f"{module}: {word}" for word in words if re.search(r"\b1\.96|\b0\.975$|\b95 %|97\.5 %", str(word))
            ]
    assert wrong == []


def test_variance_of_punch_through_is_written_in_one_file() -> None:
    """Fits, sums over stations, CUDA code and the tests' reference are made from it; constants are in showers/."""
    folders = (ROOT / "features", ROOT / "tests" / "features")
    files = [path for folder in folders for end in ("*.py", "*.cu") for path in folder.rglob(end)]
    words = re.compile("punch_through_(dispersion|uncertainty)")
    named = {path.name for path in files if words.search(path.read_text(encoding="utf-8"))}
    assert named == {"station.py"}


PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")))
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def prose(page: str) -> str:
    """Return the text of a page without its code."""
    return re.sub(r"```.*?```|`[^`\n]*`", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    heads = re.findall(r"^#+ +(.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    broken = []
    for target in LINK.findall(prose(page)):
        if re.match(r"https?://|mailto:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (ROOT / page).parent / name if name else ROOT / page
        inside = file.resolve().is_relative_to(ROOT / "docs") or not page.startswith("docs/")
        if not file.exists() or not inside or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


def test_every_page_can_be_found_from_the_readme() -> None:
    visited, new = set(), {"README.md"}
    while new:
        page = new.pop()
        visited.add(page)
        for target in LINK.findall(prose(page)):
            file = ((ROOT / page).parent / target.partition("#")[0]).resolve()
            if file.suffix == ".md" and file.is_relative_to(ROOT) and file.exists():
                new |= {file.relative_to(ROOT).as_posix()} - visited
    assert set(PAGES) - visited == set()


def test_the_site_has_every_page_once() -> None:
    # make docs checks it too, but needs packages that the tests do not.
    contents = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:")[1]
    named = re.findall(r"([\w/]+\.md)$", contents, flags=re.MULTILINE)
    notebooks = (file.relative_to(ROOT).with_suffix(".md").as_posix() for file in (ROOT / "docs").rglob("*.ipynb"))
    assert sorted(f"docs/{name}" for name in named) == sorted(
        [page for page in PAGES if page.startswith("docs/")] + [*notebooks]
    )


DATA_PAGE = (Path(__file__).resolve().parents[1] / "docs" / "data.md").read_text(encoding="utf-8")


def row(start: str) -> list[str]:
    """Return the cells of the table row that begins with a word."""
    (line,) = re.findall(rf"^\| {re.escape(start)}[^|]*\|(.*)\|$", DATA_PAGE, flags=re.MULTILINE)
    return [cell.strip() for cell in line.split("|")]


def test_bytes_a_shower(tiny_composition: Path, tmp_path: Path) -> None:
    train = tiny_composition / "composition_train"
    files = {name: np.load(train / f"{name}.npy") for name in ("matrices", "features", "labels_composition")}
    per_event = {name: values.nbytes // len(values) for name, values in files.items()}
    grids, scalars = row("grids"), row("scalars (5) and label")
    assert grids == [f"{per_event['matrices']:,}", f"{2 * per_event['matrices']:,}"]
    assert scalars == [str(per_event["features"] + 1), str(2 * per_event["features"] + 1)]
    table = build_table(tiny_composition / "composition_test", tmp_path / "table", ctx=Context(device="cpu", workers=1))
    limit = int(row(f"feature table ({len(table.columns)} columns, Parquet)")[0].split()[0])
    assert limit == 4 * (len(table.columns) + 1), "float32, and the event's number"
    of_a_million = re.search(r"million showers in float16 take ([\d.]+) GB, .* table at most ([\d.]+) GB", DATA_PAGE)
    assert of_a_million
    assert list(of_a_million.groups()) == [f"{size / 1000:.1f}" for size in (1024 + 11, limit)]


def test_sizes_of_test_sets() -> None:
    composition, gamma = row("test, composition"), row("test, gamma")
    for column, protocol in enumerate(("v2", "matched", "2026")):
        assert composition[column] == f"{sum(TEST_CLASSES['composition', protocol]):,}"
    for column, protocol in ((0, "v2"), (2, "2026")):
        photons, hadrons = TEST_CLASSES["gamma", protocol]
        assert gamma[column] == f"{photons + hadrons:,} ({photons:,} photons)"
