"""Pages write numbers in one way: [a, b] for intervals, a zero before the decimal point, the micro sign, log-loss."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")))
CODE = re.compile(r"```.*?```|`[^`\n]*`|\]\([^)]*\)", re.DOTALL)
RULES = {
    "a zero before the decimal point": re.compile(r"(?<![\w.])\.\d"),
    "[a, b] for an interval": re.compile(r"\([-+]?[\d.]+(e-?\d+)? (\.\.|to) [-+]?[\d.]+(e-?\d+)?[;)]"),
    "µs for microseconds": re.compile(r"\d us\b|\bus an event\b"),
    "log-loss, without nats": re.compile(r"\bnats?\b"),
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_numbers_are_written_in_one_way(page: Path) -> None:
    prose = CODE.sub("", page.read_text(encoding="utf-8"))
    found = {rule: match[0] for rule, pattern in RULES.items() if (match := pattern.search(prose))}
    assert found == {}


def test_the_rules_find_what_they_are_for() -> None:
    for text in ("gains .35 of", "| .35 |", "+.003", "in (0.1 .. 0.2)", "(1.5 to 2.5)", "35 us", "0.1 nats"):
        assert any(pattern.search(text) for pattern in RULES.values()), text
    for text in ("3.5", "pages.md.1", "v1.2.3", "(1 of 2)", "lg E 14..15", "[0.1, 0.2]", "µs", "us"):
        assert not any(pattern.search(text) for pattern in RULES.values()), text
