#!/bin/bash
# LightGBM 4.7.0 takes every feature value between -1e-35 and 1e-35 for zero, and learns nothing from a column of such
# values; XGBoost 3.2.0 learns from it as from any other. No warning is given. Guess before running: trees do not depend
# on a column's unit.
# Met with fluxes: 1e-24 m^-2 s^-1 sr^-1 eV^-1 at some 10 PeV, 1e-36 and less above 1e19 eV. Give such a column as its
# logarithm.
# Seen: area under the curve .894 for the column as it is, .894 times 1e-34, .522 times 1e-36, .500 times 1e-38.
set -euo pipefail
W=$(mktemp -d); trap 'rm -rf "$W"' EXIT
python3 -m venv "$W/v"; "$W/v/bin/pip" install -q numpy==2.4.6 scipy==1.17.1 lightgbm==4.7.0 xgboost-cpu==3.2.0 2>/dev/null
"$W/v/bin/python" - <<'PY'
import sys

import lightgbm as lgb
import numpy as np
import xgboost as xgb

rng = np.random.default_rng(1)
labels = rng.integers(0, 2, 4000)
column = 10 ** (0.3 * rng.normal(size=4000) + 0.5 * labels)


def area(score):
    one, other = score[labels == 1][:, None], score[labels == 0]
    return (one > other).mean() + (one == other).mean() / 2


found = {}
for scale in (1.0, 1e-34, 1e-36, 1e-38):
    x = (scale * column)[:, None]
    lightgbm = lgb.train({"objective": "binary", "verbose": -1, "num_threads": 1}, lgb.Dataset(x, labels), 20).predict(x)
    xgboost = xgb.train({"objective": "binary:logistic", "nthread": 1}, xgb.DMatrix(x, labels), 20)
    found[scale] = area(lightgbm), area(xgboost.predict(xgb.DMatrix(x)))
    print(f"column times {scale:g}: LightGBM {lgb.__version__} {found[scale][0]:.3f}, XGBoost {xgb.__version__} {found[scale][1]:.3f}")
as_seen = min(found[1.0][0], found[1e-34][0]) > 0.88 and found[1e-36][0] < 0.6 and found[1e-38][0] == 0.5
sys.exit(0 if as_seen and min(two[1] for two in found.values()) > 0.88 else "this has changed")
PY
