#!/bin/bash
# particle 1.1.0: the masses of nuclei are those of neutral *atoms*, with their electrons, although a nucleus of charge
# Z is asked for (PDG numbers 1000ZZZAAA0, also from CORSIKA's). Guess before running: nuclear masses, as of the proton.
# Met where masses are balanced, as in a reaction's energy, which they change by Z times .511 MeV: subtract it.
# Seen: iron-56 52103.06 MeV (nucleus 52089.78), helium-4 3728.40 MeV (nucleus 3727.38).
set -euo pipefail
W=$(mktemp -d); trap 'rm -rf "$W"' EXIT
python3 -m venv "$W/v"; "$W/v/bin/pip" install -q particle==1.1.0 2>/dev/null
"$W/v/bin/python" - <<'PY'
import sys
from importlib.metadata import version

from particle import Corsika7ID, Particle

UNIT_MEV, ELECTRON_MEV = 931.49410372, 0.51099895069  # CODATA 2022
ATOMS_U = {402: (2, 4.00260325413), 5626: (26, 55.93493554)}  # atomic masses, AME 2020
as_atoms = True
for corsika, (charge, atom_u) in ATOMS_U.items():
    stated, atom = Particle.from_pdgid(Corsika7ID(corsika).to_pdgid()).mass, atom_u * UNIT_MEV
    nucleus = atom - charge * ELECTRON_MEV
    print(f"particle {version('particle')}, CORSIKA {corsika}: {stated:.3f} MeV; atom {atom:.3f}, nucleus {nucleus:.3f}")
    as_atoms &= abs(stated - atom) < 0.02 < abs(stated - nucleus)
sys.exit(0 if as_atoms else "this has changed")
PY
