"""Commands that train and use runs: stack, predict, demo, check, learners."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from commands.app import app, console
from commands.options import Device, DeviceOption, SeedOption, TaskName, WorkersOption, listed
from commands.output import Answer, JsonOption, QuietOption
from showers.execution.progress import bar
from showers.schema import InputError, task_named


class Preset(StrEnum):
    """How much time a run may take."""

    quick = "quick"
    good = "good"
    best = "best"


@app.command()
def stack(
    context: typer.Context,
    run: Annotated[Path | None, typer.Option(help="Run folder; an interrupted run is continued.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file of options; the command line has precedence.")] = None,
    task: Annotated[TaskName, typer.Option(help="Which task to train for.")] = "composition",
    data: Annotated[Path, typer.Option(help="Folder with {task}_train and {task}_test.")] = Path("data"),
    preset: Annotated[
        Preset,
        typer.Option(
            help="quick: minutes for tens of thousands of showers; good: learners that pay in a stack; best: several "
            "times longer. From 20,000 training showers on, a run says at its start what it will take; --time-limit "
            "plans less."
        ),
    ] = Preset.good,
    learners: Annotated[str | None, typer.Option(help="Comma-separated names instead of the preset's.")] = None,
    folds: Annotated[int | None, typer.Option(min=2, help="Number of folds instead of the preset's.")] = None,
    time_limit: Annotated[
        str | None, typer.Option(help="Limit for the whole run, e.g. 4h, 30m: learners, rows, epochs and folds follow.")
    ] = None,
    prune: Annotated[
        float, typer.Option(min=0, help="Leave learners out of the stack that improve the log-loss by less (nats).")
    ] = 2e-4,
    seed: SeedOption = 1,
    device: DeviceOption = Device.auto,
    workers: WorkersOption = None,
    scheduler: Annotated[str | None, typer.Option(help="Dask scheduler, e.g. tcp://host:8786.")] = None,
    table: Annotated[Path | None, typer.Option(help="Train on this table (Parquet, CSV, TSV), not on showers.")] = None,
    label: Annotated[str | None, typer.Option(help="With --table: the column with the classes.")] = None,
    group: Annotated[str | None, typer.Option(help="With --table: rows equal here stay in one fold.")] = None,
    test_table: Annotated[Path | None, typer.Option(help="With --table: rows to predict.")] = None,
    id: Annotated[str | None, typer.Option(help="With --table: columns that identify rows, not for training.")] = None,
    columns: Annotated[str | None, typer.Option(help="With --table: columns to learn from; default: all.")] = None,
    separator: Annotated[str | None, typer.Option(help="With --table: column separator; default: by the name.")] = None,
    features: Annotated[Path | None, typer.Option(help="Folder for feature tables; default: beside the data.")] = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train base learners and the stack on out-of-fold predictions, predict the test set, score, report.

    Example: [bold]python cli.py stack --task gamma --data data --run runs/gamma --preset quick[/bold]

    Any table: [bold]python cli.py stack --table wine.csv --label quality --run runs/wine[/bold]

    As another run: [bold]python cli.py stack --config runs/gamma/config.toml --seed 2 --run runs/gamma-2[/bold]
    """
    output = Answer(quiet, as_json)
    options: dict[str, Any] = {
        "run": run,
        "preset": preset.value,
        "learners": listed(learners),
        "folds": folds,
        "time_limit": time_limit,
        "prune": prune,
        "seed": seed,
        "device": device.value,
        "workers": workers,
        "scheduler": scheduler,
    }
    of_showers = {"task": str(task), "data": data, "features": features}
    of_table = {
        "table": table,
        "label": label,
        "group": group,
        "test_table": test_table,
        "id": listed(id),
        "columns": listed(columns),
        "separator": {"tab": "\t", "\\t": "\t"}.get(separator or "", separator),
    }
    options |= of_showers | of_table
    if config:
        from stacking.run.toml import read_config

        given = {name for name in options if str(context.get_parameter_source(name)).endswith("COMMANDLINE")}
        options |= {name: value for name, value in read_config(config).items() if name not in given}
    if not options["run"]:
        raise InputError("say where the run goes: --run FOLDER")
    from models.registry import spec

    for name in options["learners"] or ():
        spec(name)  # a mistyped name is told before anything slow is imported
    run, on_table = Path(options["run"]), bool(options["table"])
    if on_table and not options["label"]:
        raise InputError("say which column of the table holds the classes: --label COLUMN")
    for name in of_showers if on_table else of_table:
        del options[name]
    if on_table:
        inputs = [Path(options[name]) for name in ("table", "test_table") if options[name]]
    else:
        inputs = [Path(options["data"]) / f"{options['task']}_{split}" for split in ("train", "test")]
    asked = json.loads(json.dumps(options, default=str))
    from report.reading.finished import kept_outcome

    lines = None if as_json else kept_outcome(run, asked, inputs)
    if lines is not None:
        if not quiet:
            print(lines, end="")
        return
    from report.terminal.outcome import outcome
    from showers.execution.beginning import process_began

    if on_table:
        from stacking.run.config import TableConfig
        from stacking.tables.train import stack_table

        stack_table(TableConfig(**options), bars=output.bars, say=output.say, began=process_began())
        found = outcome(run, None, None, bars=output.bars)
    else:
        from stacking.pipeline import stack as train
        from stacking.run.config import StackConfig

        train(StackConfig(**options), bars=output.bars, tell=output.remark, say=output.say, began=process_began())
        found = outcome(run, Path(options["data"]), task_named(options["task"]), bars=output.bars)
    found.keep(asked, inputs)
    output.show(lambda: found.shown, lambda: found.content)


@app.command()
def predict(
    run: Annotated[Path, typer.Option(help="Finished run folder.")],
    data: Annotated[Path, typer.Option(help="Dataset folder (or table); labels are neither needed nor read.")],
    out: Annotated[Path, typer.Option(help="File to write, e.g. predictions.npz.")],
    device: DeviceOption = Device.auto,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Predict even if the feature code has changed since.")
    ] = False,
    trusted: Annotated[bool, typer.Option("--trusted", help="Your own run: open its models in this process.")] = False,
    features: Annotated[Path | None, typer.Option(help="The feature table; default: beside the data.")] = None,
    no_table: Annotated[
        bool, typer.Option("--no-table", help="Compute features in memory and keep no table of them.")
    ] = False,
    fast: Annotated[bool, typer.Option("--fast", help="Use a small network that imitates the stack.")] = False,
    separator: Annotated[str | None, typer.Option(help="Column separator of a text table.")] = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Predict new, unlabelled events with a finished run.

    The models of a run are opened in a limited process of their own: their libraries' parsers can crash on a damaged
    or hostile file. --trusted opens those of your own runs without it.

    Example: [bold]python cli.py predict --run runs/gamma --data data/gamma_test --out new.npz[/bold]
    """
    from stacking.output import predict_to_file

    output = Answer(quiet, as_json)
    written = predict_to_file(
        run, data, out, device=device.value, anyway=anyway, trusted=trusted, features=features, no_table=no_table,
        fast=fast, separator=separator, bars=output.bars,
    )  # fmt: skip
    for line in written.remarks:
        output.remark(line)
    content = {"out": out, "events": written.n_events, "remarks": list(written.remarks)}
    output.show(lambda: f"wrote {out}", lambda: content)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for data and runs.")] = Path("demo"),
    train: Annotated[
        int, typer.Option(min=500, help="Training showers for each task, under the test's cuts.")
    ] = 22_000,
    test: Annotated[int, typer.Option(min=200, help="Test showers for each task.")] = 12_000,
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
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare every file of a finished folder with its checksums; exit code 1 and a line for each that differs.

    This shows damage and mix-ups, not forgery: whoever can replace a file can replace its checksum too.

    Example: [bold]python cli.py check runs/composition[/bold]
    """
    from report.terminal.check import check_folder

    output = Answer(quiet, as_json)
    kind, problems = check_folder(folder, bars=output.bars)
    output.show(
        lambda: "\n".join(problems) or f"{folder} is a sound {kind}",
        lambda: {"folder": folder, "kind": kind, "sound": not problems, "problems": problems},
    )
    if problems:
        raise typer.Exit(1)


@app.command()
def learners(as_json: JsonOption = False) -> None:
    """List the base learners: inputs, parameters, source.

    Example: [bold]python cli.py learners[/bold]
    """
    from models.registry import listing, rows

    Answer(as_json=as_json).show(listing, rows)
