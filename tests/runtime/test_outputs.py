"""No output replaces an input, whatever paths and links lead to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import typer

from showerstack.commands.app import app
from showerstack.runtime.checksums import write_checksums
from showerstack.runtime.errors import InputError
from showerstack.runtime.outputs import RECORD_FILE, Outputs, refuse_replacing
from tests.program import call


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
def test_every_command_refuses(arguments: tuple[str, ...], place: Path) -> None:
    before = {file: file.read_bytes() for file in place.rglob("*") if file.is_file()}
    said = call("cli.py", *arguments, code=2).stderr.replace("\n", " ")
    assert "which it would replace: choose another name" in said
    assert {file: file.read_bytes() for file in place.rglob("*") if file.is_file()} == before


def test_nothing_but_ones_own_output_of_the_same_input_is_replaced(tmp_path: Path) -> None:
    file, other = tmp_path / "a.csv", tmp_path / "b.csv"

    def write(source: str, text: str, **options: bool) -> None:
        outputs = Outputs({"command": "predict", "data": source})
        outputs.claim([file, other], **options)
        file.write_text(text)
        outputs.record()

    write("x", "1")
    write("x", "2")
    with pytest.raises(InputError, match=r"a\.csv exists already, and is not what this command wrote"):
        write("y", "3")
    other.write_text("mine")
    with pytest.raises(InputError, match=r"b\.csv exists already"):
        write("x", "4")
    other.unlink()
    file.write_text("changed")
    with pytest.raises(InputError, match=r"a\.csv exists already"):
        write("x", "5")
    write("y", "6", overwrite=True)
    write("y", "7")
    record = tmp_path / RECORD_FILE
    record.write_text(record.read_text().replace("a.csv", "c.csv"))
    with pytest.raises(InputError, match="exists already"):
        write("y", "8")


KEPT_BY_THEMSELVES = {
    "simulate", "features", "download", "convert", "taskcard", "submit", "demo", "reproduce", "export", "pretrain",
}  # fmt: skip
"""Commands that write folders which know what they were made of, and refuse or continue them."""


def test_every_command_that_names_a_file_to_write_replaces_none_of_others() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    writing = {name for name, one in commands.items() if "out" in {option.name for option in one.params}}
    replacing = {name for name, one in commands.items() if "overwrite" in {option.name for option in one.params}}
    assert writing - replacing - KEPT_BY_THEMSELVES == set()


def test_a_picture_of_another_event_is_not_replaced(tmp_path: Path, tiny_gamma: Path) -> None:
    out, data = tmp_path / "one.png", tiny_gamma / "gamma_test"
    for event, said in (("0", "wrote"), ("0", "wrote"), ("1", "exists already")):
        code = 2 if said == "exists already" else 0
        assert said in str(call("cli.py", "display", data, event, "--out", out, code=code))
    assert "wrote" in str(call("cli.py", "display", data, "1", "--out", out, "--overwrite"))
