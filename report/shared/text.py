"""Text for terminal and pages: metrics and differences with their intervals, times, lines with a verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from showerstack.scoring.metrics.intervals import Interval
from showerstack.scoring.metrics.level import LEVEL_TEXT
from showerstack.scoring.metrics.paired import Paired
from showerstack.scoring.tasks.base import Metric
from showerstack.scoring.tasks.text import plus_minus, short, with_interval
from showerstack.stacking.estimates import POOL
from showerstack.stacking.stated import Manifest, Step

LEAST_P = 1e-15
"""Smaller probabilities are those of a tail that nothing has tested."""


def signed(value: float) -> str:
    """Return :func:`short` with its sign, which nothing has not."""
    return ("-" if value < 0 else "+") + short(abs(value)) if value else "0"


SIGNS = f"±: one standard error; [a, b]: {LEVEL_TEXT} interval"
"""What numbers of :func:`metric_text` and :func:`difference_text` carry."""


def metric_text(value: float, interval: Interval, metric: Metric) -> str:
    """Return a metric ± its standard error; a logarithmic one with its interval, or its upper limit."""
    if interval.is_limit:
        return f"< {short(interval.high)}"
    if metric.logarithmic:
        return f"{short(value)} [{short(interval.low)}, {short(interval.high)}]"
    return plus_minus(value, interval, 4)


def difference_text(paired: Paired, logarithmic: bool = False) -> str:
    """Return a difference with its interval, ``0`` alone where none of it shows in the digits given."""
    values = (paired.difference, paired.interval.low, paired.interval.high)
    middle, low, high = (signed(value) if logarithmic else f"{value:+z.4f}" for value in values)
    return f"{middle} [{low}, {high}]" if set(middle + low + high) & set("123456789") else "0"


def p_text(value: float) -> str:
    """Return a probability as ``p = 0.03``; what no number holds is named as smaller than it can be told."""
    return f"p = {value:.2g}" if value >= LEAST_P else f"p < {LEAST_P:g}"


def gain_text(paired: Paired, digits: int) -> str:
    """Return how much better a system is ± the standard error; no sign where the number shown is zero."""
    value = round(paired.difference, digits) + 0.0
    return f"{value:{'+' if value else ''}.{digits}f} ± {paired.standard_error:.{digits}f}"


TABLE_HEADS = {"log_loss": "log-loss", "accuracy": "accuracy", "auc": "AUC"}
"""Of the metrics of a run on a table."""


def pooled_words(manifest: Manifest) -> str:
    """Return what the row of the system in use holds, where a network's own estimate is part of it; else nothing."""
    if manifest.decision.chosen != POOL:
        return ""
    return f"{manifest.shipped}: with the own estimate of a network; other rows are posterior means alone"


def table_cells(metrics: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the metrics of a system of a run on a table, with their intervals; a dash for what rows do not show."""
    found = (metrics[name] for name in TABLE_HEADS)
    return tuple("–" if one is None else with_interval(one["value"], one, ".4f") for one in found)


COLOURS = {"ok": "green", "note": "yellow", "bad": "red"}


@dataclass(frozen=True)
class Finding:
    """One line of the examination."""

    what: str
    outcome: str
    state: str = "ok"
    """``ok``, ``note`` (works, could be better) or ``bad`` (will fail)."""


def findings_table(title: str, findings: Iterable[Finding]) -> Table:
    """Return the lines of an examination as a table."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("")
    table.add_column("")
    table.add_column("found", overflow="fold")
    for finding in findings:
        table.add_row(Text(finding.state, style=COLOURS[finding.state]), Text(finding.what), Text(finding.outcome))
    return table


def totals(steps: Sequence[Step]) -> Step:
    """Return what steps cost together: summed times, and the largest peak memory."""
    wall_s, cpu_s = sum(step.wall_s for step in steps), sum(step.cpu_s for step in steps)
    return Step(step="all", wall_s=wall_s, cpu_s=cpu_s, peak_mb=max((step.peak_mb for step in steps), default=0.0))


def duration(seconds: float) -> str:
    """Return seconds as people say them."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def shortest_names(runs: Sequence[Path]) -> list[str]:
    """Return the shortest ends of the paths that tell them apart; numbers where the same run is given twice."""
    for depth in range(1, 9):
        names = ["/".join(Path(run).resolve().parts[-depth:]) for run in runs]
        if len(set(names)) == len(names):
            return names
    return [f"{Path(run).resolve().name} ({k + 1})" for k, run in enumerate(runs)]
