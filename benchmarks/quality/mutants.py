"""Which share of small changes to the code that makes numbers its tests notice: a table by package.

A mutant is the code with one place changed: another operator, a constant a quarter larger, ln for log10, the largest
for the smallest, weights dropped. It is put into a copy of the working tree, and the tests that run its line run there
until one fails, the cheapest first, as many as take ``--limit`` seconds together. Which tests run a line, and what
they cost, is measured once for the tests of a package (coverage.py; tests that do not pass are left out) and kept in
``--work``, until a test file changes. A mutant's time limit is a multiple of what its tests take unchanged, in
processor time, so that a busy machine changes nothing; what runs beyond it is counted apart. What survives is listed;
mutants that change no number are named with their reason in ``equivalent.json`` beside this file and do not count.
Results are appended to ``--out``: started again with the same file, the run goes on where it stopped.

Compiled code is compiled anew where a mutant changes it, and there only, with few optimisations: kernels on disk go by
the hash of all their sources, and each mutant has a copy of the unchanged ones. (``NUMBA_DISABLE_JIT`` is no way: the
features use LLVM's instructions, which Python does not have.)

A mutator of its own, because mutmut runs mutants behind trampolines, which Numba does not compile, and because
cosmic-ray has one test command for all modules and changes the checkout in place.

    pip install --constraint constraints.txt coverage
    python -m benchmarks.quality.mutants --seconds 3600 --seed 1 --work ../mutants
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path

from benchmarks.quality.chosen import Choice, Record, Tests
from benchmarks.quality.mutator import Mutant, mutants_of
from showerstack.scoring.metrics.intervals import clopper_pearson

ROOT = Path(__file__).resolve().parents[2]
SERVER = Path(__file__).with_name("server.py")
EQUIVALENT = Path(__file__).with_name("equivalent.json")
"""By a mutant's key, why it changes no number."""
PLACES: dict[str, tuple[str, ...]] = {
    "scoring": ("scoring",),
    "features": ("features/groups", "features/lateral", "features/stations"),
    "stacking": (
        "stacking/answers.py",
        "stacking/calibration.py",
        "stacking/chain.py",
        "stacking/folds.py",
        "stacking/gate.py",
        "stacking/pools.py",
        "stacking/targets.py",
    ),
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
    "rich.progress", "sklearn.ensemble", "torch", "torch._dynamo", "lightgbm",
    "array_api_strict", "array_api_compat.numpy",
)  # fmt: skip
"""What most tests import, once before them all."""
FAILED = 1
"""pytest's exit status when tests ran and failed; others above it mean that the mutant does not even import."""
SLOWER, MORE_S = 2.0, 10.0
"""A mutant may take so many times what its tests take unchanged, and so many seconds more."""
MEASURED_S = 1800.0
"""Processor seconds that the tests of one folder may take while they are measured."""
COMPILED_S = 60.0
"""Seconds more where kernels are compiled anew."""
COMPILING_S = 3.0
"""Seconds of the tests, unchanged, that compile the kernels for all mutants of other modules."""
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


class Bench:
    """A copy of the working tree in which mutants are tried."""

    def __init__(self, root: Path, work: Path, limit_s: float) -> None:
        """Copy the tree into ``work``, where kernels and what is known of the tests stay for the next time."""
        self.copy, self.limit_s = work / "tree", limit_s
        self.kernels, self.scratch, self.lines = work / "kernels", work / "scratch", work / "lines"
        self.kernels.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self.copy, ignore_errors=True)
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=root, capture_output=True, check=True
        ).stdout.decode()
        for name in filter(None, listed.split("\0")):
            if (root / name).is_file() or (root / name).is_symlink():
                (self.copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, self.copy / name, follow_symlinks=False)
        self.choice = Choice(self.copy, work / "tests.jsonl")
        self.libraries: tuple[str, ...] = LIBRARIES
        self._server: subprocess.Popen[str] | None = None

    def close(self) -> None:
        """End the process that runs tests."""
        if self._server is not None and self._server.stdin is not None:
            self._server.communicate()

    def measure(self, folder: str, pattern: str = "test_*.py") -> None:
        """Measure the test files of a folder that were not measured as they are now, once their kernels are compiled.

        Raises
        ------
        RuntimeError
            The tests did not come to an end.
        """
        tests = sorted(file.relative_to(self.copy).as_posix() for file in (self.copy / folder).rglob(pattern))
        files = self.choice.missing(tests)
        while files:
            n_kernels = sum(1 for _ in self.kernels.rglob("*.nbc"))
            got = self._ask(files=files, kept=None, cpu_s=MEASURED_S, wall_s=MEASURED_S * WAITING, measured=True)
            if got["status"] not in (0, FAILED):
                raise RuntimeError(f"{folder}: its tests ended with status {got['status']:.0f}; run pytest on them")
            if n_kernels == sum(1 for _ in self.kernels.rglob("*.nbc")):
                lines = self.lines.read_text("utf-8").splitlines()
                self.choice.add(files, (Record(**json.loads(line)) for line in lines))
                return

    def compile(self) -> None:
        """Run tests that need kernels, so that mutants of other modules find them compiled.

        Raises
        ------
        RuntimeError
            A test fails without a mutant.
        """
        for path in sorted(file.relative_to(self.copy).as_posix() for file in self.copy.rglob("compiled.py")):
            tests = self.choice.of(path, 1, COMPILING_S)
            limits = {"cpu_s": MEASURED_S, "wall_s": MEASURED_S * WAITING}
            got = self._ask(files=tests.files, kept=tests.kept, keep=True, **limits)
            if tests.kept and got["status"]:
                raise RuntimeError(f"{path}: {', '.join(tests.files)}: a test fails without a mutant; mend it first")

    def _ask(self, measured: bool = False, keep: bool = False, **asked: object) -> dict[str, float]:
        if self._server is None:
            # SciPy reads SCIPY_ARRAY_API when it is first imported, which is before tests/conftest.py.
            here = {"PYTHONPATH": str(self.copy), "NUMBA_CACHE_DIR": str(self.kernels), "SCIPY_ARRAY_API": "1"}
            here |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "NUMBA_OPT": "1"}
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
        kernels = self.kernels if measured or keep else self.scratch
        asked |= {"from": str(self.kernels), "kernels": str(kernels), "measured": str(self.lines) if measured else ""}
        self._server.stdin.write(json.dumps(asked) + "\n")
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
        tests = self.choice.of(mutant.path, mutant.line, self.limit_s)
        outcome, seconds = "untested", 0.0
        if tests.kept:
            file = self.copy / mutant.path
            source, status = file.read_bytes(), file.stat()
            try:
                file.write_bytes(mutant.of(source))
                # Python's compiled files go by whole seconds and lengths, which may both be the same.
                os.utime(file, (status.st_atime, status.st_mtime + 100))
                outcome, seconds = self.run(tests, mutant.path.startswith(SOURCES_OF_KERNELS), ends_s)
            finally:
                file.write_bytes(source)
                os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        outcome = "survived" if outcome == "passed" else outcome
        return asdict(mutant) | {"key": mutant.key, "outcome": outcome, "seconds": round(seconds, 1)}


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
            share = f"{noticed / ended:.1%} [{interval.low:.1%}, {interval.high:.1%}]"
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
    parser.add_argument("--tests", default="test_*.py", help="only test files of such names; --again tries all of them")
    parser.add_argument("--limit", type=float, default=30.0, help="processor seconds of one mutant's tests, unchanged")
    parser.add_argument("--work", type=Path, required=True, help="folder outside the repository for what is measured")
    parser.add_argument("--out", type=Path, default=Path("mutants.jsonl"), help="results, one a line")
    parser.add_argument("--again", action="store_true", help="try earlier survivors once more, and only them")
    given = parser.parse_args()
    if find_spec("coverage") is None:
        parser.error("coverage.py is not installed; pip install --constraint constraints.txt coverage")
    ended = time.monotonic() + given.seconds
    lines = [json.loads(line) for line in given.out.read_text("utf-8").splitlines()] if given.out.exists() else []
    old = [one for one in lines if one["seed"] == given.seed and one["part"] in (given.part or PLACES)]
    results = {one["key"]: one for one in old}
    again = {key for key, one in results.items() if one["outcome"] in ("survived", "untested")} if given.again else ()
    bench = Bench(ROOT, given.work.resolve(), given.limit)
    folders = {f"tests/{PLACES[part][0].split('/')[0]}" for part in given.part or PLACES}
    # Those of the features first: they compile the kernels, so that no others need a second run.
    for folder in sorted(folders, key=lambda name: (name != "tests/features", name)):
        bench.measure(folder, given.tests)
    bench.compile()
    with given.out.open("a", encoding="utf-8") as file:
        for name, mutant in in_turn(all_mutants(ROOT, given.part or PLACES), given.seed):
            left = ended - time.monotonic()
            if left <= 0 or (len(results) >= given.mutants and not again):
                break
            if not mutant.path.startswith(given.path):
                continue
            if mutant.key not in again if given.again else mutant.key in results:
                continue
            one = bench.tried(mutant, left) | {"part": name, "seed": given.seed}
            if one["outcome"] != "cut off":
                results[mutant.key] = one
                file.write(json.dumps(one) + "\n")
            file.flush()
            print(f"{one['outcome']:<10}{one['seconds']:>6} s  {mutant.path}:{mutant.line}", file=sys.stderr)
    bench.close()
    print(report(list(results.values()), json.loads(EQUIVALENT.read_text("utf-8"))))


if __name__ == "__main__":
    main()
