"""The report: one self-contained file with everything in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest


@pytest.mark.parametrize("task", ["composition", "gamma"])
def test_report_is_one_self_contained_file(task: str, request: pytest.FixtureRequest) -> None:
    file = request.getfixturevalue(f"{task}_report")
    assert file == request.getfixturevalue(f"{task}_world")[0] / "report.html"
    text = file.read_text(encoding="utf-8")
    assert not re.findall(r'(?:src|href)="(?!#|data:)([^"]+)"', text)
    words = re.sub(r"<[^>]+>", " ", re.sub(r"<(svg|style).*?</\1>", "", text, flags=re.DOTALL))
    assert not {"nan", "none", "inf"} & set(words.lower().split())
    identifiers = re.findall(r'\bid="([^"]+)"', text)
    assert len(identifiers) == len(set(identifiers))
    for reference in re.findall(r'(?:href="|url\()#([^")]+)', text):
        assert reference in identifiers, reference
    assert "#102a31" not in text, "ink must take the page's colour"


def test_composition_report_has_its_sections(composition_report: Path) -> None:
    text = composition_report.read_text(encoding="utf-8")
    for key in (
        "summary",
        "learners",
        "confusion",
        "fractions",
        "reliability",
        "plane",
        "gallery",
        "cost",
        "provenance",
    ):
        assert f'<section id="{key}">' in text
    assert "The showers are simulated" in text
    assert "lenet failed and was left out: out of memory" in text
    assert text.count("<figure>") >= 15


def test_gamma_report_has_its_sections(gamma_report: Path) -> None:
    text = gamma_report.read_text(encoding="utf-8")
    for key in ("summary", "learners", "survival", "reliability", "plane", "gallery"):
        assert f'<section id="{key}">' in text
    assert "drawn for orientation only" in text
