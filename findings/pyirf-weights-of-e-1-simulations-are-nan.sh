#!/bin/bash
# pyirf 0.13.0 (and 0.15.0, for Python 3.12 and newer): of showers simulated as E^-1, as many in each decade,
# PowerLaw.from_simulation has a normalisation of NaN, and so have all event weights and the numbers of simulated
# showers per energy; a warning of NumPy is all that says so. Guess before running: the logarithm is taken, as CORSIKA's
# card allows this slope.
# Met with simulations of air-shower arrays, which are often thrown so: effective areas and weights are NaN throughout.
# A slope of -1.0001 is a way round.
# Seen: slope -1 NaN, slope -1.0001 finite.
set -euo pipefail
W=$(mktemp -d); trap 'rm -rf "$W"' EXIT
python3 -m venv "$W/v"
"$W/v/bin/pip" install -q pyirf==0.13.0 2>/dev/null
"$W/v/bin/python" - <<'PY'
import sys
import warnings

import numpy as np

warnings.simplefilter("ignore")
import astropy.units as u
from pyirf.simulations import SimulatedEventsInfo
from pyirf.spectral import PowerLaw

found = []
for slope in (-1.0, -1.0001):
    info = SimulatedEventsInfo(1000, 0.1 * u.PeV, 100 * u.PeV, 500 * u.m, slope, 0 * u.deg, 30 * u.deg)
    spectrum = PowerLaw.from_simulation(info, 1 * u.yr)
    numbers = info.calculate_n_showers_per_energy([0.1, 1, 10, 100] * u.PeV)
    found.append(np.isfinite([spectrum.normalization.value, *numbers]))
    print(slope, spectrum.normalization, numbers)
sys.exit(0 if not found[0].any() and found[1].all() else "this has changed")
PY
