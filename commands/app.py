"""The command line's frame: how commands are registered, options that several share, errors and output.

Options that a command would not use are refused. Output is tables for people, JSON for programs, or nothing.
"""

from __future__ import annotations

import atexit
import difflib
import gc
import inspect
import io
import json
import logging
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from enum import Enum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import OptionInfo

from showerstack.commands.config_file import SOURCE, ConfigOption, file_of, is_from_file, source_of
from showerstack.runtime.context import Bars, Context, PlainConsole, bar, silent
from showerstack.runtime.errors import InputError, as_called, escaped, refuse_little_memory, reporting_errors
from showerstack.runtime.logs import LOG, Lines, LogFile, logging_to
from showerstack.runtime.options import REQUIRED, Limits, Option, OptionGroup, groups_in, is_group, options_of
from showerstack.showers.schema import TASKS

CONTINUES = ("simulate", "features", "stack", "predict", "demo", "download", "convert", "pretrain")
"""Commands that keep finished parts: given again after an interruption, they go on."""


OTHERS = "Other"
PANELS = {
    "A day's work": ("demo", "doctor", "download", "convert", "simulate", "features", "stack", "predict", "verify",
                     "report", "explain", "runs"),
    "Physics": ("spectra", "gamma-limit", "sky-map", "datacheck"),
    "Comparing and publishing": ("compare", "leaderboard", "reproduce", "submit", "export", "taskcard"),
}  # fmt: skip
"""Commands in the order and the groups in which ``--help`` lists them; others follow."""
PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names}


Level = Literal["debug", "info", "warning", "error"]
"""How much is logged."""


@dataclass(frozen=True)
class Logs:
    """Where the program logs: lines on standard error, and a file."""

    level: Level | None = None
    file: Path | None = None

    @contextmanager
    def opened(self, for_people: bool) -> Iterator[None]:
        """Log there; of a command that prints nothing, or for programs alone, only errors are on the screen.

        The file gets what ends the command, with its traceback, as well.
        """
        level = (self.level or "info").upper()
        handlers: list[logging.Handler] = [Lines(level if for_people or self.level else logging.ERROR)]
        if self.file is not None:
            self.file.open("a").close()  # refused before any work
            handlers.append(LogFile(self.file))
        with logging_to(*handlers, level=level):
            try:
                yield
            except Exception as error:
                if self.file is not None and not type(error).__module__.startswith(("typer", "click")):
                    handlers[0].setLevel(logging.CRITICAL)  # told there in one line
                    LOG.exception("%s", type(error).__name__)
                raise


class Expanding(TyperCommand):
    """A command with ``--config``, in whose paths ``~`` is the home folder, also where the shell leaves it."""

    more_in_files = False
    """Whether a file may hold options that the command line lacks."""

    def get_help_option(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """Return the option --help, which takes no value."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.metavar = ""
        return option

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """Run the command; what is logged goes where the program's options say."""
        for name, given in ctx.params.items():
            if isinstance(given, Path):
                ctx.params[name] = given.expanduser()
            elif isinstance(given, list | tuple):
                ctx.params[name] = [one.expanduser() if isinstance(one, Path) else one for one in given]
        self._refuse_replacing(ctx)
        for_people = not (ctx.params.get("quiet") or ctx.params.get("as_json"))
        with ctx.obj.opened(for_people):
            try:
                result = super().invoke(ctx)
            except typer.Exit:  # of a command that has written its answer
                _record_outputs(ctx)
                raise
            _record_outputs(ctx)
            return result

    def _refuse_replacing(self, ctx: typer.Context) -> None:
        """Refuse outputs that would replace an input."""
        from showerstack.runtime.outputs import refuse_replacing  # NumPy comes with it; --help needs none

        options = [one for one in self.params if one.param_type_name == "option"]
        shown = {name: name.upper() for name in ctx.params} | {str(one.name): one.opts[0] for one in options}
        given = [(name, one) for name, values in ctx.params.items() for one in _paths(values)]
        outputs = [(shown[name], path) for name, path in given if name in OUTPUTS]
        inputs = [(shown[name], path) for name, path in given if name not in (*OUTPUTS, *MADE)]
        for option, path in [*outputs, *([("--log-file", ctx.obj.file)] if ctx.obj.file else [])]:
            refuse_replacing(option, path, inputs)


OUTPUTS, MADE = ("out", "log"), ("features",)
"""Parameters of commands that name what is written, and what is made where it is not there."""


OUTPUTS_KEY = "showerstack.outputs"
NO_INPUT = {"out", "log", "overwrite", "workers", "device", "quiet", "as_json", "config"}
"""Parameters that change nothing in what is written, or name it."""
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace a file of that name, whoever wrote it.")]


def claimed(context: typer.Context, *files: Path) -> Path:
    """Return the first of the files that a command is about to write.

    One that exists is refused, unless the same command wrote it of the same input, or --overwrite was said.
    """
    from showerstack.runtime.outputs import Outputs

    given = {name: str(value) for name, value in context.params.items() if name not in NO_INPUT}
    outputs = context.meta.setdefault(OUTPUTS_KEY, Outputs({"command": str(context.command.name), **given}))
    outputs.claim(files, overwrite=bool(context.params.get("overwrite")))
    return files[0]


def _record_outputs(context: typer.Context) -> None:
    if (outputs := context.meta.get(OUTPUTS_KEY)) is not None:
        outputs.record()


def _paths(values: Any) -> list[Path]:
    return [one for one in (values if isinstance(values, list) else [values]) if isinstance(one, Path)]


class Configured(Expanding):
    """A command of which more can be set in a file than on the command line."""

    more_in_files = True


TYPE_WORDS = {Path: "PATH", str: "TEXT", int: "N", float: "X", bool: ""}
"""What stands in the help for a value of a type."""


def with_short_type(annotation: Any) -> Any:
    """Return the annotation of a parameter with a short word for its type, and its choices in the help's text.

    >>> with_short_type(Annotated[list[Path], typer.Option(help="Folders.")]).__metadata__[0].metavar
    'PATH'
    """
    declared = [one for one in getattr(annotation, "__metadata__", ()) if isinstance(one, OptionInfo)]
    if not declared or declared[0].metavar is not None:
        return annotation
    kind, option = get_args(annotation)[0], copy(declared[0])
    inner = [one for one in get_args(kind) if one is not type(None)]
    if get_origin(kind) is not Literal and len(inner) == 1:
        kind = inner[0]
    if get_origin(kind) is Literal:
        choices = list(get_args(kind))
    else:
        choices = [one.value for one in kind] if isinstance(kind, type) and issubclass(kind, Enum) else []
    option.metavar = "NAME" if choices else TYPE_WORDS.get(kind)
    if choices:
        option.help = f"{option.help or ''} One of {', '.join(map(str, choices))}.".strip()
    return Annotated[get_args(annotation)[0], option]


def _is_list(declared: Option) -> bool:
    return tuple in [get_origin(each) for each in (declared.type, *get_args(declared.type))]


def numbers(text: str, option: str) -> tuple[float, ...]:
    """Return comma-separated numbers."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{option} {text!r}: give numbers with commas between, such as 15.2,15.4,15.6") from None


def _flags(declared: Option) -> list[str]:
    return [each for each in declared.metadata if isinstance(each, str)]


def _parameter(name: str, declared: Option, group: type[OptionGroup]) -> inspect.Parameter:
    """Return the parameter by which typer knows an option; names in a list are given with commas between."""
    kind = str if _is_list(declared) else TaskName if name == "task" else declared.type
    limits = next((each for each in declared.metadata if isinstance(each, Limits)), Limits())
    text = f"{declared.help} Commas between them." if _is_list(declared) else declared.help
    shown = typer.Option(*_flags(declared), help=text, rich_help_panel=group.heading, min=limits.ge, max=limits.le)
    default = declared.default
    if _is_list(declared) or (default is REQUIRED and not group.needed):
        default = None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, shown])


def _take_given(declared: Mapping[str, Option], given: dict[str, Any]) -> dict[str, Any]:
    """Return what was given of some options, which are then no longer among what was given."""
    taken = {name: given.pop(name) for name in declared}
    for name, one in declared.items():
        if _is_list(one) and taken[name] is None:
            taken[name] = one.default
        elif _is_list(one):
            of_numbers = float in get_args(one.type)
            taken[name] = numbers(taken[name], _flags(one)[0]) if of_numbers else listed(taken[name])
    return taken


def _make_group(group: type[OptionGroup], given: dict[str, Any]) -> OptionGroup:
    inner = {name: _make_group(kind, given) for name, kind in groups_in(group).items()}
    return group(**inner, **_take_given(options_of(group), given))


def _parameters_of_group(group: type[OptionGroup]) -> list[inspect.Parameter]:
    own = [_parameter(name, one, group) for name, one in options_of(group).items()]
    return own + [each for inner in groups_in(group).values() for each in _parameters_of_group(inner)]


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command as typer takes it, with an option each in place of its groups of options.

    A parameter of type ``Annotated[T, GROUP]`` is the option of its name in that group. ``--config`` is added.
    """
    groups, single = dict[str, type[OptionGroup]](), dict[str, Option]()
    parameters = list[inspect.Parameter]()
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        name, kind = parameter.name, parameter.annotation
        (*_, group) = getattr(kind, "__metadata__", (None,))
        if is_group(kind):
            groups[name] = kind
            parameters += _parameters_of_group(kind)
        elif is_group(group):
            single[name] = options_of(group)[name]
            parameters.append(_parameter(name, single[name], group).replace(default=parameter.default))
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    parameters = [each.replace(annotation=with_short_type(each.annotation)) for each in parameters]
    if parameters:
        config = inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=ConfigOption)
        parameters.append(config)

    @wraps(command)
    def flat(config: None = None, **given: Any) -> None:
        made = {name: _make_group(kind, given) for name, kind in groups.items()}
        command(**made, **_take_given(single, given), **given)

    flat.__signature__, flat.__annotations__ = inspect.Signature(parameters), {}  # type: ignore[attr-defined]
    return flat


class App(typer.Typer):
    """The commands and what is common to them."""

    def command(self, *names: Any, **options: Any) -> Any:
        """Register a function as a command, its examples as the program is called."""

        def registered(function: Any) -> Any:
            function = with_options(function)
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
                message = error.message.replace("Value error, ", "").replace("Input should be", "expected")
                message += suggestion(error.message)
                name = error.param.name if error.param else None
                if error.ctx is not None and name is not None and is_from_file(error.ctx, name):
                    raise InputError(f"{file_of(error.ctx)}: option {name}: {message}") from None
                error.message = message
                raise


SAME = {"gpu": "cuda", "proton": "composition", "mass": "composition", "photon": "gamma"}
"""Words that mean a choice without being like it in letters."""


def suggestion(message: str) -> str:
    """Return ``" Did you mean 'X'?"`` for the parser's message about a word that is no choice; else nothing.

    >>> suggestion("'gama' is not one of 'composition', 'gamma'.")
    " Did you mean 'gamma'?"
    >>> suggestion("'gpu' is not one of 'auto', 'cpu', 'cuda'.")
    " Did you mean 'cuda'?"
    """
    refused, is_of_choices, choices = message.partition(" is not one of ")
    word, known = refused.rpartition(" ")[2].strip("'"), re.findall(r"'([^']*)'", choices)
    near = difflib.get_close_matches(SAME.get(word, word), known, 1, 0.5) if is_of_choices else []
    return f" Did you mean {near[0]!r}?" if near else ""


app = App(
    name=as_called("python cli.py").removeprefix("python "),
    cls=Commands,
    help="Mass composition, gamma/hadron scores and energies of air showers from the raw grids of a surface array.",
    no_args_is_help=True,
    add_completion=Path(sys.argv[0]).stem == "showerstack",
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
console = PlainConsole()


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
    context: typer.Context,
    log_level: Annotated[
        Level | None, typer.Option(help="How much is printed on standard error and logged; default: info.")
    ] = None,
    log_file: Annotated[Path | None, typer.Option(help="Append what is logged to this file, with times.")] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Take the options of the program itself."""
    context.obj = Logs(log_level, log_file.expanduser() if log_file else None)


def _open_closed_streams() -> None:
    """Let what is printed on a stream that was closed go nowhere, not into the next file that gets its number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the least number that is free
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(nowhere, "r" if name == "stdin" else "w", encoding="utf-8"))


def _begin_again_in_utf_8() -> None:
    """Begin the program anew where names of files would be taken as ASCII, which libraries do not understand.

    Python does that in a C locale whose repair was switched off (``PYTHONUTF8=0 PYTHONCOERCECLOCALE=0``).
    """
    if sys.getfilesystemencoding() != "utf-8":
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PYTHONUTF8": "1"})


def main(arguments: list[str] | None = None) -> None:
    """Run the command that the arguments name; by default those of the program."""
    if arguments is None:
        _begin_again_in_utf_8()
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                errors="backslashreplace"
            )  # a name that the terminal's encoding lacks is no reason to stop
    # Imports make objects that stay. Looking for garbage among them, more than once and again at the end, would take
    # a third of the time of a short command.
    gc.set_threshold(2_000, 20, 50)
    atexit.register(gc.freeze)
    # A polite end (kill, a batch system's time limit) cleans up as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    app(arguments)


MEASURED = "measured"
"""Stands beside the tasks where sets are made or fetched: the experiment's own runs."""
Protocol = Literal["v2", "matched", "2026"]
"""Protocols of the public benchmark; their scores are never compared."""
if TYPE_CHECKING:
    TaskName: TypeAlias = str
    SetName: TypeAlias = str
else:
    TaskName = Literal[tuple(TASKS)]
    SetName = Literal[(*TASKS, MEASURED)]


def listed(words: str | None) -> tuple[str, ...] | None:
    """Return comma-separated names, or None where the option was not given."""
    return None if words is None else tuple(word.strip() for word in words.split(",") if word.strip())


def given_options(context: typer.Context) -> set[str]:
    """Return the parameters of a command that its command line or a file names, whatever their values are."""
    return {name for name in context.params if source_of(context, name) in ("COMMANDLINE", SOURCE)}


def refuse_unused(
    context: typer.Context,
    why: str,
    unused: Iterable[str] = (),
    *,
    all_but: Iterable[str] | None = None,
) -> None:
    """Refuse parameters that were given although what the command is about to do does not use them.

    Parameters
    ----------
    why
        What makes them useless, such as ``with --list`` or ``without --table``.
    unused, all_but
        Names of those parameters, or of all the others.
    """
    useless = set(context.params) - set(all_but) if all_but is not None else set(unused)
    given = given_options(context)
    for parameter in context.command.params:
        name = parameter.name or ""
        if name in useless and name in given:
            flag = name.upper() if parameter.param_type_name == "argument" else parameter.opts[0]
            shown = f"{name} (in {file_of(context)})" if is_from_file(context, name) else flag
            raise InputError(f"{shown} has no effect {why}: leave it out")


StrictOption = Annotated[
    bool, typer.Option("--strict", help="Refuse rows that cannot be used, instead of going on without them.")
]


@dataclass(frozen=True)
class OutputFormat(OptionGroup):
    """How a command was asked to answer."""

    quiet: Annotated[bool, "--quiet", "-q"] = False
    """Print nothing but errors."""
    as_json: Annotated[bool, "--json"] = False
    """Print the result as JSON, nothing else."""

    def __post_init__(self) -> None:
        if self.quiet and self.as_json:
            raise InputError("--quiet prints nothing, --json prints JSON: choose one")

    @property
    def bars(self) -> Bars:
        """Progress on standard error, unless nothing is to be seen."""
        return silent if self.quiet else bar

    def context(self, **options: Any) -> Context:
        """Return where and how a command works; see :class:`showerstack.runtime.context.Context`."""
        return Context(bars=self.bars, **options)

    def show(self, shown: Callable[[], Any], data: Callable[[], Any], *, paragraphs: bool = False) -> None:
        """Print what ``shown`` returns, or as JSON what ``data`` returns; only what is wanted is made.

        Lines are not broken, so that paths can be copied, unless there are ``paragraphs`` among them.
        """
        if self.as_json:
            print(json.dumps(data(), indent=2, default=_plain))
        elif not self.quiet:
            console.print(shown(), soft_wrap=not paragraphs)


JsonOption = Annotated[bool, OutputFormat]


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # numbers and arrays of NumPy
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no JSON form")
