#!/bin/bash
# skops 0.16.0: a HistGradientBoostingClassifier saved with scikit-learn 1.8.0 cannot be read with 1.9.1 (No module named
# '_loss': the compiled loss was named without its package there), while one saved with 1.9.1 is read with 1.8.0 and
# predicts the same.
# Met with models in archives of a paper: note scikit-learn's version, and keep a way to train again.
# Seen: 1.8.0 read by 1.9.1: ModuleNotFoundError; 1.9.1 read by 1.8.0: the same predictions.
set -euo pipefail
W=$(mktemp -d); trap 'rm -rf "$W"' EXIT
for version in 1.8.0 1.9.1; do
    python3 -m venv "$W/$version"; "$W/$version/bin/pip" install -q numpy==2.4.6 scikit-learn==$version skops==0.16.0 2>/dev/null
done
cat > "$W/write.py" <<'PY'
import numpy as np, sklearn, skops.io
from sklearn.ensemble import HistGradientBoostingClassifier
x = np.random.default_rng(1).normal(size=(500, 2))
model = HistGradientBoostingClassifier(max_iter=5).fit(x, x[:, 0] > 0)
skops.io.dump(model, f"{sklearn.__version__}.skops")
np.save(f"{sklearn.__version__}.npy", model.predict_proba(x))
PY
cat > "$W/read.py" <<'PY'
import sys, numpy as np, sklearn, skops.io
file = f"{sys.argv[1]}.skops"
x = np.random.default_rng(1).normal(size=(500, 2))
try:
    model = skops.io.load(file, trusted=skops.io.get_untrusted_types(file=file))
    said = "same" if np.array_equal(model.predict_proba(x), np.load(f"{sys.argv[1]}.npy")) else "other"
except Exception as error:
    said = f"{type(error).__name__}: {error}"
print(f"saved with {sys.argv[1]}, read with {sklearn.__version__}: {said}")
PY
cd "$W"; for version in 1.8.0 1.9.1; do "$version/bin/python" write.py; done
{ 1.9.1/bin/python -W ignore read.py 1.8.0; 1.8.0/bin/python -W ignore read.py 1.9.1; } | tee said
grep -q "saved with 1.8.0, read with 1.9.1: ModuleNotFoundError: No module named '_loss'" said
grep -q "saved with 1.9.1, read with 1.8.0: same" said
