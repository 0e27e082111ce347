"""How long commands take to begin, and what an installation takes.

Processor time (user and system) of whole processes, the commands in turn, after one round that is not counted: median
of the rounds and their range. ``features`` and ``predict``, with a run that uses one network, are of 100 showers. With
``--against`` the same commands of another checkout, turn by turn, and the median ratio. ``--install`` makes virtual
environments with the named extras (``core`` for none) and prints size and processor time of pip; ``--demo`` times
``cli.py demo``, in a new folder each time.

    python -m benchmarks.speed.start_up --against ../other_checkout
    python -m benchmarks.speed.start_up --install core train all
    python -m benchmarks.speed.start_up --demo --rounds 3 --against ../other_checkout
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.speed.commands import ROOT, CommandCost, features, one_network, predict, ranged, repeated

FEW = 100
"""Showers of the commands that compute."""
HELP = ("simulate", "stack", "spectra")
"""Commands whose help is timed beside that of the program."""


def processor_s(command: list[str], root: Path) -> float:
    """Return the processor time of one process, s; it must succeed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=root, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def scored(folder: Path) -> list[str]:
    """Write a test set of 1,000 labels and predictions; return the command that scores them without intervals."""
    rng = np.random.default_rng(1)
    test = folder / "scored" / "composition_test"
    test.mkdir(parents=True)
    labels = rng.integers(0, 5, 1_000).astype(np.int8)
    np.save(test / "labels_composition.npy", labels)
    np.save(test / "features.npy", np.full((1_000, 5), 15.5, np.float16))
    np.savez(folder / "predictions.npz", predictions=labels)
    return [sys.executable, "verify.py", str(folder / "predictions.npz"), "--data", str(test.parent), "--no-intervals"]


def start_up(rounds: int, against: Path | None) -> None:
    """Print the processor time of each command, here and in another checkout."""
    roots = [ROOT, *([against.resolve()] if against else [])]
    with tempfile.TemporaryDirectory() as name:
        work: dict[str, list[Callable[[], float]]] = {}
        for k, root in enumerate(roots):
            place = Path(name) / str(k)
            place.mkdir()
            commands = {"--help": [sys.executable, "cli.py", "--help"]}
            commands |= {f"{one} --help": [sys.executable, "cli.py", one, "--help"] for one in HELP}
            commands["learners"] = [sys.executable, "cli.py", "learners"]
            commands["verify.py --help"] = [sys.executable, "verify.py", "--help"]
            commands["verify.py, 1,000 events, no intervals"] = scored(place)
            for label, command in commands.items():
                work.setdefault(label, []).append(partial(processor_s, command, root))
            run = one_network(root, place)
            few = repeated(place / "data" / "composition_test", place / "few", FEW)
            computing = {"features": partial(features, root, few, place / "table")}
            computing["predict, one network"] = partial(predict, root, run, few, place / "new.npz")
            for label, call in computing.items():
                work.setdefault(f"{label}, {FEW} showers", []).append(partial(_cpu_s, call))
        print_times(work, rounds, first=1)


def _cpu_s(call: Callable[[], CommandCost]) -> float:
    return call().cpu_s


def demo_s(root: Path) -> float:
    """Return the processor time of the demo of a checkout, s."""
    with tempfile.TemporaryDirectory() as name:
        return processor_s([sys.executable, "cli.py", "demo", "--out", str(Path(name) / "demo")], root)


def print_times(work: dict[str, list[Callable[[], float]]], rounds: int, first: int = 0) -> None:
    """Print the processor time of each command by checkout, after ``first`` rounds that do not count."""
    times: dict[str, list[list[float]]] = {label: [[] for _ in calls] for label, calls in work.items()}
    for number in range(rounds + first):
        for label, calls in work.items():
            for kept, call in zip(times[label], calls, strict=True):
                taken = call()
                if number >= first:
                    kept.append(taken)
    print(f"processor time, s: median of {rounds} rounds (range)")
    for label, columns in times.items():
        text = "".join(f"{ranged(one, 2):>28}" for one in columns)
        if len(columns) == 2:
            ratios = [ours / theirs for ours, theirs in zip(*columns, strict=True)]
            text += f"{'ratio ' + ranged(ratios, 2):>28}"
        print(f"{label:<40}{text}")


def install(extras: list[str]) -> None:
    """Print what virtual environments with some extras take."""
    for extra in extras:
        with tempfile.TemporaryDirectory() as name:
            venv = Path(name) / "venv"
            subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
            bare = size_mb(venv)
            wanted = str(ROOT) + ("" if extra == "core" else f"[{extra}]")
            pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
            began = time.perf_counter()
            taken = processor_s([*pip, "--constraint", str(ROOT / "constraints.txt"), wanted], ROOT)
            wall = time.perf_counter() - began
            print(
                f"{extra:<8}{size_mb(venv) - bare:8.0f} MB installed, pip {taken:.0f} s of processor time, {wall:.0f} s"
            )


def size_mb(folder: Path) -> float:
    """Return the size of all files below a folder, MB."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and not file.is_symlink()) / 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--install", nargs="+", metavar="EXTRA", help="core, train, all...: needs a package index")
    parser.add_argument("--demo", action="store_true", help="time the demo")
    options = parser.parse_args()
    if options.demo:
        roots = [ROOT, *([options.against.resolve()] if options.against else [])]
        print_times({"demo": [partial(demo_s, root) for root in roots]}, options.rounds)
    elif options.install:
        install(options.install)
    else:
        start_up(options.rounds, options.against)


if __name__ == "__main__":
    main()
