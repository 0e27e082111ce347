"""One metrics dictionary as a readable summary on the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from report.registry import report_of
from showers.schema import Task


def summarise(metrics: dict[str, Any], task: Task) -> Iterator[RenderableType]:
    """Yield what ``verify.py`` prints: the headline, then tables, then warnings.

    Parameters
    ----------
    metrics
        What :func:`scoring.score.score_file` returned.
    """
    yield from report_of(task).summary(metrics)
    for note in metrics["warnings"]:
        yield Text(f"warning: {note}", style="yellow")
