#!/bin/bash
# pyirf 0.13.0 (and 0.15.0, for Python 3.12 and newer): li_ma_significance is NaN where the counts are just those
# expected and alpha is 0.2 (n_on = 0.2 n_off), for every n; with alpha 0.1 it is 0. The sum of two logarithms of one
# comes out a rounding error below 0, and its root is taken. Guess before running: 0.
# Met in maps and in scans of cuts: the most usual bins are the ones without a value, a mean over a map is NaN, and a
# maximum skips them or not as it likes.
# Seen: NaN for all of n_on = 1 to 1,000 with n_off = 5 n_on; 0.0 for n_off = 10 n_on.
set -euo pipefail
W=$(mktemp -d); trap 'rm -rf "$W"' EXIT
python3 -m venv "$W/v"
"$W/v/bin/pip" install -q pyirf==0.13.0 2>/dev/null
"$W/v/bin/python" - <<'PY'
import sys
import warnings

import numpy as np

warnings.simplefilter("ignore")
from pyirf.statistics import li_ma_significance

n_on = np.arange(1.0, 1001.0)
fifth, tenth = (li_ma_significance(n_on, n_on / alpha, alpha) for alpha in (0.2, 0.1))
print(f"alpha 0.2: {np.isnan(fifth).mean():.0%} NaN; alpha 0.1: {np.isnan(tenth).mean():.0%}, largest {np.nanmax(tenth)}")
sys.exit(0 if np.isnan(fifth).all() and not np.isnan(tenth).any() else "this has changed")
PY
