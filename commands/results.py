"""Commands that show results: report, explain, compare, leaderboard, taskcard, submit, display, doctor."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group

from showerstack.commands.app import (
    JsonOption,
    OutputFormat,
    OverwriteOption,
    app,
    claimed,
    console,
    refuse_unused,
)
from showerstack.runtime.context import Context, bar
from showerstack.runtime.errors import InputError, need


class CardFormat(StrEnum):
    """Layouts of task folders."""

    airs = "airs"
    mlgym = "mlgym"


@app.command()
def report(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(help="Finished run folder.")],
    data: Annotated[Path, typer.Option(help="Folder with {task}_test and its labels.")] = Path("data"),
) -> None:
    """Write RUN/report.html, the whole run on one page, and its model card.

    Example: [bold]python cli.py report runs/composition --data data[/bold]
    """
    need("train", "report", what="report")
    from showerstack.report.card import write_card
    from showerstack.stacking.prediction.run import Run

    if not Run.open(run).of_table:
        from showerstack.report.run_page import write_report

        written = write_report(run, data, bars=bar)
    else:
        refuse_unused(context, "with a run on a table", ("data",))
        from showerstack.report.table_page import write_table_report

        written = write_table_report(run, bars=bar)
    console.print(f"wrote {written} and {write_card(run)}", soft_wrap=True)


@app.command()
def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Runs or predictions files of one task; the others are compared with the first."),
    ],
    data: Annotated[Path, typer.Option(help="Folder with {task}_test.")] = Path("data"),
    as_json: JsonOption = False,
) -> None:
    """Compare finished runs: paired bootstrap of the difference, McNemar's table, where they differ.

    Example: [bold]python cli.py compare runs/a runs/b --data data[/bold]
    """
    from showerstack.report.compare import compare as compared
    from showerstack.report.compare import differences

    OutputFormat(as_json=as_json).show(lambda: compared(runs, data), lambda: differences(runs, data), paragraphs=True)


@app.command()
def leaderboard(
    context: typer.Context,
    runs: Annotated[list[Path], typer.Argument(help="Scored run folders, or predictions files with --data.")],
    data: Annotated[Path | None, typer.Option(help="Folder with the test sets, if they moved.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show runs beside the published systems, protocol by protocol; runs on tables by test table.

    Example: [bold]python cli.py leaderboard runs/composition runs/gamma[/bold]
    """
    from showerstack.report.public.leaderboard import leaderboard as standings
    from showerstack.report.public.leaderboard import standings_tables, table_standings, tables
    from showerstack.stacking.prediction.run import Run

    of_showers = [run for run in runs if run.is_file() or not Run.open(run).of_table]
    of_tables = [run for run in runs if run not in of_showers]
    if of_tables and not of_showers:
        refuse_unused(context, "with runs on tables", ("data",))
    result = table_standings(of_tables)

    def records() -> list[dict[str, object]]:
        rows = [row for rows in tables(of_showers, data).values() for row in rows] if of_showers else []
        return [*(asdict(row) for row in rows), *(asdict(row) for rows in result.values() for row in rows)]

    def shown() -> Group:
        return Group(*([standings(of_showers, data=data)] if of_showers or not runs else []), *standings_tables(result))

    OutputFormat(as_json=as_json).show(shown, records, paragraphs=True)


@app.command()
def taskcard(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Folder for task folders and their data.")],
    data: Annotated[Path, typer.Option(help="Folder with {task}_train and {task}_test.")] = Path("data"),
    task: Annotated[list[str] | None, typer.Option(help="Default: composition and gamma.")] = None,
    format: Annotated[
        list[CardFormat] | None,
        typer.Option(help="Layout, given once or several times: AIRS-Bench (default), its mlgym layout."),
    ] = None,
    variant: Annotated[
        int | None, typer.Option(min=0, help="Instead of DATA new showers of a drawn world, from this secret seed.")
    ] = None,
    train: Annotated[int, typer.Option(min=100, help="With --variant: training showers.")] = 30_000,
    test: Annotated[int, typer.Option(min=100, help="With --variant: test showers.")] = 12_000,
    as_json: JsonOption = False,
) -> None:
    """Write the benchmark as task folders that evaluations of agents take, each checked by its own scripts.

    With --variant SEED the showers and the constants of their world are new, the rules the same: nobody can have seen
    them. The seed is written to no file; choose one that nobody can guess.

    Example: [bold]python cli.py taskcard --format airs --data data --out cards[/bold]

    A task nobody has seen: [bold]python cli.py taskcard --variant 8620417 --out cards[/bold]
    """
    if variant is not None:
        need("train", what="taskcard")
    from showerstack.report.public.taskcard import CARDS, write_cards, write_variants

    tasks, layouts = tuple(task or CARDS), tuple(each.value for each in format or [CardFormat.airs])
    if variant is not None:
        refuse_unused(context, "with --variant", ("data",))
        result = write_variants(out, tasks, layouts, seed=variant, n_train=train, n_test=test)
    else:
        refuse_unused(context, "without --variant", ("train", "test"))
        result = write_cards(data, out, tasks, layouts)
    lines = [f"{out / name}: {'; '.join(checks)}" for name, checks in result.items()]
    OutputFormat(as_json=as_json).show(lambda: "\n".join(lines), lambda: result)


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
    from showerstack.report.public.submission import write_submission

    folder = write_submission(runs, name, data=data, out=out)
    console.print(f"wrote and checked {folder}", soft_wrap=True)


@app.command()
def display(
    context: typer.Context,
    place: Annotated[Path, typer.Argument(help="Dataset folder, whose labels are not needed; with --top a run.")],
    event: Annotated[int | None, typer.Argument(min=0, help="Row of the event, from 0.")] = None,
    top: Annotated[int | None, typer.Option(min=1, max=200, help="Of a run, so many events of highest score.")] = None,
    data: Annotated[Path | None, typer.Option(help="With --top: folder with {task}_test, if it moved.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File (.png, .svg, .pdf): event-N.png; with --top (.html): events.html."),
    ] = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Draw one event: both channels, fitted core, lateral distributions; or a page of a run's highest scores.

    Example: [bold]python cli.py display data/composition_test 7[/bold]

    A page to be turned by the arrow keys: [bold]python cli.py display runs/gamma --top 20 --out events.html[/bold]
    """
    if top is not None:
        refuse_unused(context, "with --top", ("event",))
        need("train", "report", what="display --top")
        from showerstack.report.events_page import write_events

        file = claimed(context, out or Path("events.html"))
        written = write_events(place, file, top=top, data=data, bars=bar)
        console.print(f"wrote {written}", soft_wrap=True)
        return
    refuse_unused(context, "without --top", ("data",))
    if event is None:
        raise InputError("say which event is to be drawn, or of a run how many: --top 20")
    need("report", what="display")
    from showerstack.report.display import draw_event

    file = claimed(context, out or Path(f"event-{event}.png"))
    console.print(f"wrote {draw_event(place, event, file)}", soft_wrap=True)


@app.command()
def explain(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(help="Finished run folder.")],
    data: Annotated[Path, typer.Argument(help="Dataset folder or table; labels are not needed.")],
    event: Annotated[int, typer.Option(min=0, help="Row of the event, from 0.")],
    out: Annotated[Path | None, typer.Option(help="File (.png, .svg, .pdf); default: explain-RUN-N.png.")] = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Say why a run prefers one class for one event: what each group of features moved, and what each learner said.

    Example: [bold]python cli.py explain runs/gamma data/gamma_test --event 7[/bold]
    """
    need("train", "report", what="explain")
    from showerstack.report.explain import explain_event, explain_lines

    file = claimed(context, out or Path(f"explain-{run.resolve().name}-{event}.png"))
    for line in explain_lines(explain_event(run, data, event, file, Context(bars=bar))):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    console.print(f"wrote {file}", soft_wrap=True)


@app.command()
def doctor(
    datasets: Annotated[
        list[Path] | None, typer.Argument(help="Datasets, archives, others' files or runs to examine instead.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what this machine offers and what would be used; of folders, what they hold, what is odd, what comes next.

    Example: [bold]python cli.py doctor[/bold]

    A dataset: [bold]python cli.py doctor data/composition_test[/bold]

    Measured columns beside the simulation's: [bold]python cli.py doctor measured_raw raw[/bold]
    """
    output = OutputFormat(as_json=as_json)
    if datasets:
        from showerstack.report.doctor.folders import column_quartiles, examine_datasets, folder_findings

        def records() -> dict[str, Any]:
            lines: dict[str, Any] = {
                str(folder): [asdict(line) for line in folder_findings(folder)] for folder in datasets
            }
            return lines | {"columns": column_quartiles(datasets)}

        output.show(lambda: examine_datasets(datasets), records)
        return
    from showerstack.report.doctor.machine import findings
    from showerstack.report.shared.text import findings_table

    title = "showerstack on this machine"
    output.show(lambda: findings_table(title, findings()), lambda: [asdict(line) for line in findings()])
