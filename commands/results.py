"""Commands that show results: report, compare, leaderboard, submit, display, doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from commands.app import app, console
from showers.execution.progress import bar


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="Finished run folder.")],
    data: Annotated[Path, typer.Option(help="Folder with {task}_test and its labels.")] = Path("data"),
) -> None:
    """Write RUN/report.html: the whole run on one page.

    Example: [bold]python cli.py report runs/composition --data data[/bold]
    """
    from report.html import write_report

    console.print(f"wrote {write_report(run, data, bars=bar)}", soft_wrap=True)


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Two or more run folders of one task; the first is compared.")],
    data: Annotated[Path, typer.Option(help="Folder with {task}_test.")] = Path("data"),
) -> None:
    """Compare finished runs: paired bootstrap of the difference, McNemar's table, where they differ.

    Example: [bold]python cli.py compare runs/a runs/b --data data[/bold]
    """
    from report.compare import compare as compared

    console.print(compared(runs, data))


@app.command()
def leaderboard(
    runs: Annotated[list[Path], typer.Argument(help="Scored run folders.")],
    data: Annotated[Path | None, typer.Option(help="Folder with the test sets, if they moved.")] = None,
) -> None:
    """Show runs beside the published systems, protocol by protocol.

    Example: [bold]python cli.py leaderboard runs/composition runs/gamma[/bold]
    """
    from report.public.leaderboard import leaderboard as standings

    console.print(standings(runs, data=data))


@app.command()
def submit(
    runs: Annotated[list[Path], typer.Argument(help="One run, or one of each task.")],
    name: Annotated[str, typer.Option(help="Name of the submission.")],
    data: Annotated[Path, typer.Option(help="Folder with the test sets.")] = Path("data"),
    out: Annotated[Path, typer.Option(help="Where submissions go.")] = Path("submissions"),
) -> None:
    """Write a checked submission folder for the public benchmark.

    Example: [bold]python cli.py submit runs/composition runs/gamma --name stack-1[/bold]
    """
    from report.public.submission import write_submission

    folder = write_submission(runs, name, data=data, out=out)
    console.print(f"wrote and checked {folder}", soft_wrap=True)


@app.command()
def display(
    dataset: Annotated[Path, typer.Argument(help="Dataset folder; labels are not needed.")],
    event: Annotated[int, typer.Argument(min=0, help="Row of the event, from 0.")],
    out: Annotated[Path | None, typer.Option(help="File (.png, .svg, .pdf); default: event-N.png.")] = None,
) -> None:
    """Draw one event: both channels, fitted core, lateral distributions.

    Example: [bold]python cli.py display data/composition_test 7[/bold]
    """
    from report.display import draw_event

    console.print(f"wrote {draw_event(dataset, event, out or Path(f'event-{event}.png'))}", soft_wrap=True)


@app.command()
def doctor() -> None:
    """Say what this machine offers and what would be used.

    Example: [bold]python cli.py doctor[/bold]
    """
    from report.doctor import doctor as examine

    console.print(examine())
