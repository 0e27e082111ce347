"""The command ``verify``, which ``verify.py`` runs without the others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.text import Text

from showerstack.commands.app import OutputFormat, Protocol, TaskName, app
from showerstack.showers.schema import task_named


@app.command()
def verify(
    predictions: Annotated[Path, typer.Argument(help="predictions.npz")],
    task: Annotated[TaskName | None, typer.Option(help="Default: the task whose array the file contains.")] = None,
    data: Annotated[Path, typer.Option(help="Folder with {task}_test.")] = Path("data"),
    protocol: Annotated[
        Protocol | None, typer.Option(help="Require a test set of this protocol and apply its rules.")
    ] = None,
    log: Annotated[Path | None, typer.Option(help="Append to this list of attempts (protocol 2026).")] = None,
    description: Annotated[str | None, typer.Option(help="With --log: what was tried.")] = None,
    published_order: Annotated[
        bool, typer.Option("--published-order", help="Rows are in the published order.")
    ] = False,
    intervals: Annotated[bool, typer.Option(help="Compute confidence intervals.")] = True,
    *,
    output: OutputFormat,
) -> None:
    """Score predictions against the test labels, as verify.py does; writes metrics_{task}.json beside them.

    Example: [bold]python cli.py verify runs/composition/predictions.npz --data data[/bold]
    """
    from showerstack.scoring.score import metrics_path, score_file, task_of
    from showerstack.scoring.tasks import summarise

    scored_task = task_named(task) if task else task_of(predictions)
    metrics = score_file(
        predictions, data, scored_task, protocol=protocol, log=log, description=description, intervals=intervals,
        published_order=published_order,
    )  # fmt: skip
    written = Text(f"written: {metrics_path(predictions, scored_task)}")
    output.show(lambda: Group(*summarise(metrics, scored_task), written), lambda: metrics)
