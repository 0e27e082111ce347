"""Every command of a benchmark that a page or a script's own text names can be typed."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from showerstack.runtime.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
COMMAND = re.compile(r"python -m (benchmarks(?:\.\w+)+)((?: (?![#|&(])[^\s`;]+)*)")
BROKEN = re.compile(r"\\+\n *|(?<=[^`]`)[^`]+(?=`[^`])")
"""A line that goes on, or inline code that a line's end may cut."""
LETTER = re.compile(r"[A-Z]")
"""It stands for a number."""
REST = "ARGUMENTS"
"""It stands for arguments that are noted elsewhere."""


class Parsed(Exception):
    """The options were read."""


def commands() -> list[tuple[str, str, str]]:
    """Return file, module and options of every command."""
    folders = (ROOT / "docs", ROOT / "benchmarks")
    files = [
        *ROOT.glob("*.md"),
        *(path for folder in folders for end in ("*.md", "*.py") for path in folder.rglob(end)),
    ]
    named = {}
    for file in files:
        text = BROKEN.sub(lambda code: code[0].strip("\\ \n").replace("\n", " "), file.read_text(encoding="utf-8"))
        for module, options in COMMAND.findall(text):
            named.setdefault((module, options.strip()), file.relative_to(ROOT).as_posix())
    return [(file, *command) for command, file in sorted(named.items())]


@pytest.mark.parametrize(("file", "module", "options"), commands())
def test_the_command_is_understood(file: str, module: str, options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(parser: argparse.ArgumentParser, *given: Any, **more: Any) -> None:
        original(parser, *given, **more)
        raise Parsed

    original = argparse.ArgumentParser.parse_args
    words = ["1" if LETTER.fullmatch(word) else word for word in shlex.split(options) if word != REST]
    try:
        program = importlib.import_module(module)
    except InputError as error:  # a library that is no dependency of ours
        pytest.skip(str(error))
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    monkeypatch.setattr(sys, "argv", [module, *words])
    if not words and not hasattr(program, "main"):
        return  # it has no options
    with pytest.raises(SystemExit if words == ["--help"] else Parsed):
        program.main()
