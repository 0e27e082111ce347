"""Run one command in child processes, each killed one file operation later than the one before, and again to its end.

``python -m tests.faults.kills COMMAND FOLDER STEP``; prints how many kills it survived. Not a test by itself:
children are forked, which wants a parent without threads.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from showerstack.runtime.files import hash_file
from showerstack.showers.archives.convert import convert
from showerstack.showers.archives.raw import KINDS, archive_path, read_source
from showerstack.showers.protocols import MODES
from showerstack.showers.schema import COMPOSITION
from showerstack.showers.simulation import blocks, simulate
from showerstack.showers.simulation.raw import simulate_raw
from showerstack.showers.writer import problems

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}
SIZES = {"n_train": 30, "n_test": 3, "workers": 1}


def _simulate(folder: Path) -> None:
    simulate(COMPOSITION, folder, **SIZES)


def _simulate_over(folder: Path) -> None:
    simulate(COMPOSITION, folder, **SIZES, overwrite=True)


def _raw(folder: Path) -> None:
    simulate_raw(COMPOSITION, folder, 30, workers=1)


def _raw_over(folder: Path) -> None:
    simulate_raw(COMPOSITION, folder, 30, workers=1, overwrite=True)


def _convert(folder: Path) -> None:
    convert(folder / "raw", folder / "sets", COMPOSITION)


def _sets(folder: Path) -> None:
    simulate(COMPOSITION, folder, **SIZES, seed=2)


def _archives(folder: Path) -> None:
    simulate_raw(COMPOSITION, folder, 30, workers=1, seed=2)


def _archives_inside(folder: Path) -> None:
    simulate_raw(COMPOSITION, folder / "raw", 60, workers=1)


def _nothing(folder: Path) -> None:
    return


Step = Callable[[Path], None]
COMMANDS: dict[str, tuple[Step, Step]] = {
    "simulate": (_nothing, _simulate),
    "simulate-overwrite": (_sets, _simulate_over),
    "raw": (_nothing, _raw),
    "raw-overwrite": (_archives, _raw_over),
    "convert": (_archives_inside, _convert),
}
"""What is there before, and what is killed."""


def run(step: Step, folder: Path, operations: int | None = None) -> int:
    """Run a step in a child that is killed at its n-th change of a file; return the child's exit status."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        if operations is not None:
            _kill_after(operations, str(folder))
        step(folder)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _kill_after(operations: int, folder: str) -> None:
    left = operations

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        written = event == "open" and str(arguments[0]).startswith(folder) and bool(arguments[2] & os.O_ACCMODE)
        if written or event in CHANGES:
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


def content(folder: Path) -> dict[str, str]:
    """Return the hash of every file but locks."""
    # A lock stays where its process was killed.
    files = (p for p in sorted(folder.rglob("*")) if p.is_file() and p.suffix != ".lock")
    return {str(p.relative_to(folder)): hash_file(p) for p in files}


def mixed(folder: Path) -> list[str]:
    """Return what is wrong with the sets and archives that have their final names."""
    result = [line for name in ("train", "test") for line in _problems(folder / f"composition_{name}")]
    for mode in MODES["v2", COMPOSITION.name]:
        archives = [path for path in (archive_path(folder, mode, kind) for kind in KINDS) if path.exists()]
        if len({str(read_source(path)) for path in archives}) > 1:
            result.append(f"{mode}: archives of two simulations")
    return result


def _problems(folder: Path) -> list[str]:
    return problems(folder) if folder.exists() else []


def main(command: str, folder: Path, stride: int) -> int:
    """Kill the command at every ``stride``-th change; return the number of kills."""
    blocks.PRIMARIES_PER_BLOCK = 512  # small, for speed: the same in all children
    before, step = COMMANDS[command]
    template, whole = folder / "template", folder / "whole"
    template.mkdir()
    assert run(before, template) == 0
    shutil.copytree(template, whole)
    assert run(step, whole) == 0
    expected = content(whole)
    kills = 0
    while True:
        place = folder / "place"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(template, place)
        if run(step, place, kills * stride) == 0:
            return kills
        wrong = mixed(place)
        assert not wrong, f"{command} killed after {kills * stride} operations: {wrong}"
        assert run(step, place) == 0, f"{command} does not go on after a kill at operation {kills * stride}"
        result = content(place)
        assert result == expected, f"{command}, kill at {kills * stride}: {sorted(set(result) ^ set(expected))}"
        kills += 1


if __name__ == "__main__":
    print(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
