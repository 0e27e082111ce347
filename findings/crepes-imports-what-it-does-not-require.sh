#!/usr/bin/env bash
# crepes 0.9.1: `pip install crepes` brings numpy, pandas and scipy, which are all that its metadata require, and then
# `import crepes` ends with ModuleNotFoundError: its module extras imports sklearn.neighbors when it is loaded.
# Met where conformal sets are made of predictions.npz in an environment without this project, such as one made for
# predictions of an exported run alone. Where scikit-learn is there for another reason nobody notices.
# Remedy: pip install crepes scikit-learn.
# Guess written down before: a package whose first example wraps estimators of scikit-learn requires it, or does without
# until one is given. Seen: No module named 'sklearn'; with scikit-learn 1.9.0 the same line works.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
pip() { "$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }
pip 'crepes==0.9.1' 'numpy==2.4.6' 'scipy==1.17.1'
alone=$("$work/venv/bin/python" -c 'import crepes' 2>&1 | tail -1 || true)
echo "crepes 0.9.1 as it is installed: $alone"
pip 'scikit-learn==1.9.0' 'numpy==2.4.6' 'scipy==1.17.1'
beside=$("$work/venv/bin/python" -c 'import crepes; print("crepes", crepes.__version__, "is imported")')
echo "beside scikit-learn 1.9.0: $beside"
[[ $alone == *"No module named 'sklearn'"* && $beside == "crepes "*"is imported" ]] || { echo "this has changed"; exit 1; }
