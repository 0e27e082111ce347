#!/bin/bash
# numba-stats 1.14.0: truncexpon (an exponential between two borders) is inf, and its cdf nan, where the borders lie 37
# scales or more from loc, although an exponential has no memory and loc cannot matter; nearer it loses digits without a
# word, 3e-4 at 30 scales. Guess before running: loc moves nothing, as in scipy.stats.truncexpon.
# Met where a power law of energies is fitted as an exponential of lg E, from lg(E/eV) 15 to 18: for dN/dE ~ E^-2.7 the
# scale is 0.2555, and with loc = 0 the likelihood is infinite at every event. Give loc = the lower border.
# Seen at lg E 15.5: scale 1 equal, 0.5 0.73739 and 0.73759, 0.2555 inf and 0.55293 (loc 0 and loc 15).
set -euo pipefail
W=$(mktemp -d); trap 'rm -rf "$W"' EXIT
python3 -m venv "$W/v"
"$W/v/bin/pip" install -q numba-stats==1.14.0 numba==0.68.1 numpy==2.4.6 scipy==1.17.1 2>/dev/null
"$W/v/bin/python" - <<'PY'
import sys

import numpy as np
from numba_stats import truncexpon
from scipy.stats import truncexpon as exact

low, high, at = 15.0, 18.0, np.array([15.5])
found = {}
for scale in (1.0, 0.5, 1 / (1.7 * np.log(10))):
    known = exact.pdf(at, (high - low) / scale, low, scale)[0]
    far, near = (truncexpon.pdf(at, low, high, loc, scale)[0] for loc in (0.0, low))
    found[scale] = far / known - 1, near / known - 1, truncexpon.cdf(at, low, high, 0.0, scale)[0]
    print(f"scale {scale:.4f}: loc 0 {far:.5f}, loc 15 {near:.5f}, scipy {known:.5f}; cdf with loc 0 {found[scale][2]}")
(one, _, _), (half, exact_half, _), (steep, exact_steep, below) = found.values()
as_seen = abs(one) < 1e-8 and 1e-5 < abs(half) < 1e-2 and np.isinf(steep) and np.isnan(below)
sys.exit(0 if as_seen and max(abs(exact_half), abs(exact_steep)) < 1e-12 else "this has changed")
PY
