"""Links in the documentation lead to what exists, and every page can be reached from the README."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
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
    seen, new = set(), {"README.md"}
    while new:
        page = new.pop()
        seen.add(page)
        for target in LINK.findall(prose(page)):
            file = ((ROOT / page).parent / target.partition("#")[0]).resolve()
            if file.suffix == ".md" and file.is_relative_to(ROOT) and file.exists():
                new |= {file.relative_to(ROOT).as_posix()} - seen
    assert set(PAGES) - seen == set()


def test_the_site_has_every_page_once() -> None:
    # make docs checks it too, but needs packages that the tests do not.
    contents = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:")[1]
    named = re.findall(r"([\w/]+\.md)$", contents, flags=re.MULTILINE)
    assert sorted(f"docs/{name}" for name in named) == [page for page in PAGES if page.startswith("docs/")]
