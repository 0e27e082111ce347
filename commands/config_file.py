"""Options of a command from a TOML file, ``--config``: as if they stood on the command line, which has precedence.

A file for several commands has a table for each (``[stack]``, ``[predict]``, ...); without such tables all of it is
for the command at hand, as ``config.toml`` of a run is for ``stack``. Names are those of the command line without
dashes in front; an unknown one is refused. Relative paths are relative to where the command is started.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from showerstack.runtime.errors import InputError, most_similar

_FILE, _OPTIONS = f"{__name__}.file", f"{__name__}.options"
SOURCE = "DEFAULT_MAP"
"""What the parser says of a parameter that a file gave."""


def _take(context: typer.Context, file: str | None) -> None:
    if file is None or context.resilient_parsing:
        return
    known = {name: each for each in context.command.params if each.name != "config" for name in _names(each)}
    options, texts = dict[str, Any](), dict[str, Any]()
    for key, value in _of_command(file, context).items():
        name = key.replace("-", "_")
        if name in known:
            texts[known[name].name] = _as_given(value, known[name], file, key)
            name = known[name].name
        elif not getattr(context.command, "more_in_files", False):
            near = most_similar(name, known)
            raise InputError(f"{file}: unknown option {key}" + (f": did you mean {near}?" if near else ""))
        options[name] = value
    context.default_map = texts
    context.meta.update({_FILE: file, _OPTIONS: options})


ConfigOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", is_eager=True, expose_value=False, callback=_take,
        help="TOML file of options, in a table of the command's name or alone; the command line has precedence.",
    ),
]  # fmt: skip


def _names(parameter: Any) -> list[str]:
    """Return the names by which a file may call a parameter."""
    flags = [flag.lstrip("-") for flag in parameter.opts if flag.startswith("--")]
    return [name.replace("-", "_") for name in dict.fromkeys([*flags, parameter.name])]


def _of_command(file: str, context: typer.Context) -> dict[str, Any]:
    """Return the options that a file has for a command."""
    from showerstack.runtime.files import read_toml

    content, name = read_toml(Path(file).expanduser()), str(context.info_name)
    if isinstance(content.get(name), dict):
        return dict(content[name])
    commands = getattr(context.parent and context.parent.command, "commands", {})
    tables = [key for key in content if key in commands and isinstance(content[key], dict)]
    if tables:
        raise InputError(f"{file} has options of {', '.join(tables)} alone: add a table [{name}]")
    return content


def _as_given(value: Any, parameter: Any, file: str, key: str) -> Any:
    """Return a value as the command line would give it, so that nothing is cast in silence."""
    if isinstance(value, dict):
        raise InputError(f"{file}: option {key} is a table, expected a value")
    if getattr(parameter, "multiple", False) or parameter.nargs == -1:
        return [str(one) for one in (value if isinstance(value, list) else [value])]
    if isinstance(value, list):
        return ",".join(map(str, value))
    return value if isinstance(value, bool) and getattr(parameter, "is_flag", False) else str(value)


def file_of(context: Any) -> str | None:
    """Return the file that options of a command came from; None without one."""
    file: str | None = context.meta.get(_FILE)
    return file


def from_file(context: typer.Context) -> dict[str, Any]:
    """Return the options of the file, as TOML has them, that the command line does not give."""
    options: dict[str, Any] = context.meta.get(_OPTIONS, {})
    return {name: value for name, value in options.items() if name not in context.params or is_from_file(context, name)}


def source_of(context: Any, name: str) -> str:
    """Return what the parser says of where a parameter's value came from; its kind of number differs by version."""
    return str(getattr(context.get_parameter_source(name), "name", ""))


def is_from_file(context: Any, name: str) -> bool:
    """Return whether the file gave a parameter."""
    return source_of(context, name) == SOURCE
