"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class TaskName(StrEnum):
    """The benchmark's two tasks."""

    composition = "composition"
    gamma = "gamma"


class SetName(StrEnum):
    """What can be simulated and downloaded: the two tasks' sets, and measured runs."""

    composition = "composition"
    gamma = "gamma"
    measured = "measured"


class Protocol(StrEnum):
    """Protocols of the public benchmark; their scores are never compared."""

    v2 = "v2"
    matched = "matched"
    current = "2026"


class Device(StrEnum):
    """Where numerical work runs."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


SeedOption = Annotated[int, typer.Option(help="Same seed, same result.")]
DeviceOption = Annotated[Device, typer.Option(help="auto uses the GPU if one answers.")]
WorkersOption = Annotated[int | None, typer.Option(min=1, help="Processes; default: all cores.")]
