"""Which share of small changes to the code that makes numbers its tests notice: a table by package.

A mutant is the code with one place changed: another operator, a constant a quarter larger, ln for log10, the largest
for the smallest, weights dropped. It is put into a copy of the working tree, and the tests that import its module,
directly or through others, run there until one fails: first those that import it themselves, of these first the ones
named like it; tests that do not pass without it, or that cost too much, are left out. Its time limit is a multiple of
what the same tests take unchanged, in processor time, so that a busy machine changes nothing; what runs beyond it is
counted apart. What survives is listed; mutants that change no number are named with their reason in
``equivalent.json`` beside this file and do not count. Results are appended to ``--out``: started again with the same
file, the run goes on where it stopped.

Compiled code is compiled anew where a mutant changes it, and there only: kernels on disk go by the hash of all
their sources, and each mutant has a copy of the unchanged ones. (``NUMBA_DISABLE_JIT`` is no way: the features use
LLVM's instructions, which Python does not have.)

A mutator of its own, because mutmut runs mutants behind trampolines, which Numba does not compile, and because
cosmic-ray has one test command for all modules and changes the checkout in place.

    python benchmarks/quality/mutants.py --seconds 3600 --seed 1
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.quality.mutator import Mutant, mutants_of
from scoring.metrics.intervals import clopper_pearson

ROOT = Path(__file__).resolve().parents[2]
SERVER = Path(__file__).with_name("server.py")
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
LIBRARIES = (
    "numpy", "scipy.optimize", "scipy.stats", "scipy.interpolate", "polars", "pydantic", "matplotlib",
    "rich.progress", "sklearn.ensemble", "torch", "lightgbm", "array_api_strict", "array_api_compat.numpy",
)  # fmt: skip
"""What most tests import, once before them all."""
FAILED = 1
"""pytest's exit status when tests ran and failed; others above it mean that the mutant does not even import."""
STEPS = 3
"""Tests that reach a module through so many imports are tried, the nearest first."""
SLOWER, MORE_S = 4.0, 10.0
"""A mutant may take so many times what its tests take unchanged, and so many seconds more."""
COMPILED_S = 120.0
"""Seconds more where kernels are compiled anew."""
WAITING = 12.0
"""Seconds by the clock for one of processor time."""
SOURCES_OF_KERNELS = ("features/lateral", "features/stations", "showers/simulation/deposits.py", "showers/array.py")
"""What is compiled, and what is compiled into it."""


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


@dataclass
class Tests:
    """Tests of one mutant."""

    files: list[str]
    """In the order in which they run."""
    kept: list[str]
    """The tests of these files that run."""
    seconds: float
    """What they take without a mutant."""


class Bench:
    """A copy of the working tree in which mutants are tried."""

    def __init__(
        self, root: Path, copy: Path, limit_s: float, measured: dict[str, dict[str, float]], levels: int = STEPS
    ) -> None:
        """Copy the tree; ``measured`` holds what is known of the tests, by file and hash, and is added to."""
        self.copy, self.limit_s, self.measured, self.levels = copy / "tree", limit_s, measured, levels
        self.kernels, self.scratch, self.times = copy / "kernels", copy / "scratch", copy / "times"
        self.kernels.mkdir(parents=True)
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=root, capture_output=True, check=True
        ).stdout.decode()
        for name in filter(None, listed.split("\0")):
            if (root / name).is_file():
                (self.copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(root / name, self.copy / name)
        self.imports = {file: _imported(file) for file in self.copy.rglob("*.py")}
        self.libraries: tuple[str, ...] = LIBRARIES
        self._server: subprocess.Popen[str] | None = None

    def close(self) -> None:
        """End the process that runs tests."""
        if self._server is not None and self._server.stdin is not None:
            self._server.communicate()

    def _module(self, file: Path) -> str:
        name = file.relative_to(self.copy).with_suffix("").as_posix()
        return name.replace("/", ".").removesuffix(".__init__")

    def tests_of(self, path: str) -> list[tuple[int, Path]]:
        """Return how many imports away test files are, and the files, those of the module's own idea first.

        A module that is found by itself counts as imported by whoever imports its package, a step further away.
        """
        module = self._module(self.copy / path)
        own = self.copy / "tests" / path.split("/")[0]
        tests = sorted((own if own.is_dir() else own.parent).rglob("test_*.py"))
        reached, known = {module}, dict[Path, int]()
        for step in range(STEPS):
            for file in tests:
                if self.imports[file] & reached:
                    known.setdefault(file, step)
            reached |= {self._module(file) for file, names in self.imports.items() if names & reached}
            reached.add(module.rpartition(".")[0])
        words = set(re.findall(r"[a-z]+", module.partition(".")[2]))
        return sorted(
            ((step, file) for file, step in known.items()),
            key=lambda one: (one[0], not words & set(one[1].stem.split("_")), len(self.imports[one[1]]), one[1]),
        )

    def chosen(self, path: str) -> Iterator[Tests]:
        """Yield the tests of a module that are affordable together, those of its own idea first.

        What is measured already comes at once; a file that is not is measured only if somebody asks for more.
        """
        near, levels = self.tests_of(path), 0
        for step in range(STEPS):
            spent, some = 0.0, Tests([], [], 0.0)
            for file in (file for away, file in near if away == step):
                if some.kept and self._key(file) not in self.measured:
                    yield some
                    some = Tests([], [], 0.0)
                for name, seconds in sorted(self._seconds(file).items(), key=lambda one: one[1]):
                    if spent + seconds <= self.limit_s:
                        spent += seconds
                        some.kept.append(name)
                        some.seconds += seconds
                        some.files += [one for one in [name.partition("::")[0]] if one not in some.files]
            if some.kept:
                yield some
            levels += spent > 0
            if levels == self.levels:
                return

    def _key(self, file: Path) -> str:
        name = file.relative_to(self.copy).as_posix()
        return f"{name} {hashlib.sha256(file.read_bytes()).hexdigest()[:12]}"

    def _seconds(self, file: Path) -> dict[str, float]:
        """Return the processor seconds of a file's tests that pass; a file that takes too long is not finished."""
        name, key = file.relative_to(self.copy).as_posix(), self._key(file)
        if key not in self.measured:
            self.times.write_text("")
            compiles = name.startswith(("tests/features", "tests/showers")) and not any(self.kernels.iterdir())
            most = 2 * self.limit_s + COMPILED_S * compiles
            self._ask(files=[name], kept=None, cpu_s=most, wall_s=most * WAITING, times=str(self.times))
            lines = [json.loads(line) for line in self.times.read_text("utf-8").splitlines()]
            self.measured[key] = {test: round(seconds, 2) for test, seconds in lines}
        return self.measured[key]

    def _ask(self, **asked: object) -> dict[str, float]:
        if self._server is None:
            # SciPy reads SCIPY_ARRAY_API when it is first imported, which is before tests/conftest.py.
            here = {"PYTHONPATH": str(self.copy), "NUMBA_CACHE_DIR": str(self.kernels), "SCIPY_ARRAY_API": "1"}
            here |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
            self._server = subprocess.Popen(
                [sys.executable, str(SERVER), *self.libraries],
                cwd=self.copy,
                env={**os.environ, **here},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        if self._server.stdin is None or self._server.stdout is None:
            raise RuntimeError("the process that runs tests has no pipes")
        kernels = self.kernels if asked.get("times") else self.scratch
        self._server.stdin.write(json.dumps(asked | {"from": str(self.kernels), "kernels": str(kernels)}) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())

    def run(self, tests: Tests, compiled: bool, ends_s: float) -> tuple[str, float]:
        """Run tests until one fails, no longer than they may take nor than ``ends_s`` by the clock.

        Returns
        -------
        ``passed``, ``noticed``, ``crashed``, ``timed out`` or ``cut off``, and the processor seconds.
        """
        most = SLOWER * tests.seconds + MORE_S + COMPILED_S * compiled
        wall = min(most * WAITING, ends_s)
        got = self._ask(files=tests.files, kept=tests.kept, cpu_s=most, wall_s=wall)
        status, outcome = got["status"], "crashed"
        if got["wall_over"]:
            outcome = "timed out" if wall < ends_s else "cut off"
        elif status in (-signal.SIGXCPU, -signal.SIGKILL):
            outcome = "timed out"
        elif status in (0, FAILED):
            outcome = "noticed" if status else "passed"
        return outcome, got["cpu_s"]

    def tried(self, mutant: Mutant, ends_s: float) -> dict[str, object]:
        """Try one mutant and return what became of it; the file is put back, its time too."""
        file, ended = self.copy / mutant.path, time.monotonic() + ends_s
        outcome, total = "untested", 0.0
        for tests in self.chosen(mutant.path):
            source, status = file.read_bytes(), file.stat()
            try:
                file.write_bytes(mutant.of(source))
                # Python's compiled files go by whole seconds and lengths, which may both be the same.
                os.utime(file, (status.st_atime, status.st_mtime + 100))
                compiled = mutant.path.startswith(SOURCES_OF_KERNELS)
                outcome, seconds = self.run(tests, compiled, ended - time.monotonic())
            finally:
                file.write_bytes(source)
                os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
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
    """Return the table by part and the survivors; the share is that of the mutants that ran to an end."""
    columns = ("noticed", "survived", "timed out", "crashed", "untested")
    lines = [f"{'part':<12}{'mutants':>8}{''.join(f'{name:>10}' for name in columns)}{'equal':>7}  share noticed"]
    counted = [one for one in results if one["key"] not in equivalent]
    for name in [*dict.fromkeys(one["part"] for one in results), "all"]:
        mine = [one for one in counted if name in (one["part"], "all")]
        n_equal = sum(name in (one["part"], "all") for one in results) - len(mine)
        of = {column: sum(one["outcome"] == column for one in mine) for column in columns}
        noticed, ended, share = of["noticed"], of["noticed"] + of["survived"] + of["untested"], ""
        if ended:
            interval = clopper_pearson(noticed, ended)
            share = f"{noticed / ended:.1%} ({interval.low:.1%} .. {interval.high:.1%})"
        counts = "".join(f"{of[column]:>10}" for column in columns)
        lines.append(f"{name:<12}{len(mine):>8}{counts}{n_equal:>7}  {share}")
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
    parser.add_argument("--path", default="", help="only files whose path begins so")
    parser.add_argument("--limit", type=float, default=60.0, help="processor seconds of one mutant's tests, unchanged")
    parser.add_argument("--levels", type=int, default=STEPS, help="1: only the nearest tests that there are")
    parser.add_argument("--out", type=Path, default=Path("mutants.jsonl"), help="results, one a line")
    parser.add_argument("--again", action="store_true", help="try earlier survivors once more, and only them")
    given = parser.parse_args()
    ended = time.monotonic() + given.seconds
    lines = [json.loads(line) for line in given.out.read_text("utf-8").splitlines()] if given.out.exists() else []
    measured = {one["file"]: one["tests"] for one in lines if "file" in one}
    old = [one for one in lines if one.get("seed") == given.seed and one["part"] in (given.part or PLACES)]
    results = {one["key"]: one for one in old}
    again = {key for key, one in results.items() if one["outcome"] in ("survived", "untested")} if given.again else ()
    with tempfile.TemporaryDirectory() as folder, given.out.open("a", encoding="utf-8") as file:
        bench, n_known = Bench(ROOT, Path(folder), given.limit, measured, given.levels), len(measured)
        for name, mutant in in_turn(all_mutants(ROOT, given.part or PLACES), given.seed):
            left = ended - time.monotonic()
            if left <= 0 or (len(results) >= given.mutants and not again):
                break
            if not mutant.path.startswith(given.path):
                continue
            if mutant.key not in again if given.again else mutant.key in results:
                continue
            one = bench.tried(mutant, left) | {"part": name, "seed": given.seed}
            for key in list(measured)[n_known:]:
                file.write(json.dumps({"file": key, "tests": measured[key]}) + "\n")
            n_known = len(measured)
            if one["outcome"] != "cut off":
                results[mutant.key] = one
                file.write(json.dumps(one) + "\n")
            file.flush()
            print(f"{one['outcome']:<10}{one['seconds']:>6} s  {mutant.path}:{mutant.line}", file=sys.stderr)
        bench.close()
    print(report(list(results.values()), json.loads(EQUIVALENT.read_text("utf-8"))))


if __name__ == "__main__":
    main()
