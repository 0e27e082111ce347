"""Threads or processes: what a finished run takes to predict in process (``--trusted``) and in processes of their own.

    OMP_NUM_THREADS=1 python benchmarks/speed/trusted.py --run runs/wine --table new.parquet --rounds 4

Both ask every learner of the run with as many workers, in turn, each time in a new process: starting counts. Processor
time is that of all processes. The ratio, threads over processes, is the geometric mean of the rounds with Student's
95 % interval; the predictions are compared bit by bit.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from scipy import stats

from showerstack import stacking
from showerstack.runtime.context import Context
from showerstack.scoring.metrics.level import LEVEL
from showerstack.stacking.predict import predict

MODES = {"threads": True, "processes": False}


def one(run: Path, table: Path, workers: int, *, trusted: bool) -> str:
    """Predict with every learner of the run; return the hash of the log-probabilities."""
    result = predict(
        stacking.load(run), table, Context(workers=workers, trusted=trusted), everything=True
    ).concatenated()
    parts = [result.log_proba, *(values for _, values in sorted(result.by_name.items()))]
    return hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts)).hexdigest()


def children_s() -> float:
    """Return the processor time of all children of this process that have ended, s."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def interval(ratios: np.ndarray) -> str:
    """Return the geometric mean with its interval."""
    logs = np.log(ratios)
    half = float(stats.t.ppf(0.5 + LEVEL / 2, len(logs) - 1) * stats.sem(logs)) if len(logs) > 1 else np.inf
    low, mean, high = np.exp([logs.mean() - half, logs.mean(), logs.mean() + half])
    return f"{mean:.2f} [{low:.2f}, {high:.2f}]"


def main() -> None:
    """Measure in turn and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--once", choices=MODES, help="what the measured processes are called with")
    options = parser.parse_args()
    if options.once:
        print(one(options.run, options.table, options.workers, trusted=MODES[options.once]))
        return
    cpu, wall = ({mode: list[float]() for mode in MODES} for _ in range(2))
    hashes = set()
    for _ in range(options.rounds):
        for mode in MODES:
            before_s, began = children_s(), time.monotonic()
            arguments = [*sys.argv[1:], "--workers", str(options.workers), "--once", mode]
            done = subprocess.run([sys.executable, __file__, *arguments], check=True, capture_output=True, text=True)
            hashes.add(done.stdout.strip())
            cpu[mode].append(children_s() - before_s)
            wall[mode].append(time.monotonic() - began)
            print(f"{mode}: processor {cpu[mode][-1]:.1f} s, wall {wall[mode][-1]:.1f} s", flush=True)
    print(f"bit by bit {'equal' if len(hashes) == 1 else 'DIFFERENT'}; threads over processes:")
    for name, taken in (("processor time", cpu), ("wall", wall)):
        print(f"{name}: {interval(np.array(taken['threads']) / np.array(taken['processes']))}")


if __name__ == "__main__":
    main()
