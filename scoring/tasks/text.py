"""Text of tables: numbers with their intervals, for terminal and pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table

from showerstack.runtime.whole_table import WholeTable
from showerstack.scoring.metrics.intervals import Interval
from showerstack.scoring.metrics.level import standard_errors
from showerstack.scoring.metrics.paired import McNemar

TOO_FEW = "too few events"
"""Stands in a bin that cannot carry a number."""


def table(title: str, *columns: str, wide: bool = False) -> Table:
    """Return an empty table, its first column to the left; ``wide``: never narrower than its title."""
    made = WholeTable(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    if wide:
        made.min_width = len(title)
    for k, column in enumerate(columns):
        made.add_column(column, justify="right" if k else "left", no_wrap=k > 0, overflow="fold")
    return made


def with_interval(value: float, interval: Mapping[str, Any] | None, form: str) -> str:
    """Return ``value [low, high]`` in the given format, ``< high`` for a limit, the value alone without an interval."""
    if interval is None:
        return format(value, form)
    if interval["low"] is None:
        return f"{value:{form}} [not determined]"
    if interval.get("is_limit"):
        return f"< {interval['high']:{form}}"
    return f"{value:{form}} [{interval['low']:{form}}, {interval['high']:{form}}]"


def mcnemar_table(what: str, mc_nemar: McNemar, a: str, b: str) -> Table:
    """Return how often two systems, called a and b, agree and disagree."""
    made = table(f"McNemar: {what}, p = {mc_nemar.p_value:.2g}", "", f"{b}: yes", f"{b}: no", wide=True)
    made.add_row(f"{a}: yes", f"{mc_nemar.both:,}", f"{mc_nemar.only_a:,}")
    made.add_row(f"{a}: no", f"{mc_nemar.only_b:,}", f"{mc_nemar.neither:,}")
    return made


def plus_minus(value: float, interval: Interval, digits: int, scale: float = 1.0) -> str:
    """Return ``value ± standard error``."""
    return f"{scale * value:.{digits}f} ± {scale * standard_error(interval):.{digits}f}"


def standard_error(interval: Interval) -> float:
    """Return the standard error behind an interval that is nearly that of a normal law."""
    return (interval.high - interval.low) / 2 / standard_errors(interval.level)


def short(value: float) -> str:
    """Return a small share in scientific notation without padding: ``3.2e-4``, and ``0`` for none."""
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"
