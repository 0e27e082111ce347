#!/bin/bash
# boost-histogram 1.8.1: a histogram of whole numbers (storage Int64) filled with weights cuts every weight down to a
# whole number, without a word: weights of .5 count nothing, of 1.9 once. Guess before running: it refuses them.
# Met with spectra of weighted simulations. Take storage Weight, which also keeps the sum of squared weights.
# Seen: 1,000 showers of weight .5: 0 (Int64), 500 (Weight); of weight 1.9: 1000, 1900.
set -euo pipefail
W=$(mktemp -d); trap 'rm -rf "$W"' EXIT
python3 -m venv "$W/v"; "$W/v/bin/pip" install -q numpy==2.4.6 boost-histogram==1.8.1 2>/dev/null
"$W/v/bin/python" - <<'PY'
import sys

import boost_histogram as bh
import numpy as np

sums = []
for weight in (0.5, 1.9):
    for storage in (bh.storage.Int64(), bh.storage.Weight()):
        histogram = bh.Histogram(bh.axis.Regular(1, 0, 1), storage=storage)
        histogram.fill(np.full(1000, 0.5), weight=np.full(1000, weight))
        view = histogram.view()
        sums.append(float((view if view.dtype.names is None else view.value)[0]))
        print(f"boost-histogram {bh.__version__}, 1,000 weights of {weight}, {type(storage).__name__}: {sums[-1]:g}")
sys.exit(0 if np.allclose(sums, [0, 500, 1000, 1900]) else "this has changed")
PY
