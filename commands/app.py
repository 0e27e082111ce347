"""The command line's frame: how commands are registered, options that several share, errors and output.

Options that a command would not use are refused. Output is tables for people, JSON for programs, or nothing.
"""

from __future__ import annotations

import difflib
import io
import json
import logging
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from typer.core import TyperCommand, TyperGroup

from showerstack.runtime.context import Bars, Context, PlainConsole, bar, silent
from showerstack.runtime.errors import InputError, as_called, escaped, refuse_little_memory, reporting_errors
from showerstack.showers.schema import TASKS

CONTINUES = ("simulate", "features", "stack", "predict", "demo", "download", "convert", "pretrain")
"""Commands that keep finished parts: given again after an interruption, they go on."""


OTHERS = "Other"
PANELS = {
    "A day's work": ("demo", "doctor", "download", "convert", "simulate", "features", "stack", "predict", "verify",
                     "report", "runs"),
    "Physics": ("spectra", "gamma-limit", "sky-map", "datacheck"),
    "Comparing and publishing": ("compare", "leaderboard", "reproduce", "submit", "export", "taskcard"),
}  # fmt: skip
"""Commands in the order and the groups in which ``--help`` lists them; others follow."""
PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names}


class Expanding(TyperCommand):
    """A command in whose paths ``~`` is the home folder, also where the shell leaves it (``--run=~/runs/a``)."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """Run the command."""
        for name, given in ctx.params.items():
            if isinstance(given, Path):
                ctx.params[name] = given.expanduser()
            elif isinstance(given, list | tuple):
                ctx.params[name] = [one.expanduser() if isinstance(one, Path) else one for one in given]
        return super().invoke(ctx)


class App(typer.Typer):
    """The commands and what is common to them."""

    def command(self, *names: Any, **options: Any) -> Any:
        """Register a function as a command, its examples as the program is called."""

        def registered(function: Any) -> Any:
            function.__doc__ = as_called(function.__doc__ or "")
            name = names[0] if names else function.__name__.replace("_", "-")
            panel = {"rich_help_panel": PANEL_OF.get(name, OTHERS)}
            return super(App, self).command(*names, **{"cls": Expanding, **panel, **options})(function)

        return registered


class Commands(TyperGroup):
    """All commands; the one place where what leaves a command becomes a line and an exit code."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        """Return the names of all commands, group by group."""
        order = list(PANEL_OF)
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: order.index(name) if name in order else len(order))

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """Run a command; what the user can mend is told in one line with exit code 2."""

        def interrupted() -> str:
            if ctx.invoked_subcommand not in CONTINUES:
                return "interrupted: nothing was changed"
            program = Path(sys.argv[0]).name
            again = shlex.join([*(("python",) if program.endswith(".py") else ()), program, *sys.argv[1:]])
            return f"interrupted: what is finished is kept; to go on: {escaped(again)}"

        with reporting_errors(interrupted):
            try:
                refuse_little_memory()
                return super().invoke(ctx)
            except typer.BadParameter as error:
                error.message = error.message.replace("Value error, ", "") + meant(error.message)
                raise


SAME = {"gpu": "cuda", "proton": "composition", "mass": "composition", "photon": "gamma"}
"""Words that mean a choice without being like it in letters."""


def meant(message: str) -> str:
    """Return ``" Did you mean 'X'?"`` for the parser's message about a word that is no choice; else nothing.

    >>> meant("'gama' is not one of 'composition', 'gamma'.")
    " Did you mean 'gamma'?"
    >>> meant("'gpu' is not one of 'auto', 'cpu', 'cuda'.")
    " Did you mean 'cuda'?"
    """
    given, result, choices = message.partition(" is not one of ")
    word, known = given.rpartition(" ")[2].strip("'"), re.findall(r"'([^']*)'", choices)
    near = difflib.get_close_matches(SAME.get(word, word), known, 1, 0.5) if result else []
    return f" Did you mean {near[0]!r}?" if near else ""


app = App(
    name=as_called("python cli.py").removeprefix("python "),
    cls=Commands,
    help="Mass composition and gamma/hadron separation of air showers from raw detector-array grids.",
    no_args_is_help=True,
    add_completion=Path(sys.argv[0]).stem == "showerstack",
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
console = PlainConsole()


def remark(line: str) -> None:
    """Tell the user something about the data or a run."""
    console.print(escaped(f"remark: {line}"), style="yellow", markup=False, highlight=False, soft_wrap=True)


class _Lines(logging.Handler):
    """Prints what is logged for people: remarks, and what is going to be done."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        line = record.getMessage()
        if record.levelno >= logging.WARNING:
            remark(line)
        else:
            console.print(escaped(line), markup=False, highlight=False, soft_wrap=True)


def _version(requested: bool) -> None:
    if requested:
        from importlib.metadata import PackageNotFoundError, version

        try:
            console.print(f"showerstack {version('showerstack')}")
        except PackageNotFoundError:
            raise InputError("showerstack is not installed: run make env or pip install -e .") from None
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Take the options of the program itself."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command that the arguments name; by default those of the program."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                errors="backslashreplace"
            )  # a name that the terminal's encoding lacks is no reason to stop
    # A polite end (kill, a batch system's time limit) cleans up as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    app(arguments)


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


def given_options(context: typer.Context) -> set[str]:
    """Return the parameters of a command that its command line names, whatever their values are."""
    return {name for name in context.params if str(context.get_parameter_source(name)).endswith("COMMANDLINE")}


def refuse_unused(
    context: typer.Context,
    why: str,
    unused: Iterable[str] = (),
    *,
    all_but: Iterable[str] | None = None,
    in_file: Iterable[str] = (),
) -> None:
    """Refuse parameters that were given although what the command is about to do does not use them.

    Parameters
    ----------
    context
        The command's.
    why
        What makes them useless, such as ``with --list`` or ``without --table``.
    unused, all_but
        Names of those parameters, or of all the others.
    in_file
        Names of those given in a file of options.

    Raises
    ------
    InputError
        If one was given; the first in the order of the command's help is named.
    """
    useless = set(context.params) - set(all_but) if all_but is not None else set(unused)
    given = given_options(context)
    for parameter in context.command.params:
        name = parameter.name or ""
        if name in useless and name in given:
            flag = name.upper() if parameter.param_type_name == "argument" else parameter.opts[0]
            raise InputError(f"{flag} has no effect {why}: leave it out")
        if name in useless and name in in_file:
            raise InputError(f"{name} (in {context.params['config']}) has no effect {why}: leave it out")


SeedOption = Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")]
DeviceOption = Annotated[Device, typer.Option(help="auto: the GPU if there is one.")]
WorkersOption = Annotated[int | None, typer.Option(min=1, help="Number of processes; default: all cores.")]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Refuse rows that cannot be used, instead of going on without them.")
]


QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON, nothing else.")]


@dataclass(frozen=True)
class OutputFormat:
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

    def context(self, **options: Any) -> Context:
        """Return where and how a command works and what it prints meanwhile; see
        :class:`showerstack.runtime.context.Context`."""
        log = logging.Logger("showerstack", logging.INFO)
        log.addHandler(_Lines() if self.for_people else logging.NullHandler())
        return Context(bars=self.bars, log=log, **options)

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
