#!/bin/bash
# numpy 2.4.6: searchsorted in a sorted float32 array for a float64 number (np.float64, a Python float or a list of some)
# makes float64 of all its values first, at each call: a search of some twenty steps takes a thousand times as long.
# Guess before running: some twenty comparisons each, whatever the kinds.
# Met where particles of an air shower, sorted by x, are looked up by the edges of 250 detectors: 27 of 41 s. Python's
# bisect with np.float64 compares exactly and converts one value a step.
# Seen, three million values: float32 in float32 .4 us, float64 in float64 .4 us, float64 in float32 680 us, a Python
# float as well, bisect 2 us.
set -euo pipefail
W=$(mktemp -d); trap 'rm -rf "$W"' EXIT
python3 -m venv "$W/v"; "$W/v/bin/pip" install -q numpy==2.4.6 2>/dev/null
"$W/v/bin/python" - <<'PY'
import sys
from bisect import bisect_left
from timeit import repeat

import numpy as np

narrow = np.sort(np.random.default_rng(1).random(3_000_000, np.float32))
wide = narrow.astype(np.float64)
us = {
    name: 1e4 * min(repeat(search, number=100, repeat=5))
    for name, search in {
        "float32 in float32": lambda: narrow.searchsorted(np.float32(0.1)),
        "float64 in float64": lambda: wide.searchsorted(np.float64(0.1)),
        "float64 in float32": lambda: narrow.searchsorted(np.float64(0.1)),
        "a Python float in float32": lambda: narrow.searchsorted(0.1),
        "bisect, float64 in float32": lambda: bisect_left(narrow, np.float64(0.1)),
    }.items()
}
print(f"numpy {np.__version__}:", ", ".join(f"{name} {one:.1f} us" for name, one in us.items()))
same, _, *slow, bisected = us.values()
sys.exit(0 if min(slow) > 50 * max(same, us["float64 in float64"]) and min(slow) > 20 * bisected else "this has changed")
PY
