"""The command ``verify``, which ``verify.py`` runs without the others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group
from rich.text import Text

from showerstack.commands.app import OutputFormat, Protocol, TaskName, app
from showerstack.runtime.errors import InputError
from showerstack.showers.schema import Task, task_named

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

LOG = Path("results.tsv")
"""Table of attempts of the benchmark's own calls, in the working folder."""


def evaluate(
    predictions: ArrayLike,
    description: str,
    pred_path: str = "(from python)",
    *,
    data: str | Path = "data",
    log: str | Path = LOG,
) -> float:
    """Score predictions of the public test set and log the attempt, as the benchmark's function of this name.

    Parameters
    ----------
    predictions
        (N,) class numbers (integers: composition) or gamma scores (floats), in the order of the test set.
    pred_path
        What the log calls the predictions.
    data
        Folder that holds ``{task}_test``.
    log
        Table of attempts; 50 count.

    Returns
    -------
    Mean fraction error, or hadron survival at 75 % gamma efficiency; lower is better.

    Raises
    ------
    InputError
        For predictions that cannot be scored, a test set of another protocol, or a log without room; nothing is logged.
    """
    from rich.console import Console

    from showerstack.scoring.score import key_metric, score_attempt
    from showerstack.scoring.tasks import summarise

    metrics, task = score_attempt(predictions, description, name=pred_path, data=Path(data), log=Path(log))
    Console().print(*summarise(metrics, task), attempts_line(Path(log), task), sep="\n")
    return key_metric(metrics, task)


def attempts_line(log: Path, task: Task) -> Text:
    """Return how many attempts a log holds, and its best."""
    from showerstack.scoring.score import MAX_ATTEMPTS, attempts

    made = attempts(log, task)
    alike = [attempt for attempt in made if attempt.public == made[-1].public]
    best = min(alike, key=lambda attempt: attempt.score)
    other = "" if best.public else "; not the public test set: published values do not compare"
    return Text(
        f"attempt {made[-1].number} of {MAX_ATTEMPTS} in {log}; best: attempt {best.number}, {best.score:.4g}{other}"
    )


@app.command()
def verify(
    predictions: Annotated[Path, typer.Argument(help="predictions.npz")],
    tried: Annotated[
        str | None,
        typer.Argument(
            metavar="[WHAT_WAS_TRIED]",
            help="As the benchmark's verify.py: --protocol 2026 --log results.tsv --description of it.",
        ),
    ] = None,
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
    from showerstack.scoring.score import COUNTED_PROTOCOL, metrics_path, own_metrics_path, score_file, task_of
    from showerstack.scoring.tasks import summarise

    if tried is not None:
        if description is not None or protocol not in (None, COUNTED_PROTOCOL):
            raise InputError(
                f"what was tried after the file means --protocol {COUNTED_PROTOCOL} --description of it: leave out "
                f"{'--protocol' if description is None else '--description'}"
            )
        protocol, log, description = "2026", log or LOG, tried
    scored_task = task_named(task) if task else task_of(predictions)
    metrics = score_file(
        predictions, data, scored_task, protocol=protocol, log=log, description=description, intervals=intervals,
        published_order=published_order,
    )  # fmt: skip
    lasting = own_metrics_path(predictions, scored_task) or metrics_path(predictions, scored_task)
    lines = [Text(f"written: {lasting}")]
    if log is not None:
        lines.insert(0, attempts_line(log, scored_task))
    output.show(lambda: Group(*summarise(metrics, scored_task), *lines), lambda: metrics)
