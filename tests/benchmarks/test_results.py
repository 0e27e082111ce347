"""Stored results say how they were made, and pages name them by the paths that they have."""

import re
import sys
from pathlib import Path

import pytest

from benchmarks.shared import results
from showerstack.showers.simulation import load_settings

STORED = sorted(results.FOLDER.glob("*.md"))
PAGES = [results.ROOT / "README.md", *(results.ROOT / "docs").rglob("*.md")]


def test_a_stored_result_says_how_it_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = results.ROOT / "benchmarks" / "fits" / "resolution.py"
    monkeypatch.setattr(sys, "argv", [str(program), "--events", "3"])
    file = results.store("fits", "How wide", "| a |\n|---|\n", worlds=("harder",), pretrained=True, folder=tmp_path)
    text = file.read_text(encoding="utf-8")
    assert text.startswith("# How wide\n")
    assert text.endswith("| a |\n|---|\n")
    assert "| command | `python -m benchmarks.fits.resolution --events 3` |" in text
    assert f"| world `harder` | settings {load_settings('harder').digest()[:8]} |" in text
    assert re.search(r"\| pretrained weights \| [0-9a-f]{8} \|", text)


@pytest.mark.parametrize("file", STORED, ids=lambda file: file.stem)
def test_every_stored_result_has_a_head_and_a_page_that_names_it(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.startswith("# ")
    for row in ("command", "commit"):
        assert re.search(rf"^\| {row} \| .+ \|$", text, re.MULTILINE), row
    name = f"`benchmarks/results/{file.name}`"
    assert any(name in page.read_text(encoding="utf-8") for page in PAGES), name


def test_pages_name_stored_results_that_exist() -> None:
    for page in PAGES:
        for name in re.findall(r"`(benchmarks/results/[\w./]+)`", page.read_text(encoding="utf-8")):
            assert (results.ROOT / name).exists(), (page, name)
