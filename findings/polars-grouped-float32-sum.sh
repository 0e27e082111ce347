#!/bin/bash
# polars 2.1.0: the sum of a Float32 column within a group is added up in float32, one after the other, and stops growing
# rightly where terms are small beside it; the sum of the same column as a whole is right, and so is the mean within the
# group. Guess before running: all three agree, as NumPy adds in pairs.
# Met with deposits of stations summed by shower or run. Add up in double: pl.col("v").cast(pl.Float64).sum().
# Seen: whole column 2000000.1, in a group 2175874.0 (8.8 % too much), mean in the group 0.1.
set -euo pipefail
W=$(mktemp -d); trap 'rm -rf "$W"' EXIT
python3 -m venv "$W/v"; "$W/v/bin/pip" install -q numpy==2.4.6 polars==2.1.0 2>/dev/null
"$W/v/bin/python" - <<'PY'
import sys

import numpy as np
import polars as pl

values = np.full(20_000_000, 0.1, np.float32)
frame = pl.DataFrame({"group": np.zeros(len(values), np.int8), "v": values})
grouped, mean, double = frame.group_by("group").agg(
    pl.col("v").sum(), mean=pl.col("v").mean(), double=pl.col("v").cast(pl.Float64).sum()
).row(0)[1:]
whole = frame["v"].sum()
print(f"polars {pl.__version__}: whole column {whole}, in a group {grouped}, mean in the group {mean:.4f}, in double {double}")
right = abs(whole / 2e6 - 1) < 1e-6 and abs(double / 2e6 - 1) < 1e-6 and abs(mean / 0.1 - 1) < 1e-6
sys.exit(0 if right and abs(grouped / 2175874 - 1) < 1e-3 else "this has changed")
PY
