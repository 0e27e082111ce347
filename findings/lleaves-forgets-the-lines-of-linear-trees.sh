#!/bin/bash
# lleaves 1.3.0 compiles a LightGBM 4.7.0 model with linear_tree=True and predicts without the lines in its leaves: each
# leaf gives its constant. Nothing is said, although the file has is_linear=1 in every tree.
# Guess before running: a refusal, as lleaves refuses multiclassova, and as treelite 4.8.1 refuses linear trees.
# Met when ways to predict boosters without their library were compared; plain, categorical, multiclass, DART and Poisson
# models agree with LightGBM to 1e-15. It needs llvmlite below 0.45: with 0.50, which pip takes today, compile() ends in
# an AttributeError (PassManagerBuilder is gone).
# Seen: residuals of 0.51 where LightGBM has 0.22, single predictions wrong by 4.3, of a target with spread 2.27.
set -euo pipefail
W=$(mktemp -d); trap 'rm -rf "$W"' EXIT
python3 -m venv "$W/v"
"$W/v/bin/pip" install -q lleaves==1.3.0 llvmlite==0.44.0 lightgbm==4.7.0 numpy==2.4.6 scipy scikit-learn 2>/dev/null
cd "$W"
"$W/v/bin/python" - <<'PY'
import lightgbm
import lleaves
import numpy as np

rng = np.random.default_rng(1)
x = rng.normal(size=(4000, 3))
target = 2 * x[:, 0] + x[:, 1] * x[:, 2] + 0.1 * rng.normal(size=4000)
for linear in (False, True):
    options = {"objective": "regression", "linear_tree": linear, "verbose": -1, "seed": 1}
    booster = lightgbm.train(options, lightgbm.Dataset(x, target), 50)
    booster.save_model("model.txt")
    assert ("is_linear=1" in open("model.txt").read()) == linear
    model = lleaves.Model(model_file="model.txt")
    model.compile()
    own, theirs = booster.predict(x), model.predict(x)
    gap = np.abs(own - theirs).max()
    print(
        f"linear_tree={linear}: largest difference {gap:.1e}; residuals {np.std(own - target):.2f} by LightGBM, "
        f"{np.std(theirs - target):.2f} by lleaves, spread {np.std(target):.2f}"
    )
    assert gap > 1 if linear else gap < 1e-9
PY
