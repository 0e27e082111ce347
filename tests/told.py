"""What pages tell, and what programs and blocks of Python print: compared up to numbers that may differ."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import warnings
from contextlib import redirect_stdout
from pathlib import Path

from showerstack.runtime.errors import Remark

ROOT = Path(__file__).parent.parent
NUMBER = re.compile(r"[-+]?\d[\d,]*(\.\d*)?(e-?\d+)?|too few events")
CHOSEN = re.compile(r"(?<=showers: )\w+$|(?<=^why: ).*$|(?<=\d,)[a-z]+$|(?<=\] )[a-z]+$|^[\w., ]+(?=: one fit)")
"""What predicts and why, what left the race, and a shower's class: others when showers are few, or elsewhere."""
LAST_DIGITS = 5.001
"""How far a number without an error may be from the one shown, in its last digit."""
PER_ERROR, OF_ERROR = 2.0, 0.2
"""Standard errors by which a number may differ, and share by which an error may: short trainings of trees and networks
end elsewhere on another processor (LeNet by 1.1 errors between two of them)."""


def masked(line: str, chosen: str = "CHOSEN") -> str:
    """Return a line without its numbers and spaces: what is left does not depend on the number of showers."""
    line = line.replace("on out-of-fold predictions:", "on held-out showers:")  # what there is with few of them
    return re.sub(r"[\s─]+", "", NUMBER.sub("#", CHOSEN.sub(chosen, line.rstrip()) if chosen else line.rstrip()))


def numbers_of(line: str) -> list[tuple[float, float]]:
    """Return the numbers of a line, each with how far another may be from it.

    That is one of a whole number, some of another one's last digits, or two standard errors where that is more: ``v ±
    error`` and ``v [low, high]`` state one, and what else is no whole number on such a line has the smallest.
    """
    found = [match for match in NUMBER.finditer(line) if match[0] != "too few events"]
    values = [float(match[0].replace(",", "")) for match in found]
    last = [int((match[2] or "e0")[1:]) - len((match[1] or ".")[1:]) for match in found]
    errors: dict[int, float] = {}
    for k, match in enumerate(found[1:], 1):
        between = line[found[k - 1].end() : match.start()]
        if between.strip() == "±":
            errors |= {k - 1: values[k], k: OF_ERROR / PER_ERROR * values[k]}
        elif between == ", " and line[found[k - 1].start() - 1] == "[" and line[match.end() : match.end() + 1] == "]":
            errors |= dict.fromkeys(range(max(k - 2, 0), k + 1), (values[k] - values[k - 1]) / 4)
    smallest = min(errors.values(), default=0.0)
    within = [
        max(
            (LAST_DIGITS if power < 0 else 1.001) * 10.0**power,
            PER_ERROR * errors.get(k, smallest if power < 0 else 0.0),
        )
        for k, power in enumerate(last)
    ]
    return list(zip(values, within, strict=True))


def agree(shown: str, found: str) -> bool:
    """Return whether two lines say the same, with numbers that are near; what was chosen may be another."""
    if masked(shown) != masked(found):
        return False
    if masked(shown, "") != masked(found, ""):
        return True
    pairs = zip(numbers_of(shown), numbers_of(found), strict=True)
    return all(abs(value - other) <= within for (value, within), (other, _) in pairs)


def not_said(shown: list[str], output: str, *, numbers: bool) -> list[str]:
    """Return the lines of a page that an output lacks; with ``numbers`` these are compared too."""
    if numbers:
        return [line for line in shown if not any(agree(line, other) for other in output.splitlines())]
    lines = {masked(line) for line in output.splitlines()}
    return [line for line in shown if masked(line) not in lines]


KINDS = ("console", "python", "text", "bash", "sh")
"""Blocks that are typed, run or printed; others are files and drawings."""


def blocks(page: str) -> list[tuple[str, str]]:
    """Return the kind and content of a page's blocks that are typed, run or printed."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        found for found in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE) if found[0] in KINDS
    ]


def run_script(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run ``python <entry point> ...`` and check its exit code; a traceback is never acceptable."""
    result = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, timeout=3600, check=False
    )
    assert result.returncode == code, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    return result


def run(command: list[str], folder: Path) -> str:
    """Run a command as a reader does who has activated the environment."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}
    environment.pop("COLUMNS", None)
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=3600)
    assert ended.returncode == 0, f"{command}: {ended.stdout}{ended.stderr}"
    return ended.stdout


def executed(block: str, names: dict[str, object] | None = None) -> str:
    """Return what a block of Python prints."""
    out = io.StringIO()
    with redirect_stdout(out), warnings.catch_warnings():
        warnings.simplefilter("default", Remark)  # a page may show them
        exec(compile(block, "block", "exec"), {} if names is None else names)
    return out.getvalue()
