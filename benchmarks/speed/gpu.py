"""The GPU against the CPU of the same machine: same results, and how much faster; everything in one run.

    python benchmarks/speed/gpu.py --events 100000 --write docs/benchmarks/gpu.md

Compared: the lateral fits by both kernels in every output, all features, the way from a dataset folder to its table on
disk, and the training of boosters and networks (settings of preset ``quick``) on the same showers, with the difference
in log-loss on held-out ones. The CPU works with all cores but where it says otherwise. Rates are the fastest of
several rounds after one that does not count; a training is done once.
"""

from __future__ import annotations

import argparse
import os
import platform
from pathlib import Path

import cupy
import torch

from showerstack.report.gpu import LEARNERS, DeviceComparison, compare
from showerstack.runtime.files import atomic_path


def row_of(comparison: DeviceComparison) -> str:
    """Return a line of the table."""
    rates = (comparison.gpu_per_s, comparison.cpu_per_s, comparison.gpu_per_s / comparison.cpu_per_s)
    timed = rates[0] == rates[0]
    cells = [f"{rates[0]:,.0f}", f"{rates[1]:,.0f}", f"{rates[2]:.1f}"] if timed else ["-"] * 3
    return f"| {' | '.join([comparison.what, *cells, comparison.agreement, 'yes' if comparison.ok else '**no**'])} |"


def machine() -> str:
    """Return what it ran on, in a line."""
    name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    cores = len(os.sched_getaffinity(0))
    libraries = f"torch {torch.__version__}, CuPy {cupy.__version__}"
    return f"{name}, {cores} CPU cores, Python {platform.python_version()}, {libraries}"


def main() -> None:
    """Compare, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--learners", default=",".join(LEARNERS))
    parser.add_argument("--write", type=Path, help="Markdown file to write")
    options = parser.parse_args()
    lines = [f"{options.events:,} showers under the test's cuts; {machine()}.", ""]
    lines += ["| what | GPU, events/s | CPU, events/s | ratio | agreement | ok |", "|---|---|---|---|---|---|"]
    print("\n".join(lines), flush=True)
    for comparison in compare(options.events, tuple(options.learners.split(",")), options.rounds):
        lines.append(row_of(comparison))
        print(lines[-1], flush=True)
    if options.write:
        with atomic_path(options.write) as temporary:
            temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
