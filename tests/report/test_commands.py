"""The commands of this package in cli.py: help with an example, an answer, and one line for what cannot be done."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import cli
from scoring.score import score_file
from showers.schema import COMPOSITION


def command_line(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["cli.py", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize("command", ["compare", "leaderboard", "submit", "report", "display", "doctor"])
def test_help_shows_an_example(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line(monkeypatch, command, "--help") == 0
    assert f"Example: python cli.py {command}" in " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_commands_answer(
    composition_world: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, data = composition_world
    score_file(run / "predictions.npz", data, COMPOSITION, intervals=False)
    assert command_line(monkeypatch, "leaderboard", run) == 0
    assert "simulation of v2" in capsys.readouterr().out
    assert command_line(monkeypatch, "compare", run, run / ".", "--data", data) == 0
    assert "no difference is shown" in " ".join(capsys.readouterr().out.split())
    assert command_line(monkeypatch, "submit", run, "--name", "one", "--data", data, "--out", tmp_path) == 0
    assert (tmp_path / "one" / "metadata.yaml").exists()
    picture = tmp_path / "event.png"
    assert command_line(monkeypatch, "display", data / "composition_test", "5", "--out", picture) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("compare", "{run}", "--data", "{data}"), "at least two"),
        (("compare", "{run}", "nowhere", "--data", "{data}"), "nowhere is not a finished run folder"),
        (("leaderboard", "nowhere"), "nowhere is not a finished run folder"),
        (("submit", "{run}", "--name", "a/b", "--data", "{data}"), "use letters"),
        (("report", "{run}", "--data", "nowhere"), "nowhere/composition_test does not exist"),
        (("display", "{data}/composition_test", "3000"), "expected 0..2999"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    arguments: tuple[str, ...],
    expected: str,
    composition_world: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, data = composition_world
    assert command_line(monkeypatch, *(a.format(run=run, data=data) for a in arguments)) == 2
    printed = capsys.readouterr().err
    assert expected in printed
    assert printed.count("\n") == 1
