"""No output replaces an input, whatever paths and links lead to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import cli
from showerstack.runtime.checksums import write_checksums
from showerstack.runtime.errors import InputError
from showerstack.runtime.outputs import refuse_replacing


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a table, links to it, and a run with a list of its files; the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    (tmp_path / "linked.csv").symlink_to("t.csv")
    os.link("t.csv", "hard.csv")
    (tmp_path / "runs" / "r").mkdir(parents=True)
    for name in ("predictions.npz", "report.html"):
        (tmp_path / "runs" / "r" / name).write_text(name)
    write_checksums(tmp_path / "runs" / "r", ["predictions.npz"])
    return tmp_path


@pytest.mark.parametrize("out", ["t.csv", "./runs/../t.csv", "linked.csv", "hard.csv"])
def test_a_file_is_not_replaced_by_what_is_made_of_it(out: str, place: Path) -> None:
    with pytest.raises(InputError, match=f"--out {Path(out)} is --data too, which it would replace"):
        refuse_replacing("--out", Path(out), [("RUN", place / "runs"), ("--data", place / "t.csv")])


@pytest.mark.parametrize("given", ["runs/r", "runs"])
def test_files_of_a_folder_are_not_replaced(given: str, place: Path) -> None:
    inputs = [("--run", Path(given))]
    for name in ("predictions.npz", "checksums.json"):
        with pytest.raises(InputError, match=f"is a file of --run {given}"):
            refuse_replacing("--out", place / "runs" / "r" / name, inputs)
    for name in ("report.html", "new.npz"):
        refuse_replacing("--out", place / "runs" / "r" / name, inputs)
    refuse_replacing("--out", place / "out", inputs)
    refuse_replacing("--out", place, inputs)


COMMANDS = (
    ("predict", "--run", "runs/r", "--data", "t.csv", "--out", "linked.csv"),
    ("predict", "--run", "runs/r", "--data", "t.csv", "--out", "runs/r/predictions.npz"),
    ("features", "runs/r", "--out", "runs/../runs/r"),
    ("export", "--run", "runs/r", "--out", "runs/r"),
    ("datacheck", "--run", "runs/r", "--data", "runs", "--out", "runs"),
    ("simulate", "--task", "measured", "--spectrum", "t.csv", "--out", "hard.csv"),
    ("convert", "--from", "runs", "--out", "runs"),
    ("--log-file", "t.csv", "stack", "--table", "t.csv", "--label", "a", "--run", "new"),
)


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: " ".join(arguments[:2]))
def test_every_command_refuses(arguments: tuple[str, ...], place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {file: file.read_bytes() for file in place.rglob("*") if file.is_file()}
    with pytest.raises(SystemExit) as ended:
        cli.main(list(arguments))
    assert ended.value.code == 2
    assert "which it would replace: choose another name" in capsys.readouterr().err.replace("\n", " ")
    assert {file: file.read_bytes() for file in place.rglob("*") if file.is_file()} == before
