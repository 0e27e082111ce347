"""Stored results say how they were made, pages name them by the paths that they have, figures are drawn from them."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from benchmarks import figures
from benchmarks.shared import results
from showerstack.models.pretraining.weights import ANY_SHA256
from showerstack.report.pictures.style import drawing
from showerstack.showers.simulation import load_settings

pytestmark = pytest.mark.slow

STORED = sorted(results.FOLDER.glob("*.md"))
PAGES = [results.ROOT / "README.md", *(results.ROOT / "docs").rglob("*.md")]


def test_a_stored_result_says_how_it_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = results.ROOT / "benchmarks" / "fits" / "resolution.py"
    monkeypatch.setattr(sys, "argv", [str(program), "--events", "3"])
    file = results.store("fits", "How wide", "| a |\n|---|\n", worlds=("harder",), weights="any-array", folder=tmp_path)
    text = file.read_text(encoding="utf-8")
    assert text.startswith("# How wide\n")
    assert text.endswith("| a |\n|---|\n")
    assert "| command | `python -m benchmarks.fits.resolution --events 3` |" in text
    assert f"| world `harder` | settings {load_settings('harder').digest()[:8]} |" in text
    assert f"| pretrained weights | {ANY_SHA256[:8]} |" in text


@pytest.mark.parametrize("file", STORED, ids=lambda file: file.stem)
def test_every_stored_result_has_a_head_and_a_page_that_names_it(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.startswith("# ")
    for row in ("command", "commit"):
        assert re.search(rf"^\| {row} \| .+ \|$", text, re.MULTILINE), row
    name = f"benchmarks/results/{file.name}"
    assert any(name in page.read_text(encoding="utf-8") for page in PAGES), name


def test_pages_name_stored_results_that_exist() -> None:
    for page in PAGES:
        for name in re.findall(r"`(benchmarks/results/[\w./]+)`", page.read_text(encoding="utf-8")):
            assert (results.ROOT / name).exists(), (page, name)


def test_pages_name_scripts_that_exist_or_the_commit_that_had_them() -> None:
    named = re.compile(r"`python -m\s+(benchmarks(?:\.\w+)+)[^`]*`(\s+of\s+commit\s+[0-9a-f]{7,})?")
    for page in PAGES:
        for module, commit in named.findall(page.read_text(encoding="utf-8")):
            assert commit or (results.ROOT / f"{module.replace('.', '/')}.py").exists(), (page, module)


@pytest.mark.parametrize("make", figures.FIGURES, ids=lambda make: make.__name__)
def test_figures_are_drawn_from_stored_results(make: Callable[[], Figure], tmp_path: Path) -> None:
    with drawing():
        figure = make()
        figure.text(0.5, 0.5, "0.12345")
        figures.save(figure, tmp_path / "figure.svg", "Title")
    assert ">0.12345<" in (tmp_path / "figure.svg").read_text(), "coordinates alone are rounded"
    labels = {axes.get_xlabel() for axes in figure.axes} - {""}
    for text in ((tmp_path / "figure.svg").read_text(), (figures.PICTURES / f"{make.__name__}.svg").read_text()):
        assert all(label in text for label in labels), "make pictures draws it"


def test_pictures_of_the_simulation_are_of_today() -> None:
    for name in ("event_displays", "muon_tails"):
        text = (figures.PICTURES / f"{name}.svg").read_text(encoding="utf-8")
        assert f"World {load_settings().digest()[:8]}" in text, "make pictures draws it anew"


def test_numbers_and_tables_of_stored_results() -> None:
    assert figures.numbers("1,300,000 | **iron +7.9 ± 0.9** [-1e-05, 2]") == [1_300_000, 7.9, 0.9, -1e-05, 2]
    rows = figures.table("robustness", "trained in | default/qgs", "## Accuracy")
    assert [cells[0] for cells in rows] == ["default/qgs", "default/epos", "default/sibyll", "harder/mix", "easier/mix"]


DECIMAL = re.compile(r"(?<![\w.])\d[\d,]*\.\d+(?:e[-+]?\d+)?")
MARKED = re.compile(r"<!-- result: (\w+(?: \w+)*) -->\n\n((?:\|.*\n)+)")
TABLES = [(page, *mark) for page in PAGES for mark in MARKED.findall(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize(("page", "result", "table"), TABLES, ids=lambda part: getattr(part, "stem", None))
def test_marked_tables_hold_numbers_of_stored_results(page: Path, result: str, table: str) -> None:
    files = [(results.FOLDER / f"{name}.md").read_text(encoding="utf-8") for name in result.split()]
    stored = DECIMAL.findall("\n".join(files))
    values = [float(number.replace(",", "")) for number in stored]
    for number in DECIMAL.findall(table):
        places = len(number.partition(".")[2])
        rounded = stored if "e" in number else {f"{value:,.{places}f}" for value in values}
        assert number in rounded, f"{page.name}: {number} is not in {result}.md"
