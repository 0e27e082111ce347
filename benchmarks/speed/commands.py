"""Whole commands of this checkout beside another one: processor time, wall-clock time, memory.

    python -m benchmarks.speed.commands --against ../other_checkout --rounds 5

Each command is run by both checkouts in turn, on the same simulated showers without cuts; the first round compiles and
fills caches and does not count. Each checkout predicts with a run of its own that uses one network. Printed are
medians with ranges, and the ratios of each pair: they count where other programs use the machine too. ``features``
makes the table of all columns, ``predict`` keeps no table. Memory is the largest of a command and its processes
together, sampled twice a second, the pages of mapped files included. At last the table's bytes are compared for 1, 2
and 4 threads, and after a kill.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.shared.memory import FamilyMemory
from showerstack.showers.schema import COMPOSITION, MATRICES_FILE, SCALARS_FILE, SOURCE_FILE
from showerstack.showers.simulation import simulate

ROOT = Path(__file__).resolve().parents[2]
MANY, MILLION = 60_000, 1_000_000
ONE_NETWORK = """learners = ["pretrained"]
folds = 5
holdout = 0.3
[settings.pretrained]
epochs = 1
"""
"""Options of a run that uses one network: how long it learns makes predictions no slower."""


class CommandCost(NamedTuple):
    """What a command took, with its processes."""

    cpu_s: float
    wall_s: float
    peak_gb: float


def timed(root: Path, *arguments: object, program: str = "cli.py") -> CommandCost:
    """Run a command of a checkout to its end; it must succeed."""
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
    command = [sys.executable, str(root / program), *map(str, arguments)]
    began = time.perf_counter()
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, env=environment, cwd=root, stdout=subprocess.DEVNULL, stderr=errors)
        memory = FamilyMemory(process.pid)
        _, status, used = os.wait4(process.pid, 0)
        peak_gb = memory.stop() / 1e9
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            what = errors.read().decode(errors="replace")[-2000:]
            raise SystemExit(f"{' '.join(command)} ended with {process.returncode}: {what}")
    return CommandCost(used.ru_utime + used.ru_stime, time.perf_counter() - began, peak_gb)


def one_network(root: Path, folder: Path) -> Path:
    """Train a run of a checkout that uses one network; return its folder."""
    simulate(COMPOSITION, folder / "data", n_train=2_500, n_test=200, seed=5, train_cuts="test")
    (folder / "stack.toml").write_text(ONE_NETWORK, encoding="utf-8")
    timed(root, "stack", "--task", "composition", "--data", folder / "data", "--run", folder / "run",
          "--config", folder / "stack.toml", "--workers", 1, "--device", "cpu")  # fmt: skip
    return folder / "run"


def repeated(data: Path, folder: Path, n_events: int) -> Path:
    """Write a dataset folder of so many events: those of ``data`` from the first on, again and again."""
    folder.mkdir()
    for name in (MATRICES_FILE, SCALARS_FILE):
        once = np.load(data / name, mmap_mode="r")
        written = np.lib.format.open_memmap(folder / name, "w+", once.dtype, (n_events, *once.shape[1:]))
        for start in range(0, n_events, len(once)):
            written[start : start + len(once)] = once[: n_events - start]
        written.flush()
    shutil.copyfile(data / SOURCE_FILE, folder / SOURCE_FILE)
    return folder


def features(root: Path, data: Path, out: Path, *options: object) -> CommandCost:
    """Make a feature table and remove it again."""
    cost = timed(root, "features", data, "--out", out, "--device", "cpu", "--quiet", *options)
    shutil.rmtree(out)
    return cost


def predict(root: Path, run: Path, data: Path, out: Path) -> CommandCost:
    """Predict with a run of a checkout; the file is removed again."""
    cost = timed(
        root, "predict", "--run", run, "--data", data, "--out", out, "--no-table", "--device", "cpu", "--quiet"
    )
    out.unlink()
    return cost


def digest_of(table: Path) -> str:
    """Return a hash of all shards of a feature table."""
    digest = hashlib.sha256()
    for file in sorted(table.glob("part-*.parquet")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def same_bytes(data: Path, scratch: Path) -> str:
    """Return the hashes of a table made by 1, 2 and 4 threads, and by two that were killed after the first shard."""
    digests = {}
    for workers in (1, 2, 4):
        timed(ROOT, "features", data, "--out", scratch / f"{workers}", "--workers", workers, "--quiet")
        digests[f"{workers} threads"] = digest_of(scratch / f"{workers}")
    killed = scratch / "killed"
    command = [sys.executable, str(ROOT / "cli.py"), "features", str(data), "--out", str(killed), "--workers", "2"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not list(killed.glob("part-*.parquet")):
            time.sleep(0.01)
        process.kill()
    found = len(list(killed.glob("part-*.parquet")))
    timed(ROOT, "features", data, "--out", killed, "--workers", 2, "--quiet")
    digests[f"killed with {found} shards"] = digest_of(killed)
    return ", ".join(f"{name} {digest}" for name, digest in digests.items())


def ranged(values: list[float], digits: int) -> str:
    """Return a median and its range."""
    return f"{np.median(values):.{digits}f} ({min(values):.{digits}f}..{max(values):.{digits}f})"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, required=True, help="another checkout")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--skip-million", action="store_true")
    options = parser.parse_args()
    roots = (options.against.resolve(), ROOT)
    with tempfile.TemporaryDirectory(prefix="commands-") as name:
        scratch = Path(name)
        made, _ = simulate(COMPOSITION, scratch / "data", n_train=MANY, n_test=100, seed=15)
        many = repeated(made, scratch / "many", MANY)
        million = many if options.skip_million else repeated(made, scratch / "million", MILLION)
        runs = [one_network(root, scratch / f"trained-{k}") for k, root in enumerate(roots)]
        table, file = scratch / "table", scratch / "new.npz"
        work = {
            f"features, {MANY:,} showers, one worker": lambda k: features(roots[k], many, table, "--workers", 1),
            f"features, {MANY:,} showers, as it comes": lambda k: features(roots[k], many, table),
            f"predict, {MANY:,} showers": lambda k: predict(roots[k], runs[k], many, file),
        }
        if not options.skip_million:
            work |= {
                f"features, {MILLION:,} showers": lambda k: features(roots[k], million, table),
                f"predict, {MILLION:,} showers": lambda k: predict(roots[k], runs[k], million, file),
            }
        print("| command | | before (range) | now (range) | ratio (range) |\n|---|---|---|---|---|")
        for what, measure in work.items():
            rounds = [[measure(k) for k in range(2)] for _ in range(options.rounds + 1)][1:]
            for number, (label, digits) in enumerate((("CPU s", 1), ("wall s", 1), ("peak GB", 2))):
                before, now = ([pair[k][number] for pair in rounds] for k in range(2))
                ratios = [b / a for a, b in zip(before, now, strict=True)]
                cells = (ranged(before, digits), ranged(now, digits), ranged(ratios, 2))
                print(f"| {what if not number else ''} | {label} | {' | '.join(cells)} |", flush=True)
        print(f"\nBytes of the table of {MANY:,} showers: {same_bytes(many, scratch)}")


if __name__ == "__main__":
    main()
