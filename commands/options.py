"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from showers.schema import TASKS

MEASURED = "measured"
"""Stands beside the tasks where sets are made or fetched: the experiment's own runs."""
if TYPE_CHECKING:
    TaskName: TypeAlias = str
    SetName: TypeAlias = str
else:
    TaskName = StrEnum("TaskName", {name: name for name in TASKS})
    SetName = StrEnum("SetName", {name: name for name in (*TASKS, MEASURED)})


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


def listed(words: str | None) -> tuple[str, ...] | None:
    """Return comma-separated names, or None where the option was not given."""
    return None if words is None else tuple(word.strip() for word in words.split(",") if word.strip())


SeedOption = Annotated[int, typer.Option(help="Seed of all random numbers.")]
DeviceOption = Annotated[Device, typer.Option(help="auto: the GPU if there is one.")]
WorkersOption = Annotated[int | None, typer.Option(min=1, help="Number of processes; default: all cores.")]
