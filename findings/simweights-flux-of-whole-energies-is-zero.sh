#!/bin/bash
# simweights 0.1.3: every cosmic-ray flux of an energy that is a whole number (a Python int, an array of integers) is 0,
# without a word; of the same energy as a float it is right. The flux is computed into an array of the energy's type.
# Nuclei that a model lacks have no flux either: models of five groups know N 14 and Al 27, no carbon and no silicon.
# Guess before running: 1000000 and 1e6 are the same energy.
# Met where the flux at 1 PeV is asked for as model(10**6, 2212), or energies come from bins of whole GeV, and where the
# usual five primaries of air-shower sets are weighted: carbon and silicon vanish. Give floats, and look at each
# primary's sum of weights.
# Seen: Hoerandel5 of protons at 1000000 GeV 0, at 1e6 GeV 6.08e-17; of silicon and carbon 0.
set -euo pipefail
W=$(mktemp -d); trap 'rm -rf "$W"' EXIT
python3 -m venv "$W/v"
"$W/v/bin/pip" install -q simweights==0.1.3 numpy==2.4.6 2>/dev/null
"$W/v/bin/python" - <<'PY'
import sys

import numpy as np
import simweights

as_seen = True
for kind in (simweights.Hoerandel5, simweights.GaisserH3a, simweights.GlobalSplineFit5Comp, simweights.TIG1996):
    model = kind()
    whole, real, array = (model(energy, 2212) for energy in (1_000_000, 1e6, np.array([1_000_000])))
    print(f"{kind.__name__}: protons at 1000000 GeV {whole}, at 1e6 GeV {real:.3g}, in an array {array}")
    as_seen &= bool(whole == 0 and array[0] == 0 and real > 1e-17)
carbon, silicon, nitrogen = (simweights.Hoerandel5()(1e6, kind) for kind in (1000060120, 1000140280, 1000070140))
print(f"Hoerandel5 at 1e6 GeV: carbon {carbon}, silicon {silicon}, nitrogen {nitrogen:.3g}")
sys.exit(0 if as_seen and carbon == silicon == 0 < nitrogen else "this has changed")
PY
