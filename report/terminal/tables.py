"""Tables for the terminal."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.table import Table

from scoring.uncertainty.intervals import McNemar


def table(title: str, *columns: str, wide: bool = False) -> Table:
    """Return an empty table, its first column to the left; ``wide``: never narrower than its title."""
    made = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    if wide:
        made.min_width = len(title)
    for k, column in enumerate(columns):
        # Where a terminal is too narrow, names are broken into two lines; numbers are never cut off.
        made.add_column(column, justify="right" if k else "left", no_wrap=k > 0, overflow="ellipsis" if k else "fold")
    return made


def with_interval(value: float, interval: dict[str, Any] | None, form: str) -> str:
    """Return ``value [low, high]`` in the given format, or the value alone where there is no interval."""
    if interval is None:
        return format(value, form)
    return f"{value:{form}} [{interval['low']:{form}}, {interval['high']:{form}}]"


def mcnemar_table(what: str, found: McNemar, a: str, b: str) -> Table:
    """Return how often two systems, called a and b, agree and disagree."""
    made = table(f"McNemar: {what}, p = {found.p_value:.2g}", "", f"{b}: yes", f"{b}: no", wide=True)
    made.add_row(f"{a}: yes", f"{found.both:,}", f"{found.only_a:,}")
    made.add_row(f"{a}: no", f"{found.only_b:,}", f"{found.neither:,}")
    return made
