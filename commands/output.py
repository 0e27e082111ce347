"""What a command prints: tables for people, JSON for programs, or nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from commands.app import console, remark
from showers.execution.progress import Bars, bar, silent
from showers.execution.terminal import escaped
from showers.schema import InputError

QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON, nothing else.")]


@dataclass(frozen=True)
class Answer:
    """How a command was asked to answer."""

    quiet: bool = False
    as_json: bool = False

    def __post_init__(self) -> None:
        if self.quiet and self.as_json:
            raise InputError("--quiet prints nothing, --json prints JSON: choose one")

    @property
    def for_people(self) -> bool:
        """Whether tables and remarks are wanted."""
        return not (self.quiet or self.as_json)

    @property
    def bars(self) -> Bars:
        """Progress on standard error, unless nothing is to be seen."""
        return silent if self.quiet else bar

    def remark(self, line: str) -> None:
        """Tell the user something about the data or a run."""
        if self.for_people:
            remark(line)

    def say(self, line: str) -> None:
        """Tell the user what is going to be done."""
        if self.for_people:
            console.print(escaped(line), markup=False, highlight=False, soft_wrap=True)

    def show(self, shown: Callable[[], Any], data: Callable[[], Any], *, paragraphs: bool = False) -> None:
        """Print what ``shown`` returns, or as JSON what ``data`` returns; only what is wanted is made.

        Lines are not broken, so that paths can be copied, unless there are ``paragraphs`` among them.
        """
        if self.as_json:
            print(json.dumps(data(), indent=2, default=_plain))
        elif not self.quiet:
            console.print(shown(), soft_wrap=not paragraphs)


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # numbers and arrays of NumPy
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no JSON form")
