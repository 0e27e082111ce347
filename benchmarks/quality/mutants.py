"""Which share of small changes to the code that makes numbers its tests notice: a table by package.

A mutant is the code with one place changed: another operator, a constant a quarter larger, ln for log10, the largest
for the smallest, weights dropped. It is put into a copy of the working tree, and the tests that import its module run
there until one fails. What survives is listed; mutants that change no number are named with their reason in
``equivalent.json`` beside this file and do not count. Results are appended to ``--out``: started again with the same
file, the run goes on where it stopped.

A mutator of its own, because mutmut runs mutants behind trampolines, which Numba does not compile, and because
cosmic-ray has one test command for all modules and changes the checkout in place.

    OMP_NUM_THREADS=1 python benchmarks/quality/mutants.py --seconds 3600 --seed 1
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path

from benchmarks.quality.mutator import Mutant, mutants_of
from scoring.metrics.intervals import clopper_pearson

ROOT = Path(__file__).resolve().parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.json")
"""By a mutant's key, why it changes no number."""
PLACES: dict[str, tuple[str, ...]] = {
    "scoring": ("scoring",),
    "features": ("features/groups", "features/lateral", "features/stations"),
    "stacking": ("stacking/meta", "stacking/decide", "stacking/fit/folds.py", "stacking/run/chain.py"),
    "models": (
        "models/base/inputs.py",
        "models/base/posterior.py",
        "models/networks/loop.py",
        "models/networks/step.py",
    ),
    "archives": ("showers/archives",),
    "simulation": ("showers/simulation",),
    "spectra": ("analysis/spectra",),
}
"""Where numbers are made, by the name in the table."""
FAILED = 1
"""pytest's exit status when tests ran and failed; others above it mean that the mutant does not even import."""
STEPS = 2
"""Test files of a module's package that are so many imports away are tried, the nearest first."""


def all_mutants(root: Path, names: Iterable[str]) -> dict[str, list[Mutant]]:
    """Return the mutants of each named part of :data:`PLACES`."""
    result = {}
    for name in names:
        places = [root / place for place in PLACES[name]]
        files = [file for place in places for file in (sorted(place.rglob("*.py")) if place.is_dir() else [place])]
        result[name] = [
            one for file in files for one in mutants_of(file.relative_to(root).as_posix(), file.read_text("utf-8"))
        ]
    return result


def in_turn(by_name: dict[str, list[Mutant]], seed: int) -> Iterator[tuple[str, Mutant]]:
    """Yield mutants in random order, the parts in turn."""
    drawn = {name: random.Random(f"{seed} {name}").sample(some, len(some)) for name, some in by_name.items()}
    for round_ in zip_longest(*drawn.values()):
        yield from ((name, one) for name, one in zip(drawn, round_, strict=True) if one is not None)


class Bench:
    """A copy of the working tree in which mutants are tried."""

    def __init__(self, root: Path, copy: Path, limit_s: float) -> None:
        self.copy, self.limit_s = copy, limit_s
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=root, capture_output=True, check=True
        ).stdout.decode()
        for name in filter(None, listed.split("\0")):
            if (root / name).is_file():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(root / name, copy / name)
        self.imports = {file: _imported(file) for file in copy.rglob("*.py")}
        self.alone: dict[tuple[Path, ...], tuple[str, float]] = {}

    def _module(self, file: Path) -> str:
        name = file.relative_to(self.copy).with_suffix("").as_posix()
        return name.replace("/", ".").removesuffix(".__init__")

    def tests_of(self, path: str) -> list[list[Path]]:
        """Return the test files of a module's package that import it; then those a step further away.

        A module that nobody imports is found by its package.
        """
        module = self._module(self.copy / path)
        own = self.copy / "tests" / path.split("/")[0]
        tests = sorted((own if own.is_dir() else own.parent).rglob("test_*.py"))
        reached, levels, known = {module}, [], set()
        if not any(names & reached for names in self.imports.values()):
            reached = {module.rpartition(".")[0]}
        for _ in range(STEPS):
            found = [file for file in tests if self.imports[file] & reached and file not in known]
            levels.append(found)
            known |= set(found)
            reached |= {self._module(file) for file, names in self.imports.items() if names & reached}
        return [level for level in levels if level]

    def run(self, tests: list[Path]) -> tuple[str, float]:
        """Return ``passed``, ``noticed``, ``crashed`` or ``timed out``, and the seconds."""
        environment = {**os.environ, "PYTHONPATH": str(self.copy), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *map(str, tests)]
        began = time.monotonic()
        try:
            status = subprocess.run(
                command, cwd=self.copy, env=environment, capture_output=True, timeout=self.limit_s
            ).returncode
        except subprocess.TimeoutExpired:
            return "timed out", time.monotonic() - began
        outcome = "passed" if status == 0 else "noticed" if status == FAILED else "crashed"
        return outcome, time.monotonic() - began

    def affordable(self, tests: list[Path]) -> list[Path]:
        """Return the files that pass without a mutant, together if they take no more than a third of the limit.

        Otherwise the fastest of them, as many as that allows.
        """
        outcome, seconds = self._unchanged(tests)
        if outcome == "passed" and seconds < self.limit_s / 3:
            return tests
        spent, taken = 0.0, []
        for file in sorted(tests, key=lambda one: self._unchanged([one])[1]):
            outcome, seconds = self._unchanged([file])
            spent += seconds
            if outcome == "passed" and spent < self.limit_s / 3:
                taken.append(file)
        return taken

    def _unchanged(self, tests: list[Path]) -> tuple[str, float]:
        key = tuple(tests)
        if key not in self.alone:
            self.alone[key] = self.run(tests)
        return self.alone[key]

    def scorer(self, mutant: Mutant) -> dict[str, object]:
        """Try one mutant; the file is put back."""
        file = self.copy / mutant.path
        source = file.read_bytes()
        outcome, total = "untested", 0.0
        for level in self.tests_of(mutant.path):
            if tests := self.affordable(level):
                file.write_bytes(mutant.of(source))
                try:
                    outcome, seconds = self.run(tests)
                finally:
                    file.write_bytes(source)
                total += seconds
                if outcome != "passed":
                    break
        outcome = "survived" if outcome == "passed" else outcome
        return asdict(mutant) | {"key": mutant.key, "outcome": outcome, "seconds": round(total, 1)}


def _imported(file: Path) -> set[str]:
    """Return the modules that a file imports, by dotted names."""
    text = file.read_text("utf-8")
    names: set[str] = set()
    for match in re.finditer(r"^\s*(?:from\s+([\w.]+)\s+import\s+(\([^)]*\)|[^\n]*)|import\s+([\w.]+))", text, re.M):
        package, members, plain = match.groups()
        names.add(package or plain)
        names |= {f"{package}.{member}" for member in re.findall(r"\w+", members or "")}
    return names


def report(results: list[dict[str, object]], equivalent: dict[str, str]) -> str:
    """Return the table by part and the survivors."""
    lines = [f"{'part':<12}{'mutants':>8}{'noticed':>9}{'crashed':>9}{'survived':>9}{'equal':>7}  share noticed"]
    counted = [one for one in results if one["key"] not in equivalent]
    for name in [*dict.fromkeys(one["part"] for one in results), "all"]:
        mine = [one for one in counted if name in (one["part"], "all")]
        n_equal = sum(name in (one["part"], "all") for one in results) - len(mine)
        outcomes = [one["outcome"] for one in mine]
        noticed, crashed = outcomes.count("noticed") + outcomes.count("timed out"), outcomes.count("crashed")
        survived = len(mine) - noticed - crashed
        share = ""
        if noticed + survived:
            interval = clopper_pearson(noticed, noticed + survived)
            share = f"{noticed / (noticed + survived):.1%} ({interval.low:.1%} .. {interval.high:.1%})"
        lines.append(f"{name:<12}{len(mine):>8}{noticed:>9}{crashed:>9}{survived:>9}{n_equal:>7}  {share}")
    lines += ["", "survivors (key, place, was -> is):"]
    for one in counted:
        if one["outcome"] in ("survived", "untested"):
            change = " ".join(f"{one['was']} -> {one['text']}".split())
            lines.append(f"  {one['key']}  {one['path']}:{one['line']}  {change}  [{one['outcome']}]")
    lines += [f"  {one['key']}  equal: {equivalent[str(one['key'])]}" for one in results if one["key"] in equivalent]
    return "\n".join(lines)


def main() -> None:
    """Try mutants until the time is over, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600.0, help="stop after this time")
    parser.add_argument("--seed", type=int, default=1, help="which mutants, in which order")
    parser.add_argument("--mutants", type=int, default=300, help="at most so many, those of earlier runs included")
    parser.add_argument("--part", choices=[*PLACES], action="append", help="only this part (may be repeated)")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for the tests of one mutant")
    parser.add_argument("--out", type=Path, default=Path("mutants.jsonl"), help="results, one a line")
    given = parser.parse_args()
    ended = time.monotonic() + given.seconds
    results = [json.loads(line) for line in given.out.read_text("utf-8").splitlines()] if given.out.exists() else []
    results = [one for one in results if one["seed"] == given.seed and one["part"] in (given.part or PLACES)]
    done = {one["key"] for one in results}
    with tempfile.TemporaryDirectory() as folder, given.out.open("a", encoding="utf-8") as file:
        bench = Bench(ROOT, Path(folder), given.limit)
        for name, mutant in in_turn(all_mutants(ROOT, given.part or PLACES), given.seed):
            if time.monotonic() > ended or len(results) >= given.mutants:
                break
            if mutant.key in done:
                continue
            results.append(bench.scorer(mutant) | {"part": name, "seed": given.seed})
            file.write(json.dumps(results[-1]) + "\n")
            file.flush()
            print(f"{results[-1]['outcome']:<10}{mutant.path}:{mutant.line}", file=sys.stderr)
    print(report(results, json.loads(EQUIVALENT.read_text("utf-8"))))


if __name__ == "__main__":
    main()
