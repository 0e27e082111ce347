"""What follows a finished run: score it where labels exist, show the table, write the report."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from report.belonging import check_predictions
from report.html import write_report
from report.run import MANIFEST_FILE
from report.summary import learner_table
from scoring.score import score_file
from showers.execution.progress import Bars, silent
from showers.execution.terminal import escaped
from showers.schema import Task
from showers.storage.files import read_json


def show_outcome(run: Path, data: Path, task: Task, *, console: Console, bars: Bars = silent) -> None:
    """Score ``run`` on ``data``'s test set, print the table of learners beside the stack, and write the report.

    A test set without labels is left unscored, and the reader is told so.
    """
    _tell(run, console)
    predictions = run / "predictions.npz"
    if not (data / f"{task.name}_test" / str(task.label_file)).exists():
        console.print(f"{data / f'{task.name}_test'} has no labels: predictions are in {predictions}", soft_wrap=True)
        return
    score_file(predictions, data, task, check=check_predictions)
    console.print(learner_table(run, data))
    report = write_report(run, data, bars=bars)
    console.print(f"run folder: {run}\nreport:     {report}", soft_wrap=True)


def show_table_outcome(run: Path, *, console: Console) -> None:
    """Print what a run on a table of any origin reached on rows held out, and where its predictions are."""
    _tell(run, console)
    metrics = read_json(run / "metrics_table.json")
    drawn = Table("system", title=f"{metrics['judged_on']}, 95 % intervals", title_justify="left")
    names = ("accuracy", "log_loss", "auc")
    for name in names:
        drawn.add_column(name.replace("_", "-"), justify="right")
    for system, entries in metrics["systems"].items():
        cells = [f"{e['value']:.4f} [{e['low']:.4f}, {e['high']:.4f}]" for e in map(entries.get, names)]
        drawn.add_row(system, *cells, style="bold" if system == metrics["shipped"] else None)
    console.print(drawn)
    console.print(f"shipped:     {metrics['shipped']}\npredictions: {run / 'predictions.parquet'}", soft_wrap=True)


def _tell(run: Path, console: Console) -> None:
    """Print what a run remarked on its data, and which learners failed."""
    manifest = read_json(run / MANIFEST_FILE)
    for remark in manifest.get("remarks", []):
        console.print(escaped(f"remark: {remark}"), style="yellow", markup=False, highlight=False, soft_wrap=True)
    for row in manifest.get("learners", []):
        if row["status"] != "ok":
            line = f"learner {row['name']} was left out, {row['error']}"
            console.print(escaped(line), style="bold red", markup=False, highlight=False, soft_wrap=True)
