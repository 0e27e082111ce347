#!/bin/bash
# uproot 5.7.7: a ROOT histogram without stored errors has two sets of variances. variances() gives the counts, and 0
# where they are negative; to_hist() gives a histogram whose variances are the counts as they are, -2 for a bin of -2.
# Guess before running: both are one, and unknown for what is no counts.
# Met where differences, rates or fluxes were written as arrays: each value comes back as its own variance, and the
# error of a negative one is NaN or 0 by the way it was read.
# Seen: values -2, 3e-5: variances() 0, 3e-5; to_hist() -2, 3e-5.
set -euo pipefail
W=$(mktemp -d); trap 'rm -rf "$W"' EXIT
python3 -m venv "$W/v"
"$W/v/bin/pip" install -q uproot==5.7.7 hist==2.12.1 2>/dev/null
"$W/v/bin/python" - "$W/h.root" <<'PY'
import sys

import numpy as np
import uproot

with uproot.recreate(sys.argv[1]) as file:
    file["h"] = np.array([-2.0, 3e-5]), np.array([0.0, 1.0, 2.0])
with uproot.open(sys.argv[1]) as file:
    one, other = file["h"].variances(), file["h"].to_hist().variances()
print("variances()", one, "to_hist()", other)
sys.exit(0 if one.tolist() == [0.0, 3e-5] and other.tolist() == [-2.0, 3e-5] else "this has changed")
PY
