"""The page around a report: markup helpers and a style sheet for screen, phone, dark mode and paper."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from showerstack.runtime.context import Bars
from showerstack.runtime.files import atomic_path

STYLE = """
:root { color-scheme: light dark; --page: #ffffff; --ink: #16232b; --quiet: #56646d; --line: #d5dce0;
  --box: #f3f6f7; --shade: #b9c4ca; --accent: #005a8f; --warn: #9a3d00; }
@media (prefers-color-scheme: dark) { :root { --page: #12181c; --ink: #e6ebee; --quiet: #a3b0b8; --line: #36434b;
  --box: #1b242a; --shade: #51626d; --accent: #7cc4f2; --warn: #ffae70; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.55 system-ui, "Segoe UI", "DejaVu Sans",
  sans-serif; overflow-wrap: break-word; }
main { max-width: 66rem; margin: 0 auto; padding: 1.2rem 1rem 4rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0.4rem 0; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 0.4rem; border-bottom: 1px solid var(--line); padding-bottom: 0.2rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 0.2rem; }
p, ul { max-width: 46rem; }
a { color: var(--accent); }
nav { font-size: 0.9rem; color: var(--quiet); }
nav a { margin-right: 0.9em; white-space: nowrap; }
.quiet { color: var(--quiet); font-size: 0.9rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); gap: 1.2rem; }
figure { margin: 0.6rem 0; min-width: 0; max-width: 34rem; break-inside: avoid; }
figure svg { width: 100%; height: auto; display: block; }
figure svg text { font-family: "DejaVu Sans", Verdana, system-ui, sans-serif !important; }
figcaption { font-size: 0.85rem; color: var(--quiet); margin-top: 0.3rem; }
.numbers { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 11rem), 1fr)); gap: 0.8rem;
  margin: 1rem 0; }
.number { background: var(--box); border-radius: 0.5rem; padding: 0.7rem 0.9rem; min-width: 0; }
.number b { display: block; font-size: 1.45rem; font-variant-numeric: tabular-nums; }
.number span { display: block; font-size: 0.85rem; color: var(--quiet); }
.beside { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); gap: 1.2rem; }
.beside > div { min-width: 0; align-self: center; } .beside > div:first-child { align-self: start; }
.table { overflow-x: auto; margin: 0.6rem 0; background:
  linear-gradient(to right, var(--page) 30%, transparent) left / 3rem 100% no-repeat local,
  linear-gradient(to left, var(--page) 30%, transparent) right / 3rem 100% no-repeat local,
  linear-gradient(to right, var(--shade), transparent) left / 0.9rem 100% no-repeat scroll,
  linear-gradient(to left, var(--shade), transparent) right / 0.9rem 100% no-repeat scroll; }
@media (max-width: 40rem) { .table:not(.wide, .narrow)::before { content: "tables scroll sideways \\2192";
  display: block; position: sticky; left: 0; font-size: 0.75rem; color: var(--quiet); }
  th:first-child, td:first-child { position: sticky; left: 0; background: var(--page); } }
table { border-collapse: collapse; font-size: 0.88rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.25rem 0.7rem 0.25rem 0; text-align: right; border-bottom: 1px solid var(--line);
  vertical-align: top; }
td { white-space: nowrap; }
th:first-child, td:first-child, .words { text-align: left; }
td.words { white-space: normal; }
th { color: var(--quiet); font-weight: 600; vertical-align: bottom; }
tr.ours td { font-weight: 700; }
.wide td { white-space: normal; text-align: left; overflow-wrap: anywhere; }
.wide td:first-child { overflow-wrap: break-word; }
.warn { color: var(--warn); }
@media print { :root { color-scheme: light; --page: #ffffff; --ink: #000000; --quiet: #333333; --line: #bbbbbb;
  --box: #f3f3f3; --accent: #000000; --warn: #000000; } body { font-size: 10.5pt; } nav { display: none; }
  main { max-width: none; padding: 0; } h2, h3 { break-after: avoid; } .table { overflow: visible; }
  .figures { grid-template-columns: 1fr 1fr; } table { font-size: 8.5pt; } tr { break-inside: avoid; } }
"""
"""Text and lines in pictures take the page's colour, so one style sheet serves light and dark."""

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
"""The page runs no script and loads nothing from elsewhere, whatever names its run brought along."""


PHONE_LETTERS = 42
"""A table whose columns have fewer unbroken letters, two for each gap, fits a phone: no hint says that it scrolls."""


@dataclass(frozen=True)
class Section:
    """One part of the report."""

    key: str
    title: str
    body: str


def page(title: str, lead: str, sections: Sequence[Section]) -> str:
    """Return a complete, self-contained HTML page."""
    links = "".join(f'<a href="#{part.key}">{escape(part.title)}</a> ' for part in sections)
    parts = "".join(
        f'<section id="{part.key}"><h2>{escape(part.title)}</h2>\n{part.body}\n</section>\n' for part in sections
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{escape(title)}</title><link rel="icon" href="data:,"><style>{STYLE}</style></head>\n'
        f"<body><main><h1>{escape(title)}</h1>\n{lead}\n<nav>{links}</nav>\n{parts}</main></body></html>\n"
    )


def write_page(file: Path, title: str, lead: str, sections: Sequence[Section]) -> Path:
    """Write a page atomically; return its file."""
    with atomic_path(file) as temporary:
        temporary.write_text(page(title, lead, sections), encoding="utf-8")
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


def paragraph(text: str, kind: str = "") -> str:
    """Return a paragraph of plain text."""
    return f"<p{f' class={kind!r}' if kind else ''}>{escape(text)}</p>"


def bullets(lines: Iterable[str]) -> str:
    """Return a list of plain texts."""
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def picture(svg: str, caption: str) -> str:
    """Return a figure with its caption."""
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"


def pictures(figures: Iterable[str]) -> str:
    """Return figures side by side where there is room."""
    return f'<div class="figures">{"".join(figures)}</div>'


def side_by_side(figure: str, words: str) -> str:
    """Return a figure with words at its side where there is room, below it where not."""
    return f'<div class="beside">{figure}<div>{words}</div></div>'


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, ours: Iterable[int] = (), kind: str = "") -> str:
    """Return a table that scrolls by itself where the screen is narrow; ``ours`` are rows to stress.

    Columns of numbers stand to the right, columns of words to the left.
    """
    rows, stressed = [list(row) for row in rows], set(ours)
    columns = list(zip(*rows, strict=True)) or [()] * len(heads)
    are_words = [
        bool(column) and not any(cell.lstrip("+-−±<>≤≥~ ")[:1].isdigit() for cell in column) for column in columns
    ]
    classes = [" class=words" if words else "" for words in are_words]
    head = "".join(f"<th{of}>{escape(name)}</th>" for name, of in zip(heads, classes, strict=True))
    body = "".join(
        f"<tr{' class=ours' if k in stressed else ''}>"
        + "".join(f"<td{of}>{escape(cell)}</td>" for cell, of in zip(row, classes, strict=True))
        + "</tr>"
        for k, row in enumerate(rows)
    )
    letters = sum(
        2 + max(map(len, [*name.split(), *(" ".join(column).split() if words else column)]), default=0)
        for name, column, words in zip(heads, columns, are_words, strict=True)
    )
    where = " ".join(filter(None, ("table", kind, "narrow" if letters < PHONE_LETTERS else "")))
    return f'<div class="{where}"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def numbers(facts: Iterable[tuple[str, str, str]]) -> str:
    """Return headline numbers: value, what it is, remark."""
    boxes = "".join(
        f'<div class="number"><span>{escape(name)}</span><b>{escape(value)}</b><span>{escape(remark)}</span></div>'
        for name, value, remark in facts
    )
    return f'<div class="numbers">{boxes}</div>'
