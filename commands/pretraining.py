"""The command that trains the shower network on simulated showers from randomised worlds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from commands.app import app, console
from commands.options import Device, DeviceOption, SeedOption
from showers.execution.progress import bar


@app.command()
def pretrain(
    out: Annotated[Path, typer.Option(help="Folder of plan, state and weights; an interrupted run is continued.")],
    showers: Annotated[int, typer.Option(min=1, help="Approximate number of showers to simulate.")] = 10_000_000,
    seed: SeedOption = 1,
    workers: Annotated[int, typer.Option(min=1, help="Processes that simulate showers during the training.")] = 1,
    device: DeviceOption = Device.auto,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Showers per step; the learning rate is scaled with it.")
    ] = 512,
    threads: Annotated[int, typer.Option(min=1, help="Numerical threads of the training.")] = 1,
) -> None:
    """Pretrain the shower network on simulated showers that are drawn on the fly, from randomised worlds.

    The weights, with a card that says how they were made, are what the learner [bold]pretrained[/bold] starts from.

    Example: [bold]python cli.py pretrain --out runs/pretraining --showers 20000000[/bold]
    """
    from models.devices import device_for
    from models.pretraining.learner import PretrainedLearner
    from models.pretraining.plan import PretrainSettings
    from models.pretraining.train import pretrain as run
    from showers.storage.files import hash_file

    settings = PretrainSettings.of_batches(batch_size, showers=showers, seed=seed)
    file = run(
        out, settings, workers=workers, threads=threads, device=device_for(PretrainedLearner, device.value), bars=bar
    )
    console.print(f"wrote {file}, SHA-256 {hash_file(file)}", soft_wrap=True)
