"""Commands that train and use runs: stack, predict, demo, check, learners."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from commands.app import app, console
from commands.options import Device, DeviceOption, SeedOption, TaskName, WorkersOption
from showers.execution.progress import bar
from showers.schema import task_named


class Preset(StrEnum):
    """How much time a run may take."""

    quick = "quick"
    good = "good"
    best = "best"


@app.command()
def stack(
    run: Annotated[Path, typer.Option(help="Run folder; a killed run is continued.")],
    task: Annotated[TaskName, typer.Option(help="Which task to train for.")] = TaskName.composition,
    data: Annotated[Path, typer.Option(help="Folder with {task}_train and {task}_test.")] = Path("data"),
    preset: Annotated[Preset, typer.Option(help="quick: minutes; good: an hour; best: as long as it takes.")] = (
        Preset.good
    ),
    learners: Annotated[str | None, typer.Option(help="Comma-separated names instead of the preset's.")] = None,
    folds: Annotated[int | None, typer.Option(min=2, help="Number of folds instead of the preset's.")] = None,
    seed: SeedOption = 1,
    device: DeviceOption = Device.auto,
    workers: WorkersOption = None,
    scheduler: Annotated[str | None, typer.Option(help="Dask scheduler, e.g. tcp://host:8786.")] = None,
    table: Annotated[Path | None, typer.Option(help="Train on this Parquet or CSV instead of showers.")] = None,
    label: Annotated[str | None, typer.Option(help="With --table: the column with the classes.")] = None,
    group: Annotated[str | None, typer.Option(help="With --table: rows equal here never span folds.")] = None,
    test_table: Annotated[Path | None, typer.Option(help="With --table: rows to predict.")] = None,
) -> None:
    """Train base learners and the stack on out-of-fold predictions, predict the test set, score, report.

    Example: [bold]python cli.py stack --task gamma --data data --run runs/gamma --preset quick[/bold]

    Any table: [bold]python cli.py stack --table wine.csv --label quality --run runs/wine[/bold]
    """
    names = None if learners is None else tuple(name.strip() for name in learners.split(",") if name.strip())
    from models.registry import spec

    for name in names or ():
        spec(name)  # a mistyped name is told before anything slow is imported
    options = {
        "run": run,
        "preset": preset.value,
        "learners": names,
        "folds": folds,
        "seed": seed,
        "device": device.value,
        "workers": workers,
        "scheduler": scheduler,
    }
    from report.outcome import show_outcome, show_table_outcome

    if table:
        from stacking.run.config import TableConfig
        from stacking.table import stack_table

        stack_table(TableConfig(table=table, label=label, group=group, test_table=test_table, **options), bars=bar)
        show_table_outcome(run, console=console)
        return
    from stacking.pipeline import stack as train
    from stacking.run.config import StackConfig

    train(StackConfig(task=task.value, data=data, **options), bars=bar)
    show_outcome(run, data, task_named(task), console=console, bars=bar)


@app.command()
def predict(
    run: Annotated[Path, typer.Option(help="Finished run folder.")],
    data: Annotated[Path, typer.Option(help="Dataset folder (or table); labels are neither needed nor read.")],
    out: Annotated[Path, typer.Option(help="File to write, e.g. predictions.npz.")],
    device: DeviceOption = Device.auto,
    anyway: Annotated[bool, typer.Option("--anyway", help="Even if the feature code has changed since.")] = False,
    trusted: Annotated[bool, typer.Option("--trusted", help="Your own run: open its models in this process.")] = False,
) -> None:
    """Predict new, unlabelled events with a finished run.

    The models of a run are opened in a limited process of their own: their libraries' parsers can crash on a damaged
    or hostile file. --trusted opens those of your own runs without it.

    Example: [bold]python cli.py predict --run runs/gamma --data data/gamma_test --out new.npz[/bold]
    """
    from stacking.output import predict_to_file

    predictions = predict_to_file(run, data, out, device=device.value, anyway=anyway, trusted=trusted, bars=bar)
    for remark in predictions.remarks:
        console.print(f"remark: {remark}", soft_wrap=True, markup=False)
    console.print(f"wrote {out}", soft_wrap=True)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for data and runs.")] = Path("demo"),
    train: Annotated[int, typer.Option(min=500, help="Training showers a task, under the test's cuts.")] = 30_000,
    test: Annotated[int, typer.Option(min=200, help="Test showers a task.")] = 12_000,
    seed: SeedOption = 1,
    workers: WorkersOption = None,
) -> None:
    """Run everything on the embedded simulation: simulate, features, stack, predict, verify, report, for both tasks.

    Example: [bold]python cli.py demo --train 5000 --test 2000[/bold]
    """
    from report.demo import run_demo

    run_demo(out, n_train=train, n_test=test, seed=seed, workers=workers, console=console, bars=bar)


@app.command()
def check(
    folder: Annotated[Path, typer.Argument(help="Run, feature table or dataset folder.")],
) -> None:
    """Compare every file of a finished folder with its checksums; exit code 1 and a line for each that differs.

    This shows damage and mix-ups, not forgery: whoever can replace a file can replace its checksum too.

    Example: [bold]python cli.py check runs/composition[/bold]
    """
    from report.check import check_folder

    kind, problems = check_folder(folder, bars=bar)
    for problem in problems:
        console.print(problem, soft_wrap=True)
    if problems:
        raise typer.Exit(1)
    console.print(f"{folder} is a sound {kind}", soft_wrap=True)


@app.command()
def learners() -> None:
    """List the base learners: inputs, parameters, source.

    Example: [bold]python cli.py learners[/bold]
    """
    from models.registry import listing

    console.print(listing())
