#!/bin/bash
# treelite 4.8.1 reads a LightGBM 4.7.0 model that was trained with zero_as_missing=True, and predicts something else for
# every row with a zero: it sends zeros by the threshold, where LightGBM sends them the way of missing values. Nothing is
# said. The file tells it (bits 2 and 3 of decision_type are 1). Rows without a zero agree to the bit, and so does a model
# trained without the option.
# Guess before running: the same predictions, as for missing values, categories, DART and all objectives that were tried;
# or a refusal, as of linear trees.
# Met where silent stations of an array are zeros. NaN in their place does not mend it: that goes another way again.
# Seen: 2,242 of 4,000 rows differ, all of them with a zero, by up to 0.25 in probability.
set -euo pipefail
W=$(mktemp -d); trap 'rm -rf "$W"' EXIT
python3 -m venv "$W/v"; "$W/v/bin/pip" install -q treelite==4.8.1 lightgbm==4.7.0 numpy==2.4.6 2>/dev/null
cd "$W"
"$W/v/bin/python" - <<'PY'
import lightgbm
import numpy as np
import treelite

rng = np.random.default_rng(1)
deposits = np.abs(rng.normal(size=(4000, 3)))
deposits[rng.random(deposits.shape) < 0.4] = 0  # silent stations
label = deposits.sum(axis=1) + rng.normal(size=4000) > 2
has_zero = (deposits == 0).any(axis=1)
for missing in (False, True):
    options = {"objective": "binary", "zero_as_missing": missing, "verbose": -1, "seed": 1}
    booster = lightgbm.train(options, lightgbm.Dataset(deposits, label.astype(int)), 20)
    booster.save_model("model.txt")
    model = treelite.frontend.load_lightgbm_model("model.txt")
    gap = np.abs(np.squeeze(treelite.gtil.predict(model, deposits)) - booster.predict(deposits))
    print(
        f"zero_as_missing={missing}: {np.sum(gap > 0):,} of 4,000 rows differ, {np.sum((gap > 0) & ~has_zero)} of them "
        f"without a zero; largest difference {gap.max():.2f}"
    )
    assert np.array_equal(gap > 1e-9, np.zeros(4000, bool)) if not missing else gap.max() > 0.2
    assert not np.any(gap[~has_zero])
PY
