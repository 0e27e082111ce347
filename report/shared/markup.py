"""Pages of reports: their parts and how they are put together; all markup is in ``report/templates/``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from showerstack.runtime.context import Bars
from showerstack.runtime.files import atomic_path

PHONE_LETTERS = 42
"""A table whose columns have fewer unbroken letters, two for each gap, fits a phone: no hint says that it scrolls."""


@dataclass(frozen=True)
class Section:
    """One part of the report."""

    key: str
    title: str
    body: Markup


@cache
def _templates() -> Environment:
    folder = Path(__file__).parents[1] / "templates"
    return Environment(loader=FileSystemLoader(folder), autoescape=True, undefined=StrictUndefined)


def _part(name: str, *given: Any) -> Markup:
    return Markup(getattr(_templates().get_template("parts.html").module, name)(*given))


CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n\r"}
"""Characters that steer a terminal and are none of HTML: as their escapes in pages and cards."""


def write_page(
    file: Path, title: str, lead: Markup, sections: Sequence[Section], *, template: str = "page.html"
) -> Path:
    """Write a complete, self-contained page atomically; return its file."""
    text = _templates().get_template(template).render(title=title, lead=lead, sections=sections).translate(CONTROLS)
    with atomic_path(file) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return file


def make_sections(parts: Sequence[Callable[..., Section | None]], *given: Any, bars: Bars) -> list[Section]:
    """Return the sections that functions make of what is given, but for empty ones."""
    sections = []
    names = [part.__name__.strip("_") for part in parts]
    with bars("report", "parts") as progress:
        for k, (name, part) in enumerate(zip(names, parts, strict=True)):
            progress(k, len(parts), name.replace("_", " "))
            section = part(*given)
            sections += [section] if section else []
        progress(len(parts), len(parts))
    return sections


def joined(parts: Iterable[Markup]) -> Markup:
    """Return parts one below the other."""
    return Markup().join(parts)


def group(*parts: Markup) -> Markup:
    """Return parts that stay together."""
    return _part("group", parts)


def paragraph(text: str, kind: str = "") -> Markup:
    """Return a paragraph of plain text."""
    return _part("paragraph", text, kind)


def heading(text: str) -> Markup:
    """Return a heading within a section."""
    return _part("heading", text)


def bullets(lines: Iterable[str]) -> Markup:
    """Return a list of plain texts."""
    return _part("bullets", lines)


def picture(drawing: Markup, caption: str) -> Markup:
    """Return a figure with its caption."""
    return _part("picture", drawing, caption)


def pictures(figures: Iterable[Markup]) -> Markup:
    """Return figures side by side where there is room."""
    return _part("pictures", figures)


def side_by_side(figure: Markup, words: Markup) -> Markup:
    """Return a figure with words at its side where there is room, below it where not."""
    return _part("side_by_side", figure, words)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, ours: Iterable[int] = (), kind: str = "") -> Markup:
    """Return a table that scrolls by itself where the screen is narrow; ``ours`` are rows to stress.

    Columns of numbers stand to the right, columns of words to the left.
    """
    rows = [list(row) for row in rows]
    columns = list(zip(*rows, strict=True)) or [()] * len(heads)
    are_words = [
        bool(column) and not any(cell.lstrip("+-−±<>≤≥~ ")[:1].isdigit() for cell in column) for column in columns
    ]
    letters = sum(
        2 + max(map(len, [*name.split(), *(" ".join(column).split() if words else column)]), default=0)
        for name, column, words in zip(heads, columns, are_words, strict=True)
    )
    where = " ".join(filter(None, ("table", kind, "narrow" if letters < PHONE_LETTERS else "")))
    return _part("table", heads, rows, are_words, set(ours), where)


def numbers(facts: Iterable[tuple[str, str, str]]) -> Markup:
    """Return headline numbers: what it is, value, remark."""
    return _part("numbers", facts)
