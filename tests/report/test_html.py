"""The report: one self-contained file with everything in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from report.html import write_report


@pytest.mark.parametrize("world", ["composition_world", "gamma_world"])
def test_report_is_one_self_contained_file(world: str, request: pytest.FixtureRequest) -> None:
    run, data = request.getfixturevalue(world)
    file = write_report(run, data)
    assert file == run / "report.html"
    text = file.read_text(encoding="utf-8")
    assert not re.findall(r'(?:src|href)="(?!#|data:)([^"]+)"', text)
    assert "nan" not in re.sub(r"<svg.*?</svg>", "", text, flags=re.DOTALL).lower().split()
    identifiers = re.findall(r'\bid="([^"]+)"', text)
    assert len(identifiers) == len(set(identifiers))
    for reference in re.findall(r'(?:href="|url\()#([^")]+)', text):
        assert reference in identifiers, reference
    assert "#102a31" not in text, "ink must take the page's colour"
