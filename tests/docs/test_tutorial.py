"""Every command of docs/tutorial.md does, with fewer showers, what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(console|python)\n(.*?)```", TEXT, flags=re.DOTALL)
FEWER = {"--train 8000": "--train 1200", "--test 4000": "--test 500", "--test 2000": "--test 300"}
NUMBER = re.compile(r"[-+]?\d[\d,]*(\.\d+)?(e-?\d+)?|too few events")
CHOSEN = re.compile(r"(?<=showers: )\w+$|(?<=\d,)[a-z]+$")
"""What ships, and a shower's class: both may be another when showers are few."""


def masked(line: str) -> str:
    """Return a line without its numbers and spaces: what is left does not depend on the number of showers."""
    return re.sub(r"[\s─]+", "", NUMBER.sub("#", CHOSEN.sub("CHOSEN", line.rstrip())))


def commands(block: str) -> list[tuple[str, list[str]]]:
    """Return the commands of a console block, each with the lines that the page shows after it."""
    found: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line.removeprefix("$ "), []))
        else:
            found[-1][1].append(line)
    return found


def run(command: list[str], folder: Path) -> str:
    """Run a command as a reader does who has activated the environment."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}
    environment.pop("COLUMNS", None)
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500)
    assert ended.returncode == 0, f"{command}: {ended.stdout}{ended.stderr}"
    return ended.stdout


def test_the_set_up_is_that_of_the_makefile() -> None:
    kind, block = BLOCKS[0]
    assert kind == "console"
    told = [command for command, _ in commands(block)]
    assert told[-2:] == ["make env", "source .venv/bin/activate"]
    plan_within_limit = subprocess.run(
        ["make", "--dry-run", "--always-make", "env"], cwd=ROOT, capture_output=True, text=True
    )
    assert "-m venv .venv" in plan_within_limit.stdout, plan_within_limit.stderr
    assert "--constraint constraints.txt --editable '.[test" in plan_within_limit.stdout
    assert "`.venv/bin/python -m pip install --constraint constraints.txt --editable '.[test]'`" in TEXT


def test_every_command_works_and_says_what_the_page_shows(tmp_path: Path) -> None:
    for entry in ("cli.py", "verify.py"):
        (tmp_path / entry).symlink_to(ROOT / entry)
    ran = []
    for kind, block in BLOCKS[1:]:
        if kind == "python":
            ran.append(run([sys.executable, "-c", block], tmp_path))
            continue
        for command, shown in commands(block):
            for full, fewer in FEWER.items():
                command = command.replace(full, fewer)
            said = {masked(line) for line in run(["bash", "-c", command], tmp_path).splitlines()}
            assert [line for line in shown if masked(line) not in said] == [], command
            ran.append(command)
    assert len(ran) >= 9
    for file in ("event-7.png", "runs/first/report.html", "new.npz", "new.csv"):
        assert (tmp_path / file).stat().st_size > 1000
    # The Python block prints the score that verify.py printed for the same predictions.
    assert re.search(r"<fraction error 0\.\d+ \[0\.\d+, 0\.\d+\], 300 events>", ran[-1])
