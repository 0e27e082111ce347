#!/usr/bin/env bash
# chromo 0.11.0, Sibyll 2.3d: an event of a nucleus holds what one of its nucleons does, whatever the mass number. The
# kinematics take (A, Z) as projectile without a warning, and one expects the products of all wounded nucleons and the
# spectators, A times the energy of a nucleon. What comes is one nucleon's interaction: the energy of a proton, its
# multiplicity, no fragments.
# Met where air showers of nuclei were simulated: sizes and muon numbers of iron would have been those of a proton with a
# 56th of the energy.
# Remedy: throw nucleons, with the number of wounded ones and the break-up from elsewhere.
# Guess written down before: 56 times the energy, and some eight times the particles, of a proton. Seen, in 300 events
# each of 1 TeV a nucleon on nitrogen: 1,001 GeV and 33 particles of protons, 1,001 GeV and 34 of helium, 1,001 GeV and 32
# of iron.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check 'chromo==0.11.0' 'numpy==2.4.6'
cat > "$work/look.py" <<'PY'
import chromo
import numpy as np
from chromo.constants import TeV
from chromo.kinematics import FixedTarget
from chromo.models import Sibyll23d

generator, found = None, {}
for name, projectile in (("proton", 2212), ("helium", (4, 2)), ("iron", (56, 26))):
    kinematics = FixedTarget(TeV, projectile, (14, 7))
    if generator is None:
        generator = Sibyll23d(kinematics, seed=3)
    generator.kinematics = kinematics
    states = [event.final_state() for event in generator(300)]
    found[name] = np.mean([state.en.sum() for state in states]), np.mean([len(state) for state in states])
for name, (energy, particles) in found.items():
    print(f"chromo {chromo.__version__}, Sibyll 2.3d, {name}: {energy:,.0f} GeV, {particles:.0f} particles an event")
for name in ("helium", "iron"):
    energy, particles = (one / of_proton for one, of_proton in zip(found[name], found["proton"], strict=True))
    assert abs(energy - 1) < 0.01 and abs(particles - 1) < 0.3, "this has changed"
PY
"$work/venv/bin/python" "$work/look.py" | grep chromo
