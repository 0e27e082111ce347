"""Every command of a benchmark that a page or a script's own text names can be typed.

Commands of scripts that are gone are named with the commit that had them: beside the command, or in the row ``commit``
of the head of a stored result.
"""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from showerstack.runtime.errors import InputError

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
COMMAND = re.compile(
    r"python -m (benchmarks(?:\.\w+)+)((?: (?![#|&(])[^\s`;]+)*)(?:`\s*of\s+commit\s+([0-9a-f]{7,40}))?"
)
BROKEN = re.compile(r"\\+\n *|(?<=[^`]`)[^`]+(?=`[^`])")
"""A line that goes on, or inline code that a line's end may cut."""
LETTER = re.compile(r"[A-Z]")
"""It stands for a number."""
REST = "ARGUMENTS"
"""It stands for arguments that are noted elsewhere."""
CUT = re.compile(r"\{\w+\}|\.\.\.")
"""It stands for what a program fills in or a reader knows."""
COMMITS = re.compile(r"^\| commit \|(.+)\|$", re.MULTILINE)


class Parsed(Exception):
    """The options were read."""


def has_script(module: str) -> bool:
    """Return whether ``python -m`` finds the module in the checkout."""
    return any((ROOT / name).is_file() for name in scripts_of(module))


def scripts_of(module: str) -> tuple[str, str]:
    """Return the two places of what ``python -m`` runs."""
    stem = module.replace(".", "/")
    return f"{stem}.py", f"{stem}/__main__.py"


def had(commit: str, module: str) -> bool:
    """Return whether a commit had the script of a module, or the history at hand does not reach to the commit."""

    def known(name: str) -> bool:
        git = ["git", "-C", str(ROOT), "cat-file", "-e", name]
        return not subprocess.run(git, capture_output=True, check=False).returncode

    return (
        not shutil.which("git")
        or not known(f"{commit}^{{commit}}")
        or any(known(f"{commit}:{name}") for name in scripts_of(module))
    )


def commands() -> list[tuple[str, str, str, str]]:
    """Return file, module, options and commit, if it is named, of every command."""
    folders = (ROOT / "docs", ROOT / "benchmarks")
    files = [
        *ROOT.glob("*.md"),
        *(path for folder in folders for end in ("*.md", "*.py") for path in folder.rglob(end)),
    ]
    named: dict[tuple[str, str, str], str] = {}
    for file in files:
        text = BROKEN.sub(lambda code: code[0].strip("\\ \n").replace("\n", " "), file.read_text(encoding="utf-8"))
        for module, options, commit in COMMAND.findall(text):
            if not CUT.search(options):
                named.setdefault((module, options.strip(), commit), file.relative_to(ROOT).as_posix())
    return [(file, *command) for command, file in sorted(named.items())]


GONE, HERE = ([one for one in commands() if bool(one[3] or not has_script(one[1])) is gone] for gone in (True, False))


@pytest.mark.parametrize(("file", "module", "options", "commit"), GONE)
def test_a_script_of_an_earlier_commit_is_named_with_it(file: str, module: str, options: str, commit: str) -> None:
    head = COMMITS.search((ROOT / file).read_text(encoding="utf-8"))
    of = [commit] if commit else re.findall(r"\b[0-9a-f]{7,40}\b", head[1] if head else "")
    assert any(had(one, module) for one in of), f"{module} is gone: name the commit that had it"


@pytest.mark.parametrize(("file", "module", "options", "commit"), HERE)
def test_the_command_is_understood(
    file: str, module: str, options: str, commit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parse(parser: argparse.ArgumentParser, *given: Any, **more: Any) -> None:
        original(parser, *given, **more)
        raise Parsed

    original = argparse.ArgumentParser.parse_args
    words = ["1" if LETTER.fullmatch(word) else word for word in shlex.split(options) if word != REST]
    try:
        package = (ROOT / module.replace(".", "/")).is_dir()
        program = importlib.import_module(f"{module}.__main__" if package else module)
    except InputError as error:  # a library that is no dependency of ours
        pytest.skip(str(error))
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    monkeypatch.setattr(sys, "argv", [module, *words])
    if not words and not hasattr(program, "main"):
        return  # it has no options
    with pytest.raises(SystemExit if words == ["--help"] else Parsed):
        program.main()
