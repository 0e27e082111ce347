"""Names never steer a terminal, and what leaves a command is one line."""

from __future__ import annotations

import errno
import io
import json
import sys
import zipfile

import numpy as np
import polars as pl
import pytest
from rich.table import Table
from rich.text import Text

from runtime.context import PlainConsole
from runtime.errors import InputError, as_called, escaped, explained, told

HOSTILE = "a\x1b[31mred\x07[/][bold]b\x9b2J\u202egnp\r\nc\udcff"


def test_escaped_text_steers_nothing() -> None:
    found = escaped(HOSTILE)
    assert found.isprintable()
    assert found == "a\\x1b[31mred\\x07[/][bold]b\\x9b2J\\u202egnp\\r\\nc\\udcff"
    assert escaped("Zürich α μ²") == "Zürich α μ²"


def test_hostile_names_on_a_console() -> None:
    stream = io.StringIO()
    console = PlainConsole(file=stream, width=200, force_terminal=True, color_system=None)
    table = Table("[bold]head", title="[/]title\x1b]0;owned\x07")
    table.add_row(HOSTILE)
    table.add_row(Text(HOSTILE), style="bold")
    console.print(table)
    console.print(f"wrote {HOSTILE}", soft_wrap=True)
    shown = stream.getvalue()
    for steering in ("\x1b]", "\x1b[31m", "\x9b", "\x07", "\u202e", "\r"):
        assert steering not in shown
    assert shown.count("[/][bold]b") == 3
    assert "[/]title" in shown
    assert "[bold]head" in shown


def _raised(work: object) -> BaseException:
    try:
        work()  # type: ignore[operator]
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (InputError("x.npy is short\x1b[2J"), "x.npy is short\\x1b[2J"),
        (OSError(errno.ENOSPC, "No space left on device", "runs/a"), "runs/a: No space left on device: free some"),
        (PermissionError(errno.EACCES, "Permission denied", "d\n1"), "d\\n1: Permission denied: choose another place"),
        (OSError(errno.EROFS, "Read-only file system", b"o"), "o: Read-only file system: the disk is read-only"),
        (MemoryError(), "not enough memory: use fewer --workers"),
        (_raised(lambda: np.empty(1 << 58)), "not enough memory (Unable to allocate"),
        (_raised(lambda: json.loads("{")), "JSONDecodeError: Expecting property name"),
        (_raised(lambda: zipfile.ZipFile(io.BytesIO(b"x"))), "BadZipFile: File is not a zip file"),
        (_raised(lambda: pl.DataFrame({"a": [1]}).select("b")), "ColumnNotFoundError"),
        (_raised(lambda: b"\xff".decode()), "UnicodeDecodeError"),
        (EOFError(), "no reason given"),
    ],
)
def test_errors_are_one_line(error: BaseException, expected: str) -> None:
    line = explained(error)
    assert line is not None
    assert expected in line
    assert line.isprintable()


def test_errors_of_boosters_and_weights_are_one_line() -> None:
    import catboost
    import lightgbm
    import xgboost
    from safetensors import SafetensorError

    kinds = (catboost.CatBoostError, lightgbm.basic.LightGBMError, xgboost.core.XGBoostError, SafetensorError)
    for kind in kinds:
        assert "damaged" in str(explained(kind("damaged\nat line 3")))


def test_mistakes_of_the_program_are_not_hidden() -> None:
    assert explained(KeyError("x")) is None
    assert explained(ValueError("x")) is None


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (InputError("no such thing"), 2, "error: no such thing\n"),
        (KeyboardInterrupt(), 130, "interrupted: go on\n"),
        (IsADirectoryError(errno.EISDIR, "Is a directory", "x"), 2, "error: x: Is a directory: it is a folder"),
        (ZeroDivisionError("1/0 \x1b[5m"), 1, "Please report it"),
    ],
)
def test_exit_codes(error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, told(lambda: "interrupted: go on"):
        raise error
    shown = capsys.readouterr().err
    assert ended.value.code == code
    assert said in shown
    assert "\x1b" not in shown
    assert ("Traceback" in shown) == (code == 1)


def test_exit_codes_of_commands_pass() -> None:
    with pytest.raises(SystemExit) as ended, told(lambda: ""):
        sys.exit(7)
    assert ended.value.code == 7


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("/usr/bin/showerstack", "showerstack doctor, showerstack verify x"),
        ("/site-packages/showerstack/__main__.py", "showerstack doctor, showerstack verify x"),
        ("cli.py", "python cli.py doctor, python verify.py x"),
    ],
)
def test_commands_are_named_as_the_program_was_called(program: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [program])
    assert as_called("python cli.py doctor, python verify.py x") == said
    stream = io.StringIO()
    PlainConsole(file=stream, width=100).print("python cli.py doctor, python verify.py x")
    assert stream.getvalue().strip() == said
