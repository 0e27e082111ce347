#!/bin/bash
# skops 0.16.0 with scikit-learn 1.9.1: "import skops.io" imports torch, and dask where it is installed, to read a file
# in which neither is named. Its list of trusted types is made by sklearn.utils.discovery.all_estimators(), which walks
# through all packages of scikit-learn and so imports the copy of array-api-compat in it: its sub-packages "torch" and
# "dask" import the libraries of these names.
# Guess before running: skops needs scikit-learn and NumPy, and torch only for models of skorch.
# Met where a forest of scikit-learn is read to predict: as long as all the rest, and more memory.
# What to do: read such models after what needs torch anyway, or where start-up does not count; safetensors or NumPy
# arrays for small ones.
# Seen: import sklearn.ensemble .8 s, 113 MB; then skops.io 1.2 s, 188 MB, torch among the modules.
set -euo pipefail
W=$(mktemp -d); trap 'rm -rf "$W"' EXIT
python3 -m venv "$W/v"; "$W/v/bin/pip" install -q skops==0.16.0 scikit-learn==1.9.1 torch==2.13.0 numpy==2.4.6 2>/dev/null
"$W/v/bin/python" - <<'PY'
import sys
import time


def pss_mb():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("Pss:"))


def said(what, seconds, mb):
    print(f"{what}: {time.process_time() - seconds:.1f} s, {pss_mb() - mb:.0f} MB, torch: {'torch' in sys.modules}")


now = time.process_time(), pss_mb()
import sklearn.ensemble

said(f"import sklearn.ensemble {sklearn.__version__}", *now)
before = "torch" in sys.modules
now = time.process_time(), pss_mb()
import skops.io

said(f"import skops.io {skops.__version__}", *now)
sys.exit(0 if not before and "torch" in sys.modules else "this has changed")
PY
