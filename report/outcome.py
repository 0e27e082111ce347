"""What follows a finished run: score it where labels exist, show the table, write the report."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from report.html import write_report
from report.summary import learner_table
from scoring.score import score_file
from showers.progress import Bars, silent
from showers.schema import Task


def show_outcome(run: Path, data: Path, task: Task, *, console: Console, bars: Bars = silent) -> None:
    """Score ``run`` on ``data``'s test set, print the table of learners beside the stack, and write the report.

    A test set without labels is left unscored, and the reader is told so.
    """
    predictions = run / "predictions.npz"
    if not (data / f"{task.name}_test" / str(task.label_file)).exists():
        console.print(f"{data / f'{task.name}_test'} has no labels: predictions are in {predictions}", soft_wrap=True)
        return
    score_file(predictions, data, task)
    console.print(learner_table(run, data))
    report = write_report(run, data, bars=bars)
    console.print(f"run folder: {run}\nreport:     {report}", soft_wrap=True)
