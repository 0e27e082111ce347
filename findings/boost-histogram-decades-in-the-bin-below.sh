#!/bin/bash
# boost-histogram 1.8.1: on a logarithmic axis from 1e13 to 1e19 an energy of exactly 1e15 or 1e18 falls into the bin
# *below* the edge that it lies on, 1e14, 1e16 and 1e17 into the one above; NumPy's logspace with histogram has them
# all above. An axis from 1 to 1e18 has none below. Guess before running: a value on an edge belongs to the bin above,
# as documented.
# Met with showers simulated at fixed energies, whole decades: a bin of a spectrum is empty and its neighbour doubled.
# Let the axis begin and end between the energies, or fill lg(E) into a linear axis with edges half a bin off.
# Seen: 1e13 to 1e19: below are lg E = 15, 18; 1 to 1e18: none.
set -euo pipefail
W=$(mktemp -d); trap 'rm -rf "$W"' EXIT
python3 -m venv "$W/v"; "$W/v/bin/pip" install -q numpy==2.4.6 boost-histogram==1.8.1 2>/dev/null
"$W/v/bin/python" - <<'PY'
import sys

import boost_histogram as bh
import numpy as np

below = {}
for low, high in ((13, 19), (0, 18)):
    axis = bh.axis.Regular(high - low, 10.0**low, 10.0**high, transform=bh.axis.transform.log)
    decades = np.arange(low, high)
    energies = np.array([float(f"1e{k}") for k in decades])
    below[low] = decades[axis.index(energies) < decades - low].tolist()
    counts = np.histogram(energies, np.logspace(low, high, high - low + 1))[0]
    print(f"boost-histogram {bh.__version__}, 1e{low} to 1e{high}: in the bin below are lg E = {below[low]}; NumPy's counts {counts}")
    assert (counts == 1).all()
sys.exit(0 if below == {13: [15, 18], 0: []} else "this has changed")
PY
