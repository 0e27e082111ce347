#!/bin/bash
# scipy 1.17.1 with numpy 2.4.6: `import scipy.special` also imports numpy.f2py, numpy's wrapper of Fortran compilers,
# and numpy.testing. SciPy's copy of array-api-compat asks NumPy for all of its names, and NumPy loads these two modules
# when they are asked for. Some 0.1 of 0.25 s of the import go there. `import scipy.linalg` does the
# same.
# Met when the start of a command was cut down to what it needs. Import scipy.special where it is used, or take
# math.lgamma and math.erf for single numbers.
# Seen: after numpy: neither; after scipy.special: both.
set -euo pipefail
W=$(mktemp -d); trap 'rm -rf "$W"' EXIT
python3 -m venv "$W/v"; "$W/v/bin/pip" install -q numpy==2.4.6 scipy==1.17.1 2>/dev/null
"$W/v/bin/python" - <<'PY'
import sys
import time

import numpy

WATCHED = ("numpy.f2py", "numpy.testing")
before = [name in sys.modules for name in WATCHED]
start = time.process_time()
import scipy.special

used = time.process_time() - start
after = [name in sys.modules for name in WATCHED]
print(f"numpy {numpy.__version__}: {dict(zip(WATCHED, before))}")
print(f"scipy {scipy.__version__}, scipy.special in {used:.2f} s: {dict(zip(WATCHED, after))}")
sys.exit(0 if before == [False, False] and after == [True, True] else "this has changed")
PY
