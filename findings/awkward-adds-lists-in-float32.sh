#!/bin/bash
# awkward 2.14.0: ak.sum over the lists of a jagged float32 array (axis=-1) adds one after the other in float32, and is
# wrong where many small terms follow; ak.sum of everything (axis=None) is right, as NumPy adds in pairs. Guess before
# running: both are right.
# Met with particles at the ground, summed by shower: a list of 20,000,000 weights of 1. Cast first:
# ak.sum(ak.values_astype(x, "float64"), axis=-1).
# Seen: axis=None 20,000,000; axis=-1 16,777,216 (16 % too few).
set -euo pipefail
W=$(mktemp -d); trap 'rm -rf "$W"' EXIT
python3 -m venv "$W/v"; "$W/v/bin/pip" install -q numpy==2.4.6 awkward==2.14.0 2>/dev/null
"$W/v/bin/python" - <<'PY'
import sys

import awkward as ak
import numpy as np

n = 20_000_000
lists = ak.unflatten(np.ones(n, np.float32), [n])
whole, by_list = float(ak.sum(lists)), float(ak.sum(lists, axis=-1)[0])
double = float(ak.sum(ak.values_astype(lists, "float64"), axis=-1)[0])
print(f"awkward {ak.__version__}: axis=None {whole:,.0f}; axis=-1 {by_list:,.0f}; axis=-1 in double {double:,.0f}")
sys.exit(0 if (whole, by_list, double) == (n, 16_777_216, n) else "this has changed")
PY
