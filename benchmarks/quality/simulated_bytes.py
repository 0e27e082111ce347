"""What equal bytes of simulated showers on all x86 processors would cost: processor time, and grids that differ.

NumPy chooses its loops of exp, log and powers by the processor, and their last bits differ. The same showers are
simulated as usual, with NumPy's plainest loops, and with these and kernels compiled for any processor.

    python -m benchmarks.quality.simulated_bytes --showers 40000 --rounds 3
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

PLAIN_NUMPY = {"NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR"}
"""By the names of NumPy from 2.4 on; a name that NumPy does not know is ignored with a warning."""
WAYS = {
    "as usual": {},
    "plain NumPy": PLAIN_NUMPY,
    "plain NumPy and kernels": PLAIN_NUMPY | {"NUMBA_CPU_NAME": "generic"},
}
SIMULATE = """
import sys, time
from showerstack.showers.schema import COMPOSITION
from showerstack.showers.simulation import simulate
simulate(COMPOSITION, sys.argv[1] + "/first", n_train=200, n_test=200, seed=2, workers=1)  # compiles
start = time.process_time()
simulate(COMPOSITION, sys.argv[1] + "/set", n_train=200, n_test=int(sys.argv[2]), seed=1, workers=1)
print(time.process_time() - start)
"""


def main() -> None:
    """Print seconds (median, smallest, largest) and the share of grids that differ from those made as usual."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--showers", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    grids = {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            for name, variables in WAYS.items():
                out = Path(folder, name, str(number))
                command = [sys.executable, "-W", "ignore", "-c", SIMULATE, str(out), str(options.showers)]
                text = subprocess.run(
                    command, check=True, text=True, stdout=subprocess.PIPE, env=os.environ | variables
                )
                seconds[name].append(float(text.stdout.split()[-1]))
                grids[name] = np.load(out / "set" / "composition_test" / "matrices.npy", mmap_mode="r")
        for name, values in seconds.items():
            differ = int((grids[name] != grids["as usual"]).any(axis=(1, 2, 3)).sum())
            print(f"{name:24} {np.median(values):6.2f} s ({min(values):.2f} to {max(values):.2f}), "
                  f"grids that differ: {differ} of {options.showers:,}")  # fmt: skip
        same = np.array_equal(grids["plain NumPy"], grids["plain NumPy and kernels"])
        print(f"plain NumPy with both kinds of kernels: {'the same bytes' if same else 'other bytes'}")


if __name__ == "__main__":
    main()
