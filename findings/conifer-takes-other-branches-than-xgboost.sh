#!/bin/bash
# conifer 1.11 with xgboost 3.2.0: one event in a hundred takes another branch in conifer's Python backend, and its
# score is off by up to 1.5; the compiled C++ backend, which needs nlohmann/json, is right to 5e-7 in all of them. With
# xgboost 3.4.1 (Python 3.12 and newer) all scores of five classes of unlike sizes are NaN: its base scores, one a class,
# are taken for probabilities. Guess before running: scores within float32 of those of xgboost.
# Met where trees go to a trigger's FPGA and are checked in Python first: compare scores of some thousand events, with
# the C++ backend; for several classes train with base_score=0.
# Seen: two classes 99.0 % within 1e-5, the others up to 1.3 off; five classes 99.2 %, up to 1.5.
set -euo pipefail
W=$(mktemp -d); trap 'rm -rf "$W"' EXIT
python3 -m venv "$W/v"
"$W/v/bin/pip" install -q conifer==1.11 xgboost-cpu==3.2.0 pandas scikit-learn 2>/dev/null
"$W/v/bin/python" - "$W/out" <<'PY'
import logging
import sys
import warnings

import numpy as np

warnings.simplefilter("ignore")
logging.disable()
import conifer
import xgboost

rng = np.random.default_rng(0)
x = rng.normal(size=(3000, 6)).astype(np.float32)
z = x[:, 0] + 0.5 * x[:, 1] + 0.5 * rng.normal(size=3000)
as_seen = True
for n_classes in (2, 5):
    y = np.digitize(z, np.quantile(z, np.arange(1, n_classes) / n_classes))
    goal = {"objective": "binary:logistic"} if n_classes == 2 else {"objective": "multi:softprob", "num_class": n_classes}
    model = xgboost.train({"max_depth": 4, "verbosity": 0, **goal}, xgboost.DMatrix(x, y), 20)
    here = conifer.converters.convert_from_xgboost(model, {"Backend": "py", "OutputDir": sys.argv[1], "ProjectName": "p"})
    gap = np.abs(here.decision_function(x) - model.predict(xgboost.DMatrix(x), output_margin=True))
    as_seen &= 0.97 < (gap < 1e-5).mean() < 1 and gap.max() > 0.5
    print(f"{n_classes} classes: {(gap < 1e-5).mean():.1%} of the scores within 1e-5, largest difference {gap.max():.2f}")
sys.exit(0 if as_seen else "this has changed")
PY
