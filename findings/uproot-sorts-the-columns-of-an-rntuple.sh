#!/bin/bash
# uproot 5.7.7 gives the columns of an RNTuple, which is what file["name"] = {...} writes today, in the order of the
# alphabet; those of a TTree keep the order in which they were written. Guess before running: both keep it.
# Met where columns are stacked to an array by position, as for a learner: ask for them by name, in your own order.
# Seen: written zenith, azimuth, energy; RNTuple azimuth, energy, zenith; TTree zenith, azimuth, energy.
set -euo pipefail
W=$(mktemp -d); trap 'rm -rf "$W"' EXIT
python3 -m venv "$W/v"; "$W/v/bin/pip" install -q numpy==2.4.6 awkward==2.14.0 uproot==5.7.7 2>/dev/null
cd "$W"; "$W/v/bin/python" - <<'PY'
import sys

import numpy as np
import uproot

columns = {"zenith": np.array([20.0]), "azimuth": np.array([310.0]), "energy": np.array([15.5])}
with uproot.recreate("events.root") as file:
    file["ntuple"] = columns
    file.mktree("tree", {name: values.dtype for name, values in columns.items()}).extend(columns)
with uproot.open("events.root") as file:
    read = {name: list(file[name].arrays(library="np")) for name in ("ntuple", "tree")}
    kinds = file.classnames()
print(f"uproot {uproot.__version__}: written {list(columns)}, {kinds['ntuple;1']} {read['ntuple']}, {kinds['tree;1']} {read['tree']}")
as_seen = read["ntuple"] == sorted(columns) and read["tree"] == list(columns) and "RNTuple" in kinds["ntuple;1"]
sys.exit(0 if as_seen else "this has changed")
PY
