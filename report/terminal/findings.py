"""What an examination found: lines with a verdict, and the table that shows them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

COLOURS = {"ok": "green", "note": "yellow", "bad": "red"}


@dataclass(frozen=True)
class Finding:
    """One line of the examination."""

    what: str
    found: str
    state: str
    """``ok``, ``note`` (works, could be better) or ``bad`` (will fail)."""


def findings_table(title: str, findings: Iterable[Finding]) -> Table:
    """Return the lines of an examination as a table."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("")
    table.add_column("")
    table.add_column("found", overflow="fold")
    for finding in findings:
        table.add_row(Text(finding.state, style=COLOURS[finding.state]), Text(finding.what), Text(finding.found))
    return table
