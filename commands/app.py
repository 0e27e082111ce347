"""The command line's frame: how commands are registered, what is common to them, how their errors are told."""

from __future__ import annotations

import difflib
import io
import re
import shlex
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from showers.execution.failures import told
from showers.execution.terminal import PlainConsole, as_called, escaped
from showers.schema import InputError

CONTINUES = ("simulate", "features", "stack", "predict", "demo", "download", "convert", "pretrain", "robustness")
"""Commands that keep finished parts: given again after an interruption, they go on."""


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
        register = super().command(*names, **{"cls": Expanding, **options})

        def registered(function: Any) -> Any:
            function.__doc__ = as_called(function.__doc__ or "")
            return register(function)

        return registered


class Commands(TyperGroup):
    """All commands; the one place where what leaves a command becomes a line and an exit code."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """Run a command; what the user can mend is told in one line with exit code 2."""

        def interrupted() -> str:
            if ctx.invoked_subcommand not in CONTINUES:
                return "interrupted: nothing was changed"
            program = Path(sys.argv[0]).name
            again = shlex.join([*(("python",) if program.endswith(".py") else ()), program, *sys.argv[1:]])
            return f"interrupted: what is finished is kept; to go on: {escaped(again)}"

        with told(interrupted):
            try:
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
    given, found, choices = message.partition(" is not one of ")
    word, known = given.rpartition(" ")[2].strip("'"), re.findall(r"'([^']*)'", choices)
    near = difflib.get_close_matches(SAME.get(word, word), known, 1, 0.5) if found else []
    return f" Did you mean {near[0]!r}?" if near else ""


app = App(
    name=as_called("python cli.py").removeprefix("python "),
    cls=Commands,
    help="Mass composition and gamma/hadron separation of air showers from raw detector-array grids.",
    no_args_is_help=True,
    add_completion=Path(sys.argv[0]).stem == "showerstack",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
console = PlainConsole()


def remark(line: str) -> None:
    """Tell the user something about the data or a run."""
    console.print(escaped(f"remark: {line}"), style="yellow", markup=False, highlight=False, soft_wrap=True)


def _version(asked: bool) -> None:
    if asked:
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


def main() -> None:
    """Run the command that the arguments name."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                errors="backslashreplace"
            )  # a name that the terminal's encoding lacks is no reason to stop
    # A polite end (kill, a batch system's time limit) cleans up as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    app()
