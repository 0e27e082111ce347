"""Commands that make or fetch data: simulate, features, download, convert."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from commands.app import app, console
from commands.options import Device, DeviceOption, SeedOption, TaskName, WorkersOption
from showers.execution.progress import bar
from showers.schema import InputError, task_named


class Model(StrEnum):
    """Hadronic interaction model of the simulation."""

    qgs = "qgs"
    epos = "epos"
    sibyll = "sibyll"
    mix = "mix"


class TrainCuts(StrEnum):
    """Selection of simulated training events."""

    none = "none"
    test = "test"


@app.command()
def simulate(
    task: Annotated[TaskName | None, typer.Option(help="Which sets to make.")] = None,
    out: Annotated[Path, typer.Option(help="Folder that gets {task}_train and {task}_test.")] = Path("data"),
    train: Annotated[int, typer.Option(min=1, help="Training events written.")] = 30_000,
    test: Annotated[int, typer.Option(min=1, help="Test events written (always under the test's cuts).")] = 12_000,
    seed: SeedOption = 1,
    model: Annotated[Model, typer.Option(help="Hadronic model; mix as in the benchmark's v2 protocol.")] = Model.mix,
    train_cuts: Annotated[TrainCuts, typer.Option(help="none as in v2, or the test's cuts.")] = TrainCuts.none,
    world: Annotated[str, typer.Option(help="default, harder, easier, or a TOML file of settings.")] = "default",
    reuse: Annotated[int, typer.Option(min=1, help="Throw each shower this often, at different cores.")] = 1,
    workers: WorkersOption = None,
    overwrite: Annotated[bool, typer.Option(help="Replace existing sets.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Write raw NPZ archives instead: TRAIN events a model.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Compare the world with the real data's facts instead.")] = (
        False
    ),
) -> None:
    """Simulate a training and a test set in the benchmark's file format.

    With --raw the public data's raw archives are written instead, with arrival times, all columns and no cuts.
    With --check nothing is written: every known fact of the real data is printed beside its simulated value, and the
    exit code is 1 if one is outside its tolerance.

    Example: [bold]python cli.py simulate --task gamma --out data --train 20000 --test 5000 --train-cuts test[/bold]
    """
    if check:
        from showers.simulation.settings import load_settings
        from showers.simulation.validation.check import realism, rendered

        facts = realism(load_settings(world), seed=seed, workers=workers, bars=bar)
        console.print(rendered(facts))
        raise typer.Exit(0 if facts["ok"].all() else 1)
    if task is None:
        raise InputError("say which sets to simulate: --task composition or --task gamma")
    if raw:
        from showers.simulation.raw import simulate_raw

        files = simulate_raw(
            task_named(task),
            out,
            train,
            seed=seed,
            world=world,
            workers=workers,
            reuse=reuse,
            overwrite=overwrite,
            bars=bar,
        )
        for file in files:
            console.print(f"wrote {file}", soft_wrap=True)
        return
    from showers.simulation import simulate as run

    folders = run(
        task_named(task),
        out,
        n_train=train,
        n_test=test,
        seed=seed,
        model=model.value,
        train_cuts=train_cuts.value,
        world=world,
        reuse=reuse,
        workers=workers,
        overwrite=overwrite,
        bars=bar,
    )
    for folder in folders:
        console.print(f"wrote {folder}", soft_wrap=True)


@app.command()
def features(
    dataset: Annotated[Path | None, typer.Argument(help="Dataset folder.")] = None,
    out: Annotated[Path | None, typer.Option(help="Feature table; default: DATASET.features.")] = None,
    device: DeviceOption = Device.auto,
    workers: WorkersOption = None,
    list_features: Annotated[bool, typer.Option("--list", help="List the features instead.")] = False,
    group: Annotated[str | None, typer.Option(help="With --list: only this group.")] = None,
    format: Annotated[str, typer.Option(help="With --list: table or md.")] = "table",
) -> None:
    """Build the feature table of a dataset, or list what is in one.

    Example: [bold]python cli.py features data/gamma_train[/bold]
    """
    from features.build import build_table
    from features.catalogue import listing

    if list_features:
        console.print(listing(group, format), soft_wrap=True)
        return
    if dataset is None:
        raise InputError("say which dataset folder: python cli.py features DATASET (or --list)")
    table = build_table(dataset, out, device=device.value, workers=workers, bars=bar)
    console.print(f"{len(table):,} events, {len(table.columns)} columns in {table.folder}", soft_wrap=True)


@app.command()
def download(
    task: Annotated[TaskName, typer.Option(help="Which sets to fetch.")],
    out: Annotated[Path, typer.Option(help="Folder that gets {task}_train and {task}_test.")] = Path("data"),
    base_url: Annotated[str | None, typer.Option(help="Another place with the same layout.")] = None,
) -> None:
    """Fetch the public benchmark's own files (several GB); an interrupted download is continued.

    Example: [bold]python cli.py download --task gamma --out data[/bold]
    """
    from showers.archives.download import BUCKET
    from showers.archives.download import download as fetch_sets

    for folder in fetch_sets(task_named(task), out, base_url=base_url or BUCKET, bars=bar):
        console.print(f"complete: {folder}", soft_wrap=True)


@app.command()
def convert(
    raw: Annotated[Path, typer.Option(help="Folder with the raw NPZ files.")],
    out: Annotated[Path, typer.Option(help="Folder that gets {task}_train and {task}_test.")],
    task: Annotated[TaskName, typer.Option(help="Which sets to make.")] = TaskName.composition,
    protocol: Annotated[str, typer.Option(help="v2, or matched (QGSJet only, with age).")] = "v2",
) -> None:
    """Turn raw simulation files into dataset folders of either protocol.

    Example: [bold]python cli.py convert --raw raw --out data --protocol matched[/bold]
    """
    from showers.archives.convert import convert as write_sets

    for folder in write_sets(raw, out, task_named(task), protocol=protocol, bars=bar):
        console.print(f"wrote {folder}", soft_wrap=True)
